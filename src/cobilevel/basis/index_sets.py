"""Multi-index sets: which products of one-dimensional functions make up a basis in several dimensions.

A multi-index ``k = (k_1, ..., k_d)`` stands for ``prod_j phi_{k_j}(xi_j)``, with ``0 <= k_j < n``. Sets are listed by
growing total degree, so that a smaller ``n`` gives a prefix-closed part of a larger one. Where the coordinates are of
several kinds, each function has a degree of its own: a sine and its cosine have the same, and categories have none
beyond 1.
"""

import math
from abc import abstractmethod
from functools import lru_cache
from typing import Any

import equinox as eqx
import numpy as np

from ..ground import MOST_LISTED, plain, whole
from .base import NUMBERS_AT_ONCE, Recipe, plain_number


class IndexSet(Recipe):
    """A rule that keeps some of the multi-indices of the full grid."""

    def __repr__(self):
        return f"{type(self).__name__}()"

    @abstractmethod
    def admits(self, k: np.ndarray, n: int) -> Any:
        """Whether multi-indices, along the last axis of ``k``, belong to the set; each entry is below ``n``."""

    @plain
    def table(self, n: int, dimension: int) -> np.ndarray:
        """All multi-indices, shape ``(N, dimension)``, by total degree and then lexicographically."""
        return self.coupled([np.arange(n)] * dimension)

    def count(self, n: int, dimension: int) -> int:
        """How many there are."""
        return self.size([np.arange(n)] * dimension)

    def count_coupled(self, degrees: list[np.ndarray]) -> int | None:
        """How many there are where the functions of each coordinate have these degrees, without listing them; ``None``
        where only listing them shows it."""
        return None

    def size(self, degrees: list[np.ndarray]) -> int:
        """The same, by listing them where nothing else shows it."""
        known = self.count_coupled(degrees)
        return len(self.coupled(degrees)) if known is None else known

    @plain
    def coupled(self, degrees: list[np.ndarray]) -> np.ndarray:
        """All multi-indices where the functions of each coordinate have these degrees; the last lists are kept."""
        return _kept(self, tuple(tuple(own.tolist()) for own in degrees))

    def listed(self, degrees: list[np.ndarray]) -> np.ndarray:
        """The same, listed anew."""
        require_listed(self.count_coupled(degrees) or 0, repr(self), len(degrees))
        top = 1 + max(int(own.max()) for own in degrees)
        kept = np.zeros((1, 0), dtype=int)
        for j, own in enumerate(degrees):  # every set is downward closed, so prefixes of members are members
            each = max(1, NUMBERS_AT_ONCE // len(own))
            grown = []
            for block in (kept[k : k + each] for k in range(0, len(kept), each)):
                rows = np.column_stack([np.repeat(block, len(own), axis=0), np.tile(np.arange(len(own)), len(block))])
                grown.append(rows[self.admits(_degree_of(rows, degrees[: j + 1]), top)])
            kept = np.concatenate(grown)
            require_listed(len(kept), repr(self), len(degrees))
        total = _degree_of(kept, degrees).sum(axis=1)
        return kept[np.lexsort((*kept.T[::-1], total))]


@lru_cache(maxsize=8)
def _kept(index: IndexSet, degrees: tuple[tuple[int, ...], ...]) -> np.ndarray:
    table = index.listed([np.array(own) for own in degrees])
    table.flags.writeable = False
    return table


def require_listed(count: int, name: str, dimension: int, fitting: str = "") -> None:
    """Raises if there are more products of functions than can be listed; `fitting` suggests smaller sets."""
    if count > MOST_LISTED:
        remedy = fitting or "Use a smaller n, or an index set that keeps fewer, such as TotalDegree() or Additive()."
        raise ValueError(
            f"{name} in {dimension} dimension{'s'[: dimension != 1]} has {count:,} functions or more, but at most "
            f"{MOST_LISTED:,} can be listed. {remedy}"
        )


def _degree_of(rows: np.ndarray, degrees: list[np.ndarray]) -> np.ndarray:
    return np.column_stack([own[column] for own, column in zip(degrees, rows.T, strict=True)])


class Tensor(IndexSet):
    """Every product: ``n^d`` functions.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.Tensor()).fit(cube, grid).size  # 4^3
    64
    """

    def admits(self, k, n):
        return np.ones(k.shape[:-1], bool)

    def count_coupled(self, degrees):
        return math.prod(len(own) for own in degrees)


class TotalDegree(IndexSet):
    """``|k|_1 <= n - 1``: ``binomial(n - 1 + d, d)`` functions, the natural set for isotropic smoothness.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.TotalDegree()).fit(cube, grid).size
    20
    """

    def admits(self, k, n):
        return k.sum(axis=-1) <= n - 1

    def count(self, n, dimension):
        return math.comb(n - 1 + dimension, dimension)

    def count_coupled(self, degrees):
        top = max(int(own.max()) for own in degrees)
        by_degree = np.ones(1)  # how many products of each degree the coordinates so far have
        for own in degrees:
            by_degree = np.convolve(by_degree, np.bincount(own))[: top + 1]
        return int(by_degree.sum())


class Interactions(IndexSet):
    """At most `order` coordinates vary together: sums of functions of up to `order` coordinates each (ANOVA).

    **Arguments:**

    - `order`: how many coordinates may vary together.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.Interactions(2)).fit(cube, grid).size
    37
    """

    order: int = eqx.field(static=True, converter=plain_number, default=2)

    def __check_init__(self):
        whole("Interactions: order", self.order)

    def __repr__(self):
        return f"Interactions({self.order})"

    def admits(self, k, n):
        return np.sum(k > 0, axis=-1) <= self.order

    def count_coupled(self, degrees):
        by_number = [1]  # how many products there are of each number of coordinates that vary
        for own in degrees:
            still, moving = int(np.sum(own == 0)), int(np.sum(own > 0))
            ahead = zip([*by_number, 0], [0, *by_number], strict=True)
            by_number = [still * a + moving * b for a, b in ahead][: self.order + 1]
        return sum(by_number)


class Additive(IndexSet):
    """At most one coordinate varies: a sum of functions of single coordinates, ``1 + d (n - 1)`` functions.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.Additive()).fit(cube, grid).size  # 1 + 3 * 3
    10
    """

    def admits(self, k, n):
        return Interactions(1).admits(k, n)

    def count_coupled(self, degrees):
        return Interactions(1).count_coupled(degrees)


class HyperbolicCross(IndexSet):
    """``prod_j (k_j + 1) <= n``: about ``n log^(d-1) n`` functions, for weakly coupled coordinates.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.HyperbolicCross()).fit(cube, grid).size
    13
    """

    def admits(self, k, n):
        return np.prod(k + 1, axis=-1) <= n

    def count_coupled(self, degrees):
        top = 1 + max(int(own.max()) for own in degrees)
        by_product, count = np.eye(1, top + 1, 1)[0], 1  # how many there are of each value of the product so far
        for own in degrees:
            often = np.bincount(own)
            count = int(often @ np.cumsum(by_product)[top // np.arange(1, len(often) + 1)])
            if count > MOST_LISTED:
                break  # more than can be listed, however many
            grown = np.zeros_like(by_product)
            for value in np.flatnonzero(by_product):
                multiples = grown[value::value][: len(often)]
                multiples += by_product[value] * often[: len(multiples)]
            by_product = grown
        return count


def _members(rows: Any) -> tuple[tuple[int, ...], ...]:
    try:
        table = np.asarray(rows)
    except (TypeError, ValueError):  # rows of different lengths, random keys
        table = np.zeros(0)
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError(f"Listed takes multi-indices of equal length, such as [(0, 0), (1, 0)], got {rows!r}.")
    if len(np.unique(table, axis=0)) < len(table):
        raise ValueError("Listed: a multi-index is listed twice; drop it.")
    members: Any = table.tolist()
    return tuple(map(tuple, members))


class Listed(IndexSet):
    """Exactly the multi-indices listed, whatever ``n``: for sets found by adaptation.

    **Arguments:**

    - `members`: multi-indices, one per row.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.Listed([(0, 0, 0), (1, 0, 0), (0, 2, 1)])).fit(cube, grid).size
    3
    """

    members: tuple[tuple[int, ...], ...] = eqx.field(static=True, converter=_members)

    def __repr__(self):
        return f"Listed({len(self.members)} of them)"

    def admits(self, k, n):
        return np.any(np.all(k[..., None, :] == np.array(self.members), axis=-1), axis=-1)

    def count_coupled(self, degrees):
        return len(self.members)

    def listed(self, degrees):
        kept, counts = np.array(self.members, dtype=int), np.array([len(own) for own in degrees])
        if kept.shape[1] != len(counts) or np.any(kept.max(axis=0) >= counts):
            raise ValueError(
                f"Listed: multi-indices up to {kept.max(axis=0).tolist()} do not fit coordinates with "
                f"{counts.tolist()} functions."
            )
        return kept
