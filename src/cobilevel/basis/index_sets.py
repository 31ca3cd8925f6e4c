"""Multi-index sets: which products of one-dimensional functions make up a basis in several dimensions.

A multi-index ``k = (k_1, ..., k_d)`` stands for ``prod_j phi_{k_j}(xi_j)``, with ``0 <= k_j < n``. Sets are listed by
growing total degree, so that a smaller ``n`` gives a prefix-closed part of a larger one. Where the coordinates are of
several kinds, each function has a degree of its own: a sine and its cosine have the same, and categories have none
beyond 1.
"""

import math
from functools import lru_cache
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from ..ground import MOST_LISTED, plain, whole
from .base import NUMBERS_AT_ONCE, Recipe, plain_number


class IndexSet(Recipe):
    """A rule that keeps some of the multi-indices of the full grid: those whose degrees, none of them counted as more
    than `cap`, add up to `most` at the most. What lies below a member is a member too."""

    cap: ClassVar[float] = np.inf

    def __repr__(self):
        return f"{type(self).__name__}()"

    def most(self, n: int) -> int:
        """What they may add up to where each is below ``n``."""
        return n - 1

    def admits(self, k: np.ndarray, n: int) -> Any:
        """Whether multi-indices, along the last axis of ``k``, belong to the set; each entry is below ``n``."""
        return np.minimum(k, self.cap).sum(axis=-1) <= self.most(n)

    @plain
    def table(self, n: int, dimension: int) -> np.ndarray:
        """All multi-indices, shape ``(N, dimension)``, by total degree and then lexicographically."""
        return self.coupled([np.arange(n)] * dimension)

    def count(self, n: int, dimension: int) -> int:
        """How many there are."""
        return self.size([np.arange(n)] * dimension)

    def size(self, degrees: list[np.ndarray]) -> int:
        """How many there are where the functions of each coordinate have these degrees, without listing them."""
        most = self.most(_beyond(degrees))
        by_total = np.ones(1, np.longdouble)  # how many products of the coordinates so far have each sum
        for own in degrees:
            by_total = np.convolve(by_total, np.bincount(np.minimum(own, self.cap).astype(int)))[: most + 1]
        return int(by_total.sum())

    @plain
    def coupled(self, degrees: list[np.ndarray]) -> np.ndarray:
        """All multi-indices where the functions of each coordinate have these degrees; the last lists are kept."""
        return _kept(self, tuple(tuple(own.tolist()) for own in degrees))

    def listed(self, degrees: list[np.ndarray]) -> np.ndarray:
        """The same, listed anew."""
        require_listed(self.size(degrees), repr(self), len(degrees))
        kept = np.zeros((1, 0), dtype=int)
        for j, own in enumerate(degrees):
            each = max(1, NUMBERS_AT_ONCE // len(own))
            grown = []
            for block in (kept[k : k + each] for k in range(0, len(kept), each)):
                rows = np.column_stack([np.repeat(block, len(own), axis=0), np.tile(np.arange(len(own)), len(block))])
                grown.append(rows[self.admits(_degree_of(rows, degrees[: j + 1]), _beyond(degrees))])
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


def _beyond(degrees: list[np.ndarray]) -> int:
    """The least number that is above all degrees."""
    return 1 + max(int(own.max()) for own in degrees)


def _degree_of(rows: np.ndarray, degrees: list[np.ndarray]) -> np.ndarray:
    return np.column_stack([own[column] for own, column in zip(degrees, rows.T, strict=True)])


def check_index(argument: str, value: Any) -> None:
    """Raises if something is not an index set."""
    if not isinstance(value, IndexSet):
        raise TypeError(
            f"{argument} must be Tensor(), TotalDegree(), HyperbolicCross(), Additive(), Interactions(order) or "
            f"Listed(members), got {value!r}."
        )


class Tensor(IndexSet):
    """Every product: ``n^d`` functions.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.Tensor()).fit(cube, grid).size  # 4^3
    64
    """

    cap = 0


class TotalDegree(IndexSet):
    """``|k|_1 <= n - 1``: ``binomial(n - 1 + d, d)`` functions, the natural set for isotropic smoothness.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.TotalDegree()).fit(cube, grid).size
    20
    """

    def count(self, n, dimension):
        return math.comb(n - 1 + dimension, dimension)


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

    cap = 1
    order: int = eqx.field(static=True, converter=plain_number, default=2)

    def __check_init__(self):
        whole("Interactions: order", self.order)

    def __repr__(self):
        return f"Interactions({self.order})"

    def most(self, n):
        return self.order


class Additive(IndexSet):
    """At most one coordinate varies: a sum of functions of single coordinates, ``1 + d (n - 1)`` functions.

    **Example:**

    >>> cube = cb.Box([0, 0, 0], [1, 1, 1])
    >>> grid = np.random.default_rng(0).uniform(size=(200, 3))
    >>> cb.Chebyshev(4, index=cb.Additive()).fit(cube, grid).size  # 1 + 3 * 3
    10
    """

    cap = 1

    def most(self, n):
        return 1


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

    def size(self, degrees):
        top = _beyond(degrees)
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
    return tuple(map(tuple, table.tolist()))


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

    def size(self, degrees):
        return len(self.members)

    def listed(self, degrees):
        kept, counts = np.array(self.members, dtype=int), np.array([len(own) for own in degrees])
        if kept.shape[1] != len(counts) or np.any(kept.max(axis=0) >= counts):
            raise ValueError(
                f"Listed: multi-indices up to {kept.max(axis=0).tolist()} do not fit coordinates with "
                f"{counts.tolist()} functions."
            )
        return kept
