"""Tables of features: dense, or with one entry a row; products with coefficients, triangles of long ones, and whitened
coordinates in which they are orthonormal."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from ..ground import Held, arithmetic, in_threads, module_of, on_host, put, rows_at, trees

_TRIANGLE_ROWS = 2**15  # of a table that are factorised at once


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
        if flat.shape[0] < flat.shape[1]:  # few long rows
            sums = np.zeros((self.size, flat.shape[1]), flat.dtype)
            for column, row in zip(self.place, flat, strict=True):
                sums[column] += row
        else:
            sums = np.stack([np.bincount(self.place, column, self.size) for column in flat.T], axis=1)
        return sums.reshape(self.size, *rows.shape[1:])

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

    Of a long one block by block, side by side: by its products, which are many times as fast, where its columns, at
    length 1, are so far from dependent that three quarters of the digits are kept; else by the triangles of its blocks.
    """
    begins = range(0, len(table), _TRIANGLE_ROWS)

    def block(begin: int) -> np.ndarray:
        part = table[begin : begin + _TRIANGLE_ROWS]
        return part if root is None else part * root[begin : begin + _TRIANGLE_ROWS, None]

    if len(begins) > 1:
        gram = sum(in_threads(lambda begin: (part := block(begin)).T @ part, begins))
        norms = np.sqrt(np.diag(gram))
        if np.all(norms > 0) and np.linalg.eigvalsh(gram / np.outer(norms, norms))[0] > np.finfo(float).eps ** 0.25:
            return np.linalg.cholesky(gram).T
    parts = list(in_threads(lambda begin: np.linalg.qr(block(begin), mode="r"), begins))
    return parts[0] if len(parts) == 1 else upper_triangle(np.concatenate(parts))


# -- whitening


class Whitening(eqx.Module):
    r"""New coordinates in which the observed features are orthonormal: $\Psi = \Phi T$, $E[\Psi \Psi^T] = I$.

    From the singular value decomposition of the weighted features themselves (never from their Gram matrix, which
    squares the condition number). Directions below `tolerance` of the largest singular value are cut: there the data
    cannot tell coefficients apart.
    """

    transform: Float[Held, "N r"] | OneHot
    inverse: Float[Held, "r N"] | OneHot
    singular_values: Float[Held, " s"]

    @property
    def rank(self) -> int:
        """How many independent functions the observed contexts can see."""
        return self.transform.shape[1]

    @on_host
    def unseen(self, phi: Rows) -> Float[Held, " n"]:
        """The share of each row of features, by its norm, that the observed contexts do not see."""
        if isinstance(phi, OneHot):
            cells: Any = self.transform
            return (cells.value[phi.place] == 0).astype(phi.dtype)
        xp = module_of(phi)
        size = xp.linalg.norm(phi, axis=1)
        return xp.linalg.norm(phi - (phi @ self.transform) @ self.inverse, axis=1) / xp.where(size > 0, size, 1)


def whiten(phi: Rows, weights: Float[Held, " n"] | None = None, tolerance: float | None = None) -> Whitening:
    """Factorises observed features; `tolerance` defaults to the square root of the machine precision."""
    dtype, mass = phi.dtype, np.ones(len(phi)) if weights is None else np.asarray(weights, float)
    shares = mass / mass.sum()
    if isinstance(phi, OneHot):
        return whitening_of([phi.on_host().blocks(shares)], len(phi), dtype)
    return whitening_of([upper_triangle(np.asarray(phi, float), np.sqrt(shares))], len(phi), dtype, tolerance)


def whitening_of(parts: list[np.ndarray], rows: int, dtype: Any, tolerance: float | None = None) -> Whitening:
    """From the triangular factors of parts of the weighted features; where each row has one function alone, from the
    mean squares of the functions over parts of the rows."""
    if parts[0].ndim == 1:
        return put(_of_cells(np.sqrt(sum(parts)), rows, dtype))
    scaled = parts[0] if len(parts) == 1 else upper_triangle(np.concatenate(parts))
    spectrum = np.linalg.svd(scaled, compute_uv=False)
    norms = np.linalg.norm(scaled, axis=0)
    norms = np.where(norms > 0, norms, 1)  # the rank must not depend on the units of single functions
    _, values, right = np.linalg.svd(scaled / norms, full_matrices=False)
    least = float(np.sqrt(jnp.finfo(dtype).eps)) if tolerance is None else tolerance
    rank = max(1, int(np.sum(values > least * values[0])))
    kept, basis = values[:rank], right[:rank]
    forth, back = basis.T / kept / norms[:, None], kept[:, None] * basis * norms
    return Whitening(*put([part.astype(dtype) for part in (forth, back, spectrum)]))


def _of_cells(norms: np.ndarray, rows: int, dtype: Any) -> Whitening:
    """Functions without overlap are orthogonal already: each is divided by its size, and those never seen are cut."""
    seen = np.flatnonzero(norms > 0)
    place, value = np.zeros(len(norms), int), np.zeros(len(norms))
    place[seen], value[seen] = np.arange(len(seen)), 1 / norms[seen]
    forth = OneHot(place, value.astype(dtype), len(seen))
    back = OneHot(seen, norms[seen].astype(dtype), len(norms))
    return Whitening(forth, back, np.sort(norms)[::-1][:rows].astype(dtype))


class Coordinates(eqx.Module):
    """Coefficients ``W`` in whitened coordinates ``Z``, and the way back: ``W = transform @ Z + rest``.

    ``rest`` is the part of the start that the observed contexts do not see; it stays as it is, so that a cell without
    contexts keeps ``y0``.
    """

    transform: Float[Held, "N r"] | OneHot
    inverse: Float[Held, "r N"] | OneHot
    rest: PyTree[Float[Held, "N ..."]]

    @staticmethod
    def of(whitening: Whitening, W: PyTree) -> "Coordinates":
        """Those in which coefficients near ``W`` are written."""
        bare = Coordinates(whitening.transform, whitening.inverse, W)
        seen = bare.direction(bare.enter(W))
        return Coordinates(bare.transform, bare.inverse, trees.sub(W, seen))

    def enter(self, W: PyTree) -> PyTree:
        """The whitened coefficients ``Z`` of ``W``."""
        return combine(self.inverse, W)

    def direction(self, V: PyTree) -> PyTree:
        """A direction (an adjoint, a step) in the coefficients, from one in whitened coordinates."""
        return combine(self.transform, V)

    def restore(self, Z: PyTree) -> PyTree:
        """The coefficients ``W`` of ``Z``."""
        return trees.add(self.direction(Z), self.rest)
