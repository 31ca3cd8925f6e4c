"""Sets of runs, alone and compared in pairs: means, medians, differences and ratios, with 95% intervals."""

from typing import Any

import numpy as np
import scipy.stats

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


def median(values: Any) -> Estimate:
    """The median, between the order statistics that hold it with a chance of 95% at least, whatever the law."""
    ordered = np.sort(np.asarray(values, dtype=float))
    k = max(int(scipy.stats.binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    low, high = float(ordered[k]), float(ordered[len(ordered) - 1 - k])
    return Estimate(float(np.median(ordered)), (high - low) / 4, (low, high))
