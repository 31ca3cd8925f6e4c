"""The memory of a limited-memory quasi-Newton method: pairs of steps and changes of the gradient along them."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

# a pair is used where its curvature exceeds this share of |step| |change|: below, the two are orthogonal but for
# rounding, and dividing by their product would magnify that
_LEAST_COSINE = 1e-12


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuasiNewtonMemory:
    """The last `steps` and the `changes` of the gradient along them, newest first, `count` of them filled, others 0."""

    steps: Any
    changes: Any
    count: Any

    @staticmethod
    def empty(size: int, dx: int, dtype: Any = float) -> "QuasiNewtonMemory":
        """Room for so many pairs of vectors."""
        return QuasiNewtonMemory(np.zeros((size, dx), dtype), np.zeros((size, dx), dtype), np.asarray(0, np.int32))

    def _used(self, free: Bool[np.ndarray, " dx"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pairs with positive curvature on the free coordinates, newest first, and that curvature."""
        count = int(self.count)
        steps, changes = (np.where(free, np.asarray(part[:count], float), 0.0) for part in (self.steps, self.changes))
        bend = np.sum(steps * changes, axis=1)
        sizes = np.linalg.norm(steps, axis=1) * np.linalg.norm(changes, axis=1)
        use = bend > _LEAST_COSINE * sizes
        return steps[use], changes[use], bend[use]

    def direction(self, gradient: Float[np.ndarray, " dx"], free: Bool[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"]:
        """Minus the L-BFGS inverse Hessian, restricted to the free coordinates, times the gradient.

        The two-loop recursion; pairs without positive curvature on the free coordinates are passed over.
        """
        steps, changes, bend = self._used(free)
        q, shares = np.where(free, gradient, 0.0), []
        for s, c, b in zip(steps, changes, bend, strict=True):
            shares.append(s @ q / b)
            q = q - shares[-1] * c
        r = q * (bend[0] / (changes[0] @ changes[0])) if len(bend) else q
        for s, c, b, share in zip(steps[::-1], changes[::-1], bend[::-1], shares[::-1], strict=True):
            r = r + s * (share - c @ r / b)
        return -r

    def bends(self, free: Bool[np.ndarray, " dx"]) -> bool:
        """Whether some pair has positive curvature on the free coordinates; without, the direction has no length."""
        return len(self._used(free)[2]) > 0

    def least_curvature(self) -> float:
        """The least curvature among the pairs; infinite where there are none."""
        lengths = np.linalg.norm(np.asarray(self.steps, float), axis=1)
        some = lengths > 0
        return float(
            np.min(np.linalg.norm(np.asarray(self.changes, float)[some], axis=1) / lengths[some], initial=np.inf)
        )

    def last_length(self) -> float:
        """The length of the last step; 0 where there is none."""
        return float(np.linalg.norm(self.steps[0])) if self.count else 0.0

    def remember(self, step: Float[np.ndarray, " dx"], change: Float[np.ndarray, " dx"]) -> "QuasiNewtonMemory":
        """With one more pair, the oldest dropped."""
        roll = lambda table, row: np.concatenate([row[None].astype(table.dtype), table[:-1]])
        count = np.asarray(min(int(self.count) + 1, len(self.steps)), np.int32)
        return QuasiNewtonMemory(roll(self.steps, step), roll(self.changes, change), count)
