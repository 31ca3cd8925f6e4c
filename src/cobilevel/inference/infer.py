"""Standard errors of ``x`` by the sandwich formula, and the directions in which the samples do not determine it."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, PyTree

from ..answer import Uncertainty, names_of, unknown
from ..problem import Study
from ..reduction import Reduced
from .expansion import Around, look_around, too_large
from .missed import Missed, what_is_missed

_CLEAR = 2.0  # standard errors by which a curvature must exceed zero, for its direction to be determined
_ZERO_CURVATURE = 1e-9  # of the largest curvature: what rounding leaves of one that is zero
_PART = 1e-3  # of a direction: the least share by which a coordinate belongs to it
_MOST_NAMED = 6  # coordinates that a sentence lists
_WHOLE = 0.02  # how close to a whole number a coefficient is written as one
_MATERIAL, _CORRECTIONS = (
    0.2,
    5,
)  # standard errors of bias from which on the correction is iterated, and how often at most
_STUCK = 1e-12  # relative move of x below which it stands where it began


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


def _free(study: Study, x: np.ndarray, gradient: np.ndarray) -> Bool[np.ndarray, " dx"]:
    """The coordinates that no bound holds."""
    bounds = study.problem.bounds.flat()
    lo, hi = np.asarray(bounds.lo, float), np.asarray(bounds.hi, float)
    near = 1e-9 * np.maximum(np.abs(x), np.where(np.isfinite(hi - lo), np.abs(hi - lo), 0))
    return ~((lo == hi) | ((x <= lo + near) & (gradient >= 0)) | ((x >= hi - near) & (gradient <= 0)))


def _local(around: Around, missed: Missed | None, free: np.ndarray) -> Local:
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
    both = replace(lost, single=lost.single * scale, pairs=lost.pairs * scale)
    corrected = both.covariance(np.concatenate([np.zeros((len(own), 1)), own], axis=1))[1:, 1:][inside]
    excess, bend = (lost.value * scale)[1:][free], (missed.overfit_bend / k**2)[free]
    return Local(hessian, gradient, noise, corrected, excess, bend)


def _flat_directions(
    around: Around, local: Local, free: np.ndarray, joint: bool
) -> tuple[Float[np.ndarray, "f dx"], Float[np.ndarray, "e dx"]]:
    """Directions along which the objective shows no curvature beyond its noise; and those along which it falls."""
    unit = around.unit[free]
    values, vectors = np.linalg.eigh(local.hessian * np.outer(unit, unit))
    largest = np.abs(values).max()
    if not largest > 0:
        return np.eye(len(free))[free], np.zeros((0, len(free)))
    reach = np.abs(np.diag(around.directions))
    steps = np.zeros((len(free), len(free)))
    steps[: len(values), free] = (vectors * unit[:, None]).T
    room = np.where(reach > 0, reach, np.inf)
    longest = np.max(np.abs(steps) / room, axis=1)
    steps = steps / np.where(longest > 0, longest, 1)[:, None]
    across = around.along(steps)
    upper, lower = across.curvature_rows()
    error = np.sqrt(np.maximum(np.diag(across.covariance((upper, lower))), 0))[: len(values)]
    bend = across.bend(across.solved.value)[: len(values)]
    if joint:
        bend = bend + what_is_missed(across).overfit_bend[: len(values)]
    flat = (bend <= _CLEAR * error) | (values <= _ZERO_CURVATURE * largest)
    falls = (bend < -_CLEAR * error) & (values < -_ZERO_CURVATURE * largest)
    return steps[: len(values)][flat & ~falls], steps[: len(values)][falls]


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


def _inverse_off(local: Local, flat: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The inverse of the curvature on the directions that are determined, the others left out."""
    scaled = local.hessian * np.outer(unit, unit)
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
    free = _free(study, around.x, around.at_x(around.solved.gradient))
    missed = what_is_missed(around) if joint else None
    found = _Found.of(around, missed, free) if free.any() else _Found.nothing(around.x)
    rows = around.solved.rows
    value_error = np.sqrt(around.covariance((around.at_x(rows.f)[:, None], -around.at_x(rows.vr)[:, None]))[0, 0])
    names = names_of(study.problem.x0)
    touched = found.touched(around.unit)
    error = np.where(touched, np.inf, np.sqrt(np.maximum(np.diag(found.covariance), 0)))
    stuck = start if len(found.flat) else None
    words = [*found.words(names, around.unit), *_without_curvature(study, reduced, stuck, around)]
    return Uncertainty(
        names=names,
        x=around.x,
        error=error,
        bias=found.bias,
        notes=_notes(free, touched, found.bias, error, around.x),
        undetermined=tuple(words),
        value=value,
        value_error=float(value_error),
        covariance=found.covariance,
        hessian=found.hessian,
        directions=np.concatenate([found.flat, found.falls]),
    )


