r"""Products of the residuals of neighbouring samples: what a basis misses, seen without a richer one.

The product of two conditional means at one context is the mean of the product of two samples there, since their noises
are independent. No context is met twice on a continuum, but neighbours are near. ``Neighbours`` sums a table over the
neighbours of each sample, the sample itself left out; a mean of products over pairs is then one such sum. It comes in
several widths, from the nearest neighbours to wide windows: wide ones see less and have less noise.

A mean over neighbours differs from what is at the sample itself by a multiple of the square of their distance, to
leading order. Means over a near ring and over a wide one are combined so that this cancels.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from ..problem import Domain, Finite

_MOST_NEAR = 16  # neighbours of a context in the near ring, in several dimensions
_MOST_PAIRS = 20_000_000  # of neighbours in several dimensions, held at one time
_WIDEST = 4  # rings hold at most n / (4 (N + 8)) samples on a side: structure that N functions resolve is not seen
_FEW_DIMENSIONS = 4  # with more, a ring of four times as many samples is not twice as far, and combining both is noise
_PAIRS = 200_000  # pairs by which the noise of their products is measured
_DISTINCT_SHARE = 0.5  # of the samples: with fewer different contexts, those that are equal are the neighbours


class Summand:
    """A table with a row for each sample, to be summed over neighbours: what several widths share is kept.

    `weighted`: by the weights of the rows; `running`: sums over the rows before each; `means`: over rings, by width.
    """

    def __init__(self, table: Float[np.ndarray, "n d"], own: Float[np.ndarray, " n"]):
        self.table, self.means = table, {}
        self.weighted = table * own[:, None]

    @cached_property
    def running(self) -> np.ndarray:
        return _running(self.weighted)


@dataclass(frozen=True)
class Ring:
    """The samples next to each in order, `width` on each side. `inverse`: one over the weight of these; `even`: whether
    it is the same at all samples but those near the ends."""

    width: int
    inverse: Float[np.ndarray, " n"]
    even: bool

    @staticmethod
    def of(width: int, own: Float[np.ndarray, " n"]) -> "Ring":
        if np.ptp(own) > 0:
            return Ring(width, 1 / _window_sums(own[:, None], _running(own[:, None]), width)[:, 0], False)
        place = np.arange(len(own))
        beside = np.minimum(place, width) + np.minimum(place[::-1], width)
        return Ring(width, 1 / (own[0] * beside), True)

    def means(self, summand: Summand) -> Float[np.ndarray, "n d"]:
        """Half the mean over the neighbours of each row, and half what it has in the means of these."""
        if self.width not in summand.means:
            found = self._means(summand)
            kept = {width: means for width, means in summand.means.items() if 2 * width >= self.width}
            summand.means = {**kept, self.width: found}  # rings come twice: as the wide one, then as the near one
        return summand.means[self.width]

    def _means(self, summand: Summand) -> Float[np.ndarray, "n d"]:
        table, inverse, k = summand.weighted, self.inverse[:, None], self.width
        found = _window_sums(table, summand.running, k)
        found *= inverse
        if not self.even or 6 * k >= len(table):
            back = inverse * table
            found += _window_sums(back, _running(back), k)
            found /= 2
            return found
        for part, inner in ((slice(0, 3 * k), slice(0, 2 * k)), (slice(-3 * k, None), slice(-2 * k, None))):
            back = inverse[part] * table[part]
            found[inner] = (found[inner] + _window_sums(back, _running(back), k)[inner]) / 2
        return found

    def weights(self, pairs: Int[np.ndarray, "p 2"]) -> Float[np.ndarray, " p"]:
        """Of pairs of positions."""
        i, j = pairs.T
        return np.where(np.abs(i - j) <= self.width, (self.inverse[i] + self.inverse[j]) / 2, 0.0)


def _running(table: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n+1 d"]:
    sums = np.empty((len(table) + 1, table.shape[1]))
    sums[0] = 0
    np.cumsum(table, axis=0, out=sums[1:])
    return sums


def _window_sums(table: Float[np.ndarray, "n d"], running: Float[np.ndarray, "n+1 d"], width: int) -> np.ndarray:
    """Sums over the rows next to each, without itself."""
    n = len(table)
    k, window = min(width, n), np.empty_like(table)
    window[: n - k] = running[k + 1 :]
    window[n - k :] = running[n]
    window[k:] -= running[: n - k]
    window -= table
    return window


@dataclass(frozen=True)
class Neighbours:
    """Who is near whom, at one width: symmetric weights of the pairs, those of each row adding up to about one.

    On an interval samples are taken by their contexts in `order`, so that neighbours lie side by side: tables are to be
    ``arranged`` first, and what comes back is in that order too.

    - `width`: of the near ring; `own`: weights of the rows, of mean one; `total`: that of all ordered pairs together.
    - `pairs`: some, at random, by which noise is measured, with `pair_weight`; `count`: all they stand for.
    - by position in `rings`, each with its share, on an interval, by `matrix` in several dimensions,
      by `group` (with the weight of `each` of its pairs) where contexts are equal.
    """

    width: int
    own: Float[np.ndarray, " n"]
    pairs: Int[np.ndarray, "p 2"]
    pair_weight: Float[np.ndarray, " p"]
    count: float
    total: float
    order: Int[np.ndarray, " n"] | None = None
    rings: tuple[tuple[Ring, float], ...] = ()
    matrix: sparse.csr_matrix | None = None
    group: Int[np.ndarray, " n"] | None = None
    each: Float[np.ndarray, " n"] | None = None

    @property
    def alone(self) -> int:
        """How many samples have no neighbour."""
        return 0 if self.each is None else int(np.sum(self.each == 0))

    def arranged(self, table: Any) -> Any:
        """A table of one row a sample in the order that is kept to here."""
        if self.order is None:
            return table
        return jax.tree.map(lambda a: a[self.order], table)

    def summand(self, table: Float[np.ndarray, "n d"]) -> Summand:
        """A table to be summed, at this width or another."""
        return Summand(table, self.own)

    def _sums(self, summand: Summand) -> np.ndarray:
        """The weighted sum over the neighbours of each row."""
        if self.group is not None and self.each is not None:
            sums = np.zeros((self.group.max() + 1, summand.weighted.shape[1]))
            np.add.at(sums, self.group, summand.weighted)
            return (sums[self.group] - summand.weighted) * self.each[:, None]
        if self.matrix is not None:
            return self.matrix @ summand.weighted
        (near, of_near), (far, of_far) = self.rings
        found = of_far * far.means(summand)
        found += of_near * near.means(summand)
        return found

    def shares(self, left: Summand, right: Summand) -> Float[np.ndarray, " n"]:
        """What each row adds to the mean over pairs of ``left . right``, which is their sum."""
        both = _dot(left.table, self._sums(right))
        both = 2 * both if left is right else both + _dot(right.table, self._sums(left))
        both *= self.own / (2 * self.total)
        return both

    def pair_products(self, left: Float[np.ndarray, "n d"], right: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " p"]:
        """The products of the sampled pairs, each with its weight in the mean."""
        i, j = self.places
        both = np.zeros(len(i))
        for a, b in zip(left.T.copy(), right.T.copy(), strict=True):  # columns: numbers side by side are read faster
            both += a[i] * b[j] + a[j] * b[i]
        return self.pair_weight * both / (2 * self.total)

    def differences(self, table: Float[np.ndarray, "n d"]) -> float:
        """The mean square of the differences of the sampled pairs, over all columns."""
        i, j = self.places
        return float(np.mean([np.mean((column[i] - column[j]) ** 2) for column in table.T.copy()]))

    @property
    def places(self) -> tuple[Int[np.ndarray, " p"], Int[np.ndarray, " p"]]:
        """The two samples of each of `pairs`."""
        return self.pairs[:, 0], self.pairs[:, 1]

    def noise(self, single: Float[np.ndarray, "n k"], products: Float[np.ndarray, "p k"]) -> Float[np.ndarray, "k k"]:
        """The covariance of a sum over samples and over pairs.

        `single`: what each sample moves it by, the pairs it is in counted in full; `products`: of the sampled pairs.
        Pairs are counted twice then, once for each end; what a pair has beyond its ends is taken off once.
        """
        apart = single - single.mean(axis=0)
        spread = self.unbiased_noise(single, products)
        values, vectors = np.linalg.eigh((spread + spread.T) / 2)
        least = np.diag(vectors.T @ (apart.T @ apart) @ vectors) / 4
        return (vectors * np.maximum(values, least)) @ vectors.T

    def unbiased_noise(self, single: Float[np.ndarray, "n k"], products: Float[np.ndarray, "p k"]) -> np.ndarray:
        """The same without a floor: it may be negative."""
        apart = single - single.mean(axis=0)
        twice = products.T @ products * (2 * self.count / max(len(products), 1))  # each unordered pair: (2 product)^2
        return apart.T @ apart - twice


def neighbours_of(
    domain: Domain, xi: np.ndarray, u: Float[np.ndarray, "n d"], own: Float[np.ndarray, " n"], functions: int
) -> list[Neighbours]:
    """The neighbours at growing widths; `u`: contexts as ``Domain.embedded`` gives them, `own`: weights of mean one."""
    n, rng = len(u), np.random.default_rng(0)
    group, counts = _groups(u)
    if isinstance(domain, Finite) or (len(counts) <= _DISTINCT_SHARE * n and counts.min() > 1):
        return [_equal(group, counts, own, rng)]
    widest = n // (_WIDEST * (functions + 8))
    if u.shape[1] == 1:
        order = np.lexsort((rng.random(n), u[:, 0]))
        widths = [2**k for k in range(20) if k == 0 or 2 * 2**k <= widest]
        u, own = u[order], own[order]
        rings = {k: Ring.of(k, own) for k in sorted({min(each, n - 1) for k in widths for each in (k, 2 * k)})}
        return [_windows(order, own, rings, k, rng, u) for k in widths]
    times = 4 if u.shape[1] <= _FEW_DIMENSIONS else 1
    most = min(widest // max(times, 2), _MOST_PAIRS // (times * n))
    widths = [k for k in (1, 2, 4, 8, _MOST_NEAR) if k == 1 or k <= most]
    from scipy.spatial import KDTree  # takes long to import, and few need it

    index: Any = KDTree(u + 1e-12 * rng.standard_normal(u.shape)).query(u, k=min(times * widths[-1] + 1, n))[1]
    return [_nearest(index, k, times * k, own, rng, u) for k in widths]


def _groups(u: Float[np.ndarray, "n d"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " g"]]:
    """The number of each context among the different ones, in their order, and how many samples each has."""
    if u.shape[1] > 1:
        _, group, counts = np.unique(u, axis=0, return_inverse=True, return_counts=True)
        return group.ravel(), counts
    order = np.argsort(u[:, 0], kind="stable")
    fresh = np.append(True, np.diff(u[order, 0]) > 0)
    group = np.empty(len(u), int)
    group[order] = np.cumsum(fresh) - 1
    return group, np.diff(np.append(np.flatnonzero(fresh), len(u)))


def _dot(left: Float[np.ndarray, "n d"], right: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """Row by row."""
    return left[:, 0] * right[:, 0] if left.shape[1] == 1 else np.einsum("na,na->n", left, right)


def _equal(group: np.ndarray, counts: np.ndarray, own: np.ndarray, rng: np.random.Generator) -> Neighbours:
    """Samples with the same context, each pair of a group alike, so that each row counts as itself."""
    mass = np.bincount(group, own)
    each = np.where(counts > 1, mass / np.maximum(mass**2 - np.bincount(group, own**2), 1e-300), 0.0)[group]
    order = np.argsort(group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    i = rng.integers(0, len(group), min(_PAIRS, 20 * len(group)))
    i = i[counts[group[i]] > 1]
    place = np.empty(len(group), int)
    place[order] = np.arange(len(group))
    size, start = counts[group[i]], starts[group[i]]
    j = order[start + (place[i] - start + rng.integers(1, np.maximum(size, 2))) % size]
    pairs = np.stack([i, j], axis=1)
    # rows are drawn evenly, so pairs of a group of size s are drawn with frequency 1 / (n (s - 1))
    drawn = 1 / (np.sum(counts > 1) and np.sum(counts[counts > 1])) / np.maximum(size - 1, 1)
    total = float(np.sum(own * each * (mass[group] - own)))
    weight = own[i] * own[j] * each[i]
    scale = np.sqrt(1 / drawn)  # so that sums over the sample stand for sums over all pairs
    return Neighbours(0, own, pairs, weight * scale, 1.0, total, group=group, each=each)


def _windows(
    order: np.ndarray, own: np.ndarray, rings: dict[int, Ring], width: int, rng: np.random.Generator, u: np.ndarray
) -> Neighbours:
    """On an interval: the samples next to each in order, `width` on each side; weights and contexts in that order."""
    n, wide = len(order), min(2 * width, len(order) - 1)
    lag = rng.integers(1, wide + 1, min(_PAIRS, 20 * n))
    i = rng.integers(0, n, len(lag))
    inside = i + lag < n
    pairs = np.stack([i[inside], (i + lag)[inside]], axis=1)
    if n > _PAIRS:  # so that rows are read in order
        pairs = pairs[np.argsort(pairs[:, 0])]
    both = rings[width], rings[wide]
    weights, shares = _combined([ring.weights(pairs) for ring in both], pairs, own, u)
    count = 2.0 * (n - (wide + 1) / 2) * wide
    return Neighbours(
        width, own, pairs, weights, count, float(own.sum()), order=order, rings=tuple(zip(both, shares, strict=True))
    )


def _nearest(
    index: np.ndarray, width: int, wide: int, own: np.ndarray, rng: np.random.Generator, u: np.ndarray
) -> Neighbours:
    """In several dimensions: the nearest few of each, from a table of all that are near, nearest first."""
    matrices = []
    for k in (width, wide):
        columns = index[:, : k + 1]
        rows = np.repeat(np.arange(len(index)), columns.shape[1])
        other = rows != columns.ravel()
        ones = (np.ones(other.sum()), (rows[other], columns.ravel()[other]))
        near: Any = sparse.csr_matrix(ones, shape=(len(index), len(index)))
        near = sparse.diags(1 / (near @ own)) @ near
        matrices.append((near + near.T).tocsr() / 2)
    all_pairs = matrices[1].tocoo()
    picked = rng.integers(0, all_pairs.nnz, min(_PAIRS, 20 * len(index)))
    pairs = np.stack([all_pairs.row[picked], all_pairs.col[picked]], axis=1)
    weights, shares = _combined([np.asarray(m[pairs[:, 0], pairs[:, 1]]).ravel() for m in matrices], pairs, own, u)
    matrix = shares[0] * matrices[0] + shares[1] * matrices[1]
    return Neighbours(width, own, pairs, weights, float(all_pairs.nnz), float(own.sum()), matrix=matrix)


def _combined(weights: list[np.ndarray], pairs: np.ndarray, own: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, Any]:
    """The weights of pairs over two rings together, and the share of each ring.

    Shares add up to one, and the mean square distance is zero: what grows with it cancels. Where both are the same, it
    stands for itself.
    """
    i, j = pairs.T
    both = np.stack(weights) * own[i] * own[j]
    near, far = both @ np.sum((u[i] - u[j]) ** 2, axis=1) / both.sum(axis=1)
    shares = (far / (far - near), -near / (far - near)) if far > near else (1.0, 0.0)
    return shares @ both, shares
