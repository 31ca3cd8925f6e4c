"""What is differentiated: row derivatives and their sums for exact methods, oracles with their cost for the others."""

from ..ground import flattened, shaped_like
from . import oracles
from .affine import Affine
from .at_context import AtContext, parameter_gradient
from .curvature import Curvature, following
from .expansion import Expansions
from .fewer import Nodes, with_fewer
from .hypergradient import (
    ConjugateGradient,
    Directions,
    Draw,
    Factored,
    Neumann,
    conjugate_gradient,
    directions,
    hypergradient,
    linear_direction,
    outer_direction,
    sensitivity,
)
from .ledger import HostLedger, Ledger, added, totals_of
from .rows import AT_ONCE, LowerRows, RowBlocks, RowDerivatives, Sizes
from .sums import LowerSums, galerkin
