"""What is measured of a solution at its ``x``, before it becomes a certificate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from .intervals import Estimate


@dataclass(frozen=True)
class NoisyVector:
    """An estimated vector, after the flattened ``x``, and the covariance of the estimate."""

    mean: Float[np.ndarray, " dx"]
    covariance: Float[np.ndarray, "dx dx"]


@dataclass(frozen=True)
class Errors:
    """How far policy, adjoint and sensitivity are from those compared with, all squared; `distance`: ``E|y - y*|``."""

    policy: Estimate
    adjoint: Estimate
    sensitivity: Estimate
    distance: float


@dataclass(frozen=True)
class Measured:
    """The gradients of the contextual and of the reduced problem, and why they differ.

    - `freedom`: of the estimated covariances; `scale`: the size of single rows, whose rounding gradients inherit.
    - `difference`, `parts`, `errors`: where the reduced problem was compared with a better one.
    - `value`: the upper objective; `fitted`: the reduced gradient on these very samples, where `reduced` is corrected
      for the fit to them. `more_bend`: what the basis and the fit hide of the curvature along each coordinate.
      `unresolved`: why nothing can be said, in words. `compared`: with what.
    """

    gradient: NoisyVector
    reduced: NoisyVector
    freedom: float
    trouble: str
    difference: NoisyVector | None = None
    parts: Mapping[str, Float[np.ndarray, " dx"]] = field(default_factory=dict)
    errors: Errors | None = None
    scale: float = 0.0
    unresolved: str = ""
    compared: str = ""
    value: Estimate | None = None
    fitted: NoisyVector | None = None
    more_bend: Float[np.ndarray, " dx"] | None = None
