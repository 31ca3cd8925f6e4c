"""What the samples say about ``x``: standard errors, directions that are not determined, what the basis misses."""

from .around import Around, Galerkin, look_around, natural_step, too_large
from .infer import MOST_NAMED, determined, flat_directions, infer
from .missed import Missed, Products, features_of, what_is_missed
from .noise import MOST_NUMBERS, NEGLIGIBLE, mean_covariance, policy_noise, slope_accuracy
from .uncertainty import QUANTILE, TABLE_HEAD, Uncertainty, names_of, unknown
