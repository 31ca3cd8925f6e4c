"""Standard errors of ``x`` by the sandwich formula, and the directions in which the samples do not determine it."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..answer import Uncertainty, names_of, unknown
from ..derivatives import flattened
from ..problem import Study
from ..reduction import Reduced
from .expansion import Around, look_around, too_large
from .identification import Local, flat_directions, local_objective
from .missed import Missed, what_is_missed

_PART = 1e-3  # of a direction: the least share by which a coordinate belongs to it
_MOST_NAMED = 6  # coordinates that a sentence lists
_WHOLE = 0.02  # how close to a whole number a coefficient is written as one
_MATERIAL = 0.2  # standard errors of bias from which on the correction is iterated
_CORRECTIONS = 5  # how often at most
_MANY = 0.01  # functions for each sample, from which on the bias of a fit to other samples is mentioned
_HIDDEN = 4.0  # standard errors by which structure that the basis misses must move x, to be taken for real
_STUCK = 1e-12  # relative move of x below which it stands where it began


def _belongs(direction: np.ndarray, unit: np.ndarray) -> Bool[np.ndarray, " dx"]:
    """The coordinates that a direction moves."""
    return np.abs(direction / unit) > _PART * np.max(np.abs(direction / unit))


def _in_words(direction: np.ndarray, names: tuple[str, ...], unit: np.ndarray) -> str:
    """``x[0] - x[1] is not determined``, or what else there is to say of a direction."""
    places = np.flatnonzero(_belongs(direction, unit))
    if len(places) == 1:
        return f"{names[places[0]]} is not determined"
    if len(places) > _MOST_NAMED:
        return f"a combination of {len(places)} coordinates of x is not determined"
    coefficients = direction[places] / np.max(np.abs(direction[places])) * np.sign(direction[places[0]])
    words = ""
    for c, j in zip(coefficients, places, strict=True):
        size = "" if abs(abs(c) - 1) < _WHOLE else f"{abs(c):.3g} "
        words += (" - " if c < 0 else " + " if words else "") + size + names[j]
    whole = np.all(np.abs(np.abs(coefficients) - 1) < _WHOLE)
    return f"{words} is not determined" if whole else f"x is not determined along {words}"


def _inverse_off(hessian: np.ndarray, flat: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The inverse of the curvature on the directions that are determined, the others left out."""
    scaled = hessian * np.outer(unit, unit)
    if len(flat):
        rows = flat / unit
        basis = np.linalg.svd(rows)[2][np.linalg.matrix_rank(rows, tol=1e-6 * np.abs(rows).max()) :]
    else:
        basis = np.eye(len(unit))
    if not len(basis):
        return np.zeros_like(scaled)
    return basis.T @ np.linalg.pinv(basis @ scaled @ basis.T, hermitian=True) @ basis * np.outer(unit, unit)


def infer(study: Study, reduced: Reduced, x: PyTree, start: PyTree | None = None) -> Uncertainty:
    """How well the samples determine ``x``, the solution of the reduced problem (whitened) on them.

    `start`: where the search for it began.
    """
    joint = study.shared and study.noisy
    why = too_large(study, study.problem.sizes[0], joint)
    if why:
        return unknown(x, f"standard errors were not computed: {why}.")
    around = look_around(study, reduced, x, joint)
    value = float(around.solved.value[0])
    if not around.sound:
        return unknown(x, "standard errors could not be computed: the reduced problem has no solution near x.", value)
    free = around.free()
    missed = what_is_missed(around) if joint else None
    found = _Found.of(around, missed, free) if free.any() else _Found.nothing(around.x)
    rows = around.solved.rows
    value_error = np.sqrt(around.covariance((around.at_x(rows.f)[:, None], -around.at_x(rows.vr)[:, None]))[0, 0])
    names = names_of(study.problem.x0)
    touched = found.touched(around.unit)
    kinked = np.zeros(len(around.x), bool) if around.near_kink is None else around.near_kink
    error = np.sqrt(np.maximum(np.diag(found.covariance), 0))
    hidden = np.zeros_like(error) if missed is None else found.hidden(around, missed, free)
    error = np.where(touched | kinked, np.inf, np.hypot(error, hidden))
    stuck = start if len(found.flat) else None
    words = [*found.words(names, around.unit), *_without_curvature(study, reduced, stuck, around)]
    return Uncertainty(
        names=names,
        x=around.x,
        error=error,
        bias=found.bias,
        notes=_notes(around, free, touched, found.bias, error, hidden),
        undetermined=tuple(words),
        value=value,
        value_error=float(value_error),
        covariance=found.covariance,
        hessian=found.hessian,
        directions=np.concatenate([found.flat, found.falls]),
    )


