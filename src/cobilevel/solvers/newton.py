r"""``Newton``: full batch, second order in the coefficients, exact implicit hypergradient, quasi-Newton in ``x``.

One step is a line search in ``x`` along the quasi-Newton direction, each trial with the lower level solved; the damping
and the line search in the coefficients are in ``lower.damped_newton``. The rules by which a run ends are in
``newton_stopping``, the units in which it measures ``x`` in ``newton_units``.
"""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float

from ..checks import positive, whole
from ..derivatives import Curvature, Expansions, HostLedger, flattened
from ..iteration import ROUNDINGS, SOLVED, Clock, Evolving, Result, Solver
from ..lower import Point, lower_size, solve_at
from ..programs import plain
from .newton_stopping import Stopping, Trial
from .newton_units import Units

_LOWER_ACCURACY = 0.9  # exponent of the precision: the lower gradient, relative to its first; Newton reaches that
_LOOSEST = 1e-6  # of the coefficients: how far the lower level may be from its solution while a run is far off
_TRIALS = 30  # shortened by half or more each, the last is a billionth of the first: shorter ones drown in rounding
_SHORTEN = (0.1, 0.5)  # the least and the most that is kept of a refused step, so that interpolation cannot mislead
_FAIR_SHARE = 1e-4  # of the decrease that the gradient promised (Armijo), the customary constant
_FIRST_STEP = 0.5  # of the spread of the objective: the first step of steepest descent; the next knows curvature
_STEADY = 0.999  # of the first gradient: an objective that falls without end keeps as much
_GROWTH_OF_STEPS = 4  # times the step before, where that has shown no positive curvature


def trouble(point: Point) -> Result:
    """What to report where a point is not sound."""
    if not point.solved:
        return Result.LOWER_FAILED
    return Result.UPPER_FAILED if point.definite else Result.NOT_CONVEX


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuasiNewtonMemory:
    """Pairs of L-BFGS: the last `steps` and the `changes` of the gradient along them, newest first; and a `curvature`
    that they correct, with the `least` along any direction.

    `count` pairs are filled, the others are 0. Where no curvature is known, `least` is infinite.
    """

    steps: Any
    changes: Any
    count: Any
    curvature: Any
    least: Any

    @staticmethod
    def empty(size: int, dx: int, curved: bool = False, dtype: Any = float) -> "QuasiNewtonMemory":
        """Room for so many pairs of vectors, and for a curvature if `curved`."""
        pairs, square = np.zeros((size, dx), dtype), (dx, dx) if curved else (0, 0)
        nothing = np.asarray(np.inf, dtype)
        return QuasiNewtonMemory(pairs, pairs.copy(), np.asarray(0, np.int32), np.zeros(square, dtype), nothing)

    def direction(
        self, gradient: Float[np.ndarray, " dx"], free: Bool[np.ndarray, " dx"]
    ) -> Float[np.ndarray, " dx"] | None:
        """Minus the L-BFGS inverse Hessian on the free coordinates times the gradient, by the two-loop recursion.

        Pairs without positive curvature there are passed over; ``None`` where nothing is known.
        """
        count, known = int(self.count), bool(np.isfinite(self.least))
        steps, changes = (np.where(free, np.asarray(part[:count], float), 0.0) for part in (self.steps, self.changes))
        bend = np.sum(steps * changes, axis=1)
        sizes = np.linalg.norm(steps, axis=1) * np.linalg.norm(changes, axis=1)
        use = bend > len(free) * np.finfo(float).eps * sizes  # below, the two are orthogonal but for rounding
        if not (known and free.any()) and not use.any():
            return None
        steps, changes, bend = steps[use], changes[use], bend[use]
        q, shares = np.where(free, gradient, 0.0), []
        for s, c, b in zip(steps, changes, bend, strict=True):
            shares.append(s @ q / b)
            q = q - shares[-1] * c
        if known:
            r, matrix = np.zeros_like(q), np.asarray(self.curvature, float)[np.ix_(free, free)]
            try:
                r[free] = np.linalg.solve(matrix, q[free])
            except np.linalg.LinAlgError:  # flat along some directions: none along these
                r[free] = np.linalg.pinv(matrix, hermitian=True) @ q[free]
        else:
            r = q * (bend[0] / (changes[0] @ changes[0]))
        for s, c, b, share in zip(steps[::-1], changes[::-1], bend[::-1], shares[::-1], strict=True):
            r = r + s * (share - c @ r / b)
        return -r

    def least_curvature(self) -> float:
        """The least curvature that is known; infinite where none is."""
        lengths, changes = (np.linalg.norm(np.asarray(part, float), axis=1) for part in (self.steps, self.changes))
        some = lengths > 0
        return float(np.min(changes[some] / lengths[some], initial=float(self.least)))

    def last_length(self) -> float:
        """The length of the last step; 0 where there is none."""
        return float(np.linalg.norm(self.steps[0])) if self.count else 0.0

    def upon(self, hessian: Float[np.ndarray, "dx dx"], damping: float = 0.0) -> "QuasiNewtonMemory":
        """The same pairs upon a curvature: that of a Hessian with the sizes of its principal curvatures.

        The share `damping` of the largest is added to all.
        """
        values, vectors = np.linalg.eigh(hessian)
        bends = np.abs(values) + damping * np.max(np.abs(values))
        kind = self.steps.dtype
        return replace(self, curvature=((vectors * bends) @ vectors.T).astype(kind), least=bends.min().astype(kind))

    def without_pairs(self) -> "QuasiNewtonMemory":
        """The curvature alone."""
        nothing = np.zeros_like(self.steps)
        return replace(self, steps=nothing, changes=nothing, count=np.zeros_like(self.count))

    def remember(self, step: Float[np.ndarray, " dx"], change: Float[np.ndarray, " dx"]) -> "QuasiNewtonMemory":
        """With one more pair, the oldest dropped."""
        roll = lambda table, row: np.concatenate([row[None].astype(table.dtype), table[:-1]])
        count = np.asarray(min(int(self.count) + 1, len(self.steps)), np.int32)
        return replace(self, steps=roll(self.steps, step), changes=roll(self.changes, change), count=count)


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


