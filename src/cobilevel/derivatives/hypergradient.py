r"""The hypergradient of the reduced problem, and the ways to solve its linear system: at once, or step by step.

$$\nabla F_\Phi = \partial_1 f_\Phi - \partial_{12} g_\Phi v, \qquad \partial_{22} g_\Phi v = \partial_2 f_\Phi .$$

The expectations stand inside the inverse: this is a Galerkin projection, not an average of per-context inverses.
Signs are fixed here and nowhere else.
"""

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from .. import trees
from ..reduction.batches import Batch
from ..reduction.reduced import Reduced
from . import oracles
from .ledger import Ledger
from .linear_systems import Draw, LinearSolve


def hypergradient(
    reduced: Reduced,
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
    return value, trees.sub(d1, cross), v, ledger


class Directions(eqx.Module):
    r"""The three directions of a single-loop method, which all vanish exactly at a stationary point:

    `lower` $\partial_2 g_\Phi$, `linear` $\partial_{22} g_\Phi v - \partial_2 f_\Phi$, `outer`
    $\partial_1 f_\Phi - \partial_{12} g_\Phi v$.
    """

    lower: PyTree[Array]
    linear: PyTree[Array]
    outer: PyTree[Array]


def directions(
    reduced: Reduced, x: PyTree, W: PyTree, v: PyTree, upper_batch: Batch, lower_batch: Batch, ledger: Ledger
) -> tuple[Float[Array, ""], Directions, Ledger]:
    """The upper value and the three directions at ``(x, W, v)``, from one batch of each level."""
    (value, d1, d2), ledger = oracles.upper_gradients(reduced, x, W, upper_batch, ledger)
    (slope, bend, cross), ledger = oracles.lower_products(reduced, x, W, v, lower_batch, ledger)
    return value, Directions(slope, trees.sub(bend, d2), trees.sub(d1, cross)), ledger
