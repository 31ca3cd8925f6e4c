r"""The reduced problem at ``x`` and on both sides of it along each coordinate, sample by sample.

The value of the reduced problem is the mean of $m_i(x) = f_i - v^T r_i$ with the policy and the adjoint solved for at
that ``x`` (``derivatives.expansion_rows``). Since $m$ does not change, to first order, with either of them, its
derivative along ``x`` is what sample $i$ contributes to the gradient, the noise of policy and adjoint included: the
influence of that sample in the stacked conditions lower stationarity, adjoint, upper stationarity. Derivatives are
differences over a standard error of ``x``, about, so that kinks in ``f`` count as the samples see them.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..derivatives import Expansions, flattened
from ..lower import Point, lower_size, solve_at
from ..problem import Study
from ..reduction import Reduced
from .level_noise import level_covariance

_LOWER_TARGET = 0.9  # the power of the precision that the lower gradient is brought to
_FIRST_REACH = 1e-3  # of the distance over which f changes by its own spread: the first differences
_ERRORS_REACH = 1.0  # in standard errors of x: the second ones
_SAME_REACH = 8.0  # a factor between the two that calls for no second ones
_SHARE_OF_TURN = 1e-2  # of the distance over which the lower level's noise turns: the least natural step
_HELD = 2.5  # standard errors by which a gradient must push against a bound or a kink, for it to hold x
_WIDER = 4.0  # times the step: a second look, for kinks alone
_KINK, _UNEVEN = 3.0, 1.7  # ratios of curvatures at different widths that are a kink, and that are a single one
_ROUNDED_SLOPE = 1e-11  # of single samples' gradients: a change of their mean that rounding explains
_MOST_NUMBERS = 1.5e8  # held for all points and samples together: 1.2 GB
_MOST_POINTS = 200  # coordinates of x along which differences are taken


@dataclass(frozen=True)
class ExpansionRows:
    r"""Sample by sample, what the upper objective is made of to second order in the errors of policy and adjoint.

    At coefficients $W$ of the policy $y$ and $V$ of the adjoint $v$ each sample has
    $$r = \partial_2 g, \qquad \alpha = \partial_{22} g\, v - \partial_2 f, \qquad m = f - v^T r ,$$
    where $r$ and $\alpha$ vanish in conditional mean if policy and adjoint are exact. With
    $A = E[\partial_{22} g \mid \xi]$ and $M = E[\partial_{22} f - \partial_{222} g\, v \mid \xi]$,
    $$F = E[m] + E\big[\bar\alpha^T A^{-1} \bar r + \tfrac12\, \bar r^T A^{-1} M A^{-1} \bar r\big]
    + O(|y - y^\star|^3),$$
    bars for conditional means. `vr` is ``v^T r``, `curvature` ``d22 g`` and `bend` ``M``; all but the first two only
    where both levels see the same samples.
    """

    f: Float[np.ndarray, "*p m"]
    vr: Float[np.ndarray, "*p n"]
    r: Float[np.ndarray, "*p n dy"] | None = None
    alpha: Float[np.ndarray, "*p n dy"] | None = None
    curvature: Float[np.ndarray, "*p n dy dy"] | None = None
    bend: Float[np.ndarray, "*p n dy dy"] | None = None

    @staticmethod
    def at(expansions: Expansions, point: Point, joint: bool) -> "ExpansionRows":
        """The rows at one point."""
        lower, upper = expansions.lower_rows(point.x, point.W), expansions.upper_rows(point.x, point.W)
        (pool,) = expansions.lower_pools
        v = pool.y(point.adjoint)
        along = np.einsum("na,na->n", v, lower.slope)
        if not joint:
            return ExpansionRows(upper.value, along)
        alpha = np.einsum("nab,nb->na", lower.hessian, v) - upper.d2
        bend = expansions.bend_rows(point.x, point.W, point.adjoint)
        return ExpansionRows(upper.value, along, lower.slope, alpha, lower.hessian, bend)


@dataclass(frozen=True)
class Solved:
    """The reduced problem solved at some points: values, gradients, rows; a leading axis over points."""

    value: Float[np.ndarray, "*p"]
    gradient: Float[np.ndarray, "*p dx"]
    sound: Bool[np.ndarray, "*p"]
    W: Float[np.ndarray, "*p N dy"]
    adjoint: Float[np.ndarray, "*p N dy"]
    rows: ExpansionRows
    points: list[Point]

    @staticmethod
    def of(expansions: Expansions, points: list[Point], joint: bool) -> "Solved":
        rows = [ExpansionRows.at(expansions, point, joint) for point in points]
        over = lambda name, parts: np.stack([np.asarray(getattr(part, name)) for part in parts])
        tables = [None if getattr(rows[0], f.name) is None else over(f.name, rows) for f in fields(ExpansionRows)]
        names = ("value", "gradient", "sound", "W", "adjoint")
        return Solved(*(over(name, points) for name in names), ExpansionRows(*tables), points)


@dataclass(frozen=True)
class Centre:
    """A point at which the reduced problem is solved, from which others nearby are.

    `target`: the size of the lower gradient to solve to.
    """

    expansions: Expansions
    point: Point
    target: float

    @staticmethod
    def at(reduced: Reduced, x: Float[np.ndarray, " dx"]) -> "Centre":
        """The reduced problem solved at ``x`` from its own start."""
        expansions = Expansions(reduced.ordinary())
        start = expansions.table(reduced.W0)
        target = expansions.eps**_LOWER_TARGET * lower_size(expansions, x, np.zeros_like(start))
        return Centre(expansions, solve_at(expansions, x, start, target), target)

    def solved(self, points: Float[np.ndarray, "p dx"], joint: bool) -> Solved:
        """The reduced problem at points nearby; this one is not solved again."""
        return Solved.of(self.expansions, [self._solved_at(x) for x in points], joint)

    def _solved_at(self, x: Float[np.ndarray, " dx"]) -> Point:
        if np.array_equal(x, self.point.x):
            return self.point
        return solve_at(self.expansions, x, self.point.coefficients_at(x), self.target)

    def natural_step(self) -> tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"], float]:
        """The distance along each coordinate of ``x`` over which ``f`` changes by its spread over the samples; the
        sizes of single samples' gradients, and the spread.

        The spread over these sizes; where they vanish, after ``x`` itself. Not less than a share of what turns the
        lower level's noise: at an ``x`` where ``f`` itself vanishes, its spread and its gradients are rounding.
        """
        point = self.point
        scales = self.expansions.row_scales(point.x, point.W, point.adjoint, point.value)
        sizes, spread = scales.sizes, scales.spread or abs(point.value)
        known = (sizes > 0) & (spread > 0)
        other = np.where(point.x != 0, np.abs(point.x), 1.0)
        step = np.where(known, spread / np.where(known, sizes, 1), other)
        return np.maximum(step, _SHARE_OF_TURN * scales.turning), sizes, spread


@dataclass(frozen=True)
class Around:
    """The reduced problem at ``x`` (the first point), and ahead of and behind it along each of `directions`.

    - `reduced`: whitened; `study`: what it came from; `centre`: where it is solved, near by or right here.
    - `directions`: rows, the steps taken forward; `back`: the share of each that is taken backward.
    - `solved`: the points, first ``x``, then all forward ones, then all backward ones.
    - `at_kink`: coordinates that a kink of the objective holds; `near_kink`: those whose minimum may lie at one.
    - `unit`: of each coordinate of ``x``: a distance along which the objective curves by 1, where it does.
    - `held`: what is the same around other points, kept once it is known.
    """

    study: Study
    reduced: Reduced
    centre: Centre
    x: Float[np.ndarray, " dx"]
    directions: Float[np.ndarray, "k dx"]
    back: Float[np.ndarray, " k"]
    solved: Solved
    unit: Float[np.ndarray, " dx"]
    joint: bool
    at_kink: Bool[np.ndarray, " dx"] | None = None
    near_kink: Bool[np.ndarray, " dx"] | None = None
    held: dict[str, Any] = field(default_factory=dict)

    def free(self) -> Bool[np.ndarray, " dx"]:
        """The coordinates that no bound or kink holds: where the gradient pushes against it beyond its noise."""
        bounds = self.study.problem.bounds
        lo, hi = flattened(bounds.lo), flattened(bounds.hi)
        gradient, error = self.at_x(self.solved.gradient), self.gradient_error()
        near = 1e-9 * np.maximum(np.abs(self.x), np.where(np.isfinite(hi - lo), np.abs(hi - lo), 0))
        low = (self.x <= lo + near) & (gradient >= _HELD * error)
        high = (self.x >= hi - near) & (-gradient >= _HELD * error)
        return ~((lo == hi) | low | high | (False if self.at_kink is None else self.at_kink))

    def gradient_error(self) -> Float[np.ndarray, " dx"]:
        """The standard error of each coordinate of the gradient, where the directions are the coordinates."""
        upper, lower = (rows / self.lengths for rows in self.scores())
        return np.sqrt(np.maximum(np.diag(self.covariance((upper, lower))), 0))

    @property
    def sound(self) -> bool:
        """Whether the reduced problem could be solved at all points."""
        return bool(np.all(np.asarray(self.solved.sound)))

    @property
    def lengths(self) -> Float[np.ndarray, " k"]:
        """Of the steps along the coordinates, by which slopes are divided; 1 where there is no room for one."""
        k = np.diag(self.directions)
        return np.where(k != 0, k, 1.0)

    def hessian(self) -> Float[np.ndarray, "dx dx"]:
        """The curvature of the reduced objective, where the directions are the coordinates."""
        table = self.slope(self.solved.gradient) / self.lengths[:, None]
        return (table + table.T) / 2

    def at_x(self, table: Any) -> np.ndarray:
        """The part of a table over points that belongs to ``x``."""
        return np.asarray(table[0], float)

    def slope(self, table: Any) -> np.ndarray:
        """The derivative along each direction, per unit of it, from a table over points."""
        k = len(self.directions)
        ahead, behind = (np.asarray(table[a : a + k], float) for a in (1, 1 + k))
        return (ahead - behind) / (1 + self.back).reshape(-1, *[1] * (ahead.ndim - 1))

    def bend(self, table: Any) -> np.ndarray:
        """The second derivative along each direction."""
        k = len(self.directions)
        here, ahead, behind = (np.asarray(part, float) for part in (table[0], table[1 : 1 + k], table[1 + k :]))
        b = self.back.reshape(-1, *[1] * (ahead.ndim - 1))
        return 2 * ((ahead - here) * b + (behind - here)) / (b * (1 + b))

    def _values(self) -> tuple[Any, Any]:
        return self.solved.rows.f, -self.solved.rows.vr

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """What each sample of the two levels contributes to the derivative along each direction: ``(n, k)`` each."""
        upper, lower = (self.slope(part).T for part in self._values())
        return upper, lower

    def curvature_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """What each sample contributes to the second derivative along each direction."""
        upper, lower = (self.bend(part).T for part in self._values())
        return upper, lower

    def covariance(self, rows: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Of the sum of the means of the two levels' rows."""
        upper, lower = rows
        if self.study.shared:
            return level_covariance(self.study.lower, upper + lower)
        return level_covariance(self.study.upper, upper) + level_covariance(self.study.lower, lower)

    def with_rows(self, joint: bool) -> "Around":
        """The same, with the rows that products of neighbouring samples are made of."""
        if not joint:
            return self
        return replace(self, joint=True, solved=Solved.of(self.centre.expansions, self.solved.points, True))

    def along(self, directions: np.ndarray) -> "Around":
        """The same around ``x`` along other directions, as many as before."""
        return self._look(self.x, directions)

    def moved(self, step: np.ndarray) -> "Around":
        """The same around another point, along the same directions."""
        return self._look(self.x + step, self.directions)

    def _look(self, x: np.ndarray, directions: np.ndarray) -> "Around":
        if np.array_equal(x, self.x) and np.array_equal(directions, self.directions):
            return self
        found = Around.of(self.study, self.reduced, self.centre, x, directions, self.unit, self.joint)
        return replace(found, held=self.held)

    @staticmethod
    def of(
        study: Study,
        reduced: Reduced,
        centre: Centre,
        x: np.ndarray,
        directions: np.ndarray,
        unit: np.ndarray,
        joint: bool,
    ) -> "Around":
        """Solves the reduced problem at ``x``, ahead of and behind it."""
        directions, back = _both_sides(study, x, directions)
        points = np.concatenate([x[None], x + directions, x - back[:, None] * directions])
        return Around(study, reduced, centre, x, directions, back, centre.solved(points, joint), unit, joint)


