r"""The reduced problem at ``x`` and on both sides of it along each coordinate, sample by sample.

The value of the reduced problem is the mean of $m_i(x) = f_i - v^T r_i$ with the policy and the adjoint solved for at
that ``x`` (``derivatives.expansion_rows``). Since $m$ does not change, to first order, with either of them, its
derivative along ``x`` is what sample $i$ contributes to the gradient, the noise of policy and adjoint included: the
influence of that sample in the stacked conditions lower stationarity, adjoint, upper stationarity. Derivatives are
differences over a standard error of ``x``, about, so that kinks in ``f`` count as the samples see them.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import trees
from ..derivatives import ExpansionRows, Ledger, expansion_rows, noise_reach, oracles
from ..lower import Point, solve_at
from ..problem import Study
from ..programs import Held, program, put
from ..reduction import Bilevel, Reduced, as_coefficients
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


class Solved(eqx.Module):
    """The reduced problem solved at some points: values, gradients, rows; a leading axis over points.

    `sizes`: the root mean square of single samples' gradients, by coordinate of ``x``; `spread`: that of ``f``;
    `turning`: the distances over which the lower level's noise turns.
    """

    value: Float[Held, "*p"]
    gradient: Float[Held, "*p dx"]
    sound: Bool[Held, "*p"]
    W: Float[Held, "*p N dy"]
    adjoint: Float[Held, "*p N dy"]
    rows: ExpansionRows
    sizes: Float[Held, "*p dx"]
    spread: Float[Held, "*p"]
    turning: Float[Held, "*p dx"]


@program
def _solve_points(reduced: Bilevel, points: Float[Held, "p dx"], count: Int[Held, ""], joint: bool) -> Solved:
    """Solves at the first `count` points from the coefficients at hand, one after the other; zeros at the others."""
    unravel = ravel_pytree(reduced.x0)[1]
    upper, lower, start = reduced.upper_pool, reduced.lower_pool, reduced.W0
    slope, _ = oracles.lower_gradient(reduced, unravel(points[0]), trees.zeros(start), lower, Ledger.page())
    target = jnp.finfo(points.dtype).eps ** _LOWER_TARGET * jnp.linalg.norm(oracles.flatten(slope)[0])
    functions = len(jax.tree.leaves(start)[0])

    def one(x):
        point, _ = solve_at(reduced, x, start, target, Ledger.page())
        rows = expansion_rows(reduced, unravel(x), point.W, point.adjoint, upper, lower, joint)
        W, V = (oracles.flatten(part)[0].reshape(functions, -1) for part in (point.W, point.adjoint))
        return Solved(
            point.value, point.gradient, point.sound, W, V, rows, *_row_scales(reduced, unravel(x), point, rows.f)
        )

    def add(k, table):
        return jax.tree.map(lambda rows, row: rows.at[k].set(row), table, one(points[k]))

    one = jax.jit(one)  # traced once, for its shapes and for the loop
    like = jax.eval_shape(one, points[0])
    return jax.lax.fori_loop(0, count, add, jax.tree.map(lambda a: jnp.zeros((len(points), *a.shape), a.dtype), like))


def _row_scales(reduced: Bilevel, x: PyTree, point: Point, values: Float[Held, " n"]) -> tuple[Array, Array, Array]:
    """The size of single samples' gradients, by coordinate; the spread of ``f``; and how far the noise reaches."""
    upper, lower, ledger = reduced.upper_pool, reduced.lower_pool, Ledger.page()
    (_, d1, _), _ = oracles.upper_rows(reduced, x, point.W, upper, ledger)
    (_, _, cross), _ = oracles.lower_rows(reduced, x, point.W, point.adjoint, lower, ledger)
    flat = lambda rows: jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(rows)
    mean = lambda batch, table: jnp.tensordot(batch.weight / len(batch), table, axes=1)
    squares = mean(upper, flat(d1) ** 2) + mean(lower, flat(cross) ** 2)
    spread = jnp.sqrt(mean(upper, (values - mean(upper, values)) ** 2))
    spread = jnp.where(spread > 0, spread, jnp.abs(point.value))
    return jnp.sqrt(squares), spread, noise_reach(reduced, x, point.W, lower)


