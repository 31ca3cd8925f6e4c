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
from ..iteration import ROUNDINGS
from ..lower import Point

_SHARE_OF_SPREAD = 1e-3  # an x near zero is measured by what moves the objective by this share of its spread
_LEFT_BEHIND = 1e-4  # of the distance from zero at which units were measured, below which they are measured anew


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Units:
    """The units of a run.

    `sigma`: what a unit of each coordinate is worth in units of the objective; `measured`: which of them were seen,
    others are guesses; `spread`: of the objective over the samples; `origin`: how far from zero they were measured.
    """

    sigma: Any
    measured: Any
    spread: Any
    origin: Any

    @staticmethod
    def unknown(dx: int) -> "Units":
        """Before anything was measured."""
        return Units(np.ones(dx), np.zeros(dx, bool), np.ones(()), np.zeros(()))

    @property
    def extent(self) -> float:
        """What an ``x`` near zero is measured by."""
        return _SHARE_OF_SPREAD * self.spread

    def far(self, x: Float[np.ndarray, " dx"]) -> float:
        """The largest coordinate in these units; no squares, which would overflow far out."""
        return float(np.max(np.abs(x * self.sigma)))

    def scaled(self, point: Point) -> tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"]]:
        """A point and the gradient there in these units."""
        return point.x * self.sigma, point.gradient / self.sigma

    def room(self, at: Expansions, point: Point) -> tuple[Float[np.ndarray, " dx"], Float[np.ndarray, " dx"]]:
        """How far each coordinate is from its lower and from its upper bound, in these units."""
        return (point.x - at.bounds[0]) * self.sigma, (at.bounds[1] - point.x) * self.sigma

    def free(self, at: Expansions, point: Point, near: Any) -> Bool[np.ndarray, " dx"]:
        """Which coordinates may move against the gradient: not those that it pushes against a bound, or `near` one."""
        low, high = self.room(at, point)
        blocked = (low <= near) & (point.gradient > 0) | (high <= near) & (point.gradient < 0)
        return ~(blocked | (at.bounds[0] == at.bounds[1]))

    def projected(self, at: Expansions, point: Point) -> float:
        """The size of what the bounds leave of the gradient ``g``: ``(x - P(x - spread * g)) / spread``.

        By comparing steps with the room that is left: added to a large ``x``, a short one would vanish.
        """
        (low, high), spread, gradient = self.room(at, point), self.spread, point.gradient / self.sigma
        within = np.clip(gradient, -high / spread, low / spread) if spread > 0 else gradient
        return float(np.linalg.norm(within))

    def measured_at(self, at: Expansions, point: Point) -> "Units":
        """With coordinates measured at a point that were not before, and the spread there.

        A coordinate without gradient at any sample has no such unit: it gets one from its size or its bounds, until
        the run has come to where it matters.
        """
        scales = at.row_scales(point.x, point.W, point.adjoint, point.value)
        spread = self._spread_at(point, scales.spread, at.eps)
        if not scales.spread > 0 and point.value == 0:  # where f vanishes at all samples: what a unit of x is worth
            spread = float(np.max(scales.sizes * np.where(point.x != 0, np.abs(point.x), 1.0))) or spread
        seen = (scales.sizes > 0) & np.isfinite(scales.sizes) & ~self.measured
        known, width = np.where(self.measured, self.sigma, scales.sizes), at.bounds[1] - at.bounds[0]
        most = np.max(np.where(np.isfinite(known), known, 0))
        size = np.maximum(np.abs(point.x), np.where(np.isfinite(width), width, 0))
        guess = np.where(size > 0, spread / np.where(size > 0, size, 1), most if most > 0 else 1.0)
        fresh = np.exp2(np.round(np.log2(np.where(seen, scales.sizes, guess))))
        usable = ~self.measured & np.isfinite(fresh) & (fresh > 0)
        units = Units(np.where(usable, fresh, self.sigma), self.measured | seen, spread, 0.0)
        return replace(units, origin=units.far(point.x))

    def _spread_at(self, point: Point, spread: float, eps: float) -> float:
        """The standard deviation of the objective; where there is none its value, or a share of the spread before."""
        size = abs(point.value)
        spread = spread if spread > ROUNDINGS * eps * size else size
        if not np.isfinite(spread):
            return float(self.spread)
        before = eps ** (1 / 3) * float(self.spread) if self.measured.any() else np.finfo(float).tiny
        return spread if spread > 0 else before

    def after(self, at: Expansions, point: Point) -> tuple["Units", bool]:
        """The units after a move to a point, and whether they were measured anew.

        Anew, where the point is so much nearer to zero than where they were measured that they say nothing of it,
        nor do the curvature along the way and the first gradient. Where a coordinate shows its first gradient, it is
        measured; near zero, where the extent hangs on the spread, the spread is.
        """
        left = self.measured.any() and self.far(point.x) < _LEFT_BEHIND * self.origin and np.any(point.gradient)
        if left or np.any(~self.measured & (point.gradient != 0)):
            return replace(self, measured=self.measured & (not left)).measured_at(at, point), bool(left)
        if np.linalg.norm(point.x * self.sigma) < self.extent:
            spread = at.row_scales(point.x, point.W, centre=point.value).spread
            return replace(self, spread=self._spread_at(point, spread, at.eps)), False
        return self, False
