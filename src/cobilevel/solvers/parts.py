"""Pieces that several solvers share: inner loops, the Neumann series as a setting, the previous point."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import trees
from ..checks import fits
from ..derivatives import oracles
from ..derivatives.hypergradient import hypergradient
from ..derivatives.ledger import Ledger
from ..derivatives.linear_systems import Draw, Neumann
from ..iteration.curvature_scales import Scales
from ..iteration.draws import Draws
from ..iteration.estimators import storm
from ..iteration.schedules import Polynomial, Schedule, at, traced
from ..iteration.stochastic import Stochastic, StochasticState
from ..reduction.batches import Table
from ..reduction.reduced import Reduced

_LONGEST = 1000


def descend(
    reduced: Reduced, x: PyTree, W: PyTree, draw: Draw, steps: Any, rate: Any, ledger: Ledger
) -> tuple[PyTree, Ledger]:
    """So many gradient steps on the lower level, each on its own batch; `rate`: a number or a function of the step."""

    def one(number, carry):
        W, ledger = carry
        slope, ledger = oracles.lower_gradient(reduced, x, W, draw(number), ledger)
        return trees.step(W, rate(number) if callable(rate) else rate, slope), ledger

    return jax.lax.fori_loop(0, steps, one, (W, ledger))


class Series(Stochastic):
    """A solver whose linear system is solved by a Neumann series of its own in every step.

    - `neumann`: the scale $s$ of the series, by default the measured $1/L$ (the first inner step where nothing is
      measured).
    - `terms`: its length $K$, by default twice the measured condition number, and at most 1000.
    """

    neumann: Schedule = eqx.field(converter=traced, default=None)
    terms: int | None = eqx.field(static=True, default=None)

    def needed(self):
        return (*self.schedules, "terms")

    def sum_of(self, s: StochasticState, kind: Any = "sum", chosen: Any = None) -> Neumann:
        """The series of this step."""
        dtype, safe = s.value.dtype, s.scales.inner
        if self.neumann is not None:
            step = at(self.neumann, s.step, dtype)
        else:  # the measured 1 / L; where nothing was measured, the first inner step
            step = safe if self.inner is None else jnp.where(safe > 0, safe, at(self.inner, jnp.int32(0), dtype))
        terms = self.terms
        if terms is None:
            terms = jnp.clip(jnp.ceil(2 * s.scales.condition), 1, _LONGEST).astype(jnp.int32)
        return Neumann(terms, step, kind, chosen)

    def series(self, s: StochasticState, draw: Draws, kind: Any) -> tuple[Neumann, Draw]:
        """The series of this step, and its batches."""
        linear = self.sum_of(s, kind)
        if kind != "random":
            return linear, draw.independent()
        chosen = jax.random.randint(draw.key(), (), 0, linear.terms)
        return self.sum_of(s, kind, chosen), draw.independent()

    def told(self, state):
        words = super().told(state)
        if self.terms is None:
            linear = self.sum_of(state)
            left = jnp.maximum(1 - linear.step * state.scales.convex, 0) ** (linear.terms + 1)
            words["series"] = (
                f"{int(linear.terms)} terms of scale {float(linear.step):.3g}, which leave out up to "
                f"{100 * float(left):.2g}% of the inverse Hessian; terms and neumann set it."
            )
        return words


def recursive_schedules(scales: Scales, loops: Any = 1) -> dict[str, Schedule]:
    r"""Those all methods of recursive momentum were published with: steps $\propto k^{-1/3}$, weights $k^{-2/3}$."""
    calm = 10 * scales.condition
    return {
        "inner": Polynomial(scales.inner, 1 / 3, calm),
        "outer": Polynomial(scales.outer(loops), 1 / 3, calm),
        "momentum": Polynomial(1.0, 2 / 3, scales.condition),
    }


class Before(eqx.Module):
    """The last point and the estimates there: what recursive variance reduction looks back at."""

    x: PyTree[Array]
    W: PyTree[Array]
    estimates: Any


class Recursive(Series):
    """Recursive momentum on the lower gradient and on a Neumann hypergradient: ``SUSTAIN`` and ``MRBO``."""

    schedules = ("inner", "outer", "momentum")
    counts = (("terms", 1),)
    kind: ClassVar[str]
    loops: ClassVar[float] = 1  # how fast x may move against the lower level

    momentum: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        return recursive_schedules(scales, self.loops)

    def begin(self, reduced, start, ledger):
        return Before(reduced.x0, start.W, (trees.zeros(start.W), trees.zeros(reduced.x0))), ledger

    def update(self, reduced, s, draw, rate):
        below, above, across = draw.lower(), draw.upper(), draw.lower()
        linear, batches = self.series(s, draw, self.kind)

        def both(x, W, ledger):
            slope, ledger = oracles.lower_gradient(reduced, x, W, below, ledger)
            value, gradient, _, ledger = hypergradient(reduced, x, W, above, across, linear, batches, ledger)
            return value, (slope, gradient), ledger

        value, here, ledger = both(s.x, s.W, s.ledger)
        _, there, ledger = both(s.memory.x, s.memory.W, ledger)
        weight = jnp.where(s.step == 0, 1, rate.momentum)
        slope, gradient = storm(s.memory.estimates, here, there, weight)
        memory, W = Before(s.x, s.W, (slope, gradient)), trees.step(s.W, rate.inner, slope)
        s = replace(s, W=W, memory=memory, value=value, ledger=ledger)
        return self.move(reduced, s, gradient, rate.outer)


def tabulated(reduced: Reduced, name: str) -> Reduced:
    """The same problem with both pools laid out as tables; an error where there is no finite pool."""
    if reduced.upper_source.rows is None or reduced.lower_source.rows is None:
        raise ValueError(
            f"{name} needs a finite pool, and samples is a Stream. Use a solver that draws batches, such as SOBA, or "
            "draw a sample yourself: samples = stream.draw(key, 10_000)."
        )
    return replace(reduced, upper_source=Table(reduced.upper_pool), lower_source=Table(reduced.lower_pool))


def with_matrices(reduced: Reduced, name: str, count: int) -> Reduced:
    """The same problem; an error where so many matrices in the coefficients would not fit."""
    leaves = jax.tree.leaves(reduced.W0)
    size = sum(leaf.size for leaf in leaves)
    fits(name, f"matrices of {size} x {size} coefficients", count * size**2 * leaves[0].dtype.itemsize, "SOBA or SPABA")
    return reduced


def floor_spectrum(matrix: Array, least: Any) -> tuple[Array, Callable[[Array], Array]]:
    """The nearest symmetric matrix with no eigenvalue below `least`, and the solve with it."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.maximum(values, least)
    return (vectors * values) @ vectors.T, lambda right: vectors @ ((vectors.T @ right) / values)
