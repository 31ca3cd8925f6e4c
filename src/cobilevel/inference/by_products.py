r"""Standard errors where ``x`` is too large for differences along each coordinate, by products with the curvature.

Sample $i$ adds $m_i = f_i - v^T r_i$ to the reduced objective. Along a direction $p$ of ``x`` its derivative is
$d f_i - v^T d r_i - v'^T r_i$, and its second one $d^2 f_i - v^T d^2 r_i - 2 v'^T d r_i$ up to terms whose mean is
zero, and which are small where policy and adjoint are nearly linear in ``x``. Here $d$ is the derivative along
$(p, S p)$ and $v'$ the change of the adjoint (``derivatives/curvature.py``). First derivatives of all samples come from
one gradient each, whatever the number of coordinates. No more is held than a table of samples by coordinates.
Second derivatives do not see kinks of ``f``: gradients a standard error away show whether there are any.
"""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..derivatives import DENSE_LIMIT, Curvature, flattened, following
from ..lower import lower_inverse
from ..problem import CHECK_ROWS
from ..reduction import Reduced
from ..study import Study
from .around import (
    KINK,
    MOST_NUMBERS,
    NEGLIGIBLE,
    NOTICED,
    Galerkin,
    bounds_of,
    covariance_of,
    derivatives_of,
    held,
    rows_of,
    slope_accuracy,
    to_minimum,
    value_error_at,
)
from .uncertainty import AT_BOUND, EARLY, QUANTILE, Uncertainty, leaves_of, names_of, unknown


def too_large_for_products(study: Study) -> str:
    """Why products are not taken either, in words; empty where they can be: samples by coordinates are held, three
    times, and the curvature."""
    dx, rows = study.problem.sizes[0], rows_of(study)
    if dx > DENSE_LIMIT:
        return f"x has {dx} coordinates, more than {DENSE_LIMIT}"
    numbers = 3 * dx * (dx + (max(rows) if study.shared else sum(rows)))
    return f"{numbers:.1g} numbers would be stored" if numbers > MOST_NUMBERS else ""


def too_many_derivatives(study: Study) -> str:
    """Why not even one expansion is taken, in words; empty where it can be."""
    numbers = derivatives_of(study)
    return f"{numbers:.1g} derivatives would be computed" if numbers > MOST_NUMBERS else ""


class Sampled:
    """The reduced problem at ``x``: its curvature, and what each sample adds to slopes and curvatures."""

    def __init__(self, study: Study, galerkin: Galerkin):
        at, point = galerkin.expansions, galerkin.point
        self.study, self.galerkin, self.point = study, galerkin, point
        self._curvature = Curvature(at, point.x, point.W, point.adjoint, galerkin.sensitivity)
        (self._pool,) = at.lower_pools
        along = self._curvature.all_products()
        self._hessian = (along.gradient + along.gradient.T) / 2
        self._turn = lower_inverse(point, np.moveaxis(along.pull, 0, 2))  # of the adjoint, with each coordinate

    @property
    def sound(self) -> bool:
        """Whether the reduced problem could be solved."""
        return self.point.sound

    def hessian(self) -> Float[np.ndarray, "dx dx"]:
        """The curvature of the reduced objective."""
        return self._hessian

    @cached_property
    def _noise(self) -> Float[np.ndarray, "dx dx"]:
        upper, lower = self._curvature.slopes()
        residual = self.galerkin.expansions.lower_slopes(self.point.x, self._pool.y(self.point.W))[1]
        return covariance_of(self.study, upper, lower - following(self._pool, self._turn, residual))

    def gradient_covariance(self) -> Float[np.ndarray, "dx dx"]:
        return self._noise

    def free(self) -> Bool[np.ndarray, " dx"]:
        """The coordinates that no bound holds."""
        return ~held(self.study, self.point.x, self.point.gradient, self._noise)

    def value_error(self) -> float:
        """The standard error of the reduced objective."""
        return value_error_at(self.study, self.galerkin)

    def bend_error(self, directions: Float[np.ndarray, "k dx"]) -> Float[np.ndarray, " k"]:
        """The standard error of the curvature along each direction."""
        parts = []
        for some in self._curvature.chunks(directions):
            upper, lower = self._curvature.rows(some)
            turned = np.tensordot(self._turn, some, axes=(2, 1)).reshape(len(self._turn), -1)
            turned = self._pool.y(turned).reshape(-1, self._turn.shape[1], len(some))
            bend = lower.bend.T - 2 * np.einsum("nak,kna->nk", turned, lower.turned)
            parts.append(np.diag(covariance_of(self.study, upper.bend.T, bend)))
        return np.sqrt(np.concatenate(parts))

    @cached_property
    def unit(self) -> Float[np.ndarray, " dx"]:
        """Of each coordinate: a distance along which the objective curves by 1, where it does beyond rounding."""
        step, size, spread = self.galerkin.natural_step()
        bend, guess = np.diag(self._hessian), step / np.sqrt(spread if spread > 0 else 1.0)
        seen = bend * NEGLIGIBLE * step > slope_accuracy(self.study.eps) * size
        return np.where(seen, 1 / np.sqrt(np.where(seen, bend, 1)), guess)

    def uneven(self) -> bool:
        """Whether gradients a standard error away show another curvature than second derivatives do, as kinks do; along
        the noise of the gradient, in units in which all coordinates curve alike."""
        noise, unit = self._noise, self.unit
        values, vectors = np.linalg.eigh(noise * np.outer(unit, unit))
        draw = vectors @ (np.sqrt(np.maximum(values, 0)) * np.random.default_rng(CHECK_ROWS).standard_normal(len(unit)))
        along = np.where(self.free(), unit * draw, 0.0)
        bend = along @ self._hessian @ along
        if not bend > 0:
            return False
        step, (lo, hi) = along * np.sqrt(along @ noise @ along) / bend, self.galerkin.expansions.bounds
        ends = [self.galerkin.nearby(np.clip(self.point.x + side * step, lo, hi)) for side in (1, -1)]
        move = ends[0].x - ends[1].x
        seen, expected = move @ (ends[0].gradient - ends[1].gradient), move @ self._hessian @ move
        return not all(end.sound for end in ends) or not expected / KINK < seen < expected * KINK

    def directions(
        self, free: Bool[np.ndarray, " dx"]
    ) -> tuple[Float[np.ndarray, "f dx"], Float[np.ndarray, "e dx"], Float[np.ndarray, "dx dx"]]:
        """Principal directions along which the objective shows no curvature beyond its noise, those along which it
        falls, and the inverse of the curvature on the others."""
        dx, inverse = len(free), np.zeros((len(free), len(free)))
        if not free.any():
            return np.zeros((0, dx)), np.zeros((0, dx)), inverse
        inside, scale = np.ix_(free, free), self.unit[free]
        values, vectors = np.linalg.eigh(self._hessian[inside] * np.outer(scale, scale))
        steps = np.zeros((len(values), dx))
        steps[:, free] = (vectors * scale[:, None]).T
        doubt, zero = QUANTILE * self.bend_error(steps), np.sqrt(self.study.eps) * np.abs(values).max()
        falls = (values < -doubt) & (values < -zero)
        flat = ((values <= doubt) | (values <= zero)) & ~falls
        kept = ~(flat | falls)
        inverse[inside] = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T * np.outer(scale, scale)
        return steps[flat], steps[falls], inverse


