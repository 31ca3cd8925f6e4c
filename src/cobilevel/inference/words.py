"""What there is to say of ``x``: of each coordinate, and of directions that the samples do not determine."""

import numpy as np
from jaxtyping import PyTree

from ..derivatives import flattened
from ..study import Study
from .around import Around
from .galerkin import NOTICED, Galerkin, bounds_of, too_large
from .uncertainty import AT_BOUND, EARLY

MOST_NAMED = 6  # coordinates that a sentence lists


def _in_words(direction: np.ndarray, names: tuple[str, ...]) -> str:
    """``x[0] - x[1] is not determined``, or what else there is to say of a direction."""
    places = np.flatnonzero(direction)
    if len(places) == 1:
        return f"{names[places[0]]} is not determined"
    if len(places) > MOST_NAMED:
        return f"a combination of {len(places)} coordinates of x is not determined"
    coefficients = direction[places] / np.max(np.abs(direction[places])) * np.sign(direction[places[0]])
    words, ones = "", [f"{abs(c):.2g}" == "1" for c in coefficients]
    for c, one, j in zip(coefficients, ones, places, strict=True):
        words += (" - " if c < 0 else " + " if words else "") + ("" if one else f"{abs(c):.3g} ") + names[j]
    return f"{words} is not determined" if all(ones) else f"x is not determined along {words}"


def undetermined(flat: np.ndarray, falls: np.ndarray, touched: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """A sentence on each direction that is not determined; on the coordinates, where all of theirs are."""
    still = "the objective does not change along"
    if len(flat) > 1 and not len(falls) and touched.sum() == len(flat):
        named = [name for name, one in zip(names, touched, strict=True) if one]
        return [f"{', '.join(named[:-1])} and {named[-1]} are not determined: {still} them beyond its noise."]
    wide = [d for d in flat if np.count_nonzero(d) > MOST_NAMED]
    if len(wide) > 1:
        count = int(np.any(wide, axis=0).sum())
        many = [
            f"{len(wide)} combinations of {count} coordinates of x are not determined: {still} them beyond its noise."
        ]
        flat = np.array([d for d in flat if np.count_nonzero(d) <= MOST_NAMED]).reshape(-1, len(names))
    else:
        many = []
    words = many + [f"{_in_words(d, names)}: {still} it beyond its noise." for d in flat]
    return words + [f"{_in_words(d, names)}: the objective falls along it, so x is not a minimum." for d in falls]


def notes_on(
    around: Around,
    free: np.ndarray,
    touched: np.ndarray,
    uneven: np.ndarray,
    bias: np.ndarray,
    error: np.ndarray,
    hidden: np.ndarray,
    short: np.ndarray,
    early: bool,
    jumps: bool,
) -> tuple[str, ...]:
    """What there is to say of each coordinate."""
    unseen = "a jump of the policy" if jumps else "structure that neighbouring samples show"
    notes, x, (lo, hi) = [], around.x, bounds_of(around.study)
    for j in range(len(x)):
        note = "not determined" if touched[j] else "" if free[j] else AT_BOUND
        if not note and x[j] in (lo[j], hi[j]):
            note = f"{AT_BOUND}, where the slope is within its noise"
        if around.at_kink[j]:
            note = "at a kink"
        elif uneven[j]:
            note = "its curvature changes within a standard error: not determined"
        elif np.isnan(bias[j]) and not touched[j]:
            note = "the policy is fitted to so few samples that its bias cannot be corrected: not determined"
        elif early and free[j]:
            note = EARLY
        elif abs(short[j]) > error[j] / 2 and not touched[j]:
            note = f"the run ended early: the minimum is at about {x[j] + short[j]:.5g}"
        elif hidden[j] and not touched[j]:
            what = "what a richer basis shows" if around.study.barred else unseen
            with_it = f"with it about {x[j] + hidden[j]:.5g}" if np.isfinite(hidden[j]) else "not determined"
            note = f"the basis misses {what}: {with_it}"
        elif free[j] and not touched[j] and abs(bias[j]) > error[j] / 2 > 0:
            note = f"biased by {bias[j]:+.3g}: few samples per function; {x[j] - bias[j]:.5g} without the bias"
        notes.append(note)
    return tuple(notes)


def without_curvature(study: Study, galerkin: Galerkin, start: PyTree | None) -> list[str]:
    """What can be said without looking at curvature: too few functions for the decision, or no move at all."""
    reduced, point, said = galerkin.reduced, galerkin.point, []
    (dx, dy), functions, rows = study.problem.sizes, len(point.W), study.lower.count or 1
    large = bool(too_large(study, study.shared and study.noisy))
    coefficients = functions * dy if large else functions
    if study.noisy and (large or not study.shared) and coefficients > NOTICED * rows:
        what = f"{coefficients} coefficients" if large else f"{functions} functions"
        own, of = ("", "an x of this many coordinates") if study.shared else (" of the lower level", "Levels")
        said.append(
            f"the policy's {what} were fitted to {rows} samples{own}, so x carries a bias of the order of "
            f"N{' d_y' * large} / n = {coefficients / rows:.1g} of itself, which is not corrected for {of}."
        )
    rank = reduced.basis.size if reduced.rank is None else reduced.rank
    if rank * dy < dx and rank * dy + galerkin.expansions.seen_above(point.x, point.W) < dx:
        said.append(
            f"the policy has {rank * dy} coefficients and x has {dx} coordinates: the effect of x through the policy "
            "is not fully determined."
        )
    stayed = start is not None and np.allclose(point.x, flattened(start), rtol=study.eps, atol=0)
    if stayed and not point.gradient.any():
        said.append(
            "x did not move from x0: the gradient is zero there (a plateau?), so this is the starting point, not a "
            "solution."
        )
    return said
