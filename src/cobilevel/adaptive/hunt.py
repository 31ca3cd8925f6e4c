"""The hunt for the functions a problem needs: fit some, test what is left, add, until nothing is."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from ..basis import Axes
from ..keys import generator
from ..problem import Mixed, Samples, Study
from .nested_fits import MOST_COEFFICIENTS, SMALLEST_PIVOT, NestedFits, Residuals, Split, orthonormalising
from .significance import Evidence, Projection, Tests

_HUNTED_ROWS = 100_000  # samples looked at, at most
_MULTIPLICATIONS = 1.5e9  # multiplications that making the tested functions orthonormal may take
_MOST_EXACT = 64  # functions of a policy that is seen without noise
_ADDITIONS = 12
_NEIGHBOURS_OF_X = 2  # points next to x
_PART_OF_SPREAD = 0.5  # and how far: over which f changes by so much of its spread
_PART_OF_TURN = 0.1  # and not less than so much of the distance over which the lower level's noise turns
_HIGHEST = 16  # degree of functions of one coordinate that are tested in several dimensions
_MOST_CANDIDATES = 600
_SMALLEST_LEFT = 1e-4  # of a function's size: what is left of it beyond those before, below which it is not tested


@dataclass
class Hunt:
    """What is looked at: samples (contexts, where each meets the same data), the fits to them, the most functions."""

    study: Study
    rows: Samples
    together: int
    fits: NestedFits
    most: int
    u: np.ndarray
    shares: np.ndarray

    @staticmethod
    def on(study: Study, key: Array, spent: Counter) -> "Hunt":
        look = study.lower.look(key, rows=_HUNTED_ROWS)
        rows = look.samples
        upper = rows if study.shared else study.upper.look(key, rows=_HUNTED_ROWS).samples
        fits = NestedFits(study, Split(rows, None, upper), spent)
        contexts = rows if look.together == 1 else rows.rows(slice(None, None, look.together))
        most = max(1, min(contexts.supported(study.noisy), MOST_COEFFICIENTS // study.problem.sizes[1]))
        most = most if study.noisy else min(most, _MOST_EXACT)
        u = fits.places[0][:: look.together]
        return Hunt(study, rows, look.together, fits, most, u, contexts.shares())

    @property
    def axes(self) -> Axes:
        """The coordinates of the context."""
        return self.fits.axes

    def at(self, x: Float[np.ndarray, " dx"], key: Array, members: np.ndarray | None = None) -> tuple[np.ndarray, str]:
        """The functions needed around ``x``, and why these, in words; `members`: those that are there already."""
        d, (dx, dy) = self.u.shape[1], self.study.problem.sizes
        members = np.zeros((1, d), int) if members is None else members
        tests, points, last = Tests(), [x], None
        for _ in range(_ADDITIONS):
            found = self._evidence(members, points, tests, key)
            if found is None:
                members = last if last is not None else members
                return members, "the lower level could not be minimised with more functions."
            points, last = found, members
            grown = self._grown(members, tests)
            if len(grown) == len(members) or len(members) >= self.most:
                break
            members = grown
        least = min(self.most, -(-dx // dy))
        words = (
            f"beyond these, nothing of the policy or of what moves x stands out of the noise of {len(self.shares)} "
            f"{'contexts' if self.together > 1 else 'samples'} (tested at {len(points)} decisions)."
        )
        if not self.study.noisy:
            words = f"more would change the policy by less than 0.3% (tested at {len(points)} decisions)."
        if len(members) >= self.most:
            words = f"as many as {len(self.shares)} samples with {self.rows.distinct()} distinct contexts support."
        if len(members) < least:
            members = self._at_least(members, least)
            words = (
                f"x has {dx} coordinates, and fewer functions could not determine it; the policy alone asks for less."
            )
        return members, words

    def _evidence(self, members: np.ndarray, points: list, tests: Tests, key: Array) -> list | None:
        """Fits at all points and projects what is left; at first, also finds the points. ``None`` where fits fail."""
        joint, fits = self.study.shared, self.fits
        fits.lay(members)
        here = fits.residuals(points[0], joint)
        if here is None:
            return None
        if len(points) == 1:
            points = [points[0], *self._nearby(here, key)]
        left: list[Residuals] = [here]
        for point in points[1:]:
            there = fits.residuals(point, joint)
            left += [] if there is None else [there]
        projected = self._nested if self.axes.nested else Projection.on(self._next(members), self.shares)
        tests.evidence = []
        for one in left:
            other = left[1] if one is here and len(left) > 1 else here
            policy = projected.of(self.by_context(one.r))
            adjoint = change = None
            if one.alpha is not None and other is not one:
                moved = here.energy(one.point.W - other.point.W)
                adjoint = projected.of(self.by_context(one.alpha), one.energy(one.point.adjoint))
                change = projected.of(self.by_context(one.r - other.r), moved)
                both = [part.total + max(part.energy(slice(None)), 0.0) for part in (adjoint, change)]
                tests.product_total = max(tests.product_total, float(np.sqrt(both[0] * both[1])))
            total = policy.energy(slice(None)) + one.energy(one.point.W[1:])
            tests.policy_total = max(tests.policy_total, total)
            tests.evidence.append(Evidence(policy, self.study.noisy, adjoint, change, one is here))
        return points

    def by_context(self, table: np.ndarray) -> np.ndarray:
        """The means of rows over those of each context."""
        return table.reshape(len(self.shares), self.together, -1).mean(axis=1)

    def _nearby(self, here: Residuals, key: Array) -> list[Float[np.ndarray, " dx"]]:
        """Points over which ``f`` changes by a part of its spread, in directions at random."""
        expansions, point = self.fits.expansions(self.fits.usable), here.point
        x, scales = point.x, expansions.row_scales(point.x, point.W, point.adjoint, point.value)
        sizes = scales.sizes
        unit = np.where(sizes > 0, scales.spread / np.where(sizes > 0, sizes, 1), np.where(x != 0, np.abs(x), 1.0))
        unit = np.maximum(unit, _PART_OF_TURN * scales.turning)
        rng = generator(key)
        found = []
        for _ in range(_NEIGHBOURS_OF_X):
            step = _PART_OF_SPREAD * unit * rng.choice([-1.0, 1.0], len(x)) * rng.uniform(0.5, 1.5, len(x))
            found.append(np.clip(x + step, *expansions.bounds))
        return found

    @cached_property
    def _nested(self) -> Projection:
        """Functions of one coordinate by degree, each made orthonormal against those before it; zero where contexts do
        not distinguish it from these."""
        count = int(min(self.most, max(8, (_MULTIPLICATIONS / len(self.u)) ** 0.5)))
        table = self.axes.table(self.u, np.arange(count)[:, None])
        psi = table @ orthonormalising(table, self.shares)
        return Projection.on(np.pad(psi, ((0, 0), (0, count - psi.shape[1]))), self.shares)

    def _next(self, members: np.ndarray) -> np.ndarray:
        """In several dimensions: functions that may come next, orthonormal over the samples, and orthogonal to all that
        are fitted."""
        n = len(self.u)
        most = min(_MOST_CANDIDATES, int(max(8, _MULTIPLICATIONS / n / max(len(members), 1))))
        in_turn = isinstance(self.study.problem.domain, Mixed)
        self.ahead = _ahead(self.axes, members, min(most, int((_MULTIPLICATIONS / n) ** 0.5)) if in_turn else most)
        fitted = self.fits.table[:: self.together, : self.fits.usable]  # laid, and so orthonormal already
        table = self.axes.table(self.u, self.ahead)
        size = np.sqrt(self.shares @ table**2)
        table = table - fitted @ ((fitted * self.shares[:, None]).T @ table)
        if in_turn:
            return _orthonormal_in_turn(table, self.shares, size)
        left = np.sqrt(self.shares @ table**2)
        seen = left > SMALLEST_PIVOT * np.maximum(size, 1e-300)
        return np.where(seen, table / np.where(seen, left, 1), 0.0)

    def _grown(self, members: np.ndarray, tests: Tests) -> np.ndarray:
        if self.axes.nested:
            return np.arange(min(self.most, tests.reach(len(members), len(self._nested.weighted))))[:, None]
        grouped = self.study.noisy and isinstance(self.study.problem.domain, Mixed)
        wanted = tests.grouped(self.axes.groups(self.ahead)) if grouped else tests.single(len(self.ahead))
        if not wanted.any():
            return members
        strength = np.max([np.sum(one.policy.coefficients**2, axis=1) for one in tests.evidence], axis=0)
        grown = members
        for k in np.argsort(-np.where(wanted, strength, -1.0))[: int(wanted.sum())]:
            larger = self.axes.closed(grown, {tuple(self.ahead[k].tolist())})
            if len(larger) <= self.most:
                grown = larger
        return self._distinguished(grown) if self.axes.categories else grown

    def _distinguished(self, members: np.ndarray) -> np.ndarray:
        """Without functions that the samples do not distinguish from those before them."""
        table: Any = np.sqrt(self.shares)[:, None] * self.axes.table(self.u, members)
        triangle = np.asarray(np.linalg.qr(table, mode="r"))
        kept = list(range(len(members)))
        while kept:
            pivots = np.abs(np.diag(np.linalg.qr(triangle[:, kept], mode="r")))
            weak = np.flatnonzero(pivots <= SMALLEST_PIVOT * pivots[0])
            if not len(weak):
                break
            del kept[weak[0]]
        return members[kept]

    def _at_least(self, members: np.ndarray, least: int) -> np.ndarray:
        """With the next functions added, those of low degree first."""
        if self.axes.nested:
            return np.arange(least)[:, None]
        while len(members) < least:
            ahead = self.axes.neighbours(members)
            if not len(ahead):
                break
            members = np.concatenate([members, ahead])
        return members[:least]


def _orthonormal_in_turn(table: np.ndarray, shares: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The functions made orthonormal, each against those before it; zero where too little of its `size` is left.

    Products of categories lean on those of fewer coordinates: only what they add to these is to be tested.
    """
    gram = (table * shares[:, None]).T @ table
    triangle, seen = np.eye(len(gram)), np.zeros(len(gram), bool)
    for k in range(len(gram)):
        seen[k] = gram[k, k] > (_SMALLEST_LEFT * size[k]) ** 2
        if seen[k]:
            triangle[k, k:] = gram[k, k:] / np.sqrt(gram[k, k])
            gram[k + 1 :, k + 1 :] -= np.outer(triangle[k, k + 1 :], triangle[k, k + 1 :])
    return np.where(seen, table @ np.linalg.inv(triangle), 0.0)


def _ahead(axes: Axes, members: np.ndarray, most: int) -> np.ndarray:
    """Functions that may come next: two rings around the set, those of single coordinates, and first products."""
    have = {tuple(row) for row in members.tolist()}
    ring = axes.neighbours(members)
    rows = [tuple(row) for row in ring.tolist()] + axes.singles(_HIGHEST)
    if len(axes) <= most:
        rows += axes.pairs()
    if len(ring) * len(axes) <= most:
        rows += [tuple(row) for row in axes.neighbours(np.concatenate([members, ring])).tolist()]
    found = dict.fromkeys(row for row in rows if row not in have)
    return np.array(axes.ordered(found)[:most], dtype=int).reshape(-1, len(axes))