@dataclass(frozen=True)
class Around:
    """The reduced problem at ``x`` (the first point), and ahead of and behind it along each of `directions`.

    - `reduced`: whitened, its start the solution at ``x``; `study`: what it came from.
    - `directions`: rows, the steps taken forward; `back`: the share of each that is taken backward.
    - `solved`: the points, first ``x``, then all forward ones, then all backward ones.
    - `at_kink`: coordinates that a kink of the objective holds; `near_kink`: those whose minimum may lie at one.
    - `unit`: of each coordinate of ``x``: a distance along which the objective curves by 1, where it does.
    - `held`: what is the same around other points, kept once it is known.
    """

    study: Study
    reduced: Reduced
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
        bounds = self.study.problem.bounds.flat()
        lo, hi = np.asarray(bounds.lo, float), np.asarray(bounds.hi, float)
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

    def at_x(self, table: Held) -> np.ndarray:
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

    def along(self, directions: np.ndarray) -> "Around":
        """The same around ``x`` along other directions, as many as before."""
        return replace(Around.of(self.study, self.reduced, self.x, directions, self.unit, self.joint), held=self.held)

    def moved(self, step: np.ndarray) -> "Around":
        """The same around another point, along the same directions."""
        moved = Around.of(self.study, self.reduced, self.x + step, self.directions, self.unit, self.joint)
        return replace(moved, held=self.held)

    @staticmethod
    def of(
        study: Study, reduced: Reduced, x: np.ndarray, directions: np.ndarray, unit: np.ndarray, joint: bool
    ) -> "Around":
        """Solves the reduced problem at ``x``, ahead of and behind it."""
        directions, back = _both_sides(study, x, directions)
        points = np.concatenate([x[None], x + directions, x - back[:, None] * directions])
        solved = _solved_at_points(reduced, points, joint, len(points))
        return Around(study, reduced, x, directions, back, solved, unit, joint)


def _solved_at_points(reduced: Reduced, points: np.ndarray, joint: bool, count: int) -> Solved:
    """The tables as NumPy's, which are cut and combined on the host."""
    solved = _solve_points(reduced.ordinary(), put(points.astype(reduced.dtype)), put(np.int32(count)), joint)
    return jax.tree.map(np.asarray, solved)


def _at_x_alone(reduced: Reduced, x: Float[np.ndarray, " dx"], joint: bool) -> Solved:
    """The reduced problem solved at ``x`` alone, by the program that solves it around ``x``."""
    return _solved_at_points(reduced, np.tile(x, (2 * len(x) + 1, 1)), joint, 1)


def _both_sides(study: Study, x: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps ahead, shortened to the room that bounds leave, and the share of each that is taken backward.

    Where there is no room on a side, both points lie on the other one, the second twice as far.
    """
    bounds = study.problem.bounds.flat()
    lo, hi = np.asarray(bounds.lo, float), np.asarray(bounds.hi, float)
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


def natural_step(reduced: Reduced, x: Float[Held, " dx"]) -> Float[np.ndarray, " dx"]:
    """The distance, along each coordinate of ``x``, over which ``f`` changes by its spread over the samples."""
    at = np.asarray(x, float)
    return _natural(at, _solved_at_points(reduced, at[None], False, 1))


def _natural(at: np.ndarray, solved: Solved) -> np.ndarray:
    """The spread over the size of single samples' gradients; where these vanish, after ``x`` itself.

    Not less than a share of what turns the lower level's noise: at an ``x`` where ``f`` itself vanishes, its spread and
    its gradients are rounding.
    """
    sizes, wide = np.asarray(solved.sizes[0], float), float(solved.spread[0])
    known = (sizes > 0) & (wide > 0)
    step = np.where(known, wide / np.where(known, sizes, 1), np.where(at != 0, np.abs(at), 1.0))
    return np.maximum(step, _SHARE_OF_TURN * np.asarray(solved.turning[0], float))


def look_around(study: Study, reduced: Reduced, x: PyTree, joint: bool) -> Around:
    """Solves the reduced problem (whitened) around ``x``, over about a standard error along each coordinate.

    `joint`: with the rows that products of neighbouring samples are made of.
    """
    at = np.asarray(ravel_pytree(x)[0].astype(study.dtype), float)
    first = _at_x_alone(reduced, at, joint)
    reduced, step = replace(reduced, W0=as_coefficients(np.asarray(first.W[0]), reduced.W0)), _natural(at, first)
    size, spread = np.asarray(first.sizes[0], float), float(first.spread[0])
    unit = step / np.sqrt(spread if spread > 0 else 1.0)
    around = _in_own_units(Around.of(study, reduced, at, np.diag(_FIRST_REACH * step), unit, joint), size)
    wanted = _standard_reach(around)
    reach = np.abs(np.diag(around.directions))
    far = np.maximum(wanted / np.maximum(reach, 1e-300), reach / np.maximum(wanted, 1e-300)) > _SAME_REACH
    if not around.sound:
        return around
    if not np.any(far & np.isfinite(wanted)):
        wider = around.along(_WIDER * around.directions)
        seen = _with_kinks(around, wider) if wider.sound else around
        return replace(around, at_kink=seen.at_kink, near_kink=seen.near_kink)
    again = around.along(np.diag(np.where(np.isfinite(wanted) & (wanted > 0), wanted, reach)))
    return _with_kinks(around, _in_own_units(again, size)) if again.sound else around


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
