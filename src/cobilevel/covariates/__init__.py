"""Many covariates: along which coordinates and directions of the context a policy varies, from rough fits."""

from .families import FEW_SAMPLES, Family, FirstFit, compare_families, learned_directions, learned_kernel
from .fits import (
    CLEARLY,
    FITTED,
    MOST_COEFFICIENTS,
    MOST_FUNCTIONS,
    MULTIPLICATIONS,
    ROUNDS,
    SETTLED,
    Fits,
    Residuals,
    Responses,
    Vector,
    decisions_near,
)
from .regression import FEWEST_DIMENSIONS
from .structure import Structure, additive_members, structure_of
