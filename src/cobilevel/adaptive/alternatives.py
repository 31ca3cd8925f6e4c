"""In many dimensions: products over the coordinates against functions along few directions and those of a kernel.

Families are tuned by regression on the responses of a first fit, and judged by the lower objective on samples held out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from ..basis import Axes, Basis, Chebyshev, KernelFeatures, Orthonormal, Rotated, TotalDegree
from ..covariates import (
    FEWEST_DIMENSIONS,
    KernelMap,
    KernelSettings,
    Projected,
    Responses,
    refined,
    refreshed,
    tune_directions,
    tune_kernel,
    with_directions,
    with_map,
)
from ..problem import Box
from .hunt import Hunt
from .nested_fits import SMALLEST_PIVOT

_CONTEST_ROWS, _FEWEST_COMPARED = 32_768, 400  # samples that families are compared on
_FITTED_PART = 0.8  # share of these that families are fitted to
_COUNTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # functions of a kernel
_SAMPLES_A_FUNCTION = 8  # of those fitted to, whatever the noise
_COMPONENTS = 4  # of y, that directions are learned from
_CLEARLY = 3.0  # standard errors by which a family learned anew must be better to be solved with
_FITS, _NO_GAIN = 4, 1e-3  # fits of a family to the lower objective, and the relative gain that calls for no other

_NEARNESS = {
    "isotropic": "all coordinates alike",
    "coordinates": "coordinates by relevance",
    "directions": "directions by relevance",
}


@runtime_checkable
class Made(Protocol):
    """Functions of contexts on the reference cube."""

    def features(self, u: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Polynomials:
    """Products of Chebyshev polynomials."""

    axes: Axes
    members: np.ndarray

    def features(self, u: np.ndarray) -> np.ndarray:
        return self.axes.table(u, self.members)


@dataclass(frozen=True)
class Family:
    """A family in competition: its name, its functions, and how these are learned from other responses."""

    name: str
    made: Made
    functions: int
    learn: "Callable[[Beginning, float], Made] | None" = None

    def basis(self, made: Made) -> Basis:
        """The functions as a basis, whitened."""
        if isinstance(made, Projected):
            recipe = Rotated(made.axes.shape[1], Chebyshev(made.degree + 1, index=TotalDegree()))
            return Orthonormal(with_directions(recipe, made))
        assert isinstance(made, KernelMap)  # there are no others to learn
        return Orthonormal(with_map(KernelFeatures(self.functions, metric=made.metric), made))


@dataclass(frozen=True)
class Verdict:
    """How families compare, in words; the `basis` to take and its `family` where that is not the first of them."""

    words: str
    basis: Basis | None = None
    family: Family | None = None


@dataclass(frozen=True)
class Beginning:
    """Where families begin at one ``x``: `target`, what each sample alone asks for, and the inverse curvature; the same
    as responses, and the policy of the first fit in their units."""

    target: Float[np.ndarray, "n dy"]
    inverse: Float[np.ndarray, "dy dy"]
    responses: Responses
    smooth: Float[np.ndarray, "n dy"]

    @staticmethod
    def at(hunt: Hunt, x: Float[np.ndarray, " dx"], members: np.ndarray) -> "Beginning | None":
        """From a first fit with these products; ``None`` where the lower level cannot be fitted."""
        fits = hunt.fits
        fits.lay(members)
        found = fits.residuals(x, hunt.study.shared)
        if found is None or not np.linalg.eigvalsh(found.curvature).min() > 0:
            return None
        A, inverse = found.curvature, np.linalg.inv(found.curvature)
        y = hunt.by_context(fits.table @ found.point.W)[:_CONTEST_ROWS]
        target = y - hunt.by_context(found.r @ inverse)[:_CONTEST_ROWS]
        u, shares = hunt.u[: len(y)], hunt.shares[: len(y)] / hunt.shares[: len(y)].sum()
        smooth = Responses.of(u, y, A, shares).t
        return Beginning(target, inverse, Responses.of(u, target, A, shares), smooth)

    def leading(self, share: float) -> Responses:
        """The responses of the first rows in few components, from which directions are learned."""
        return self.responses.leading(self.smooth, _COMPONENTS).part(0.0, share)


class Contest:
    """Families compared at one ``x``, by the lower objective of what is fitted to the responses there."""

    def __init__(self, hunt: Hunt, x: Float[np.ndarray, " dx"], start: Beginning):
        self.hunt, self.x, self.start, self.responses = hunt, x, start, start.responses
        self.cut = round(_FITTED_PART * len(self.responses))

    def families(self) -> list[Family]:
        """The best of each kind besides products over the coordinates."""
        rows, most = self.responses, self.hunt.most
        seen = rows.part(0.0, _FITTED_PART)
        most = max(2, min(most, len(seen) // _SAMPLES_A_FUNCTION, _COUNTS[-1]))
        settings, count, _, outer = tune_kernel(seen, [n for n in _COUNTS if n <= most] or [most])
        name = f"functions of a kernel ({_NEARNESS[settings.metric]})"
        found = [Family(name, KernelMap.tuned(seen.u, settings, count), count, partial(_kernel_from, settings, count))]
        tuned = tune_directions(self.start.leading(_FITTED_PART), outer, most)
        if tuned is not None:
            along, k = tuned[0], tuned[0].axes.shape[1]
            name = f"polynomials along {k} direction{'s' * (k > 1)}"
            found.insert(0, Family(name, along, along.size, partial(_directions_from, along)))
        return found

    def judged(self, made: Made) -> Float[np.ndarray, " m"]:
        """The lower objective on samples held out, of the policy in these functions fitted to the others."""
        table, cut, root = made.features(self.responses.u), self.cut, self.responses.root[: self.cut]
        q, triangle = np.linalg.qr(root * table[:cut])
        pivots = np.abs(np.diag(triangle))
        usable = int(np.argmin(np.append(pivots > SMALLEST_PIVOT * pivots.max(), False)))
        table = np.linalg.solve(triangle[:usable, :usable].T, table[:, :usable].T).T
        fit = lambda target: table @ (q[:, :usable].T @ (root * target[:cut]))
        shares, y = self.responses.shares, fit(self.start.target)
        lower = self.hunt.fits.rows.lower_slopes
        values, slopes = lower(self.x, y)
        best = values
        for _ in range(_FITS - 1):
            y = fit(y - slopes @ self.start.inverse)
            values, slopes = lower(self.x, y)
            gain = float(shares[:cut] @ (best - values)[:cut])
            if not gain > 0:
                break
            best = values
            if gain <= _NO_GAIN * abs(float(shares[:cut] @ best[:cut])):
                break
        return best[cut:]

    def decide(self, families: Sequence[Family], errors_apart: float = 1.0) -> tuple[int, str]:
        """The first family that is within so many standard errors of the best one; the comparison in words."""
        held = self.responses.shares[self.cut :]
        held = held / held.sum()
        table = np.stack([self.judged(family.made) for family in families])
        means = table @ held
        best = int(np.nanargmin(means)) if np.isfinite(means).any() else 0
        apart = table - table[best]
        errors = np.sqrt((apart - (apart @ held)[:, None]) ** 2 @ held**2)
        pick = int(np.argmax(means - means[best] <= errors_apart * errors))
        parts = [
            f"{family.name} {mean:.4g} ({family.functions} functions)"
            for family, mean in zip(families, means, strict=True)
        ]
        others = ", ".join(f"{error:.2g}" for k, error in enumerate(errors) if k != best)
        return pick, (
            f"The lower objective on {len(held)} samples held out: {', '.join(parts)}; standard errors of the "
            f"differences from the least: {others}."
        )


def _kernel_from(settings: KernelSettings, count: int, start: Beginning, share: float) -> Made:
    rows = start.responses.part(0.0, share)
    return KernelMap.tuned(rows.u, refreshed(rows, settings), count)


def _directions_from(along: Projected, start: Beginning, share: float) -> Made:
    return refined(start.leading(share), along)


def compared(
    hunt: Hunt, x: Float[np.ndarray, " dx"], members: np.ndarray, kept: Family | None = None
) -> Verdict | None:
    """Products over the coordinates against other families; or what was `kept` from another ``x`` against the same
    family learned at this one.

    ``None`` where families are not tried: in few dimensions, with few samples, or where each context meets all data.
    """
    domain = hunt.study.problem.domain
    if not isinstance(domain, Box) or domain.dimension < FEWEST_DIMENSIONS:
        return None
    if hunt.together > 1 or len(hunt.rows) < _FEWEST_COMPARED:
        return None
    start = Beginning.at(hunt, x, members)
    if start is None:
        return None
    contest = Contest(hunt, x, start)
    if kept is None:
        first = Family("products over the coordinates", Polynomials(hunt.axes, members), len(members))
        pick, words = contest.decide(families := [first, *contest.families()])
    else:
        assert kept.learn is not None  # only such are kept
        families = [kept, replace(kept, name=f"{kept.name}, learned anew", made=kept.learn(start, _FITTED_PART))]
        pick, words = contest.decide(families, _CLEARLY)
    family = families[pick]
    if pick == 0 or family.learn is None:
        return Verdict(words)
    made = family.learn(start, 1.0)
    return Verdict(words, family.basis(made), replace(family, made=made))
