r"""Standard errors where ``x`` is too large for differences along each coordinate, by products with the curvature.

Sample $i$ adds $m_i = f_i - v^T r_i$ to the reduced objective. Along a direction $p$ of ``x`` its derivative is
$d f_i - v^T d r_i - v'^T r_i$, and its second one $d^2 f_i - v^T d^2 r_i - 2 v'^T d r_i$ up to terms whose mean is
zero, and which are small where policy and adjoint are nearly linear in ``x``. Here $d$ is the derivative along
$(p, S p)$ and $v'$ the change of the adjoint (``derivatives/curvature.py``). No more is held than a table of samples by
coordinates.
Second derivatives do not see kinks of ``f``: gradients a standard error away show whether there are any.
"""

import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..derivatives import DENSE_LIMIT, Curvature, flattened
from ..lower import lower_inverse
from ..problem import CHECK_ROWS
from ..reduction import Reduced
from ..study import Study
from .around import KINK, MOST_NUMBERS, NEGLIGIBLE, Galerkin, covariance_of, held, slope_accuracy
from .uncertainty import AT_BOUND, QUANTILE, Uncertainty, leaves_of, names_of, unknown


def products_fit(study: Study) -> bool:
    """Whether the tables fit: samples by coordinates, three times, and the curvature."""
    dx, _ = study.problem.sizes
    levels = [study.lower] if study.shared else [study.upper, study.lower]
    rows = sum((one.count or 0) * (len(one.contexts()) if one.crossed else 1) for one in levels)
    return dx <= DENSE_LIMIT and 3 * dx * (rows + dx) <= MOST_NUMBERS


