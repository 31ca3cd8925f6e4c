"""``bootstrap``: how far ``x`` would move had other samples been drawn."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..checks import whole
from ..iteration.loop import run
from ..keys import as_key
from ..problem.data import Data, Levels, Product, Stream, levels, without_idle
from ..problem.distributions import Distribution
from ..problem.problem import Problem
from ..problem.study import check
from ..progress import ProgressBar
from ..reduction.batches import Table
from ..reduction.reduced import Reduced
from ..reduction.solution import Solution, check_solution
from ..solvers import Newton
from .estimates import LEVEL
from .gap import reduced_at


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The spread of ``x`` over resampled data.

    - `x`: one solution for each resampling, a leading axis before each leaf.
    - `error`: standard errors, shaped like ``x``; `interval`: pointwise 95% ends.
    - `failed`: resamplings that did not converge, and are left out.
    """

    x: PyTree[Array]
    error: PyTree[np.ndarray]
    interval: tuple[PyTree[np.ndarray], PyTree[np.ndarray]]
    failed: int

    def __repr__(self):
        count = len(jax.tree.leaves(self.x)[0])
        error = jax.tree.map(lambda a: np.array2string(a, precision=3, threshold=6), self.error)
        lost = f", {self.failed} failed" if self.failed else ""
        return f"Bootstrap({count} resamplings{lost}: standard error of x {error})"


def bootstrap(
    problem: Problem,
    solution: Solution,
    samples: Data,
    replicates: int = 100,
    key: Any = 0,
    progress: bool | None = None,
) -> Bootstrap:
    """Solves again, from the solution, on samples drawn with replacement from those it was found from.

    **Arguments:**

    - `samples`: the data the solution was found from.
    - `replicates`: how many times; a hundred for standard errors, more for intervals.

    The basis stays as it is: what is resampled is the data, not the choice of functions.
    """
    check(problem, samples)
    check_solution(problem, solution)
    samples = without_idle(samples)
    whole("bootstrap: replicates", replicates, 2)
    above, below = levels(samples)
    if isinstance(above, Stream) or isinstance(below, Stream):
        raise TypeError("bootstrap: a Stream has no samples to draw again from; pass those it was solved on.")
    if min(level.eta_rows if isinstance(level, Product) else len(level) for level in (above, below)) < _FEWEST:
        raise ValueError(f"bootstrap: with fewer than {_FEWEST} samples resampling says nothing about others.")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))
    moved = eqx.tree_at(lambda p: p.x0, problem, solution.x)
    reduced = reduced_at(moved, solution.basis, Levels(upper=above, lower=below), solution.W)
    pools = reduced.upper_pool, reduced.lower_pool
    found, failed = [], 0
    with ProgressBar(replicates, "bootstrap", progress) as bar:
        for k in range(replicates):
            counts = [_counts(level, rng) for level in (above, below)]
            weights = [counts[1], counts[1]] if above is below else counts
            one = run(Newton(), _weighted(reduced, pools, weights), jax.random.key(0), Newton.default_steps, False)
            found += [one.x] if one.converged else []
            failed += not one.converged
            bar.update(k + 1, "")
    if len(found) < 2:
        raise ValueError(f"bootstrap: {failed} of {replicates} resamplings did not converge; is the solution one?")
    table = jax.tree.map(lambda *rows: jnp.stack(rows), *found)
    ends = [jax.tree.map(lambda a, q=q: np.quantile(np.asarray(a), q, axis=0), table) for q in _TAILS]
    error = jax.tree.map(lambda a: np.std(np.asarray(a), axis=0, ddof=1), table)
    return Bootstrap(table, error, (ends[0], ends[1]), failed)


_FEWEST = 10


_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


def _counts(level: Any, rng: np.random.Generator) -> np.ndarray:
    """How often each row is drawn; of crossed data the rows of the data, and the contexts where they are a sample."""
    rows = level.eta_rows if isinstance(level, Product) else len(level)
    draw = lambda count: rng.multinomial(count, np.full(count, 1 / count)).astype(float)
    if not isinstance(level, Product):
        return draw(rows)
    contexts = len(level.context_rule())
    often = np.ones(contexts) if isinstance(level.contexts, Distribution) else draw(contexts)
    return np.outer(often, draw(rows)).ravel()


def _weighted(reduced: Reduced, pools: tuple, counts: list[np.ndarray]) -> Reduced:
    """The reduced problem with its samples counted so often."""
    sources = []
    for pool, count in zip(pools, counts, strict=True):
        weight = pool.weight * jnp.asarray(count, pool.weight.dtype)
        sources.append(Table(replace(pool, weight=weight / jnp.mean(weight))))
    return replace(reduced, upper_source=sources[0], lower_source=sources[1])
