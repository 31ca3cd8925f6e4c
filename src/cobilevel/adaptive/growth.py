"""Fits at one ``x`` with more and more functions: judged by the lower objective on samples held out, or grown until the
upper objective is within a tolerance of what a richer basis would reach.

Each fit of the lower level gives a gradient of the reduced objective; how far it is from that of the largest fit says,
with the curvature of the objective, how much of the objective a smaller basis loses.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from ..basis import basis_of
from ..covariates import FITTED, MOST_FUNCTIONS, SETTLED, Fits, Vector
from ..problem import Bounds
from ..study import Study

_BULK = 0.7  # share of what the next functions bring that is taken on at once, in several dimensions
_LITTLE = 1 / 20  # of what may be lost: the gradient has settled where two steps up change it by less

Loss = Callable[[Vector], float]  # how far the objective lies above its minimum, from its gradient


class Candidate(NamedTuple):
    """One set of functions, fitted at ``x``: the lower objective on held-out samples, and the reduced gradient."""

    members: Int[np.ndarray, "N d"]
    judged: Float[np.ndarray, " m"]
    gradient: Vector


class Search:
    """Candidates of growing size, fitted to a part of the samples."""

    def __init__(self, study: Study, key: Array, spent: Counter):
        self.study, self.fits = study, Fits.looking(study, key, spent, FITTED)
        self.held = 0 if self.fits.held is None else len(self.fits.held)

    def _climb(self, x: Vector, members: np.ndarray, enough: Callable[[list[Candidate]], bool]) -> list[Candidate]:
        """Candidates from `members` up until there are enough, a fit fails, or there are no more."""
        self.fits.forget()
        found = []
        for larger in (self._by_degree if self.fits.axes.nested else self._by_margin)(x, members):
            point = self.fits.fit(x, len(larger)) if self.held >= 2 and len(larger) <= self.fits.usable else None
            judged = np.full(1, np.nan) if point is None else self.fits.held_out(x, point.W)
            if point is None or not np.all(np.isfinite(judged)):
                break
            found.append(Candidate(larger, judged, point.gradient))
            if enough(found):
                break
        return found

    def _by_degree(self, x: Vector, members: np.ndarray) -> Iterator[np.ndarray]:
        """Of one coordinate: functions of growing degree, from those given on; three sizes an octave."""
        sizes = {part * 2**k // 4 for k in range(MOST_FUNCTIONS.bit_length()) for part in (4, 5, 6)}
        sizes = sorted(set(map(self.fits.axes.complete, sizes)))
        for n in (n for n in sizes if len(members) <= n <= min(self.fits.most, MOST_FUNCTIONS)):
            self.fits.lay(np.arange(n)[:, None])
            yield np.arange(n)[:, None]

    def _by_margin(self, x: Vector, members: np.ndarray) -> Iterator[np.ndarray]:
        """In several dimensions: the next functions are tried all together, and those that bring the most are kept."""
        fits, axes, first = self.fits, self.fits.axes, len(members)
        while len(members) <= max(fits.most, first):
            table = axes.with_neighbours(members, 2)[: max(fits.most, len(members))]
            fits.lay(table)
            yield members
            known = dict(fits.known)
            point = fits.fit(x, fits.usable) if fits.usable > len(members) else None
            if point is None:
                return
            brought = np.linalg.norm(point.W[len(members) :], axis=1)
            order = np.argsort(-brought)
            share = np.cumsum(brought[order] ** 2) / max(np.sum(brought**2), np.finfo(float).tiny)
            wanted = {tuple(table[len(members) + k]) for k in order[: int(np.argmax(share >= _BULK)) + 1]}
            members, fits.known = axes.closed(members, wanted), known

    def _as_good(self, candidates: list[Candidate]) -> Int[np.ndarray, " k"]:
        """The sets that held-out samples find as good as the best one; of the gain in the objective, what the square of
        a settled policy is worth does not matter."""
        values = np.stack([c.judged for c in candidates])
        means = values.mean(axis=1)
        best = int(np.argmin(means))
        slack = np.full(len(values), SETTLED**2 * (means[0] - means[best]))
        if self.study.noisy:
            slack = np.maximum(slack, np.std(values - values[best], axis=1) / np.sqrt(values.shape[1]))
        return np.flatnonzero(means - means[best] <= slack)

    def as_good_as_any(self, x: Vector, members: np.ndarray, further: int = 4) -> tuple[np.ndarray, int] | None:
        """The fewest functions that held-out samples find as good as any, up to so many candidates `further`, but no
        fewer than a policy with corners asks for; and the most tried. ``None``: no fits.

        With a corner in it, a policy of $N$ functions misses $N^{-3}$ of its square, and has a noise of $N / n$: the
        two are equal at $N = n^{1/4}$. What is missed moves ``x`` to first order, and noise hardly does: so $n^{1/3}$,
        where what is missed vanishes next to the noise.
        """
        enough = self.study.lower.contexts().supported(True)
        least = min(round(float(self.study.lower.count or 1) ** (1 / 3)), enough)
        first = lambda found: int(self._as_good(found)[0])
        reached = lambda found: len(found[-1].members) >= least
        found = self._climb(x, members, lambda found: reached(found) and first(found) < len(found) - further)
        if not found:
            return None
        many = [k for k, one in enumerate(found) if len(one.members) >= least]
        return found[max(first(found), many[0] if many else len(found) - 1)].members, len(found[-1].members)

    def grown(
        self, x: Vector, members: np.ndarray, most: int, loss: Loss, excess: float
    ) -> tuple[np.ndarray, str] | None:
        """The smallest set, from `members` up to `most` functions, that loses no more of the objective than `excess`;
        and what it loses, in words.

        Judged by a larger one: the last of two steps up that changed the gradient by little, or where held-out samples
        find that more functions fit noise. ``None`` where the lower level cannot be fitted.
        """
        least = len(self._doubled(members))
        lost_by = lambda found: [loss(one.gradient - found[-1].gradient) for one in found]

        def enough(found: list[Candidate]) -> bool:
            if len(found) < 3 or len(found[-1].members) < least:
                return False
            return max(lost_by(found)[-3:-1]) <= _LITTLE * excess or self._as_good(found)[0] < len(found) - 2

        found = self._climb(x, members, enough)
        if not found:
            return None
        lost, last = lost_by(found), len(found) - 1
        pick = next((k for k in range(last + 1) if max(lost[k:]) <= excess), last)
        while pick and len(found[pick].members) > most:
            pick -= 1
        grown, judge = found[pick].members, len(found[last].members)
        basis = basis_of(grown, self.study.problem.domain)
        if pick == last:
            return grown, f"{basis!r} is the largest the samples support, with no larger one to judge it by"
        return grown, f"{basis!r} loses {lost[pick]:.2g} of the objective (asked {excess:.2g}), judged by N = {judge}"

    def lost_at(self, x: Vector, members: np.ndarray, loss: Loss) -> tuple[float, int]:
        """What a basis loses of the objective at ``x``, judged by one about twice as large; that one's size."""
        fits = self.fits
        fits.forget()
        table = self._doubled(members)[: fits.most]
        fits.lay(table)
        near, far = (fits.fit(x, min(count, fits.usable)) for count in (len(members), len(table)))
        if len(table) <= len(members) or near is None or far is None:
            return 0.0, len(members)
        return loss(near.gradient - far.gradient), min(len(table), fits.usable)

    def _doubled(self, members: np.ndarray) -> np.ndarray:
        """About twice the functions, the given ones first."""
        if self.fits.axes.nested:  # and never less than shows an odd and an even function more
            return np.arange(max(2 * len(members), len(members) + 3))[:, None]
        return self.fits.axes.with_neighbours(members, 2)


