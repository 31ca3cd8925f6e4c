r"""The reduced problem at ``x`` and on both sides of it along each coordinate, sample by sample.

The value of the reduced problem is the mean of $m_i(x) = f_i - v^T r_i$ with the policy and the adjoint solved for at
that ``x`` (``SampleTerms``). Since $m$ does not change, to first order, with either of them, its derivative along ``x``
is what sample $i$ contributes to the gradient, the noise of policy and adjoint included: the influence of that sample
in the stacked conditions lower stationarity, adjoint, upper stationarity. Derivatives are differences over a standard
error of ``x``, about, so that kinks in ``f`` count as the samples see them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, PyTree
from scipy import special

from ..derivatives import Expansions, flattened, galerkin
from ..lower import DENSE_LIMIT, ROUNDINGS, Point, lower_size, solve_at
from ..problem import Finite, Level
from ..reduction import Reduced
from ..study import Study

DOUBT = 0.007  # the chance that noise alone decides a single question
CLEAR = float(special.ndtri(1 - DOUBT))  # standard errors by which a gradient pushes against what holds x
AGREE = float(special.ndtri(1 - DOUBT / 2))  # standard errors by which two estimates of the same may differ
NEGLIGIBLE, NOTICED = 1e-3, 1e-2  # of a whole: a share that counts for nothing, and one from which on it does
MOST_NUMBERS = 1.5e8  # held at one time: 1.2 GB
MOST_COORDINATES = 200  # of x along which differences are taken
_WIDER = 4.0  # a ratio of two steps at which kinks show; steps within twice that of a standard error will do
_LEFT = 0.25  # of a Newton step: what may be left after it, where the objective is about a parabola
KINK = 0.75 * _WIDER  # the ratio of curvatures over such steps that is a kink, which alone would show all of _WIDER


# -- the noise of means over rows


def slope_accuracy(eps: float) -> float:
    """The relative accuracy that slopes are trusted to: that of a difference quotient with the best step."""
    return eps ** (2 / 3)


def influence(rows: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n k"]:
    """How far each of independent rows moves their weighted mean."""
    return (rows - shares @ rows) * shares[:, None]


def mean_covariance(rows: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the weighted mean of independent rows."""
    moved = influence(rows, shares)
    return moved.T @ moved


