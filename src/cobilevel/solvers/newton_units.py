r"""The units in which ``Newton`` measures ``x``: those in which every coordinate moves the upper objective alike.

With $\sigma_j$ the root mean square, over the samples, of the gradient in coordinate $j$, the products $x_j \sigma_j$
are in units of $f$ whatever the units of $x_j$, and so is the spread of $f$ over the samples, the natural length. The
$\sigma_j$ are powers of two, so that changing units does not round.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from ..derivatives import Expansions
from ..lower import Point

_NOISE_OF_SPREAD = 32  # the noise of the objective, in units of its own precision
_SHARE_OF_SPREAD = 1e-3  # an x near zero is measured by what moves the objective by this share of its spread
_LEFT_BEHIND = 1e-4  # of the distance from zero at which units were measured, below which they are measured anew
_SHARE_BEFORE = 0.35  # exponent of the precision: the share of a length that is kept where there is no other


def largest_size(scaled: Float[np.ndarray, " dx"]) -> float:
    """How far a scaled point is from zero; no squares, which would overflow far out."""
    return float(np.max(np.abs(scaled)))


@dataclass(frozen=True)
class FlatBounds:
    """The bounds on the flattened decision."""

    lo: Float[np.ndarray, " dx"]
    hi: Float[np.ndarray, " dx"]

    def scaled(self, sigma: Float[np.ndarray, " dx"]) -> "FlatBounds":
        """In other units."""
        return FlatBounds(self.lo * sigma, self.hi * sigma)

    def project(self, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"]:
        """The nearest point within them."""
        return np.clip(x, self.lo, self.hi)

    def free(self, x: np.ndarray, gradient: np.ndarray, near: Any = 0.0) -> Bool[np.ndarray, " dx"]:
        """Which coordinates may move against the gradient: not those that it pushes against a bound, or `near` one."""
        low, high = (x <= self.lo + near) & (gradient > 0), (x >= self.hi - near) & (gradient < 0)
        return ~(low | high | (self.lo == self.hi))

    def projected(self, x: np.ndarray, gradient: np.ndarray, length: float) -> Float[np.ndarray, " dx"]:
        """``(x - P(x - length * gradient)) / length``, by comparing steps with the room that is left."""
        safe = length if length > 0 else 1.0
        low, high = x - self.lo, self.hi - x
        return np.where(
            length * gradient > low, low / safe, np.where(-length * gradient > high, -high / safe, gradient)
        )


def _root_mean_square(table: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, " k"]:
    """Of each column, without squaring anything large."""
    most = np.max(np.abs(table), axis=0)
    share = table / np.where(most > 0, most, 1)
    return most * np.sqrt(shares @ share**2 / max(shares.sum(), 1e-30))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Units:
    """`sigma`: what a unit of each coordinate is worth in units of the objective; `measured`: which of them were seen,
    others are guesses; `spread`: of the objective over the samples; `origin`: how far from zero they were measured."""

    sigma: Any
    measured: Any
    spread: Any
    origin: Any

    @staticmethod
    def of(sigma: Any, measured: Any, spread: Any, origin: Any) -> "Units":
        """From plain numbers: arrays are what is kept of a run."""
        return Units(
            np.asarray(sigma, float), np.asarray(measured, bool), np.asarray(spread, float), np.asarray(origin, float)
        )

    @staticmethod
    def unknown(dx: int) -> "Units":
        """Before anything was measured."""
        return Units.of(np.ones(dx), np.zeros(dx, bool), 1.0, 0.0)

    @property
    def extent(self) -> float:
        """What an ``x`` near zero is measured by."""
        return _SHARE_OF_SPREAD * float(self.spread)

    def scaled(self, point: Point) -> Point:
        """A point in these units."""
        return replace(point, x=point.x * self.sigma, gradient=point.gradient / self.sigma)

    def projected(self, bounds: FlatBounds, point: Point) -> Float[np.ndarray, " dx"]:
        """What the bounds leave of the gradient at a point, in these units."""
        scaled = self.scaled(point)
        return bounds.scaled(self.sigma).projected(scaled.x, scaled.gradient, float(self.spread))

    def room(self, bounds: FlatBounds, scaled: Point) -> Float[np.ndarray, " dx"]:
        """How far each coordinate of a scaled point could go against its gradient before it meets a bound."""
        ends, x, g = bounds.scaled(self.sigma), scaled.x, scaled.gradient
        return np.where(g > 0, x - ends.lo, np.where(g < 0, ends.hi - x, 0.0))

    def at(self, at: Expansions, bounds: FlatBounds, point: Point) -> "Units":
        """With coordinates measured at a point (in its own units) that were not before, and the spread there.

        A coordinate without gradient at any sample has no such unit: it gets one from its size or its bounds, until
        the run has come to where it matters.
        """
        x, scales = point.x, at.row_scales(point.x, point.W, point.adjoint, point.value)
        spread = self._spread(point, scales.spread, at.eps)
        seen = (scales.sizes > 0) & np.isfinite(scales.sizes) & ~self.measured
        guess = self._guess(bounds, x, np.where(self.measured, self.sigma, scales.sizes), spread)
        with np.errstate(divide="ignore", invalid="ignore"):
            fresh = np.exp2(np.round(np.log2(np.where(seen, scales.sizes, guess))))
        usable = np.isfinite(fresh) & (fresh > 0)
        fresh = np.where(self.measured | ~usable, self.sigma, fresh)
        return Units.of(fresh, self.measured | seen, spread, largest_size(x * fresh))

    def _spread(self, point: Point, spread: float, eps: float) -> float:
        """The standard deviation of the objective; where there is none its value, or a share of the spread before."""
        size = abs(point.value)
        spread = spread if spread > _NOISE_OF_SPREAD * eps * size else size
        if not np.isfinite(spread):
            return float(self.spread)
        before = eps**_SHARE_BEFORE * float(self.spread) if self.measured.any() else np.finfo(float).tiny
        return spread if spread > 0 else before

    def _guess(self, bounds: FlatBounds, x: np.ndarray, sigma: np.ndarray, spread: float) -> Float[np.ndarray, " dx"]:
        """For coordinates without gradient: by their size, their room, or as the others."""
        width = bounds.hi - bounds.lo
        room = np.maximum(np.abs(x), np.where(np.isfinite(width), width, 0))
        most = np.max(np.where(np.isfinite(sigma), sigma, 0))
        return np.where(room > 0, spread / np.where(room > 0, room, 1), most if most > 0 else 1.0)

    def left_behind(self, point: Point) -> bool:
        """Whether a point is so much nearer to zero than where these units were measured that they say nothing of it:
        neither they, nor the curvature along the way, nor the first gradient."""
        return bool(self.measured.any()) and largest_size(point.x * self.sigma) < _LEFT_BEHIND * float(self.origin)

    def refreshed(self, at: Expansions, bounds: FlatBounds, point: Point, moved: bool) -> tuple["Units", bool]:
        """After a move to a point: measured there where a coordinate shows its first gradient; measured anew, as is
        stated along with the units, where they are left behind; the spread alone where the point is near zero, so that
        its extent hangs on the spread."""
        if not moved:
            return self, False
        anew = self.left_behind(point) and bool(np.any(point.gradient))
        if anew or np.any(~self.measured & (point.gradient != 0)):
            kept = Units.of(self.sigma, self.measured & (not anew), self.spread, self.origin)
            return kept.at(at, bounds, point), anew
        if np.linalg.norm(point.x * self.sigma) < self.extent:
            spread = at.row_scales(point.x, point.W, centre=point.value).spread
            return Units.of(self.sigma, self.measured, self._spread(point, spread, at.eps), self.origin), False
        return self, False
