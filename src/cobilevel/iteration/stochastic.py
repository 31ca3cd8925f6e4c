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
from jaxtyping import Array, Float, Int, PyTree, UInt32

from .. import trees
from ..checks import whole
from ..reduction.reduced import Reduced
from ..reduction.result import Result
from .curvature_scales import Scales, Start, measure
from .draws import Draws
from .loop import Solver, State, fresh
from .schedules import Schedule, at, check_schedule, is_optax, traced

_MEMORY, _SPAN = 0.99, 100  # of the moving averages by which a run is judged: about the last hundred steps


def _outer(value: Any) -> Any:
    return value if is_optax(value) else traced(value)


def _projected(reduced: Reduced, x: PyTree, direction: PyTree, rate: Any) -> PyTree:
    """The part of a direction that the bounds leave: ``(x - P(x - rate * direction)) / rate``, without its rounding."""

    def leaf(x, d, lo, hi):
        length = jnp.asarray(rate, x.dtype)
        safe = jnp.where(length > 0, length, 1)
        ahead = x - length * d
        return jnp.where(ahead < lo, (x - lo) / safe, jnp.where(ahead > hi, (x - hi) / safe, d))

    return jax.tree.map(leaf, x, direction, *reduced.problem.x_bounds)


class StochasticState(State):
    """`memory` is what the algorithm itself remembers; the rest is shared."""

    key: Array
    drawn: tuple[UInt32[Array, ""], UInt32[Array, ""]]
    memory: PyTree[Array]
    optimizer: PyTree[Array]
    scales: Scales
    value: Float[Array, ""]
    direction: PyTree[Array]
    trend: PyTree[Array]
    power: Float[Array, ""]
    echo: Float[Array, ""]
    first: Float[Array, ""]
    x_mean: PyTree[Array]
    W_mean: PyTree[Array]
    averaged: Int[Array, ""]


def _bounces(s: StochasticState) -> Array:
    """Whether successive hypergradients mostly undo each other: the outer steps are too long."""
    return s.echo < -s.power / 2


