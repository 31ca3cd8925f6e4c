"""Many covariates: along which coordinates and directions of the context a policy varies, from rough fits."""

from .fits import (
    CLEARLY,
    FITTED,
    MOST_COEFFICIENTS,
    MOST_FUNCTIONS,
    MULTIPLICATIONS,
    SETTLED,
    Fits,
    Residuals,
    Responses,
    decisions_near,
    nested_errors,
    orthonormalising,
)
from .regression import (
    COUNTS,
    FEWEST_DIMENSIONS,
    FirstFit,
    KernelMap,
    KernelSettings,
    Projected,
    degrees_up_to,
    fit_directions,
    fit_kernel,
    refined,
    refreshed,
    tune_directions,
    tune_kernel,
)
from .structure import Structure, additive_members, structure_of
