"""Standard errors of ``x`` by the sandwich formula, and the directions in which the samples do not determine it."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree
from scipy import special

from ..basis import Orthonormal, by_component, richer_basis
from ..derivatives import flattened
from ..problem import Interval
from ..reduction import DENSE_LIMIT, Reduced, reduce_study
from ..study import Study
from .agreement import disagreement
from .around import Around, look_around
from .galerkin import (
    DOUBT,
    NEGLIGIBLE,
    NOTICED,
    Galerkin,
    bounds_of,
    numbers_derived,
    to_minimum,
    too_large,
    too_many,
    value_error_at,
    without_each,
)
from .jumps import jumps_missed, missed_in_words
from .neighbours import Missed, what_is_missed
from .noise import fitting_bias, influence
from .smooth import KINK, too_large_for_products
from .uncertainty import EARLY, QUANTILE, Uncertainty, leaves_of, names_of, unknown
from .words import notes_on, undetermined, without_curvature

_HIDDEN = float(special.ndtri(1 - DOUBT**2 / 2))  # those by which what the basis misses moves x, to be taken for real
_FEW = 8  # directions for which what the others take up is worked out, and steps of the correction, at most
_REACHES = (2.0, 4.0, 8.0)  # standard errors over which curvature is looked for, where one does not show it
_MATERIAL = 0.2  # standard errors from which on a bias is worked out step by step


@np.errstate(over="ignore", invalid="ignore")  # far out; what is not finite is not sound
def infer(
    study: Study, reduced: Reduced, x: PyTree, start: PyTree | None = None, minimised: bool = True
) -> Uncertainty:
    """How well the samples determine ``x``, the solution of the reduced problem (whitened) on them.

    `start`: where the search for it began; `minimised`: whether it was on these samples, and not on more. Noise is
    measured with a soft barrier in place of inequalities.
    """
    joint, stated, study = study.shared and study.noisy, study, study.softened()
    drawn = [level.contexts().shares() for level in (study.upper, study.lower) if not level.crossed]
    if any(round(1 / np.sum(shares**2)) == 1 for shares in drawn):
        return unknown(x, "standard errors are not known: a single sample does not show the noise.")
    given, reduced = reduced, reduced if study is stated else replace(reduced, problem=study.problem)
    wide = too_large(study, joint)
    if wide and (wider := too_large_for_products(study)):
        words = f"standard errors were not computed: {wider}"
        if more := too_many(*numbers_derived(study)):  # not even the objective's: whoever prints it would wait
            return unknown(x, f"{words}, and {more}.")
        galerkin = Galerkin.at(reduced, flattened(x))
        value, error = galerkin.point.value, value_error_at(study, galerkin)
        return replace(unknown(x, f"{words}.", value), value_error=error)
    galerkin = Galerkin.at(reduced, flattened(x), crossed=True)
    around = look_around(study, galerkin, wide, pairs=joint and not (wide or study.barred))
    if isinstance(around, str):
        return unknown(x, f"standard errors were not computed: {around}.", galerkin.point.value)
    if not around.sound:
        why = "standard errors could not be computed: the reduced problem has no solution near x."
        return unknown(x, why, around.point.value)
    slope = (around if given is reduced else Galerkin.at(given, flattened(x))).point.gradient
    slope = slope if minimised and not (wide and study is not stated) else np.zeros(len(slope))
    return _inferred(around, stated, joint, wide, start, slope)


def _inferred(
    around: Around, stated: Study, joint: bool, wide: str, start: PyTree | None, slope: Float[np.ndarray, " dx"]
) -> Uncertainty:
    """The same around ``x``; `stated`: the study without the soft barrier, `joint`: whether policy and objective have
    the noise of the same samples, which is corrected unless the problem is too `wide`; `slope`: what is left of the
    gradient."""
    study, dx, joint = around.study, len(around.x), joint and not wide
    free = around.free()
    around, missed, found = _determined(around, free, joint and not study.barred)
    flat, falls, covariance, hessian, bias, ends = found
    error, hidden, short, lost, early = _errors(covariance), np.zeros(dx), np.zeros(dx), np.isnan(bias), False
    jumps: tuple[float, ...] = ()
    directions, aside = _moving(around, np.concatenate([flat, falls]), error)
    flat, falls = directions[: len(flat)], directions[len(flat) :]
    touched, uneven, names = np.any(directions != 0, axis=0), around.near_kink, names_of(study.problem.x0)
    if free.any():
        inverse = _inverse_on(hessian, free, flat, around.unit)
        inner = np.where(uneven | around.at_kink, 0.0, slope)
        short, early = to_minimum(around.galerkin, inverse, inner, _MATERIAL * error)
    if (joint or (study.barred and study.shared and not wide)) and free.any():
        own = around.galerkin.reduced
        hidden = _by_richer(stated, own, around.x, inverse) if missed is None else _hidden(missed, inverse, error)
        jumps = () if missed is None else jumps_missed(around)
        hidden = _by_pieces(study, own, around.x, inverse, jumps) if jumps else hidden
    touched |= np.any(np.isinf(ends), axis=0) & ~lost
    if dx == 1 and uneven[0] and free[0] and not lost[0] and not len(directions):
        ends, touched = _ends_by_search(around), np.zeros(1, bool)
        error, uneven = np.ptp(ends, axis=0) / 2 / QUANTILE, np.isinf(ends).any(axis=0)
        covariance = error[None] ** 2
    noise, beyond = error, np.sqrt(hidden**2 + short**2 + aside**2)  # what the noise of the samples does not count
    ends = ends * np.hypot(1, np.divide(beyond, error, out=np.zeros(dx), where=error > 0))
    seen = np.where(np.abs(hidden) > QUANTILE * error, hidden, 0.0) if study.barred else hidden
    error = np.where(touched | uneven | lost | (early & free), np.inf, np.hypot(error, beyond))
    apart = np.where(np.isinf(error)[:, None] | np.isinf(error), np.nan, covariance)
    words = undetermined(flat, falls, touched, names)
    if words and study.dtype != np.float64:
        words.append('This was computed in single precision; precision="double" may determine more.')
    words += without_curvature(study, around.galerkin, start if len(flat) else None)
    remarks = [disagreement(around)] if missed is not None and free.all() and not touched.any() else []
    remarks += [missed_in_words(jumps, study.problem.domain)] if jumps else []
    if wide and early:
        remarks.append(f"{EARLY}.")
    elif wide and np.any(np.abs(short) > noise):
        remarks.append(f"the run ended early: the minimum is up to {np.abs(short).max():.2g} away, which errors count.")
    return Uncertainty(
        names=names,
        x=around.x,
        error=error,
        bias=bias,
        notes=notes_on(around, free, touched, uneven, bias, error, seen, short, early, bool(jumps)),
        undetermined=tuple(words),
        remarks=tuple(filter(None, remarks)),
        value=around.point.value,
        value_error=around.value_error(),
        covariance=np.where(np.eye(dx, dtype=bool) & np.isinf(error), np.inf, apart),
        hessian=hessian,
        directions=directions,
        leaves=leaves_of(study.problem.x0, directions / around.unit),
        ends=np.where(np.isfinite(error), ends, np.inf * np.sign([[-1.0], [1.0]])),
        bounds=np.stack(bounds_of(study)),
    )


# -- directions


def flat_directions(
    around: Around, free: np.ndarray, missed: Missed | None
) -> tuple[Float[np.ndarray, "f dx"], Float[np.ndarray, "e dx"], Float[np.ndarray, " k"], float]:
    """Directions along which the objective shows no curvature beyond its noise; and those along which it falls.

    Looked for among the principal directions of its curvature, those that the noise of the policy curves turned among
    themselves (``_turned``). With them, what these take up of the slope that ``_excess`` gives, on the free
    coordinates, and the share of its curvature that is left where that share is largest.

    A curvature to which the policy contributes a square, as a first stage does, has noise that vanishes with it: the
    noise of the policy (`over`) says how much of it there is (``clear_of``).
    """
    hessian, k, nothing = around.hessian()[np.ix_(free, free)], int(free.sum()), np.zeros((0, len(free)))
    if not np.any(hessian):
        return np.eye(len(free))[free], nothing, np.zeros(k), 1.0
    unit, reach = around.unit[free], np.abs(np.diag(around.directions))
    values, vectors = np.linalg.eigh(hessian * np.outer(unit, unit))
    zero, absorbed, kept = np.sqrt(around.study.eps) * np.abs(values).max(), np.zeros(k), 1.0

    def within_reach(steps: np.ndarray) -> np.ndarray:
        table = np.zeros((len(free), len(free)))
        table[:k, free] = steps
        longest = np.max(np.abs(table) / np.where(reach > 0, reach, np.inf), axis=1)
        return table / np.where(longest > 0, longest, 1)[:, None]

    across = around.look(around.x, steps := within_reach((vectors * unit[:, None]).T))
    bend, over = _curves(across, missed, k)
    noisy = np.flatnonzero(over > NOTICED * np.abs(bend))[:_FEW]
    if missed is not None and len(noisy) > 1 and np.all(bend[noisy] > 0):
        moved = steps[:k].copy()
        moved[noisy] = _turned(across, missed, bend, over, noisy)
        across = around.look(around.x, steps := within_reach(moved[:, free]))
        bend, over = _curves(across, missed, k)
        noisy = noisy[over[noisy] > NOTICED * np.abs(bend[noisy])]
        scaled = steps[:k, free] / unit
        values = np.sum((scaled @ (hessian * np.outer(unit, unit))) * scaled, axis=1) / np.sum(scaled**2, axis=1)
    for place, j in enumerate(noisy):
        slope, less = _taken_up(across, bend, int(j))
        # a functional on directions that is `slope` along this one, and zero along the others
        absorbed += slope * np.linalg.pinv(across.directions[:k][:, free])[:, j]
        kept = max(1 - less / over[j], 0) if place == 0 else kept
        over[j] = max(over[j] - less, 0)
    seen = np.any(across.directions[:k], axis=1)  # whether bounds left room to look at all
    steps = np.where(seen[:, None], across.directions[:k], steps[:k])
    error = across.bend_error()[:k]
    bend, noise = clear_of(bend, over, error)
    falls = (bend < -QUANTILE * error) & (values < -zero)
    least = np.maximum(noise, 4 * around.study.eps * abs(around.point.value))  # values are differences of rounded ones
    flat = ((seen & (bend <= QUANTILE * least)) | (values <= zero)) & ~falls
    return steps[flat], steps[falls], absorbed, kept


def _curves(across: Around, missed: Missed | None, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The curvature along the first `k` directions, and what the noise of the policy adds to it."""
    bend = across.curves()[:k]
    if missed is None or not missed.curves:
        return bend, np.zeros(k)
    return bend, -across.bend(what_is_missed(across, missed).overfit.points)[:k]


