"""Sums over rows: what a basis makes of both levels, the sizes of single rows, and the rows that they are made from."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import add
from threading import local
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ..basis import OneHot
from ..ground import module_of
from ..reduction import Batch
from .rows import AT_ONCE, LowerRows, RowBlocks, RowDerivatives, Sizes, UpperRows, over_devices, side_by_side

Sum = TypeVar("Sum", bound=tuple)


def lower_sums(phi: Any, shares: Any, packed: Any, sizes: Sizes) -> LowerRows:
    """``g_Phi`` and its derivatives from the features, shares and packed derivatives of some rows, in NumPy or in JAX.

    The Hessian is ``(M, M)``, or blocks ``(N, dy, dy)`` where each row has one function alone.
    """
    rows = sizes.split_lower(_weighted(packed, shares))
    return LowerRows(*_value_and_slope(phi, rows), *_matrices(phi, rows))


def lower_slope_sums(phi: Any, shares: Any, packed: Any, sizes: Sizes) -> tuple[Any, Any, Any]:
    """Of these ``g_Phi``, its gradient and the diagonal of its Hessian, which take no products of features."""
    xp, rows = module_of(packed), sizes.split_lower(_weighted(packed, shares))
    bend = xp.einsum("naa->na", rows.hessian)
    bend = phi.blocks(bend) if isinstance(phi, OneHot) else (phi * phi).T @ bend
    return *_value_and_slope(phi, rows), xp.asarray(bend, float)


def slope_sums(phi: Any, shares: Any, packed: Any, sizes: Sizes) -> LowerRows:
    """Of these ``g_Phi`` and its gradient, from rows that hold nothing else."""
    xp = module_of(packed)
    slope = summed_with(phi, _weighted(packed[:, 1:], shares))
    return LowerRows((packed[:, 0] * shares).sum(dtype=float), xp.asarray(slope, float), xp.zeros(()), xp.zeros(()))


class Turned(NamedTuple):
    """``d22 g_Phi V`` and ``d12 g_Phi V``."""

    lower: Float[np.ndarray, "N dy"]
    upper: Float[np.ndarray, " dx"]


def turned_sums(phi: Any, shares: Any, packed: Any, sizes: Sizes) -> Turned:
    """Products from the features, shares and products of some rows."""
    xp, (in_y, in_x) = module_of(packed), (packed[:, : sizes.dy], packed[:, sizes.dy :])
    return Turned(xp.asarray(summed_with(phi, _weighted(in_y, shares)), float), xp.asarray(shares @ in_x, float))


def lower_matrix_sums(phi: Any, shares: Any, packed: Any, sizes: Sizes) -> tuple[Any, Any]:
    """Of these the Hessian and the cross derivative. Rows of one context that follow each other, as in crossed data,
    are added up before they are multiplied with its features."""
    rows = _weighted(packed, shares)
    if isinstance(phi, np.ndarray) and (begins := _contexts(phi)) is not None:
        phi, rows = phi[begins], np.add.reduceat(rows.T, begins, axis=1).T
    return _matrices(phi, sizes.split_lower(rows))


def _contexts(phi: Float[np.ndarray, "n N"]) -> Int[np.ndarray, " m"] | None:
    """Where each stretch of equal features begins; ``None`` where most are of one row."""
    if 2 * np.count_nonzero(phi[1:, -1] == phi[:-1, -1]) < len(phi):
        return None
    begins = np.flatnonzero(np.append(True, (phi[1:] != phi[:-1]).any(axis=1)))
    return begins if 2 * len(begins) <= len(phi) else None


def _value_and_slope(phi: Any, rows: LowerRows) -> tuple[Any, Any]:
    return rows.value.sum(dtype=float), module_of(rows.value).asarray(summed_with(phi, rows.slope), float)


def _matrices(phi: Any, rows: LowerRows) -> tuple[Any, Any]:
    xp, (n, dy, dx) = module_of(rows.value), rows.cross.shape
    if isinstance(phi, OneHot):
        hessian = phi.blocks(rows.hessian)
        hessian = (hessian + xp.swapaxes(hessian, 1, 2)) / 2
    else:
        hessian = galerkin(phi, rows.hessian)
    cross = summed_with(phi, rows.cross.reshape(n, dy * dx)).reshape(phi.shape[1], dy, dx)
    return xp.asarray(hessian, float), xp.asarray(cross, float)


def upper_sums(phi: Any, shares: Any, packed: Any, sizes: Sizes) -> UpperRows:
    """The same of ``f_Phi`` and its gradients."""
    xp = module_of(packed)
    first = xp.asarray(shares @ packed[:, : 1 + sizes.dx], float)
    d2 = summed_with(phi, _weighted(packed[:, 1 + sizes.dx :], shares))
    return UpperRows(first[0], first[1:], xp.asarray(d2, float))


class _Scratch(local):
    """Memory of this thread for products that are summed up at once. Fresh memory would cost more than the product
    where the system takes it back each time, as it does from the workers of dask."""

    def __init__(self):
        self._held: dict[str, np.ndarray] = {}

    def product(self, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Of two arrays; the next of that name overwrites it."""
        shape, dtype = np.broadcast_shapes(a.shape, b.shape), np.result_type(a, b)
        size = math.prod(shape)
        if size > AT_ONCE // 2**4:
            return a * b
        held = self._held.get(name, np.empty(0))
        if held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
        return np.multiply(a, b, out=held[:size].reshape(shape))


