"""Expansions in other coordinates of the decision."""

import numpy as np
from jaxtyping import Float

from .expansion import Expansions


class Affine(Expansions):
    """Expansions after ``u`` with ``x = origin + scales @ u``, from a `start` and within bounds of its own."""

    def __init__(
        self,
        given: Expansions,
        origin: Float[np.ndarray, " dx"],
        scales: Float[np.ndarray, "dx k"],
        start: Float[np.ndarray, " k"],
        bounds: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]],
    ):
        self.__dict__.update(given.__dict__)
        self.origin, self.scales, self.start, self.bounds = origin, scales, start, bounds
        self.dx, self._last = len(start), None

    def point(self, x):
        return self.origin + self.scales @ x

    def steps(self, directions):
        return directions @ self.scales.T

    def decision(self, x):
        return np.asarray(x, self.dtype)

    def _along_x(self, rows):
        return rows @ self.scales
