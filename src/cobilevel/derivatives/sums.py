"""Sums over rows: the expansions of both levels, the sizes of single rows, and the rows that they are made from."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from ..basis import OneHot
from ..cluster import shards_of
from ..host import in_threads
from ..problem import double, in_double
from ..programs import is_spread
from ..reduction import Batch
from .on_device import DeviceRows
from .rows import RowBlocks, RowDerivatives, Sizes

_AT_ONCE = 2_000_000  # numbers of weighted features that are multiplied in one product

Sum = TypeVar("Sum", bound="RowSum")


class RowSum:
    """A sum over rows: two of them add up."""

    def __add__(self: Sum, other: Sum) -> Sum:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))  # pyright: ignore


@dataclass(frozen=True)
class LowerExpansion(RowSum):
    """``g_Phi`` and its derivatives; `hessian` is ``(M, M)``, or blocks ``(N, dy, dy)``; `cross` is ``d21``."""

    value: float
    slope: Float[np.ndarray, "N dy"]
    hessian: Float[np.ndarray, "M M"] | Float[np.ndarray, "N dy dy"]
    cross: Float[np.ndarray, "N dy dx"]

    @staticmethod
    def of(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> "LowerExpansion":
        """Of the rows of one block, from their features and packed derivatives."""
        dy, weighted = sizes.dy, packed * shares[:, None]
        curved = 1 + dy + dy * dy
        slope, cross = (_sums(phi, part) for part in (weighted[:, 1 : 1 + dy], weighted[:, curved:]))
        if isinstance(phi, OneHot):
            hessian = phi.blocks(weighted[:, 1 + dy : curved]).reshape(phi.size, dy, dy)
            hessian = (hessian + np.swapaxes(hessian, 1, 2)) / 2
        else:
            hessian = galerkin(phi, weighted[:, 1 + dy : curved].reshape(-1, dy, dy))
        parts = slope, hessian, cross.reshape(phi.shape[1], dy, -1)
        return LowerExpansion(float(weighted[:, 0].sum(dtype=float)), *(np.asarray(part, float) for part in parts))

    @staticmethod
    def unpacked(vector: np.ndarray, W: np.ndarray, sizes: Sizes) -> "LowerExpansion":
        """From one vector that holds all of it."""
        count, dx = W.size, sizes.dx if sizes.crossed else 0
        rest = len(vector) - 1 - count - count * dx
        value, slope, hessian, cross = np.split(vector, np.cumsum([1, count, rest]))
        shape = (count, count) if rest == count**2 and rest != count * sizes.dy else (len(W), sizes.dy, sizes.dy)
        return LowerExpansion(
            float(value[0]), slope.reshape(W.shape), hessian.reshape(shape), cross.reshape(*W.shape, dx)
        )


@dataclass(frozen=True)
class UpperExpansion(RowSum):
    """``f_Phi`` and its gradients."""

    value: float
    d1: Float[np.ndarray, " dx"]
    d2: Float[np.ndarray, "N dy"]

    @staticmethod
    def of(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> "UpperExpansion":
        """Of the rows of one block, from their features and packed derivatives."""
        first = np.asarray(shares @ packed[:, : 1 + sizes.dx], float)
        d2 = _sums(phi, packed[:, 1 + sizes.dx :] * shares[:, None])
        return UpperExpansion(float(first[0]), first[1:], np.asarray(d2, float))

    @staticmethod
    def unpacked(vector: np.ndarray, W: np.ndarray, sizes: Sizes) -> "UpperExpansion":
        """From one vector that holds all of it."""
        return UpperExpansion(float(vector[0]), vector[1 : 1 + sizes.dx], vector[1 + sizes.dx :].reshape(W.shape))


@dataclass(frozen=True)
class RowScales(RowSum):
    r"""Sizes of single rows, as sums of squares over them: of ``f`` about a centre; of the gradient in ``x``, in the
    parts $\partial_1 f$ and $\partial_{12} g\, v$; of $r = \partial_2 g$, squared, and of $\partial_{12} g\, r$.

    In extended precision, whose range squares do not leave.
    """

    values: Any
    direct: Any
    through: Any
    slopes: Any
    turned: Any

    @property
    def spread(self) -> float:
        """The root mean square of ``f`` about its centre."""
        return float(np.sqrt(self.values))

    @property
    def sizes(self) -> Float[np.ndarray, " dx"]:
        """The root mean square of the gradient in each coordinate of ``x``."""
        return np.sqrt(self.direct + self.through).astype(float)

    @property
    def turning(self) -> Float[np.ndarray, " dx"]:
        """The distance along each coordinate of ``x`` over which ``r`` changes by its own size; 0 if unknown."""
        seen = self.turned > 0
        return np.where(seen, np.sqrt(self.slopes / np.where(seen, self.turned, 1)), 0).astype(float)


def squares(shares: Float[np.ndarray, " n"], rows: np.ndarray) -> Any:
    return shares @ rows.astype(np.longdouble) ** 2


def _sums(phi: Any, rows: np.ndarray) -> np.ndarray:
    """The transpose of the features times rows."""
    return phi.sums(rows) if isinstance(phi, OneHot) else phi.T @ rows


@lru_cache(64)
def _upper_pairs(size: int) -> tuple[np.ndarray, ...]:
    return np.triu_indices(size)


def galerkin(phi: Float[np.ndarray, "n N"], matrices: Float[np.ndarray, "n d d"]) -> Float[np.ndarray, "M M"]:
    r"""$\sum_n A_n \otimes \Phi_n \Phi_n^T$ for symmetric $A_n$, rows and columns as in a table of coefficients.

    One ``N x N`` product for each pair of components of ``y``; several in one where features are few. Long rows are
    multiplied several times as fast as short ones.
    """
    size, (n, count) = matrices.shape[1], phi.shape
    first, second = _upper_pairs(size)
    pairs = np.ascontiguousarray(matrices.reshape(n, -1)[:, first * size + second].T)
    turned, found = np.ascontiguousarray(phi.T), np.empty((count, size, count, size), phi.dtype)
    each = max(1, _AT_ONCE // max(phi.size, 1))
    for k in range(0, len(first), each):
        weighted = (pairs[k : k + each, None] * turned).reshape(-1, n)
        blocks = (weighted @ phi).reshape(-1, count, count)
        blocks = (blocks + np.swapaxes(blocks, 1, 2)) / 2
        for i, j, block in zip(first[k : k + each], second[k : k + each], blocks, strict=True):
            found[:, i, :, j] = found[:, j, :, i] = block
    return found.reshape(count * size, count * size)


@dataclass(frozen=True)
class RowPool:
    """The rows of one level with their features, and `shares` that add up to 1 over all pools of the level."""

    features: Any
    shares: Float[np.ndarray, " n"]
    rows: RowBlocks

    def mean(self, rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "N k"]:
        """The mean of each function times rows."""
        return _sums(self.features, rows * self.shares[:, None])

    def y(self, W: Float[np.ndarray, "N dy"], part: slice = slice(None)) -> Float[np.ndarray, "n dy"]:
        """The policy at the rows."""
        return taken(self.features, part) @ W

    @cached_property
    def on_device(self) -> DeviceRows:
        """The same where it is worked on by an accelerator."""
        return DeviceRows(self.features, self.shares, self.rows)

    def summed(self, derivatives: RowDerivatives, x: np.ndarray, W: np.ndarray, of: Callable, sizes: Sizes) -> Any:
        """The expansions of all blocks, added up in their order."""

        def one(block: tuple[slice, Any, Any]) -> Any:
            part, xi, eta = block
            packed = derivatives.block(x, self.y(W, part), part, xi, eta)
            return of(taken(self.features, part), self.shares[part].astype(packed.dtype, copy=False), packed, sizes)

        parts = side_by_side(one, list(self.rows))
        total = next(parts)
        for part in parts:
            total = total + part
        return total


def taken(features: Any, part: Any) -> Any:
    """Some rows of features."""
    if isinstance(features, OneHot):
        return OneHot(features.place[part], features.value[part], features.size)
    return features[part]


def side_by_side(one: Callable, items: list) -> Iterator[Any]:
    """A function of each item, in their order; in threads where items are many."""
    wide = in_double()

    def work(item: Any) -> Any:
        with double() if wide else nullcontext():  # the precision is a thread's own
            return one(item)

    return in_threads(work, items) if len(items) > 1 else map(one, items)


def pools_of(batch: Batch, dtype: Any, numbers: int, blocks: RowBlocks | None = None) -> list[RowPool]:
    """The rows of a level on this machine: one pool, or one for each shard where rows are spread over devices.

    `blocks`: the rows themselves, where they are laid out already.
    """
    tree, total = (batch.features, batch.weight, batch.xi, batch.eta), len(batch)
    if blocks is not None:
        features, weight = jax.tree.map(np.asarray, tree[:2])
        return [RowPool(features, np.asarray(weight, float) / total, blocks)]
    shards = [jax.tree.map(np.asarray, tree)]
    if is_spread(batch.weight):
        leaves, structure = jax.tree.flatten(tree)
        shards = [structure.unflatten(part) for part in zip(*map(shards_of, leaves), strict=True)]
    shares = [np.asarray(weight, float) / total for _, weight, _, _ in shards]
    rows = [RowBlocks(xi, eta, dtype, numbers) for _, _, xi, eta in shards]
    return [RowPool(part[0], *more) for part, *more in zip(shards, shares, rows, strict=True)]
