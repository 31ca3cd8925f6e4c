r"""The hypergradient of the reduced problem, and the directions of methods that never solve its linear system.

$$\nabla F_\Phi = \partial_1 f_\Phi - \partial_{12} g_\Phi v, \qquad \partial_{22} g_\Phi v = \partial_2 f_\Phi .$$

The expectations stand inside the inverse: this is a Galerkin projection, not an average of per-context inverses.
Signs are fixed here and nowhere else.
"""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from .. import trees
from ..programs import Held
from ..reduction import Batch, Bilevel
from . import oracles
from .ledger import Ledger
from .linear_systems import Draw, LinearSolve


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
