r"""Row derivatives: all that exact methods ask of the user's functions, sample by sample. The one thing compiled.

At ``x`` and a ``y`` for each row the lower level gives $g$, $\partial_2 g$, $\partial_{22} g$ and $\partial_{21} g$,
the upper one $f$, $\partial_1 f$ and $\partial_2 f$. A program knows the shapes of ``x``, ``y`` and one row, and how
many rows a block has; it knows neither the basis, nor the number of functions, nor how many rows there are. Problems
whose functions say the same up to numbers share it.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from ..problem import Traced
from ..programs import unfused

_SMALL, _LARGE = 1024, 16_384  # rows of a block: the large ones where there are several of them
_ON_DEVICE = 2**18  # the same on an accelerator, where a call takes as long as a million rows
_NUMBERS = 2**23  # of a block's derivatives, at most: 64 MB; blocks are halved until they fit
_KEPT = 64  # programs, the oldest dropped: functions that are made anew for each solve would fill the memory


class LowerRows(NamedTuple):
    """``g`` and its derivatives, a row a sample; `cross` is ``d21 g``."""

    value: Float[np.ndarray, " n"]
    slope: Float[np.ndarray, "n dy"]
    hessian: Float[np.ndarray, "n dy dy"]
    cross: Float[np.ndarray, "n dy dx"]


class UpperRows(NamedTuple):
    """``f`` and its gradients in ``x`` and ``y``, a row a sample."""

    value: Float[np.ndarray, " n"]
    d1: Float[np.ndarray, "n dx"]
    d2: Float[np.ndarray, "n dy"]


class Sizes(NamedTuple):
    """The numbers in ``x`` and in ``y``; `crossed`: whether ``d21 g`` is formed."""

    dx: int
    dy: int
    crossed: bool = True

    @property
    def lower(self) -> int:
        """Numbers that a row of the lower level has."""
        return 1 + self.dy * (1 + self.dy + (self.dx if self.crossed else 0))

    def split_lower(self, table: Float[np.ndarray, "n K"]) -> LowerRows:
        """A packed table taken apart."""
        n, (dx, dy) = len(table), self[:2]
        curved = 1 + dy + dy * dy
        cross = table[:, curved:].reshape(n, dy, dx if self.crossed else 0)
        return LowerRows(table[:, 0], table[:, 1 : 1 + dy], table[:, 1 + dy : curved].reshape(n, dy, dy), cross)

    def split_upper(self, table: Float[np.ndarray, "n K"]) -> UpperRows:
        """A packed table taken apart."""
        return UpperRows(table[:, 0], table[:, 1 : 1 + self.dx], table[:, 1 + self.dx :])


class RowBlocks:
    """The rows of one level, ``(xi, eta)``, in blocks of one size; the last is filled up with copies of its last row.

    `dtype` is the precision of the program.
    """

    def __init__(self, xi: Any, eta: PyTree, dtype: Any, numbers: int):
        self.count, self.dtype = len(xi), np.dtype(dtype)
        large = _LARGE if jax.default_backend() == "cpu" else _ON_DEVICE
        self.size = _SMALL if self.count <= 2 * _LARGE else large
        while self.size > 1 and self.size * numbers > _NUMBERS:
            self.size //= 2
        self.begins = range(0, self.count, self.size)
        host = jax.tree.map(np.asarray, (xi, eta))
        self._data = [jax.device_put(jax.tree.map(lambda a, b=b: self.filled(a, b), host)) for b in self.begins]

    def filled(self, table: np.ndarray, begin: int) -> np.ndarray:
        """One block of a table."""
        part = table[begin : begin + self.size]
        missing = self.size - len(part)
        return np.concatenate([part, np.repeat(part[-1:], missing, axis=0)]) if missing else part

    def __iter__(self) -> Iterator[tuple[slice, Any, Any]]:
        """The rows of each block, with their ``xi`` and ``eta``."""
        for begin, (xi, eta) in zip(self.begins, self._data, strict=True):
            yield slice(begin, min(begin + self.size, self.count)), xi, eta

    def __len__(self) -> int:
        return len(self._data)


def flat_size(tree: PyTree) -> int:
    """The numbers in a pytree."""
    return sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(tree))


def _shaped(objective: Any, constants: list) -> tuple[Callable, Callable, Callable]:
    """An objective of vectors, and the ways from these to ``x`` and ``y``."""
    x, y, _, _ = jax.tree.unflatten(objective.structure, objective.shapes)
    to_x, to_y = (ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), part))[1] for part in (x, y))
    return (lambda p, q, xi, eta: objective(constants, to_x(p), to_y(q), xi, eta)), to_x, to_y


def _packed(*parts: Any) -> Any:
    """The derivatives of one row as one vector: one array comes back."""
    dtype = jnp.result_type(*parts)
    return jnp.concatenate([jnp.ravel(part).astype(dtype) for part in parts])


def lower_row(program: Any, crossed: bool) -> Callable:
    """``g`` and its derivatives at one row."""

    def one(constants: list, x: Any, y: Any, xi: Any, eta: Any) -> Any:
        g, _, _ = _shaped(program, constants)
        slope = lambda p, q: jax.grad(g, argnums=1)(p, q, xi, eta)
        parts = [g(x, y, xi, eta), slope(x, y), jax.jacfwd(slope, argnums=1)(x, y)]
        if crossed:
            mixed = jax.jacfwd if len(x) <= len(y) else jax.jacrev
            parts.append(mixed(slope, argnums=0)(x, y))
        return _packed(*parts)

    return one


def upper_row(program: Any) -> Callable:
    """``f`` and its gradients at one row."""

    def one(constants: list, x: Any, y: Any, xi: Any, eta: Any) -> Any:
        f, _, _ = _shaped(program, constants)
        value, (d1, d2) = jax.value_and_grad(f, argnums=(0, 1))(x, y, xi, eta)
        return _packed(value, d1, d2)

    return one


@lru_cache(_KEPT)
def _lower_program(program: Any, crossed: bool) -> Callable:
    return _over_rows(lower_row(program, crossed))


@lru_cache(_KEPT)
def _upper_program(program: Any) -> Callable:
    return _over_rows(upper_row(program))


@lru_cache(_KEPT)
def _product_program(program: Any) -> Callable:
    """``g``, ``d2 g`` and ``d22 g v``, at a ``y`` and a ``v`` for each row: where ``d22 g`` is too large."""

    def one(constants: list, x: Any, both: Any, xi: Any, eta: Any) -> Any:
        g, _, _ = _shaped(program, constants)
        y, v = jnp.split(both, 2)
        slope, product = jax.jvp(lambda q: jax.grad(g, argnums=1)(x, q, xi, eta), (y,), (v,))
        return _packed(g(x, y, xi, eta), slope, product)

    return _over_rows(one)


@lru_cache(_KEPT)
def _bend_program(upper: Any, lower: Any) -> Callable:
    r"""$\partial_{22} f - \partial_{222} g\, v$, at a ``y`` and a ``v`` for each row."""

    def one(constants: tuple[list, list], x: Any, both: Any, xi: Any, eta: Any) -> Any:
        (f, _, _), (g, _, _) = _shaped(upper, constants[0]), _shaped(lower, constants[1])
        y, v = jnp.split(both, 2)

        def alpha(z: Any) -> Any:
            product = jax.jvp(lambda q: jax.grad(g, argnums=1)(x, q, xi, eta), (z,), (v,))[1]
            return product - jax.grad(f, argnums=1)(x, z, xi, eta)

        return -jnp.ravel(jax.jacfwd(alpha)(y))

    return _over_rows(one)


@lru_cache(_KEPT)
def _slack_program(program: Any) -> Callable:
    """Slacks and their slopes in ``y``."""

    def one(constants: list, x: Any, y: Any, xi: Any, eta: Any) -> Any:
        h, _, _ = _shaped(program, constants)
        slack = lambda q: h(x, q, xi, eta)
        return _packed(slack(y), jax.jacfwd(slack)(y))

    return _over_rows(one)


def _over_rows(one: Callable) -> Callable:
    return unfused(jax.vmap(one, in_axes=(None, None, 0, 0, 0)))


class RowDerivatives(NamedTuple):
    """An objective with the rows at which its derivatives are taken.

    `call` takes ``x`` and a table with a row for each sample, and returns the packed derivatives block by block.
    """

    rows: RowBlocks
    objective: Any
    program: Callable
    constants: Any

    @staticmethod
    def _of(make: Callable, objective: Traced, rows: RowBlocks, *options: Any) -> "RowDerivatives":
        program = make(objective.program, *options)
        return RowDerivatives(rows, objective.program, program, objective.constants)

    @staticmethod
    def lower(objective: Traced, rows: RowBlocks, crossed: bool = True) -> "RowDerivatives":
        return RowDerivatives._of(_lower_program, objective, rows, crossed)

    @staticmethod
    def upper(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_upper_program, objective, rows)

    @staticmethod
    def product(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_product_program, objective, rows)

    @staticmethod
    def slack(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_slack_program, objective, rows)

    @staticmethod
    def bend(upper: Traced, lower: Traced, rows: RowBlocks) -> "RowDerivatives":
        program = _bend_program(upper.program, lower.program)
        return RowDerivatives(rows, None, program, (upper.constants, lower.constants))

    def block(self, x: Float[np.ndarray, " dx"], table: np.ndarray, part: slice, xi: Any, eta: Any) -> np.ndarray:
        """The packed derivatives of one block, at its rows of a table (those of the block alone)."""
        rows = self.rows
        y = rows.filled(table, 0).astype(rows.dtype, copy=False)
        found = self.program(self.constants, x.astype(rows.dtype, copy=False), y, xi, eta)
        return np.asarray(found)[: part.stop - part.start]

    def table(
        self,
        x: Float[np.ndarray, " dx"],
        table: np.ndarray,
        kept: Callable[[np.ndarray, slice], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The packed derivatives of the leading rows, as many as the table has, in double precision; or what is `kept`
        of each block."""
        parts = []
        for part, xi, eta in self.rows:
            part = slice(part.start, min(part.stop, len(table)))
            if part.start < part.stop:
                packed = self.block(x, table[part], part, xi, eta)
                parts.append(packed if kept is None else kept(packed, part))
        return np.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts), float)
