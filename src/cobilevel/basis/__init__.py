"""Functions of the context: the families a user can name, fitted to the contexts observed."""

from .axes import Axes
from .base import Basis, FeatureMap, check_basis, same_recipe
from .components import Components, Union, basis_of, by_component
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
    network,
    squared_distances,
)
from .recipes import basis_from_json, basis_to_json, domain_to_json
from .sizes import check_sizes, richer_basis
from .tables import OneHot, Rows, combine, dense
from .whitening import Coordinates, Orthonormal, Whitening, whiten
