r"""The hypergradient of the reduced problem, and the three ways to solve its linear system.

$$\nabla F_\Phi = \partial_1 f_\Phi - \partial_{12} g_\Phi v, \qquad \partial_{22} g_\Phi v = \partial_2 f_\Phi .$$

The expectations stand inside the inverse: this is a Galerkin projection, not an average of per-context inverses.
Signs are fixed here and nowhere else.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from . import oracles
from .checks import whole
from .oracles import Ledger
from .reduction import Batch, Reduced

Draw = Callable[[Array], Batch]


class LinearSolve(eqx.Module):
    """Approximates ``v`` in ``d22 g_Phi v = b``."""

    @abstractmethod
    def __call__(
        self, reduced: Reduced, x: PyTree, W: PyTree, b: PyTree, draw: Draw, key: Array, ledger: Ledger
    ) -> tuple[PyTree, Ledger]:
        """`draw(key)` gives a lower batch; for full-batch use it ignores the key."""


class Direct(LinearSolve):
    """Forms the structured Hessian and factorises it; ``v`` is NaN where it is not positive definite.

    `hessian` may be handed over where it is known already.
    """

    hessian: Float[Array, "n n"] | None = None

    def __call__(self, reduced, x, W, b, draw, key, ledger):
        hessian = self.hessian
        if hessian is None:
            (_, _, hessian), ledger = oracles.lower_model(reduced, x, W, draw(key), ledger)
        right, unflatten = oracles.flatten(b)
        return unflatten(positive_solve(hessian, right)[0]), ledger


class ConjugateGradient(LinearSolve):
    """Conjugate gradients on Hessian-vector products; ends at `tolerance` (relative residual) or after `steps`.

    ``v`` is NaN where a direction of nonpositive curvature turned up.
    """

    tolerance: float = 1e-12
    steps: int = eqx.field(static=True, default=500)

    def __call__(self, reduced, x, W, b, draw, key, ledger):
        batch = draw(key)
        right, unflatten = oracles.flatten(b)

        def product(vector):
            out, _ = oracles.hessian_vector(reduced, x, W, unflatten(vector), batch, ledger)
            return oracles.flatten(out)[0]

        v, steps, curvature = conjugate_gradient(product, right, self.tolerance, self.steps)
        return unflatten(jnp.where(curvature > 0, v, jnp.nan)), ledger.add("hessian_vector", batch, steps)


class Neumann(LinearSolve):
    r"""The truncated Neumann series on fresh batches $H_k$, with `terms` factors $K$ and scale `step` $s$.

    `kind="sum"` is stocBiO's estimate $s \sum_{q=0}^{K} \prod_{k=1}^{q} (I - s H_k) b$. At curvature $\lambda$ it
    recovers the share $1 - (1 - s\lambda)^{K+1}$ of the inverse, so its bias fades only when $s \lambda K$ is large for
    every $\lambda$. `kind="product"` is the bare product $s \prod_{k=1}^{K} (I - s H_k) b$ that the paper prints; it
    does not estimate an inverse and is kept for comparison.
    """

    terms: int = eqx.field(static=True)
    step: Any
    kind: Literal["sum", "product"] = eqx.field(static=True, default="sum")

    def __check_init__(self):
        whole("Neumann: terms", self.terms, 0)
        if self.kind not in ("sum", "product"):
            raise ValueError(f'Neumann: kind must be "sum" or "product", got {self.kind!r}.')

    def __call__(self, reduced, x, W, b, draw, key, ledger):
        step = lambda leaf: jnp.asarray(self.step, leaf.dtype)

        def factor(carry, key):
            power, total, ledger = carry
            product, ledger = oracles.hessian_vector(reduced, x, W, power, draw(key), ledger)
            power = jax.tree.map(lambda p, h: p - step(p) * h, power, product)
            return (power, jax.tree.map(jnp.add, total, power), ledger), None

        (power, total, ledger), _ = jax.lax.scan(factor, (b, b, ledger), jax.random.split(key, self.terms))
        estimate = total if self.kind == "sum" else power
        return jax.tree.map(lambda leaf: step(leaf) * leaf, estimate), ledger


def assemble(d1: PyTree, cross: PyTree) -> PyTree:
    """``d1 f - d12 g v``."""
    return jax.tree.map(jnp.subtract, d1, cross)


def hypergradient(
    reduced: Reduced,
    x: PyTree,
    W: PyTree,
    upper_batch: Batch,
    lower_batch: Batch,
    linear: LinearSolve,
    draw: Draw,
    key: Array,
    ledger: Ledger,
) -> tuple[Float[Array, ""], PyTree, PyTree, Ledger]:
    """The upper value, the hypergradient estimate, the adjoint ``v`` and the ledger.

    `upper_batch` serves the gradients of ``f``, `lower_batch` the cross product, `draw` the linear system.
    """
    (value, d1, d2), ledger = oracles.upper_gradients(reduced, x, W, upper_batch, ledger)
    v, ledger = linear(reduced, x, W, d2, draw, key, ledger)
    cross, ledger = oracles.cross_product(reduced, x, W, v, lower_batch, ledger)
    return value, assemble(d1, cross), v, ledger


def positive_solve(
    matrix: Float[Array, "n n"], right: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Bool[Array, ""]]:
    """Cholesky solve, and whether the matrix was positive definite; the solution is NaN where it was not."""
    factor = jnp.linalg.cholesky(matrix)
    solution = jax.scipy.linalg.cho_solve((factor, True), right)
    return solution, jnp.all(jnp.isfinite(solution))


def conjugate_gradient(product: Callable, right: Float[Array, " n"], tolerance: Any, steps: int):
    """Solves ``A v = right`` for positive definite ``A``: ``(v, products spent, least curvature met)``.

    Where a direction of nonpositive curvature turns up it stops with what it has, so that ``v`` stays a direction
    along which the quadratic decreases; the curvature returned says so.
    """
    goal = tolerance * jnp.linalg.norm(right)

    def unfinished(carry):
        _, _, _, rho, spent, curvature = carry
        return (jnp.sqrt(rho) > goal) & (spent < steps) & (curvature > 0)

    def advance(carry):
        v, residual, direction, rho, spent, curvature = carry
        image = product(direction)
        bend = direction @ image
        curvature = jnp.minimum(curvature, bend / jnp.maximum(direction @ direction, jnp.finfo(right.dtype).tiny))
        length = jnp.where(bend > 0, rho / bend, 0)
        v, residual = v + length * direction, residual - length * image
        fresh = residual @ residual
        return v, residual, residual + fresh / rho * direction, fresh, spent + 1, curvature

    start = (jnp.zeros_like(right), right, right, right @ right, jnp.int32(0), jnp.asarray(jnp.inf, right.dtype))
    v, _, _, _, spent, curvature = jax.lax.while_loop(unfinished, advance, start)
    return v, spent, curvature
