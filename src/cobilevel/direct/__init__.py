"""Methods one would use instead of the reduction, each with one call: nested, pointwise, or by a network."""

from .amortized import Amortized, rough_outer_step
from .collocation import Collocation, interpolating
from .local_weights import LocalWeights
from .method import Direct, DirectSolution
from .nested import DLSGD, RTMLMC
from .per_context import PerContext

__all__ = ["DLSGD", "RTMLMC", "Amortized", "Collocation", "DirectSolution", "LocalWeights", "PerContext"]
