r"""Exact lower-level solutions $y^\star(x, \xi)$, for many contexts at once, and derivatives along them."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from ..basis import OneHot
from ..derivatives import AT_ONCE, LowerRows, RowBlocks, RowDerivatives, Sizes
from ..ground import Held, as_key, as_rows, flattened, put, shaped_like
from ..problem import Finite, Problem
from ..reduction import Batch, Bilevel, EveryPair, Table
from ..study import Study
from .by_products import minimised_by_products, preconditioner
from .damped_newton import SOLVED, Dense, minimise

DENSE_Y = 64  # the largest y whose Hessian is formed at each context
_HELD = 4 * AT_ONCE  # numbers that are drawn once and kept
_FEW_CROSSED = 256  # numbers of d21 g that are computed in any case: the program is then the one of the solver


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
    "exact lower-level solutions need the law of eta given each context, which joint samples alone do not show: the "
    "lower objective depends on eta, and every context was seen about once. Judge with cb.certify, which takes joint "
    "samples; or use Problem(conditional=draw), Product data or a Finite domain."
)


class Law(eqx.Module):
    """The lower level's noise given each of some contexts, so that conditional means are means over `rows`.

    Either rows of data, the same for all contexts, with weights of shape ``(rows,)``, or ``(n, rows)`` where they
    differ; or a key for each context, from which ``problem.conditional`` draws, and what it has drawn where that fits.
    """

    xi: Shaped[Held, "n ..."]
    eta: PyTree
    weights: Float[np.ndarray, "..."] | None
    keys: Array | None
    rows: int = eqx.field(static=True)

    def without(self, left_out: Bool[Held, " rows"]) -> "Law":
        """The same law with some rows of the data left out."""
        kept = (~left_out).astype(float)
        if self.weights is None:
            return replace(self, weights=kept)
        weights = self.weights * kept
        some = np.sum(weights, axis=-1, keepdims=True) > 0  # a context that would have none left keeps its rows
        return replace(self, weights=np.where(some, weights, self.weights))


def law_at(study: Study, xi: Shaped[Held, "n ..."], draws: int = 1024, key: Any = 0) -> Law:
    """The conditional law at the contexts: exact where ``lower`` has no noise; all data for ``Product``; `draws` draws
    where the problem has a ``conditional`` sampler; the samples of each value for a ``Finite`` domain. Else raises."""
    problem = study.problem
    lower: Any = study.lower  # what it is, its own answers say
    xi, domain = np.asarray(xi), problem.domain
    if not study.lower_noise:
        return Law(xi, jax.tree.map(lambda a: a[:1], lower.example().eta), None, None, 1)
    if lower.crossed:
        return Law(xi, lower.eta, None, None, lower.count)
    if problem.conditional is not None:
        law = Law(xi, None, None, jax.random.split(as_key(key), len(xi)), draws)
        numbers = len(xi) * draws * sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(lower.example().eta))
        return replace(law, eta=_drawn(problem, law, slice(None))) if numbers <= _HELD else law
    if isinstance(domain, Finite) and not lower.endless:
        same = np.asarray(domain.index(lower.xi))[None, :] == np.asarray(domain.index(xi))[:, None]
        weights = np.where(same, np.asarray(lower.mean_one_weights(), float), 0.0)
        unseen = np.sum(weights, axis=1) == 0
        if unseen.any():
            raise ValueError(
                f"the lower level has no samples at {int(unseen.sum())} of {len(unseen)} contexts, first at "
                f"{np.asarray(xi)[unseen][0]}, so its solution there is unknown. Drop these contexts, or add samples."
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
    problem, place = study.problem, None
    if isinstance(problem.domain, Finite):  # each value once
        index = np.asarray(problem.domain.index(np.asarray(xi)))
        values, first, place = np.unique(index, return_index=True, return_inverse=True)
        xi = np.asarray(problem.domain.values)[values]
        start = None if start is None else jax.tree.map(lambda a: np.asarray(a)[first], start)
    solution = solve_each(problem, x, law_at(study, xi, draws, key), tolerance, start)
    return solution if place is None else jax.tree.map(lambda a: a[place.ravel()], solution)


class Means:
    """The conditional lower level at some contexts of a law: means over the rows that each of them has."""

    def __init__(self, problem: Problem, xi: np.ndarray, eta: PyTree, weights: np.ndarray, crossed: bool = False):
        """`eta`: one row after the other, those of the first context first; `weights`: a row for each context."""
        self.problem, self.sizes = problem, _sizes(problem, crossed)
        self.count, self.rows = weights.shape
        self.dtype = np.dtype(jax.tree.leaves(problem.y0)[0].dtype)
        self.blocks = RowBlocks(np.repeat(xi, self.rows, axis=0), eta, self.dtype, _numbers(self.sizes))
        self.weights = weights / weights.sum(axis=1, keepdims=True)
        self._last: tuple[np.ndarray, np.ndarray, LowerRows, np.ndarray] | None = None  # asked for twice at both ends

    @staticmethod
    def of(problem: Problem, law: Law, part: slice, crossed: bool) -> "Means":
        """Some of the contexts of a law."""
        xi = np.asarray(law.xi)[part]
        if law.keys is None:
            eta = jax.tree.map(lambda a: np.tile(np.asarray(a), (len(xi), *[1] * (a.ndim - 1))), law.eta)
        else:
            drawn = _drawn(problem, law, part) if law.eta is None else jax.tree.map(lambda a: a[part], law.eta)
            eta = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), drawn)
        weights = np.ones(law.rows) if law.weights is None else law.weights
        weights = weights[part] if weights.ndim == 2 else np.broadcast_to(weights, (len(xi), law.rows))
        return Means(problem, xi, eta, weights, crossed)

    def _mean(self, table: np.ndarray) -> np.ndarray:
        table = table.reshape(self.count, self.rows, *table.shape[1:])
        return table[:, 0] if self.rows == 1 else np.einsum("kr,kr...->k...", self.weights, table)

    def by_row(self, x: np.ndarray, y: Float[np.ndarray, "k dy"]) -> LowerRows:
        """Row by row."""
        derivatives = RowDerivatives.lower(self.problem.lower, self.blocks, self.sizes.crossed)
        return self.sizes.split_lower(derivatives.table(x, np.repeat(y, self.rows, axis=0)))

    def at(self, x: np.ndarray, y: Float[np.ndarray, "k dy"]) -> LowerRows:
        """Derivatives of the means, a row for each context."""
        return self._at(x, y)[0]

    def slopes(self, x: np.ndarray, y: Float[np.ndarray, "k dy"]) -> Float[np.ndarray, "k rows dy"]:
        """``d2 g`` of the rows of each context."""
        return self._at(x, y)[1]

    def _at(self, x: np.ndarray, y: np.ndarray) -> tuple[LowerRows, np.ndarray]:
        if self._last is None or not (np.array_equal(self._last[0], x) and np.array_equal(self._last[1], y)):
            rows = self.by_row(x, y)
            slopes = rows.slope.reshape(self.count, self.rows, -1).copy()
            self._last = x, y.copy(), LowerRows(*map(self._mean, rows)), slopes
        return self._last[2:]

    def objective(self, x: np.ndarray) -> Dense:
        """The means as functions of ``y``, to be minimised."""
        return Dense(lambda y: self.at(x, y)[:3], float(np.finfo(self.dtype).eps))


def _drawn(problem: Problem, law: Law, part: slice) -> PyTree:
    """What the conditional sampler draws at some contexts: rows of each."""
    keys: Any = law.keys
    drawn = _drawn_at(problem.conditional, keys[part], jnp.asarray(law.xi)[part], law.rows)
    return jax.tree.map(np.asarray, drawn)


@eqx.filter_jit
def _drawn_at(draw: Any, keys: Array, xi: Array, rows: int) -> PyTree:
    return jax.vmap(lambda key, context: draw(key, context, rows))(keys, xi)


def _sizes(problem: Problem, crossed: bool) -> Sizes:
    dx, dy = problem.sizes
    return Sizes(dx, dy, crossed or dx * dy <= _FEW_CROSSED)


def _numbers(sizes: Sizes) -> int:
    """Those that a row takes."""
    return sizes.lower if sizes.dy <= DENSE_Y or sizes.crossed else 1 + sizes.dy


def _in_parts(problem: Problem, law: Law, crossed: bool) -> Iterator[tuple[slice, Means]]:
    """The contexts of a law, so many at a time that their derivatives fit."""
    each = max(1, AT_ONCE // (law.rows * _numbers(_sizes(problem, crossed))))
    for begin in range(0, len(law.xi), each):
        part = slice(begin, min(begin + each, len(law.xi)))
        yield part, Means.of(problem, law, part, crossed)


def solve_each(
    problem: Problem, x: PyTree, law: Law, tolerance: float | None = None, start: Any = None
) -> LowerSolution:
    """The minimiser at each context of a law, from ``y0`` or from `start`, one row a context."""
    return _solve_each(problem, x, law, tolerance, start, False)[0]


def solve_along(problem: Problem, x: PyTree, law: Law) -> tuple[LowerSolution, LowerRows]:
    """The same, and derivatives of the conditional mean of ``g`` there."""
    return _solve_each(problem, x, law, None, None, True)


def _solve_each(
    problem: Problem, x: PyTree, law: Law, tolerance: float | None, start: Any, crossed: bool
) -> tuple[LowerSolution, Any]:
    y0, at, dtype = flattened(problem.y0), flattened(x), jax.tree.leaves(problem.y0)[0].dtype
    share = max(1e-10, 100 * float(np.finfo(dtype).eps)) if tolerance is None else tolerance
    begin = np.tile(y0, (len(law.xi), 1)) if start is None else as_rows(start)
    solved, along = [], []
    if len(y0) > DENSE_Y:
        each = max(1, len(law.xi) if law.keys is None else AT_ONCE // (law.rows * len(y0)))
        parts = [slice(k, k + each) for k in range(0, len(law.xi), each)]
        solved = [_solved_by_products(problem, at, law, part, begin[part], share) for part in parts]
        if crossed:
            along = [lower_along(problem, at, np.concatenate([y for y, *_ in solved]), law)]
    for part, means in _in_parts(problem, law, crossed) if not solved else ():
        solved.append(_solved(means, at, y0, begin[part], share / 2, law))
        along += [means.at(at, solved[-1][0])] if crossed else []
    joined = lambda parts: [np.concatenate(each) for each in zip(*parts, strict=True)]
    (y, *rest), like = joined(solved), jax.tree.map(lambda leaf: np.empty((1, *np.shape(leaf))), problem.y0)
    return LowerSolution(shaped_like(like, y, dtype, 1), *rest), LowerRows(*joined(along)) if crossed else None


def _solved(
    means: Means, x: np.ndarray, y0: np.ndarray, begin: np.ndarray, share: float, law: Law
) -> tuple[np.ndarray, ...]:
    """Minimisers at some contexts, with what ``LowerSolution`` says of them; half the tolerance is asked for, so that a
    rounded check still passes."""
    objective = means.objective(x)
    first = np.linalg.norm(objective.local(np.tile(y0, (means.count, 1)))[1], axis=1)
    end = minimise(objective, begin, share * first)
    convex, noise = np.ones(means.count, bool), np.zeros(means.count)
    if isinstance(objective, Dense):
        finite = np.isfinite(end.hessian).all(axis=(1, 2))
        values = np.linalg.eigvalsh(np.where(finite[:, None, None], end.hessian, np.eye(len(y0))))
        convex = finite & (values[:, 0] >= -1e-8 * np.abs(values).max(axis=1))
        if law.keys is not None and law.rows > 1:  # the variance of the minimum of a mean over draws
            slopes = means.slopes(x, end.point)
            apart = np.linalg.solve(end.hessian, np.swapaxes(slopes - slopes.mean(axis=1, keepdims=True), 1, 2))
            noise = np.sum(apart**2, axis=(1, 2)) / (law.rows * (law.rows - 1))
    size = np.linalg.norm(end.gradient, axis=1) / np.maximum(first, np.finfo(float).tiny)
    return end.point, end.converged, size, convex, noise


def each_context(
    problem: Problem, law: Law, shares: Float[np.ndarray, " m"] | None = None, part: slice = slice(None)
) -> Bilevel:
    """The lower level at some contexts of a law as one reduced problem, with a function for each of them; `shares`: of
    the contexts, by default equal ones."""
    xi, dtype = np.asarray(law.xi)[part], jax.tree.leaves(problem.y0)[0].dtype
    m, weights = len(xi), law.weights
    often_met = np.ones(m) if shares is None else m * shares
    batch = lambda place, eta, weight: Batch(
        OneHot(put(place), put(np.ones(len(place), dtype)), m),
        put(xi[place]),
        put(eta),
        put((weight * often_met[place]).astype(dtype)),
    )
    if law.keys is not None:
        drawn = _drawn(problem, law, part) if law.eta is None else jax.tree.map(lambda a: a[part], law.eta)
        eta = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), drawn)
        source = Table(batch(np.repeat(np.arange(m), law.rows), eta, np.ones(m * law.rows)))
    elif law.rows == 1:  # no noise, and perhaps no data at all
        source = Table(batch(np.arange(m), jax.tree.map(lambda a: np.repeat(a, m, axis=0), law.eta), np.ones(m)))
    elif weights is not None and weights.ndim == 2:
        place, row = np.nonzero(weights[part])
        share = weights[part][place, row] / weights[part].sum(axis=1)[place]
        source = Table(batch(place, jax.tree.map(lambda a: np.asarray(a)[row], law.eta), share * len(row) / m))
    else:
        often = None if weights is None else put((weights / weights.mean()).astype(dtype))
        source = EveryPair(batch(np.arange(m), None, np.ones(m)), put(law.eta), often)
    W0 = put(jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], m, axis=0), problem.y0))
    return Bilevel(problem, source, source, W0)


def _solved_by_products(
    problem: Problem, x: np.ndarray, law: Law, part: slice, begin: np.ndarray, share: float
) -> tuple[np.ndarray, ...]:
    """The same for a large ``y``: side by side, each by products."""
    reduced = each_context(problem, law, part=part)
    x0, W = (
        shaped_like(like, a, reduced.dtype, k) for like, a, k in ((problem.x0, x[None], 0), (reduced.W0, begin, 1))
    )
    share = max(
        share / 100, float(np.finfo(reduced.dtype).eps) ** SOLVED
    )  # of coefficients, of which gradients are larger
    y, solved, left, _ = minimised_by_products(reduced, x0, W, preconditioner(reduced, x0, W), np.asarray(share))
    none = np.zeros(len(begin))
    return as_rows(y), np.asarray(solved), np.asarray(left, float), np.ones(len(begin), bool), none


def lower_along(problem: Problem, x: PyTree, y: PyTree, law: Law) -> LowerRows:
    """Derivatives of the conditional mean of ``g`` at each context of a law and its ``y``, one row a context."""
    at, table = flattened(x), as_rows(y)
    parts = [means.at(at, table[part]) for part, means in _in_parts(problem, law, True)]
    return LowerRows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def trouble_with(solution: LowerSolution) -> str:
    """How the exact solves went, in words; empty where all is well."""
    failed, bent = int(np.sum(~np.asarray(solution.converged))), int(np.sum(~np.asarray(solution.convex)))
    count = len(solution.converged)
    words = [f"{failed} of {count} exact lower-level solves did not converge"] if failed else []
    words += [f"the lower level is not convex at {bent} of {count} solutions"] if bent else []
    return "; ".join(words)
