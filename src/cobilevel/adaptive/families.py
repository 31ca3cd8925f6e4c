"""In many dimensions: products over the coordinates against functions along few directions and those of a kernel.

Families are tuned by regression on the responses of a first fit, and judged by the lower objective on samples held out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from ..basis import Axes, Basis, Chebyshev, KernelFeatures, Orthonormal, Rotated, TotalDegree
from ..covariates import (
    CLEARLY,
    COUNTS,
    FEWEST_DIMENSIONS,
    SETTLED,
    KernelMap,
    Projected,
    Responses,
    orthonormalising,
    refined,
    refreshed,
    tune_directions,
    tune_kernel,
)
from ..problem import SAMPLES_EACH, Box
from .selection import ForwardSelection

FITTED = 0.8  # share of the samples fitted to where others are held out
_ROWS, _FEWEST_ROWS = 32_768, 400  # samples that families are compared on
_DEGREE_ROWS = 12_288  # at most, while the degrees of polynomials along directions are tuned
_FITS = 4  # of a family to the lower objective

_NEARNESS = {
    "isotropic": "all coordinates alike",
    "coordinates": "coordinates by relevance",
    "directions": "directions by relevance",
}


@runtime_checkable
class Functions(Protocol):
    """Functions of contexts on the reference cube."""

    def features(self, u: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class CoordinateProducts:
    """Products of functions of single coordinates."""

    axes: Axes
    members: np.ndarray

    def features(self, u: np.ndarray) -> np.ndarray:
        return self.axes.table(u, self.members)


@dataclass(frozen=True)
class FirstFit:
    """A first fit at one ``x``: `target`, what each sample alone asks for, and the inverse curvature; the same as
    responses, and the policy in their units."""

    target: Float[np.ndarray, "n dy"]
    inverse: Float[np.ndarray, "dy dy"]
    responses: Responses
    smooth: Float[np.ndarray, "n dy"]

    @staticmethod
    def at(selection: ForwardSelection, x: Float[np.ndarray, " dx"], members: np.ndarray) -> "FirstFit | None":
        """With these products; ``None`` where the lower level cannot be fitted."""
        fits = selection.fits
        fits.lay(members)
        left = fits.residuals(x)
        if left is None or not np.linalg.eigvalsh(left.curvature).min() > 0:
            return None
        A, inverse = left.curvature, np.linalg.inv(left.curvature)
        y = fits.by_context(fits.table @ left.point.W)[:_ROWS]
        target = y - fits.by_context(left.r @ inverse)[:_ROWS]
        u, shares = fits.u[:_ROWS], fits.context_shares[:_ROWS]
        of = lambda t: Responses.of(u, t, A, shares / shares.sum())
        return FirstFit(target, inverse, of(target), of(y).t)

    def leading(self, share: float) -> Responses:
        """The responses of the first rows in few components, from which directions are learned."""
        return self.responses.leading(self.smooth).part(0.0, share)


@dataclass(frozen=True)
class Family:
    """A family of functions: its name, its `functions`, how many; and how these are learned from a share of a fit."""

    name: str
    functions: Functions
    count: int
    learn: Callable[[FirstFit, float], Functions] | None = None

    @property
    def basis(self) -> Basis:
        """Learned functions as a basis, whitened."""
        if isinstance(made := self.functions, Projected):
            return Orthonormal(made.kept_in(Rotated(made.k, Chebyshev(made.degree + 1, index=TotalDegree()))))
        assert isinstance(made, KernelMap)  # there are no others to learn
        return Orthonormal(made.kept_in(KernelFeatures(self.count, metric=made.metric)))


def _learnable(fit: FirstFit, most: int) -> list[Family]:
    """The best of each kind that is learned, tuned on the part that is fitted to."""
    seen = fit.responses.part(0.0, FITTED)
    most = max(2, min(most, len(seen) // SAMPLES_EACH, COUNTS[-1]))
    settings, count, _, outer = tune_kernel(seen, [n for n in COUNTS if n <= most] or [most])

    def kernel(fit: FirstFit, share: float) -> Functions:
        rows = fit.responses.part(0.0, share)
        return KernelMap.of(refreshed(rows, settings), rows.u, count)

    name = f"functions of a kernel ({_NEARNESS[settings.metric]})"
    families = [Family(name, KernelMap.of(settings, seen.u, count), count, kernel)]
    tuned = tune_directions(*fit.leading(FITTED).to_tune(_DEGREE_ROWS), outer, most)
    if tuned is not None:
        along = tuned[0]
        name = f"polynomials along {along.k} direction{'s' * (along.k > 1)}"
        learn = lambda fit, share: refined(fit.leading(share), along)
        families.insert(0, Family(name, along, along.size, learn))
    return families


def _judged(
    selection: ForwardSelection, x: Float[np.ndarray, " dx"], fit: FirstFit, functions: Functions
) -> Float[np.ndarray, " m"]:
    """The lower objective on samples held out, of the policy in these functions fitted to the others."""
    shares, cut = fit.responses.shares, round(FITTED * len(fit.responses))
    table = functions.features(fit.responses.u)
    table = table @ orthonormalising(table[:cut], shares[:cut])
    project = lambda target: table @ (table[:cut].T @ (shares[:cut, None] * target[:cut]))
    lower = selection.fits.rows.lower_slopes
    y = project(fit.target)
    best, slopes = lower(x, y)
    for _ in range(_FITS - 1):
        y = project(y - slopes @ fit.inverse)
        values, slopes = lower(x, y)
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
    """The first family that is within so many standard errors of the best one; the comparison in words."""
    held = held / held.sum()
    means = judged @ held
    best = int(np.nanargmin(means)) if np.isfinite(means).any() else 0
    apart = judged - judged[best]
    errors = np.sqrt((apart - (apart @ held)[:, None]) ** 2 @ held**2)
    pick = int(np.argmax(means - means[best] <= errors_apart * errors))
    parts = [f"{one.name} {mean:.4g} ({one.count} functions)" for one, mean in zip(families, means, strict=True)]
    others = ", ".join(f"{error:.2g}" for k, error in enumerate(errors) if k != best)
    return pick, (
        f"The lower objective on {len(held)} samples held out: {', '.join(parts)}; standard errors of the differences "
        f"from the least: {others}."
    )


def compare_families(
    selection: ForwardSelection, x: Float[np.ndarray, " dx"], members: np.ndarray, kept: Family | None = None
) -> tuple[str, Family | None] | None:
    """Products over the coordinates against other families; or what was `kept` from another ``x`` against the same
    family learned at this one. The comparison in words, and the family to take where that is not the first of them.

    ``None`` where families are not tried: in few dimensions, with few samples, or where each context meets all data.
    """
    domain, fits = selection.study.problem.domain, selection.fits
    if not isinstance(domain, Box) or domain.dimension < FEWEST_DIMENSIONS:
        return None
    if fits.together > 1 or len(fits.u) < _FEWEST_ROWS:
        return None
    fit = FirstFit.at(selection, x, members)
    if fit is None:
        return None
    if kept is None:
        first = Family("products over the coordinates", CoordinateProducts(fits.axes, members), len(members))
        families, errors_apart = [first, *_learnable(fit, selection.most)], 1.0
    else:
        assert kept.learn is not None  # only such are kept
        anew = replace(kept, name=f"{kept.name}, learned anew", functions=kept.learn(fit, FITTED))
        families, errors_apart = [kept, anew], CLEARLY
    judged = np.stack([_judged(selection, x, fit, family.functions) for family in families])
    pick, words = _decide(families, judged, fit.responses.shares[-judged.shape[1] :], errors_apart)
    family = families[pick]
    if pick == 0 or family.learn is None:
        return words, None
    return words, replace(family, functions=family.learn(fit, 1.0))
