"""Recursive momentum: its schedules, the point it looks back at, and the two solvers that differ in little else."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import trees
from ..derivatives import hypergradient, oracles
from ..iteration import PolynomialDecay, Scales, Schedule, storm, traced
from .neumann_series import SeriesSolver


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


class RecursiveMomentum(SeriesSolver):
    """Recursive momentum on the lower gradient and on a Neumann hypergradient: ``SUSTAIN`` and ``MRBO``."""

    schedules = ("inner", "outer", "momentum")
    counts = (("terms", 1),)
    kind: ClassVar[Literal["sum", "random"]]
    loops: ClassVar[float] = 1  # how fast x may move against the lower level

    momentum: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        return recursive_schedules(scales, self.loops)

    def begin(self, reduced, start, ledger):
        return Previous(reduced.x0, start.W, (trees.zeros(start.W), trees.zeros(reduced.x0))), ledger

    def update(self, reduced, s, draw, rate):
        for_slope, for_upper, for_cross = draw.lower(), draw.upper(), draw.lower()
        linear, batches = self.drawn_series(s, draw, self.kind)

        def both(x, W, ledger):
            slope, ledger = oracles.lower_gradient(reduced, x, W, for_slope, ledger)
            value, gradient, _, ledger = hypergradient(reduced, x, W, for_upper, for_cross, linear, batches, ledger)
            return value, (slope, gradient), ledger

        value, here, ledger = both(s.x, s.W, s.ledger)
        _, there, ledger = both(s.memory.x, s.memory.W, ledger)
        weight = jnp.where(s.step == 0, 1, rate.momentum)
        slope, gradient = storm(s.memory.estimates, here, there, weight)
        memory, W = Previous(s.x, s.W, (slope, gradient)), trees.step(s.W, rate.inner, slope)
        return self.move(reduced, replace(s, W=W, memory=memory, ledger=ledger), value, gradient, rate.outer)
