r"""The reduced problem at ``x`` where it has second derivatives: its curvature, and what each sample adds to it.

Sample $i$ adds $m_i = f_i - v^T r_i$ to the reduced objective. Along a direction $p$ of ``x`` its derivative is
$d f_i - v^T d r_i - v'^T r_i$, and its second one $d^2 f_i - v^T d^2 r_i - 2 v'^T d r_i$ up to terms whose mean is
zero, and which are small where policy and adjoint are nearly linear in ``x``. Here $d$ is the derivative along
$(p, S p)$ and $v'$ the change of the adjoint (``derivatives/curvature.py``). First derivatives of all samples come from
the rows of one expansion, whatever the number of coordinates. No more is held than tables of samples by coordinates.
Second derivatives do not see kinks of ``f``: gradients a standard error away show whether there are any.
"""

from functools import cached_property

import numpy as np
from jaxtyping import Float

from ..derivatives import Curvature, following
from ..lower import ROUNDINGS, lower_inverse
from ..problem import CHECK_ROWS
from ..reduction import DENSE_LIMIT
from ..study import Study
from .galerkin import NEGLIGIBLE, NOTICED, Galerkin, held, rows_of, slope_accuracy, too_many
from .noise import covariance_of

KINK = 3.0  # the ratio of two curvatures, over no step and over one of a standard error, that is a kink


def too_large_for_products(study: Study) -> str:
    """Why products are not taken, in words; empty where they can be: samples by coordinates are held, three times, and
    the curvature."""
    dx, rows = study.problem.sizes[0], rows_of(study)
    numbers = 3 * dx * (dx + (max(rows) if study.shared else sum(rows)))
    return too_many(numbers, "numbers would be stored", dx, DENSE_LIMIT)


class Smooth:
    """The reduced problem at ``x``: its curvature, and what each sample adds to slopes and curvatures."""

    def __init__(self, study: Study, galerkin: Galerkin):
        at, point = galerkin.expansions, galerkin.point
        self.study, self.galerkin, self.point = study, galerkin, point
        self._curvature = Curvature(at, point.x, point.W, point.adjoint, galerkin.sensitivity)
        (self._pool,) = at.lower_pools
        along = self._curvature.along(np.eye(len(point.x)), by_row=False)
        self.hessian = (along.gradient + along.gradient.T) / 2
        self._turn = lower_inverse(point, np.moveaxis(along.pull, 0, 2))  # of the adjoint, with each coordinate

    @cached_property
    def gradient_rows(self) -> tuple[Float[np.ndarray, "m dx"], Float[np.ndarray, "n dx"]]:
        """What each sample of the two levels contributes to the gradient."""
        upper, lower = self._curvature.slopes()
        residual = self.galerkin.expansions.lower_slopes(self.point.x, self._pool.y(self.point.W))[1]
        return upper, lower - following(self._pool, self._turn, residual)

    @cached_property
    def noise(self) -> Float[np.ndarray, "dx dx"]:
        """The covariance of the gradient, with what slopes are not trusted to."""
        rounding = slope_accuracy(self.study.eps) * self._natural[1]
        return covariance_of(self.study, *self.gradient_rows) + np.diag(rounding**2)

    def bend_rows(
        self, directions: Float[np.ndarray, "k dx"]
    ) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, "n k"]]:
        """What each sample of the two levels contributes to the curvature along directions."""
        along, turned = self._curvature.along(directions), self._curvature.turned(directions)
        moved = np.tensordot(self._turn, directions, axes=(2, 1)).reshape(len(self._turn), -1)
        moved = self._pool.y(moved).reshape(-1, self._turn.shape[1], len(directions))
        return along.upper.T, along.lower.T - 2 * np.einsum("nak,kna->nk", moved, turned)

    @cached_property
    def _natural(self) -> tuple[np.ndarray, np.ndarray, float]:
        return self.galerkin.natural_step()

    @cached_property
    def unit(self) -> Float[np.ndarray, " dx"]:
        """Of each coordinate: a distance along which the objective curves by 1, where it does beyond rounding."""
        step, size, spread = self._natural
        bend, guess = np.diag(self.hessian), step / np.sqrt(spread if spread > 0 else 1.0)
        seen = bend * NEGLIGIBLE * step > slope_accuracy(self.study.eps) * size
        return np.where(seen, 1 / np.sqrt(np.where(seen, bend, 1)), guess)

    @cached_property
    def steps(self) -> Float[np.ndarray, " dx"]:
        """About a standard error along each coordinate, over which curvature shows beyond rounding."""
        (natural, _, spread), value = self._natural, abs(self.point.value)
        reach = np.minimum(NEGLIGIBLE * natural, self.unit * np.sqrt(spread if spread > 0 else 1.0))
        rounding = np.sqrt(ROUNDINGS * self.study.eps * value)
        least = np.maximum(rounding * self.unit, self.study.eps**0.25 * reach)
        error = standard_errors(self.hessian, self.noise, self.unit)
        return np.where(np.isfinite(error), np.maximum(error, least), reach)

    def uneven(self) -> bool:
        """Whether gradients a standard error away to both sides, in a direction as noise moves ``x``, change otherwise
        than second derivatives say, as they do across kinks."""
        x, (lo, hi), unit = self.point.x, self.galerkin.expansions.bounds, self.unit
        draw = np.random.default_rng(CHECK_ROWS).standard_normal(len(x))
        noise = self.noise * np.outer(unit, unit)
        if not np.all(np.isfinite(noise)):  # so far out along a plateau that squares of lengths overflow
            return True
        values, vectors = np.linalg.eigh(noise)
        along = np.where(held(self.study, x, self.point.gradient, self.noise), 0.0, unit)
        along = along * (vectors @ (np.sqrt(np.maximum(values, 0)) * draw))
        bend, least = along @ self.hessian @ along, self.steps / np.sqrt(len(x))
        step = along * np.sqrt(along @ self.noise @ along) / bend if bend > 0 else np.zeros(len(x))
        step = np.where(np.abs(step) > NOTICED * least, step, np.sign(draw) * least)  # what noise does not move
        ends = [self.galerkin.nearby(np.clip(x + side * step, lo, hi)) for side in (1, -1)]
        if not all(end.sound for end in ends):
            return True
        move, change = ends[0].x - ends[1].x, ends[0].gradient - ends[1].gradient
        left, whole = (float(np.linalg.norm(self.unit * part)) for part in (change - self.hessian @ move, change))
        rounding = slope_accuracy(self.study.eps) * float(np.linalg.norm(self.unit * self._natural[1]))
        seen, expected = move @ change, move @ self.hessian @ move
        return left > rounding and (left > whole or not expected / KINK < seen < expected * KINK)


def standard_errors(
    hessian: Float[np.ndarray, "dx dx"], noise: Float[np.ndarray, "dx dx"], unit: Float[np.ndarray, " dx"]
) -> Float[np.ndarray, " dx"]:
    """About a standard error of each coordinate of ``x``; infinite where the curvature does not show one."""
    units = np.outer(unit, unit)
    values, vectors = np.linalg.eigh(hessian * units)
    kept = values > 1e-6 * max(values[-1], np.finfo(float).tiny)
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * units
    error = np.sqrt(np.maximum(np.diag(inverse @ noise @ inverse), 0))
    return np.where(error > 0, error, np.inf)
