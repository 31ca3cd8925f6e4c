"""What samples show about ``x``: standard errors, what is not determined, what the basis misses; interval levels."""

from .around import TOO_MANY, Around, look_around
from .galerkin import (
    CLEAR,
    MOST_COORDINATES,
    MOST_NUMBERS,
    NEGLIGIBLE,
    NOTICED,
    Galerkin,
    natural_step,
    policy_noise,
    rows_of,
    slope_accuracy,
    too_large,
    value_error_at,
    without_each,
)
from .jumps import jumps_in_words, jumps_of
from .neighbours import Missed, Products, features_of, what_is_missed
from .noise import (
    FOR_NOISE,
    covariance_in_parts,
    fitting_bias,
    influence,
    jackknife,
    mean_error,
    scores,
    split_rows,
    without,
)
from .smooth import too_large_for_products
from .standard_errors import determined, flat_directions, infer
from .uncertainty import LEVEL, QUANTILE, Uncertainty, aligned, names_of, unknown
from .words import MOST_NAMED