def look_by_products(study: Study, galerkin: Galerkin) -> Sampled | str:
    """The reduced problem at ``x`` with its curvature; or why there is none, in words."""
    if not galerkin.point.sound or not galerkin.expansions.formed:
        why = "the policy has too many coefficients", "the reduced problem has no solution near x"
        return why[not galerkin.point.sound]
    here = Sampled(study, galerkin)
    if here.uneven():
        return (
            "the upper objective has a kink near x, or its curvature changes within a standard error, and x has too "
            "many coordinates for differences along each. Try cb.bootstrap"
        )
    return here


def infer_by_products(
    study: Study, reduced: Reduced, x: PyTree, minimised: bool = True
) -> tuple[Uncertainty, Galerkin]:
    """How well the samples determine a large ``x``, the solution of the reduced problem (whitened) on them;
    `minimised`: whether it was on these samples, and not on more."""
    galerkin = Galerkin.at(reduced, flattened(x), crossed=True)
    point, here = galerkin.point, look_by_products(study, galerkin)
    if isinstance(here, str):
        return unknown(x, f"standard errors were not computed: {here}.", point.value), galerkin
    free, unit = here.free(), here.unit
    flat, falls, inverse = here.directions(free)
    lost = np.concatenate([flat, falls])
    covariance = inverse @ here.gradient_covariance() @ inverse
    sizes = np.max(np.abs(lost / unit), axis=1, initial=0)[:, None]
    touched = np.any(np.abs(lost / unit) > NEGLIGIBLE * sizes, axis=0)
    noise = np.sqrt(np.maximum(np.diag(covariance), 0))
    short, early = np.zeros(len(free)), False
    if minimised and free.any():
        short, early = to_minimum(galerkin, inverse, np.where(free, point.gradient, 0.0), unit, NOTICED * noise)
    error = np.where(touched | (early & free), np.inf, np.hypot(noise, short))
    notes = tuple(
        "not determined" if lost else AT_BOUND if not may else EARLY if early else ""
        for lost, may in zip(touched, free, strict=True)
    )
    remarks = (f"{EARLY}.",) if early else ()
    if not early and np.any(np.abs(short) > noise):
        remarks = (f"the run ended early: the minimum is up to {np.abs(short).max():.2g} away, which errors count.",)
    known = Uncertainty(
        names=names_of(study.problem.x0),
        x=point.x,
        error=error,
        bias=np.zeros(len(point.x)),
        notes=notes,
        undetermined=_in_words(len(flat), len(falls), int(free.sum())),
        remarks=remarks,
        bounds=np.stack(bounds_of(study)),
        value=point.value,
        value_error=here.value_error(),
        covariance=covariance,
        hessian=np.where(np.outer(free, free), here.hessian(), 0.0),
        directions=lost,
        leaves=leaves_of(study.problem.x0, lost / unit),
    )
    return known, galerkin


def _in_words(flat: int, falls: int, free: int) -> tuple[str, ...]:
    words = []
    if flat:
        words.append(
            f"{flat} of {free} directions of x are not determined: the objective does not change along them beyond its "
            "noise."
        )
    if falls:
        words.append(f"the objective falls along {falls} of {free} directions, so x is not a minimum.")
    return tuple(words)