def _turned(across: Around, missed: Missed, bend: np.ndarray, over: np.ndarray, noisy: np.ndarray) -> np.ndarray:
    """Directions that span the same as the `noisy` ones, along each of which noise and curvature are its own, the
    noisiest first.

    Principal directions depend on units: of two coordinates that do not lean on each other they lie between both, and
    a constant seems to curve what an instrument does not.
    """
    pairs = np.array([(a, b) for a in range(len(noisy)) for b in range(a)])
    steps = across.directions[noisy]
    asked = steps[pairs[:, 0]] + steps[pairs[:, 1]]
    both = across.look(across.x, asked)
    room = np.linalg.norm(both.directions, axis=1) / np.linalg.norm(asked, axis=1)
    noise = np.diag(over[noisy])
    if np.all(room > 0):
        sums = _curves(both, missed, len(pairs))[1] / room**2
        for (a, b), total in zip(pairs, sums, strict=True):
            noise[a, b] = noise[b, a] = (total - noise[a, a] - noise[b, b]) / 2
    size = np.sqrt(bend[noisy])
    vectors = np.linalg.eigh(noise / np.outer(size, size))[1][:, ::-1]
    return (vectors / size[:, None]).T @ steps


def clear_of(bend: np.ndarray, over: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curvature without what noise adds to it, and the standard error to compare it with.

    A curvature that is the square of a policy's coefficients, whose noise adds `over` to it, has twice their relative
    error, and it is they that are normal: half its error counts then. What one coefficient adds is part of that error
    and stays.
    """
    square = np.minimum(4 * np.maximum(bend, 0) * np.maximum(over, 0), error**2)
    one = np.divide(square, 4 * bend, out=np.zeros_like(bend), where=bend > 0)
    return bend - np.maximum(over - one, 0), np.sqrt(error**2 - 0.75 * square)


def _taken_up(across: Around, bend: np.ndarray, j: int) -> tuple[float, float]:
    """What the other directions take up of the noise along direction `j`: of its slope, and of its curvature.

    The minimiser over the other directions follows the samples too: noise that they can follow neither curves the
    objective along `j` nor moves ``x``. Of ten functions and nine controls, one is left to the instrument. Of what the
    direction itself takes up of its slope half counts: this centres the median (the mean would take all of it, but one
    instrument has none).
    """
    step, back = across.directions[j], across.back[j]
    sides = [across.look(across.x + side * step, across.directions) for side in (1.0, -back)]
    if not all(each.sound and np.allclose(each.directions, across.directions) for each in sides):
        return 0.0, 0.0  # next to a bound, there is no room to look
    shares = across.study.lower.contexts().shares()
    ahead, behind, own = (influence(sum(at.slope_rows()), shares) for at in (*sides, across))
    mixed = (ahead - behind) / (1 + back)
    others = [a for a in range(len(bend)) if a != j and bend[a] > 0]
    slope = sum(float(mixed[:, a] @ own[:, a]) / bend[a] for a in others)
    if bend[j] > 0:
        slope += float(mixed[:, j] @ own[:, j]) / bend[j] / 2
    return slope, sum(float(mixed[:, a] @ mixed[:, a]) / bend[a] for a in others)


def determined(flat: Float[np.ndarray, "f k"], unit: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k d"]:
    """An orthonormal basis, in these units, of what is orthogonal to flat directions."""
    rows = flat / unit
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(rows / np.where(sizes > 0, sizes, 1))
    return right[int(np.sum(values > 1e-6)) :].T


def _moving(
    around: Around, directions: np.ndarray, error: np.ndarray
) -> tuple[Float[np.ndarray, "k dx"], Float[np.ndarray, " dx"]]:
    """Directions without the coordinates that they hardly move: by a negligible share of the one they move most, or,
    as far as bounds let that one go, by less than the standard error; and how far these move all the same."""
    (lo, hi), sizes = bounds_of(around.study), np.abs(directions / around.unit)
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead, behind = ((end - around.x) / directions for end in (hi, lo))
        room = np.where(directions != 0, [np.fmax(ahead, behind), -np.fmin(ahead, behind)], np.inf)
        moves = np.abs(directions) * room.min(axis=2, initial=np.inf).max(axis=0)[:, None]
        crossed = np.nan_to_num(moves / (hi - lo))
    belong = sizes > NEGLIGIBLE * sizes.max(axis=1, initial=0)[:, None]
    kept = belong & ((moves > error) | (crossed == crossed.max(axis=1, initial=0)[:, None]))
    return np.where(kept, directions, 0.0), np.sqrt(np.sum(np.where(belong & ~kept, moves, 0.0) ** 2, axis=0))


def _inverse_on(hessian: np.ndarray, free: np.ndarray, flat: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The inverse of the curvature on the free directions that are determined; zero on the others."""
    inverse, inside, unit = np.zeros_like(hessian), np.ix_(free, free), unit[free]
    basis = determined(flat[:, free], unit)
    if basis.size:
        scaled = basis.T @ (hessian[inside] * np.outer(unit, unit)) @ basis
        inverse[inside] = basis @ np.linalg.pinv(scaled, hermitian=True) @ basis.T * np.outer(unit, unit)
    return inverse


# -- the sandwich


def _errors(covariance: np.ndarray) -> Float[np.ndarray, " k"]:
    return np.sqrt(np.maximum(np.diag(covariance), 0))


def _excess(around: Around, missed: Missed | None, kept: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The slope of what fitting the policy to the same samples takes off the objective, its curvature along each
    coordinate, and the noise of the gradient with that slope added back.

    `kept`: the share of its noise and curvature that other directions do not take up.
    """
    if missed is None:
        # a barrier bends too fast for products of neighbours
        joint = around.differences and around.study.shared and around.study.noisy
        slope = _left_out(around) if joint else np.zeros(len(around.x))
        return slope, np.zeros(len(around.x)), around.gradient_covariance()
    lost, k = missed.overfit.part(slice(1, None), 1 / around.lengths), around.lengths
    noise = lost.part(slice(None), kept).covariance(around.gradient_influence())
    return lost.value, kept * around.bend(missed.overfit.points) / k / k, noise


def _left_out(around: Around) -> Float[np.ndarray, " dx"]:
    """The same slope by leaving samples out in turn."""
    parts = without_each(replace(around.galerkin, point=around.point))
    return -fitting_bias(around.point.gradient, np.stack([part.point.gradient for part in parts]))


def _determined(around: Around, free: np.ndarray, pairs: bool) -> tuple[Around, Missed | None, tuple[np.ndarray, ...]]:
    """A look around ``x``, what `pairs` of neighbours show that is missed, and the sandwich: over steps of a standard
    error or, where these leave something open, over the first longer ones that do not."""
    look = lambda at: (at, missed := what_is_missed(at) if pairs else None, _sandwich(at, free, missed))
    is_open = lambda found: len(found[2][0]) or np.isinf(found[2][-1]).any()
    first = look(around)
    if not is_open(first) or not around.differences or around.near_kink.any():
        return first
    flat = first[2][0]
    for reach in _REACHES:
        across = around.look(around.x, reach * flat, smooth=False)
        if not across.solved:
            break
        if np.all(across.curves() > QUANTILE * across.bend_error()) and (wide := around.wider(reach)).solved:
            further = look(wide)
            if not is_open(further):
                return further
    return first


def _sandwich(around: Around, free: np.ndarray, missed: Missed | None) -> tuple[np.ndarray, ...]:
    """Flat directions and falling ones; covariance of ``x``, curvature of the objective, bias of ``x`` and the ends of
    intervals around ``x`` without it, zero on what bounds hold."""
    dx, inside = len(around.x), np.ix_(free, free)
    none, absorbed, bias, hessian = np.zeros((0, dx)), np.zeros(dx), np.zeros(dx), np.zeros((dx, dx))
    if not free.any():
        return none, none, hessian, hessian, bias, np.zeros((2, dx))
    flat, falls, absorbed[free], kept = flat_directions(around, free, missed)
    hessian[inside] = around.hessian()[inside]
    inverse = _inverse_on(hessian, free, flat, around.unit)
    covariance = inverse @ around.gradient_covariance() @ inverse
    bias, settled, given = inverse @ (_excess(around, missed, kept)[0] + absorbed), np.ones(dx, bool), around
    rounding = np.sqrt(around.study.eps) * (np.abs(around.x) + around.unit)
    material = np.any(np.abs(bias) > np.maximum(_MATERIAL * _errors(covariance), rounding))
    if material and around.reach == 1 and missed is not None:  # what is left out in turn, under a barrier, is too noisy
        before = _errors(covariance)
        bias, covariance, settled, around, missed, inverse = _corrected(around, free, missed, flat, absorbed, kept)
        settled &= (_errors(covariance) <= KINK * before) & (before <= KINK * _errors(covariance))  # else x is rough
    ends = _ends(around, missed, inverse, _errors(covariance), kept)
    held = settled & (ends[0] - rounding <= bias) & (bias <= ends[1] + rounding)
    if np.any(
        settled & ~held
    ):  # an interval without its own estimate is doubted: leaving samples out must show as much
        held |= settled & (np.abs(inverse @ _left_out(given) - bias) <= np.abs(bias) / 2)
    return flat, falls, covariance, hessian, np.where(held, bias, np.nan), np.where(held, ends, [[-np.inf], [np.inf]])


def _ends(
    around: Around, missed: Missed | None, inverse: np.ndarray, error: np.ndarray, kept: float
) -> Float[np.ndarray, "2 dx"]:
    r"""How far below and above ``x`` the 95% interval of each coordinate reaches.

    An end is where the slope of the objective, along the direction in which the others follow, differs from zero by
    as much as its noise *there* allows. The slope over the root of the curvature is taken, whose noise does not vanish
    with a policy. At a step $t$ that is $\sqrt h\, t$, and $h$ times its variance
    $\sigma^2 h^2 + t c + t^2 s^2 / 4$, with
    $s$ the error of the curvature $h$ and $c$ the covariance of it and the slope. This is Fieller's interval; for one
    instrument, that of Anderson and Rubin. Infinite where the curvature does not exceed its noise.
    """
    dx, z = len(error), QUANTILE
    ends = z * error * np.array([[-1.0], [1.0]])
    if not around.differences:
        return ends
    some = (np.diag(inverse) > 0) & (error > 0) & np.isfinite(error)
    steps = np.zeros((dx, dx))
    lengths = around.reach * np.maximum(error, around.shortest)
    steps[some] = (inverse[:, some] / np.diag(inverse)[some] * lengths[some]).T
    across = around.look(around.x, steps)
    lengths = np.diag(across.directions)
    if not (across.sound if missed is None else across.solved):
        return ends
    bend, over = _curves(across, missed, dx)
    noise = across.covariance(*map(np.hstack, zip(across.slope_rows(), across.bend_rows(), strict=True)))
    spread = np.sqrt(np.maximum(np.diag(noise)[dx:], 0))
    clear = clear_of(bend, np.maximum(kept * over, 0), spread)[0]
    for j in range(dx):
        h, s = clear[j], spread[j] / 2
        if not some[j] or lengths[j] == 0:
            continue  # next to a bound, there is no room to look
        left = 1 - (z * s / h) ** 2 if h > 0 else 0.0
        lean, reach = z**2 * noise[j, dx + j] / 2 / h**2 if h > 0 else 0.0, z * error[j] / lengths[j]
        away = np.sqrt(lean**2 + max(left, 0) * reach**2)
        ends[:, j] = np.sort((lean + np.array([-away, away])) / left * lengths[j]) if left > 0 else (-np.inf, np.inf)
    return ends


def _ends_by_search(around: Around) -> Float[np.ndarray, "2 1"]:
    """The same for a single coordinate whose curvature changes within a standard error, as at a kink nearby: an end is
    where the slope exceeds its noise, whatever lies between."""
    noise, first = QUANTILE * np.sqrt(around.gradient_covariance()[0, 0]), abs(float(around.lengths[0]))
    room = around.study.problem.bounds
    ends = []
    for side, bound in ((-1, flattened(room.lo)[0]), (1, flattened(room.hi)[0])):
        most = abs(bound - around.x[0])
        turned = lambda t, side=side: side * around.galerkin.nearby(around.x + side * t).gradient[0] > noise
        low, high = 0.0, min(first, most)
        while not turned(high) and high < min(first / NEGLIGIBLE, most):
            low, high = high, min(2 * high, most)
        if not turned(high):
            ends.append(side * (most if high == most else np.inf))
            continue
        for _ in range(10):  # to a thousandth
            middle = (low + high) / 2
            low, high = (low, middle) if turned(middle) else (middle, high)
        ends.append(side * high)
    return np.array(ends)[:, None]


def _corrected(
    at: Around, free: np.ndarray, missed: Missed, flat: np.ndarray, absorbed: np.ndarray, kept: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Around, Missed, np.ndarray]:
    """The bias and the covariance where it is not small: the corrected gradient is brought to zero by a few steps. With
    them, which coordinates have settled; the last look on the way, what is missed there, and the inverse curvature.

    Of the correction, other directions take up `absorbed`, and all but a share `kept` of how it changes from ``x``.
    """
    x, place, unit, inside = at.x, at.x.copy(), at.unit, np.ix_(free, free)
    first, start = _excess(at, missed, kept)[0], at.point.gradient
    for _ in range(_FEW):
        excess, bend, noise = _excess(at, missed, kept)
        hessian = at.hessian() + np.diag(bend)
        if np.linalg.eigvalsh((hessian * np.outer(unit, unit))[inside])[0] <= 0:
            hessian = at.hessian()
        inverse = _inverse_on(hessian, free, flat, unit)
        step = inverse @ (at.point.gradient - start + first + absorbed + kept * (excess - first))
        covariance = inverse @ noise @ inverse
        place -= step
        if np.all(np.abs(step) <= _MATERIAL / 10 * np.sqrt(np.diag(covariance))):
            break
        ahead: Any = look_around(at.study, Galerkin.at(at.galerkin.reduced, place, crossed=True))
        if not ahead.solved:
            break
        at, missed = ahead, what_is_missed(ahead)
    return x - place, covariance, np.abs(step) <= _MATERIAL * _errors(covariance), at, missed, inverse


def _hidden(missed: Missed, inverse: np.ndarray, error: np.ndarray) -> Float[np.ndarray, " dx"]:
    """How far ``x`` would move, to first order, for what neighbouring samples show and the basis misses.

    Zero where that is less than noise may be, by far, or than the standard error anyhow.
    """
    gap = missed.basis.part(slice(1, None), 1 / missed.around.lengths)
    move, spread = -inverse @ gap.value, _errors(inverse @ gap.covariance() @ inverse)
    return np.where((np.abs(move) > _HIDDEN * spread) & (np.abs(move) > error), move, 0.0)


def _by_pieces(
    study: Study, reduced: Reduced, x: np.ndarray, inverse: np.ndarray, breaks: tuple[float, ...]
) -> Float[np.ndarray, " dx"]:
    """How far ``x`` would move, to first order, for a basis that may jump there; infinite where it cannot be had."""
    lo, hi = np.concatenate(study.problem.domain.bounds)
    recipe = by_component(reduced.basis.basis, Interval(lo, hi, breaks))
    point, count = None, recipe.count(study.problem.domain)
    if count is not None and count <= study.lower.contexts().supported(True):
        point = Galerkin.at(reduce_study(study, recipe).whitened(), x).point
    return np.full(len(x), np.inf) if point is None or not point.sound else -inverse @ point.gradient


def _by_richer(study: Study, reduced: Reduced, x: np.ndarray, inverse: np.ndarray) -> Float[np.ndarray, " dx"]:
    """How far ``x`` would move, to first order, for a basis of about twice the functions; zero where there is none.

    Under a barrier neighbours show nothing, and next to a corner of the policy what a basis misses moves ``x`` to first
    order. It is counted whether or not it is clear of its noise, which is less than that of ``x``.
    """
    own = reduced.basis
    most = min(study.lower.contexts().supported(study.noisy), DENSE_LIMIT // study.problem.sizes[1])
    richer = richer_basis(own.basis, study.problem.domain, own.size, most)
    if richer is None:
        return np.zeros(len(x))
    richer = richer if isinstance(richer, Orthonormal) else Orthonormal(richer)
    point = Galerkin.at(reduce_study(study, richer).whitened(), x).point
    return -inverse @ point.gradient if point.sound else np.zeros(len(x))