_scratch = _Scratch()


def _weighted(rows: Any, shares: Any) -> Any:
    """Rows times their shares."""
    return _scratch.product("rows", rows.T, shares).T if isinstance(rows, np.ndarray) else rows * shares[:, None]


class LowerSums:
    """The lower level in a basis: ``g_Phi``, its gradient and the `diagonal` of its Hessian; and the matrices, when
    they are asked for. A search passes most of its points by, and the products of features take most of the time."""

    def __init__(self, value: float, slope: np.ndarray, diagonal: np.ndarray, matrices: Callable[[], tuple[Any, Any]]):
        self.value, self.slope, self.diagonal, self._matrices = value, slope, diagonal, matrices

    @property
    def hessian(self) -> Float[np.ndarray, "M M"] | Float[np.ndarray, "N dy dy"]:
        return self._formed[0]

    @property
    def cross(self) -> Float[np.ndarray, "N dy dx"]:
        return self._formed[1]

    @cached_property
    def _formed(self) -> tuple[Any, Any]:
        formed = self._matrices()
        del self._matrices  # and with it the rows
        return formed


class RowScales(NamedTuple):
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


def plus(a: Sum, b: Sum) -> Sum:
    """The sum of two sums over rows."""
    total = map(add, a, b)
    return tuple(total) if type(a) is tuple else type(a)(*total)


def total(sums: Iterable[Sum]) -> Sum:
    """Sums over rows, added up in their order."""
    return reduce(plus, sums)


def squares(shares: Float[np.ndarray, " n"], rows: np.ndarray) -> Any:
    return shares @ rows.astype(np.longdouble) ** 2


def summed_with(phi: Any, rows: Any) -> Any:
    """The transpose of the features times rows."""
    return phi.sums(rows) if isinstance(phi, OneHot) else phi.T @ rows