def loss_around(study: Study, x: Vector, members: np.ndarray, key: Array, spent: Counter, few: int = 16) -> Loss | None:
    """How far the objective lies above its minimum near ``x``, from its gradient and its curvature by differences.

    Coordinate by coordinate for a `few`, along the gradient alone for more. Bounds that hold ``x`` leave it no freedom.
    ``None`` where there is no curvature, or the objective cannot be evaluated.
    """
    fits, count = Fits.looking(study, key, spent), len(x)
    fits.lay(members)
    lo, hi = fits.rows.bounds
    here = fits.fit(x, fits.usable)
    if here is None:
        return None
    accuracy = study.eps**0.2  # of differences of gradients, which have about half the digits
    slope, length = here.gradient, np.linalg.norm(here.gradient)
    steepest = slope / length if length > 0 else np.ones(count) / count**0.5
    H = np.zeros((count, count))
    for direction in np.eye(count) if count <= few else steepest[None]:
        reach = accuracy * (1 + np.abs(x @ direction))
        ahead = x + reach * direction
        reach = reach if np.all(ahead <= hi) and np.all(ahead >= lo) else -reach
        there = fits.fit(np.clip(x + reach * direction, lo, hi), fits.usable)
        if there is None:
            return None
        bend = (there.gradient - slope) / reach
        H += np.outer(bend, direction) if count <= few else np.abs(direction @ bend) * np.eye(count)
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    largest = np.max(np.abs(values))
    if not largest > 0:
        return None
    free = np.asarray(Bounds(lo, hi).free(x, slope))
    H = ((vectors * np.maximum(np.abs(values), accuracy * largest)) @ vectors.T)[np.ix_(free, free)]
    return lambda gradient: float(gradient[free] @ np.linalg.solve(H, gradient[free])) / 2 if free.any() else 0.0
