"""What samples show about ``x``: standard errors, what is not determined, what the basis misses; interval levels."""

from .around import Around, look_around, look_by_differences
from .galerkin import (
    CLEAR,
    MOST_COORDINATES,
    MOST_NUMBERS,
    NEGLIGIBLE,
    NOTICED,
    Galerkin,
    influence,
    mean_covariance,
    natural_step,
    policy_noise,
    rows_of,
    slope_accuracy,
    too_large,
    value_error_at,
)
from .jumps import jumps_in_words, jumps_of
from .left_out import FOR_NOISE, fitting_bias, jackknife, split_rows, without, without_each
from .neighbours import Missed, Products, features_of, what_is_missed
from .smooth import too_large_for_products
from .standard_errors import determined, flat_directions, infer
from .uncertainty import LEVEL, QUANTILE, Uncertainty, names_of, unknown
from .words import MOST_NAMED
