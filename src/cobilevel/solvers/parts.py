"""What several solvers share: inner descent, Neumann series, recursive momentum, tables of pools, matrices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import trees
from ..checks import fits
from ..derivatives import Directions, Draw, Ledger, Neumann, hypergradient, oracles
from ..iteration import (
    Draws,
    PolynomialDecay,
    Scales,
    Schedule,
    Start,
    Stochastic,
    StochasticState,
    at,
    check_schedule,
    traced,
)
from ..problem import no_pool
from ..programs import arithmetic
from ..reduction import Batch, Bilevel

Kind = TypeVar("Kind", bound=Bilevel)

_MOST_TERMS = 1000  # of a series by default: with more, a step costs more than a hundred steps of other methods


def tabulated(reduced: Kind, name: str) -> Kind:
    """The same problem with both pools laid out as tables; an error where there is no finite pool."""
    if reduced.upper_source.rows is None or reduced.lower_source.rows is None:
        raise no_pool(name)
    return replace(reduced, upper_source=reduced.upper_source.tabled(), lower_source=reduced.lower_source.tabled())


def check_matrices(reduced: Bilevel, name: str, count: int) -> None:
    """Raises where so many matrices in the coefficients would not fit."""
    size = sum(leaf.size for leaf in jax.tree.leaves(reduced.W0))
    fits(name, f"matrices of {size} x {size} coefficients", count * size**2 * reduced.dtype.itemsize, "SOBA or SPABA")


def floor_spectrum(
    matrix: Float[Array, "n n"], least: Float[Array, ""]
) -> tuple[Float[Array, "n n"], Callable[[Array], Array]]:
    """The nearest symmetric matrix with no eigenvalue below `least`, and the solve with it."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.maximum(values, least)
    return (vectors * values) @ vectors.T, lambda right: vectors @ ((vectors.T @ right) / values)


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


def both_gradients(
    reduced: Bilevel, x: PyTree, W: PyTree, batches: tuple[Batch, ...], series: tuple[Neumann, Draw], ledger: Ledger
) -> tuple[Float[Array, ""], tuple[PyTree, PyTree], Ledger]:
    """The upper value, and the gradient of the lower level with the hypergradient; batches for slope, upper, cross."""
    for_slope, for_upper, for_cross = batches
    slope, ledger = oracles.lower_gradient(reduced, x, W, for_slope, ledger)
    value, gradient, _, ledger = hypergradient(reduced, x, W, for_upper, for_cross, *series, ledger)
    return value, (slope, gradient), ledger


def no_directions(reduced: Bilevel, start: Start) -> tuple[PyTree, PyTree, Directions]:
    """Before the first step of recursive estimates of three directions: the adjoint, the last point, the estimates."""
    nothing = Directions(trees.zeros(start.W), trees.zeros(start.W), trees.zeros(reduced.x0))
    return start.v, (reduced.x0, start.W, start.v), nothing


def constant_schedules(scales: Scales) -> dict[str, Schedule]:
    """Steps for methods that lose all noise at the solution; what they remember is up to an epoch old."""
    loops = arithmetic(scales).minimum(1, scales.condition / scales.epoch)
    return {"inner": scales.inner / 2, "linear": scales.inner / 2, "outer": scales.outer(loops) / 4}


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


class SeriesSolver(Stochastic):
    """A solver whose linear system is solved by a Neumann series of its own in every step.

    - `neumann`: the scale $s$ of the series, by default the measured $1/L$ (the first inner step where nothing is
      measured).
    - `terms`: its length $K$, by default twice the measured condition number, and at most 1000.
    """

    counts = (("terms", 1),)

    neumann: Schedule = eqx.field(converter=traced, default=None)
    terms: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_schedule(f"{type(self).__name__}: neumann", self.neumann)

    def needed(self):
        return (*self.schedules, "terms")

    def series(self, s: StochasticState) -> Neumann:
        """The Neumann sum of this step."""
        step, terms = s.scales.inner, self.terms
        if self.neumann is not None:
            step = at(self.neumann, s.step, s.dtype)
        elif self.inner is not None:
            step = jnp.where(step > 0, step, at(self.inner, jnp.int32(0), s.dtype))
        if terms is None:
            terms = jnp.clip(jnp.ceil(2 * s.scales.condition), 1, _MOST_TERMS).astype(jnp.int32)
        return Neumann(terms, step)

    def drawn_series(
        self, s: StochasticState, draw: Draws, kind: Literal["sum", "product", "random"]
    ) -> tuple[Neumann, Draw]:
        """The series of this step, of a kind (see ``Neumann``), and its batches."""
        full = self.series(s)
        chosen = draw.choice(full.terms) if kind == "random" else None
        return Neumann(full.terms, full.step, kind, chosen), draw.independent(self.terms)

    def move_by_series(
        self, reduced: Bilevel, s: StochasticState, W: PyTree, draw: Draws, kind: Any, rate: Any, ledger: Ledger
    ) -> StochasticState:
        """The outer step along the hypergradient at new coefficients."""
        value, gradient, _, ledger = hypergradient(
            reduced, s.x, W, draw.upper(), draw.lower(), *self.drawn_series(s, draw, kind), ledger
        )
        return self.move(reduced, s, value, gradient, rate.outer, W=W, ledger=ledger)

    def finish(self, state):
        x, W, words = super().finish(state)
        if self.terms is None:
            linear = self.series(state)
            left = jnp.maximum(1 - linear.step * state.scales.convex, 0) ** (linear.terms + 1)
            words["series"] = (
                f"{int(linear.terms)} terms of scale {float(linear.step):.3g}, which leave out up to "
                f"{100 * float(left):.2g}% of the inverse Hessian; terms and neumann set it."
            )
        return x, W, words
