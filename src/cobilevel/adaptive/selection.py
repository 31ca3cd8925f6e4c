r"""Forward selection of the functions a problem needs: fit some, test what is left, add, until nothing is.

With some functions fitted at a decision ``x``, the residuals $r = \partial_2 g$ and $\alpha = \partial_{22} g\, v -
\partial_2 f$ are projected on further functions, orthonormal over the samples. A function is needed for the *policy*
where $r$ has a component along it that noise does not explain; and for the *decision* where both the adjoint and the
change of the policy with ``x`` have one, since their product enters the gradient (docs/certificate.md). All samples
count: a component may be a small share of the noise and carry all there is to know about ``x``.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import special

from ..basis import Axes, upper_triangle
from ..covariates import (
    MOST_COEFFICIENTS,
    MOST_FUNCTIONS,
    MULTIPLICATIONS,
    ROUNDS,
    Fits,
    Residuals,
    Vector,
    decisions_near,
)
from ..ground import generator
from ..inference import jumps_in_words, jumps_of
from ..problem import SAMPLE_ROWS, SAMPLES_EACH, Interval, Mixed
from ..study import Study

_TURN = 0.1  # of the distance over which the lower level's noise turns: nearby decisions are no nearer
# Levels of the tests: of the functions that come next; and how many functions, and groups of them, noise alone may
# bring in at a time where they are tested in groups.
_NEXT, _FALSE = 0.05, 0.2
# Of the policy or the gradient, not worth a function: at the decision asked about, nearby.
_HERE, _NEARBY = 3.16e-3, 1e-2


# -- tests


@dataclass(frozen=True)
class Component:
    """Rows projected on functions: the squares of the coefficients, those of their noise, and their ratios, each summed
    over the components of ``y``, of which noise moves so many `freely`: those that go together count as one. A `part`
    of the functions is an array of indices, whose last axis runs over one group."""

    squares: Float[np.ndarray, " K"]
    noise: Float[np.ndarray, " K"]
    ratios: Float[np.ndarray, " K"]
    freely: float

    def energy(self, part: Int[np.ndarray, "... m"]) -> Any:
        """The squares of coefficients, without what noise adds."""
        return np.sum((self.squares - self.noise)[part], axis=-1)

    def stands_out(self, part: Int[np.ndarray, "... m"], level: Any) -> Any:
        """Whether noise does not explain these coefficients: by the chi-square law with the mean and the variance of
        their ratios (Satterthwaite)."""
        return special.chdtrc(self.freely * part.shape[-1], self.freely * np.sum(self.ratios[part], axis=-1)) < level


class Projection:
    """Functions, orthonormal over the samples, on which rows are projected."""

    def __init__(self, psi: Float[np.ndarray, "n K"], shares: Float[np.ndarray, " n"]):
        self.weighted = (psi * shares[:, None]).T
        self.squared, self.all = self.weighted**2, np.arange(psi.shape[1])

    def of(self, rows: Float[np.ndarray, "n dy"]) -> Component:
        squares, noise = (self.weighted @ rows) ** 2, self.squared @ rows**2
        ratios = np.divide(squares, noise, out=np.zeros_like(squares), where=noise > 0)
        return Component(np.sum(squares, axis=1), np.sum(noise, axis=1), np.mean(ratios, axis=1), _freely(rows))


def _freely(rows: Float[np.ndarray, "n dy"], most: int = 4096) -> float:
    """How many columns there would be, if they went their own ways, with a sum of squares that varies as much."""
    rows = rows[:: -(-len(rows) // most)]
    sizes = np.linalg.norm(rows, axis=0)
    units = rows[:, sizes > 0] / sizes[sizes > 0]
    return units.shape[1] ** 2 / np.sum((units.T @ units) ** 2) if units.size else 1.0


class Evidence(NamedTuple):
    """What is left at one ``x``, the one asked about (`here`) or one nearby: of the policy, of the adjoint, and of the
    policy's change from another ``x``."""

    here: bool
    policy: Component
    adjoint: Component | None = None
    change: Component | None = None


