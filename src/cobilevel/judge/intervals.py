"""``Estimate``: a number with its standard error and a 95% interval, and the ways to one."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

LEVEL = 0.95  # how often an interval covers the truth
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)  # the quantiles at its two ends

_ROUNDED_SQUARE = 1e-20  # of what they are made of: squares that rounding explains
_FEWEST_FREE = 0.5  # degrees of freedom below which a spread cannot be measured
_DRAWN_VECTORS = 4000  # vectors around an estimate
_HALVINGS, _TRIALS_OF_ENDS = 2, 80  # of the range in which an end of an interval lies; of places for it
_ROUNDED_CHANCE = 1e-15  # what rounding makes of a probability that is zero
_QUANTILES = 400  # of the noise across a vector, by which its law is represented


class Estimate(float):
    """A number with its standard `error` and an `interval` that covers the truth 95% of the time."""

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

        The truth is known to be no less than `least`. Where value or error is not a number, nothing else is known.
        """
        value = float(np.maximum(value, least))
        if not np.isfinite(error) or not np.isfinite(value):
            return Estimate(value, np.nan, (least, np.inf))
        reach = _quantile(TAILS[1], freedom) * float(error)
        return Estimate(value, error, (max(value - reach, least), value + reach))

    @staticmethod
    def of_square(value: float, variance: float, growth: float, freedom: float = np.inf) -> "Estimate":
        """Of the mean of a square, estimated without bias, so that it may be negative.

        Its variance grows with the truth, and where the estimate is too small by chance so is the variance: the
        interval holds the values that differ from the estimate by no more than *their* variance explains; at least
        the estimate, and what is up to a standard error, however far below zero the estimate is.
        """
        if not np.isfinite(value + variance + growth):
            return Estimate(value, np.nan, (0.0, np.inf))
        reach = _quantile(TAILS[1], freedom) ** 2
        middle = value + reach * growth / 2
        half = float(np.sqrt(max(reach * (reach * growth**2 / 4 + variance), 0.0)))
        error = float(np.sqrt(max(variance + growth * max(-value, 0.0), 0.0)))
        return Estimate(max(value, 0.0), error, (max(min(middle - half, value), 0.0), max(middle + half, error)))

    def beyond_rounding(self, size: float) -> "Estimate":
        """Itself, or zero where it is no more than the rounding of squares of this size."""
        return Estimate(0.0) if self.high <= _ROUNDED_SQUARE * abs(size) else self

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.interval[1]

    def exp(self) -> "Estimate":
        """The exponential of a number estimated by its logarithm: ends are carried over, the error to first order."""
        value = float(np.exp(float(self)))
        return Estimate(value, value * self.error, (float(np.exp(self.low)), float(np.exp(self.high))))

    def words(self, digits: int = 3) -> str:
        """The value, and its interval where it has an error."""
        if not self.error:
            return f"{float(self):.{digits}g}"
        return f"{float(self):.{digits}g} [{self.low:.{digits}g}, {self.high:.{digits}g}]"

    def __repr__(self):
        return self.words()

    def __reduce__(self):
        return Estimate, (float(self), self.error, self.interval)


def freedom_of(shares: Float[np.ndarray, " n"]) -> float:
    """How many independent rows beyond the first weights that sum to 1 stand for."""
    return 1 / float(np.sum(shares**2)) - 1


def measurable(shares: Float[np.ndarray, " n"]) -> bool:
    """Whether rows with these weights are enough to measure how they spread."""
    return freedom_of(shares) >= _FEWEST_FREE


def mean_estimate(values: Any, shares: Any, least: float | None = None) -> Estimate:
    """A weighted mean of independent values, the weights summing to 1.

    The truth is no less than `least`; by default zero where no value is below it.
    """
    table, shares = np.asarray(values, dtype=float), np.asarray(shares, dtype=float)
    if least is None:
        least = 0.0 if np.all(table >= 0) else -np.inf
    mean, freedom = float(shares @ table), freedom_of(shares)
    if not measurable(shares):
        return Estimate.of(mean, np.nan, least=least)
    error = float(np.sqrt(np.sum(shares**2 * (table - mean) ** 2) * (1 + 1 / freedom)))
    return Estimate.of(mean, error, freedom, least)


def runs_estimate(values: Any) -> Estimate:
    """The mean over independent runs of an experiment."""
    table = np.asarray(values, dtype=float)
    return mean_estimate(table, np.full(len(table), 1 / len(table)), least=-np.inf)


def _quantile(share: float, freedom: float) -> float:
    """Of Student's t; of the normal law at infinite `freedom`."""
    return float(special.ndtri(share) if np.isinf(freedom) else special.stdtrit(freedom, share))


