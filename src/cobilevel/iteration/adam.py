"""Adam, for the networks that learned bases and direct methods train.

Reference: D. P. Kingma and J. Ba, Adam: a method for stochastic optimization, ICLR 2015.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Adam(NamedTuple):
    """What it remembers: running means of gradients and of their squares, and over how many steps."""

    first: PyTree
    second: PyTree
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]

    @staticmethod
    def none(parameters: PyTree) -> "Adam":
        """Before the first step."""
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return Adam(zeros, zeros, jnp.int32(0))

    def after(self, slope: PyTree, memory: float = 0.999, floor: float = 1e-8) -> tuple[PyTree, "Adam"]:
        """The direction of the next step, up to its sign, and what is remembered of it.

        `memory` is the decay of the squares; `floor` is added to their root.
        """
        mean = lambda decay: lambda old, new: decay * old + (1 - decay) * new
        first = jax.tree.map(mean(0.9), self.first, slope)
        second = jax.tree.map(mean(memory), self.second, jax.tree.map(jnp.square, slope))
        count = self.count + 1
        direction = jax.tree.map(
            lambda m, v: (m / _share(0.9, count, m)) / (jnp.sqrt(v / _share(memory, count, v)) + floor), first, second
        )
        return direction, Adam(first, second, count)


def _share(decay: float, count: Array, like: Array) -> Float[Array, ""]:
    """How much of the weights of a running mean that began at zero are on what was seen."""
    return 1 - decay ** count.astype(like.dtype)
