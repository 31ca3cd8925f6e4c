"""Pairs of neighbouring samples at several widths, and sums over the neighbours of each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from ..problem import LOOK_ROWS, Domain, Finite
from .galerkin import MOST_NUMBERS

_WIDEST = 4  # rings hold at most n / (4 (N + 8)) samples on a side: structure that N functions resolve is not seen
_FEW_DIMENSIONS = 4  # with more, a ring of four times as many samples is not twice as far, and combining both is noise


class Summand:
    """A table with a row for each sample, `weighted` by the weights of the rows; `running`: sums of the rows before."""

    def __init__(self, table: Float[np.ndarray, "n d"], own: Float[np.ndarray, " n"]):
        self.table, self.weighted = table, table * own[:, None]

    @cached_property
    def running(self) -> np.ndarray:
        return np.concatenate([np.zeros_like(self.weighted[:1]), np.cumsum(self.weighted, axis=0)])

    def windows(self, width: int, ends: Int[np.ndarray, " p"]) -> Float[np.ndarray, "n d"]:
        """Sums over the rows next to each, `width` on each side, without itself; within the pieces between `ends`."""
        sums = -self.weighted
        for begin, end in pairwise(ends.tolist()):
            n, wide, part, running = end - begin, min(width, end - begin), sums[begin:end], self.running[begin:]
            part[: n - wide] += running[wide + 1 : n + 1]
            part[n - wide :] += running[n]
            part[wide:] -= running[: n - wide]
            part[:wide] -= running[0]
        return sums


@dataclass(frozen=True)
class Neighbours:
    """Pairs of neighbours at one width: weights of the pairs, those of each row adding up to about one.

    On an interval samples are sorted by their contexts (`order`), so that neighbours lie side by side: tables must be
    ``arranged`` first, and results are in that order too.

    - `width`: of the near ring, 0 where contexts are equal; `words`: who the neighbours are.
    - `own`: weights of the rows, of mean one; `total`: that of all ordered pairs together.
    - `pairs`: some pairs, at random, to measure noise, with `pair_weight`; `count`: how many pairs they represent.
    - `sums`: the weighted sum over the neighbours of each row; `alone`: how many samples have none.
    """

    width: int
    words: str
    own: Float[np.ndarray, " n"]
    pairs: Int[np.ndarray, "p 2"]
    pair_weight: Float[np.ndarray, " p"]
    count: float
    total: float
    sums: Callable[[Summand], Float[np.ndarray, "n d"]]
    order: Int[np.ndarray, " n"] | None = None
    alone: int = 0

    @property
    def row_shares(self) -> Float[np.ndarray, " n"]:
        """The weights of the rows, summing to 1."""
        return self.own / len(self.own)

    def arranged(self, table: Any) -> Any:
        """A table of one row per sample, in the order used here."""
        return table if self.order is None else jax.tree.map(lambda a: a[self.order], table)

    def summand(self, table: Float[np.ndarray, "n d"]) -> Summand:
        """A table to be summed, at this width or another."""
        return Summand(table, self.own)

    def shares(self, left: Summand, right: Summand) -> Float[np.ndarray, " n"]:
        """What each row adds to the mean over pairs of ``left . right``, which is their sum."""
        both = np.einsum("na,na->n", left.table, self.sums(right))
        both = 2 * both if left is right else both + np.einsum("na,na->n", right.table, self.sums(left))
        return both * self.own / (2 * self.total)

    def pair_products(self, left: Float[np.ndarray, "n d"], right: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " p"]:
        """The products of the sampled pairs, each with its weight in the mean."""
        i, j = self.pairs.T
        both = np.zeros(len(i))
        for a, b in zip(left.T.copy(), right.T.copy(), strict=True):  # columns: numbers side by side are read faster
            both += a[i] * b[j] + a[j] * b[i]
        return self.pair_weight * both / (2 * self.total)

    def noise(self, single: Float[np.ndarray, "n k"], products: Float[np.ndarray, "p k"]) -> Float[np.ndarray, "k k"]:
        """The covariance of a sum over samples and over pairs; unbiased, so that it may be negative.

        `single`: what each sample moves it by, the pairs it is in counted in full; `products`: of the sampled pairs.
        Pairs are counted twice then, once for each end; what a pair has beyond its ends is taken off once.
        """
        apart = single - single.mean(axis=0)
        twice = products.T @ products * (2 * self.count / max(len(products), 1))  # each unordered pair: (2 product)^2
        return apart.T @ apart - twice


def neighbours_of(
    domain: Domain,
    u: Float[np.ndarray, "n d"],
    own: Float[np.ndarray, " n"],
    functions: int,
    piece: Int[np.ndarray, " n"] | None = None,
) -> list[Neighbours]:
    """The neighbours at growing widths; `u`: contexts as ``Domain.embedded`` gives them, `own`: weights of mean one,
    `piece`: the number of the piece between breaks that each lies in, which neighbours share."""
    n, rng = len(u), np.random.default_rng(0)
    if piece is not None and u.shape[1] > 1:
        far = 2 * (np.ptp(u[:, 0]) + np.linalg.norm(np.ptp(u, axis=0)))
        u = np.column_stack([u[:, 0] + far * piece, u[:, 1:]])
    _, group, counts = np.unique(u[:, 0] if u.shape[1] == 1 else u, axis=0, return_inverse=True, return_counts=True)
    if isinstance(domain, Finite) or counts.min() > 1:
        return [_equal(group.ravel(), counts, own, rng)]
    widest = n // (_WIDEST * (functions + 8))
    if u.shape[1] == 1:
        order = np.lexsort((rng.random(n), u[:, 0]))
        steps = [0, *range(1, n.bit_length(), 1 if n <= LOOK_ROWS else 2)]  # where samples are many, four times as wide
        widths = [2**k for k in steps if k == 0 or 2 * 2**k <= widest]
        ends = np.array([0, n])
        if piece is not None:
            ends = np.concatenate([[0], 1 + np.flatnonzero(np.diff(piece[order])), [n]])
        return [_windows(order, own[order], k, rng, u[order], ends) for k in widths]
    times = 4 if u.shape[1] <= _FEW_DIMENSIONS else 1
    most = min(widest // max(times, 2), int(MOST_NUMBERS / 8) // (times * n))  # both ends and the weight, in both rings
    # no more than one near neighbour in each orthant of a few dimensions
    widths = [2**k for k in range(_FEW_DIMENSIONS + 1) if k == 0 or 2**k <= most]
    from scipy.spatial import KDTree  # takes long to import, and few need it

    index = KDTree(u + 1e-12 * rng.standard_normal(u.shape)).query(u, k=min(times * widths[-1] + 1, n))[1]
    return [_nearest(index, k, times * k, own, rng, u) for k in widths]


def _pairs(n: int) -> int:
    """How many pairs the noise of their products is measured by."""
    return 20 * min(n, LOOK_ROWS)


def _equal(group: np.ndarray, counts: np.ndarray, own: np.ndarray, rng: np.random.Generator) -> Neighbours:
    """Samples with the same context, each pair of a group alike, so that each row counts as itself."""
    n, some = len(group), counts[group] > 1
    mass = np.bincount(group, own)
    each = np.where(some, (mass / np.maximum(mass**2 - np.bincount(group, own**2), 1e-300))[group], 0.0)

    def sums(summand: Summand) -> np.ndarray:
        total = np.zeros((len(counts), summand.weighted.shape[1]))
        np.add.at(total, group, summand.weighted)
        return (total[group] - summand.weighted) * each[:, None]

    order, place = np.argsort(group, kind="stable"), np.empty(n, int)
    place[order] = np.arange(n)
    i = rng.integers(0, n, _pairs(n))
    i = i[some[i]]
    size, start = counts[group[i]], (np.cumsum(counts) - counts)[group[i]]
    j = order[start + (place[i] - start + rng.integers(1, np.maximum(size, 2))) % size]
    # rows are drawn evenly, so pairs of a group of size s with frequency 1 / (n (s - 1)): sums over those drawn are
    # scaled to stand for sums over all
    scale = np.sqrt(max(some.sum(), 1) * np.maximum(size - 1, 1))
    total = float(np.sum(own * each * (mass[group] - own)))
    pairs, weight = np.stack([i, j], axis=1), own[i] * own[j] * each[i] * scale
    words = "samples at the same context"
    return Neighbours(0, words, own, pairs, weight, 1.0, total, sums, alone=int(np.sum(each == 0)))


def _windows(
    order: np.ndarray, own: np.ndarray, width: int, rng: np.random.Generator, u: np.ndarray, ends: np.ndarray
) -> Neighbours:
    """On an interval: the samples next to each in order, `width` on each side, of the same piece between `ends`;
    weights and contexts in that order."""
    n, wide = len(order), min(2 * width, len(order) - 1)
    lag = rng.integers(1, wide + 1, _pairs(n))
    i = rng.integers(0, n, len(lag))
    inside = i + lag < ends[np.searchsorted(ends, i, side="right")]
    pairs = np.stack([i[inside], (i + lag)[inside]], axis=1)
    if n > LOOK_ROWS:  # so that rows are read in order
        pairs = pairs[np.argsort(pairs[:, 0])]
    mass, (i, j) = Summand(np.ones((n, 1)), own), pairs.T
    many = np.diff(ends)  # in each piece
    some, reach = np.repeat(many, many) > 1, np.minimum(wide, many - 1)
    sizes = [(k, np.where(some[:, None], mass.windows(k, ends), np.inf)) for k in (min(width, n - 1), wide)]
    rings = [(k, 1 / size) for k, size in sizes]
    weight, shares = _combined([(j - i <= k) * (m[i, 0] + m[j, 0]) / 2 for k, m in rings], pairs, own, u)

    near, far = [(k, share * m) for share, (k, m) in zip(shares, rings, strict=True)]
    sums = lambda summand: near[1] * summand.windows(near[0], ends) + far[1] * summand.windows(far[0], ends)
    count, words = float(np.sum(2.0 * (many - (reach + 1) / 2) * reach)), f"neighbouring samples, {width} on each side"
    return Neighbours(width, words, own, pairs, weight, count, float(own[some].sum()), sums, order)


def _nearest(
    index: np.ndarray, width: int, wide: int, own: np.ndarray, rng: np.random.Generator, u: np.ndarray
) -> Neighbours:
    """In several dimensions: the nearest few of each, from a table of all that are near, nearest first."""
    rings = []
    for k in (width, wide):
        columns = index[:, : k + 1]
        rows = np.repeat(np.arange(len(index)), columns.shape[1])
        other = rows != columns.ravel()
        ones = (np.ones(other.sum()), (rows[other], columns.ravel()[other]))
        near: Any = sparse.csr_matrix(ones, shape=(len(index), len(index)))
        near = sparse.diags(1 / (near @ own)) @ near
        rings.append((near + near.T).tocsr() / 2)
    all_pairs = rings[1].tocoo()
    picked = rng.integers(0, all_pairs.nnz, _pairs(len(index)))
    pairs = np.stack([all_pairs.row[picked], all_pairs.col[picked]], axis=1)
    weight, shares = _combined([np.asarray(m[pairs[:, 0], pairs[:, 1]]).ravel() for m in rings], pairs, own, u)
    matrix = shares[0] * rings[0] + shares[1] * rings[1]
    count, words = float(all_pairs.nnz), f"neighbouring samples, the nearest {width}"
    return Neighbours(width, words, own, pairs, weight, count, float(own.sum()), lambda s: matrix @ s.weighted)


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
