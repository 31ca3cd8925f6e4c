r"""The hypergradient of the reduced problem, solvers of its linear system, and directions of methods without any.

$$\nabla F_\Phi = \partial_1 f_\Phi - \partial_{12} g_\Phi v, \qquad \partial_{22} g_\Phi v = \partial_2 f_\Phi .$$

The expectations stand inside the inverse: this is a Galerkin projection, not an average of per-context inverses.
Signs are fixed here and nowhere else.
"""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..ground import Held, trees, whole
from ..reduction import Batch, Bilevel
from . import oracles
from .ledger import Ledger

Draw = Callable[[Any], Batch]  # from the number of a batch, from 0 on, to the batch
# ``(reduced, x, W, b, draw, ledger)`` to ``v`` in ``d22 g_Phi v = b``, about, and the ledger
LinearSolve = Callable[[Bilevel, PyTree, PyTree, PyTree, Draw, Ledger], tuple[PyTree, Ledger]]


class Factored(eqx.Module):
    """Solves with an estimate of the Hessian that was factorised before: `solve` maps flattened ``b`` to ``v``."""

    solve: Callable[[Array], Array]

    def __call__(self, reduced, x, W, b, draw, ledger):
        right, unflatten = oracles.flatten(b)
        return unflatten(self.solve(right)), ledger


class ConjugateGradient(eqx.Module):
    """Conjugate gradients on Hessian-vector products; ends at `tolerance` (relative residual) or after `steps`.

    ``v`` is NaN where a direction of nonpositive curvature turned up. `start` is a first guess.
    """

    tolerance: Any = 1e-12
    steps: int = eqx.field(static=True, default=500)
    start: PyTree[Array] | None = None

    def __call__(self, reduced, x, W, b, draw, ledger):
        batch = draw(0)
        right, unflatten = oracles.flatten(b)

        def product(vector):
            out, _ = oracles.hessian_vector(reduced, x, W, unflatten(vector), batch, ledger)
            return oracles.flatten(out)[0]

        start = None if self.start is None else oracles.flatten(self.start)[0]
        v, spent, curvature = conjugate_gradient(product, right, self.tolerance, self.steps, start)
        return unflatten(jnp.where(curvature > 0, v, jnp.nan)), ledger.add("hessian_vector", batch, spent)


class Neumann(eqx.Module):
    r"""The truncated Neumann series on fresh batches $H_k$, with `terms` factors $K$ and scale `step` $s$.

    `kind="sum"` is stocBiO's estimate $s \sum_{q=0}^{K} \prod_{k=1}^{q} (I - s H_k) b$. At curvature $\lambda$ it
    recovers the share $1 - (1 - s\lambda)^{K+1}$ of the inverse, so its bias fades only when $s \lambda K$ is large for
    every $\lambda$. `kind="random"` has the same mean for one term less, at half the cost and with more noise (BSA,
    TTSA, SUSTAIN): $K s \prod_{k=1}^{p} (I - s H_k) b$ with `chosen` $p$ uniform on $0..K-1$. `kind="product"` is the
    bare product $s \prod_{k=1}^{K} (I - s H_k) b$ that the paper prints; it does not estimate an inverse and is kept
    for comparison.
    """

    terms: Any
    step: Any
    kind: Literal["sum", "product", "random"] = eqx.field(static=True, default="sum")
    chosen: Any = None

    def __check_init__(self):
        if not eqx.is_array(self.terms):
            whole("Neumann: terms", self.terms, 0)
        if self.kind not in ("sum", "product", "random"):
            raise ValueError(f'Neumann: kind must be "sum", "product" or "random", got {self.kind!r}.')

    def __call__(self, reduced, x, W, b, draw, ledger):
        def factor(number, carry):
            power, total = carry
            product, _ = oracles.hessian_vector(reduced, x, W, power, draw(number), Ledger.page())
            power = trees.step(power, self.step, product)
            return power, trees.add(total, power) if self.kind == "sum" else total

        factors = self.chosen if self.kind == "random" else self.terms
        power, total = jax.lax.fori_loop(0, factors, factor, (b, b))
        ledger = ledger.add_each("hessian_vector", draw, factors)
        if self.kind == "sum":
            return trees.scale(self.step, total), ledger
        times = jnp.asarray(self.terms if self.kind == "random" else 1, jnp.result_type(float))
        return trees.scale(self.step * times.astype(jnp.result_type(self.step)), power), ledger


