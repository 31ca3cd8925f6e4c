r"""``Newton``: full batch, exact implicit hypergradient, second order in the coefficients and in ``x``.

One step searches along the way to the minimum of a quadratic model (``newton_model``), each trial with the lower level
solved; the damping and the line search in the coefficients are in ``lower.damped_newton``. A Newton step has a scale of
its own, and the decrease that it promises is in units of the objective: nothing here depends on the units of ``x``.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..derivatives import Curvature, Expansions, HostLedger, flattened, with_fewer
from ..ground import plain, positive, whole
from ..iteration import ROUNDINGS, Clock, Evolving, Result, Solver
from ..lower import (
    ARMIJO,
    LENGTHS,
    Point,
    curved_along,
    lower_inverse,
    lower_size,
    preconditioned,
    solve_at,
    units_by_products,
)
from .newton_model import Model, Secants, explaining, free_at, units_of

_LOWER_ACCURACY = 0.9  # exponent of the precision: the lower gradient, relative to its first; Newton reaches that
_FAR_OFF = 1e-3  # of the spread: a decrease promised above which half as many digits of the coefficients will do
_EXACTLY = 10 * _FAR_OFF  # of the gradient, by products: what it may be off; of coefficients and adjoint, a tenth
_SHORTEN = (0.1, 0.5)  # the least and the most that is kept of a refused step, so that interpolation cannot mislead
_STEEP = 0.9  # of the first slope (Wolfe), the customary constant: where as much is left, a step was too short
_AGREED = (0.25, 0.75)  # of the decrease that the model promised: below, it is trusted less far; above, all the way
_ACCURACY = 1.5  # exponent of the precision: the decrease still promised at the end, as a share of the spread


def trouble(point: Point) -> Result:
    """What to report where a point is not sound."""
    if not point.solved:
        return Result.LOWER_FAILED
    return Result.UPPER_FAILED if point.definite else Result.NOT_CONVEX


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Plan:
    """What the model says at the iterate.

    - `step`: to its minimum; `promised`: the decrease on the way there, half the slope along it (the decrement).
    - `bend`: where the gradient vanishes but the objective curves downwards, its curvature along that direction, which
      the step then is; else 0.
    - `first`: the share of the step to try first; `unit`: of each coordinate; `spread`: of the objective over the
      samples, when last measured.
    """

    step: Any
    promised: Any
    first: Any
    bend: Any
    unit: Any
    spread: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Current:
    """The upper objective at the iterate: `value` and `gradient`, the `size` of what bounds leave of it; the size of
    the lower gradient. Where it comes by products: the `adjoint`, from which the next one starts, and `known`, the
    ``x`` and the coefficients at which the preconditioner was made."""

    value: Any
    gradient: Any
    size: Any
    lower_gradient: Any
    adjoint: Any
    known: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stage:
    """A search on some of the rows.

    - `number`: of the stages before it, on fewer rows; `rows`: of the lower level in the last step.
    - `begun`: whether the lower level is solved at the iterate, on these rows; `target`: the size of the lower gradient
      to solve to, negative before the first step; `failures`: searches in a row that found no lower point.
    """

    number: Any
    rows: Any
    begun: Any
    target: Any
    failures: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NewtonState(Evolving):
    """What evolves, besides what every state has.

    - `current`: the upper objective at the iterate; `plan`: the next step.
    - `sensitivity`: how the coefficients move with ``x``, from which those of the next ``x`` are predicted.
    - `secants`: changes of the gradient that the Hessian does not explain.
    - `stage`: on which rows, and how far it has come.
    """

    x: Any
    W: Any
    clock: Any
    ledger: Any
    current: Any
    sensitivity: Any
    plan: Any
    secants: Any
    stage: Any

    def record(self):
        now = self.current
        first = {"upper": now.value, "gradient": now.size, "promised": self.plan.promised}
        return first | {"lower_gradient": now.lower_gradient, "rows": self.stage.rows}


class Newton(Solver):
    r"""Solves the reduced problem over all samples at once.

    At each ``x`` the coefficients minimise $g_\Phi$ by a damped Newton method on the structured Hessian
    $\mathrm{mean}(\partial_{22} g \otimes \Phi\Phi^T)$ (formed up to 2000 coefficients; beyond, preconditioned
    conjugate gradients take its products), starting from a prediction by the previous solution. The hypergradient is
    exact, by implicit differentiation; ``x`` moves by Newton steps too, on the exact Hessian of the reduced objective
    (of samples in partitions, that of the rows in this process), its eigenvalues made positive, within the bounds, with
    a line search. Far from the solution the Hessian of a policy straight in ``x`` (Gauss and Newton's) is used where it
    explains the last step better. Where neither explains it, as across kinks of ``f``, secant pairs correct the
    Hessian; they replace it if it cannot be formed.
    Features are whitened first, so the solution depends on the span of the basis and not on its conditioning;
    directions that the observed contexts do not determine keep their initial values.

    **Arguments:**

    - `tolerance`: stop when the next step promises to lower the objective by at most this share of its spread over the
      samples (its standard deviation; its size, if it does not vary), by default the precision to the power 3/2,
      or 1e-18 where rows are dear; or when that is less than rounding.
    - `memory`: how many secant pairs are kept.

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
        return reduced if isinstance(reduced, Expansions) else with_fewer(Expansions(reduced))

    def init(self, reduced, key, steps):
        at = self.ready(reduced)
        zero, none, W = np.zeros((), at.dtype), np.zeros(at.dx), at.table(at.reduced.W0)
        known = (at.start[:0], W[:0]) if at.formed else (at.start, W)
        crossed = at.dx if at.crossed or at.fewer is not None or self._by_columns(at) else 0
        return NewtonState(
            x=at.decision(np.clip(at.start, *at.bounds)),
            W=at.coefficients(W),
            clock=Clock.start(steps),
            ledger=HostLedger.of({}),
            current=Current(zero, np.zeros(at.dx, at.dtype), zero, zero, np.zeros_like(W), known),
            sensitivity=np.zeros((at.functions, at.dy, crossed), at.dtype),
            plan=Plan(none, np.asarray(np.inf), np.ones(()), np.zeros(()), none, np.zeros(())),
            secants=Secants.none(self.memory, at.dx, at.dtype),
            stage=Stage(*np.zeros(2, np.int64), np.asarray(False), np.asarray(-1.0), np.asarray(0, np.int32)),
        )

    @plain
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # far out; what is not finite is not taken
    def step(self, reduced, state):
        """The first step of a stage stays where it is and solves the lower level there; each later one is a search."""
        whole, state = self.ready(reduced), jax.tree.map(np.asarray, state)
        stages, now = stages_of(whole), state.stage
        stage = int(now.number)
        at, (few, *_) = stages[stage], [*stages[:stage][::-1], None]
        few = None if few is not None and few.nodal is not None and at.crossed else few
        spent = lambda: at.spent + (Counter() if few is None else few.spent)
        before, here, target, refused = spent(), _iterate(at, state), float(now.target), None
        begun, failures, known, count = bool(now.begun), int(now.failures), state.current.known, int(state.step)
        if not at.formed:  # made anew where the iterate has moved as often again
            known = (here.x, here.W) if begun and count & (count - 1) == 0 else known
            preconditioned(at, known)
        if target < 0:
            target = at.eps**_LOWER_ACCURACY * lower_size(at, here.x, here.W) if at.formed else 0.0
        if begun:
            close = 0.0 if failures else _closeness(at, state.plan)
            end, refused = _search(at, here, state.plan, target, close)
        else:
            close = _FAR_OFF if not at.formed else 0.0 if at.close is None else at.eps**0.6
            end = solve_at(at, here.x, here.W, np.inf if at.formed and close else target, close)
        bent = None
        if end is None:
            end, failures, secants = solve_at(at, here.x, here.W, target), failures + 1, state.secants.without()
            plan, result = _after_failure(at, end, state.plan, failures)
        elif begun or end.sound:
            seen = [(here, end), *([(end, refused)] if refused and refused.sound else [])] if begun else []
            news = [(b.x - a.x, b.gradient - a.gradient) for a, b in seen]
            if self._by_columns(at):
                bent, moved = curved_along(at, end, np.eye(at.dx), _EXACTLY)
                end = replace(end, sensitivity=moved)
            fallen = here.value - end.value
            plan, secants, result = self._planned(at, few, end, state.plan, state.secants, news, fallen, bent)
            failures = 0
            if result is not Result.RUNNING and at.formed and close > at.eps**0.6:  # as in a corner of the bounds
                nearer = solve_at(at, end.x, end.W, np.inf, at.eps**0.6, adjoint=end.adjoint)
                end = nearer if nearer.sound else end
                plan, secants, result = self._planned(at, few, end, state.plan, state.secants, news, fallen, bent)
        else:
            plan, secants, result, end = state.plan, state.secants, trouble(end), here
        size = float(np.linalg.norm(np.where(free_at(at, end), end.gradient, 0.0)))
        after = NewtonState(
            x=at.decision(end.x),
            W=at.coefficients(at.outer(end.W)),
            clock=replace(state.clock, result=result.code),
            ledger=state.ledger.plus(HostLedger.of(spent() - before)),
            current=Current(end.value, end.gradient, size, end.lower_gradient, at.outer(end.adjoint), known),
            sensitivity=np.zeros_like(state.sensitivity) if end.sensitivity is None else at.outer(end.sensitivity),
            plan=plan,
            secants=secants,
            stage=Stage(stage, at.rows["lower"], True, target, failures),
        )
        if stage < len(stages) - 1 and (result is not Result.RUNNING or count + 1 >= int(state.limit) // 2):
            after = self._at_next_stage(whole, after, result, len(stages))
        elif now.target >= 0 and not begun and not end.sound:  # all rows see what few did not: from the start on these
            after = self._anew(whole, after, len(stages))
        return jax.tree.map(lambda new, old: np.asarray(new, old.dtype, order="C"), after, state)

    @plain
    def _at_next_stage(self, whole: Expansions, after: NewtonState, result: Result, stages: int) -> NewtonState:
        """From where a search on fewer rows has ended; from the start, and on all rows, where it has failed."""
        if result not in (Result.RUNNING, Result.CONVERGED, Result.KINK, Result.STALLED):
            return self._anew(whole, after, stages)
        clock = replace(after.clock, result=Result.RUNNING.code)
        stage = replace(after.stage, number=after.stage.number + 1, begun=False, failures=0)
        return replace(after, clock=clock, stage=stage, secants=after.secants.without())

    @plain
    def _anew(self, whole: Expansions, after: NewtonState, stages: int) -> NewtonState:
        first = self.init(whole, None, after.clock.limit)
        clock = replace(after.clock, result=Result.RUNNING.code)
        stage = replace(first.stage, number=stages - 1, rows=after.stage.rows)
        return replace(first, clock=clock, ledger=after.ledger, stage=stage)

    @plain
    def _by_columns(self, at: Expansions) -> bool:
        """Whether the Hessian in ``x`` comes by products along each coordinate: as many would be remembered anyway."""
        return not at.formed and at.dx <= self.memory

    @plain
    def _planned(
        self,
        at: Expansions,
        few: Expansions | None,
        point: Point,
        last: Plan,
        secants: Secants,
        news: list[tuple[np.ndarray, np.ndarray]],
        fallen: float,
        bent: np.ndarray | None,
    ) -> tuple[Plan, Secants, Result]:
        """The next step from a point, the secants that the Hessian does not explain, and whether that is the end.

        `news`: the last step with the change of the gradient along it, and that from its end to where the search was
        refused; none before the first step. `fallen`: the decrease of the objective along the last step; `bent`: its
        Hessian, where it comes by products. On `few` rows, where they are given, the Hessian is formed as long as that
        explains how the gradient has changed, or where rows are long.
        """
        begun, changes = bool(news), news
        spread = float(last.spread) if begun and last.spread else _spread(at, point)
        exact, straight = _hessians(few or at, point, bent)
        hessian = exact
        unit = last.unit if hessian is None else units_of(hessian)
        lacking = ~np.isfinite(unit) | (unit == 0) & (point.gradient != 0)
        if not begun and not at.crossed and hessian is None:
            unit = units_by_products(at, point)
            unit = np.where(np.isfinite(unit), unit, np.min(unit, initial=np.inf))
        elif lacking.any() or (not begun and hessian is None):
            sizes = at.row_scales(point.x, point.W, point.adjoint, point.value).sizes
            other = np.sqrt(spread or 1.0) / sizes
            unit = np.where(lacking | (unit == 0), np.where(np.isfinite(other), other, 0.0), unit)
        if hessian is not None:
            hessian, unexplained = explaining(hessian, straight, unit, news, at.eps)
            if few is not None and unexplained and not at.long_rows:
                return self._planned(at, None, point, last, secants, news, fallen, bent)
            news = unexplained if few is None else news
        model = Model(at, point, hessian, unit)
        if hessian is not None and secants.count and not model.doubt(secants, changes) < model.doubt(None, changes):
            secants = secants.without()
        for change in news:
            secants = secants.with_one(*change)
        step = model.step(secants)
        promised = -float(point.gradient @ step) / 2
        if begun and point.value < -spread / at.eps and point.gradient @ last.step <= -_STEEP * 2 * last.promised:
            return Plan(step, promised, 1.0, 0.0, unit, spread), secants, Result.UNBOUNDED
        share = self._least(at)
        near = lambda promised: promised <= max(share, np.sqrt(at.eps)) * spread
        if near(promised) and not (begun and near(last.promised)):
            spread = _spread(at, point)
        first = _trusted(step, unit, last, changes[0][0], fallen, at.long_rows) if begun else 1.0
        if not begun and hessian is None:  # lengths are not known: a short one, which a search makes longer
            first = min(1.0, _EXACTLY * spread / promised) if promised > 0 else 1.0
        plan, noise = Plan(step, promised, first, 0.0, unit, spread), _noise(at, point, spread)
        if first < 1 and hessian is not None:
            short = model.shorter(step, first, secants)
            plan = replace(plan, step=short, promised=-float(point.gradient @ short) / 2, first=1.0)
        small = promised <= share * spread
        level = begun and promised <= noise and promised > last.promised / 4
        if not (small or level or np.all(np.abs(step) <= at.eps * np.abs(point.x))):
            return plan, secants, Result.RUNNING
        falls = Model(at, point, exact, unit).falling(np.sqrt(spread or 1.0))  # which a straight policy does not show
        if falls is not None and few is not None:
            return self._planned(at, None, point, last, secants, news, fallen, bent)
        if falls is not None:
            return replace(plan, step=falls, first=1.0, bend=falls @ exact @ falls), secants, Result.RUNNING
        held = bool(secants.count) and -float(point.gradient @ model.step()) / 2 > max(noise, promised)
        return plan, secants, Result.KINK if held else Result.CONVERGED

    @plain
    def _least(self, at: Expansions) -> float:
        """The decrease promised that is not worth a step, as a share of the spread."""
        share = at.eps ** (_ACCURACY if at.formed else 0.5) if self.tolerance is None else float(self.tolerance)
        if at.spread_over is not None:  # the next rows move the minimum further
            return max(share, _FAR_OFF ** (3 if at.nodal is None else 2))
        return max(share, _FAR_OFF**6) if at.long_rows and self.tolerance is None else share

    @plain
    def terminate(self, reduced, state):
        return state.clock.outcome(Result.RUNNING.code)

    def finish(self, state):
        x, W, words = super().finish(state)
        if not int(state.stage.number):
            return x, W, words
        few = (
            f"the search began on few of the {int(state.stage.rows)} rows (history['rows']); the answer is that of all."
        )
        return x, W, words | {"rows": few}


def stages_of(whole: Expansions) -> list[Expansions]:
    """The same on fewer rows, the fewest first; at last on all."""
    return [whole] if whole.fewer is None else [*stages_of(whole.fewer), whole]


def _hessians(at: Expansions, point: Point, bent: np.ndarray | None) -> tuple[np.ndarray | None, Any]:
    """The Hessian in ``x``, formed from the rows of `at` or given, and that of a policy straight in ``x``; ``None``
    where there is none."""
    if at.nodal is not None and point.sensitivity is None:
        W, v = at.inner(point.W), at.inner(point.adjoint)
        sums = at.lower(point.x, W)
        moved = -lower_inverse(replace(point, hessian=sums.hessian), sums.cross)
        point = replace(point, W=W, adjoint=v, sensitivity=moved)
    if at.curved and point.sensitivity is not None:
        exact, straight = Curvature(at, point.x, point.W, point.adjoint, point.sensitivity).hessians()
    elif bent is not None:
        exact, straight = (bent + bent.T) / 2, np.full_like(bent, np.nan)
    else:
        return None, None
    return (exact if np.all(np.isfinite(exact)) else None), straight


def _after_failure(at: Expansions, point: Point, plan: Plan, failures: int) -> tuple[Plan, Result]:
    """What comes after a search that has found no lower point: the end, where no more than rounding was promised, or
    next to a stationary point; else a step along the gradient, since a model may mislead, and then the end too."""
    noise, step = _noise(at, point, float(plan.spread)), Model(at, point, None, plan.unit).step()
    if plan.bend or plan.promised <= noise:
        return plan, Result.CONVERGED if -point.gradient @ step / 2 <= noise else Result.KINK
    plan = replace(plan, step=step, first=1.0, promised=-float(point.gradient @ step) / 2)
    return plan, Result.RUNNING if failures == 1 and point.sound else Result.STALLED


def _spread(at: Expansions, point: Point) -> float:
    """The standard deviation of the objective over the samples; its size, where it does not vary beyond rounding."""
    rows, W = at.spread_over or at, at.outer(point.W)
    centre = point.value if rows is at else rows.upper(point.x, W).value
    spread = rows.row_scales(point.x, W, centre=centre).spread
    return spread if spread > ROUNDINGS * at.eps * abs(point.value) else abs(point.value)


def _noise(at: Expansions, point: Point, spread: float) -> float:
    """The rounding of the objective."""
    return ROUNDINGS * at.eps * max(abs(point.value), spread)


def _iterate(at: Expansions, state: NewtonState) -> Point:
    """The iterate; not sound, so that a search does not end there."""
    x, W, now = flattened(state.x), at.inner(at.table(state.W)), state.current
    sensitivity = at.inner(np.asarray(state.sensitivity, float)) if state.sensitivity.shape[2] else None
    gradient, adjoint = np.asarray(now.gradient, float), at.inner(np.asarray(now.adjoint, float))
    return Point(x, W, float(now.value), gradient, float(now.lower_gradient), False, False, adjoint, sensitivity)


def _trusted(step: np.ndarray, unit: np.ndarray, last: Plan, taken: np.ndarray, fallen: float, dear: bool) -> float:
    """The share of a step to try first, since far off the lower level takes long to solve: all of it, where the model
    was right along the last one, but no more than four times as far where rows are dear; else as far, or twice."""
    size = lambda a: float(np.linalg.norm(np.divide(a, unit, where=unit > 0, out=np.zeros(len(unit)))))
    if last.bend or not fallen > 0 or not (size(last.step) and size(taken)):
        return 1.0
    length = size(taken) / size(last.step)
    agreed = fallen / (last.promised * length * (2 - length)) if length < 1.5 else 1.0
    far = 4.0 if dear else np.inf
    reach = far if agreed >= _AGREED[1] else 2.0 if agreed >= _AGREED[0] else 1.0
    return min(1.0, reach * size(taken) / (size(step) or 1.0))


def _closeness(at: Expansions, plan: Plan) -> float:
    """How far the lower level may be from its solution before its last Newton correction, which squares that, as a
    share of the coefficients. By products, how exact they and the adjoint are to be: the gradient, of which the
    decrease promised is the square, is to be off by a small share."""
    if at.formed:
        return at.eps ** (0.3 if plan.promised > _FAR_OFF * plan.spread else 0.6)
    return float(np.clip(_EXACTLY * np.sqrt(plan.promised / plan.spread), at.eps**0.75, _FAR_OFF))


def _search(at: Expansions, here: Point, plan: Plan, target: float, close: float) -> tuple[Point | None, Point | None]:
    """A point along the step where the objective is lower by a fair share of what was promised, and the nearest one
    beyond it that was refused; ``None`` where there is none.

    The whole step first, or what is trusted of it; then shorter ones, or longer ones while the slope stays what it was,
    faster and faster; then between the two. Where the decrease drowns in rounding, the whole step is taken.
    """
    step, slope, bend = np.asarray(plan.step, float), float(here.gradient @ plan.step), float(plan.bend)
    noise = ROUNDINGS * at.eps * abs(here.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(step > 0, at.bounds[1] - here.x, at.bounds[0] - here.x) / step
    most = max(1.0, float(np.min(room, where=step != 0, initial=np.inf)))
    low, high, length, shrink, refusals, best, refused = 0.0, np.inf, float(plan.first), 0.5, 0, None, None
    for turn in range(1, LENGTHS + 1):
        place = np.clip(here.x + length * step, *at.bounds)
        goal, begin = np.inf if close else target, here.coefficients_at(place)
        point = solve_at(at, place, begin, goal, close, adjoint=here.adjoint, trial=True)
        wanted = length * slope + length**2 * bend / 2
        if bend and -wanted <= noise:
            break
        hidden = -wanted <= noise and point.value <= here.value + noise
        if point.sound and (hidden or point.value <= here.value + ARMIJO * wanted):
            steep = point.gradient @ step < _STEEP * slope
            low, best = length, point
            lost = point.value < -plan.spread / at.eps  # all digits of what the samples show
            if hidden or not steep or bend or lost or length >= most or high <= 4 * low:
                return point, refused
        else:
            high, refused, refusals = length, point, refusals + 1
            ends = length * slope, length * float(point.gradient @ step)
            shrink = float(np.clip(_share(here, point, *ends), *_SHORTEN))
        if np.isinf(high):
            length = min(length * 4.0**turn, most)
        else:
            length = np.sqrt(low * high) if low else length * shrink**refusals
        if (best is not None and high <= 4 * low) or not length > 0:
            break
    return best, refused


def _share(here: Point, there: Point, slope: float, slope_there: float) -> float:
    """Of the way to a point that was refused, with the slopes on the way: where a parabola has its minimum; where the
    objective rises there, the tangents at both ends meet, as they do at a kink."""
    rise = there.value - here.value
    if not there.sound or rise <= slope:
        return 0.0
    return (rise - slope_there) / (slope - slope_there) if slope_there > 0 else -slope / (2 * (rise - slope))
