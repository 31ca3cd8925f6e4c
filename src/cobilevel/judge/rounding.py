"""What single precision costs at an answer: the gradient there, computed in both."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, PyTree

from .. import trees
from ..answer import Solution, as_solved
from ..derivatives import Ledger, oracles
from ..problem import Data, Problem, Study, double, precision_for
from ..programs import Held, program
from ..reduction import Batch, Bilevel, Table, batch_of
from .evaluate import in_precision_of

_COMPARED_ROWS = 2048  # samples over which the two gradients are taken


@program
def _slopes(bare: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> PyTree[Float[Held, "..."]]:
    (_, d1, d2), _ = oracles.upper_gradients(bare, x, W, batch, Ledger.page())
    return d1, d2


def _slopes_in(precision: str, problem: Problem, solution: Solution, samples: Data) -> PyTree:
    wanted = precision_for(problem, samples, precision)
    study = Study.of(as_solved(problem, solution), samples, wanted)
    point = in_precision_of(study, solution)
    batch = batch_of(point.basis, study.upper.look(jax.random.key(0), _COMPARED_ROWS).samples)
    bare = Bilevel(study.problem, Table(batch), Table(batch), point.W)
    return _slopes(bare, point.x, point.W, batch)


def rounding_error(problem: Problem, solution: Any, samples: Data) -> float:
    """How far the gradients of ``f_Phi`` at an answer are off in single precision, as a share of their size."""
    single = _slopes_in("single", problem, solution, samples)
    with double():
        exact = _slopes_in("double", problem, solution, samples)
        gap = trees.norm(trees.sub(jax.tree.map(lambda a: jnp.asarray(a, float), single), exact))
        return float(gap / jnp.maximum(trees.norm(exact), jnp.finfo(float).tiny))
