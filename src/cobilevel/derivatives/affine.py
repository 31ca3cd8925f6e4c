"""A reduced problem in affine coordinates of the decision: the same rows, features and shares, and another ``x``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from ..trees import shaped_like
from .expansion import Expansions
from .rows import Sizes
from .sums import LowerExpansion, RowScales, UpperExpansion


class Affine(Expansions):
    """Expansions after ``u`` with ``x = origin + scales @ u``, from a `start` and within bounds of its own."""

    def __init__(
        self,
        given: Expansions,
        origin: Float[np.ndarray, " dx"],
        scales: Float[np.ndarray, "dx k"],
        start: Float[np.ndarray, " k"],
        bounds: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]],
        curvature: Float[np.ndarray, "k k"] | None = None,
    ):
        self.__dict__.update(given.__dict__)
        self.curvature = curvature
        self.origin, self.scales, self.start, self.bounds = origin, scales, start, bounds
        self.dx, self._last = len(start), None

    def point(self, u: Float[np.ndarray, " k"]) -> Float[np.ndarray, " dx"]:
        """The decision at these coordinates."""
        return self.origin + self.scales @ u

    def decision(self, x):
        return np.asarray(x, self.dtype)

    def upper(self, x, W):
        found = super().upper(x, W)
        return found if self.crossed else replace(found, d1=found.d1 @ self.scales)

    def cross_product(self, x, W, V):
        return super().cross_product(x, W, V) @ self.scales

    def _trees(self, x: np.ndarray, *tables: np.ndarray) -> tuple[PyTree, ...]:
        place = shaped_like(self._x0, self.point(x)[None], self.dtype, 0)
        return (place, *(self.coefficients(W) for W in tables))

    def _summed(self, level: str, of: Callable, x: np.ndarray, W: np.ndarray) -> Any:
        """Sums at the decision that ``x`` stands for, their derivatives turned; those of squares, row by row."""
        place, scales = self.point(x), self.scales
        if of is LowerExpansion.of:
            found = super()._summed(level, of, place, W)
            return replace(found, cross=found.cross @ scales) if self.crossed else found
        if of is UpperExpansion.of:
            found = super()._summed(level, of, place, W)
            return replace(found, d1=found.d1 @ scales)

        def turned(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> Any:
            return of(phi, shares, _turned(level, packed, sizes, scales), sizes._replace(dx=scales.shape[1]))

        return super()._summed(level, turned, place, W)

    def _row_scales_by_products(self, x: np.ndarray, W: np.ndarray, V: np.ndarray | None, centre: float) -> RowScales:
        found, squares = super()._row_scales_by_products(x, W, V, centre), self.scales**2
        parts = (part @ squares for part in (found.direct, found.through, found.turned))
        return RowScales(found.values, next(parts), next(parts), found.slopes, next(parts))


def _turned(level: str, packed: np.ndarray, sizes: Sizes, scales: np.ndarray) -> np.ndarray:
    """Packed row derivatives with those in ``x`` along the columns of a matrix."""
    if level == "upper":
        rows = sizes.split_upper(packed)
        return np.concatenate([rows.value[:, None], rows.d1 @ scales, rows.d2], axis=1)
    cross = sizes.split_lower(packed).cross @ scales
    cut = 1 + sizes.dy * (1 + sizes.dy)
    return np.concatenate([packed[:, :cut], cross.reshape(len(packed), -1)], axis=1)
