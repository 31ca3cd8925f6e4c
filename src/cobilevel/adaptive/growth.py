"""adaptive.growth."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..basis.index_sets import TotalDegree
from ..basis.richer import neighbours
from ..derivatives.ledger import Ledger
from ..problem.data import Data, Level, Levels, Product, Stream, levels, without_idle
from ..problem.problem import Problem
from .choose import Choice, Hunt, basis_of
from .nested_fits import Bench, Rows, Rung, rows_of

_JUDGE = 5  # the fewest functions to judge by


_LOOK = 400  # samples to look around with: a quarter of them, or so many


_DIRECTIONS, _REACH = 16, 3e-3  # of x along which the curvature of F is measured, and how far


@dataclass(frozen=True)
class Goal:
    """What is left to gain in the upper objective: at most `excess` is to be given away.

    `hessian` of the objective on the coordinates that are `free`, about.
    """

    excess: float
    hessian: np.ndarray
    free: np.ndarray

    def given_away(self, gradient: np.ndarray) -> float:
        """How far the objective lies above its minimum where its gradient is this."""
        g, H = gradient[self.free], self.hessian[np.ix_(self.free, self.free)]
        return float(g @ np.linalg.solve(H, g)) / 2 if len(g) else 0.0


def first_members(dimension: int) -> np.ndarray:
    """A few functions to begin with: polynomials of degree 3 on an interval, of degree 2 elsewhere."""
    return TotalDegree().table(4 if dimension == 1 else 3, dimension)


def grow_basis(
    problem: Problem, samples: Data, x: PyTree, members: np.ndarray, most: int, goal: Goal, key: Array, ledger: Ledger
) -> Choice | None:
    """The smallest basis, from `members` up to `most` functions, that gives away no more of the objective than asked.

    Judged by a larger one: the last of two steps up that changed the gradient by little, or where held-out samples
    find that more functions fit noise. ``None`` where the lower level cannot be fitted.
    """
    hunt = Hunt.on(problem, samples, key)
    least = max(_JUDGE, len(members) + 2)

    def enough(rungs):
        if len(rungs) < 3 or len(rungs[-1].members) < least:
            return False
        little = max(_given_away(rungs, goal)[-3:-1]) <= goal.excess / 20
        return little or hunt.pick(rungs)[0] < len(rungs) - 2

    rungs, _, ledger = hunt.climb(problem, x, members, ledger, enough)
    if not rungs:
        return None
    last = len(rungs) - 1
    lost = _given_away(rungs, goal)
    pick = next((k for k in range(last + 1) if max(lost[k:]) <= goal.excess), last)
    while pick and len(rungs[pick].members) > most:
        pick -= 1
    basis, sizes = basis_of(rungs[pick].members), [len(r.members) for r in rungs]
    words = (
        f"{basis!r} gives away {lost[pick]:.2g} of the objective (asked {goal.excess:.2g}), judged by N = {sizes[last]}"
    )
    if pick == last:
        words = f"{basis!r} is the largest that the samples bear, with none to judge it by"
    return Choice(basis, words, tuple(rungs), pick, ledger)


def doubled(members: np.ndarray) -> np.ndarray:
    """About twice the functions, the given ones first."""
    if members.shape[1] == 1:  # and never less than shows an odd and an even function more
        return np.arange(max(2 * len(members), len(members) + 3))[:, None]
    ahead = np.concatenate([members, neighbours(members)])
    return np.concatenate([ahead, neighbours(ahead)])


def lost_at(
    problem: Problem, samples: Data, x: PyTree, members: np.ndarray, goal: Goal, key: Array, ledger: Ledger
) -> tuple[float, int, Ledger]:
    """What a basis gives away of the objective at ``x``, judged by one about twice as large; that one's size."""
    hunt = Hunt.on(problem, samples, key)
    table = doubled(members)[: hunt.most]
    bench = Bench(problem, hunt.rows, ledger)
    bench.lay(table)
    fits = [bench.fit(x, min(count, bench.usable)) for count in (len(members), len(table))]
    if len(table) <= len(members) or any(fit is None for fit in fits):
        return 0.0, len(members), bench.ledger
    near, far = (np.asarray(fit.gradient, float) for fit in fits)  # pyright: ignore
    return goal.given_away(near - far), min(len(table), bench.usable), bench.ledger


def thinned(samples: Data, key: Array) -> Data:
    """A part of the data, enough to look around with."""

    def part(level: Level, key: Array) -> Level:
        if isinstance(level, Stream):
            return level.draw(key, _LOOK)
        rows = level.eta_rows if isinstance(level, Product) else len(level)
        order = jax.random.permutation(key, rows)[: max(rows // 4, _LOOK)]
        if isinstance(level, Product):
            return Product(level.contexts, jax.tree.map(lambda a: a[order], level.eta), level.nodes)
        return level.rows(order)

    upper, lower = levels(without_idle(samples))
    below = part(lower, key)
    return below if upper is lower else Levels(upper=part(upper, jax.random.fold_in(key, 1)), lower=below)


def _given_away(rungs: list[Rung], goal: Goal) -> list[float]:
    """What each set gives away, judged by the last one."""
    return [goal.given_away(r.gradient - rungs[-1].gradient) for r in rungs]


def goal_at(problem: Problem, samples: Data, x: PyTree, members: np.ndarray, excess: float, key: Array, ledger: Ledger):
    """The goal of giving away at most `excess`, with the curvature of the objective at ``x`` by differences.

    Coordinate by coordinate for a few, along the gradient alone for many. Bounds that hold ``x`` leave it no freedom.
    """
    point, unravel = ravel_pytree(x)
    lo, hi = (np.asarray(ravel_pytree(side)[0]) for side in problem.x_bounds)
    upper, lower = levels(without_idle(samples))
    rows = rows_of(lower, key)
    bench = Bench(problem, Rows(rows, rows.rows(slice(0, 1)), rows if upper is lower else rows_of(upper, key)), ledger)
    bench.lay(members)
    here = bench.fit(x, min(len(members), bench.usable))
    at, count = np.asarray(point, float), point.size
    if here is None:
        return None, bench.ledger
    slope = np.asarray(here.gradient, float)
    free = (lo < hi) & ~((at <= lo) & (slope > 0)) & ~((at >= hi) & (slope < 0))
    length = np.linalg.norm(slope)
    steepest = slope / length if length > 0 else np.ones(count) / count**0.5
    H = np.zeros((count, count))
    for direction in np.eye(count) if count <= _DIRECTIONS else steepest[None]:
        reach = _REACH * (1 + np.abs(at @ direction))
        beside = at + reach * direction
        reach = reach if np.all(beside <= hi) and np.all(beside >= lo) else -reach
        there = bench.fit(
            unravel(jnp.asarray(np.clip(at + reach * direction, lo, hi))), min(len(members), bench.usable)
        )
        if there is None:
            return None, bench.ledger
        bend = (np.asarray(there.gradient, float) - slope) / reach
        H += np.outer(bend, direction) if count <= _DIRECTIONS else np.abs(direction @ bend) * np.eye(count)
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    largest = np.max(np.abs(values))
    if not largest > 0:
        return None, bench.ledger
    H = (vectors * np.maximum(np.abs(values), 1e-3 * largest)) @ vectors.T
    return Goal(excess, H, free), bench.ledger
