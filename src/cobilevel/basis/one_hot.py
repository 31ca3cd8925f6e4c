"""Features of which each context has one alone: kept as its place and its value, and not as a row of zeros."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ..programs import Held, arithmetic, put, rows_at


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
