"""What the samples say about ``x``: standard errors, directions that are not determined, what the basis misses."""

from .around import (
    CLEAR,
    LEVEL,
    MOST_COORDINATES,
    MOST_NUMBERS,
    NEGLIGIBLE,
    NOTICED,
    Around,
    Galerkin,
    influence,
    look_around,
    mean_covariance,
    natural_step,
    policy_noise,
    slope_accuracy,
    too_large,
)
from .infer import MOST_NAMED, determined, flat_directions, infer
from .neighbours import Missed, Products, features_of, what_is_missed
from .uncertainty import QUANTILE, TABLE_HEAD, Uncertainty, names_of, unknown
