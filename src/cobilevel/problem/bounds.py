"""Bounds on a decision: which coordinates they leave free, the nearest point within them, the gradient they leave."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree


class Bounds(eqx.Module):
    """``lo <= x <= hi``, each shaped like ``x``, infinite where there is no bound.

    Points, gradients and bounds are pytrees of one structure; ``flat`` gives the same bounds on flattened vectors.
    """

    lo: PyTree[Array]
    hi: PyTree[Array]

    def flat(self) -> "Bounds":
        """The same bounds on the flattened decision."""
        return Bounds(ravel_pytree(self.lo)[0], ravel_pytree(self.hi)[0])

    def project(self, x: PyTree) -> PyTree:
        """The nearest point within the bounds."""
        return jax.tree.map(jnp.clip, x, self.lo, self.hi)

    def fixed(self) -> PyTree:
        """Which coordinates have no room at all."""
        return jax.tree.map(lambda lo, hi: lo == hi, self.lo, self.hi)

    def free(self, x: PyTree, gradient: PyTree, margin: PyTree | float = 0.0) -> PyTree:
        """Which coordinates may move against the gradient.

        Those at a bound (or within `margin` of it) that the gradient pushes against may not, nor those with no room.
        """

        def leaf(x, g, lo, hi, near):
            blocked = ((x <= lo + near) & (g > 0)) | ((x >= hi - near) & (g < 0)) | (lo == hi)
            return ~blocked

        near = jax.tree.map(lambda a: margin, x) if isinstance(margin, float) else margin
        return jax.tree.map(leaf, x, gradient, self.lo, self.hi, near)

    def projected_gradient(self, x: PyTree, gradient: PyTree, length: Any = 1) -> PyTree:
        """``(x - P(x - length * gradient)) / length``: zero exactly at first-order points of the bounded problem.

        Not computed as that difference, which would round small gradients off.
        """

        def leaf(x, g, lo, hi):
            step = jnp.asarray(length, x.dtype)
            safe = jnp.where(step > 0, step, 1)
            ahead = x - step * g
            return jnp.where(ahead < lo, (x - lo) / safe, jnp.where(ahead > hi, (x - hi) / safe, g))

        return jax.tree.map(leaf, x, gradient, self.lo, self.hi)
