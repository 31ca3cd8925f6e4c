"""The upper objective near ``x``: its curvature, its noise, and the directions in which samples do not determine it."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from .expansion import Around
from .level_noise import pool_shares
from .missed import Missed, what_is_missed

_CLEAR = 2.0  # standard errors by which a curvature must exceed zero, for its direction to be determined
_ZERO_CURVATURE = 1e-9  # of the largest curvature: what rounding leaves of one that is zero
_SURE = 9.0  # times what noise of the policy adds to a curvature: one as large is clear (a first-stage F of 10)
_MOST_LOOKED = 8  # directions for which what the others take up is worked out
_NOTICED = 0.01  # of a curvature: what noise of the policy adds to it, from which on is asked what else takes it up


@dataclass(frozen=True)
class Local:
    """The upper objective near ``x`` on the free coordinates: its curvature, its noisy gradient, what is corrected.

    `excess`: the slope of what fitting the policy to the same samples takes off the objective, with its curvature
    `excess_bend` along each coordinate; `noise`: of the gradient, `noise_corrected`: of its sum with `excess`.
    """

    hessian: Float[np.ndarray, "k k"]
    gradient: Float[np.ndarray, " k"]
    noise: Float[np.ndarray, "k k"]
    noise_corrected: Float[np.ndarray, "k k"]
    excess: Float[np.ndarray, " k"]
    excess_bend: Float[np.ndarray, " k"]

    def less(self, absorbed: Float[np.ndarray, " k"], kept: float, first: Float[np.ndarray, " k"]) -> "Local":
        """Without what other directions take up of the correction: `absorbed` where it was `first`, and all but a share
        `kept` of how it changes from there."""
        return replace(self, excess=first + absorbed + kept * (self.excess - first))


def local_objective(around: Around, missed: Missed | None, free: np.ndarray, kept: float = 1.0) -> Local:
    """`kept`: the share of the correction's noise and curvature that other directions do not take up."""
    k, hessian = around.lengths, around.hessian()[np.ix_(free, free)]
    upper, lower = (rows / k for rows in around.scores())
    gradient = around.at_x(around.solved.gradient)[free]
    inside = np.ix_(free, free)
    noise = around.covariance((upper, lower))[inside]
    if missed is None:
        zero = np.zeros(int(free.sum()))
        return Local(hessian, gradient, noise, noise, zero, zero)
    scale, shares, lost = np.concatenate([[1.0], 1 / k]), around.study.lower.contexts().shares(), missed.overfit
    own = (upper + lower - shares @ (upper + lower)) * shares[:, None]
    both = replace(lost, single=lost.single * scale * kept, pairs=lost.pairs * scale * kept)
    corrected = both.covariance(np.concatenate([np.zeros((len(own), 1)), own], axis=1))[1:, 1:][inside]
    excess, bend = (lost.value * scale)[1:][free], (missed.overfit_bend / k**2)[free] * kept
    return Local(hessian, gradient, noise, corrected, excess, bend)


