r"""``Newton``: full batch, second order in the coefficients, exact implicit hypergradient, quasi-Newton in ``x``.

One step is a line search along the quasi-Newton direction, each trial with the lower level solved. The rules by which a
run ends are in ``newton_stopping``, the units in which it measures ``x`` in ``newton_units``.
"""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float

from ..answer import Result
from ..checks import positive, whole
from ..derivatives import Expansions, HostLedger, flattened
from ..host import plain
from ..iteration import Clock, Evolving, QuasiNewtonMemory, Solver
from ..lower import Point, lower_size, solve_at
from .newton_stopping import TOLERANCE, Stopping, kink_size
from .newton_units import FlatBounds, Units, largest_size

_LOWER_ACCURACY = 0.9  # exponent of the precision: the lower gradient, relative to its first; Newton reaches that
_EXACT = 0.75  # exponent of the precision: a lower level solved more closely than this is solved as far as it can be
_LOOSEST = 1e-6  # of the coefficients: how far the lower level may be from its solution while a run is far off

_TRIALS = 30  # shortened by half or more each, the last is a billionth of the first: shorter ones drown in rounding
_SHORTEN = (0.1, 0.5)  # the least and the most that is kept of a refused step, so that interpolation cannot mislead
_BLIND = 0.25  # what is kept of it where there is nothing to interpolate
_FAIR_SHARE = 1e-4  # of the decrease that the gradient promised (Armijo), the customary constant
_VALUE_ROUNDING = 32  # the noise of the objective, in units of its own precision: it is a long sum
_DROWNED = 1e2  # roundings of the objective, below which a promised decrease cannot be seen in it
_FIRST_STEP = 0.5  # of the spread of the objective: the first step of steepest descent; the next knows curvature
_GROWTH_OF_STEPS = 4  # times the step before, where that has shown no positive curvature
_NEAR_BOUND = 0.5  # exponent of the precision: so close to a bound, relative to its size, a coordinate counts as there


def trouble(point: Point) -> Result:
    """What to report where a point is not sound."""
    if not point.solved:
        return Result.LOWER_FAILED
    return Result.UPPER_FAILED if point.definite else Result.NOT_CONVEX


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Current:
    """The upper objective at the iterate: `value` and `gradient`; the `size` of what bounds leave of the gradient (at a
    kink, of the gradients combined), and of the lower gradient."""

    value: Any
    gradient: Any
    size: Any
    lower_gradient: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NewtonState(Evolving):
    """What evolves, besides what every state has.

    - `current`: the upper objective at the iterate.
    - `sensitivity`: how the coefficients move with ``x``, from which those of the next ``x`` are predicted.
    - `memory`: quasi-Newton pairs, in the `units` of the run; `stopping`: what the rule remembers.
    """

    x: Any
    W: Any
    clock: Any
    ledger: Any
    current: Any
    sensitivity: Any
    memory: Any
    stopping: Any
    units: Any

    def record(self):
        now = self.current
        return {"upper": now.value, "gradient": now.size, "lower_gradient": now.lower_gradient}


@dataclass(frozen=True)
class Trial:
    """Where a line search ended: the last point tried, the last one refused, and whether the former is taken.

    `free` are the coordinates along which the quasi-Newton direction went, `use_memory` whether it was taken at all.
    """

    point: Point
    refused: Point
    moved: bool
    free: Bool[np.ndarray, " dx"]
    use_memory: bool