def conjugate_gradient(
    product: Callable,
    right: Float[Array, "*k n"],
    tolerance: Any,
    steps: int,
    guess: Any = None,
    precondition: Callable = lambda residual: residual,
):
    """Solves ``A v = right`` for positive definite ``A``: ``(v, products spent, least curvature met)``.

    Where a direction of nonpositive curvature turns up it stops with what it has, so that ``v`` stays a direction
    along which the quadratic decreases; the curvature returned says so. `precondition`: about the inverse of ``A``; the
    residual is measured in its norm. Rows of `right` are systems of their own, solved side by side.
    """
    dot = lambda a, b: jnp.sum(a * b, axis=-1, keepdims=True)
    goal = tolerance * jnp.sqrt(dot(right, precondition(right)))
    going = lambda rho, curvature: (jnp.sqrt(rho) > goal) & (curvature > 0)

    def unfinished(carry):
        *_, rho, spent, curvature = carry
        return jnp.any(going(rho, curvature)) & (spent < steps)

    def advance(carry):
        v, residual, direction, rho, spent, curvature = carry
        on, image = going(rho, curvature), product(direction)
        bend = dot(direction, image)
        along = bend / jnp.maximum(dot(direction, direction), jnp.finfo(right.dtype).tiny)
        curvature = jnp.where(on, jnp.minimum(curvature, along), curvature)
        length = jnp.where(on & (bend > 0), rho / bend, 0)
        v, residual = v + length * direction, residual - length * image
        ahead = precondition(residual)
        fresh = jnp.where(on, dot(residual, ahead), rho)
        return v, residual, jnp.where(on, ahead + fresh / rho * direction, direction), fresh, spent + 1, curvature

    first = jnp.zeros_like(right) if guess is None else guess
    residual, spent = (right, 0) if guess is None else (right - product(guess), 1)
    ahead = precondition(residual)
    rho = dot(residual, ahead)
    start = (first, residual, ahead, rho, jnp.int32(spent), jnp.full_like(rho, jnp.inf))
    v, *_, spent, curvature = jax.lax.while_loop(unfinished, advance, start)
    return v, spent, jnp.min(curvature)


def outer_direction(d1: PyTree, cross: PyTree) -> PyTree:
    r"""$\partial_1 f_\Phi - \partial_{12} g_\Phi v$, from its two terms."""
    return trees.sub(d1, cross)


def linear_direction(product: PyTree, d2: PyTree) -> PyTree:
    r"""$\partial_{22} g_\Phi v - \partial_2 f_\Phi$, from its two terms: the residual of the linear system."""
    return trees.sub(product, d2)


def hypergradient(
    reduced: Bilevel,
    x: PyTree,
    W: PyTree,
    upper_batch: Batch,
    lower_batch: Batch,
    linear: LinearSolve,
    draw: Draw,
    ledger: Ledger,
) -> tuple[Float[Array, ""], PyTree, PyTree, Ledger]:
    """The upper value, the hypergradient estimate, the adjoint ``v`` and the ledger.

    `upper_batch` serves the gradients of ``f``, `lower_batch` the cross product, `draw` the linear system.
    """
    (value, d1, d2), ledger = oracles.upper_gradients(reduced, x, W, upper_batch, ledger)
    v, ledger = linear(reduced, x, W, d2, draw, ledger)
    cross, ledger = oracles.cross_product(reduced, x, W, v, lower_batch, ledger)
    return value, outer_direction(d1, cross), v, ledger


def sensitivity(solve: Callable[[Held], Held], cross: Held) -> Held:
    r"""$-(\partial_{22} g)^{-1} \partial_{21} g$: how the lower-level solution moves with ``x``, given the solve."""
    return -solve(cross)


class Directions(eqx.Module):
    r"""The three directions of a single-loop method, which all vanish exactly at a stationary point:

    `lower` $\partial_2 g_\Phi$, `linear` $\partial_{22} g_\Phi v - \partial_2 f_\Phi$, `outer`
    $\partial_1 f_\Phi - \partial_{12} g_\Phi v$.
    """

    lower: PyTree[Array]
    linear: PyTree[Array]
    outer: PyTree[Array]

    @staticmethod
    def of(upper: tuple[PyTree, PyTree], lower: tuple[PyTree, PyTree, PyTree]) -> "Directions":
        """From ``(d1 f, d2 f)`` and ``(d2 g, d22 g v, d12 g v)``."""
        (d1, d2), (slope, product, cross) = upper, lower
        return Directions(slope, linear_direction(product, d2), outer_direction(d1, cross))


def directions(
    reduced: Bilevel, x: PyTree, W: PyTree, v: PyTree, upper_batch: Batch, lower_batch: Batch, ledger: Ledger
) -> tuple[Float[Array, ""], Directions, Ledger]:
    """The upper value and the three directions at ``(x, W, v)``, from one batch of each level."""
    (value, d1, d2), ledger = oracles.upper_gradients(reduced, x, W, upper_batch, ledger)
    lower, ledger = oracles.lower_products(reduced, x, W, v, lower_batch, ledger)
    return value, Directions.of((d1, d2), lower), ledger
