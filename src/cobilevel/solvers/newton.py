"""``Newton``: full batch, second order in the coefficients, exact implicit hypergradient, quasi-Newton in ``x``."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import trees
from ..answer import Result
from ..checks import positive, whole
from ..derivatives import Ledger, oracles
from ..iteration import Clock, QuasiNewtonMemory, Solver, State
from ..lower import Point
from ..programs import program
from ..reduction import Bilevel
from .newton_line_search import Trial, line_search
from .newton_stopping import TOLERANCE, Outlook, Stopping, kink_size
from .newton_units import Units

_LOWER_ACCURACY = 0.9  # exponent of the precision: the lower gradient, relative to its first; Newton reaches that


def trouble(point: Point) -> Int[Array, ""]:
    """The code of the result to report where a point is not sound."""
    upper = jnp.where(point.definite, Result.UPPER_FAILED.code, Result.NOT_CONVEX.code)
    return jnp.where(point.solved, upper, Result.LOWER_FAILED.code).astype(jnp.int32)


class Current(eqx.Module):
    """The upper objective at the iterate: its value and gradient, the size of what the bounds leave of the gradient,
    and the size of the lower gradient there. At a kink, `size` is that of the gradients combined."""

    value: Float[Array, ""]
    gradient: Float[Array, " dx"]
    size: Float[Array, ""]
    lower_gradient: Float[Array, ""]

    def at(self, x: Float[Array, " dx"], W: PyTree[Array]) -> Point:
        """The same as a point; not sound, so that a search does not end there."""
        no = jnp.asarray(False)
        return Point(x, W, self.value, self.gradient, self.lower_gradient, no, no, W)


class NewtonState(State):
    """`current`: the objective at the iterate; `memory`: quasi-Newton pairs, in the `units` of the run; `stopping`:
    what the rule remembers."""

    current: Current
    memory: QuasiNewtonMemory
    stopping: Stopping
    units: Units

    def record(self):
        now = self.current
        return {"upper": now.value, "gradient": now.size, "lower_gradient": now.lower_gradient}


class Newton(Solver):
    r"""Solves the reduced problem over all samples at once.

    At each ``x`` the coefficients minimise $g_\Phi$ by a damped Newton method on the structured Hessian
    $\mathrm{mean}(\partial_{22} g \otimes \Phi\Phi^T)$ (formed up to 2000 coefficients, in products beyond), from the
    coefficients before. The hypergradient is exact, by implicit differentiation; ``x`` moves by projected L-BFGS with
    backtracking.
    Features are whitened first, so the answer depends on the span of the basis and not on its conditioning;
    directions the observed contexts cannot see keep their start.

    **Arguments:**

    - `tolerance`: stop when the projected gradient is at most this share of its first value, by default the precision
      to the power 2/3, *and* the next quasi-Newton step would move ``x`` by less than the square root of the precision
      (so that a start far away, with a huge gradient, does not pass for convergence).
    - `memory`: pairs of steps the quasi-Newton method keeps.
    """

    default_steps = 200
    chunk = 5
    many_steps = False

    tolerance: float | None = None
    memory: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        whole("Newton: memory", self.memory)
        if self.tolerance is not None and not hasattr(self.tolerance, "dtype"):  # arrays are mapped over
            positive("Newton: tolerance", self.tolerance)

    def prepare(self, reduced):
        return reduced.whitened()

    def init(self, reduced, key, steps):
        return self._begin(reduced.ordinary(), steps)

    @program
    def _begin(self, reduced: Bilevel, steps: Int[Array, ""] | int) -> NewtonState:
        start = reduced.project(reduced.x0)
        slope, ledger = oracles.lower_gradient(reduced, start, reduced.W0, reduced.lower_pool, Ledger.empty())
        x = ravel_pytree(start)[0]
        zero = jnp.zeros((), x.dtype)
        target = jnp.finfo(x.dtype).eps ** _LOWER_ACCURACY * jnp.linalg.norm(oracles.flatten(slope)[0])
        return NewtonState(
            x=start,
            W=reduced.W0,
            clock=Clock.start(steps),
            ledger=ledger,
            current=Current(zero, jnp.zeros_like(x), zero, zero),
            memory=QuasiNewtonMemory.empty(self.memory, x),
            stopping=Stopping.start(x, target),
            units=Units.unknown(x),
        )

    def step(self, reduced, state):
        """The first step stays at ``x0`` and solves the lower level there; each later one is a line search."""
        x, unravel = ravel_pytree(state.x)
        now, memory, stopping = state.current, state.memory, state.stopping
        trial, ledger = line_search(
            reduced,
            now.at(x, state.W),
            now.size,
            memory,
            state.units,
            stopping.begun,
            stopping.lower_target,
            state.ledger,
        )
        point, moved = trial.point, trial.moved
        units, anew, ledger = state.units.refreshed(reduced, point, moved, ledger)
        after, learned, size = self._judge(reduced, state, units, anew, trial)
        reached = Current(point.value, point.gradient, size, point.lower_gradient)
        kept = Current(now.value, now.gradient, size, now.lower_gradient)
        x, W, current = trees.where(moved, (unravel(point.x), point.W, reached), (state.x, state.W, kept))
        result = jnp.where(stopping.begun | moved, state.result, trouble(point))
        clock = Clock(state.step, state.limit, result)
        return NewtonState(x, W, clock, ledger, current, learned, after, units)

    def _judge(
        self, reduced: Bilevel, state: NewtonState, units: Units, anew: Bool[Array, ""], trial: Trial
    ) -> tuple[Stopping, QuasiNewtonMemory, Float[Array, ""]]:
        """What a line search showed: for the stopping rule, for the memory, and the size of the gradient now.

        Where units were measured `anew` it begins again from there, with nothing remembered.
        """
        now, stopping, moved = state.current, state.stopping, trial.moved
        here = units.scaled(now.at(ravel_pytree(state.x)[0], state.W))
        trial = replace(trial, point=units.scaled(trial.point), refused=units.scaled(trial.refused))
        point = trial.point
        useful = moved & stopping.begun & ~anew
        learned = state.memory.remember(point.x - here.x, point.gradient - here.gradient, useful)
        step = learned.direction(point.gradient, trial.free)
        ahead = jnp.linalg.norm(jnp.where(trial.free, step, units.room(reduced, point)))
        seen = Outlook(
            size=jnp.linalg.norm(units.projected(reduced, point)),
            ahead=jnp.where(learned.bends(trial.free) | ~jnp.any(trial.free), ahead, jnp.inf),
            across=kink_size(reduced, units, here, trial.refused),
            curvature=state.memory.least_curvature(),
        )
        stopping = replace(stopping, begun=stopping.begun & ~anew)
        after = stopping.after(here, now.size, trial, seen, units.extent, self._tolerance(point.x))
        size = jnp.where(after.kink, seen.across, jnp.where(moved, seen.size, now.size))
        return after, learned, size

    def _tolerance(self, x: Float[Array, " dx"]) -> Float[Array, ""]:
        default = jnp.finfo(x.dtype).eps ** TOLERANCE
        return jnp.asarray(default if self.tolerance is None else self.tolerance, x.dtype)

    def terminate(self, reduced, state):
        return state.clock.outcome(state.stopping.found())