def _both_sides(study: Study, x: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps ahead, shortened to the room that bounds leave, and the share of each that is taken backward.

    Where there is no room on a side, both points lie on the other one, the second twice as far.
    """
    bounds = study.problem.bounds
    lo, hi = flattened(bounds.lo), flattened(bounds.hi)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(directions > 0, (hi - x) / directions, np.where(directions < 0, (lo - x) / directions, np.inf))
        behind = np.where(
            directions > 0, (x - lo) / directions, np.where(directions < 0, (x - hi) / directions, np.inf)
        )
    room, behind = np.clip(room.min(axis=1), 0, 1), np.clip(behind.min(axis=1), 0, 1)
    forward = np.where(room >= 0.05, room, -behind / 2)
    backward = np.where(behind >= 0.05, behind, -room / 2)
    return directions * forward[:, None], np.where(forward != 0, backward / np.where(forward != 0, forward, 1), 1.0)


def too_large(study: Study, dx: int, joint: bool) -> str:
    """Why differences along each coordinate are not taken, in words; empty where they can be."""
    dy, rows = study.problem.sizes[1], 0
    for level in (study.upper, study.lower):
        rows += (level.count or 0) * (len(level.contexts()) if level.crossed else 1)
    numbers = (2 * dx + 1) * rows * (1 + (2 * dy + 2 * dy**2 if joint else 0))
    if dx > _MOST_POINTS:
        return f"x has {dx} coordinates, more than {_MOST_POINTS}"
    return f"{numbers:.1g} numbers would be held" if numbers > _MOST_NUMBERS else ""


def natural_step(reduced: Reduced, x: PyTree) -> Float[np.ndarray, " dx"]:
    """The distance, along each coordinate of ``x``, over which ``f`` changes by its spread over the samples."""
    return Centre.at(reduced, flattened(x)).natural_step()[0]


def look_around(study: Study, reduced: Reduced, x: PyTree, joint: bool) -> Around:
    """Solves the reduced problem (whitened) around ``x``, over about a standard error along each coordinate.

    `joint`: with the rows that products of neighbouring samples are made of.
    """
    at = flattened(x).astype(study.dtype).astype(float)
    centre = Centre.at(reduced, at)
    step, size, spread = centre.natural_step()
    unit = step / np.sqrt(spread if spread > 0 else 1.0)
    around = _in_own_units(Around.of(study, reduced, centre, at, np.diag(_FIRST_REACH * step), unit, False), size)
    wanted = _standard_reach(around)
    reach = np.abs(np.diag(around.directions))
    far = np.maximum(wanted / np.maximum(reach, 1e-300), reach / np.maximum(wanted, 1e-300)) > _SAME_REACH
    if not around.sound:
        return around.with_rows(joint)
    if not np.any(far & np.isfinite(wanted)):
        wider = around.along(_WIDER * around.directions)
        seen = _with_kinks(around, wider) if wider.sound else around
        return replace(around, at_kink=seen.at_kink, near_kink=seen.near_kink).with_rows(joint)
    again = around.along(np.diag(np.where(np.isfinite(wanted) & (wanted > 0), wanted, reach)))
    return (_with_kinks(around, _in_own_units(again, size)) if again.sound else around).with_rows(joint)


def _with_kinks(first: Around, second: Around) -> Around:
    """The second look, with kinks noted: a curvature that is not the same at different widths.

    One that grows as steps shrink is a kink at ``x``, which holds it where the gradients on both sides are clear of
    their noise. One that grows with the steps may be many small kinks, one in each sample, or one large one nearby;
    half the step then shows all of it, or none.
    """
    looks = (first, second)
    narrow = np.abs(first.lengths) <= np.abs(second.lengths)
    bends = [np.diag(look.hessian()) for look in looks]
    close, far = np.where(narrow, *bends), np.where(narrow, *bends[::-1])
    here, beyond = (close > _KINK * np.abs(far)) & (close > 0), far > _KINK * np.abs(close)
    if not np.any(here | beyond):
        return second
    k = len(close)
    sides = [np.asarray(look.solved.gradient, float)[1:].reshape(2, k, k) for look in looks]
    ahead, behind = (np.where(narrow, *(np.diag(side[a]) for side in sides)) for a in (0, 1))
    noise = _HELD * second.gradient_error()
    holds = here & (ahead > noise) & (behind < -noise)
    half = np.diag(second.along(second.directions / 2).hessian()) if beyond.any() else far
    uneven = beyond & ((half > _UNEVEN * far) | (half < far / _UNEVEN))
    return replace(second, at_kink=holds, near_kink=(here & ~holds) | uneven)


def _in_own_units(around: Around, size: Float[np.ndarray, " dx"]) -> Around:
    """With units in which the objective curves alike along all coordinates, where it curves beyond rounding."""
    bend = np.diag(around.hessian())
    seen = bend * np.abs(around.lengths) > _ROUNDED_SLOPE * size
    return replace(around, unit=np.where(seen, 1 / np.sqrt(np.where(seen, bend, 1)), around.unit))


def _standard_reach(around: Around) -> np.ndarray:
    """About a standard error of each coordinate of ``x``; infinite where the curvature does not show one."""
    k = around.lengths
    upper, lower = around.scores()
    noise = around.covariance((upper / k, lower / k))
    values, vectors = np.linalg.eigh(around.hessian() * np.outer(around.unit, around.unit))
    kept = values > 1e-6 * max(values[-1], 0) if values[-1] > 0 else values > np.inf
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * np.outer(around.unit, around.unit)
    if not kept.any():
        return np.full(len(k), np.inf)
    error = np.sqrt(np.maximum(np.diag(inverse @ noise @ inverse), 0))
    return _ERRORS_REACH * np.where(error > 0, error, np.inf)
