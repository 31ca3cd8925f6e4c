"""What was learned, kept in the recipes of bases as arrays."""

from dataclasses import replace

import numpy as np

from ..basis import KernelFeatures, Rotated
from ..programs import put
from .directions_fit import Projected
from .kernel_fit import KernelMap


def with_map(recipe: KernelFeatures, made: KernelMap) -> KernelFeatures:
    """A kernel's recipe with its functions."""
    axes, landmarks, table = put(tuple(np.asarray(part) for part in (made.axes, made.landmarks, made.table)))
    return replace(recipe, axes=axes, landmarks=landmarks, table=table)


def with_directions(recipe: Rotated, made: Projected) -> Rotated:
    """A rotated recipe with its directions."""
    axes, shift = put((np.asarray(made.axes), np.asarray(made.shift)))
    return replace(recipe, axes=axes, shift=shift)