class Stochastic(Solver):
    """A solver that works on small batches.

    **Arguments** common to all; step sizes are numbers or functions of the step (``Polynomial``, ``Cosine``, Optax's
    schedules). Those left out are set from the scales of the problem, measured at the start and told in
    ``solution.choices``.

    - `inner`: the step size of the lower level.
    - `outer`: the step size of ``x``; or an Optax transformation such as ``optax.adam(1e-2)``, given the hypergradient.
    - `batch`: samples in each batch.
    - `shuffle`: batches without replacement, every row once an epoch; else independent draws.
    - `average`: the share of the run, at its end, whose iterates are averaged.
    - `tolerance`: end when the hypergradient, averaged over about the last hundred steps, is at most this share of its
      size at ``x0``.
    """

    options: ClassVar[tuple[str, ...]] = ("batch",)
    schedules: ClassVar[tuple[str, ...]] = ("inner", "outer")
    fractions: ClassVar[tuple[str, ...]] = ("momentum", "probability")  # settings that may not exceed 1
    counts: ClassVar[tuple[tuple[str, int], ...]] = ()  # whole numbers and the least they may be
    exact: ClassVar[bool] = False  # whether the estimates lose all noise and bias at the solution
    default_steps: ClassVar[int] = 20_000
    chunk: ClassVar[int] = 200

    inner: Schedule = eqx.field(converter=traced, default=None)
    outer: Schedule = eqx.field(converter=_outer, default=None)
    batch: int = eqx.field(static=True, default=64, kw_only=True)
    shuffle: bool = eqx.field(static=True, default=True, kw_only=True)
    average: Any = eqx.field(converter=traced, default=0.1, kw_only=True)
    tolerance: Any = eqx.field(converter=traced, default=None, kw_only=True)

    def __check_init__(self):
        name = type(self).__name__
        for setting in (*self.schedules, "neumann", "difference"):
            check_schedule(f"{name}: {setting}", getattr(self, setting, None), self.fractions)
        for setting, least, most in (("average", 0, 1), ("tolerance", 0, np.inf)):
            value = getattr(self, setting)
            if isinstance(value, np.ndarray) and not least <= value <= most:
                raise ValueError(f"{name}: {setting} must lie between {least} and {most}, got {value}.")
        if not isinstance(self.shuffle, bool):
            raise TypeError(f"{name}: shuffle must be True or False, got {self.shuffle!r}.")
        for name, least in (("batch", 1), *self.counts):
            if getattr(self, name) is not None:
                whole(f"{type(self).__name__}: {name}", getattr(self, name), least)

    @abstractmethod
    def defaults(self, scales: Scales) -> dict[str, Schedule]:
        """The schedules to use where none is given."""

    def begin(self, reduced: Reduced, start: Start, ledger: Any) -> tuple[PyTree, Any]:
        """What the algorithm remembers before its first step; and the ledger."""
        return (), ledger

    @abstractmethod
    def update(self, reduced: Reduced, s: Any, draw: Draws, rate: Any) -> Any:
        """The next state: ``W``, ``memory``, ``value``, ``ledger``, and ``x`` by ``move``."""

    # -- the rest is the same for all

    def measure(self, reduced, key):
        if all(getattr(self, name) is not None for name in self.needed()):
            return None
        return measure(reduced, key, self.batch)

    def needed(self) -> tuple[str, ...]:
        """The settings that must be given, or else are measured."""
        return self.schedules

    def rates(self, s: StochasticState) -> SimpleNamespace:
        """All step sizes at this step."""
        given = {name: getattr(self, name) for name in self.schedules}
        missing = [name for name, value in given.items() if value is None]
        if missing:
            given |= {name: value for name, value in self.defaults(s.scales).items() if name in missing}
        dtype = s.value.dtype
        return SimpleNamespace(**{k: v if is_optax(v) else at(v, s.step, dtype) for k, v in given.items()})

    def init(self, reduced, key, steps, measured=None):
        start = Start.plain(reduced) if measured is None else measured
        common = fresh(reduced, steps)
        zero = jnp.zeros((), jax.tree.leaves(start.W)[0].dtype)
        memory, ledger = self.begin(reduced, start, start.ledger)
        x = common["x"]
        bent = jnp.where(start.definite, Result.RUNNING, Result.NOT_CONVEX)
        result = jnp.where(start.solved, bent, Result.LOWER_FAILED).astype(jnp.int32)
        return StochasticState(
            **(common | {"W": start.W, "ledger": ledger, "result": result}),
            key=key,
            drawn=(jnp.uint32(0), jnp.uint32(0)),
            memory=memory,
            optimizer=self.outer.init(x) if is_optax(self.outer) else (),
            scales=start.scales,
            value=zero,
            direction=trees.zeros(x),
            trend=trees.zeros(x),
            power=zero,
            echo=zero,
            first=jnp.where(start.scales.gradient >= 0, start.scales.gradient, 0),
            x_mean=x,
            W_mean=start.W,
            averaged=jnp.int32(0),
        )

    def move(self, reduced: Reduced, s: StochasticState, direction: PyTree, rate: Any) -> StochasticState:
        """The outer step along minus the direction, projected to the bounds."""
        if is_optax(rate):
            updates, optimizer = rate.update(direction, s.optimizer, s.x)
            x = reduced.project(jax.tree.map(lambda a, u: a + u.astype(a.dtype), s.x, updates))
            return replace(s, x=x, optimizer=optimizer, direction=_projected(reduced, s.x, direction, 1))
        x = reduced.project(trees.step(s.x, rate, direction))
        return replace(s, x=x, direction=_projected(reduced, s.x, direction, rate))

    def step(self, reduced, state):
        draw = Draws(self, reduced, state)
        s = self.update(reduced, state, draw, self.rates(state))
        dtype = s.value.dtype
        # the average starts over with each step until the last part begins
        begun = s.step + 1 > (1 - self.average) * s.limit
        count = jnp.where(begun, s.averaged + 1, 1)
        mean = lambda old, new: old + (new - old) / jnp.asarray(count, dtype)
        size = trees.norm(s.direction)
        keep = jnp.minimum(jnp.asarray(_MEMORY, dtype), s.step / (s.step + 1).astype(dtype))  # a plain mean at first
        blend = lambda old, new: keep * old + (1 - keep) * new
        return replace(
            s,
            drawn=tuple(draw.position),
            trend=jax.tree.map(blend, s.trend, s.direction),
            power=blend(s.power, size**2),
            echo=blend(s.echo, trees.dot(state.direction, s.direction)),
            first=jnp.where((s.step < _SPAN) & ~(s.scales.gradient >= 0), jnp.maximum(s.first, size), s.first),
            x_mean=jax.tree.map(mean, s.x_mean, s.x),
            W_mean=jax.tree.map(mean, s.W_mean, s.W),
            averaged=jnp.where(begun, count, 0).astype(jnp.int32),
        )

    def terminate(self, reduced, state):
        far = 1e8 * (1 + trees.norm((reduced.x0, reduced.W0)))
        lost = (trees.norm((state.x, state.W)) > far) & (state.result == Result.RUNNING)
        result = jnp.where(lost, Result.DIVERGED, state.result)
        if self.tolerance is None:
            return result
        eps, size = jnp.finfo(state.value.dtype).eps, jnp.sqrt(state.power)
        goal = jnp.maximum(self.tolerance, 30 * eps) * state.first
        # small, or what rounding x makes of it (where its curvature is known)
        small = (size <= goal) | (size <= 8 * eps * (1 + trees.norm(state.x)) * state.scales.bend)
        if not self.exact:  # or a mean that is small among mere noise: neither bouncing nor drifting to and fro
            small = small | (trees.norm(state.trend) <= goal) & (jnp.abs(state.echo) <= state.power / 2)
        good = Result.CONVERGED if self.exact else Result.SETTLED
        return jnp.where(small & (state.step >= _SPAN) & (result == Result.RUNNING), good, result)

    def spent(self, state):
        """At the noise floor if the mean of the last hypergradients is no larger than chance would have it."""
        drift = trees.norm(state.trend) ** 2
        chance = (1 - _MEMORY) / (1 + _MEMORY) * (state.power - drift)
        plain = jnp.where(drift <= 4 * chance, Result.NOISE, Result.BUDGET)
        return jnp.where(_bounces(state), Result.BOUNCING, plain)

    def told(self, state):
        missing = [name for name in self.schedules if getattr(self, name) is None]
        if not missing:
            return {}
        rate = self.rates(replace(state, step=jnp.int32(0)))
        sizes = ", ".join(f"{name} {float(getattr(rate, name)):.3g}" for name in missing)
        return {"step sizes": f"{sizes} (at first), from scales: {state.scales.words()}."}

    def answer(self, state):
        return state.x_mean, state.W_mean

    def record(self, state):
        return {"upper": state.value, "gradient": trees.norm(state.direction)}
