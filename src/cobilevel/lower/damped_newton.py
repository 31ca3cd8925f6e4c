"""A damped Newton method: for the coefficients of the reduced lower level, and for the ``y`` of one context."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..derivatives import conjugate_gradient, positive_solve

DENSE_LIMIT = 2000  # the largest Hessian that is formed; beyond, only its products with vectors are


_FIRST_DAMPING, _LAST_DAMPING, _NO_DAMPING = 1e-3, 1e12, 1e-7  # relative to the curvature at the start


class Curvature(eqx.Module):
    """An objective with second derivatives, either formed or as products. `hessian` below is whichever it keeps."""

    @abstractmethod
    def local(self, z: Float[Array, " n"]) -> tuple[Array, Array, Any]:
        """Value, gradient and hessian at ``z``."""

    @abstractmethod
    def solve(
        self, hessian: Any, right: Float[Array, " n"], damping: Array, effort: Array
    ) -> tuple[Array, Array, Array]:
        """``(H + damping I) p = right``: ``(p, usable, Hessian-vector products spent)``."""

    @abstractmethod
    def size(self, hessian: Any, gradient: Float[Array, " n"]) -> tuple[Float[Array, ""], int]:
        """The magnitude of the curvature, the natural unit of damping, and the products spent on finding it."""


class Dense(Curvature):
    """`model(z)` returns value, gradient and the Hessian matrix."""

    model: Callable

    def local(self, z):
        return self.model(z)

    def solve(self, hessian, right, damping, effort):
        p, usable = positive_solve(hessian + damping * jnp.eye(len(right), dtype=right.dtype), right)
        return jnp.where(usable, p, 0), usable, jnp.int32(0)

    def size(self, hessian, gradient):
        return jnp.max(jnp.abs(jnp.diagonal(hessian))), 0


class MatrixFree(Curvature):
    """`slope(z)` returns value and gradient, `product(z, v)` the Hessian at ``z`` times ``v``."""

    slope: Callable
    product: Callable
    steps: int = eqx.field(static=True, default=250)

    def local(self, z):
        return *self.slope(z), z

    def solve(self, hessian, right, damping, effort):
        image = lambda v: self.product(hessian, v) + damping * v
        p, spent, curvature = conjugate_gradient(image, right, effort, self.steps)
        return p, curvature > 0, spent

    def size(self, hessian, gradient):
        norm = gradient @ gradient
        tiny = jnp.finfo(gradient.dtype).tiny
        return jnp.abs(gradient @ self.product(hessian, gradient)) / jnp.maximum(norm, tiny), 1


class Minimum(eqx.Module):
    """Where ``minimise`` ended.

    `evaluations` counts calls of value, gradient and hessian together, `products` Hessian-vector products.
    """

    point: Float[Array, " n"]
    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    hessian: Any
    converged: Bool[Array, ""]
    evaluations: Int[Array, ""]
    products: Int[Array, ""]


def minimise(objective: Curvature, start: Float[Array, " n"], target: Any, steps: int = 100) -> Minimum:
    """Newton's method with adaptive damping, until the gradient norm is at most `target` or as small as rounding lets.

    Undamped steps are tried first and damping grows only where they fail: where the Hessian is not positive definite,
    or the step does not bring a fair share of the decrease its model promised (far away, or where curvature vanishes,
    as it does at zero flow in a traffic network). Once the decrease drowns in rounding, the gradient decides.
    """
    eps = jnp.finfo(start.dtype).eps

    def small(z, value, gradient, unit, slack):
        """Below the target and close by (the target says little where the start was far away); or mere rounding."""
        size, length = jnp.linalg.norm(gradient), jnp.linalg.norm(z)
        floor = 32 * eps * unit * jnp.maximum(length, jnp.sqrt(jnp.abs(value) / unit))
        return (size <= slack * target) & (size <= eps**0.5 * unit * (1 + length)) | (size <= slack * floor)

    def unfinished(carry):
        z, value, gradient, _, unit, damping, exhausted, count, _ = carry
        going = ~exhausted & (damping <= _LAST_DAMPING * unit) & (count <= steps)
        return going & ~small(z, value, gradient, unit, 1) & jnp.all(jnp.isfinite(gradient))

    def advance(carry):
        z, value, gradient, hessian, unit, damping, _, count, spent = carry
        effort = jnp.clip(target / jnp.linalg.norm(gradient), 1e-2 * eps**0.5, 1e-1)
        p, usable, products = objective.solve(hessian, -gradient, damping, effort)
        new_value, new_gradient, new_hessian = objective.local(z + p)
        promised = (damping * (p @ p) - gradient @ p) / 2
        gained = value - new_value
        rounding = 32 * eps * jnp.abs(value)
        hidden = promised <= rounding  # the decrease drowns in rounding: only the gradient can tell
        falls = hidden & (jnp.linalg.norm(new_gradient) < jnp.linalg.norm(gradient))
        finite = jnp.isfinite(new_value) & jnp.all(jnp.isfinite(new_gradient))
        better = usable & finite & ((gained >= 1e-4 * promised) & (promised > 0) | (gained >= -rounding) & falls)
        exhausted = usable & hidden & ~better
        relaxed = jnp.where((gained > 0.75 * promised) | falls, damping / 10, damping)
        relaxed = jnp.where(gained < 0.25 * promised, 2 * relaxed, relaxed)
        damping = jnp.where(
            better,
            jnp.where(relaxed > _NO_DAMPING * unit, relaxed, 0),
            jnp.maximum(10 * damping, _FIRST_DAMPING * unit),
        )
        keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)
        z, value, gradient, hessian = keep((z + p, new_value, new_gradient, new_hessian), (z, value, gradient, hessian))
        unit, looked = magnitude(z, gradient, hessian)
        return z, value, gradient, hessian, unit, damping, exhausted, count + 1, spent + products + looked

    def magnitude(z, gradient, hessian):
        unit, products = objective.size(hessian, gradient)
        fallback = jnp.linalg.norm(gradient) / (1 + jnp.linalg.norm(z))
        return jnp.where(unit > 0, unit, jnp.maximum(fallback, jnp.finfo(start.dtype).tiny)), products

    value, gradient, hessian = objective.local(start)
    unit, spent = magnitude(start, gradient, hessian)
    zero = jnp.zeros((), start.dtype)
    carry = (start, value, gradient, hessian, unit, zero, jnp.asarray(False), jnp.int32(1), jnp.int32(spent))
    z, value, gradient, hessian, unit, _, exhausted, count, spent = jax.lax.while_loop(unfinished, advance, carry)
    converged = small(z, value, gradient, unit, 1) | exhausted & small(z, value, gradient, unit, 1e3)
    return Minimum(z, value, gradient, hessian, converged, count, spent)
