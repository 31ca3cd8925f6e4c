"""What all stochastic solvers share: batches, step sizes, momentum, the outer step, averages, how a run ends.

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
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from ..basis import OneHot
from ..derivatives import Ledger
from ..ground import arithmetic, below, derived, hashed, program, put, trees, whole
from ..lower import ROUNDINGS
from ..reduction import Batch, Batches, Bilevel, RowIndex, Source, Table, batch_rows
from .result import Result, outlook
from .schedules import Schedule, at, check_schedule, is_optax, traced
from .solver import Clock, Solver, State
from .step_scales import Scales, Start, measure, turned

_STEP_SIZES = ("inner", "outer", "linear")  # the schedules that are lengths of steps, and not weights or accuracies
_IN_COEFFICIENTS = ("inner", "linear", "neumann", "convex", "radius")  # settings that depend on their coordinates
_FAR = 1e8  # times the size of the start: iterates this large are lost, although they are finite still
_SPAN = 100  # steps over which a run is judged: long enough for noise to average out, short against any run
_BOUNCING = 1 / 2  # the share of their power that successive hypergradients cancel where steps are too long
# what a key is folded with, so that the draws of one step for different purposes are independent
_LARGE, _INDEPENDENT, _CHOICE = range(1, 4)


def storm(estimate: PyTree, here: PyTree, before: PyTree, weight: Float[Array, ""] | float) -> PyTree:
    r"""$d_k = D_k(z_k) + (1 - a)\,(d_{k-1} - D_k(z_{k-1}))$: the same batch at the new point and at the old one.

    `weight` $a = 1$ forgets the past (plain stochastic gradients), $a = 0$ is SARAH and SPIDER.
    """
    return trees.add(here, trees.scale(1 - weight, trees.sub(estimate, before)))


def heavy_ball(estimate: PyTree, here: PyTree, weight: Float[Array, ""] | float) -> PyTree:
    r"""$d_k = (1 - a)\, d_{k-1} + a\, D_k(z_k)$: a moving average."""
    return trees.add(trees.scale(1 - weight, estimate), trees.scale(weight, here))


class DrawPosition(eqx.Module):
    """The key of a run, and how many batches of each level were taken: the whole position of its samplers."""

    key: Key[Array, ""]
    upper: UInt32[Array, ""]
    lower: UInt32[Array, ""]


class Draws:
    """The batches of one step, in order; lives while the step is traced, and its `position` goes into the state."""

    def __init__(self, reduced: Bilevel, position: DrawPosition, step: Int[Array, ""], batch: int, shuffle: bool):
        self._sources = {"upper": reduced.upper_source, "lower": reduced.lower_source}
        *keys, self._other = (derived(position.key, k) for k in range(3))
        self._keys = dict(zip(self._sources, keys, strict=True))
        self._step, self._batch, self._shuffle, self._dtype = step, batch, shuffle, reduced.dtype
        self.position = position

    def _advance(self, level: str, count: Int[Array, ""] | int) -> UInt32[Array, ""]:
        """The number of the next batch of a level, of which `count` are taken."""
        begin = getattr(self.position, level)
        after = begin + jnp.asarray(count, jnp.uint32)
        self.position = eqx.tree_at(lambda position: getattr(position, level), self.position, after)
        return begin

    def _next(self, level: str, count: Int[Array, ""] | int | None = None) -> Any:
        """The next batch of a level, or the next `count` of them, by number."""
        begin = self._advance(level, 1 if count is None else count)
        source, key = self._sources[level], self._keys[level]
        if count is None:
            return source.batch(key, begin, self._batch, self._shuffle)
        return source.batches(key, begin, count, self._batch, self._shuffle)

    def upper(self) -> Batch:
        return self._next("upper")

    def lower(self) -> Batch:
        return self._next("lower")

    def uppers(self, count: Int[Array, ""] | int) -> Batches:
        return self._next("upper", count)

    def lowers(self, count: Int[Array, ""] | int) -> Batches:
        return self._next("lower", count)

    def independent(self, count: Int[Array, ""] | int | None = None) -> Batches:
        """Lower batches by number, always with replacement: products of Hessians need them independent.

        Where `count`, how many at most, is a plain number, their rows are chosen all at once.
        """
        key = derived(self.key(), _INDEPENDENT)
        return self._sources["lower"].batches(key, jnp.uint32(0), count, self._batch, False)

    def rows(self, level: str) -> RowIndex:
        """Which rows of the pool of a level come next, for solvers that keep something for each."""
        pool = self._sources[level].rows
        return batch_rows(self._keys[level], self._advance(level, 1), self._batch, pool, True, self._dtype)

    def key(self) -> Key[Array, ""]:
        """For other random choices in this step."""
        return derived(self._other, self._step)

    def choice(self, count: Int[Array, ""] | int) -> Int[Array, ""]:
        """A random number from 0 to ``count - 1``."""
        return below(hashed(self.key(), _CHOICE), count).astype(jnp.int32)

    def large(self, size: int | None, batches: int = 16) -> tuple[Batch, Batch]:
        """For each level all rows, or `size` fresh rows if given.

        For a stream, as many rows as in `batches` batches: sixteen cut the noise by four.
        """

        def part(source: Source, key: Array) -> Batch:
            if source.rows is not None and (size is None or size >= source.rows):
                return source.pool()
            return source.draw(key, batches * self._batch if size is None else size)

        for_upper, for_lower = jax.random.split(derived(self.key(), _LARGE))
        return part(self._sources["upper"], for_upper), part(self._sources["lower"], for_lower)


class Outer(eqx.Module):
    """The last step of ``x``: the upper `value` before it, its projected `direction`, and Optax's state, if any.

    `pace`: a factor of all step sizes, of both levels; less than 1 after a retreat.
    """

    value: Float[Array, ""]
    direction: PyTree[Array]
    optimizer: PyTree[Array]
    pace: Float[Array, ""]


class Trend(eqx.Module):
    """Moving averages over the last directions: their `mean`, their squared length `power`, and `echo`, the product of
    each with the one before. `first` is the size to which they are compared."""

    mean: PyTree[Array]
    power: Float[Array, ""]
    echo: Float[Array, ""]
    first: Float[Array, ""]

    def after(
        self, step: Int[Array, ""], before: PyTree[Array], direction: PyTree[Array], known: Bool[Array, ""]
    ) -> "Trend":
        """With one more direction; where `first` is not `known`, it is the largest size of the first steps."""
        dtype, size = self.power.dtype, trees.norm(direction)
        share = step.astype(dtype) / (step + 1).astype(dtype)  # a plain mean at first
        keep = jnp.minimum(jnp.asarray(1 - 1 / _SPAN, dtype), share)
        blend = lambda old, new: keep * old + (1 - keep) * new
        return Trend(
            mean=jax.tree.map(blend, self.mean, direction),
            power=blend(self.power, size**2),
            echo=blend(self.echo, trees.dot(before, direction)),
            first=jnp.where((step < _SPAN) & ~known, jnp.maximum(self.first, size), self.first),
        )

    def scatters(self) -> Bool[Array, ""]:
        """Whether successive directions neither undo nor repeat each other: they are mostly noise."""
        return jnp.abs(self.echo) <= _BOUNCING * self.power

    def spent(self) -> Int[Array, ""]:
        """The code of the result where all steps are used up: bouncing, where successive directions mostly undo each
        other; noise, where the mean is within two standard errors of zero."""
        drift = trees.norm(self.mean) ** 2
        chance = (self.power - drift) / (2 * _SPAN - 1)  # the variance of a moving average of noise
        plain = jnp.where(drift <= 4 * chance, Result.NOISE.code, Result.BUDGET.code)
        return jnp.where(self.echo < -_BOUNCING * self.power, Result.BOUNCING.code, plain)


class Average(eqx.Module):
    """The mean of the iterates over the last part of the run: ``x``, ``W``, and of how many."""

    x: PyTree[Array]
    W: PyTree[Array]
    count: Int[Array, ""]

    def after(self, x: PyTree[Array], W: PyTree[Array], begun: Bool[Array, ""]) -> "Average":
        """With one more iterate; starts over with each until the last part of the run has `begun`."""
        count = jnp.where(begun, self.count + 1, 1)
        mean = lambda old, new: old + (new - old) / count.astype(old.dtype)
        x, W = jax.tree.map(mean, (self.x, self.W), (x, W))
        return Average(x, W, jnp.where(begun, count, 0).astype(jnp.int32))


class StochasticState(State):
    """`memory` is what the algorithm itself remembers, `scales` what step sizes are set from; the rest is shared."""

    draws: DrawPosition
    memory: PyTree[Array]
    scales: Scales
    outer: Outer
    trend: Trend
    average: Average

    def record(self):
        return {"upper": self.outer.value, "gradient": trees.norm(self.outer.direction)}


def _outer(value: Any) -> Any:
    return value if is_optax(value) else traced(value)


class Stochastic(Solver):
    """A solver that works on small batches.

    **Arguments** common to all; step sizes are numbers or functions of the step (``PolynomialDecay``, ``Cosine``,
    Optax's schedules). Those left out are set from the scales of the problem, measured at the start and reported in
    ``solution.choices``.

    - `inner`: the step size of the lower level.
    - `outer`: the step size of ``x``; or an Optax transformation such as ``optax.adam(1e-2)``, applied to the
      hypergradient.
    - `batch`: samples in each batch.
    - `shuffle`: batches without replacement, every row once per epoch; else independent draws.
    - `average`: the last part of the run, as a share, whose iterates are averaged.
    - `tolerance`: stop when the hypergradient, averaged over about the last hundred steps, is at most this share of its
      size at ``x0``.
    """

    schedules: ClassVar[tuple[str, ...]] = ("inner", "outer")  # settings that are numbers or functions of the step
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
        """The schedules to use if none is given."""

    def needed(self) -> tuple[str, ...]:
        """The settings for which scales are measured if they are left out."""
        return self.schedules

    @property
    def measured(self) -> bool:
        """Whether all lengths of steps are set from the scales."""
        return all(getattr(self, name, None) is None for name in _STEP_SIZES)

    def begin(self, reduced: Bilevel, start: Start, ledger: Ledger) -> tuple[PyTree, Ledger]:
        """What the algorithm remembers before its first step; and the ledger."""
        return (), ledger

    @abstractmethod
    def update(self, reduced: Bilevel, s: StochasticState, draw: Draws, rate: SimpleNamespace) -> StochasticState:
        """The next state, by ``move``."""

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

    def prepare(self, reduced):
        """If nothing in units of the coefficients is given, the solver chooses its coordinates: those in which the
        observed features are orthonormal, so that only the curvature of ``g`` sets the pace; with a barrier, those in
        which the lower level is evenly curved at the start (see ``turned``). Only for tables of dense rows: others
        would have to be laid out, or filled."""
        ours = all(getattr(self, name, None) is None for name in _IN_COEFFICIENTS)
        sources = (reduced.upper_source, reduced.lower_source)
        dense = all(type(one) is Table and not isinstance(one.table.features, OneHot) for one in sources)
        return turned(reduced.whitened()) if ours and dense else reduced

    def ready(self, reduced):
        return reduced.looked_through()

    def init(self, reduced, key, steps):
        missing = any(getattr(self, name) is None for name in self.needed())
        start = measure(reduced, key, self.batch) if missing else Start.plain(reduced)
        return self._first(reduced, start, key, steps)

    def _first(self, reduced: Bilevel, start: Start, key: Array, steps: Any) -> StochasticState:
        """The state before the first step."""
        memory, ledger = self.begin(reduced, start, start.ledger)
        xp, x, gradient = arithmetic(start), reduced.project(reduced.x0), start.scales.gradient
        convex = xp.where(start.definite, Result.RUNNING.code, Result.NOT_CONVEX.code)
        result = xp.where(start.solved, convex, Result.LOWER_FAILED.code)
        zero, one = put((np.zeros((), reduced.dtype), np.ones((), reduced.dtype)))
        return StochasticState(
            x=x,
            W=start.W,
            clock=put(Clock.start(steps, result)),
            ledger=ledger,
            draws=DrawPosition(key, *put((np.uint32(0), np.uint32(0)))),
            memory=memory,
            scales=start.scales,
            outer=Outer(zero, trees.zeros(x), _optimizer(self.outer, x) if is_optax(self.outer) else (), one),
            trend=Trend(trees.zeros(x), zero, zero, put(xp.where(gradient >= 0, gradient, zero))),
            average=Average(x, start.W, put(np.int32(0))),
        )

    def like(self, reduced, key, steps):
        """Nothing is measured for that."""
        first = lambda problem, key: self._first(problem, Start.plain(problem), key, jnp.int32(steps))
        return eqx.filter_eval_shape(first, reduced, key)

    def move(
        self, reduced: Bilevel, s: StochasticState, value: Float[Array, ""], direction: PyTree, rate: Any, **more: Any
    ) -> StochasticState:
        """The next state, after the outer step along minus the direction, projected to the bounds.

        `value` is the upper objective before it; `more`: what else is new, ``W``, ``memory`` and ``ledger``.
        """
        if is_optax(rate):
            updates, optimizer = rate.update(direction, s.outer.optimizer, s.x)
            x = reduced.project(jax.tree.map(lambda a, u: a + (s.outer.pace * u).astype(a.dtype), s.x, updates))
            length = 1
        else:
            x, optimizer, length = reduced.project(trees.step(s.x, rate, direction)), s.outer.optimizer, rate
        left = reduced.problem.bounds.projected_gradient(s.x, direction, length)
        return replace(s, x=x, outer=Outer(value.astype(s.dtype), left, optimizer, s.outer.pace), **more)

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
        good = Result.CONVERGED if self.exact else Result.SETTLED
        now = jnp.where(self._converged(state), good.code, Result.RUNNING.code)
        return state.clock.outcome(jnp.where(lost, Result.DIVERGED.code, now), state.trend.spent())

    def _converged(self, state: StochasticState) -> Array:
        """Whether the last hypergradients are below the tolerance."""
        if self.tolerance is None:
            return jnp.asarray(False)
        trend = state.trend
        small = self.is_small(state, jnp.sqrt(trend.power))
        if not self.exact:  # or a mean that is small among mere noise: neither bouncing nor drifting to and fro
            small = small | self.is_small(state, trees.norm(trend.mean)) & trend.scatters()
        return small & (state.step > _SPAN)

    def is_small(self, state: StochasticState, size: Float[Array, ""]) -> Array:
        """Whether a hypergradient of that size is below the tolerance, or no larger than rounding of ``x`` makes it (if
        the curvature is known)."""
        rounding = ROUNDINGS * jnp.finfo(state.dtype).eps
        goal = jnp.maximum(jnp.asarray(self.tolerance, state.dtype), rounding) * state.trend.first
        return (size <= goal) | (size <= rounding * (1 + trees.norm(state.x)) * state.scales.bend)

    def outlook(self, state, curves):
        """From the squared sizes of the last two quarters' directions, less their noise at the end."""
        taken, trend = len(curves.get("gradient", ())), jax.tree.map(lambda a: np.asarray(a, float), state.trend)
        if taken < 4 * _SPAN or not trend.first > 0:
            return ""
        drift = float(np.asarray(trees.norm(trend.mean))) ** 2
        quarters = np.asarray(curves["gradient"], float)[taken // 2 :] ** 2 - max(float(trend.power) - drift, 0.0)
        before, last = (float(np.mean(part)) for part in np.array_split(quarters, 2))
        falls = before > last > 0
        pace = np.log(before / last) / (curves["step"][-1] / 2) if falls else 0.0  # of the root, over a quarter
        rounding = ROUNDINGS * float(np.finfo(state.dtype).eps)
        goal = {} if self.tolerance is None else {"goal": max(float(self.tolerance), rounding)}
        share = drift**0.5 / float(trend.first)
        rounded = self.exact and state.dtype != np.float64 and share < float(np.finfo(state.dtype).eps) ** 0.5
        return outlook(share, float(pace), rounded=rounded, **goal)

    def finish(self, state):
        missing = [name for name in self.schedules if getattr(self, name) is None]
        words, scales = {}, jax.tree.map(np.asarray, state.scales)
        if missing and np.isfinite([scales.smooth, scales.convex, scales.bend, scales.pull, scales.steep]).all():
            given = self.defaults(scales)
            first = {name: float(at(given[name], np.asarray(0, np.int32), state.dtype)) for name in missing}
            sizes = ", ".join(f"{name} {size:.3g}" for name, size in first.items())
            words["step sizes"] = f"{sizes} (initially), from measured scales: {scales.words()}."
        return state.average.x, state.average.W, words


@program
def _optimizer(outer: Any, x: PyTree) -> PyTree:
    """The state of an Optax transformation before its first step."""
    return outer.init(x)