class Newton(Solver):
    r"""Solves the reduced problem over all samples at once.

    At each ``x`` the coefficients minimise $g_\Phi$ by a damped Newton method on the structured Hessian
    $\mathrm{mean}(\partial_{22} g \otimes \Phi\Phi^T)$ (formed up to 2000 coefficients, applied as products beyond),
    starting from a prediction by the previous solution. The hypergradient is exact, by implicit differentiation; ``x``
    moves by projected L-BFGS with backtracking. If ``x`` has more coordinates than `memory` (and at most 2000), or once
    a run has taken more than `memory` steps, the curvature of the reduced objective is formed too, by products. It
    replaces the L-BFGS pairs wherever it explains how the gradient changes. Elsewhere the pairs correct the curvature
    of ``f`` along a policy linear in ``x``: 76 capacities of a road network then take 36 steps.
    Features are whitened first, so the solution depends on the span of the basis and not on its conditioning;
    directions that the observed contexts do not determine keep their initial values.

    **Arguments:**

    - `tolerance`: stop when the projected gradient is at most this share of its first value, by default the precision
      to the power 2/3, *and* the next quasi-Newton step would move ``x`` by less than the square root of the precision
      (so that a start far away, with a huge gradient, does not look like convergence).
    - `memory`: how many pairs of steps the quasi-Newton method keeps; for more coordinates or steps see above.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.Newton())
    >>> solution.converged
    True
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
        zero, crossed = np.zeros((), at.dtype), at.dx if at.crossed else 0
        return NewtonState(
            x=at.decision(np.clip(at.start, *at.bounds)),
            W=at.coefficients(at.table(at.reduced.W0)),
            clock=Clock.start(steps),
            ledger=HostLedger.of({}),
            current=Current(zero, np.zeros(at.dx, at.dtype), zero, zero),
            sensitivity=np.zeros((at.functions, at.dy, crossed), at.dtype),
            memory=self._first_memory(at, Units.unknown(at.dx)),
            stopping=Stopping.start(),
            units=Units.unknown(at.dx),
        )

    @plain
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # far out; what is not finite is not taken
    def step(self, reduced, state):
        """The first step stays at ``x0`` and solves the lower level there; each later one is a line search."""
        at, state = self.ready(reduced), jax.tree.map(np.asarray, state)
        before, here, size = at.spent.copy(), _iterate(at, state), float(state.current.size)
        rule, begun = state.stopping, bool(state.stopping.begun)
        if not begun:
            rule = replace(rule, lower_target=at.eps**_LOWER_ACCURACY * lower_size(at, here.x, here.W))
        close = _closeness(at, rule, size)
        trial = _line_search(at, here, size, state.memory, state.units, rule, close)
        if begun and not trial.moved and close:  # a gradient that is not exact may point nowhere
            here = solve_at(at, here.x, here.W, float(rule.lower_target))
            size = state.units.projected(at, here)
            trial = _line_search(at, here, size, state.memory, state.units, rule, 0.0)
        point, moved = trial.point, trial.moved
        units, anew = state.units.after(at, point) if moved else (state.units, False)
        if moved and begun and not anew:
            steps = (point.x - here.x) * units.sigma, (point.gradient - here.gradient) / units.sigma
            memory = state.memory.remember(*steps)
            if at.dx > self.memory or state.step >= self.memory:
                memory = self._with_curvature(at, point, units, memory)
        else:
            memory = self._first_memory(at, units, point if moved else None)
        rule, size = replace(rule, begun=begun and not anew).after(
            at,
            units,
            here,
            size,
            trial,
            ahead=_next_length(at, units, memory, trial),
            curvature=state.memory.least_curvature(),
            tolerance=at.eps ** (2 / 3) if self.tolerance is None else self.tolerance,
        )
        end = point if moved else here
        after = NewtonState(
            x=at.decision(end.x),
            W=at.coefficients(end.W),
            clock=replace(state.clock, result=state.result if begun or moved else trouble(point).code),
            ledger=state.ledger.plus(HostLedger.of(at.spent - before)),
            current=Current(end.value, end.gradient, size, end.lower_gradient),
            sensitivity=np.zeros_like(state.sensitivity) if end.sensitivity is None else end.sensitivity,
            memory=memory,
            stopping=rule,
            units=units,
        )
        return jax.tree.map(lambda new, old: np.asarray(new, old.dtype, order="C"), after, state)

    @plain
    def _first_memory(self, at: Expansions, units: Units, point: Point | None = None) -> QuasiNewtonMemory:
        """Without pairs; with the curvature, in the units of the run, where it is known, or where that of a straight
        policy is of use: for more coordinates than pairs."""
        curved = at.curved or at.curvature is not None
        memory = QuasiNewtonMemory.empty(self.memory, at.dx, curved, at.dtype)
        if at.curvature is not None:
            return memory.upon(at.curvature / np.outer(units.sigma, units.sigma))
        if point is None or at.dx <= self.memory or not at.curved or point.sensitivity is None:
            return memory
        return self._straight(at, point, units, memory, _FIRST_STEP * float(units.spread)) or memory

    @plain
    def _straight(
        self, at: Expansions, point: Point, units: Units, memory: QuasiNewtonMemory, reach: float
    ) -> QuasiNewtonMemory | None:
        """Upon the curvature of ``f`` along a policy straight in ``x`` (Gauss and Newton's, for sums of squares),
        damped for a step no longer than `reach`; ``None`` where it is not positive: ``f`` is not convex there."""
        hessian = self._hessian(at, point, units, True)
        if hessian is None:
            return None
        gradient, least = np.where(units.free(at, point, 0.0), point.gradient, 0.0) / units.sigma, np.sqrt(at.eps)
        damping = _damping(hessian, gradient, reach, least)
        if damping is None:
            return None
        return (memory if damping == least else memory.without_pairs()).upon(hessian, damping)

    @plain
    def _hessian(self, at: Expansions, point: Point, units: Units, straight: bool) -> Float[np.ndarray, "dx dx"] | None:
        """The curvature at a point in the units of the run; ``None`` where these are so uneven that pairs for every
        coordinate know more than what damping leaves."""
        rows = _curvature(at, point).all_products(straight).gradient / np.outer(units.sigma, units.sigma)
        hessian = (rows + rows.T) / 2
        return None if at.dx <= self.memory and np.linalg.cond(hessian) > at.eps**-0.5 else hessian

    @plain
    def _with_curvature(
        self, at: Expansions, point: Point, units: Units, memory: QuasiNewtonMemory
    ) -> QuasiNewtonMemory:
        """The curvature at a point, where pairs are too few for the coordinates or for the run.

        In place of the pairs, where it explains how the gradient has changed along the last step. Where it does not,
        far from where the objective is a parabola, or where that does so better, that of a straight policy, which the
        pairs correct. Else, as across a kink of ``f``, the pairs know more.
        """
        if not at.curved or point.sensitivity is None:
            return memory
        here, sigma = _curvature(at, point), units.sigma
        step, change = (np.asarray(part[0], float) for part in (memory.steps, memory.changes))
        off = lambda straight: np.linalg.norm(here.products(step[None] / sigma, straight).gradient[0] / sigma - change)
        exact, straight, half, found = off(False), off(True), np.linalg.norm(change) / 2, None
        explained = exact < half
        if not explained or straight < exact:
            kept = memory.without_pairs() if straight < half else memory
            found = self._straight(at, point, units, kept, _GROWTH_OF_STEPS * float(np.linalg.norm(step)))
        if found is None and explained:
            hessian = self._hessian(at, point, units, False)
            found = None if hessian is None else memory.without_pairs().upon(hessian, np.sqrt(at.eps))
        return memory if found is None else found

    @plain
    def terminate(self, reduced, state):
        away = _ran_away(self.ready(reduced), state)
        return state.clock.outcome((Result.UNBOUNDED if away else state.stopping.verdict()).code)


def _ran_away(at: Expansions, state: NewtonState) -> bool:
    """Whether the objective falls without end: it and ``x`` have gone so far that all digits of the spread over the
    samples are lost, and the gradient is what it was."""
    x, value, lost = flattened(state.x), float(state.current.value), float(state.units.spread) / at.eps
    if value >= -lost or state.units.far(x) <= lost or state.current.size < _STEADY * state.stopping.scale:
        return False
    return value < -at.row_scales(x, at.table(state.W), centre=value).spread / at.eps ** (
        1 / 3
    )  # it may have grown too


def _damping(
    hessian: Float[np.ndarray, "n n"], gradient: Float[np.ndarray, " n"], reach: float, least: float
) -> float | None:
    """The share of the largest curvature that is to be added to all for a step no longer than `reach` (Levenberg and
    Marquardt's), or `least`; ``None`` where not all directions curve upwards, by that share."""
    values, vectors = np.linalg.eigh(hessian)
    if not values[0] > -least * values[-1]:
        return None
    along, damping = vectors.T @ gradient, least
    while damping < 1 and np.linalg.norm(along / (np.abs(values) + damping * values[-1])) > reach:
        damping *= 2
    return damping


def _curvature(at: Expansions, point: Point) -> Curvature:
    return Curvature(at, point.x, point.W, point.adjoint, point.sensitivity)


def _iterate(at: Expansions, state: NewtonState) -> Point:
    """The iterate; not sound, so that a search does not end there."""
    x, W, now = flattened(state.x), at.table(state.W), state.current
    sensitivity = np.asarray(state.sensitivity, float) if at.crossed else None
    gradient = np.asarray(now.gradient, float)
    return Point(x, W, float(now.value), gradient, float(now.lower_gradient), False, False, W, sensitivity)


def _closeness(at: Expansions, rule: Stopping, size: float) -> float:
    """How far the lower level may be from its solution, as a share of the coefficients; 0 for not at all.

    Far from its end a run needs no exact lower level: a third of the digits, and more as the gradient falls. Where
    products stand for the Hessian, no last correction makes up for it.
    """
    share = size / float(rule.scale) if rule.begun and rule.scale else 1.0
    close = min(_LOOSEST, share**2)
    return close if at.formed and not rule.failures and close > at.eps**SOLVED else 0.0


def _line_search(
    at: Expansions, here: Point, size: float, memory: QuasiNewtonMemory, units: Units, rule: Stopping, close: float
) -> Trial:
    """The full step first, then shorter ones until the objective falls; where not begun, only solves at ``x``.

    Points are in units of the problem, the memory and the size of the gradient in those of the run.
    """
    x, g, begun = here.x, here.gradient, bool(rule.begun)
    rounding = ROUNDINGS * at.eps * abs(here.value)
    direction, free, use_memory = _direction(at, here, size, memory, units)
    target = np.inf if close else float(rule.lower_target)

    def enough(point: Point) -> bool:
        if not point.sound or not begun:
            return point.sound
        wanted = _FAIR_SHARE * (g @ (point.x - x))
        if wanted < 0 and point.value <= here.value + wanted:
            return True
        drowned = -wanted <= rounding and point.value <= here.value + rounding
        return bool(drowned and units.projected(at, point) < size)

    refused, point, length = here, here, 1.0
    for trial in range(_TRIALS if begun else 1):
        if trial:
            slope = g @ (point.x - x)
            excess = point.value - here.value - slope
            best = -slope / (2 * excess) if point.sound and excess > 0 else 0.0  # the minimum of the parabola
            length *= float(np.clip(best, *_SHORTEN))
        place = np.clip(x + length * direction, *at.bounds)
        refused, point = point, solve_at(at, place, here.coefficients_at(place), target, close)
        if enough(point):
            return Trial(point, refused, True, free, use_memory)
    return Trial(point, point, False, free, use_memory)


def _direction(
    at: Expansions, point: Point, size: float, memory: QuasiNewtonMemory, units: Units
) -> tuple[Float[np.ndarray, " dx"], Bool[np.ndarray, " dx"], bool]:
    """The direction of the search, its free coordinates, and whether the memory was of use."""
    x, g = units.scaled(point)
    spread, half = float(units.spread), np.sqrt(at.eps)  # half the digits: what is as close to a bound counts as there
    free = units.free(at, point, np.minimum(size * spread, half * (spread + np.abs(x))))
    direction, length = memory.direction(g, free), float(np.linalg.norm(g))
    if direction is not None and direction @ g < 0:
        most = (spread + units.far(point.x)) / half  # a step that loses more digits would lead anywhere
        direction = direction * min(1.0, most / float(np.linalg.norm(direction)))
        along = direction @ g / (length**2 or 1.0)  # the fixed coordinates go as far as the others
        return np.where(free, direction, along * g) / units.sigma, free, True
    reach = max(_FIRST_STEP * spread, _GROWTH_OF_STEPS * memory.last_length())
    reach = max(reach, half * units.far(point.x))  # shorter ones would hardly change x
    return -g * (reach / length if length > 0 else 0.0) / units.sigma, free, False


def _next_length(at: Expansions, units: Units, memory: QuasiNewtonMemory, trial: Trial) -> float:
    """The length of the next quasi-Newton step, within the bounds; infinite where no curvature is known."""
    gradient, free = trial.point.gradient / units.sigma, trial.free
    step = memory.direction(gradient, free)
    if step is None and free.any():
        return np.inf
    low, high = units.room(at, trial.point)
    room = np.where(gradient > 0, low, np.where(gradient < 0, high, 0.0))
    return float(np.linalg.norm(np.where(free, 0.0 if step is None else step, room)))
