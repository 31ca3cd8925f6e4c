r"""Regret: how much lower the objective could be at a decision nearby, in its own units.

With the gradient $g$ of $F$ at ``x`` and its curvature $H$, a Newton step $-H^{-1} g$ leads to the minimum of the
quadratic there, which lies $\tfrac12 g^T H^{-1} g$ lower.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from .intervals import LEVEL, TAILS, Estimate, norm_estimate
from .measured import Measured, NoisyVector

_CHANCE = 1e-6  # probability of a gradient as small on fresh samples: below, these are the ones it was solved from
_LENGTH_DRAWS = 20_000  # by which the length of a vector with noise around its estimate is known


@dataclass(frozen=True)
class Regret:
    """What could be gained, and by which step.

    - `total`: as the samples show it; `sampling`: the part that more samples would show; `basis`: that which a richer
      basis would (``None`` where it was not measured). `step`: to the minimum; `step_error`: its standard errors.
    """

    total: Estimate
    sampling: Estimate
    basis: Estimate | None
    step: Float[np.ndarray, " dx"]
    step_error: Float[np.ndarray, " dx"]


def solved_from_these(found: Measured, free: Bool[np.ndarray, " dx"]) -> bool:
    """Whether the gradient on these samples is smaller than chance allows: they are those ``x`` was found from."""
    part = found.reduced if found.fitted is None else found.fitted
    g, noise = part.mean[free], part.covariance[np.ix_(free, free)]
    if not len(g) or not np.all(np.isfinite(noise)) or not np.trace(noise) > 0:
        return False
    scale = np.sqrt(np.maximum(np.diag(noise), 1e-300))
    values, vectors = np.linalg.eigh(noise / np.outer(scale, scale))
    kept = values > 1e-10 * values[-1]
    size = np.sum((vectors[:, kept].T @ (g / scale)) ** 2 / values[kept])
    return bool(size < special.chdtri(kept.sum(), 1 - _CHANCE))


def length_estimate(vector: NoisyVector, turn: np.ndarray, freedom: float, same: bool) -> Estimate:
    """The length of a noisy vector, seen through a linear map.

    Where ``x`` was found from the same samples (`same`) the gradient is zero on these, whatever it is elsewhere: it
    then lies around its estimate as the noise says.
    """
    mean, noise = turn @ vector.mean, turn @ vector.covariance @ turn.T
    if not same:
        return norm_estimate(mean, noise, freedom)
    if not np.all(np.isfinite(noise)) or not np.all(np.isfinite(mean)):
        return Estimate.of(float(np.linalg.norm(mean)), np.nan, least=0.0)
    values, vectors = np.linalg.eigh((noise + noise.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0))
    drawn = mean + np.random.default_rng(0).standard_normal((_LENGTH_DRAWS, len(values))) @ root.T
    lengths = np.linalg.norm(drawn, axis=1)
    shown = norm_estimate(mean, noise, freedom)
    ends = np.quantile(lengths, TAILS) if shown.low > 0 else (0.0, np.quantile(lengths, LEVEL))
    return Estimate(float(np.sqrt(np.mean(lengths**2))), float(lengths.std()), (float(ends[0]), float(ends[1])))


def regret_of(
    found: Measured, hessian: Float[np.ndarray, "dx dx"], flat: Float[np.ndarray, "f dx"], free: np.ndarray, same: bool
) -> Regret | None:
    """From what was measured, with the curvature of the objective on the directions that are determined."""
    if not free.any():
        return None
    part = hessian[np.ix_(free, free)]
    if found.more_bend is not None:
        stated = part + np.diag(found.more_bend[free])
        scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(part)), 1e-300))
        part = stated if np.linalg.eigvalsh(stated * np.outer(scale, scale))[0] > 0 else part
    if not np.all(np.isfinite(part)):
        return None
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(part)), 1e-300))
    values, vectors = np.linalg.eigh(part * np.outer(scale, scale))
    rows = flat[:, free] / scale
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    away = np.linalg.norm(rows @ vectors, axis=0) if len(rows) else np.zeros(len(values))
    kept = (values > 1e-9 * np.abs(values).max()) & (away < 0.7)
    if not kept.any():
        return None
    turn = np.zeros((int(kept.sum()), len(free)))
    turn[:, free] = (vectors[:, kept] / np.sqrt(values[kept])).T * scale
    gained = lambda vector, at_same: _half_square(length_estimate(vector, turn, found.freedom, at_same))
    step = -turn.T @ turn @ found.gradient.mean
    error = np.sqrt(np.maximum(np.diag(turn.T @ turn @ found.gradient.covariance @ turn.T @ turn), 0))
    return Regret(
        total=gained(found.gradient, same),
        sampling=gained(found.reduced, same),
        basis=None if found.difference is None else gained(found.difference, False),
        step=step,
        step_error=error,
    )


def _half_square(length: Estimate) -> Estimate:
    value = float(length) ** 2 / 2
    error = max(float(length), length.error / 2) * length.error
    return Estimate(value, error, (length.low**2 / 2, length.high**2 / 2))