def infer_flat(around: Around) -> Float[np.ndarray, "f dx"]:
    """The directions along which the objective shows no curvature beyond its noise, or falls."""
    free = _free(around.study, around.x, around.at_x(around.solved.gradient))
    if not free.any():
        return np.zeros((0, len(free)))
    return np.concatenate(_flat_directions(around, _local(around, None, free), free, around.joint))


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
        local = _local(around, missed, free)
        flat, falls = _flat_directions(around, local, free, missed is not None)
        inverse = _inverse_off(local, flat[:, free], around.unit[free])
        spread, shift = inverse @ local.noise @ inverse, inverse @ local.excess
        if np.any(np.abs(shift) > _MATERIAL * np.sqrt(np.maximum(np.diag(spread), 0))):
            shift, spread = _corrected(around, free, local, flat)
        else:
            shift = np.zeros_like(shift)
        found, inside = _Found.nothing(around.x), np.ix_(free, free)
        covariance, hessian, bias = found.covariance.copy(), found.hessian.copy(), found.bias.copy()
        covariance[inside], hessian[inside], bias[free] = spread, local.hessian, shift
        return _Found(covariance, bias, hessian, flat, falls)

    def touched(self, unit: np.ndarray) -> Bool[np.ndarray, " dx"]:
        """The coordinates that belong to a direction which is not determined."""
        found = np.zeros(len(unit), bool)
        for direction in (*self.flat, *self.falls):
            found |= _belongs(direction, unit)
        return found

    def words(self, names: tuple[str, ...], unit: np.ndarray) -> list[str]:
        """A sentence on each direction that is not determined."""
        flat = [
            f"{_in_words(d, names, unit)}: the objective does not change along it beyond its noise." for d in self.flat
        ]
        falls = [f"{_in_words(d, names, unit)}: the objective falls along it, so x is no minimum." for d in self.falls]
        return flat + falls


def _corrected(
    around: Around, free: np.ndarray, local: Local, flat: np.ndarray
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
    """The bias and the covariance where it is not small: the corrected gradient is brought to zero by a few steps."""
    study, place, unit = around.study, around.x.copy(), around.unit[free]
    unravel = ravel_pytree(study.problem.x0)[1]
    spread = local.noise_corrected
    for _ in range(_CORRECTIONS):
        bent = replace(local, hessian=local.hessian + np.diag(local.excess_bend))
        if np.linalg.eigvalsh(bent.hessian * np.outer(unit, unit))[0] <= 0:
            bent = local
        inverse = _inverse_off(bent, flat[:, free], unit)
        step = inverse @ (local.gradient + local.excess)
        spread = inverse @ local.noise_corrected @ inverse
        place[free] -= step
        if np.all(np.abs(step) <= 0.02 * np.sqrt(np.diag(spread))):
            break
        nearby = look_around(study, around.reduced, unravel(jnp.asarray(place, study.dtype)), True)
        if not nearby.sound:
            break
        local = _local(nearby, what_is_missed(nearby), free)
    return (around.x - place)[free], spread


def _notes(free: np.ndarray, touched: np.ndarray, bias: np.ndarray, error: np.ndarray, x: np.ndarray):
    notes = []
    for j in range(len(x)):
        note = "not determined" if touched[j] else "" if free[j] else "at its bound"
        if free[j] and not touched[j] and abs(bias[j]) > error[j] / 2 > 0:
            note = f"biased by {bias[j]:+.3g}, a fit to few samples for each function; {x[j] - bias[j]:.5g} without"
        notes.append(note)
    return tuple(notes)


def _without_curvature(study: Study, reduced: Reduced, start: PyTree | None, around: Around) -> list[str]:
    """What can be said without looking at curvature: too few functions for the decision, or no move at all."""
    said, (dx, dy) = [], study.problem.sizes
    rank = reduced.basis.size if reduced.rank is None else reduced.rank
    if rank * dy < dx:
        said.append(
            f"the policy has {rank * dy} coefficients and x has {dx} coordinates: what x does through the policy is "
            "not determined in full."
        )
    if start is not None:
        x, first = around.x, np.asarray(ravel_pytree(start)[0], float)
        stayed = np.all(np.abs(x - first) <= _STUCK * np.maximum(np.abs(x), np.abs(first)))
        if stayed and not around.at_x(around.solved.gradient).any():
            said.append(
                "x did not move from x0: the gradient is zero there (a plateau?), so this is where it began, and not "
                "an answer."
            )
    return said
