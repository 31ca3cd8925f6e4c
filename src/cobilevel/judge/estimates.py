"""Estimates that carry their uncertainty, and intervals for the length of a vector known only with noise."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

LEVEL = 0.95


_SHARES = 400  # points at which the length of the noise across is looked at


class Estimate(float):
    """A number with its standard `error` and an `interval` that covers the truth 95% of the time."""

    error: float
    interval: tuple[float, float]

    def __new__(cls, value: float, error: float = 0.0, interval: tuple[float, float] | None = None):
        self = super().__new__(cls, value)
        self.error = float(error)
        self.interval = (float(value), float(value)) if interval is None else (float(interval[0]), float(interval[1]))
        return self

    def __repr__(self):
        if not self.error:
            return f"{float(self):.3g}"
        return f"{float(self):.3g} [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"

    def __reduce__(self):
        return Estimate, (float(self), self.error, self.interval)


def freedom_of(shares: np.ndarray) -> float:
    """How many independent rows beyond the first weights that sum to 1 stand for."""
    return 1 / float(np.sum(np.asarray(shares, float) ** 2)) - 1


def mean_estimate(values: Any, shares: Any) -> Estimate:
    """A weighted mean of independent values, the weights summing to 1; never below zero where no value is."""
    table = np.asarray(values, dtype=float)
    mean = float(shares @ table)
    freedom = freedom_of(shares)
    if freedom < 0.5:
        return Estimate(mean, np.nan, (0.0 if np.all(table >= 0) else -np.inf, np.inf))
    error = float(np.sqrt(np.sum(shares**2 * (table - mean) ** 2) * (1 + 1 / freedom)))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    low = max(mean - reach, 0.0) if np.all(table >= 0) else mean - reach
    return Estimate(mean, error, (low, mean + reach))


def norm_estimate(
    vector: Float[np.ndarray, " d"],
    covariance: Float[np.ndarray, "d d"],
    freedom: float = np.inf,
    cautious: bool = False,
) -> Estimate:
    r"""The length $r$ of a vector, from a normal estimate with known (at finite `freedom`, estimated) covariance.

    Noise makes vectors longer: along the vector by nothing on the average, across it by its own square. With $\sigma^2$
    the variance along, and the noise across as $a \chi^2_\nu$ with the same mean and variance, the estimate's length
    squared is $(r + \sigma z)^2 + a \chi^2_\nu$. The interval holds every $r$ for which the observed length is neither
    among the 2.5% shortest (as a share of what noise alone makes shorter, so that no interval is empty) nor the 2.5%
    longest; it reaches down to 0 where noise alone could have made the vector. There the length as observed is given
    where the answer should be `cautious`, else what is left of it without noise.
    """
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or not np.all(np.isfinite(covariance)) or not freedom > 0:
        return Estimate(length, np.nan, (0.0, np.inf))
    total = float(np.trace(covariance))
    if total <= (1e-14 * length) ** 2:
        return Estimate(length)
    unit = vector / length if length > 0 else np.linalg.eigh(covariance)[1][:, -1]
    turned = covariance @ unit
    along = max(float(unit @ turned), 1e-12 * total)
    across = max(total - along, 0.0)
    squares = max(float(np.sum(covariance**2)) - 2 * float(turned @ turned) + along**2, 0.0)
    sigma = along**0.5
    tail = (1 - LEVEL) / 2
    lengths = np.zeros(1)
    if across > 1e-9 * along and squares > 0:
        scale, count = squares / across, across**2 / squares
        lengths = scale * stats.chi2.ppf((np.arange(_SHARES) + 0.5) / _SHARES, count)
    seen = max(length, float(np.sqrt(np.quantile(lengths, 0.05) + along / 100)))  # shorter ones tell no more
    room = np.sqrt(np.maximum(seen**2 - lengths, 0))
    law: Any = stats.norm if np.isinf(freedom) else stats.t(freedom)

    def shorter(r):
        """The probability that an estimate of a vector of length ``r`` is shorter than the one observed."""
        return float(np.mean((lengths < seen**2) * (law.cdf((room - r) / sigma) - law.cdf((-room - r) / sigma))))

    def end(probability):
        if shorter(0.0) <= probability:
            return 0.0
        far = seen + 10 * sigma * max(1.0, float(law.ppf(1 - tail)))
        return float(optimize.brentq(lambda r: shorter(r) - probability, 0.0, far))  # pyright: ignore

    low, high = end(1 - tail), end(tail * shorter(0.0))
    value = length if cautious and low == 0 else float(np.sqrt(max(length**2 - across, 0.0)))
    high = max(high, value) if cautious else high
    return Estimate(min(max(value, low), high), sigma, (low, high))
