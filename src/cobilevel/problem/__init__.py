"""What the user states: contexts, data (and the part looked at where they are many), objectives; checked: the study."""

from .bounds import Bounds as Bounds
from .data import CONTEXTS_EACH as CONTEXTS_EACH
from .data import LOOK_ROWS as LOOK_ROWS
from .data import SAMPLES_EACH as SAMPLES_EACH
from .data import Data as Data
from .data import Level as Level
from .data import Levels as Levels
from .data import Look as Look
from .data import Product as Product
from .data import Samples as Samples
from .data import Stream as Stream
from .distributions import Distribution as Distribution
from .distributions import Mixture as Mixture
from .distributions import TruncatedNormal as TruncatedNormal
from .distributions import Uniform as Uniform
from .domain import Box as Box
from .domain import Domain as Domain
from .domain import Finite as Finite
from .domain import Interval as Interval
from .precision import Precision as Precision
from .precision import double as double
from .precision import in_double as in_double
from .precision import kept_digits as kept_digits
from .problem import Problem as Problem
from .study import Study as Study
from .study import precision_for as precision_for