class _NoisyLength:
    r"""The law of the length of a normal estimate of a vector of length $r$.

    With $\sigma^2$ the variance along the vector, and the noise across it as $a \chi^2_\nu$ with the same mean and
    variance, the estimate's length squared is $(r + \sigma z)^2 + a \chi^2_\nu$.
    """

    def __init__(self, unit: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"], freedom: float):
        total, turned = float(np.trace(covariance)), covariance @ unit
        along = max(float(unit @ turned), 1e-12 * total)
        self.across = max(total - along, 0.0)
        squares = max(float(np.sum(covariance**2)) - 2 * float(turned @ turned) + along**2, 0.0)
        self.sigma = along**0.5
        self.squares_across = np.zeros(1)
        if self.across > 1e-9 * along and squares > 0:
            scale, count = squares / self.across, self.across**2 / squares
            self.squares_across = scale * special.chdtri(count, (np.arange(_QUANTILES)[::-1] + 0.5) / _QUANTILES)
        self.freedom = freedom

    def interval(self, length: float) -> tuple[float, float]:
        """The lengths for which the observed one is neither among the 2.5% shortest nor the 2.5% longest."""
        # shorter ones say no more
        seen = max(length, float(np.sqrt(np.quantile(self.squares_across, 0.05) + self.sigma**2 / 100)))
        room = np.sqrt(seen**2 - self.squares_across[self.squares_across < seen**2])
        share = len(room) / len(self.squares_across)
        below = special.ndtr if np.isinf(self.freedom) else lambda z: special.stdtr(self.freedom, z)

        def shorter(r: float) -> float:
            """The probability that an estimate of a vector of length ``r`` is shorter than seen."""
            return share * float(np.mean(below((room - r) / self.sigma) - below((-room - r) / self.sigma)))

        least = shorter(0.0)

        def end(probability: float) -> float:
            if least <= probability:
                return 0.0
            excess = lambda r: shorter(r) - probability  # longer vectors make shorter estimates less likely
            reach = self.sigma * _quantile(probability / share, self.freedom)
            high, near = max(float(room.max()) - reach, 0.0), float(room.min()) - reach - self.sigma / 10
            above = excess(near) if near > 0 else 0.0
            low, above = (near, above) if above > 0 else (0.0, least - probability)
            return _falls_to_zero(excess, low, high, above, excess(high))

        return end(TAILS[1]), end(TAILS[0] * least)


def _falls_to_zero(excess: Callable[[float], float], low: float, high: float, above: float, below: float) -> float:
    """Where a falling function is zero, from its values above zero and below it at two ends: along chords, an end that
    stays twice counting half (the Illinois method); by halving at first, where the values hardly differ."""
    last = 0.0
    for trial in range(_TRIALS_OF_ENDS):
        place = low + (high - low) * (0.5 if trial < _HALVINGS else above / (above - below))
        found = excess(place)
        if abs(found) <= _ROUNDED_CHANCE or not low < place < high:
            return place
        if found > 0:
            low, above, below = place, found, below / 2 if last > 0 else below
        else:
            high, below, above = place, found, above / 2 if last < 0 else above
        last = found
    return (low + high) / 2


def _drawn_lengths(vector: Float[np.ndarray, " d"], covariance: Float[np.ndarray, "d d"]) -> tuple[float, float]:
    """The ends of the lengths of vectors drawn around the estimate, without what noise adds to them."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    noise = (
        np.random.default_rng(0).standard_normal((_DRAWN_VECTORS, len(values)))
        @ (vectors * np.sqrt(np.maximum(values, 0))).T
    )
    squares = np.sum((vector + noise) ** 2, axis=1) - np.trace(covariance)
    least, most = np.sqrt(np.maximum(np.quantile(squares, TAILS), 0))
    return float(least), float(most)


def norm_estimate(
    vector: Float[np.ndarray, " d"],
    covariance: Float[np.ndarray, "d d"],
    freedom: float = np.inf,
    cautious: bool = False,
) -> Estimate:
    r"""The length of a vector, from a normal estimate with known (at finite `freedom`, estimated) covariance.

    Noise makes vectors longer: along the vector by nothing on the average, across it by its own square. The interval
    holds every length for which the observed one is neither among the 2.5% shortest (as a share of what noise alone
    makes shorter, so that no interval is empty) nor the 2.5% longest; it reaches down to 0 where noise alone could have
    made the vector. Where noise is not the same in all directions, it also holds what vectors drawn around the estimate
    show. Near 0 the length as observed is given where the answer should be `cautious`, else what is left of
    it without noise.
    """
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or not np.all(np.isfinite(covariance)) or not freedom > 0:
        return Estimate.of(length, np.nan, least=0.0)
    if float(np.trace(covariance)) <= (1e-14 * length) ** 2:
        return Estimate(length)
    unit = vector / length if length > 0 else np.linalg.eigh(covariance)[1][:, -1]
    noise = _NoisyLength(unit, covariance, freedom)
    low, high = noise.interval(length)
    if len(vector) > 1:  # noise may be larger across the vector than along it, and the truth lie there
        least, most = _drawn_lengths(vector, covariance)
        low, high = min(low, least), max(high, most)
    value = length if cautious and low == 0 else float(np.sqrt(max(length**2 - noise.across, 0.0)))
    high = max(high, value) if cautious else high
    return Estimate(min(max(value, low), high), noise.sigma, (low, high))