class Sampled:
    """The reduced problem at ``x``: its curvature, and what each sample adds to slopes and curvatures."""

    def __init__(self, study: Study, galerkin: Galerkin):
        at, point = galerkin.expansions, galerkin.point
        self.study, self.galerkin, self.point = study, galerkin, point
        self.curvature = Curvature(at, point.x, point.W, point.adjoint, galerkin.sensitivity)
        (pool,) = at.lower_pools
        self.y, self.shape = pool.y, point.W.shape
        self.residual = at.lower_slopes(point.x, pool.y(point.W))[1]
        along = self.curvature.all_products()
        self.hessian = (along.gradient + along.gradient.T) / 2
        self.turn = lower_inverse(point, np.moveaxis(along.pull, 0, 2))  # of the adjoint, with each coordinate

    def rows(self, directions: Float[np.ndarray, "k dx"]) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Slopes and curvatures of each sample along directions: of the upper level's and of the lower level's, each
        samples by directions."""
        parts = []
        for some in self.curvature.chunks(directions):
            upper, lower = self.curvature.rows(some)
            turned = self.y((self.turn @ some.T).reshape(self.shape[0], -1)).reshape(-1, self.shape[1], len(some))
            slope = lower.slope.T - np.einsum("nak,na->nk", turned, self.residual)
            bend = lower.bend.T - 2 * np.einsum("nak,kna->nk", turned, lower.turned)
            parts.append((upper.slope.T, upper.bend.T, slope, bend))
        joined = [np.concatenate(part, axis=1) for part in zip(*parts, strict=True)]
        return (joined[0], joined[2]), (joined[1], joined[3])

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """What each sample of the two levels adds to the gradient."""
        return self.rows(np.eye(len(self.point.x)))[0]

    def bend_error(self, directions: Float[np.ndarray, "k dx"]) -> Float[np.ndarray, " k"]:
        """The standard error of the curvature along each direction."""
        parts = [np.diag(covariance_of(self.study, *self.rows(some)[1])) for some in self.curvature.chunks(directions)]
        return np.sqrt(np.concatenate(parts))

    def unit(self) -> Float[np.ndarray, " dx"]:
        """Of each coordinate: a distance along which the objective curves by 1, where it does beyond rounding."""
        step, size, spread = self.galerkin.natural_step()
        bend, guess = np.diag(self.hessian), step / np.sqrt(spread if spread > 0 else 1.0)
        seen = bend * NEGLIGIBLE * step > slope_accuracy(self.study.eps) * size
        return np.where(seen, 1 / np.sqrt(np.where(seen, bend, 1)), guess)

    def value_error(self) -> float:
        """The standard error of the reduced objective."""
        at, point = self.galerkin.expansions, self.point
        vr = np.einsum("na,na->n", self.y(point.adjoint), self.residual)
        f = at.upper_rows(point.x, point.W).value
        return float(np.sqrt(covariance_of(self.study, f[:, None], -vr[:, None])[0, 0]))

    def uneven(self, noise: np.ndarray, unit: np.ndarray, free: np.ndarray) -> bool:
        """Whether gradients a standard error away show another curvature than second derivatives do, as kinks do; along
        the noise of the gradient, in units in which all coordinates curve alike."""
        values, vectors = np.linalg.eigh(noise * np.outer(unit, unit))
        draw = vectors @ (np.sqrt(np.maximum(values, 0)) * np.random.default_rng(CHECK_ROWS).standard_normal(len(unit)))
        along = np.where(free, unit * draw, 0.0)
        bend = along @ self.hessian @ along
        if not bend > 0:
            return False
        step, (lo, hi) = along * np.sqrt(along @ noise @ along) / bend, self.galerkin.expansions.bounds
        ends = [self.galerkin.nearby(np.clip(self.point.x + side * step, lo, hi)) for side in (1, -1)]
        move = ends[0].x - ends[1].x
        seen, expected = move @ (ends[0].gradient - ends[1].gradient), move @ self.hessian @ move
        return not all(end.sound for end in ends) or not expected / KINK < seen < expected * KINK


def infer_by_products(study: Study, reduced: Reduced, x: PyTree) -> tuple[Uncertainty, Galerkin]:
    """How well the samples determine a large ``x``, the solution of the reduced problem (whitened) on them."""
    galerkin = Galerkin.at(reduced, flattened(x), crossed=True)
    point = galerkin.point
    if not point.sound or not galerkin.expansions.formed:
        why = (
            "the reduced problem has no solution near x" if not point.sound else "the policy has too many coefficients"
        )
        return unknown(x, f"standard errors could not be computed: {why}."), galerkin
    here = Sampled(study, galerkin)
    noise, unit = covariance_of(study, *here.scores()), here.unit()
    free = ~held(study, point.x, point.gradient, noise)
    if here.uneven(noise, unit, free):
        why = (
            "the upper objective has a kink near x, or curves otherwise within a standard error of it, and x is too "
            "large for differences along each coordinate. The bootstrap may tell"
        )
        return unknown(x, f"standard errors were not computed: {why}.", point.value), galerkin
    flat, falls, inverse = _directions(here, unit, free)
    lost = np.concatenate([flat, falls])
    covariance = inverse @ noise @ inverse
    sizes = np.max(np.abs(lost / unit), axis=1, initial=0)[:, None]
    touched = np.any(np.abs(lost / unit) > NEGLIGIBLE * sizes, axis=0)
    error = np.where(touched, np.inf, np.sqrt(np.maximum(np.diag(covariance), 0)))
    notes = tuple(
        "not determined" if lost else "" if may else AT_BOUND for lost, may in zip(touched, free, strict=True)
    )
    known = Uncertainty(
        names=names_of(study.problem.x0),
        x=point.x,
        error=error,
        bias=np.zeros(len(point.x)),
        notes=notes,
        undetermined=_in_words(len(flat), len(falls), int(free.sum())),
        value=point.value,
        value_error=here.value_error(),
        covariance=covariance,
        hessian=np.where(np.outer(free, free), here.hessian, 0.0),
        directions=lost,
        leaves=leaves_of(study.problem.x0, lost / unit),
    )
    return known, galerkin


def _directions(
    here: Sampled, unit: Float[np.ndarray, " dx"], free: Bool[np.ndarray, " dx"]
) -> tuple[Float[np.ndarray, "f dx"], Float[np.ndarray, "e dx"], Float[np.ndarray, "dx dx"]]:
    """Principal directions along which the objective shows no curvature beyond its noise, those along which it falls,
    and the inverse of the curvature on the others."""
    dx, inverse = len(unit), np.zeros((len(unit), len(unit)))
    if not free.any():
        return np.zeros((0, dx)), np.zeros((0, dx)), inverse
    inside, scale = np.ix_(free, free), unit[free]
    values, vectors = np.linalg.eigh(here.hessian[inside] * np.outer(scale, scale))
    steps = np.zeros((len(values), dx))
    steps[:, free] = (vectors * scale[:, None]).T
    doubt, zero = QUANTILE * here.bend_error(steps), np.sqrt(here.study.eps) * np.abs(values).max()
    falls = (values < -doubt) & (values < -zero)
    flat = ((values <= doubt) | (values <= zero)) & ~falls
    kept = ~(flat | falls)
    inverse[inside] = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * np.outer(scale, scale)
    return steps[flat], steps[falls], inverse


def _in_words(flat: int, falls: int, free: int) -> tuple[str, ...]:
    words = []
    if flat:
        words.append(
            f"{flat} of {free} directions of x are not determined: the objective does not change along them beyond its "
            "noise."
        )
    if falls:
        words.append(f"the objective falls along {falls} of {free} directions, so x is no minimum.")
    return tuple(words)
