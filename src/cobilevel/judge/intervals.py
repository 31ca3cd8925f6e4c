"""``Estimate``: a number with its standard error and a 95% interval, and how it is computed."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from ..inference import LEVEL, mean_error

TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)  # the quantiles at the two ends of an interval
ROUNDED = 1e-10  # relative differences that rounding explains
_BEYOND = round(1 / TAILS[0])  # numbers of which one lies beyond each end


class Estimate(float):
    """A number with its standard `error` and an `interval` that covers the truth 95% of the time.

    **Arguments:**

    - `value`: the number itself: an estimate is a float.
    - `error`: its standard error.
    - `interval`: its 95% interval; by default the value itself.

    **Example:**

    >>> loss = cb.Estimate(2.0, error=0.1, interval=(1.8, 2.2))
    >>> loss + 1
    3.0
    >>> loss.interval
    (1.8, 2.2)
    """

    error: float
    interval: tuple[float, float]

    def __new__(cls, value: float, error: float = 0.0, interval: tuple[float, float] | None = None):
        self = super().__new__(cls, value)
        self.error = float(error)
        self.interval = (float(value), float(value)) if interval is None else (float(interval[0]), float(interval[1]))
        return self

    @staticmethod
    def of(value: float, error: float, freedom: float = np.inf, least: float = -np.inf) -> "Estimate":
        """From a value and its standard error, by Student's t (by the normal law at infinite `freedom`).

        The truth is known to be at least `least`. If value or error is NaN, nothing else is known.
        """
        value = float(np.maximum(value, least))
        if not np.isfinite(error) or not np.isfinite(value):
            return Estimate(value, np.nan, (least, np.inf))
        reach = _quantile(TAILS[1], freedom) * float(error)
        return Estimate(value, error, (max(value - reach, least), value + reach))

    @staticmethod
    def of_square(value: float, variance: float, growth: float, freedom: float = np.inf) -> "Estimate":
        """An estimate of the mean of a square, without bias, so that it may be negative.

        Its variance grows with the truth, and if the estimate is too small by chance, so is the variance. The interval
        therefore holds the values that differ from the estimate by no more than *their* variance explains; at least
        the estimate, and values up to a standard error, however far below zero the estimate is.
        """
        if not np.isfinite(value + variance + growth):
            return Estimate(value, np.nan, (0.0, np.inf))
        reach = _quantile(TAILS[1], freedom) ** 2
        middle = value + reach * growth / 2
        half = float(np.sqrt(max(reach * (reach * growth**2 / 4 + variance), 0.0)))
        error = float(np.sqrt(max(variance + growth * max(-value, 0.0), 0.0)))
        return Estimate(max(value, 0.0), error, (max(min(middle - half, value), 0.0), max(middle + half, error)))

    def beyond_rounding(self, size: float) -> "Estimate":
        """The estimate, or zero if it is no more than the rounding of squares of this size."""
        return Estimate(0.0) if self.high <= ROUNDED**2 * abs(size) else self

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.interval[1]

    def exp(self) -> "Estimate":
        """The exponential of an estimated logarithm: the ends are transformed, the error to first order."""
        value = float(np.exp(float(self)))
        return Estimate(value, value * self.error, (float(np.exp(self.low)), float(np.exp(self.high))))

    def half_square(self) -> "Estimate":
        """Half the square of a length."""
        error = max(float(self), self.error / 2) * self.error
        return Estimate(float(self) ** 2 / 2, error, (self.low**2 / 2, self.high**2 / 2))

    def words(self, digits: int = 3) -> str:
        """The value, and its interval if it has an error."""
        if not self.error:
            return f"{float(self):.{digits}g}"
        return f"{float(self):.{digits}g} [{self.low:.{digits}g}, {self.high:.{digits}g}]"

    def __repr__(self):
        return self.words()

    def __reduce__(self):
        return Estimate, (float(self), self.error, self.interval)


def freedom_of(shares: Float[np.ndarray, " n"]) -> float:
    """Degrees of freedom: how many independent rows beyond the first these weights, which sum to 1, amount to."""
    return 1 / float(np.sum(shares**2)) - 1


def measurable(shares: Float[np.ndarray, " n"]) -> bool:
    """Whether rows with these weights are enough to measure how they spread: about one beyond the first."""
    return round(freedom_of(shares)) >= 1


def unbiased(shares: Float[np.ndarray, " n"]) -> float:
    """By which a variance as rows with these weights show it is multiplied; NaN where they are too few to show one."""
    return 1 + 1 / freedom_of(shares) if measurable(shares) else np.nan


def mean_estimate(values: Any, shares: Any, least: float | None = None) -> Estimate:
    """A weighted mean of independent values, the weights summing to 1.

    The truth is at least `least`; by default zero if no value is below it.
    """
    table, shares = np.asarray(values, dtype=float), np.asarray(shares, dtype=float)
    if least is None:
        least = 0.0 if np.all(table >= 0) else -np.inf
    error = float(mean_error(table[:, None], shares)[0] * np.sqrt(unbiased(shares)))
    return Estimate.of(float(shares @ table), error, freedom_of(shares), least)


def runs_estimate(values: Any) -> Estimate:
    """The mean over independent runs of an experiment."""
    table = np.asarray(values, dtype=float)
    return mean_estimate(table, np.full(len(table), 1 / len(table)), least=-np.inf)


def norm_estimate(
    vector: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"], freedom: float = np.inf
) -> Estimate:
    r"""The length of a vector, from a normal estimate with known (at finite `freedom`, estimated) covariance.

    Noise makes vectors longer: along the vector by nothing on average, across it by its own square, which is removed
    from the value. The interval holds every length for which the observed one is neither among the 2.5% shortest (as a
    share of what noise alone makes shorter, so that no interval is empty) nor the 2.5% longest; it reaches down to 0
    where noise alone could have made the vector. Where noise is not the same in all directions, it also holds what
    vectors drawn around the estimate show.
    """
    length, total = float(np.linalg.norm(vector)), float(np.trace(covariance))
    if not np.isfinite(length) or not np.all(np.isfinite(covariance)) or not freedom > 0:
        return Estimate.of(length, np.nan, least=0.0)
    if total <= (1e-14 * length) ** 2:
        return Estimate(length)
    unit = vector / length if length > 0 else np.linalg.eigh(covariance)[1][:, -1]
    turned = covariance @ unit
    along = max(float(unit @ turned), 1e-12 * total)
    across, sigma = max(total - along, 0.0), along**0.5
    squares = max(float(np.sum(covariance**2)) - 2 * float(turned @ turned) + along**2, 0.0)
    law = np.zeros(1)
    if across > 1e-9 * along and squares > 0:  # as a chi^2_nu with the same mean and variance
        upper = 1 - (np.arange(10 * _BEYOND) + 0.5) / (10 * _BEYOND)
        law = squares / across * special.chdtri(across**2 / squares, upper)
    low, high = (sigma * end for end in _length_interval(length / sigma, law / along, freedom))
    if len(vector) > 1:  # noise may be larger across the vector than along it, and the truth lie there
        drawn = _lengths_around(vector, covariance)
        least, most = np.sqrt(np.maximum(np.quantile(drawn, TAILS) ** 2 - total, 0))
        low, high = min(low, float(least)), max(high, float(most))
    value = float(np.sqrt(max(length**2 - across, 0.0)))
    return Estimate(min(max(value, low), high), sigma, (low, high))


def length_around(vector: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"], freedom: float) -> Estimate:
    """The length of a vector distributed around its estimate, rather than the estimate around the vector."""
    if not np.all(np.isfinite(covariance)) or not np.all(np.isfinite(vector)):
        return Estimate.of(float(np.linalg.norm(vector)), np.nan, least=0.0)
    lengths = _lengths_around(vector, covariance)
    known = norm_estimate(vector, covariance, freedom).low > 0
    low, high = np.quantile(lengths, TAILS) if known else (0.0, np.quantile(lengths, LEVEL))
    return Estimate(float(np.sqrt(np.mean(lengths**2))), float(lengths.std()), (low, high))


def _quantile(share: float, freedom: float) -> float:
    """Of Student's t; of the normal law at infinite `freedom`."""
    return float(special.ndtri(share) if np.isinf(freedom) else special.stdtrit(freedom, share))


