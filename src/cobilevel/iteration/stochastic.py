"""What all stochastic solvers share: batches, step sizes and their defaults, the outer step, averages, how a run ends.

A solver of this family is its ``update``: from a state to the next, built from oracles, estimators and ``move``.
"""

from abc import abstractmethod
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .. import trees
from ..answer import Result
from ..checks import whole
from ..derivatives import Ledger
from ..programs import arithmetic, program, put
from ..reduction import Bilevel
from .draws import DrawPosition, Draws
from .schedules import Schedule, at, check_schedule, is_optax, traced
from .solver import Clock, Solver
from .step_scales import Scales, Start, measure
from .stochastic_state import SPAN, Average, Outer, StochasticState, Trend

_STEP_SIZES = ("inner", "outer", "linear")  # the schedules that are lengths of steps, and not weights or accuracies
_FAR = 1e8  # times the size of the start: iterates this large are lost, although they are finite still
_LEAST_TOLERANCE = (
    30  # the least tolerance, in units of the precision: the rounding of a hypergradient is of that order
)
_STILL = 8  # roundings of x, times the curvature, below which a gradient cannot be resolved


def _outer(value: Any) -> Any:
    return value if is_optax(value) else traced(value)


class Stochastic(Solver):
    """A solver that works on small batches.

    **Arguments** common to all; step sizes are numbers or functions of the step (``PolynomialDecay``, ``Cosine``,
    Optax's schedules). Those left out are set from the scales of the problem, measured at the start and reported in
    ``solution.choices``.

    - `inner`: the step size of the lower level.
    - `outer`: the step size of ``x``; or an Optax transformation such as ``optax.adam(1e-2)``, given the hypergradient.
    - `batch`: samples in each batch.
    - `shuffle`: batches without replacement, every row once an epoch; else independent draws.
    - `average`: the share of the run, at its end, whose iterates are averaged.
    - `tolerance`: end when the hypergradient, averaged over about the last hundred steps, is at most this share of its
      size at ``x0``.
    """

    schedules: ClassVar[tuple[str, ...]] = ("inner", "outer")  # settings that are numbers or functions of the step
    counts: ClassVar[tuple[tuple[str, int], ...]] = ()  # whole numbers and the least they may be
    exact: ClassVar[bool] = False  # whether the estimates lose all noise and bias at the solution
    default_steps: ClassVar[int] = 20_000
    chunk: ClassVar[int] = 200
    may_end_at_once: ClassVar[bool] = False

    inner: Schedule = eqx.field(converter=traced, default=None)
    outer: Schedule = eqx.field(converter=_outer, default=None)
    batch: int = eqx.field(static=True, default=64, kw_only=True)
    shuffle: bool = eqx.field(static=True, default=True, kw_only=True)
    average: Any = eqx.field(converter=traced, default=0.1, kw_only=True)
    tolerance: Any = eqx.field(converter=traced, default=None, kw_only=True)

    def __check_init__(self):
        name = type(self).__name__
        for setting in self.schedules:
            most = 1.0 if setting == "momentum" else np.inf  # a weight of averages
            check_schedule(f"{name}: {setting}", getattr(self, setting), most)
        for setting, most in (("average", 1), ("tolerance", np.inf)):
            value = getattr(self, setting)
            if isinstance(value, np.ndarray) and (value.shape or not 0 <= value <= most or not np.isfinite(value)):
                raise ValueError(f"{name}: {setting} must be one number between 0 and {most}, got {value}.")
        if not isinstance(self.shuffle, bool):
            raise TypeError(f"{name}: shuffle must be True or False, got {self.shuffle!r}.")
        for setting, least in (("batch", 1), *self.counts):
            if self.__dataclass_fields__[setting].default is not None or getattr(self, setting) is not None:
                whole(f"{name}: {setting}", getattr(self, setting), least)

    @abstractmethod
    def defaults(self, scales: Scales) -> dict[str, Schedule]:
        """The schedules to use where none is given."""

    def needed(self) -> tuple[str, ...]:
        """The settings for which, where they are left out, the scales are measured."""
        return self.schedules

    def begin(self, reduced: Bilevel, start: Start, ledger: Ledger) -> tuple[PyTree, Ledger]:
        """What the algorithm remembers before its first step; and the ledger."""
        return (), ledger

    @abstractmethod
    def update(self, reduced: Bilevel, s: StochasticState, draw: Draws, rate: SimpleNamespace) -> StochasticState:
        """The next state: ``W``, ``memory`` and ``ledger`` by ``replace``, ``x`` and the upper value by ``move``."""

    # -- the rest is the same for all

    def rates(self, s: StochasticState, step: Int[Array, ""]) -> SimpleNamespace:
        """All step sizes at a step."""
        given = {name: getattr(self, name) for name in self.schedules}
        if any(value is None for value in given.values()):
            set_from = self.defaults(s.scales)
            given = {name: set_from[name] if value is None else value for name, value in given.items()}
        rates = {k: v if is_optax(v) else at(v, step, s.dtype) for k, v in given.items()}
        shorter = {k: s.outer.pace * v for k, v in rates.items() if k in _STEP_SIZES and not is_optax(v)}
        return SimpleNamespace(**rates | shorter)

    def ready(self, reduced):
        return reduced.looked_through()

    def init(self, reduced, key, steps):
        open_ones = any(getattr(self, name) is None for name in self.needed())
        return self._first(
            reduced, measure(reduced, key, self.batch) if open_ones else Start.plain(reduced), key, steps
        )

    def _first(self, reduced: Bilevel, start: Start, key: Array, steps: Any) -> StochasticState:
        """The state before the first step."""
        memory, ledger = self.begin(reduced, start, start.ledger)
        xp, x = arithmetic(start.solved, start.definite), reduced.project(reduced.x0)
        convex = xp.where(start.definite, Result.RUNNING.code, Result.NOT_CONVEX.code)
        result = xp.where(start.solved, convex, Result.LOWER_FAILED.code)
        zero, one = put((np.zeros((), reduced.dtype), np.ones((), reduced.dtype)))
        return StochasticState(
            x=x,
            W=start.W,
            clock=Clock.start(steps, put(result.astype(np.int32))),
            ledger=ledger,
            draws=DrawPosition.start(key),
            memory=memory,
            scales=start.scales,
            outer=Outer(zero, trees.zeros(x), _optimizer(self.outer, x) if is_optax(self.outer) else (), one),
            trend=Trend.start(x, start.scales.gradient),
            average=Average(x, start.W, put(np.int32(0))),
        )

    def like(self, reduced, key, steps):
        """Nothing is measured for that."""
        first = lambda problem, key: self._first(problem, Start.plain(problem), key, jnp.int32(steps))
        return eqx.filter_eval_shape(first, reduced, key)

    def move(
        self, reduced: Bilevel, s: StochasticState, value: Float[Array, ""], direction: PyTree, rate: Any
    ) -> StochasticState:
        """The outer step along minus the direction, projected to the bounds; `value` is the upper one before it."""
        if is_optax(rate):
            updates, optimizer = rate.update(direction, s.outer.optimizer, s.x)
            x = reduced.project(jax.tree.map(lambda a, u: a + (s.outer.pace * u).astype(a.dtype), s.x, updates))
            length = 1
        else:
            x, optimizer, length = reduced.project(trees.step(s.x, rate, direction)), s.outer.optimizer, rate
        left = reduced.problem.bounds.projected_gradient(s.x, direction, length)
        return replace(s, x=x, outer=Outer(value, left, optimizer, s.outer.pace))

    def step(self, reduced, state):
        draw = Draws(reduced, state.draws, state.step, self.batch, self.shuffle)
        s = self.update(reduced, state, draw, self.rates(state, state.step))
        wide = lambda number: jnp.asarray(number, float)
        begun = wide(s.step + 1) > (1 - wide(self.average)) * wide(s.limit)
        return replace(
            s,
            draws=draw.position,
            trend=s.trend.after(s.step, state.outer.direction, s.outer.direction, s.scales.gradient >= 0),
            average=s.average.after(s.x, s.W, begun),
        )

    def terminate(self, reduced, state):
        lost = trees.norm((state.x, state.W)) > _FAR * (1 + trees.norm((reduced.x0, reduced.W0)))
        found = jnp.where(self._small(state), self._good().code, Result.RUNNING.code)
        return state.clock.outcome(jnp.where(lost, Result.DIVERGED.code, found), state.trend.spent())

    def _good(self) -> Result:
        return Result.CONVERGED if self.exact else Result.SETTLED

    def _small(self, state: StochasticState) -> Array:
        """Whether the last hypergradients are below the tolerance."""
        if self.tolerance is None:
            return jnp.asarray(False)
        trend, size = state.trend, state.trend.size()
        goal = self.goal(state)
        small = (size <= goal) | self.still(state, size)
        if not self.exact:  # or a mean that is small among mere noise: neither bouncing nor drifting to and fro
            small = small | (trees.norm(trend.mean) <= goal) & trend.scatters()
        return small & (state.step > SPAN)

    def goal(self, state: StochasticState) -> Float[Array, ""]:
        """The size of the hypergradient at which the run has converged."""
        finest = _LEAST_TOLERANCE * jnp.finfo(state.dtype).eps
        return jnp.maximum(jnp.asarray(self.tolerance, state.dtype), finest) * state.trend.first

    def still(self, state: StochasticState, size: Float[Array, ""]) -> Array:
        """Whether a gradient of that size is what rounding ``x`` makes of zero (where its curvature is known)."""
        rounding = _STILL * jnp.finfo(state.dtype).eps * (1 + trees.norm(state.x))
        return size <= rounding * state.scales.bend

    def finish(self, state):
        missing = [name for name in self.schedules if getattr(self, name) is None]
        words, scales = {}, jax.tree.map(np.asarray, state.scales)
        if missing and np.isfinite([scales.smooth, scales.convex, scales.bend, scales.pull, scales.steep]).all():
            given = self.defaults(scales)
            first = {name: float(at(given[name], np.asarray(0, np.int32), state.dtype)) for name in missing}
            sizes = ", ".join(f"{name} {size:.3g}" for name, size in first.items())
            words["step sizes"] = f"{sizes} (at first), from scales: {scales.words()}."
        return state.average.x, state.average.W, words


@program
def _optimizer(outer: Any, x: PyTree) -> PyTree:
    """The state of an Optax transformation before its first step."""
    return outer.init(x)
