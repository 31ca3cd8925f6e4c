"""``evaluate``: how good a solution is, judged with exact lower-level solutions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..keys import as_key
from ..lower.per_context import exact_lower, worst
from ..problem.data import Data, Product, Stream, levels
from ..problem.problem import Problem
from ..problem.study import check
from ..reduction.solution import Solution
from .estimates import mean_estimate

_STREAM_ROWS = 10_000


@dataclass(frozen=True)
class Evaluation:
    """Figures of merit over a data set, each mean with its standard error.

    - `loss`: ``F(x)``, the mean of ``f`` at the *exact* lower-level solutions.
    - `policy_error`: the mean of ``|y*(x, xi) - policy(xi)|^2``.
    - `x_error`: ``|x - x*|^2`` where the truth is known, else ``None``.
    - `trouble`: what went wrong with the exact solves, empty where nothing did.
    """

    loss: float
    loss_error: float
    policy_error: float
    policy_error_error: float
    x_error: float | None
    trouble: str

    def __repr__(self):
        x_error = "" if self.x_error is None else f", x_error={self.x_error:.3g}"
        trouble = f", trouble={self.trouble!r}" if self.trouble else ""
        return (
            f"Evaluation(loss={self.loss:.6g} +- {self.loss_error:.2g}, policy_error={self.policy_error:.3g} +- "
            f"{self.policy_error_error:.2g}{x_error}{trouble})"
        )


def square_distance(a: PyTree, b: PyTree) -> Array:
    """``|a - b|^2`` over all leaves."""
    gaps = jax.tree.map(lambda p, q: jnp.sum((jnp.asarray(p) - jnp.asarray(q)) ** 2), a, b)
    return sum(jax.tree.leaves(gaps))  # pyright: ignore[reportReturnType]


@eqx.filter_jit
def losses(objective: Callable, x: PyTree, y: PyTree, xi: Array, eta: PyTree, crossed: bool) -> Array:
    """``f`` or ``g`` at each context: with its own noise, or (crossed) averaged over all of it."""
    if not crossed:
        return jax.vmap(objective, in_axes=(None, 0, 0, 0))(x, y, xi, eta)
    over_data = lambda pair: jnp.mean(jax.vmap(lambda e: objective(x, pair[0], pair[1], e))(eta))
    return jax.lax.map(over_data, (y, xi))


def evaluate(
    problem: Problem, solution: Solution, samples: Data, truth: Any = None, draws: int = 1024, key: Any = 0
) -> Evaluation:
    """Judges ``solution.x`` and ``solution.policy`` on a data set, with the lower level solved exactly at each context.

    **Arguments:**

    - `samples`: data to judge by; not those it was solved from, if the figures are to say anything about new ones.
    - `truth`: the true ``x``, or an object that has it as ``.x``.
    - `draws`, `key`: how many draws of noise a context gets, where the exact lower level rests on
      ``problem.conditional``.

    Needs the conditional law of the noise: a lower level without noise, ``Product`` data, a ``Finite`` domain, or
    ``conditional``; raises otherwise, and says so.
    """
    check(problem, samples)
    above, below = levels(samples)
    base = as_key(key)
    if isinstance(above, Stream):
        above = above.draw(jax.random.fold_in(base, 1), _STREAM_ROWS)
    rows = above.context_rule() if isinstance(above, Product) else above
    exact = exact_lower(problem, solution.x, rows.xi, below, draws, base)
    eta = above.eta
    values = losses(problem.upper, solution.x, exact.y, rows.xi, eta, isinstance(above, Product))
    gaps = jax.vmap(square_distance)(exact.y, solution.policy(rows.xi))
    shares = np.asarray(rows.mean_one_weights(), dtype=float) / len(rows)
    loss, policy_error = (mean_estimate(table, shares) for table in (values, gaps))
    x_error = None
    if truth is not None:
        true_x = getattr(truth, "x", truth)
        if jax.tree.map(jnp.shape, true_x) != jax.tree.map(jnp.shape, solution.x):
            raise ValueError(f"truth has the shapes {jax.tree.map(jnp.shape, true_x)}, unlike solution.x.")
        x_error = float(square_distance(solution.x, true_x))
    figures = (float(loss), loss.error, float(policy_error), policy_error.error)
    return Evaluation(*figures, x_error, worst(exact))
