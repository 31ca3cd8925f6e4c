"""What several families of solvers share: inner descent, schedules of recursive momentum, tables of pools."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Int, PyTree

from ..derivatives import Ledger, oracles
from ..ground import trees
from ..iteration import Draws, PolynomialDecay, Scales, Schedule, StochasticState
from ..problem import no_pool
from ..reduction import Bilevel

Kind = TypeVar("Kind", bound=Bilevel)


def tabulated(reduced: Kind, name: str) -> Kind:
    """The same problem with both pools laid out as tables; an error where there is no finite pool."""
    if reduced.upper_source.rows is None or reduced.lower_source.rows is None:
        raise no_pool(name)
    return replace(reduced, upper_source=reduced.upper_source.tabled(), lower_source=reduced.lower_source.tabled())


def descend(
    reduced: Bilevel, s: StochasticState, draw: Draws, steps: Int[Array, ""] | int, rate: Callable
) -> tuple[PyTree, Ledger]:
    """So many gradient steps on the lower level, each on its own batch; `rate`: the step size of each."""
    batches = draw.lowers(steps)

    def one(number, W):
        slope, _ = oracles.lower_gradient(reduced, s.x, W, batches(number), Ledger.page())
        return trees.step(W, rate(number), slope)

    return jax.lax.fori_loop(0, steps, one, s.W), s.ledger.add_each("lower_gradient", batches, steps)


def recursive_schedules(scales: Scales, loops: int | float = 1) -> dict[str, Schedule]:
    r"""Those all methods of recursive momentum were published with: steps $\propto k^{-1/3}$, weights $k^{-2/3}$."""
    return {
        "inner": PolynomialDecay(scales.inner, 1 / 3, scales.calm),
        "outer": PolynomialDecay(scales.outer(loops), 1 / 3, scales.calm),
        "momentum": PolynomialDecay(1.0, 2 / 3, scales.condition),
    }


class Previous(eqx.Module):
    """The last point and the estimates there: what recursive variance reduction looks back at."""

    x: PyTree[Array]
    W: PyTree[Array]
    estimates: Any