@lru_cache(64)
def _pairs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which entries of a flat symmetric matrix are in its upper triangle; and where among these each entry is."""
    first, second = np.triu_indices(size)
    place = np.empty((size, size), int)
    place[first, second] = place[second, first] = np.arange(len(first))
    return first * size + second, place


def galerkin(phi: Float[np.ndarray, "n N"], matrices: Float[np.ndarray, "n d d"]) -> Float[np.ndarray, "M M"]:
    r"""$\sum_n A_n \otimes \Phi_n \Phi_n^T$ for symmetric $A_n$, rows and columns as in a table of coefficients.

    One ``N x N`` product for each pair of components of ``y``; several in one where features are few. Long rows are
    multiplied several times as fast as short ones.
    """
    size, (n, count) = matrices.shape[1], phi.shape
    entries, place = _pairs(size)
    pairs, each = matrices.reshape(n, -1).T[entries], max(1, AT_ONCE // max(phi.size, 1))
    if isinstance(phi, np.ndarray):
        turned = phi.T if phi.strides[0] == phi.itemsize else np.ascontiguousarray(phi.T)
        chunks = (_scratch.product("pairs", pairs[k : k + each, None], turned) for k in range(0, len(pairs), each))
        blocks = np.concatenate([chunk.reshape(-1, n) @ phi for chunk in chunks]).reshape(-1, count, count)
    else:
        blocks = jax.lax.map(lambda weight: (phi.T * weight) @ phi, pairs, batch_size=min(each, len(pairs)))
    blocks = (blocks + blocks.transpose(0, 2, 1)) / 2
    return blocks[place].transpose(2, 0, 3, 1).reshape(count * size, count * size)


@dataclass(frozen=True)
class RowPool:
    """The rows of one level with their features, and `shares` that add up to 1 over all pools of the level."""

    features: Any
    shares: Float[np.ndarray, " n"]
    rows: RowBlocks

    def mean(self, rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "N k"]:
        """The mean of each function times rows."""
        return summed_with(self.features, rows * self.shares[:, None])

    def taken(self, part: slice) -> Any:
        """The features of some rows."""
        return _taken(self.features, part)

    def y(self, W: Float[np.ndarray, "N dy"], part: slice = slice(None)) -> Float[np.ndarray, "n dy"]:
        """The policy at the rows."""
        return _taken(self.features, part) @ W

    def summed(self, derivatives: RowDerivatives, x: np.ndarray, W: np.ndarray, of: Callable, sizes: Sizes) -> Any:
        """What `of` makes of each block, added up in their order."""
        return total(side_by_side(lambda block: of(*self._at(derivatives, x, W, block), sizes), list(self.rows)))

    def lower_sums(self, derivatives: RowDerivatives, x: np.ndarray, W: np.ndarray, sizes: Sizes) -> Any:
        """What ``lower_slope_sums`` gives for all rows, and a function that forms the matrices: the derivatives of all
        rows are held for it."""

        def one(block: tuple[slice, Any, Any]) -> Any:
            held = self._at(derivatives, x, W, block)
            return held, lower_slope_sums(*held, sizes)

        held, sums = zip(*side_by_side(one, list(self.rows)), strict=True)
        matrices = lambda: total(side_by_side(lambda block: lower_matrix_sums(*block, sizes), list(held)))
        return *total(sums), matrices

    def _at(self, derivatives: RowDerivatives, x: np.ndarray, W: np.ndarray, block: tuple[slice, Any, Any]) -> Any:
        """The features, shares and packed derivatives of a block."""
        part, xi, eta = block
        packed = derivatives.block(x, self.y(W, part), part, xi, eta)
        return _taken(self.features, part), self.shares[part].astype(packed.dtype, copy=False), packed

    @cached_property
    def _on_device(self) -> list[Any]:
        """Features and shares on the device, block by block; rows that fill up have no share."""
        rows, size = self.rows, self.rows.size
        pad = lambda b: np.pad(self.shares[b : b + size], (0, max(0, b + size - rows.count))).astype(rows.dtype)
        cast = lambda a: a if np.issubdtype(a.dtype, np.integer) else a.astype(rows.dtype)
        block = lambda b: (jax.tree.map(lambda a: cast(rows.filled(a, b)), self.features), pad(b))
        return [jax.device_put(block(begin), over_devices(size)) for begin in rows.begins]

    def summed_on_device(self, derivatives: RowDerivatives, x: Any, W: Any, of: Callable, sizes: Sizes) -> Any:
        """The same where rows and features stay on an accelerator, and sums alone come back."""
        program, total = _device_program(derivatives.traced, of, sizes), None
        at = x.astype(self.rows.dtype), W.astype(self.rows.dtype)
        for (phi, shares), (_, xi, eta) in zip(self._on_device, self.rows, strict=True):
            total = program(derivatives.constants, *at, phi, shares, xi, eta, total)
        total = jax.device_get(total)
        return type(total)(*(np.array(part, float)[()] for part in total))


@lru_cache(64)
def _device_program(traced: Callable, of: Callable, sizes: Sizes) -> Callable:
    def block(constants: Any, x: Any, W: Any, phi: Any, shares: Any, xi: Any, eta: Any, total: Any) -> Any:
        sums = of(phi, shares, traced(constants, x, phi @ W, xi, eta), sizes)
        return sums if total is None else jax.tree.map(jnp.add, total, sums)

    return jax.jit(block)


def _taken(features: Any, part: Any) -> Any:
    """Some rows of features."""
    if isinstance(features, OneHot):
        return OneHot(features.place[part], features.value[part], features.size)
    return features[part]


def on_accelerator() -> bool:
    """Whether rows are to stay on an accelerator."""
    return jax.default_backend() != "cpu"


def pools_of(batch: Batch, dtype: Any, numbers: int) -> list[RowPool]:
    """The rows of a level, as one pool."""
    features, weight, xi, eta = jax.tree.map(np.asarray, (batch.features, batch.weight, batch.xi, batch.eta))
    features = jax.tree.map(_turned, features)  # one function after the other: sums run along memory
    return [RowPool(features, weight.astype(float) / len(batch), RowBlocks(xi, eta, dtype, numbers))]


def _turned(table: np.ndarray) -> np.ndarray:
    """A table whose columns lie in one piece, copied in blocks that the cache holds."""
    if table.flags.f_contiguous:
        return table
    turned, block = np.empty(table.shape, table.dtype, order="F"), 1024
    for begin in range(0, len(table), block):
        turned[begin : begin + block] = table[begin : begin + block]
    return turned
