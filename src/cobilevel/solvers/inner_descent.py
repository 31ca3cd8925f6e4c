"""Gradient descent on the lower level, each step on a batch of its own."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, Int, PyTree

from .. import trees
from ..derivatives import Draw, Ledger, oracles
from ..reduction import Bilevel


def descend(
    reduced: Bilevel,
    x: PyTree,
    W: PyTree,
    draw: Draw,
    steps: Int[Array, ""] | int,
    rate: Callable[[Int[Array, ""]], Float[Array, ""]],
    ledger: Ledger,
) -> tuple[PyTree, Ledger]:
    """So many gradient steps on the lower level, each on its own batch; `rate`: the step size of each."""

    def one(number, W):
        slope, _ = oracles.lower_gradient(reduced, x, W, draw(number), Ledger.page())
        return trees.step(W, rate(number), slope)

    return jax.lax.fori_loop(0, steps, one, W), ledger.add_each("lower_gradient", draw, steps)
