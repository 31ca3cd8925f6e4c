"""The family whose linear system is solved by a Neumann series of its own in every step."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp

from ..derivatives import Draw, Neumann
from ..iteration import Draws, Schedule, Stochastic, StochasticState, at, check_schedule, traced

_MOST_TERMS = 1000  # terms: beyond, a step would cost more than a hundred of a method that keeps its adjoint


class SeriesSolver(Stochastic):
    """A solver whose linear system is solved by a Neumann series of its own in every step.

    - `neumann`: the scale $s$ of the series, by default the measured $1/L$ (the first inner step where nothing is
      measured).
    - `terms`: its length $K$, by default twice the measured condition number, and at most 1000.
    """

    neumann: Schedule = eqx.field(converter=traced, default=None)
    terms: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_schedule(f"{type(self).__name__}: neumann", self.neumann)

    def needed(self):
        return (*self.schedules, "terms")

    def series(self, s: StochasticState) -> Neumann:
        """The Neumann sum of this step."""
        safe = s.scales.inner
        if self.neumann is not None:
            step = at(self.neumann, s.step, s.dtype)
        else:  # the measured 1 / L; where nothing was measured, the first inner step
            step = safe if self.inner is None else jnp.where(safe > 0, safe, at(self.inner, jnp.int32(0), s.dtype))
        terms = self.terms
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
