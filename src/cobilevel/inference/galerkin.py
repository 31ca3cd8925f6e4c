r"""The reduced problem solved at one ``x``, sample by sample.

The value of the reduced problem is the mean of $m_i(x) = f_i - v^T r_i$ with the policy and the adjoint solved for at
that ``x``, $r = \partial_2 g$. Since $m$ does not change, to first order, with either of them, its derivative along
``x`` is what sample $i$ contributes to the gradient, the noise of policy and adjoint included: the influence of that
sample in the stacked conditions lower stationarity, adjoint, upper stationarity.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, PyTree
from scipy import special

from ..derivatives import Expansions, flattened, galerkin
from ..lower import ROUNDINGS, Point, lower_size, solve_at
from ..problem import Finite
from ..reduction import DENSE_LIMIT, Reduced
from ..study import Study
from .noise import covariance_of, level_covariance, scores, split_rows, without

DOUBT = 0.007  # the chance that noise alone decides a single question
CLEAR = float(special.ndtri(1 - DOUBT))  # standard errors by which a gradient pushes against what holds x
AGREE = float(special.ndtri(1 - DOUBT / 2))  # standard errors by which two estimates of the same may differ
NEGLIGIBLE, NOTICED = 1e-3, 1e-2  # of a whole: a share that counts for nothing, and one from which on it does
MOST_NUMBERS = 1.5e8  # held at one time: 1.2 GB
MOST_COORDINATES = 200  # of x along which differences are taken
_LEFT = 0.01  # of the decrease that the first promised: what the last may still promise, a tenth of the way


def slope_accuracy(eps: float) -> float:
    """The relative accuracy that slopes are trusted to: that of a difference quotient with the best step."""
    return eps ** (2 / 3)


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
    half = np.linalg.solve(hessian, level_covariance(study.lower, scores(phi, slopes)))
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


# -- the reduced problem at one point


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
        if crossed and expansions.formed:  # else there are too many coefficients for either
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

    def rounding(self) -> float:
        """Of the objective: a decrease that is less cannot be told from none."""
        spread = self.expansions.row_scales(self.point.x, self.point.W, centre=self.point.value).spread
        return ROUNDINGS * self.expansions.eps * max(abs(self.point.value), spread)

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


def without_each(at: Galerkin, steps: int = 200) -> list[Galerkin]:
    """The reduced problem with one group of samples left out at a time, solved from the solution on all of them, by so
    many Newton steps at most."""
    rng, (lower,), (upper,) = np.random.default_rng(0), at.expansions.lower_pools, at.expansions.upper_pools
    below, above = (split_rows(len(pool.shares), rng) for pool in (lower, upper))
    solved = []
    for k in range(max(below.max(), above.max()) + 1):
        part = at.expansions.with_shares(without(lower.shares, below, k), without(upper.shares, above, k))
        close = 0.0 if part.formed else NOTICED
        point = solve_at(part, at.point.x, at.point.W, at.target, close, steps, at.point.adjoint)
        solved.append(replace(at, expansions=part, point=point))
    return solved


def value_error_at(study: Study, galerkin: Galerkin) -> float:
    """The standard error of the reduced objective."""
    at, point, (pool,) = galerkin.expansions, galerkin.point, galerkin.expansions.lower_pools
    slopes = at.lower_slopes(point.x, pool.y(point.W))[1]
    vr = np.einsum("na,na->n", pool.y(point.adjoint), slopes)
    return float(np.sqrt(covariance_of(study, at.upper_values(point.x, point.W)[:, None], -vr[:, None])[0, 0]))


def bounds_of(study: Study) -> tuple[np.ndarray, np.ndarray]:
    return flattened(study.problem.bounds.lo), flattened(study.problem.bounds.hi)


def held(
    study: Study, x: np.ndarray, gradient: np.ndarray, noise: Float[np.ndarray, "dx dx"]
) -> Bool[np.ndarray, " dx"]:
    """The coordinates that a bound holds: where the gradient pushes against it beyond its noise, a covariance."""
    (lo, hi), push = bounds_of(study), CLEAR * np.sqrt(np.diag(noise))
    near = slope_accuracy(study.eps) * np.maximum(np.abs(x), np.where(np.isfinite(hi - lo), hi - lo, 0))
    return ((x <= lo + near) & (gradient >= push)) | ((x >= hi - near) & (-gradient >= push)) | (lo == hi)


def too_large(study: Study, joint: bool) -> str:
    """Why differences along each coordinate are not taken, in words; empty where they can be.

    `joint`: with the terms that products of neighbouring samples are made of.
    """
    (dx, dy), rows = study.problem.sizes, rows_of(study)
    held = sum(rows) * (1 + (2 * dy + 2 * dy**2 if joint else 0))
    numbers, what = max((held, "numbers would be stored"), numbers_derived(study))
    return too_many((2 * dx + 1) * numbers, what, dx, MOST_COORDINATES)


def numbers_derived(study: Study) -> tuple[int, str]:
    """How many numbers an expansion of both levels takes from all rows, and what they are."""
    (dx, dy), rows = study.problem.sizes, rows_of(study)
    return rows[0] * (1 + dx + dy) + rows[1] * (1 + dy + dy**2 + dy * dx), "derivatives would be computed"


def too_many(numbers: int, what: str, dx: int = 0, most: int = 0) -> str:
    """That ``x`` has more coordinates than `most`, or that there are too many numbers, in words; empty where not."""
    if dx > most:
        return f"x has {dx} coordinates, more than {most}"
    return f"{numbers:.1g} {what}" if numbers > MOST_NUMBERS else ""


def rows_of(study: Study) -> tuple[int, int]:
    """How many rows the upper level has, and the lower one."""
    count = lambda level: (level.count or 0) * (len(level.contexts()) if level.crossed else 1)
    return count(study.upper), count(study.lower)


def natural_step(reduced: Reduced, x: PyTree) -> Float[np.ndarray, " dx"]:
    """The distance, along each coordinate of ``x``, over which ``f`` changes by its spread over the samples."""
    return Galerkin.at(reduced, flattened(x)).natural_step()[0]


def to_minimum(
    galerkin: Galerkin,
    inverse: Float[np.ndarray, "dx dx"],
    slope: Float[np.ndarray, " dx"],
    little: Float[np.ndarray, " dx"],
    steps: int = 4,
) -> tuple[Float[np.ndarray, " dx"], bool]:
    """How far it is to the minimum from where a run has ended, by the `inverse` of the curvature and the `slope` there;
    and whether that cannot be told.

    Newton `steps` until one is of `little` length, or promises less than the objective is rounded to; the last must
    promise less than a share of what the first did. So whether a run is near its minimum is a question of decreases of
    the objective and of standard errors, never of units of ``x``.
    """
    now, (lo, hi), rounding = galerkin.point, galerkin.expansions.bounds, galerkin.rounding()
    left, promises, total = slope, [], np.zeros(len(slope))
    for _ in range(steps):
        step = np.clip(now.x - inverse @ left, lo, hi) - now.x
        promises.append(-float(left @ step) / 2)
        if not promises[-1] > rounding or np.all(np.abs(step) <= little):
            return total + np.clip(step, -2 * little, 2 * little), False  # of what may be rounding, no more
        total = total + step
        now = galerkin.nearby(now.x + step)
        if not now.sound:
            return total, True
        left = now.gradient - (galerkin.point.gradient - slope)  # of which what the slope leaves out is no part
    return total, promises[-1] > _LEFT * promises[0]
