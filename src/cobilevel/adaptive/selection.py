"""Forward selection of the functions a problem needs: fit some, test what is left, add, until nothing is."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..basis import Axes
from ..covariates import MOST_COEFFICIENTS, MOST_FUNCTIONS, Fits, Residuals, decisions_near
from ..keys import generator
from ..problem import Mixed, Samples
from ..study import Study
from .significance import Evidence, Projection, Tests

_ROWS = 100_000  # samples looked at, at most
_MULTIPLICATIONS = 1.5e9  # multiplications that making the tested functions orthonormal may take
_ADDITIONS = 12  # rounds of adding
_TURN = 0.1  # of the distance over which the lower level's noise turns: nearby decisions are no nearer
_HIGHEST = 16  # degree of functions of one coordinate that are tested in several dimensions
_MOST_CANDIDATES = 600  # tested at a time


@dataclass
class ForwardSelection:
    """The samples looked at, fits to them, and the most functions they support."""

    study: Study
    samples: Samples
    fits: Fits
    most: int

    @staticmethod
    def on(study: Study, key: Array, spent: Counter) -> "ForwardSelection":
        look = study.lower.look(key, rows=_ROWS)
        upper = None if study.shared else study.upper.look(key, rows=_ROWS).samples
        fits = Fits(study, look.samples, upper, spent, look.together)
        contexts = look.samples.rows(slice(None, None, look.together))
        most = max(1, min(contexts.supported(study.noisy), MOST_COEFFICIENTS // study.problem.sizes[1]))
        return ForwardSelection(study, look.samples, fits, most if study.noisy else min(most, MOST_FUNCTIONS))

    @property
    def axes(self) -> Axes:
        """The coordinates of the context."""
        return self.fits.axes

    def at(self, x: Float[np.ndarray, " dx"], key: Array, members: np.ndarray | None = None) -> tuple[np.ndarray, str]:
        """The functions needed around ``x``, and why these, in words; `members`: those that are there already."""
        dx, dy = self.study.problem.sizes
        members = last = np.zeros((1, len(self.axes)), int) if members is None else members
        tests, points = Tests(self.study.noisy), [x]
        for _ in range(_ADDITIONS):
            self.fits.lay(members)
            here = self.fits.residuals(x)
            if here is None:
                return last, "the lower level could not be minimised with more functions."
            if len(points) == 1:
                points += self._nearby(here, key)
            others = (self.fits.residuals(point) for point in points[1:])
            ahead, projection = self._next(members)
            self._test([here, *(one for one in others if one is not None)], projection, tests)
            grown, last = self._grown(members, ahead, tests), members
            if len(grown) == len(members) or len(members) >= self.most:
                break
            members = grown
        least, count = min(self.most, -(-dx // dy)), len(self.fits.u)
        words = (
            f"beyond these, nothing of the policy or of what moves x stands out of the noise of {count} "
            f"{'contexts' if self.fits.together > 1 else 'samples'} (tested at {len(points)} decisions)."
        )
        if not self.study.noisy:
            words = f"more would change the policy by less than 0.3% (tested at {len(points)} decisions)."
        if len(members) >= self.most:
            words = f"as many as {count} samples with {self.samples.distinct()} distinct contexts support."
        if len(members) < least:
            words = (
                f"x has {dx} coordinates, and fewer functions could not determine it; the policy alone asks for less."
            )
        return self._at_least(members, least), words

    def _test(self, left: list[Residuals], projection: Projection, tests: Tests) -> None:
        """What is left at each point, projected; the first of them is the one asked about."""
        here, means, tests.evidence = left[0], self.fits.by_context, []
        for one in left:
            other = left[1] if one is here and len(left) > 1 else here
            policy, adjoint, change = projection.of(means(one.r)), None, None
            if one.alpha is not None and other is not one:
                adjoint, change = projection.of(means(one.alpha)), projection.of(means(one.r - other.r))
                fitted = one.energy(one.point.adjoint), here.energy(one.point.W - other.point.W)
                beyond = (max(float(part.energy(projection.all)), 0.0) for part in (adjoint, change))
                adjoint_total, change_total = (a + b for a, b in zip(fitted, beyond, strict=True))
                tests.product_total = max(tests.product_total, float(np.sqrt(adjoint_total * change_total)))
            total = float(policy.energy(projection.all)) + one.energy(one.point.W[1:])
            tests.policy_total = max(tests.policy_total, total)
            tests.evidence.append(Evidence(policy, adjoint, change, one is here))

    def _nearby(self, here: Residuals, key: Array) -> list[Float[np.ndarray, " dx"]]:
        """Decisions over which ``f`` changes by a part of its spread."""
        expansions, point = self.fits.expansions(self.fits.usable), here.point
        scales = expansions.row_scales(point.x, point.W, point.adjoint, point.value)
        unit = np.where(point.x != 0, np.abs(point.x), 1.0)
        unit = np.divide(scales.spread, scales.sizes, out=unit, where=scales.sizes > 0)
        unit = np.maximum(unit, _TURN * scales.turning)
        return decisions_near(point.x, unit, expansions.bounds, generator(key))

    @cached_property
    def _nested(self) -> Projection:
        """Functions of one coordinate by degree, each made orthonormal against those before it; zero where contexts do
        not distinguish it from these."""
        u, shares = self.fits.u, self.fits.context_shares
        count = int(min(self.most, max(8, (_MULTIPLICATIONS / len(u)) ** 0.5)))
        root = np.sqrt(shares)[:, None]
        # orthonormal to the last digit: of functions that lean on each other one chance component would count for many
        q, triangle = np.linalg.qr(root * self.axes.table(u, np.arange(count)[:, None]))
        pivots = np.abs(np.diag(triangle))
        seen = np.logical_and.accumulate(pivots > np.finfo(float).eps ** 0.5 * pivots[0])
        psi = np.divide(q * seen, root, out=np.zeros_like(q), where=root > 0)
        return Projection(np.pad(psi, ((0, 0), (0, count - psi.shape[1]))), shares)

    def _next(self, members: np.ndarray) -> tuple[np.ndarray, Projection]:
        """Functions that may come next, orthonormal over the samples. In several dimensions, orthogonal to all that are
        fitted. Through noise, and of categories, also each against those before it: a function of high degree leans on
        those of low degree, a product on those of fewer coordinates, and only what it adds is to be tested."""
        if self.axes.nested:
            return np.arange(len(self._nested.all))[:, None], self._nested
        u, shares = self.fits.u, self.fits.context_shares
        most = min(_MOST_CANDIDATES, int(max(8, _MULTIPLICATIONS / len(u) / max(len(members), 1))))
        in_turn = self.study.noisy or isinstance(self.study.problem.domain, Mixed)
        ahead = _ahead(self.axes, members, min(most, int((_MULTIPLICATIONS / len(u)) ** 0.5)) if in_turn else most)
        fitted = self.fits.table[:: self.fits.together]  # orthonormal already
        table = self.axes.table(u, ahead)
        size = np.sqrt(shares @ table**2)
        table = table - fitted @ ((fitted * shares[:, None]).T @ table)
        if in_turn:
            return ahead, Projection(_orthonormal_in_turn(table, shares, size)[0], shares)
        left = np.sqrt(shares @ table**2)
        seen = left > np.finfo(float).eps ** 0.5 * size
        return ahead, Projection(np.divide(table, left, out=np.zeros_like(table), where=seen), shares)

    def _grown(self, members: np.ndarray, ahead: np.ndarray, tests: Tests) -> np.ndarray:
        """The set with what is needed added, the strongest first, as far as the samples support it."""
        if self.axes.nested:
            return np.arange(min(self.most, tests.reach(len(members), len(ahead))))[:, None]
        grouped = self.study.noisy and isinstance(self.study.problem.domain, Mixed)
        wanted = tests.grouped(self.axes.groups(ahead)) if grouped else tests.single(len(ahead))
        strength = np.max([one.policy.squares for one in tests.evidence], axis=0)
        grown = members
        for k in np.argsort(-np.where(wanted, strength, -1.0))[: int(wanted.sum())]:
            larger = self.axes.closed(grown, {tuple(ahead[k].tolist())})
            if len(larger) <= self.most:
                grown = larger
        if not self.axes.categories or not wanted.any():
            return grown
        table, shares = self.axes.table(self.fits.u, grown), self.fits.context_shares
        return grown[_orthonormal_in_turn(table, shares, np.sqrt(shares @ table**2))[1]]

    def _at_least(self, members: np.ndarray, least: int) -> np.ndarray:
        """With the next functions added, those of low degree first, where there are fewer."""
        if len(members) >= least:
            return members
        if self.axes.nested:
            return np.arange(least)[:, None]
        while len(members) < least and len(ahead := self.axes.neighbours(members)):
            members = np.concatenate([members, ahead])
        return members[:least]


def _orthonormal_in_turn(
    table: Float[np.ndarray, "n K"], shares: Float[np.ndarray, " n"], size: Float[np.ndarray, " K"]
) -> tuple[Float[np.ndarray, "n K"], Bool[np.ndarray, " K"]]:
    """The functions made orthonormal, each against those before it, zero where too little of its `size` is left to be
    seen in their products; and of which ones enough is left."""
    gram = (table * shares[:, None]).T @ table
    triangle, seen = np.eye(len(gram)), np.zeros(len(gram), bool)
    for k in range(len(gram)):
        seen[k] = gram[k, k] > np.finfo(float).eps ** 0.5 * size[k] ** 2
        if seen[k]:
            triangle[k, k:] = gram[k, k:] / np.sqrt(gram[k, k])
            gram[k + 1 :, k + 1 :] -= np.outer(triangle[k, k + 1 :], triangle[k, k + 1 :])
    return np.where(seen, table @ np.linalg.inv(triangle), 0.0), seen


def _ahead(axes: Axes, members: np.ndarray, most: int) -> Int[np.ndarray, "K d"]:
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
