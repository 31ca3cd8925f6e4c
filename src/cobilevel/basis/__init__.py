"""Functions of the context: the families a user can name, fitted to the contexts observed."""

from .axes import Axes
from .base import (
    NUMBERS_AT_ONCE,
    Basis,
    FeatureMap,
    basis_from_json,
    basis_to_json,
    check_basis,
    domain_to_json,
    same_recipe,
)
from .components import Components, Orthonormal, Union, basis_of, by_component
from .families import (
    BSpline,
    Categorical,
    Chebyshev,
    Features,
    Fourier,
    Legendre,
    Monomial,
    Partition,
    PolynomialBasis,
    ProductBasis,
)
from .index_sets import Additive, HyperbolicCross, Interactions, Listed, Tensor, TotalDegree
from .learned import (
    METRICS,
    KernelFeatures,
    Neural,
    Rotated,
    Snapshot,
    kernel_profile,
    kernel_slope,
    layered,
    squared_distances,
)
from .piecewise import Piecewise, breaks_in, piece_of
from .sizes import check_sizes, richer_basis
from .tables import Coordinates, OneHot, Rows, Whitening, combine, dense, upper_triangle, whiten, whitening_of