def _lengths_around(vector: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"]) -> Float[np.ndarray, " k"]:
    """The lengths of vectors drawn around an estimate, in the axes of their covariance."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    drawn = np.random.default_rng(0).standard_normal((100 * _BEYOND, len(values)))  # the ends to a tenth
    return np.linalg.norm(vector @ vectors + drawn * np.sqrt(np.maximum(values, 0)), axis=1)


def _length_interval(length: float, squares: Float[np.ndarray, " q"], freedom: float) -> tuple[float, float]:
    r"""The lengths for which the observed one is neither among the 2.5% shortest nor the 2.5% longest.

    A vector of length $r$ has an estimate of length squared $(r + z)^2 + s$, in units of the noise along it, with $s$
    the noise across it: each of `squares`, with the same probability.
    """
    seen = max(length, float(np.sqrt(np.quantile(squares, 0.05) + 0.01)))  # shorter ones say no more
    room = np.sqrt(seen**2 - squares[squares < seen**2])
    share = len(room) / len(squares)
    below = special.ndtr if np.isinf(freedom) else lambda z: special.stdtr(freedom, z)
    shorter = lambda r: share * float(np.mean(below(room - r) - below(-room - r)))  # falls with r
    least = shorter(0.0)

    def end(probability: float) -> float:
        """The length of which estimates are shorter than seen with this probability."""
        from scipy.optimize import brentq  # takes long to import

        if least <= probability:
            return 0.0
        high, excess = float(room.max()) - _quantile(probability / share, freedom), lambda r: shorter(r) - probability
        return high if excess(high) >= 0 else float(brentq(excess, 0.0, high))

    return end(TAILS[1]), end(TAILS[0] * least)
