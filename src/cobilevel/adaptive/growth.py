"""A basis grown until the upper objective is within a tolerance of what a richer one would reach.

Each fit of the lower level gives a gradient of the reduced objective; how far it is from that of the largest fit says,
with the curvature of the objective, how much of the objective a smaller basis loses.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Bool, Float

from ..basis import Axes, basis_of
from ..problem import Bounds, Domain, Study
from .choose import Choice, Search
from .nested_fits import Candidate, NestedFits, Split

LOOK_AROUND = 400  # samples to look around with: a quarter of them, or so many
_FEWEST_JUDGES = 5  # the fewest functions to judge by
_LITTLE = 1 / 20  # of what may be lost: the gradient has settled where two steps up change it by less
_DIRECTIONS, _REACH = 16, 3e-3  # of x along which the curvature of F is measured, and how far
_FLATTEST = 1e-3  # of the largest curvature: the least that is believed


@dataclass(frozen=True)
class Goal:
    """What is left to gain in the upper objective: at most `excess` is to be lost.

    `hessian` of the objective on the coordinates that are `free`, about.
    """

    excess: float
    hessian: Float[np.ndarray, "dx dx"]
    free: Bool[np.ndarray, " dx"]

    def lost(self, gradient: Float[np.ndarray, " dx"]) -> float:
        """How far the objective lies above its minimum where its gradient is this."""
        g, H = gradient[self.free], self.hessian[np.ix_(self.free, self.free)]
        return float(g @ np.linalg.solve(H, g)) / 2 if len(g) else 0.0

    def lost_by(self, candidates: list[Candidate]) -> list[float]:
        """What each set loses, judged by the last one."""
        return [self.lost(c.gradient - candidates[-1].gradient) for c in candidates]


def first_members(domain: Domain) -> np.ndarray:
    """A few functions to begin with: up to level 3 of one coordinate, level 2 of several."""
    axes = Axes.of(domain)
    return axes.up_to(3 if axes.nested else 2)


def grow_basis(
    search: Search, x: Float[np.ndarray, " dx"], members: np.ndarray, most: int, goal: Goal
) -> Choice | None:
    """The smallest basis, from `members` up to `most` functions, that loses no more of the objective than asked.

    Judged by a larger one: the last of two steps up that changed the gradient by little, or where held-out samples
    find that more functions fit noise. ``None`` where the lower level cannot be fitted.
    """
    least = max(_FEWEST_JUDGES, len(members) + 2)

    def enough(found):
        if len(found) < 3 or len(found[-1].members) < least:
            return False
        little = max(goal.lost_by(found)[-3:-1]) <= _LITTLE * goal.excess
        return little or search.pick(found) < len(found) - 2

    found = search.climb(x, members, enough)
    if not found:
        return None
    last = len(found) - 1
    lost = goal.lost_by(found)
    pick = next((k for k in range(last + 1) if max(lost[k:]) <= goal.excess), last)
    while pick and len(found[pick].members) > most:
        pick -= 1
    basis, sizes = basis_of(found[pick].members, search.study.problem.domain), [len(c.members) for c in found]
    words = f"{basis!r} loses {lost[pick]:.2g} of the objective (asked {goal.excess:.2g}), judged by N = {sizes[last]}"
    if pick == last:
        words = f"{basis!r} is the largest that the samples support, with none to judge it by"
    return Choice(basis, words, tuple(found), pick, search.fits.rows.spent)


def _doubled(members: np.ndarray, axes: Axes) -> np.ndarray:
    """About twice the functions, the given ones first."""
    if axes.nested:  # and never less than shows an odd and an even function more
        return np.arange(max(2 * len(members), len(members) + 3))[:, None]
    ahead = np.concatenate([members, axes.neighbours(members)])
    return np.concatenate([ahead, axes.neighbours(ahead)])


def lost_at(search: Search, x: Float[np.ndarray, " dx"], members: np.ndarray, goal: Goal) -> tuple[float, int]:
    """What a basis loses of the objective at ``x``, judged by one about twice as large; that one's size."""
    fits = search.fits
    fits.forget()
    table = _doubled(members, fits.axes)[: search.most]
    fits.lay(table)
    near, far = (fits.fit(x, min(count, fits.usable)) for count in (len(members), len(table)))
    if len(table) <= len(members) or near is None or far is None:
        return 0.0, len(members)
    return goal.lost(near.gradient - far.gradient), min(len(table), fits.usable)


def goal_at(
    study: Study, x: Float[np.ndarray, " dx"], members: np.ndarray, excess: float, key: Array, spent: Counter
) -> Goal | None:
    """The goal of losing at most `excess`, with the curvature of the objective at ``x`` by differences.

    Coordinate by coordinate for a few, along the gradient alone for many. Bounds that hold ``x`` leave it no freedom.
    ``None`` where there is no curvature, or the objective cannot be evaluated.
    """
    fits, count = NestedFits(study, Split.of(study, key, 1.0), spent), len(x)
    fits.lay(members)
    lo, hi = fits.rows.bounds
    here = fits.fit(x, fits.usable)
    if here is None:
        return None
    slope, length = here.gradient, np.linalg.norm(here.gradient)
    steepest = slope / length if length > 0 else np.ones(count) / count**0.5
    H = np.zeros((count, count))
    for direction in np.eye(count) if count <= _DIRECTIONS else steepest[None]:
        reach = _REACH * (1 + np.abs(x @ direction))
        ahead = x + reach * direction
        reach = reach if np.all(ahead <= hi) and np.all(ahead >= lo) else -reach
        there = fits.fit(np.clip(x + reach * direction, lo, hi), fits.usable)
        if there is None:
            return None
        bend = (there.gradient - slope) / reach
        H += np.outer(bend, direction) if count <= _DIRECTIONS else np.abs(direction @ bend) * np.eye(count)
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    largest = np.max(np.abs(values))
    if not largest > 0:
        return None
    H = (vectors * np.maximum(np.abs(values), _FLATTEST * largest)) @ vectors.T
    return Goal(excess, H, np.asarray(Bounds(lo, hi).free(x, slope)))