class Newton(Solver):
    r"""Solves the reduced problem over all samples at once.

    At each ``x`` the coefficients minimise $g_\Phi$ by a damped Newton method on the structured Hessian
    $\mathrm{mean}(\partial_{22} g \otimes \Phi\Phi^T)$ (formed up to 2000 coefficients, in products beyond), from what
    the solution before predicts. The hypergradient is exact, by implicit differentiation; ``x`` moves by projected
    L-BFGS with backtracking.
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
    on_host = True

    tolerance: float | None = None
    memory: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        whole("Newton: memory", self.memory)
        if self.tolerance is not None:
            positive("Newton: tolerance", self.tolerance)

    def prepare(self, reduced):
        return reduced.whitened()

    @plain
    def ready(self, reduced):
        return reduced if isinstance(reduced, Expansions) else Expansions(reduced)

    def init(self, reduced, key, steps):
        at = self.ready(reduced)
        start = FlatBounds(*at.bounds).project(at.start)
        zero, crossed = np.zeros((), at.dtype), at.dx if at.crossed else 0
        return NewtonState(
            x=at.decision(start),
            W=at.coefficients(at.table(at.reduced.W0)),
            clock=Clock.on_host(steps),
            ledger=HostLedger.of({}),
            current=Current(zero, np.zeros(at.dx, at.dtype), zero, zero),
            sensitivity=np.zeros((at.functions, at.dy, crossed), at.dtype),
            memory=QuasiNewtonMemory.empty(self.memory, at.dx, at.dtype),
            stopping=Stopping.start(),
            units=Units.unknown(at.dx),
        )

    @plain
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # far out; what is not finite is not taken
    def step(self, reduced, state):
        """The first step stays at ``x0`` and solves the lower level there; each later one is a line search."""
        at = self.ready(reduced)
        before, bounds, now = at.spent.copy(), FlatBounds(*at.bounds), _as_point(at, state)
        stopping = state.stopping
        if not stopping.begun and not stopping.lower_target:
            target = at.eps**_LOWER_ACCURACY * lower_size(at, now.x, now.W)
            stopping = replace(stopping, lower_target=target)
        close = _closeness(at, state, stopping)
        trial = _line_search(at, bounds, now, state, stopping, close)
        if stopping.begun and not trial.moved and close:  # a gradient that is not exact may point nowhere
            now = solve_at(at, now.x, now.W, float(stopping.lower_target))
            number = lambda value: np.asarray(value, at.dtype, order="C")
            size = np.linalg.norm(state.units.projected(bounds, now))
            exact = Current(*map(number, (now.value, now.gradient, size, now.lower_gradient)))
            state = replace(state, current=exact)
            trial = _line_search(at, bounds, now, state, stopping, 0.0)
        units, anew = state.units.refreshed(at, bounds, trial.point, trial.moved)
        after, memory, size = self._judge(at, bounds, now, state, stopping, units, anew, trial)
        end = trial.point if trial.moved else now
        result = int(state.result) if stopping.begun or trial.moved else trouble(trial.point).code
        if end.sensitivity is None:
            end = replace(end, sensitivity=np.zeros_like(state.sensitivity))
        number = lambda value: np.asarray(value, at.dtype, order="C")
        return NewtonState(
            x=at.decision(end.x),
            W=at.coefficients(end.W),
            clock=Clock(state.clock.step, state.clock.limit, np.asarray(result, np.int32)),
            ledger=state.ledger.plus(HostLedger.of(at.spent - before)),
            current=Current(*map(number, (end.value, end.gradient, size, end.lower_gradient))),
            sensitivity=number(end.sensitivity),
            memory=memory,
            stopping=after,
            units=units,
        )

    @plain
    def _judge(
        self,
        at: Expansions,
        bounds: FlatBounds,
        now: Point,
        state: NewtonState,
        stopping: Stopping,
        units: Units,
        anew: bool,
        trial: Trial,
    ) -> tuple[Stopping, QuasiNewtonMemory, float]:
        """What a line search showed: for the stopping rule, for the memory, and the size of the gradient now.

        Where units were measured `anew` it begins again from there, with nothing remembered.
        """
        here, point, refused = (units.scaled(part) for part in (now, trial.point, trial.refused))
        if trial.moved and stopping.begun and not anew:
            memory = state.memory.remember(point.x - here.x, point.gradient - here.gradient)
        else:
            memory = self._first_memory(at, units)
        step, free = memory.direction(point.gradient, trial.free), trial.free
        ahead = float(np.linalg.norm(np.where(free, step, units.room(bounds, point))))
        size = float(np.linalg.norm(units.projected(bounds, trial.point)))
        across = kink_size(units, bounds, now, trial.refused)
        stopping = replace(stopping, begun=np.asarray(bool(stopping.begun) and not anew))
        after = stopping.after(
            here=here,
            size=float(state.current.size),
            point=point,
            refused=refused,
            moved=trial.moved,
            use_memory=trial.use_memory,
            size_there=size,
            ahead=ahead if memory.bends(free) or not free.any() else np.inf,
            across=across,
            curvature=state.memory.least_curvature(),
            least=units.extent,
            tolerance=at.eps**TOLERANCE if self.tolerance is None else self.tolerance,
            eps=at.eps,
        )
        return after, memory, across if after.kink else size if trial.moved else float(state.current.size)

    @plain
    def _first_memory(self, at: Expansions, units: Units) -> QuasiNewtonMemory:
        """Without pairs; where the curvature is known, with those that it stands for, in the units of the run."""
        memory = QuasiNewtonMemory.empty(self.memory, at.dx, at.dtype)
        if at.curvature is not None:
            values, vectors = np.linalg.eigh(at.curvature / np.outer(units.sigma, units.sigma))
            for bend, along in zip(values, vectors.T, strict=True):
                memory = memory.remember(along, bend * along)
        return memory

    @plain
    def terminate(self, reduced, state):
        return np.asarray(state.clock.ended(state.stopping.found()).code, np.int32)


def _closeness(at: Expansions, state: NewtonState, stopping: Stopping) -> float:
    """How far the lower level may be from its solution, as a share of the coefficients; 0 for not at all.

    Far from its end a run needs no exact lower level: a third of the digits, and more as the gradient falls. Where
    products stand for the Hessian, no last correction makes up for it.
    """
    first = float(stopping.scale) if stopping.begun else 0.0
    close = min(_LOOSEST, (float(state.current.size) / first) ** 2) if first else _LOOSEST
    return close if at.formed and not stopping.failures and close > at.eps**_EXACT else 0.0


def _line_search(
    at: Expansions, bounds: FlatBounds, here: Point, state: NewtonState, stopping: Stopping, close: float
) -> Trial:
    """The full step first, then shorter ones until the objective falls; where not begun, only solves at ``x``.

    Points are in units of the problem, the memory and the size of the gradient in those of the run.
    """
    x, g, size, begun = here.x, here.gradient, float(state.current.size), bool(stopping.begun)
    units = state.units
    rounding = _VALUE_ROUNDING * at.eps * abs(here.value)
    direction, free, use_memory = _direction(at, bounds, here, size, state.memory, units)
    target = np.inf if close else float(stopping.lower_target)

    def enough(point: Point) -> bool:
        if not point.sound or not begun:
            return point.sound
        slope = g @ (point.x - x)
        if slope < 0 and point.value <= here.value + _FAIR_SHARE * slope:
            return True
        drowned = -slope <= _DROWNED * rounding and point.value <= here.value + rounding
        return bool(drowned and np.linalg.norm(units.projected(bounds, point)) < size)

    refused, point, length = here, here, 1.0
    for trial in range(_TRIALS if begun else 1):
        if trial:
            slope = g @ (point.x - x)
            excess = point.value - here.value - slope
            best = -slope / (2 * excess) if point.sound and excess > 0 else _BLIND  # the parabola's minimum
            length *= float(np.clip(best, *_SHORTEN))
        place = bounds.project(x + length * direction)
        refused, point = point, solve_at(at, place, here.coefficients_at(place), target, close)
        if enough(point):
            return Trial(point, refused, True, free, use_memory)
    return Trial(point, point, False, free, use_memory)


def _as_point(at: Expansions, state: NewtonState) -> Point:
    """The iterate; not sound, so that a search does not end there."""
    x, W = flattened(state.x), at.table(state.W)
    sensitivity = np.asarray(state.sensitivity, float) if at.crossed else None
    now = state.current
    gradient = np.asarray(now.gradient, float)
    return Point(x, W, float(now.value), gradient, float(now.lower_gradient), False, False, W, sensitivity)


def _direction(
    at: Expansions, bounds: FlatBounds, point: Point, size: float, memory: QuasiNewtonMemory, units: Units
) -> tuple[Float[np.ndarray, " dx"], Bool[np.ndarray, " dx"], bool]:
    """The direction of the search, its free coordinates, and whether the memory was of use."""
    here = units.scaled(point)
    x, g = here.x, here.gradient
    near = np.minimum(size * units.spread, at.eps**_NEAR_BOUND * (units.spread + np.abs(x)))
    free = bounds.scaled(units.sigma).free(x, g, near)
    direction = memory.direction(g, free)
    length = float(np.linalg.norm(g))
    if memory.bends(free) and direction @ g < 0:
        along = direction @ g / (length**2 or 1.0)  # the fixed coordinates go as far as the others
        return np.where(free, direction, along * g) / units.sigma, free, True
    reach = max(_FIRST_STEP * float(units.spread), _GROWTH_OF_STEPS * memory.last_length())
    reach = max(reach, at.eps**_NEAR_BOUND * largest_size(x))  # shorter ones would hardly change x
    return -g * (reach / length if length > 0 else 0.0) / units.sigma, free, False
