r"""Exact lower-level solutions $y^\star(x, \xi)$, for many contexts at once, and derivatives along them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from ..derivatives import hessian_product, local_model, lower_derivatives, value_and_slope
from ..keys import as_key
from ..problem import Finite, Problem, Study
from ..programs import Held, program
from .damped_newton import Curvature, Dense, MatrixFree, minimise

_DENSE_Y = 64  # the largest y whose Hessian is formed at each context
_WORK = 2_000_000  # numbers that contexts solved together may take, about


class LowerSolution(eqx.Module):
    """Exact lower-level solutions, one a context.

    `noise`: by how much a squared distance to each is too large on average, where conditional means are over draws.
    """

    y: PyTree[Shaped[Held, "n ..."]]
    converged: Bool[Held, " n"]
    gradient: Float[Held, " n"]
    convex: Bool[Held, " n"]
    noise: Float[Held, " n"]


MISSING = (
    "exact lower-level solutions need the law of eta given each context, and joint samples alone do not show it: the "
    "lower objective depends on eta and every context was seen about once. Judge with cb.certify, which takes joint "
    "samples; or give Problem(conditional=draw), use Product data or a Finite domain."
)


class Law(eqx.Module):
    """The lower level's noise given each of some contexts, so that conditional means are means over `rows`.

    Either rows of data, the same for all contexts, with weights of shape ``(rows,)``, or ``(n, rows)`` where they
    differ; or a key for each context, from which ``problem.conditional`` draws.
    """

    xi: Shaped[Held, "n ..."]
    eta: PyTree
    weights: Array | None
    keys: Array | None
    rows: int = eqx.field(static=True)

    def without(self, left_out: Bool[Held, " rows"]) -> "Law":
        """The same law with some rows of the data left out."""
        kept = (~left_out).astype(self.xi.dtype if jnp.issubdtype(self.xi.dtype, jnp.floating) else float)
        if self.weights is None:
            return replace(self, weights=kept)
        weights = self.weights * kept
        some = jnp.sum(weights, axis=-1, keepdims=True) > 0  # a context that would have none left keeps its rows
        return replace(self, weights=jnp.where(some, weights, self.weights))


def law_at(study: Study, xi: Shaped[Held, "n ..."], draws: int = 1024, key: Any = 0) -> Law:
    """The conditional law at the contexts: exact where ``lower`` has no noise; all data for ``Product``; `draws` draws
    where the problem has a ``conditional`` sampler; the samples of each value for a ``Finite`` domain. Else raises."""
    problem = study.problem
    lower: Any = study.lower  # what it is, its own answers say
    xi, domain = jnp.asarray(xi), problem.domain
    if not study.lower_noise:
        return Law(xi, jax.tree.map(lambda a: a[:1], lower.example().eta), None, None, 1)
    if lower.crossed:
        return Law(xi, lower.eta, None, None, lower.count)
    if problem.conditional is not None:
        return Law(xi, None, None, jax.random.split(as_key(key), len(xi)), draws)
    if isinstance(domain, Finite) and not lower.endless:
        same = domain.index(lower.xi)[None, :] == domain.index(xi)[:, None]
        weights = jnp.where(same, lower.mean_one_weights(), 0)
        unseen = np.asarray(jnp.sum(weights, axis=1) == 0)
        if unseen.any():
            raise ValueError(
                f"the lower level has no samples at {int(unseen.sum())} of {len(unseen)} contexts, first at "
                f"{np.asarray(xi)[unseen][0]}, so its solution there is unknown. Leave them out, or add samples."
            )
        return Law(xi, lower.eta, weights, None, len(lower))
    raise ValueError(MISSING)


def law_is_known(study: Study) -> bool:
    """Whether the data show the conditional law of the noise, so that ``law_at`` has an answer."""
    known = not study.lower_noise or study.lower.crossed or study.problem.conditional is not None
    return known or (isinstance(study.problem.domain, Finite) and not study.lower.endless)


def exact_lower(
    study: Study,
    x: PyTree,
    xi: Shaped[Held, "n ..."],
    draws: int = 1024,
    key: Any = 0,
    tolerance: float | None = None,
    start: PyTree | None = None,
) -> LowerSolution:
    r"""$y^\star(x, \xi) = \arg\min_y E[g(x, y, \xi, \eta) \mid \xi]$ for each context, from ``y0``
    or from `start`, one row a context.

    With the conditional means of ``law_at``, solved until the gradient is `tolerance` (1e-10, or what the precision
    allows) of its size at ``y0``.
    """
    problem = study.problem
    if isinstance(problem.domain, Finite):  # each value once
        values, first, place = np.unique(
            np.asarray(problem.domain.index(jnp.asarray(xi))), return_index=True, return_inverse=True
        )
        law = law_at(study, jnp.asarray(problem.domain.values)[values], draws, key)
        start = None if start is None else jax.tree.map(lambda a: a[first], start)
        return jax.tree.map(lambda a: a[place.ravel()], solve_each(problem, x, law, tolerance, start))
    return solve_each(problem, x, law_at(study, xi, draws, key), tolerance, start)


def _objective(problem: Problem, unravel: Callable, law: Law, context: Array, weight: Any, key: Any):
    """The conditional mean of ``g`` at one context, as a function of ``x`` and the flattened ``y``."""
    data = law.eta if key is None else problem.conditional(key, context, law.rows)  # pyright: ignore

    def mean(x, z):
        values = jax.vmap(lambda e: problem.lower(x, unravel(z), context, e), axis_size=law.rows)(data)
        return jnp.mean(values) if weight is None else (weight @ values) / jnp.sum(weight)

    return mean


def _each(one: Callable, problem: Problem, law: Law, work: int, *more: Any) -> Any:
    """Maps over the contexts of a law, several at a time."""
    shared = law.weights is not None and law.weights.ndim == 1
    table = (law.xi, None if shared else law.weights, law.keys, *more)
    weight_of = lambda weight: law.weights if shared else weight
    run = lambda item: one(item[0], weight_of(item[1]), item[2], *item[3:])
    return jax.lax.map(run, table, batch_size=min(max(1, _WORK // max(1, law.rows * work)), len(law.xi)))


def _slopes_by_draw(
    problem: Problem, x: PyTree, unravel: Callable, z: Array, law: Law, context: Array, key: Any
) -> Array:
    """``d2 g`` at one context, draw by draw."""
    one = lambda e: value_and_slope(lambda p: problem.lower(x, unravel(p), context, e))(z)[1]
    return jax.vmap(one)(problem.conditional(key, context, law.rows))  # pyright: ignore[reportOptionalCall]


def _noise_of_minimum(hessian: Float[Array, "dy dy"], slopes: Float[Array, "rows dy"]) -> Float[Array, ""]:
    """The expected square of how far the minimum of a mean over draws is from that of its expectation."""
    steps = jnp.linalg.solve(hessian, (slopes - jnp.mean(slopes, axis=0)).T)
    return jnp.sum(steps**2) / (len(slopes) * (len(slopes) - 1))


@program
def solve_each(problem: Problem, x: PyTree, law: Law, tolerance: float | None = None, start: Any = None):
    """The minimiser at each context of a law, from ``y0`` or from `start`, one row a context."""
    first_y, unravel = ravel_pytree(problem.y0)
    x = jax.tree.map(jnp.asarray, x)
    share = max(1e-10, 100 * float(jnp.finfo(first_y.dtype).eps)) if tolerance is None else tolerance
    share = jnp.asarray(share, first_y.dtype) / 2  # half, so that a rounded check still passes

    def one(context, weight, key, begin):
        mean = _objective(problem, unravel, law, context, weight, key)
        objective = lambda z: mean(x, z)
        slope = value_and_slope(objective)
        if len(first_y) <= _DENSE_Y:
            curvature: Curvature = Dense(local_model(objective))
        else:
            curvature = MatrixFree(slope, hessian_product(objective))
        first = jnp.linalg.norm(slope(first_y)[1])
        found = minimise(curvature, first_y if begin is None else ravel_pytree(begin)[0], share * first)
        convex, noise = jnp.asarray(True), jnp.zeros((), first_y.dtype)
        if isinstance(curvature, Dense):
            eigenvalues = jnp.linalg.eigvalsh(found.hessian)
            convex = eigenvalues[0] >= -1e-8 * jnp.max(jnp.abs(eigenvalues))
            if key is not None and law.rows > 1:
                slopes = _slopes_by_draw(problem, x, unravel, found.point, law, context, key)
                noise = _noise_of_minimum(found.hessian, slopes)
        size = jnp.linalg.norm(found.gradient) / jnp.maximum(first, jnp.finfo(first.dtype).tiny)
        return unravel(found.point), found.converged, size, convex, noise

    work = len(first_y) * min(len(first_y), _DENSE_Y)
    return LowerSolution(*_each(one, problem, law, work, start))


class LocalLower(eqx.Module):
    """The conditional lower level at given contexts and decisions, flattened: ``d2 G``, ``d22 G`` and ``d21 G``."""

    slope: Float[Held, "n dy"]
    hessian: Float[Held, "n dy dy"]
    cross: Float[Held, "n dy dx"]


@program
def lower_along(problem: Problem, x: PyTree, y: PyTree, law: Law) -> LocalLower:
    """Derivatives of the conditional mean of ``g`` at each context of a law and its ``y``, one row a context."""
    _, unravel = ravel_pytree(problem.y0)
    point, unravel_x = ravel_pytree(x)

    def one(context, weight, key, here):
        mean = _objective(problem, unravel, law, context, weight, key)
        return lower_derivatives(lambda p, z: mean(unravel_x(p), z), point, ravel_pytree(here)[0])

    size = problem.sizes[1]
    return LocalLower(*_each(one, problem, law, size * (size + len(point)), y))


def trouble_with(solution: LowerSolution) -> str:
    """How the exact solves went, in words; empty where all is well."""
    failed, bent = int(np.sum(~np.asarray(solution.converged))), int(np.sum(~np.asarray(solution.convex)))
    count = len(solution.converged)
    words = []
    if failed:
        words.append(f"{failed} of {count} exact lower-level solves did not converge")
    if bent:
        words.append(f"the lower level is not convex at {bent} of {count} solutions")
    return "; ".join(words)
