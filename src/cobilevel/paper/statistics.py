"""Means with 95% confidence intervals, alone and in pairs."""

from dataclasses import dataclass

import numpy as np
import scipy.stats


@dataclass(frozen=True)
class Interval95:
    """A mean and its 95% interval (Student's t over independent runs)."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: np.ndarray) -> "Interval95":
        values = np.asarray(values, dtype=float)
        mean = float(np.mean(values))
        if len(values) < 2 or not np.all(np.isfinite(values)):
            return Interval95(mean, -np.inf, np.inf)
        half = float(scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
        return Interval95(mean, mean - half, mean + half)

    def words(self, digits: int = 3) -> str:
        return f"{self.mean:.{digits}g} [{self.low:.{digits}g}, {self.high:.{digits}g}]"


def difference(ours: np.ndarray, theirs: np.ndarray) -> Interval95:
    """The mean of ``ours - theirs``, run by run."""
    return Interval95.of(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))


def ratio(ours: np.ndarray, theirs: np.ndarray) -> Interval95:
    """The geometric mean of ``ours / theirs``, run by run."""
    logs = Interval95.of(np.log(np.asarray(ours, dtype=float)) - np.log(np.asarray(theirs, dtype=float)))
    return Interval95(float(np.exp(logs.mean)), float(np.exp(logs.low)), float(np.exp(logs.high)))
