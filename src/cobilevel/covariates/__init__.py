"""Many covariates: along which coordinates and directions of the context a policy varies, from rough fits."""

from .directions_fit import Projected, degrees_up_to, fit_directions, refined, tune_directions
from .fits import (
    CLEARLY,
    MOST_COEFFICIENTS,
    MOST_FUNCTIONS,
    SETTLED,
    Fits,
    Residuals,
    Responses,
    decisions_near,
    nested_errors,
    orthonormalising,
)
from .kernel_fit import KernelMap, KernelSettings, fit_kernel, refreshed, tune_kernel
from .structure import COUNTS, FEWEST_DIMENSIONS, Structure, additive_members, structure_of