@dataclass
class Tests:
    """The evidence at several ``x``, and the sizes that it is compared with; `noisy`: whether noise is to be told from
    what is left."""

    noisy: bool
    policy_total: float = 0.0
    product_total: float = 0.0
    evidence: list[Evidence] = field(default_factory=list)

    def needed(self, part: Int[np.ndarray, "... m"], level: Any) -> Any:
        """Whether some functions of each group are needed at some ``x``."""
        needed, clear = False, lambda one: one.stands_out(part, level) if self.noisy else True
        for here, policy, adjoint, change in self.evidence:
            share = _HERE if here else _NEARBY
            needed |= (policy.energy(part) > share**2 * self.policy_total) & clear(policy)
            if adjoint is not None and change is not None and self.product_total > 0:
                energies = np.maximum(adjoint.energy(part), 0.0) * np.maximum(change.energy(part), 0.0)
                needed |= (np.sqrt(energies) > share * self.product_total) & clear(adjoint) & clear(change)
        return needed

    def reach(self, have: int, most: int) -> int:
        """How many functions of a list are needed, given that the first `have` are there."""
        needed, start, width, level = have, have, max(1, have), _NEXT
        while start < most:
            top = min(start + width, most)
            if self.needed(np.arange(start, top), level):  # where does the part end that is needed? by halving
                low, needed = start, top
                while needed - low > 1:
                    middle = (low + needed) // 2  # through noise a long list hides what one of it shows
                    further = self.needed(np.arange(middle, needed if self.noisy else top), level)
                    low, needed = (middle, needed) if further else (low, middle)
            start, width = top, 2 * width
            level = _NEXT / (start + width) ** 2  # what lies far ahead brings in all before it
        return needed

    def single(self, brings: Float[np.ndarray, " K"]) -> Bool[np.ndarray, " K"]:
        """Which functions are needed, each asked for alone; `brings`: how many come in with each. Those that chance
        does not explain come first, since the contexts are a sample: what is left has a component along every function.

        Noise brings in something one in twenty times, and as rarely more as that is more: levels fall with the square
        of what comes in, as they do in ``reach``.
        """
        level, alone = _NEXT / brings**2 / max(np.sum(1 / brings**2), 1.0), np.arange(len(brings))[:, None]
        wanted = self.needed(alone, level)
        if self.noisy:
            return wanted
        clear = wanted & np.any([one.policy.stands_out(alone, level) for one in self.evidence], axis=0)
        return clear if clear.any() else wanted

    def grouped(self, groups: list[np.ndarray], brings: Float[np.ndarray, " K"]) -> Bool[np.ndarray, " K"]:
        """Which functions are needed, tested alone and in groups, through noise; `brings`: as for ``single``.

        The effect of a category is spread over several functions, none of which may stand out: of a group that does,
        those are taken that bring more than they cost, twice the noise of what comes in with them.
        """
        alone, rare = np.arange(len(brings))[:, None], brings**-2.0
        levels = _FALSE * rare / max(np.sum(rare), 1.0), special.chdtrc(1, 2 * brings)
        wanted, worth = (self.needed(alone, level) for level in levels)
        for group in groups:
            if len(group) > 1 and self.needed(group, _FALSE / len(groups)):
                wanted[group] |= worth[group]
        return wanted


# -- selection