@dataclass(frozen=True)
class Principal:
    """The objective along the principal directions of its curvature, least curvature first.

    - `values`: curvatures on the scale of single samples' gradients; `steps`: the directions, as far as was looked;
      `seen`: whether bounds left room to look at all.
    - `bend`: curvatures along `steps`, `error`: their standard errors; `over`: what noise of the policy adds to them.
    - `absorbed`: the part of the slope of ``Local.excess`` that the other directions take up, on all free coordinates;
      `kept`: the share of `over` that they leave along the least curvature.
    """

    values: Float[np.ndarray, " k"]
    steps: Float[np.ndarray, "k dx"]
    seen: Bool[np.ndarray, " k"]
    bend: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    over: Float[np.ndarray, " k"]
    absorbed: Float[np.ndarray, " k"]
    kept: float

    @staticmethod
    def of(around: Around, local: Local, free: np.ndarray, joint: bool) -> "Principal":
        unit, k = around.unit[free], int(free.sum())
        values, vectors = np.linalg.eigh(local.hessian * np.outer(unit, unit))
        reach = np.abs(np.diag(around.directions))
        steps = np.zeros((len(free), len(free)))
        steps[:k, free] = (vectors * unit[:, None]).T
        longest = np.max(np.abs(steps) / np.where(reach > 0, reach, np.inf), axis=1)
        steps = steps / np.where(longest > 0, longest, 1)[:, None]
        across = around.along(steps)
        upper, lower = across.curvature_rows()
        error = np.sqrt(np.maximum(np.diag(across.covariance((upper, lower))), 0))[:k]
        bend, over, absorbed, kept = across.bend(across.solved.value)[:k], np.zeros(k), np.zeros(k), 1.0
        if joint:
            over = -what_is_missed(across).overfit_bend[:k]
            for j in np.flatnonzero(over > _NOTICED * np.abs(bend))[:_MOST_LOOKED]:
                slope, less = _taken_up(across, bend, int(j))
                # a functional on directions that is `slope` along this one, and zero along the others
                absorbed += slope * np.linalg.pinv(across.directions[:k][:, free])[:, j]
                kept = max(1 - less / over[j], 0) if j == 0 else kept
                over[j] = max(over[j] - less, 0)
        seen = np.any(across.directions[:k], axis=1)
        steps = np.where(seen[:, None], across.directions[:k], steps[:k])
        return Principal(values, steps, seen, bend - over, error, over, absorbed, kept)

    def undetermined(self) -> tuple[Bool[np.ndarray, " k"], Bool[np.ndarray, " k"]]:
        """The directions that show no curvature beyond its noise; and those along which the objective falls.

        A curvature to which the policy contributes a square, as a first stage does, has noise that vanishes with it:
        its own error then says little about whether there is any, and the noise of the policy says it.
        """
        rest = np.sqrt(np.maximum(self.error**2 - 4 * np.maximum(self.bend + self.over, 0) * self.over, 0))
        sure = (self.bend > _SURE * self.over) & (self.bend > _CLEAR * rest) & (self.over > 0)
        zero = _ZERO_CURVATURE * np.abs(self.values).max()
        flat = (self.seen & (self.bend <= _CLEAR * self.error) & ~sure) | (self.values <= zero)
        falls = (self.bend < -_CLEAR * self.error) & (self.values < -zero)
        return flat & ~falls, falls


def _taken_up(across: Around, bend: np.ndarray, j: int) -> tuple[float, float]:
    """What the other directions take up of the noise along direction `j`: of its slope, and of its curvature.

    The minimiser over the other directions follows the samples too: noise that they can follow neither curves the
    objective along `j` nor moves ``x``. Of ten functions and nine controls, one is left to the instrument. Of what the
    direction itself takes up of its slope half counts: this centres the median (the mean would take all of it, but one
    instrument has none).
    """
    step, back = across.directions[j], across.back[j]
    ahead, behind = (across.moved(side * step) for side in (1.0, -back))
    if not all(each.sound and np.allclose(each.directions, across.directions) for each in (ahead, behind)):
        return 0.0, 0.0  # next to a bound, there is no room to look
    rows = [sum(each.scores()) for each in (ahead, behind)]
    mixed, own = (rows[0] - rows[1]) / (1 + back), sum(across.scores())
    shares = pool_shares(across.study.lower)[:, None]
    mixed, own = ((table - np.sum(shares * table, axis=0)) * shares for table in (mixed, own))
    others = [a for a in range(len(bend)) if a != j and bend[a] > 0]
    slope = float(sum(float(mixed[:, a] @ own[:, a]) / bend[a] for a in others))
    if bend[j] > 0:
        slope += float(mixed[:, j] @ own[:, j] / bend[j] / 2)
    return slope, float(sum(float(mixed[:, a] @ mixed[:, a]) / bend[a] for a in others))


def flat_directions(
    around: Around, local: Local, free: np.ndarray, joint: bool
) -> tuple[Float[np.ndarray, "f dx"], Float[np.ndarray, "e dx"], Principal | None]:
    """Directions along which the objective shows no curvature beyond its noise; and those along which it falls."""
    if not np.abs(local.hessian).max() > 0:
        return np.eye(len(free))[free], np.zeros((0, len(free))), None
    found = Principal.of(around, local, free, joint)
    flat, falls = found.undetermined()
    return found.steps[flat], found.steps[falls], found