def level_covariance(level: Level, rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the mean of rows over a level's pool; of contexts and data apart where they are crossed."""
    shares = level.contexts().shares()
    if not level.crossed:
        return mean_covariance(rows, shares)
    table = rows.reshape(len(shares), -1, rows.shape[1])
    by_data = np.tensordot(shares, table, axes=1)
    spread = mean_covariance(by_data, np.full(len(by_data), 1 / len(by_data)))
    return spread if level.law is not None else spread + mean_covariance(table.mean(axis=1), shares)


def policy_noise(
    study: Study, reduced: Reduced, x: PyTree, W: PyTree
) -> Callable[[Any], Float[np.ndarray, "n dy"]] | str:
    r"""A function from contexts to the standard error of each component of ``y``; or why there is none, in words.

    With ``x`` held, the coefficients `W` (in the coordinates of `reduced`) solve
    $\mathrm{mean}(\partial_2 g_i \otimes \Phi_i) = 0$, so their covariance is the sandwich $H^{-1} S H^{-1}$ with $H$
    the curvature of the lower level and $S$ the covariance of that mean. Residuals are enlarged by what the fit to each
    sample takes from them (without that, ten samples per function give 90% coverage instead of 95%). The error of the
    basis is not included.
    """
    expansions = Expansions(reduced.ordinary())
    count, rows = expansions.functions * expansions.dy, reduced.lower_source.rows
    if rows is None or count > DENSE_LIMIT or 3 * rows * count > MOST_NUMBERS:  # scores, and two copies of them
        return f"the policy has {count} coefficients and {rows} samples, too many to form their covariance."
    (pool,) = expansions.lower_pools
    phi, shares = np.asarray(pool.features, float), pool.shares
    lower = expansions.lower_rows(flattened(x), expansions.table(W))
    slopes, hessian = lower.slope, galerkin(phi, lower.hessian * shares[:, None, None])
    if not np.all(np.isfinite(hessian)) or np.linalg.eigvalsh(hessian)[0] <= 0:
        return "the lower level is not strongly convex at the policy."
    if not study.lower.crossed:
        leverage = np.sum(np.linalg.qr(phi * np.sqrt(shares)[:, None])[0] ** 2, axis=1)
        slopes = slopes / np.maximum(1 - leverage, 0.1)[:, None]  # tenfold: a fit that follows one further is silent
    scores = (phi[:, :, None] * slopes[:, None, :]).reshape(len(phi), -1)
    half = np.linalg.solve(hessian, level_covariance(study.lower, scores))
    sizes = phi.shape[1], slopes.shape[1]
    spread = np.einsum("kjlj->jkl", np.linalg.solve(hessian, half.T).reshape(*sizes, *sizes))

    def errors(xi: Any) -> Float[np.ndarray, "n dy"]:
        at = np.asarray(reduced.features(xi), float)
        found = np.sqrt(np.maximum(np.einsum("nk,jkl,nl->nj", at, spread, at), 0))
        return np.where(_observed(study, xi)[:, None], found, np.nan)

    return errors


def _observed(study: Study, xi: Any) -> Bool[np.ndarray, " n"]:
    """Whether all categories of each context have samples: of others they say nothing."""
    domain, known = study.problem.domain, np.ones(len(xi), bool)
    for (part, asked, _), (_, seen, _) in zip(
        domain.columns(xi), domain.columns(study.lower.contexts().xi), strict=True
    ):
        if isinstance(part, Finite):
            known &= np.isin(np.asarray(part.index(np.asarray(asked))), np.asarray(part.index(np.asarray(seen))))
    return known


# -- the reduced problem at one point, and around it


class SampleTerms(NamedTuple):
    r"""Sample by sample, what the upper objective is made of to second order in the errors of policy and adjoint.

    At coefficients $W$ of the policy $y$ and $V$ of the adjoint $v$ each sample has
    $$r = \partial_2 g, \qquad \alpha = \partial_{22} g\, v - \partial_2 f, \qquad m = f - v^T r ,$$
    where $r$ and $\alpha$ vanish in conditional mean if policy and adjoint are exact. With
    $A = E[\partial_{22} g \mid \xi]$ and $M = E[\partial_{22} f - \partial_{222} g\, v \mid \xi]$,
    $$F = E[m] + E\big[\bar\alpha^T A^{-1} \bar r + \tfrac12\, \bar r^T A^{-1} M A^{-1} \bar r\big]
    + O(|y - y^\star|^3),$$
    bars for conditional means. `curvature` is ``d22 g`` and `bend` ``M``. A leading axis over points.
    """

    r: Float[np.ndarray, "p n dy"]
    alpha: Float[np.ndarray, "p n dy"]
    curvature: Float[np.ndarray, "p n dy dy"]
    bend: Float[np.ndarray, "p n dy dy"]


@dataclass(frozen=True)
class Galerkin:
    """A reduced problem (whitened), solved at one ``x``; `target`: the size of the lower gradient to solve to."""

    reduced: Reduced
    expansions: Expansions
    point: Point
    target: float

    @staticmethod
    def at(reduced: Reduced, x: Float[np.ndarray, " dx"], crossed: bool = False) -> "Galerkin":
        """Solved from the problem's own start; `crossed`: with the sensitivity, however large it is."""
        expansions = Expansions(reduced.ordinary())
        if crossed and expansions.formed:  # else the policy has too many coefficients for either
            expansions.sizes = expansions.sizes._replace(crossed=True)
        x, start = x.astype(expansions.dtype).astype(float), expansions.table(reduced.W0)
        target = expansions.eps**0.9 * lower_size(expansions, x, np.zeros_like(start))  # a digit above rounding
        return Galerkin(reduced, expansions, solve_at(expansions, x, start, target), target)

    @property
    def sensitivity(self) -> Float[np.ndarray, "N dy dx"]:
        """How the coefficients move with ``x``; NaN where that is not known."""
        s = self.point.sensitivity
        return np.full((*self.point.W.shape, len(self.point.x)), np.nan) if s is None else s

    def nearby(self, x: Float[np.ndarray, " dx"]) -> Point:
        """The reduced problem solved at another ``x``."""
        if np.array_equal(x, self.point.x):
            return self.point
        return solve_at(self.expansions, x, self.point.coefficients_at(x), self.target)

    def natural_step(self) -> tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"], float]:
        """The distance along each coordinate of ``x`` over which ``f`` changes by its spread over the samples; the
        sizes of single samples' gradients, and the spread.

        The spread over these sizes; where they vanish, after ``x`` itself. Not less than a share of what turns the
        lower level's noise: at an ``x`` where ``f`` itself vanishes, its spread and its gradients are rounding. Where
        ``x`` moves all of the policy, the adjoint vanishes, and these sizes with it: what counts is then what ``f``
        gains through the policy row by row.
        """
        point, through = self.point, np.zeros(len(self.point.x))
        scales = self.expansions.row_scales(point.x, point.W, point.adjoint, point.value)
        if point.sensitivity is not None:
            (pool,), d2 = self.expansions.upper_pools, self.expansions.upper_rows(point.x, point.W).d2
            moves = (np.sum(d2 * pool.y(moved), axis=1) for moved in np.moveaxis(point.sensitivity, 2, 0))
            through = np.array([np.sqrt(pool.shares @ move**2) for move in moves])
        sizes = np.where(scales.sizes > NEGLIGIBLE * through, scales.sizes, through)
        spread = scales.spread or abs(point.value)
        known = (sizes > 0) & (spread > 0)
        other = np.where(point.x != 0, np.abs(point.x), 1.0)
        step = np.where(known, spread / np.where(known, sizes, 1), other)
        return np.maximum(step, NOTICED * scales.turning), sizes, spread


@dataclass(frozen=True)
class Around:
    """The reduced problem at ``x`` (the first point), and ahead of and behind it along each of `directions`.

    - `directions`: rows, the steps taken forward; `back`: the share of each that is taken backward.
    - `points`: first ``x``, then all forward ones, then all backward ones; `f`, `vr`: of the samples there, ``f`` of
      the upper level's and ``v^T d2 g`` of the lower level's.
    - `unit`: of each coordinate of ``x``: a distance along which the objective curves by 1, where it does.
    - `at_kink`: coordinates that a kink of the objective holds; `near_kink`: those whose minimum may lie at one.
    """

    study: Study
    galerkin: Galerkin
    directions: Float[np.ndarray, "k dx"]
    back: Float[np.ndarray, " k"]
    points: list[Point]
    f: Float[np.ndarray, "p m"]
    vr: Float[np.ndarray, "p n"]
    unit: Float[np.ndarray, " dx"]
    at_kink: Bool[np.ndarray, " dx"]
    near_kink: Bool[np.ndarray, " dx"]

    @staticmethod
    def of(study: Study, galerkin: Galerkin, x: np.ndarray, directions: np.ndarray, unit: np.ndarray) -> "Around":
        """Solves the reduced problem at ``x``, ahead of and behind it."""
        directions, back = _both_sides(study, x, directions)
        places = [x, *(x + directions), *(x - back[:, None] * directions)]
        points, none = [galerkin.nearby(place) for place in places], np.zeros(len(x), bool)
        at, (pool,) = galerkin.expansions, galerkin.expansions.lower_pools
        f = np.stack([at.upper_rows(point.x, point.W).value for point in points])
        slopes = [at.lower_slopes(point.x, pool.y(point.W))[1] for point in points]
        vr = [np.einsum("na,na->n", pool.y(point.adjoint), r) for point, r in zip(points, slopes, strict=True)]
        return Around(study, galerkin, directions, back, points, f, np.stack(vr), unit, none, none)

    def look(self, x: np.ndarray, directions: np.ndarray) -> "Around":
        """The same around a point nearby, along as many directions as before."""
        if np.array_equal(x, self.x) and np.array_equal(directions, self.directions):
            return self
        return Around.of(self.study, self.galerkin, x, directions, self.unit)

    @cached_property
    def terms(self) -> SampleTerms:
        """What products of neighbouring samples are made of, where both levels see the same."""
        at, (pool,), rows = self.galerkin.expansions, self.galerkin.expansions.lower_pools, []
        for point in self.points:
            lower, d2 = at.lower_rows(point.x, point.W), at.upper_rows(point.x, point.W).d2
            alpha = np.einsum("nab,nb->na", lower.hessian, pool.y(point.adjoint)) - d2
            rows.append((lower.slope, alpha, lower.hessian, at.bend_rows(point.x, point.W, point.adjoint)))
        return SampleTerms(*map(np.stack, zip(*rows, strict=True)))

    @property
    def point(self) -> Point:
        """The one at ``x``."""
        return self.points[0]

    @property
    def x(self) -> Float[np.ndarray, " dx"]:
        return self.point.x

    @property
    def sound(self) -> bool:
        """Whether the reduced problem could be solved at all points."""
        return all(point.sound for point in self.points)

    @property
    def lengths(self) -> Float[np.ndarray, " k"]:
        """The lengths of the steps along coordinates, by which slopes are divided; 1 if there is no room for one."""
        k = np.diag(self.directions)
        return np.where(k != 0, k, 1.0)

    @property
    def shortest(self) -> Float[np.ndarray, " dx"]:
        """Along each coordinate, the shortest step over which curvature shows beyond rounding of the objective."""
        return np.sqrt(ROUNDINGS * self.study.eps * abs(self.point.value)) * self.unit

    def table(self, name: str) -> np.ndarray:
        """A figure of the reduced problem at all points."""
        return np.stack([getattr(point, name) for point in self.points])

    def slope(self, table: np.ndarray) -> np.ndarray:
        """The derivative along each direction, per unit of it, from a table over points."""
        k = len(self.directions)
        return (table[1 : 1 + k] - table[1 + k :]) / (1 + self.back).reshape(-1, *[1] * (table.ndim - 1))

    def bend(self, table: np.ndarray) -> np.ndarray:
        """The second derivative along each direction."""
        k, b = len(self.directions), self.back.reshape(-1, *[1] * (table.ndim - 1))
        return 2 * ((table[1 : 1 + k] - table[0]) * b + (table[1 + k :] - table[0])) / (b * (1 + b))

    def bend_error(self) -> Float[np.ndarray, " k"]:
        """The standard error of the curvature along each direction."""
        return np.sqrt(np.diag(self.covariance(self.bend(self.f).T, -self.bend(self.vr).T)))

    # -- where the directions are the coordinates

    def hessian(self) -> Float[np.ndarray, "dx dx"]:
        """The curvature of the reduced objective."""
        table = self.slope(self.table("gradient")) / self.lengths[:, None]
        return (table + table.T) / 2

    def gradient_rows(self) -> tuple[Float[np.ndarray, "m dx"], Float[np.ndarray, "n dx"]]:
        """What each sample of the two levels contributes to the gradient."""
        return self.slope(self.f).T / self.lengths, -self.slope(self.vr).T / self.lengths

    def gradient_influence(self) -> Float[np.ndarray, "n dx"]:
        """What each sample moves the gradient by, where both levels see the same."""
        return influence(sum(self.gradient_rows()), self.study.lower.contexts().shares())

    def gradient_covariance(self) -> Float[np.ndarray, "dx dx"]:
        return self.covariance(*self.gradient_rows())

    def free(self) -> Bool[np.ndarray, " dx"]:
        """The coordinates that no bound or kink holds: where the gradient pushes against it beyond its noise."""
        return ~(held(self.study, self.x, self.point.gradient, self.gradient_covariance()) | self.at_kink)

    def covariance(self, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Of the sum of the means of the two levels' rows."""
        return covariance_of(self.study, upper, lower)

    def value_error(self) -> float:
        """The standard error of the reduced objective."""
        return _value_error(self.study, self.f[0], self.vr[0])


def _value_error(study: Study, f: Float[np.ndarray, " m"], vr: Float[np.ndarray, " n"]) -> float:
    """The standard error of the reduced objective, from ``f`` and ``v^T d2 g`` sample by sample."""
    return float(np.sqrt(covariance_of(study, f[:, None], -vr[:, None])[0, 0]))


def value_error_at(study: Study, galerkin: Galerkin) -> float:
    """The same at one point, however large ``x`` is."""
    at, point, (pool,) = galerkin.expansions, galerkin.point, galerkin.expansions.lower_pools
    slopes = at.lower_slopes(point.x, pool.y(point.W))[1]
    vr = np.einsum("na,na->n", pool.y(point.adjoint), slopes)
    return _value_error(study, at.upper_values(point.x, point.W), vr)


def bounds_of(study: Study) -> tuple[np.ndarray, np.ndarray]:
    return flattened(study.problem.bounds.lo), flattened(study.problem.bounds.hi)


def covariance_of(
    study: Study, upper: Float[np.ndarray, "m k"], lower: Float[np.ndarray, "n k"]
) -> Float[np.ndarray, "k k"]:
    """The covariance of the sum of the means of the two levels' rows."""
    if study.shared:
        return level_covariance(study.lower, upper + lower)
    return level_covariance(study.upper, upper) + level_covariance(study.lower, lower)


def held(
    study: Study, x: np.ndarray, gradient: np.ndarray, noise: Float[np.ndarray, "dx dx"]
) -> Bool[np.ndarray, " dx"]:
    """The coordinates that a bound holds: where the gradient pushes against it beyond its noise, a covariance."""
    (lo, hi), push = bounds_of(study), CLEAR * np.sqrt(np.diag(noise))
    near = slope_accuracy(study.eps) * np.maximum(np.abs(x), np.where(np.isfinite(hi - lo), hi - lo, 0))
    return ((x <= lo + near) & (gradient >= push)) | ((x >= hi - near) & (-gradient >= push)) | (lo == hi)


def _both_sides(study: Study, x: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps ahead, shortened to the room that bounds leave, and the share of each that is taken backward.

    If there is no room on one side, both points lie on the other side, the second twice as far.
    """
    lo, hi = bounds_of(study)

    def room(steps: np.ndarray) -> np.ndarray:
        """The share of each step that stays within the bounds; none, where that is lost in rounding."""
        most = np.where(steps > 0, hi - x, lo - x) / np.where(steps != 0, steps, 1)
        share = np.clip(np.where(steps != 0, most, np.inf).min(axis=1), 0, 1)
        return np.where(share > slope_accuracy(study.eps), share, 0)

    ahead, behind = room(directions), room(-directions)
    forward = np.where(ahead >= 0.05, ahead, -behind / 2)
    backward = np.where(behind >= 0.05, behind, -ahead / 2)
    return directions * forward[:, None], np.where(forward != 0, backward / np.where(forward != 0, forward, 1), 1.0)


def too_large(study: Study, joint: bool) -> str:
    """Why differences along each coordinate are not taken, in words; empty where they can be.

    `joint`: with the terms that products of neighbouring samples are made of.
    """
    (dx, dy), rows = study.problem.sizes, rows_of(study)
    held = sum(rows) * (1 + (2 * dy + 2 * dy**2 if joint else 0))
    derived = derivatives_of(study)
    if dx > MOST_COORDINATES:
        return f"x has {dx} coordinates, more than {MOST_COORDINATES}"
    numbers, what = max((held, "numbers would be stored"), (derived, "derivatives would be computed"))
    numbers *= 2 * dx + 1
    return f"{numbers:.1g} {what}" if numbers > MOST_NUMBERS else ""


def derivatives_of(study: Study) -> int:
    """How many numbers an expansion of both levels takes from all rows."""
    (dx, dy), rows = study.problem.sizes, rows_of(study)
    return rows[0] * (1 + dx + dy) + rows[1] * (1 + dy + dy**2 + dy * dx)


def rows_of(study: Study) -> tuple[int, int]:
    """How many rows the upper level has, and the lower one."""
    count = lambda level: (level.count or 0) * (len(level.contexts()) if level.crossed else 1)
    return count(study.upper), count(study.lower)


def natural_step(reduced: Reduced, x: PyTree) -> Float[np.ndarray, " dx"]:
    """The distance, along each coordinate of ``x``, over which ``f`` changes by its spread over the samples."""
    return Galerkin.at(reduced, flattened(x)).natural_step()[0]


def look_around(study: Study, galerkin: Galerkin) -> Around:
    """Solves the reduced problem around ``x``, over about a standard error along each coordinate."""
    x, (step, size, spread) = galerkin.point.x, galerkin.natural_step()
    unit = step / np.sqrt(spread if spread > 0 else 1.0)
    first = Around.of(study, galerkin, x, np.diag(NEGLIGIBLE * step), unit)
    for k in range(1, 11):  # where the problem ends not far from x, as one with exp(x) does, the steps are shorter
        lost = ~np.array([point.sound for point in first.points[1:]]).reshape(2, -1).all(axis=0)
        if not lost.any() or not first.point.sound:
            break
        first = first.look(x, first.directions * np.where(lost, NOTICED**k, 1.0)[:, None])
    first = _in_own_units(first, size)
    if not first.sound:
        return first
    error, reach = _standard_errors(first), np.abs(np.diag(first.directions))
    least = np.maximum(first.shortest, study.eps**0.25 * reach)  # without noise, an error is mere rounding
    known, error = np.isfinite(error), np.maximum(error, least)
    if np.any(known & ((error > 2 * _WIDER * reach) | (reach > 2 * _WIDER * error))):
        second = first.look(x, np.diag(np.where(known, error, reach)))
        best = second = _in_own_units(second, size)
    else:
        best, second = first, first.look(x, _WIDER * first.directions)
    if not second.sound:
        return first
    at_kink, near_kink = _kinks(first, second)
    return replace(best, at_kink=at_kink, near_kink=near_kink)


def _kinks(first: Around, second: Around) -> tuple[Bool[np.ndarray, " dx"], Bool[np.ndarray, " dx"]]:
    """The coordinates held by a kink and those next to one: where curvature is not the same over different steps.

    One that grows as steps shrink, and goes on growing, is a kink at ``x``, which holds it where the gradients on both
    sides are clear of their noise; a smooth curvature that is larger here than further off stays what it is. One that
    grows with the steps may be many small kinks, one in each sample, or one large one nearby; half the step then shows
    all of it, or none.
    """
    narrow = np.abs(first.lengths) <= np.abs(second.lengths)
    bends = [np.diag(look.hessian()) for look in (first, second)]
    close, far = np.where(narrow, *bends), np.where(narrow, *bends[::-1])
    here, beyond = (close > KINK * np.abs(far)) & (close > 0), far > KINK * np.abs(close)
    if here.any():
        steps = np.diag(np.where(narrow, first.lengths, second.lengths)) / _WIDER
        here &= np.diag(first.look(first.x, steps).hessian()) > KINK * close
    sides = [look.table("gradient")[1:].reshape(2, *second.directions.shape) for look in (first, second)]
    ahead, behind = (np.where(narrow, *(np.diag(side[a]) for side in sides)) for a in (0, 1))
    noise = CLEAR * np.sqrt(np.diag(second.gradient_covariance()))
    holds = here & (ahead > noise) & (behind < -noise)
    half = np.diag(second.look(second.x, second.directions / 2).hessian()) if beyond.any() else far
    uneven = beyond & ((half > np.sqrt(KINK) * far) | (half < far / np.sqrt(KINK)))
    return holds, (here & ~holds) | uneven


def _in_own_units(around: Around, size: Float[np.ndarray, " dx"]) -> Around:
    """With units in which the objective curves alike along all coordinates, where it curves beyond rounding."""
    bend = np.diag(around.hessian())
    seen = bend * np.abs(around.lengths) > slope_accuracy(around.study.eps) * size
    return replace(around, unit=np.where(seen, 1 / np.sqrt(np.where(seen, bend, 1)), around.unit))


def _standard_errors(around: Around) -> np.ndarray:
    """About a standard error of each coordinate of ``x``; infinite where the curvature does not show one."""
    units = np.outer(around.unit, around.unit)
    values, vectors = np.linalg.eigh(around.hessian() * units)
    kept = values > 1e-6 * max(values[-1], np.finfo(float).tiny)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * units
    error = np.sqrt(np.maximum(np.diag(inverse @ around.gradient_covariance() @ inverse), 0))
    return np.where(error > 0, error, np.inf)


def to_minimum(
    galerkin: Galerkin,
    inverse: Float[np.ndarray, "dx dx"],
    slope: Float[np.ndarray, " dx"],
    unit: Float[np.ndarray, " dx"],
    little: Float[np.ndarray, " dx"],
) -> tuple[Float[np.ndarray, " dx"], bool]:
    """How far it is to the minimum from where a run has ended, by the `inverse` of the curvature and the `slope` there;
    and whether that cannot be told: a Newton step leaves much of the slope. Zero up to rounding; one of `little` length
    is not looked into."""
    x, (lo, hi) = galerkin.point.x, galerkin.expansions.bounds
    step = np.clip(x - inverse @ slope, lo, hi) - x
    half, natural = np.sqrt(galerkin.expansions.eps), galerkin.natural_step()[0]
    rounding = half * np.maximum(np.sqrt(abs(galerkin.point.value)) * unit, natural)
    step = np.where(np.abs(step) > rounding, step, 0.0)
    if np.all(np.abs(step) <= little):
        return step, False
    ahead = galerkin.nearby(x + step)
    left = ahead.gradient - (galerkin.point.gradient - slope)  # of which what the slope leaves out is no part
    further = np.clip(ahead.x - inverse @ left, lo, hi) - ahead.x
    far = np.linalg.norm(further / unit) > _LEFT * np.linalg.norm(step / unit)
    return step + np.where(step != 0, further, 0.0), bool(far or not ahead.sound)