class ForwardSelection:
    """The samples looked at, fits to them, and the `most` functions they support."""

    def __init__(self, study: Study, key: Array, spent: Counter):
        most = MOST_COEFFICIENTS // study.problem.sizes[1]
        few = not study.noisy and most < MOST_FUNCTIONS
        self.study, self.about_jumps = study, ""
        self.fits = self._all = Fits.looking(study, key, spent, rows=SAMPLES_EACH * most if few else SAMPLE_ROWS)
        self._supported = self.fits.most if study.noisy else min(self.fits.most, MOST_FUNCTIONS)
        if few and self.axes.nested and not study.lower.crossed and not self.breaks:
            self.fits = self._all.at_nodes(np.arange(self.most)[:, None]) or self._all

    @property
    def looked(self) -> int:
        """How many samples are looked at, and stand behind the nodes."""
        return len(self._all.u)

    @property
    def on_nodes(self) -> bool:
        """Whether fits are at the nodes of a quadrature of these samples: without noise these say as much, as long as
        nothing jumps and functions are few."""
        return self.fits is not self._all

    def _leave_nodes(self) -> None:
        self.fits = self._all
        self.__dict__.pop("_nested", None)

    @property
    def axes(self) -> Axes:
        return self.fits.axes

    @property
    def most(self) -> int:
        """The most functions: of several pieces, as many on each."""
        return max(1, self._supported // self.axes.pieces) * self.axes.pieces

    def is_full(self, members: np.ndarray) -> bool:
        """Whether another ``x`` cannot change these: there are as many as may be, and no jumps to look for."""
        return len(members) >= self.most and not isinstance(self.fits.domain, Interval)

    @property
    def breaks(self) -> tuple[float, ...]:
        """Where the functions may jump, stated or found."""
        return getattr(self.fits.domain, "breaks", ())

    def _found_jumps(self, left: list[Residuals]) -> bool:
        """Whether what a few functions leave shows jumps; functions are cut there then, if there may be two a piece."""
        domain, means = self.fits.domain, self.fits.by_context
        if not isinstance(domain, Interval):
            return False
        rows = np.concatenate([means(one.r) for one in left], axis=1)
        sizes = [np.linalg.norm(one.point.W[1:] @ one.curvature, axis=0) for one in left]
        found = jumps_of(self.fits.samples.xi[:: self.fits.together], rows, np.concatenate(sizes), domain.breaks)
        if not found:
            return False
        if self.on_nodes:  # where exactly, all samples show
            self._leave_nodes()
            return True
        stated = getattr(self.study.problem.domain, "breaks", ())
        breaks = tuple(sorted({*found, *domain.breaks}))
        taken = 2 * (len(breaks) + 1) <= self._supported
        some = tuple(one for one in breaks if one not in stated)
        self.about_jumps = f" {jumps_in_words(some)}{'' if taken else ', but samples are too few for its pieces'}."
        if taken:
            self.fits.live_on(Interval(domain.lo, domain.hi, breaks))
            self.__dict__.pop("_nested", None)
        return taken

    def at(self, x: Vector, key: Array, members: np.ndarray | None = None) -> tuple[np.ndarray, str]:
        """The functions needed around ``x``, and why these, in words; `members`: those that are there already."""
        if members is not None and isinstance(self.fits.domain, Interval):
            known = dict(self.fits.known)
            self.fits.lay(self._first())
            here = self.fits.residuals(x)
            if here is not None and self._found_jumps([here]):
                members, known = None, {}
            self.fits.known = known
        looked, members = members is not None or bool(self.breaks), self._first() if members is None else members
        last, tests, points = members, Tests(self.study.noisy), [x]
        for _ in range(ROUNDS):
            self.fits.lay(members)
            here = self.fits.residuals(x)
            if here is None:
                return last, "the lower level could not be minimised with more functions."
            if len(points) == 1:
                expansions, point = self.fits.expansions(self.fits.usable), here.point
                scales = expansions.row_scales(x, point.W, point.adjoint, point.value)
                unit = np.where(x != 0, np.abs(x), 1.0)  # where f does not show over which way it changes by its spread
                unit = np.divide(scales.spread, scales.sizes, out=unit, where=scales.sizes > 0)
                unit = np.maximum(unit, _TURN * scales.turning)
                points += decisions_near(x, unit, expansions.bounds, generator(key))
            others = [self.fits.residuals(point) for point in points[1:]]
            left = [here, *(one for one in others if one is not None)]
            if not looked and self._found_jumps(left):
                members = last = self._first()
                looked = bool(self.breaks)
                continue
            looked = True
            ahead, projection = self._next(members)
            self._test(left, projection, tests)
            grown, last = self._grown(members, ahead, tests), members
            if self.on_nodes and 2 * len(grown) > self.most:
                self._leave_nodes()
                members = grown
                continue
            if len(grown) == len(members) or len(members) >= self.most:
                break
            members = grown
        return self._enough_for_x(members, here, len(points))

    def _enough_for_x(self, members: np.ndarray, here: Residuals, decisions: int) -> tuple[np.ndarray, str]:
        """The functions found by tests at so many decisions, and more where ``x`` takes more; and why, in words."""
        dx, dy = self.study.problem.sizes
        least, count = -(-dx // dy), self.looked
        if len(members) < least:  # what f sees of x itself takes no functions
            lacking = dx - self.most * dy  # where less is seen than that, no functions will do: they would fit noise
            at, point = self.fits.expansions(self.fits.usable), here.point
            seen = at.seen_above(point.x, point.W) if lacking < count else 0
            least = -(-(dx - seen) // dy) if seen >= lacking else 0
        kind, tested = "contexts" if self.fits.together > 1 else "samples", f"tested at {decisions} decisions"
        where = f"{len(self.fits.u)} nodes of " if self.on_nodes else ""
        words = (
            "more functions would improve neither the policy nor the hypergradient beyond the noise of "
            f"{count} {kind} ({tested})."
        )
        if not self.study.noisy:
            words = f"more functions would change the policy by less than 0.3% ({tested}, on {where}{count} {kind})."
        if len(members) >= self.most:
            words = f"the most that {count} samples with {self.fits.samples.distinct()} distinct contexts support."
            if self.most < self.fits.supported:
                words = f"the most that are tried for a y of {dy} numbers; for more, pass a basis."
        if len(members) < least:
            words = f"x has {dx} coordinates, and fewer functions could not determine it; the policy alone needs fewer."
            while len(members) < least and len(ahead := self.axes.neighbours(members)):  # those of low degree first
                members = np.concatenate([members, ahead])
            members = members[:least]
        if self.axes.pieces > 1 and self.axes.nested:
            members = np.arange(self.axes.complete(len(members)))[:, None]
        return members, words + self.about_jumps

    def _first(self) -> np.ndarray:
        """The set to begin with: the constant; through noise also the first functions of each coordinate but
        categories, as far as the samples support so many with as many again. Tests of these would keep those that
        happen to look strong, which biases what rests on them, and drop those that ``f`` has a part along."""
        rows = [(0,) * len(self.axes), *self.axes.singles(1)]
        first = np.array(
            [row for row in rows if not any(a.categorical and k for a, k in zip(self.axes.each, row, strict=True))]
        )
        return first if self.study.noisy and 2 * len(first) <= self.most else first[:1]

    def _brings(self, members: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """How many functions come in with each: itself, and all before it that are not there."""
        before = [np.all(members <= row, axis=1).sum() for row in ahead]
        degrees = np.where([axis.categorical for axis in self.axes.each], np.minimum(ahead, 1), ahead)
        return np.maximum(np.prod(degrees + 1.0, axis=1) - before, 1.0)

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
            tests.evidence.append(Evidence(one is here, policy, adjoint, change))

    @cached_property
    def _nested(self) -> Projection:
        """Functions of one coordinate by degree, each made orthonormal against those before it; zero where contexts do
        not distinguish it from these."""
        u, shares = self.fits.u, self.fits.context_shares
        count = int(min(self.most, max(8, (MULTIPLICATIONS / len(u)) ** 0.5)))
        root = np.sqrt(shares)[:, None]
        table, half = root * self.axes.table(u, np.arange(count)[:, None]), np.finfo(float).eps ** 0.5
        triangle = upper_triangle(table)
        pivots = np.abs(np.diag(triangle))
        seen = int(np.argmin(np.append(pivots > half * pivots[0], False)))
        q = table[:, :seen] @ np.linalg.inv(triangle[:seen, :seen])
        # of functions that still lean on each other, one chance component would count for many
        if np.max(np.abs(q.T @ q - np.eye(seen))) > half:
            q = np.linalg.qr(table[:, :seen])[0]
        psi = np.divide(q, root, out=np.zeros_like(q), where=root > 0)
        return Projection(np.pad(psi, ((0, 0), (0, count - psi.shape[1]))), shares)

    def _next(self, members: np.ndarray) -> tuple[np.ndarray, Projection]:
        """Functions that may come next, orthonormal over the samples. In several dimensions, orthogonal to all that are
        fitted. Through noise, and of categories, also each against those before it: a function of high degree leans on
        those of low degree, a product on those of fewer coordinates, and only what it adds is to be tested."""
        if self.axes.nested:
            return np.arange(len(self._nested.all))[:, None], self._nested
        u, shares = self.fits.u, self.fits.context_shares
        in_turn, each = self.study.noisy or isinstance(self.study.problem.domain, Mixed), MULTIPLICATIONS / len(u)
        budget = max(8, int(each / max(len(members), 1)))
        ahead = _ahead(self.axes, members, min(budget, int(each**0.5)) if in_turn else budget)
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
            return np.arange(min(self.most, self.axes.complete(tests.reach(len(members), len(ahead)))))[:, None]
        grouped = self.study.noisy and isinstance(self.study.problem.domain, Mixed)
        brings = self._brings(members, ahead)
        wanted = tests.grouped(self.axes.groups(ahead), brings) if grouped else tests.single(brings)
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


def _ahead(axes: Axes, members: np.ndarray, budget: int, most: int = 600, highest: int = 16) -> Int[np.ndarray, "K d"]:
    """Functions that may come next, so many at most: two rings around the set, those of single coordinates up to the
    `highest` degree, and first products."""
    most = min(most, budget)
    have = {tuple(row) for row in members.tolist()}
    ring = axes.neighbours(members)
    rows = [tuple(row) for row in ring.tolist()] + axes.singles(highest)
    if len(axes) <= most:
        rows += axes.pairs()
    if len(ring) * len(axes) <= most:
        rows += [tuple(row) for row in axes.neighbours(np.concatenate([members, ring])).tolist()]
    found = dict.fromkeys(row for row in rows if row not in have)
    return np.array(axes.ordered(found)[:most], dtype=int).reshape(-1, len(axes))