def infer_flat(around: Around) -> Float[np.ndarray, "f dx"]:
    """The directions along which the objective shows no curvature beyond its noise, or falls."""
    free = around.free()
    if not free.any():
        return np.zeros((0, len(free)))
    return np.concatenate(flat_directions(around, local_objective(around, None, free), free, around.joint)[:2])


@dataclass(frozen=True)
class _Found:
    """What the samples say, on all coordinates: covariance and bias of ``x``, flat directions and falling ones."""

    covariance: Float[np.ndarray, "dx dx"]
    bias: Float[np.ndarray, " dx"]
    hessian: Float[np.ndarray, "dx dx"]
    flat: Float[np.ndarray, "f dx"]
    falls: Float[np.ndarray, "e dx"]

    @staticmethod
    def nothing(x: np.ndarray) -> "_Found":
        """Where bounds hold all coordinates."""
        square, none = np.zeros((len(x), len(x))), np.zeros((0, len(x)))
        return _Found(square, np.zeros(len(x)), square, none, none)

    @staticmethod
    def of(around: Around, missed: Missed | None, free: np.ndarray) -> "_Found":
        local = local_objective(around, missed, free)
        flat, falls, principal = flat_directions(around, local, free, missed is not None)
        absorbed, kept = (np.zeros(int(free.sum())), 1.0) if principal is None else (principal.absorbed, principal.kept)
        if missed is not None:
            local = local_objective(around, missed, free, kept).less(absorbed, kept, local.excess)
        inverse = _inverse_off(local.hessian, flat[:, free], around.unit[free])
        spread, shift = inverse @ local.noise @ inverse, inverse @ local.excess
        if np.any(np.abs(shift) > _MATERIAL * np.sqrt(np.maximum(np.diag(spread), 0))):
            shift, spread = _corrected(around, free, local, flat, absorbed, kept)
        else:
            shift = np.zeros_like(shift)
        found, inside = _Found.nothing(around.x), np.ix_(free, free)
        covariance, hessian, bias = found.covariance.copy(), found.hessian.copy(), found.bias.copy()
        covariance[inside], hessian[inside], bias[free] = spread, local.hessian, shift
        return _Found(covariance, bias, hessian, flat, falls)

    def hidden(self, around: Around, missed: Missed, free: np.ndarray) -> Float[np.ndarray, " dx"]:
        """How far ``x`` would move, to first order, for what neighbouring samples show and the basis misses.

        Zero where that is less than noise may be, or than the standard error anyhow.
        """
        k, inside = around.lengths, np.ix_(free, free)
        gap, noise = missed.basis.value[1:] / k, missed.basis.covariance()[1:, 1:] / np.outer(k, k)
        inverse = np.zeros_like(self.hessian)
        inverse[inside] = _inverse_off(self.hessian[inside], self.flat[:, free], around.unit[free])
        move, spread = -inverse @ gap, np.sqrt(np.maximum(np.diag(inverse @ noise @ inverse), 0))
        error = np.sqrt(np.maximum(np.diag(self.covariance), 0))
        return np.where((np.abs(move) > _HIDDEN * spread) & (np.abs(move) > error), move, 0.0)

    def touched(self, unit: np.ndarray) -> Bool[np.ndarray, " dx"]:
        """The coordinates that belong to a direction which is not determined."""
        found = np.zeros(len(unit), bool)
        for direction in (*self.flat, *self.falls):
            found |= _belongs(direction, unit)
        return found

    def words(self, names: tuple[str, ...], unit: np.ndarray) -> list[str]:
        """A sentence on each direction that is not determined; on the coordinates, where all of theirs are."""
        touched = self.touched(unit)
        if len(self.flat) > 1 and not len(self.falls) and touched.sum() == len(self.flat):
            named = [name for name, one in zip(names, touched, strict=True) if one]
            listed = f"{', '.join(named[:-1])} and {named[-1]}"
            return [f"{listed} are not determined: the objective does not change along them beyond its noise."]
        flat = [
            f"{_in_words(d, names, unit)}: the objective does not change along it beyond its noise." for d in self.flat
        ]
        falls = [f"{_in_words(d, names, unit)}: the objective falls along it, so x is no minimum." for d in self.falls]
        return flat + falls


