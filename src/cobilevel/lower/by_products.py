r"""The reduced problem at one ``x`` where its Hessian is too large to be formed: one compiled loop over all rows.

Newton steps by conjugate gradients, each as exact as it has to be; then the adjoint, from the last one. Where each row
has one function alone, the lower level is a problem of its own for each function, and all are solved side by side.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..basis import OneHot
from ..derivatives import AT_ONCE, Expansions, Ledger, conjugate_gradient, oracles
from ..reduction import Batch, Bilevel, EveryPair
from .damped_newton import ARMIJO, LENGTHS, ROUNDINGS

_RANK = 100  # products with the Hessian, from which its largest eigenvalues are known


class Nystrom(eqx.Module):
    r"""A preconditioner: about the inverse of a Hessian, up to a factor, from its largest eigenvalues, $\Lambda$ with
    eigenvectors $U$: $I + U (\Lambda_r \Lambda^{-1} - I) U^T$. One for each system."""

    vectors: Float[Array, "k n r"]
    shares: Float[Array, "k r 1"]

    def __call__(self, residual: Float[Array, "k n"]) -> Float[Array, "k n"]:
        if len(self.vectors) == 1:  # one matrix, and any number of right sides
            (U,) = self.vectors
            return residual + ((self.shares[0, :, 0] - 1) * (residual @ U)) @ U.T
        part = (self.shares - 1) * (jnp.swapaxes(self.vectors, 1, 2) @ residual[:, :, None])
        return residual + (self.vectors @ part)[:, :, 0]


class _Lower:
    """The lower level at one ``x``, a row for each system of its own; lives while a program is traced."""

    def __init__(self, reduced: Bilevel, x: PyTree, W: PyTree):
        self.reduced, self.x, self.batch = reduced, x, reduced.lower_source.whole()
        vector, self._unflatten = oracles.flatten(W)
        self.functions = len(jax.tree.leaves(W)[0])
        self.systems = self.functions if isinstance(_contexts(self.batch).features, OneHot) else 1
        self.start = vector.reshape(self.systems, -1)

    @property
    def side_by_side(self) -> int:
        """How many products are taken at once, as products of matrices: where pairs are not formed, each holds a ``y``
        for each context; else perhaps for each row."""
        size = self.start.size // self.functions
        held = len(_contexts(self.batch)) * size + len(self.batch)
        return max(1, 8 * AT_ONCE // held)

    def table(self, z: Array) -> PyTree:
        return self._unflatten(z.reshape(-1))

    def rows(self, W: PyTree) -> Float[Array, "k n"]:
        return oracles.flatten(W)[0].reshape(self.start.shape)

    def slope(self, z: Array) -> tuple[Array, Array]:
        (value, slope), _ = oracles.lower_slope(self.reduced, self.x, self.table(z), self.batch, Ledger.page())
        return value, self.rows(slope)

    def hessian(self, z: Array) -> Callable[[Array], Array]:
        """Products with the Hessian there."""
        product = oracles.hessian(self.reduced, self.x, self.table(z), self.batch)
        return lambda v: self.rows(product(self.table(v)))


def _contexts(batch: Batch | EveryPair) -> Batch:
    return batch.contexts if isinstance(batch, EveryPair) else batch


@eqx.filter_jit
def preconditioner(reduced: Bilevel, x: PyTree, W: PyTree) -> Nystrom:
    r"""From products of the Hessian $A$ at ``(x, W)`` with an orthonormal random table $\Omega$:
    $A \approx Y (\Omega^T Y)^{-1} Y^T$ with $Y = A \Omega$ (Frangella, Tropp and Udell, 2023)."""
    lower = _Lower(reduced, x, W)
    (k, n), dtype = lower.start.shape, lower.start.dtype
    probes = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (k, n, min(_RANK, n)), dtype))[0]
    images = jax.lax.map(lower.hessian(lower.start), jnp.moveaxis(probes, 2, 0))
    Y, least = jnp.moveaxis(images, 0, 2), jnp.finfo(dtype).eps
    root = lambda values: jnp.sqrt(jnp.maximum(values, 10 * least * values[:, -1:]))[:, None]
    middle, turn = jnp.linalg.eigh(jnp.swapaxes(probes, 1, 2) @ Y)
    half = Y @ (turn / root(middle))
    values, turn = jnp.linalg.eigh(jnp.swapaxes(half, 1, 2) @ half)
    vectors, shares = half @ (turn / root(values)), (root(values[:, :1]) / root(values)) ** 2
    sound = jnp.all(jnp.isfinite(vectors), axis=(1, 2), keepdims=True)
    return Nystrom(jnp.where(sound, vectors, 0), jnp.where(sound, jnp.swapaxes(shares, 1, 2), 1))


def preconditioned(expansions: Expansions, at: tuple[np.ndarray, np.ndarray] | None = None) -> Nystrom:
    """The preconditioner `at` some ``x`` and coefficients, or where it was made last."""
    return expansions.prepared(preconditioner, ["hessian_vector"] * _RANK, at)


@eqx.filter_jit
def minimised_by_products(
    reduced: Bilevel, x: PyTree, W: PyTree, precondition: Nystrom, accuracy: Any
) -> tuple[PyTree, Bool[Array, " k"], Float[Array, " k"], Any]:
    """The lower level at ``x`` minimised from ``W``; for each system, whether the coefficients are off by no more than
    a share `accuracy`, and the size of what is left of the gradient, as a share of that at the start of the problem;
    slopes and products spent."""
    lower, first = _Lower(reduced, x, W), _Lower(reduced, x, reduced.W0)
    z, solved, spent = _minimised(lower, precondition, accuracy)
    size = lambda slope: jnp.linalg.norm(slope, axis=1)
    left, start = size(lower.slope(z)[1]), size(first.slope(first.start)[1])
    solved = solved | (left <= accuracy * jnp.max(start))
    return lower.table(z), solved, left / jnp.maximum(start, jnp.finfo(left.dtype).tiny), spent


class Solved(NamedTuple):
    """The lower level solved at an ``x``, and what the upper one is there.

    `value` is corrected to first order for what the coefficients are off. `lower_gradient`: the size of what is left of
    it, for each system. `spent`: slopes of the lower level and products with its Hessian; `met`: the least curvature
    that the adjoint met.
    """

    W: PyTree
    adjoint: PyTree
    value: Float[Array, ""]
    gradient: PyTree
    lower_gradient: Float[Array, " k"]
    solved: Bool[Array, " k"]
    met: Any
    spent: Any


@eqx.filter_jit
def solved_by_products(
    reduced: Bilevel,
    x: PyTree,
    W: PyTree,
    adjoint: PyTree,
    precondition: Nystrom,
    accuracy: Any,
    steps: Any = 100,
    most: Any = 20_000,
) -> Solved:
    """From coefficients and an adjoint nearby, until the coefficients are off by a share `accuracy` of themselves, and
    the adjoint too, in the norm of the Hessian; by so many Newton `steps`, none to take the adjoint at ``W``, and
    `most` products for either."""
    lower, upper, page = _Lower(reduced, x, W), reduced.upper_source.whole(), Ledger.page()
    z, solved, spent = _minimised(lower, precondition, accuracy, steps, most)
    W = lower.table(z)
    (value, d1, d2), _ = oracles.upper_gradients(reduced, x, W, upper, page)
    right, guess = lower.rows(d2), lower.rows(adjoint)
    v, more, met = conjugate_gradient(lower.hessian(z), right, accuracy, most, guess, precondition)
    cross, _ = oracles.cross_product(reduced, x, W, lower.table(v), lower.batch, page)
    left = lower.slope(z)[1]
    lost = jnp.sum(v * left, axis=1)  # of the objective; where the solution is zero, coefficients are never close to it
    rounded = jnp.abs(lost) <= ROUNDINGS * jnp.finfo(v.dtype).eps * jnp.abs(value)
    return Solved(
        W=W,
        adjoint=lower.table(v),
        value=value - jnp.sum(lost),
        gradient=jax.tree.map(jnp.subtract, d1, cross),
        lower_gradient=jnp.linalg.norm(left, axis=1),
        solved=(solved | rounded) & (more < most),
        met=met,
        spent=(spent[0] + 1, spent[1] + more),
    )


def _minimised(
    lower: _Lower, precondition: Callable, accuracy: Any, steps: Any = 100, most: Any = 20_000
) -> tuple[Array, Bool[Array, " k"], tuple[Array, Array]]:
    """The coefficients, which systems are as exact as asked, and slopes and products spent.

    The decrement of a step, in the norm of the Hessian, is the distance to the minimum as a quadratic model sees it;
    the gradient after it tells how much of it is left.
    """
    start, eps, rough = lower.start, jnp.finfo(lower.start.dtype).eps, 0.1  # far off, more exact steps would be wasted
    dot = lambda a, b: jnp.sum(a * b, axis=1, keepdims=True)
    size = lambda slope: jnp.sqrt(dot(slope, precondition(slope)))

    def unfinished(now: Any) -> Array:
        *_, moved, solved, count, _, products = now
        return moved & ~jnp.all(solved) & (count < steps) & (products < most)

    def one(now: Any) -> Any:
        z, value, gradient, effort, _, solved, count, slopes, products = now
        product = lower.hessian(z)
        p, spent, _ = conjugate_gradient(product, -gradient, effort, most - products, precondition=precondition)
        p = jnp.where(solved, 0, jnp.where(dot(gradient, p) < 0, p, -precondition(gradient)))
        fall, noise, before = -dot(gradient, p), ROUNDINGS * eps * jnp.abs(value), size(gradient)
        left = lambda slope: jnp.where(before > 0, size(slope) / before, 0)

        def falls(trial: Any) -> Array:
            length, there, slope_there, _ = trial
            seen = there <= value - ARMIJO * length * jnp.sum(fall)
            return seen | (there <= value + noise) & jnp.all(solved | (left(slope_there) < 1))

        halve = lambda trial: (trial[0] / 2, *lower.slope(z + trial[0] / 2 * p), trial[3] + 1)
        first = (jnp.ones_like(value), *lower.slope(z + p), jnp.int32(1))
        length, there, after, tries = trial = jax.lax.while_loop(lambda t: ~falls(t) & (t[3] < LENGTHS), halve, first)
        moved, root = falls(trial), jnp.sqrt(fall)
        long = jnp.sqrt(jnp.maximum(dot(z, product(z)), 0)) + root
        off = jnp.where(long > 0, root / long, 0)
        ahead = off * left(after)  # of the coefficients, what is left
        effort = jnp.minimum(jnp.maximum(accuracy / (2 * jnp.maximum(ahead, eps)), ahead), rough)
        keep = lambda new, old: jnp.where(moved, new, old)
        done = jnp.where(moved, (ahead <= accuracy) & (length == 1), off <= jnp.maximum(accuracy, jnp.sqrt(eps)))
        return (
            keep(z + length * p, z), keep(there, value), keep(after, gradient), effort, moved, solved | done,
            count + 1, slopes + tries, products + spent + 1,
        )  # fmt: skip

    value, gradient = lower.slope(start)
    none, effort = jnp.int32(0), jnp.full((len(start), 1), rough, start.dtype)
    begin = (start, value, gradient, effort, jnp.asarray(True), size(gradient) == 0, none, none + 1, none)
    z, *_, solved, _, slopes, products = jax.lax.while_loop(unfinished, one, begin)
    return z, solved[:, 0], (slopes, products)


def _inverse(
    lower: _Lower, right: Float[Array, "c k n"], precondition: Nystrom, accuracy: Any, most: int = 2000
) -> tuple[Float[Array, "c k n"], Array]:
    """The inverse of the Hessian times tables of coefficients, and the products that took."""
    product = lower.hessian(lower.start)
    solve = lambda product, right: conjugate_gradient(product, right, accuracy, most, precondition=precondition)[:2]
    if lower.systems > 1:
        tables, spent = jax.lax.map(lambda one: solve(product, one), right)
        return tables, jnp.sum(spent)
    together = lambda rows: jax.lax.map(lambda v: product(v[None])[0], rows, batch_size=lower.side_by_side)
    rows, spent = solve(together, right[:, 0])
    return rows[:, None], spent * len(right)


def _moved(lower: _Lower, along: PyTree, precondition: Nystrom, accuracy: Any) -> tuple[Float[Array, "c k n"], Array]:
    W = lower.table(lower.start)
    right = lambda p: oracles.cross_along(lower.reduced, lower.x, W, p, lower.batch, Ledger.page())[0]
    return _inverse(lower, jax.lax.map(lambda p: -lower.rows(right(p)), along), precondition, accuracy)


class Curved(NamedTuple):
    """Along directions of ``x``, stacked: the Hessian of the reduced objective times each, how the coefficients move,
    and the products that took."""

    products: PyTree
    moved: PyTree
    spent: Array


@eqx.filter_jit
def curved_by_products(
    reduced: Bilevel, x: PyTree, W: PyTree, adjoint: PyTree, along: PyTree, precondition: Nystrom, accuracy: Any
) -> Curved:
    r"""With $\Lambda = f_\Phi - v^T \partial_2 g_\Phi$ and the adjoint held, along $p$ the coefficients move by $S p$,
    and $H p = d\,\partial_1 \Lambda + S^T d\, \partial_2 \Lambda$."""
    lower, upper, page = _Lower(reduced, x, W), reduced.upper_source.whole(), Ledger.page()
    rows, first = _moved(lower, along, precondition, accuracy)
    moved = jax.vmap(lower.table)(rows)
    bent = lambda both: oracles.curved(reduced, x, W, adjoint, *both, upper, lower.batch)
    in_x, in_W = jax.lax.map(bent, (along, moved))
    turned, second = _inverse(lower, jax.vmap(lower.rows)(in_W), precondition, accuracy)
    cross = jax.lax.map(lambda v: oracles.cross_product(reduced, x, W, lower.table(v), lower.batch, page)[0], turned)
    return Curved(jax.tree.map(jnp.subtract, in_x, cross), moved, first + second)


def curved_along(
    expansions: Expansions, point: Any, directions: Float[np.ndarray, "c dx"], accuracy: float
) -> tuple[Float[np.ndarray, "c dx"], Float[np.ndarray, "N dy c"]]:
    """The Hessian of the reduced objective at a point times directions, and how the coefficients move along them."""
    along = jax.tree.map(lambda *leaves: np.stack(leaves), *map(expansions.moved, directions))
    more = along, preconditioned(expansions), np.asarray(accuracy, expansions.dtype)
    seen: Curved = expansions.asked(curved_by_products, point.x, point.W, point.adjoint, more=more)
    spent = int(seen.spent)
    for kind, times in (("upper_gradient", 1), ("cross_product", 1), ("hessian_vector", spent)):
        expansions.charge(*[kind] * times * (1 if kind == "hessian_vector" else len(directions)))
    each = [jax.tree.map(lambda a, k=k: np.asarray(a)[k], (seen.products, seen.moved)) for k in range(len(directions))]
    products = np.stack([expansions.gradient(product) for product, _ in each])
    return products, np.stack([expansions.table(moved) for _, moved in each], axis=2)


def units_by_products(expansions: Expansions, point: Any, rows: int = 4) -> Float[np.ndarray, " dx"]:
    """The distance along each coordinate of ``x`` over which the objective curves by 1, from the lengths of the rows of
    its Hessian, from so many products with it, twice; infinite where it does not curve."""
    rng, root, row = np.random.default_rng(0), np.ones(len(point.x)), np.zeros(len(point.x))
    for _ in range(2):
        directions = rng.choice((-1.0, 1.0), (rows, len(root))) / root
        row = np.sqrt(np.mean((curved_along(expansions, point, directions, 0.1)[0] / root) ** 2, axis=0))
        root = root * np.sqrt(np.where(np.isfinite(row) & (row > 0), row, 1.0))
    with np.errstate(divide="ignore"):
        return np.where(row > 0, 1 / root, np.inf)
