"""What the samples say about ``x``: standard errors, directions that are not determined, what the basis misses."""

from .around import Around as Around
from .around import Galerkin as Galerkin
from .around import look_around as look_around
from .around import natural_step as natural_step
from .around import too_large as too_large
from .infer import MOST_NAMED as MOST_NAMED
from .infer import determined as determined
from .infer import flat_directions as flat_directions
from .infer import infer as infer
from .missed import Missed as Missed
from .missed import Products as Products
from .missed import features_of as features_of
from .missed import what_is_missed as what_is_missed
from .noise import MOST_NUMBERS as MOST_NUMBERS
from .noise import mean_covariance as mean_covariance
from .noise import policy_noise as policy_noise
from .noise import slope_accuracy as slope_accuracy
