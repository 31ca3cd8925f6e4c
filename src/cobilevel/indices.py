"""Multi-index sets: which products of one-dimensional functions make up a basis in several dimensions.

A multi-index ``k = (k_1, ..., k_d)`` stands for ``prod_j phi_{k_j}(xi_j)``, with ``0 <= k_j < n``. Sets are listed by
growing total degree, so that a smaller ``n`` gives a prefix-closed part of a larger one.
"""

from abc import abstractmethod

import equinox as eqx
import numpy as np


class IndexSet(eqx.Module):
    """A rule that keeps some of the multi-indices of the full grid."""

    @abstractmethod
    def admits(self, k: np.ndarray, n: int) -> bool:
        """Whether the multi-index ``k`` (each entry already below ``n``) belongs to the set."""

    def table(self, n: int, dimension: int) -> np.ndarray:
        """All multi-indices, shape ``(N, dimension)``, by total degree and then lexicographically."""
        kept = np.zeros((1, 0), dtype=int)
        for _ in range(dimension):  # every set is downward closed, so prefixes of members are members
            grown = np.array([[*k, j] for k in kept for j in range(n)], dtype=int)
            kept = grown[[self.admits(k, n) for k in grown]]
        order = np.lexsort((*kept.T[::-1], kept.sum(axis=1)))
        return kept[order]


class Tensor(IndexSet):
    """Every product: ``n^d`` functions."""

    def admits(self, k, n):
        return True


class TotalDegree(IndexSet):
    """``|k|_1 <= n - 1``: ``binomial(n - 1 + d, d)`` functions, the natural set for isotropic smoothness."""

    def admits(self, k, n):
        return bool(k.sum() <= n - 1)


class HyperbolicCross(IndexSet):
    """``prod_j (k_j + 1) <= n``: about ``n log^(d-1) n`` functions, for weakly coupled coordinates."""

    def admits(self, k, n):
        return bool(np.prod(k + 1) <= n)
