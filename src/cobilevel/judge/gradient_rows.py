"""The upper level's samples by context, and the rows whose mean is the gradient of the contextual problem."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from ..derivatives import sensitivity_form, upper_derivatives
from ..problem import Finite, Problem, Study
from ..programs import Held, program, put
from .jackknife import covariance


class GradientRows(eqx.Module):
    """Rows whose mean is a gradient: by context (or joint sample), and by row of crossed data; with ``d2 f``.

    `drawn`: whether contexts are a sample, and not a law.
    """

    by_context: Float[Held, "n dx"]
    by_data: Float[Held, "rows dx"] | None
    d2: Float[Held, "n dy"]
    shares: Float[Held, " n"]
    drawn: bool = eqx.field(static=True)

    @property
    def mean(self) -> Float[np.ndarray, " dx"]:
        return np.asarray(self.shares, dtype=float) @ np.asarray(self.by_context, dtype=float)

    def __sub__(self, other: "GradientRows") -> "GradientRows":
        by_data = None if self.by_data is None or other.by_data is None else self.by_data - other.by_data
        return GradientRows(self.by_context - other.by_context, by_data, self.d2, self.shares, self.drawn)

    def covariance(self) -> Float[np.ndarray, "dx dx"]:
        """Of the mean: over independent rows; over contexts and over data where they are crossed."""
        spread = np.zeros((self.by_context.shape[1],) * 2)
        if self.drawn:
            spread = spread + covariance(np.asarray(self.by_context, float), np.asarray(self.shares, float))
        if self.by_data is not None:
            count = len(self.by_data)
            spread = spread + covariance(np.asarray(self.by_data, float), np.full(count, 1 / count))
        return spread

    def mean_without(self, left_out: Bool[np.ndarray, " rows"]) -> Float[np.ndarray, " dx"]:
        """The mean with some rows of the data left out."""
        table = np.asarray(self.by_context if self.by_data is None else self.by_data, dtype=float)
        weights = np.ones(len(table)) if self.by_data is not None else np.asarray(self.shares, dtype=float)
        weights = weights * ~left_out
        return weights @ table / weights.sum()

    def size(self) -> float:
        """The root mean square of the rows."""
        squares = np.sum(np.asarray(self.by_context, float) ** 2, axis=1)
        return float(np.sqrt(np.asarray(self.shares, float) @ squares))


class UpperContexts(eqx.Module):
    """The upper level's samples by context: `xi` each once, `place` of each row among them, `shares` of the rows.

    `crossed`: every context meets all the data; `drawn`: contexts are a sample, not a law.
    """

    xi: Shaped[Held, "contexts ..."]
    place: Int[Held, " n"]
    shares: Float[Held, " n"]
    eta: PyTree
    crossed: bool = eqx.field(static=True)
    drawn: bool = eqx.field(static=True)

    @staticmethod
    def of(study: Study) -> "UpperContexts":
        rows, domain = study.upper.contexts(), study.problem.domain
        shares: Any = rows.shares().astype(study.dtype)
        xi: Any = rows.xi
        place: Any = np.arange(len(rows))
        if isinstance(domain, Finite):
            values, found = np.unique(np.asarray(domain.index(xi)), return_inverse=True)
            xi, place = put(np.asarray(domain.values)[values]), found.ravel()
        eta = study.upper.eta  # pyright: ignore[reportAttributeAccessIssue]
        return UpperContexts(xi, place, shares, eta, study.upper.crossed, study.upper.law is None)

    def by_row(self, tree: PyTree) -> PyTree:
        """A table over contexts as one over the rows."""
        return jax.tree.map(lambda a: np.asarray(a)[np.asarray(self.place)], tree)

    def gradients(self, problem: Problem, x: PyTree, y: PyTree, s: Float[Held, "contexts dy dx"]) -> GradientRows:
        """``d1 f + s^T d2 f`` with ``y`` and ``s`` by context."""
        rows = _crossed_rows if self.crossed else _joint_rows
        y_rows, s_rows, xi = self.by_row((y, s, self.xi))
        by_context, by_data, d2 = rows(problem, x, y_rows, s_rows, self.shares, xi, self.eta)
        return GradientRows(by_context, by_data, d2, self.shares, self.drawn)


def _contract(d1: PyTree, d2: PyTree, s: Float[Held, "n dy dx"]) -> tuple[Float[Held, "n dx"], Float[Held, "n dy"]]:
    flat = [jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(part) for part in (d1, d2)]
    return sensitivity_form(flat[0], flat[1], s), flat[1]


@program
def _joint_rows(problem: Problem, x: PyTree, y: PyTree, s: Array, shares: Array, xi: Array, eta: PyTree) -> Any:
    _, d1, d2 = upper_derivatives(problem.upper, x, y, xi, eta)
    rows, flat = _contract(d1, d2, s)
    return rows, None, flat


@program
def _crossed_rows(problem: Problem, x: PyTree, y: PyTree, s: Array, shares: Array, xi: Array, eta: PyTree) -> Any:
    """Context by context, each with all the data."""
    count = len(jax.tree.leaves(eta)[0])

    def one(total, item):
        here, slope, share, context = item
        again = jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *a.shape)), (here, context, slope))
        _, d1, d2 = upper_derivatives(problem.upper, x, again[0], again[1], eta)
        rows, flat = _contract(d1, d2, again[2])
        return total + (share * rows).astype(total.dtype), (jnp.mean(rows, axis=0), jnp.mean(flat, axis=0))

    empty = jnp.zeros((count, s.shape[2]), s.dtype)
    by_data, (by_context, d2) = jax.lax.scan(one, empty, (y, s, shares, xi))
    return by_context, by_data, d2
