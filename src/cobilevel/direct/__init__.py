"""Methods one would use instead of the reduction, each with one call: nested, pointwise, or by a network."""

from .amortized import Amortized
from .collocation import Collocation
from .local_weights import LocalWeights
from .method import Direct, DirectSolution
from .per_context import PerContext
from .nested import DLSGD, RTMLMC
