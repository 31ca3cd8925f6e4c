"""Tables of features: dense, or with one entry a row; products with coefficients, and triangles of long ones."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ..programs import Held, arithmetic, in_threads, put, rows_at

_TRIANGLE_ROWS = 2**15  # of a table that are factorised at once
_FAR_FROM_DEPENDENT = 1e-6  # the least squared singular value of columns of length 1: products lose as many digits


def one_hot(place: Int[Held, "..."], size: int, dtype: Any) -> Float[Held, "... N"]:
    """Rows of zeros with a one at each place."""
    return (place[..., None] == np.arange(size, dtype=place.dtype)).astype(dtype)


class OneHot(eqx.Module):
    """A matrix with at most one entry in each row: in column `place`, with `value`; `size` columns.

    What is computed with it takes as long as there are rows, whatever the number of columns. NumPy and ``dense`` see
    the full matrix.
    """

    place: Int[Array, " n"] | Int[np.ndarray, " n"]
    value: Float[Array, " n"] | Float[np.ndarray, " n"]
    size: int = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.place)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.place), self.size

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Shaped[np.ndarray, "n N"]:
        return np.asarray(self.dense(), dtype)

    def dense(self) -> Float[Held, "n N"]:
        if arithmetic(self.place, self.value) is jnp:
            return self.value[:, None] * one_hot(self.place, self.size, self.dtype)
        table = np.zeros(self.shape, self.dtype)
        table[np.arange(len(self)), np.asarray(self.place)] = np.asarray(self.value)
        return table if isinstance(self.value, np.ndarray) else put(table)

    def on_host(self) -> "OneHot":
        """In NumPy and in double precision."""
        return OneHot(np.asarray(self.place), np.asarray(self.value, float), self.size)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, OneHot):
            return OneHot(rows_at(other.place, self.place), self @ other.value, other.size)
        if isinstance(other, np.ndarray) or arithmetic(self.value, self.place, other) is jnp:
            return self.value.reshape(-1, *[1] * (other.ndim - 1)) * other[self.place]
        return put((self.on_host() @ np.asarray(other)).astype(other.dtype))

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self.dense()

    def sums(self, rows: Any) -> Any:
        """The transpose times rows: what belongs to each column, added up."""
        weighted = self.value.reshape(-1, *[1] * (rows.ndim - 1)) * rows
        if not isinstance(weighted, np.ndarray):
            return jax.ops.segment_sum(weighted, self.place, self.size)
        flat = weighted.reshape(len(weighted), -1)
        columns = [np.bincount(self.place, column, self.size) for column in flat.T]
        return np.stack(columns, axis=1).reshape(self.size, *rows.shape[1:])

    def blocks(self, matrices: Any) -> Any:
        """The blocks on the diagonal of ``sum_n A_n (x) Phi_n Phi_n^T``, from matrices ``A_n``; there are no others."""
        return OneHot(self.place, self.value**2, self.size).sums(matrices)


Rows = Float[Held, "n N"] | OneHot


def dense(phi: Any) -> Float[Held, "n N"]:
    """Features as a matrix, whatever they are kept as."""
    return phi.dense() if isinstance(phi, OneHot) else phi


def combine(phi: Float[Held, "... N"] | OneHot, W: Any) -> Any:
    """``sum_k phi_k W[k]`` for every leaf of ``W``, batched over the leading axes of ``phi``."""
    if isinstance(phi, OneHot):
        return jax.tree.map(lambda w: phi @ w, W)
    xp = arithmetic(phi, W)
    return put(jax.tree.map(lambda w: xp.tensordot(phi, w, axes=1), W))


def upper_triangle(table: np.ndarray, root: np.ndarray | None = None) -> np.ndarray:
    """The triangle of a table (its rows times `root`), which has the same least squares and singular values.

    Of a long one block by block, side by side: by its products, which are many times as fast, where its columns are far
    from dependent; else by the triangles of its blocks.
    """
    begins = range(0, len(table), _TRIANGLE_ROWS)

    def block(begin: int) -> np.ndarray:
        part = table[begin : begin + _TRIANGLE_ROWS]
        return part if root is None else part * root[begin : begin + _TRIANGLE_ROWS, None]

    if len(begins) > 1:
        gram = sum(in_threads(lambda begin: (part := block(begin)).T @ part, begins))
        norms = np.sqrt(np.diag(gram))
        if np.all(norms > 0) and np.linalg.eigvalsh(gram / np.outer(norms, norms))[0] > _FAR_FROM_DEPENDENT:
            return np.linalg.cholesky(gram).T
    parts = list(in_threads(lambda begin: np.linalg.qr(block(begin), mode="r"), begins))
    return parts[0] if len(parts) == 1 else upper_triangle(np.concatenate(parts))
