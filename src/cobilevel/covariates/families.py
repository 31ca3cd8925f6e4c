"""Families of functions of many coordinates: along few directions, or of a kernel. They are tuned by regression on the
responses of a first fit, and compared with products over the coordinates by the lower objective on samples held out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ..basis import Basis, KernelFeatures, Orthonormal, Rotated
from ..ground import put
from ..inference import QUANTILE, mean_error
from ..problem import SAMPLES_EACH, Box
from .fits import CLEARLY, FITTED, MULTIPLICATIONS, ROUNDS, SETTLED, Fits, Responses, Vector, orthonormalising
from .regression import (
    COUNTS,
    FEWEST_DIMENSIONS,
    degrees_up_to,
    fit_directions,
    fit_kernel,
    kernel_functions,
    refined,
    refreshed,
    tune_directions,
    tune_kernel,
)

FEW_SAMPLES = 400  # a rough look: fewer do not tell families apart, and so many find about where a solution lies

_NEARNESS = {
    "isotropic": "all coordinates alike",
    "coordinates": "coordinates by relevance",
    "directions": "directions by relevance",
}


@dataclass(frozen=True)
class FirstFit:
    """A first fit at one ``x``: `target`, the ``y`` each sample alone asks for, and the inverse curvature; the same as
    responses, and the policy in their units."""

    target: Float[np.ndarray, "n dy"]
    inverse: Float[np.ndarray, "dy dy"]
    responses: Responses
    smooth: Float[np.ndarray, "n dy"]

    @staticmethod
    def at(fits: Fits, x: Vector, members: np.ndarray) -> "FirstFit | None":
        """With these products; ``None`` if the lower level cannot be fitted."""
        fits.lay(members)
        left = fits.residuals(x)
        if left is None or not np.linalg.eigvalsh(left.curvature).min() > 0:
            return None
        A, inverse, rows = left.curvature, np.linalg.inv(left.curvature), slice(0, MULTIPLICATIONS // COUNTS[-1] ** 2)
        y = fits.by_context(fits.table @ left.point.W)[rows]
        target = y - fits.by_context(left.r @ inverse)[rows]
        u, shares = fits.u[rows], fits.context_shares[rows]
        of = lambda t: Responses.of(u, t, A, shares / shares.sum())
        return FirstFit(target, inverse, of(target), of(y).t)

    def leading(self, share: float) -> Responses:
        """The responses of the first rows in few components, from which directions are learned."""
        return self.responses.leading(self.smooth).part(0.0, share)


def learned_kernel(basis: KernelFeatures, fit: FirstFit) -> KernelFeatures:
    """Tunes metric and scale on held-out rows, then takes the functions from all rows."""
    rows = fit.responses
    tuned, *_ = tune_kernel(rows, [basis.n], basis)
    made = kernel_functions(tuned if basis.scale is not None else refreshed(rows, tuned), rows.u)
    return put(replace(basis, axes=made.axes, landmarks=made.landmarks, table=made.table))


def learned_directions(basis: Rotated, fit: FirstFit, most: int) -> Rotated:
    """Directions from gradients, refined with polynomials of growing degree, as the basis and the samples allow."""
    d = fit.responses.u.shape[1]
    if basis.k > d:
        raise ValueError(f"Rotated: k = {basis.k}, but contexts have {d} coordinates; use at most {d} directions.")
    product: Any = basis.basis
    degrees = [n for n in degrees_up_to(basis.k, most) if n < max(product.n, 3)] or [2]
    _, outer = fit_kernel(fit.responses, KernelFeatures(COUNTS[-1]))
    *_, found = fit_directions(fit.leading(1.0), outer, basis.k, degrees)
    return put(replace(basis, axes=found.axes, shift=found.shift))


@dataclass(frozen=True)
class Family:
    """A family of functions on the reference cube: its name, their values, how many; if it is learned, the basis and
    how to learn it from a share of a fit."""

    name: str
    features: Callable[[np.ndarray], np.ndarray]
    count: int
    learned: Any = None
    learn: Callable[[FirstFit, float], Any] | None = None

    def learned_from(self, fit: FirstFit, share: float) -> "Family":
        assert self.learn is not None  # products are all there is already
        learned = self.learn(fit, share)
        return replace(self, features=learned.on_cube, learned=learned)

    @property
    def basis(self) -> Basis:
        """What was learned, whitened."""
        return Orthonormal(put(self.learned))


def _learnable(fit: FirstFit, most: int) -> list[Family]:
    """The best of each kind that is learned, tuned on the part that is fitted to."""
    seen = fit.responses.part(0.0, FITTED)
    most = max(2, min(most, len(seen) // SAMPLES_EACH, COUNTS[-1]))
    tuned, _, outer = tune_kernel(seen, [n for n in COUNTS if n <= most] or [most], KernelFeatures(most))

    def kernel(fit: FirstFit, share: float) -> KernelFeatures:
        rows = fit.responses.part(0.0, share)
        return replace(kernel_functions(refreshed(rows, tuned), rows.u), scale=None)  # as a user would name it

    made, name = kernel_functions(tuned, seen.u), f"functions of a kernel ({_NEARNESS[str(tuned.metric)]})"
    families = [Family(name, made.on_cube, tuned.n, made, kernel)]
    directions = tune_directions(*fit.leading(FITTED).to_tune(len(seen)), outer, most)
    if directions is not None:
        along = directions[0]
        name = f"polynomials along {along.k} direction{'s' * (along.k > 1)}"
        learn = lambda fit, share: refined(fit.leading(share), along)
        families.insert(0, Family(name, along.on_cube, along.on_cube(seen.u[:1]).shape[1], along, learn))
    return families


def _judged(fits: Fits, x: Vector, fit: FirstFit, family: Family) -> Float[np.ndarray, " m"]:
    """The lower objective on samples held out, of the policy in these functions fitted to the others."""
    shares, cut = fit.responses.shares, round(FITTED * len(fit.responses))
    table = family.features(fit.responses.u)
    table = table @ orthonormalising(table[:cut], shares[:cut])
    project = lambda target: table @ (table[:cut].T @ (shares[:cut, None] * target[:cut]))
    y = project(fit.target)
    best, slopes = fits.rows.lower_slopes(x, y)
    for _ in range(ROUNDS):
        y = project(y - slopes @ fit.inverse)
        values, slopes = fits.rows.lower_slopes(x, y)
        gain = float(shares[:cut] @ (best - values)[:cut])
        if not gain > 0:
            break
        best = values
        if gain <= SETTLED * abs(float(shares[:cut] @ best[:cut])):
            break
    return best[cut:]


def _decide(
    families: Sequence[Family], judged: Float[np.ndarray, "k m"], held: Float[np.ndarray, " m"], errors_apart: float
) -> tuple[int, str]:
    """The first family within the given number of standard errors of the best one; the comparison in words."""
    held = held / held.sum()
    means = judged @ held
    best = int(np.nanargmin(means)) if np.isfinite(means).any() else 0
    apart = judged - judged[best]
    errors = mean_error(apart.T, held)
    pick = int(np.argmax(means - means[best] <= errors_apart * errors))
    parts = [f"{one.name} {mean:.4g} ({one.count} functions)" for one, mean in zip(families, means, strict=True)]
    others = ", ".join(f"{error:.2g}" for k, error in enumerate(errors) if k != best)
    return pick, (
        f"The lower objective on {len(held)} held-out samples: {', '.join(parts)}; standard errors of the differences "
        f"from the smallest: {others}."
    )


def compare_families(
    fits: Fits, x: Vector, members: np.ndarray, most: int, kept: Family | None = None
) -> tuple[str, Family | None] | None:
    """Products over the coordinates against other families; or the family `kept` from another ``x`` against the same
    family learned at this one. Returns the comparison in words, and the family to use if it is not the first of them.

    ``None`` if families are not tried: in few dimensions, with few samples, or if each context is paired with all data.
    """
    domain = fits.study.problem.domain
    many = isinstance(domain, Box) and domain.dimension >= FEWEST_DIMENSIONS
    if not many or fits.together > 1 or len(fits.u) < FEW_SAMPLES:
        return None
    fit = FirstFit.at(fits, x, members)
    if fit is None:
        return None
    if kept is None:
        first = Family("products over the coordinates", lambda u: fits.axes.table(u, members), len(members))
        families, errors_apart = [first, *_learnable(fit, most)], QUANTILE
    else:
        anew = replace(kept, name=f"{kept.name}, learned again").learned_from(fit, FITTED)
        families, errors_apart = [kept, anew], CLEARLY
    judged = np.stack([_judged(fits, x, fit, family) for family in families])
    pick, words = _decide(families, judged, fit.responses.shares[-judged.shape[1] :], errors_apart)
    return words, families[pick].learned_from(fit, 1.0) if pick else None
