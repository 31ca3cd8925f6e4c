"""What is measured of a solution at its ``x``, before it becomes a certificate; and how much that varies, over rows and
over groups of samples left out in turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from ..trees import as_rows as as_rows
from .intervals import Estimate, freedom_of, measurable

GROUPS = 20  # left out in turn; with 19 degrees of freedom an interval is 7% wider than with endless ones


@dataclass(frozen=True)
class NoisyVector:
    """An estimated vector, after the flattened ``x``, and the covariance of the estimate."""

    mean: Float[np.ndarray, " dx"]
    covariance: Float[np.ndarray, "dx dx"]


@dataclass(frozen=True)
class Errors:
    """How far policy, adjoint and sensitivity are from those compared with, all squared; `distance`: ``E|y - y*|``."""

    policy: Estimate
    adjoint: Estimate
    sensitivity: Estimate
    distance: float


@dataclass(frozen=True)
class Measured:
    """The gradients of the contextual and of the reduced problem, and why they differ.

    - `freedom`: of the estimated covariances; `scale`: the size of single rows, whose rounding gradients inherit.
    - `difference`, `parts`, `errors`: where the reduced problem was compared with a better one.
    - `value`: the upper objective; `fitted`: the reduced gradient on these very samples, where `reduced` is corrected
      for the fit to them. `more_bend`: what the basis and the fit hide of the curvature along each coordinate.
      `unresolved`: why nothing can be said, in words. `compared`: with what.
    """

    gradient: NoisyVector
    reduced: NoisyVector
    freedom: float
    trouble: str
    difference: NoisyVector | None = None
    parts: Mapping[str, Float[np.ndarray, " dx"]] = field(default_factory=dict)
    errors: Errors | None = None
    scale: float = 0.0
    unresolved: str = ""
    compared: str = ""
    value: Estimate | None = None
    fitted: NoisyVector | None = None
    more_bend: Float[np.ndarray, " dx"] | None = None


def covariance(rows: Float[np.ndarray, "n d"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "d d"]:
    """Of the weighted mean of independent rows."""
    apart = (rows - shares @ rows) * shares[:, None]
    return apart.T @ apart * (1 + 1 / freedom_of(shares) if measurable(shares) else np.nan)


def jackknife(left_out: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "d d"]:
    """The covariance of an estimate, from its values with one of `k` groups of samples left out at a time."""
    apart = left_out - left_out.mean(axis=0)
    return (len(left_out) - 1) / len(left_out) * apart.T @ apart


def jackknife_estimate(value: float, left_out: list[float]) -> Estimate:
    """A nonnegative figure with its error, from its values with a group of samples left out."""
    error = float(np.sqrt(jackknife(np.array(left_out, float)[:, None])[0, 0]))
    return Estimate.of(value, error, len(left_out) - 1.0, least=0.0)


def split_rows(count: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """The group each row belongs to, at random and of even sizes; fewer groups where there are fewer rows."""
    return rng.permutation(count) % min(GROUPS, count)


def without(shares: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    """The shares of rows with one group left out; NaN where nothing is left."""
    kept = shares * (group != k)
    with np.errstate(invalid="ignore"):
        return kept / np.sum(kept)
