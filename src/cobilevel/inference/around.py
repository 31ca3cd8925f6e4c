"""The reduced problem at ``x`` and on both sides of it along some directions, sample by sample.

Derivatives are those of ``Smooth`` where the objective has them; elsewhere differences over a standard error of ``x``,
about, so that kinks in ``f`` count as the samples see them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..lower import ROUNDINGS, Point
from ..study import Study
from .galerkin import CLEAR, NEGLIGIBLE, NOTICED, Galerkin, bounds_of, held, slope_accuracy, value_error_at
from .noise import covariance_of, influence
from .smooth import KINK, Smooth, standard_errors

TOO_MANY = "there are too many coefficients, or coordinates of x, for matrices"
_WIDER = 4.0  # a ratio of two steps at which kinks show; steps within twice that of a standard error will do


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
class Around:
    """The reduced problem at ``x``, and ahead of and behind it along each of `directions`.

    - `directions`: rows, the steps taken forward; `back`: the share of each that is taken backward.
    - `unit`: of each coordinate of ``x``: a distance along which the objective curves by 1, where it does.
    - `smooth`: its derivatives at ``x``; ``None`` where it has kinks, and differences stand for them; `differences`:
      whether these may be taken.
    - `at_kink`: coordinates that a kink of the objective holds; `near_kink`: those whose minimum may lie at one.
    - `reach`: how many times longer than a standard error the steps are, where that does not show curvature; `noise`:
      the covariance of the gradient, then, over a standard error.
    """

    study: Study
    galerkin: Galerkin
    x: Float[np.ndarray, " dx"]
    directions: Float[np.ndarray, "k dx"]
    back: Float[np.ndarray, " k"]
    unit: Float[np.ndarray, " dx"]
    smooth: Smooth | None
    differences: bool
    at_kink: Bool[np.ndarray, " dx"]
    near_kink: Bool[np.ndarray, " dx"]
    reach: float = 1.0
    noise: Float[np.ndarray, "dx dx"] | None = None

    @staticmethod
    def of(study: Study, galerkin: Galerkin, x: np.ndarray, directions: np.ndarray, unit: np.ndarray) -> "Around":
        """By differences, along directions that are shortened to the room that bounds leave."""
        none, sides = np.zeros(len(x), bool), _both_sides(study, x, directions)
        return Around(study, galerkin, x, *sides, unit, None, True, none, none)

    def look(self, x: np.ndarray, directions: np.ndarray, smooth: bool = True) -> "Around":
        """The same around a point nearby, along other directions; `smooth`: by derivatives, where these are known."""
        here = np.array_equal(x, self.x)
        if here and smooth and np.array_equal(directions, self.directions):
            return self
        around = Around.of(self.study, self.galerkin, x, directions, self.unit)
        return replace(around, smooth=self.smooth if here and smooth else None, differences=self.differences)

    def wider(self, reach: float) -> "Around":
        """The same by differences over longer steps.

        Samples that curve rarely and much, as a smoothed step does, make a gradient that is rough: over a standard
        error its slope is noise, over several it is known. What moves ``x`` is its noise over one.
        """
        wide = self.look(self.x, reach * self.directions, smooth=False)
        return replace(wide, reach=reach, noise=replace(self, smooth=None).gradient_covariance())

    @cached_property
    def point(self) -> Point:
        """The one at ``x``."""
        return self.galerkin.nearby(self.x)

    @cached_property
    def points(self) -> list[Point]:
        """First the one at ``x``, then all forward ones, then all backward ones."""
        places = [*(self.x + self.directions), *(self.x - self.back[:, None] * self.directions)]
        return [self.point, *(self.galerkin.nearby(place) for place in places)]

    @cached_property
    def f(self) -> Float[np.ndarray, "p m"]:
        """Of the upper level's samples at all points."""
        return np.stack([self.galerkin.expansions.upper_values(point.x, point.W) for point in self.points])

    @cached_property
    def vr(self) -> Float[np.ndarray, "p n"]:
        """``v^T d2 g`` of the lower level's samples at all points."""
        at, (pool,) = self.galerkin.expansions, self.galerkin.expansions.lower_pools
        slopes = (at.lower_slopes(point.x, pool.y(point.W))[1] for point in self.points)
        return np.stack(
            [np.einsum("na,na->n", pool.y(point.adjoint), r) for point, r in zip(self.points, slopes, strict=True)]
        )

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
    def sound(self) -> bool:
        """Whether the reduced problem could be solved at ``x`` and, where differences are taken, at all points."""
        return self.point.sound if self.smooth is not None else self.solved

    @property
    def solved(self) -> bool:
        """Whether it could at all points."""
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

    def slope_rows(self) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, "n k"]]:
        """What each sample of the two levels contributes to the slope along each direction, per unit of it."""
        if self.smooth is None:
            return self.slope(self.f).T, -self.slope(self.vr).T
        upper, lower = self.smooth.gradient_rows
        return upper @ self.directions.T, lower @ self.directions.T

    def bend_rows(self) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, "n k"]]:
        """The same of the curvature; by differences where both levels have the noise of the same samples, since then
        that of the second derivative of the adjoint counts, and `differences` may be taken."""
        if self.smooth is None or (self.differences and self.study.shared and self.study.noisy):
            return self.bend(self.f).T, -self.bend(self.vr).T
        return self.smooth.bend_rows(self.directions)

    def bend_error(self) -> Float[np.ndarray, " k"]:
        """The standard error of the curvature along each direction."""
        return np.sqrt(np.diag(self.covariance(*self.bend_rows())))

    def curves(self) -> Float[np.ndarray, " k"]:
        """The curvature of the reduced objective along each direction."""
        if self.smooth is None:
            return self.bend(self.table("value"))
        return np.sum((self.directions @ self.smooth.hessian) * self.directions, axis=1)

    # -- where the directions are the coordinates

    def hessian(self) -> Float[np.ndarray, "dx dx"]:
        """The curvature of the reduced objective."""
        if self.smooth is not None:
            return self.smooth.hessian
        table = self.slope(self.table("gradient")) / self.lengths[:, None]
        return (table + table.T) / 2

    def gradient_rows(self) -> tuple[Float[np.ndarray, "m dx"], Float[np.ndarray, "n dx"]]:
        """What each sample of the two levels contributes to the gradient."""
        if self.smooth is not None:
            return self.smooth.gradient_rows
        return self.slope(self.f).T / self.lengths, -self.slope(self.vr).T / self.lengths

    def gradient_influence(self) -> Float[np.ndarray, "n dx"]:
        """What each sample moves the gradient by, where both levels see the same."""
        return influence(sum(self.gradient_rows()), self.study.lower.contexts().shares())

    def gradient_covariance(self) -> Float[np.ndarray, "dx dx"]:
        if self.noise is not None:
            return self.noise
        return self.covariance(*self.gradient_rows()) if self.smooth is None else self.smooth.noise

    def free(self) -> Bool[np.ndarray, " dx"]:
        """The coordinates that no bound or kink holds: where the gradient pushes against it beyond its noise."""
        return ~(held(self.study, self.x, self.point.gradient, self.gradient_covariance()) | self.at_kink)

    def covariance(self, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Of the sum of the means of the two levels' rows."""
        return covariance_of(self.study, upper, lower)

    def value_error(self) -> float:
        """The standard error of the reduced objective."""
        return value_error_at(self.study, replace(self.galerkin, point=self.point))


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


def look_around(study: Study, galerkin: Galerkin, differences: str = "", pairs: bool = False) -> Around | str:
    """The reduced problem around ``x``, over about a standard error along each coordinate: by derivatives, or, where
    these do not see all, by differences. Why not, in words, where it has kinks and `differences` says why none are
    taken. `pairs`: for products of neighbouring samples, which ask for it on both sides of ``x``."""
    if galerkin.point.sound and galerkin.point.sensitivity is not None:
        smooth = Smooth(study, galerkin)
        if not smooth.uneven():
            around = Around.of(study, galerkin, galerkin.point.x, np.diag(smooth.steps), smooth.unit)
            around = replace(around, smooth=smooth, differences=not differences)
            return around if not pairs or around.solved else look_by_differences(study, galerkin)
    if differences and galerkin.point.sound:
        if galerkin.point.sensitivity is None:
            return TOO_MANY
        return (
            "the upper objective has a kink near x, or its curvature changes within a standard error, and x has too "
            "many coordinates for differences along each. Try cb.bootstrap"
        )
    return look_by_differences(study, galerkin)


def look_by_differences(study: Study, galerkin: Galerkin) -> Around:
    """Solves the reduced problem on both sides of ``x`` along each coordinate, over steps at which curvature and kinks
    show."""
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
    error = standard_errors(first.hessian(), first.gradient_covariance(), first.unit)
    reach = np.abs(np.diag(first.directions))
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

    One that grows as steps shrink, down to rounding, is a kink at ``x`` (``_jumps``), which holds it where the
    gradients on both sides are clear of their noise. One that grows with the steps may be many small kinks, one in each
    sample, or one large one nearby; half the step then shows all of it, or none.
    """
    narrow = np.abs(first.lengths) <= np.abs(second.lengths)
    bends = [np.diag(look.hessian()) for look in (first, second)]
    close, far = np.where(narrow, *bends), np.where(narrow, *bends[::-1])
    beyond, grows = far > KINK * np.abs(close), np.flatnonzero((close > KINK * np.abs(far)) & (close > 0))
    here, narrower = (np.zeros(len(close), bool) for _ in range(2))
    steps = np.abs(np.where(narrow, first.lengths, second.lengths))
    for j in grows:
        here[j], narrower[j] = _jumps(first, int(j), steps[j], close[j])
    sides = [look.table("gradient")[1:].reshape(2, *second.directions.shape) for look in (first, second)]
    ahead, behind = (np.where(narrow, *(np.diag(side[a]) for side in sides)) for a in (0, 1))
    noise = CLEAR * np.sqrt(np.diag(second.gradient_covariance()))
    holds = here & (ahead > noise) & (behind < -noise)
    half = np.diag(second.look(second.x, second.directions / 2).hessian()) if beyond.any() else far
    uneven = beyond & ((half > np.sqrt(KINK) * far) | (half < far / np.sqrt(KINK)))
    return holds, (here & ~holds) | narrower | uneven


def _jumps(around: Around, j: int, step: float, bend: float) -> tuple[bool, bool]:
    """Whether the slope along a coordinate jumps at ``x``: its curvature, `bend` over a `step`, grows with each shorter
    one until rounding hides it. And whether it does not, but grows at first: a smooth well, narrower than the step."""
    x, (lo, hi), e = around.x, around.galerkin.expansions.bounds, np.eye(len(around.x))[j]
    least, first = np.sqrt(around.study.eps) * max(abs(x[j]), step), step
    while step > least:
        step /= _WIDER
        ahead, behind = (around.galerkin.nearby(np.clip(x + side * step * e, lo, hi)) for side in (1, -1))
        closer = (ahead.gradient[j] - behind.gradient[j]) / (ahead.x[j] - behind.x[j])
        if not closer > KINK * bend:
            return False, step < first / _WIDER
        bend = closer
    return True, False


def _in_own_units(around: Around, size: Float[np.ndarray, " dx"]) -> Around:
    """With units in which the objective curves alike along all coordinates, where it curves beyond rounding."""
    bend = np.diag(around.hessian())
    seen = bend * np.abs(around.lengths) > slope_accuracy(around.study.eps) * size
    return replace(around, unit=np.where(seen, 1 / np.sqrt(np.where(seen, bend, 1)), around.unit))