def _corrected(
    around: Around, free: np.ndarray, local: Local, flat: np.ndarray, absorbed: np.ndarray, kept: float
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
    """The bias and the covariance where it is not small: the corrected gradient is brought to zero by a few steps."""
    study, place, unit, first = around.study, around.x.copy(), around.unit[free], local.excess - absorbed
    spread = local.noise_corrected
    for _ in range(_CORRECTIONS):
        bent = replace(local, hessian=local.hessian + np.diag(local.excess_bend))
        if np.linalg.eigvalsh(bent.hessian * np.outer(unit, unit))[0] <= 0:
            bent = local
        inverse = _inverse_off(bent.hessian, flat[:, free], unit)
        step = inverse @ (local.gradient + local.excess)
        spread = inverse @ local.noise_corrected @ inverse
        place[free] -= step
        if np.all(np.abs(step) <= 0.02 * np.sqrt(np.diag(spread))):
            break
        nearby = look_around(study, around.reduced, place, True)
        if not nearby.sound:
            break
        local = local_objective(nearby, what_is_missed(nearby), free, kept).less(absorbed, kept, first)
    return (around.x - place)[free], spread


def _notes(
    around: Around, free: np.ndarray, touched: np.ndarray, bias: np.ndarray, error: np.ndarray, hidden: np.ndarray
) -> tuple[str, ...]:
    """What there is to say of each coordinate."""
    notes, x = [], around.x
    for j in range(len(x)):
        note = "not determined" if touched[j] else "" if free[j] else "at its bound"
        if around.at_kink is not None and around.at_kink[j]:
            note = "at a kink"
        elif around.near_kink is not None and around.near_kink[j]:
            note = "a kink is near: not determined"
        elif hidden[j] and not touched[j]:
            note = f"the basis misses structure that neighbouring samples show: with it about {x[j] + hidden[j]:.5g}"
        elif free[j] and not touched[j] and abs(bias[j]) > error[j] / 2 > 0:
            note = f"biased by {bias[j]:+.3g}, a fit to few samples for each function; {x[j] - bias[j]:.5g} without"
        notes.append(note)
    return tuple(notes)


def _without_curvature(study: Study, reduced: Reduced, start: PyTree | None, around: Around) -> list[str]:
    """What can be said without looking at curvature: too few functions for the decision, or no move at all."""
    said, (dx, dy) = [], study.problem.sizes
    functions, rows = around.solved.W.shape[1], study.lower.count or 1
    if study.noisy and not study.shared and functions > _MANY * rows:
        said.append(
            f"the policy's {functions} functions were fitted to {rows} samples of its own, so x carries a bias of the "
            f"order of N / n = {functions / rows:.1g} of itself, which is not corrected for Levels."
        )
    rank = reduced.basis.size if reduced.rank is None else reduced.rank
    if rank * dy < dx:
        said.append(
            f"the policy has {rank * dy} coefficients and x has {dx} coordinates: what x does through the policy is "
            "not determined in full."
        )
    if start is not None:
        x, first = around.x, flattened(start)
        stayed = np.all(np.abs(x - first) <= _STUCK * np.maximum(np.abs(x), np.abs(first)))
        if stayed and not around.at_x(around.solved.gradient).any():
            said.append(
                "x did not move from x0: the gradient is zero there (a plateau?), so this is where it began, and not "
                "an answer."
            )
    return said
