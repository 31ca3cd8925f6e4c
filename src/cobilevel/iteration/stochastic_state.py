"""The state of a stochastic run, in parts: its draws, the outer step, the trend it is judged by, and the average."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import trees
from ..answer import Result
from ..programs import arithmetic, put
from .draws import DrawPosition
from .solver import State
from .step_scales import Scales

SPAN = 100  # steps over which a run is judged: long enough for noise to average out, short against any run
_KEEP = 1 - 1 / SPAN  # of a moving average over about so many steps
_BOUNCING = 1 / 2  # the share of their power that successive hypergradients cancel where steps are too long
_DEVIATIONS = 2  # of the mean from zero, in standard errors, that chance explains


class Outer(eqx.Module):
    """The last step of ``x``: the upper `value` before it, its projected `direction`, and Optax's state, if any.

    `pace`: what all step sizes, of both levels, are multiplied with; less than 1 after a retreat.
    """

    value: Float[Array, ""]
    direction: PyTree[Array]
    optimizer: PyTree[Array]
    pace: Float[Array, ""]


class Trend(eqx.Module):
    """Moving averages over the last directions: their `mean`, their squared length `power`, and `echo`, the product of
    each with the one before. `first` is the size to which they are compared."""

    mean: PyTree[Array]
    power: Float[Array, ""]
    echo: Float[Array, ""]
    first: Float[Array, ""]

    @staticmethod
    def start(x: PyTree[Array], gradient: Float[Array, ""]) -> "Trend":
        """Before the first step; `gradient` is the size measured at ``x0``, NaN where nothing was measured."""
        xp, zero = arithmetic(gradient), trees.zeros(gradient)
        return Trend(trees.zeros(x), zero, zero, put(xp.where(xp.asarray(gradient) >= 0, gradient, 0)))

    def after(
        self, step: Int[Array, ""], before: PyTree[Array], direction: PyTree[Array], known: Bool[Array, ""]
    ) -> "Trend":
        """With one more direction; where `first` is not `known`, it is the largest size of the first steps."""
        dtype, size = self.power.dtype, trees.norm(direction)
        share = step.astype(dtype) / (step + 1).astype(dtype)  # a plain mean at first
        keep = jnp.minimum(jnp.asarray(_KEEP, dtype), share)
        blend = lambda old, new: keep * old + (1 - keep) * new
        return Trend(
            mean=jax.tree.map(blend, self.mean, direction),
            power=blend(self.power, size**2),
            echo=blend(self.echo, trees.dot(before, direction)),
            first=jnp.where((step < SPAN) & ~known, jnp.maximum(self.first, size), self.first),
        )

    def size(self) -> Float[Array, ""]:
        """The root mean square of the directions."""
        return jnp.sqrt(self.power)

    def bounces(self) -> Bool[Array, ""]:
        """Whether successive directions mostly undo each other: the outer steps are too long."""
        return self.echo < -_BOUNCING * self.power

    def scatters(self) -> Bool[Array, ""]:
        """Whether successive directions neither undo nor repeat each other: they are mostly noise."""
        return jnp.abs(self.echo) <= _BOUNCING * self.power

    def is_noise(self) -> Bool[Array, ""]:
        """Whether the mean is no larger than chance would have it: indistinguishable from zero."""
        drift = trees.norm(self.mean) ** 2
        chance = (1 - _KEEP) / (1 + _KEEP) * (self.power - drift)  # the variance of a moving average of noise
        return drift <= _DEVIATIONS**2 * chance

    def spent(self) -> Int[Array, ""]:
        """The code of the result where all steps are used up."""
        plain = jnp.where(self.is_noise(), Result.NOISE.code, Result.BUDGET.code)
        return jnp.where(self.bounces(), Result.BOUNCING.code, plain)


class Average(eqx.Module):
    """The mean of the iterates over the last part of the run: ``x``, ``W``, and of how many."""

    x: PyTree[Array]
    W: PyTree[Array]
    count: Int[Array, ""]

    def after(self, x: PyTree[Array], W: PyTree[Array], begun: Bool[Array, ""]) -> "Average":
        """With one more iterate; starts over with each until the last part of the run has `begun`."""
        count = jnp.where(begun, self.count + 1, 1)
        mean = lambda old, new: old + (new - old) / count.astype(old.dtype)
        return Average(
            jax.tree.map(mean, self.x, x),
            jax.tree.map(mean, self.W, W),
            jnp.where(begun, count, 0).astype(jnp.int32),
        )


class StochasticState(State):
    """`memory` is what the algorithm itself remembers, `scales` what step sizes are set from; the rest is shared."""

    draws: DrawPosition
    memory: PyTree[Array]
    scales: Scales
    outer: Outer
    trend: Trend
    average: Average

    def record(self):
        return {"upper": self.outer.value, "gradient": trees.norm(self.outer.direction)}
