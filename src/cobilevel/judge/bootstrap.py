"""``bootstrap``: how far ``x`` would move had other samples been drawn."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from ..answer import Solution
from ..checks import whole
from ..iteration import run
from ..keys import as_key
from ..problem import Data, Problem, Study, precision_for
from ..progress import ProgressBar
from ..reduction import Batch, reduce_with
from ..solvers import Newton
from .evaluate import in_precision_of
from .intervals import TAILS

_FEWEST = 10  # samples, below which those drawn again are too often the same


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The spread of ``x`` over resampled data.

    - `x`: one solution for each resampling, a leading axis before each leaf.
    - `error`: standard errors, shaped like ``x``; `interval`: pointwise 95% ends.
    - `failed`: resamplings that did not converge, and are left out.
    """

    x: PyTree[Array]
    error: PyTree[Shaped[np.ndarray, "..."] | np.floating]
    interval: tuple[PyTree, PyTree]
    failed: int

    def __repr__(self):
        count = len(jax.tree.leaves(self.x)[0])
        error = jax.tree.map(lambda a: np.array2string(np.asarray(a), precision=3, threshold=6), self.error)
        lost = f", {self.failed} failed" if self.failed else ""
        return f"Bootstrap({count} resamplings{lost}: standard error of x {error})"


def bootstrap(
    problem: Problem,
    solution: Solution,
    samples: Data,
    replicates: int = 100,
    key: Any = 0,
    progress: bool | None = None,
    precision: str | None = None,
) -> Bootstrap:
    """Solves again, from the solution, on samples drawn with replacement from those it was found from.

    **Arguments:**

    - `samples`: the data the solution was found from.
    - `replicates`: how many times; a hundred for standard errors, more for intervals.
    - `precision`: ``"single"`` or ``"double"``; double when left out, whatever JAX is switched to.

    The basis stays as it is: what is resampled is the data, not the choice of functions.
    """
    wanted = precision_for(problem, samples, precision)
    with wanted.context():
        study = Study.of(problem, samples, wanted)
        found = _resampled(study, in_precision_of(study, solution), replicates, key, progress)
    return replace(found, x=wanted.back(found.x))


def _resampled(study: Study, solution: Solution, replicates: int, key: Any, progress: bool | None) -> Bootstrap:
    """The spread, in the precision of the study."""
    whole("bootstrap: replicates", replicates, 2)
    if study.endless:
        raise TypeError("bootstrap: a Stream has no samples to draw again from; pass those it was solved on.")
    if min(study.upper.count or 0, study.lower.count or 0) < _FEWEST:
        raise ValueError(f"bootstrap: with fewer than {_FEWEST} samples resampling says nothing about others.")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))
    reduced = reduce_with(study.at(solution.x), solution.basis, solution.W).whitened()
    upper, lower = reduced.upper_pool, reduced.lower_pool
    found, failed = [], 0
    with ProgressBar(replicates, "bootstrap", progress) as bar:
        for k in range(replicates):
            upper_often, lower_often = (level.resample(rng) for level in (study.upper, study.lower))
            upper_often = lower_often if study.shared else upper_often
            again = reduced.with_pools(_counted(upper, upper_often), _counted(lower, lower_often))
            one = run(Newton(), again, jax.random.key(0), Newton.default_steps, False)
            found += [one.x] if one.converged else []
            failed += not one.converged
            bar.update(k + 1)
    if len(found) < 2:
        raise ValueError(f"bootstrap: {failed} of {replicates} resamplings did not converge; is the solution one?")
    table = jax.tree.map(lambda *rows: jnp.stack(rows), *found)
    ends = [jax.tree.map(lambda a, q=q: np.quantile(np.asarray(a), q, axis=0), table) for q in TAILS]
    error = jax.tree.map(lambda a: np.std(np.asarray(a), axis=0, ddof=1), table)
    return Bootstrap(table, error, (ends[0], ends[1]), failed)


def _counted(pool: Batch, often: Float[np.ndarray, " n"]) -> Batch:
    """A pool whose rows count so often."""
    weight = pool.weight * jnp.asarray(often, pool.weight.dtype)
    return replace(pool, weight=weight / jnp.mean(weight))
