"""Two sets of runs compared in pairs: means of differences and of ratios, with 95% intervals."""

from typing import Any

import numpy as np

from ..judge import Estimate, runs_estimate


def difference(ours: Any, theirs: Any) -> Estimate:
    """The mean of ``ours - theirs``, run by run."""
    return runs_estimate(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))


def ratio(ours: Any, theirs: Any) -> Estimate:
    """The geometric mean of ``ours / theirs``, run by run."""
    return runs_estimate(np.log(np.asarray(ours, dtype=float)) - np.log(np.asarray(theirs, dtype=float))).exp()


def geometric_mean(values: Any) -> Estimate:
    """The geometric mean of positive values, over runs."""
    return ratio(values, np.ones(len(values)))
