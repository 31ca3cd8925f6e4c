"""The memory of a limited-memory quasi-Newton method: pairs of steps and changes of the gradient along them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# a pair is used where its curvature exceeds this share of |step| |change|: below, the two are orthogonal but for
# rounding, and dividing by their product would magnify that
_LEAST_COSINE = 1e-12


def _curvature(
    steps: Float[Array, "m dx"], changes: Float[Array, "m dx"]
) -> tuple[Float[Array, " m"], Float[Array, " m"], Bool[Array, " m"]]:
    """For each pair: step times change, the squared length of the change, and whether the pair is of use."""
    bend, length = jnp.sum(steps * changes, axis=1), jnp.sum(changes * changes, axis=1)
    return bend, length, bend > _LEAST_COSINE * jnp.sqrt(length) * jnp.sqrt(jnp.sum(steps * steps, axis=1))


class QuasiNewtonMemory(eqx.Module):
    """The last `steps` and the `changes` of the gradient along them, newest first, `count` of them filled, others 0."""

    steps: Float[Array, "m dx"]
    changes: Float[Array, "m dx"]
    count: Int[Array, ""]

    @staticmethod
    def empty(size: int, x: Float[Array, " dx"]) -> "QuasiNewtonMemory":
        """Room for so many pairs of vectors like ``x``."""
        table = jnp.zeros((size, len(x)), x.dtype)
        return QuasiNewtonMemory(table, table, jnp.int32(0))

    def direction(self, gradient: Float[Array, " dx"], free: Bool[Array, " dx"]) -> Float[Array, " dx"]:
        """Minus the L-BFGS inverse Hessian, restricted to the free coordinates, times the gradient.

        The two-loop recursion; pairs without positive curvature on the free coordinates are passed over (unfilled ones
        are zero, so they are too).
        """
        steps, changes = jnp.where(free, self.steps, 0), jnp.where(free, self.changes, 0)
        bend, length, use = _curvature(steps, changes)
        rho = jnp.where(use, 1 / jnp.where(use, bend, 1), 0)

        def backward(q, pair):
            s, c, r = pair
            a = r * (s @ q)
            return q - a * c, a

        q, a = jax.lax.scan(backward, jnp.where(free, gradient, 0), (steps, changes, rho))
        newest = jnp.argmax(use)
        scale = jnp.where(jnp.any(use), bend[newest] / jnp.where(use[newest], length[newest], 1), 1)

        def forward(r, pair):
            s, c, weight, b = pair
            return r + s * (b - weight * (c @ r)), None

        r, _ = jax.lax.scan(forward, scale * q, (steps, changes, rho, a), reverse=True)
        return -r

    def bends(self, free: Bool[Array, " dx"]) -> Bool[Array, ""]:
        """Whether some pair has positive curvature on the free coordinates; without, the direction has no length."""
        return jnp.any(_curvature(jnp.where(free, self.steps, 0), jnp.where(free, self.changes, 0))[2])

    def least_curvature(self) -> Float[Array, ""]:
        """The least curvature among the pairs; infinite where there are none."""
        lengths = jnp.linalg.norm(self.steps, axis=1)
        bends = jnp.linalg.norm(self.changes, axis=1) / jnp.where(lengths > 0, lengths, 1)
        return jnp.min(jnp.where(lengths > 0, bends, jnp.inf))

    def remember(
        self, step: Float[Array, " dx"], change: Float[Array, " dx"], learned: Bool[Array, ""]
    ) -> "QuasiNewtonMemory":
        """With one more pair, the oldest dropped; where nothing was learned, empty."""
        roll = lambda table, row: jnp.concatenate([row[None], table[:-1]])
        keep = lambda table, row: jnp.where(learned, roll(table, row), jnp.zeros_like(table))
        count = jnp.where(learned, jnp.minimum(self.count + 1, len(self.steps)), 0)
        return QuasiNewtonMemory(keep(self.steps, step), keep(self.changes, change), count)
