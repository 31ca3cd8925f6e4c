"""The noise of estimates, of means over rows and by groups of samples left out in turn, and the bias of fits to few."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..problem import Level
from ..study import Study

FOR_NOISE = 3  # Newton steps without a group: noise is then right to a percent, at corners of a policy too
GROUPS = 20  # left out in turn; with 19 degrees of freedom an interval is 7% wider than with endless ones


# -- means over rows


def influence(rows: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n k"]:
    """How far each of independent rows moves their weighted mean."""
    return (rows - shares @ rows) * shares[:, None]


def mean_error(rows: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, " k"]:
    """The standard error of the weighted mean of independent rows."""
    return np.linalg.norm(influence(rows, shares), axis=0)


def mean_covariance(rows: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the weighted mean of independent rows."""
    moved = influence(rows, shares)
    return moved.T @ moved


def level_covariance(level: Level, rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the mean of rows over a level's pool; of contexts and data apart where they are crossed."""
    if not level.crossed:
        return covariance_in_parts(level, rows)
    shares = level.contexts().shares()
    table = rows.reshape(len(shares), -1, rows.shape[1])
    return covariance_in_parts(level, table.mean(axis=1), np.tensordot(shares, table, axes=1))


def covariance_in_parts(
    level: Level,
    by_context: Float[np.ndarray, "n k"],
    by_data: Float[np.ndarray, "m k"] | None = None,
    times: Callable[[Any], float] = lambda shares: 1.0,
) -> Float[np.ndarray, "k k"]:
    """The same from the means at each context, which have no noise where their law is known, and over these of each
    datum; `times`: a factor for rows of such weights."""
    parts = [] if level.law is not None else [(by_context, level.contexts().shares())]
    parts += [] if by_data is None else [(by_data, np.full(len(by_data), 1 / len(by_data)))]
    none = np.zeros((by_context.shape[1],) * 2)
    return sum((times(shares) * mean_covariance(rows, shares) for rows, shares in parts), none)


def covariance_of(
    study: Study, upper: Float[np.ndarray, "m k"], lower: Float[np.ndarray, "n k"]
) -> Float[np.ndarray, "k k"]:
    """The covariance of the sum of the means of the two levels' rows."""
    if study.shared:
        return level_covariance(study.lower, upper + lower)
    return level_covariance(study.upper, upper) + level_covariance(study.lower, lower)


def scores(phi: Float[np.ndarray, "n N"], rows: Float[np.ndarray, "n dy"]) -> Float[np.ndarray, "n M"]:
    """Rows times features, function by function: a sample's part in conditions that coefficients solve."""
    return (phi[:, :, None] * rows[:, None, :]).reshape(len(phi), -1)


# -- groups left out in turn


def split_rows(count: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """The group each row belongs to, at random and of even sizes; fewer groups where there are fewer rows."""
    return rng.permutation(count) % min(GROUPS, count)


def without(shares: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    """The shares of rows with one group left out; NaN where nothing is left."""
    kept = shares * (group != k)
    with np.errstate(invalid="ignore"):
        return kept / np.sum(kept)


def jackknife(left_out: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "d d"]:
    """The covariance of an estimate, from its values with one of `k` groups of samples left out at a time."""
    apart = left_out - left_out.mean(axis=0)
    return (len(left_out) - 1) / len(left_out) * apart.T @ apart


def fitting_bias(whole: np.ndarray, left_out: Float[np.ndarray, "k ..."]) -> np.ndarray:
    """What an estimate has beyond one from endless samples, to first order in how few they are."""
    return (len(left_out) - 1) * (left_out.mean(axis=0) - whole)
