r"""Row derivatives: all that exact methods ask of the user's functions, sample by sample. The one thing compiled.

At ``x`` and a ``y`` for each row the lower level gives $g$, $\partial_2 g$, $\partial_{22} g$ and $\partial_{21} g$,
the upper one $f$, $\partial_1 f$ and $\partial_2 f$. A program knows the shapes of ``x``, ``y`` and one row, and how
many rows a block has; it knows neither the basis, nor the number of functions, nor how many rows there are. Problems
whose functions say the same up to numbers share it: programs are kept from one run to the next, on disk too where
``keep_programs`` is asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, PyTree

from ..functions import Traced
from ..ground import FEW, double, in_double, in_threads, unfused

BLOCK = 1024  # rows, so few that small problems waste little; blocks are larger by _GROWTH where there are many rows
_GROWTH = 16  # and once more on an accelerator, where a call takes as long as a million rows
AT_ONCE = 2**23  # numbers in an intermediate array, 64 MB: blocks are halved until their derivatives fit
_KEPT = 128  # programs, the oldest dropped: functions that are made anew for each solve would fill the memory


class LowerRows(NamedTuple):
    """``g`` and its derivatives, a row a sample; or their sums in a basis. `cross` is ``d21 g``."""

    value: Any
    slope: Float[np.ndarray, "n dy"]
    hessian: Float[np.ndarray, "n dy dy"] | Float[np.ndarray, "M M"]
    cross: Float[np.ndarray, "n dy dx"]


class UpperRows(NamedTuple):
    """``f`` and its gradients in ``x`` and ``y``, a row a sample; or their sums in a basis."""

    value: Any
    d1: Float[np.ndarray, "*n dx"]
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


def over_devices(rows: int) -> NamedSharding | None:
    """Where the rows of a block go: in equal shares to the devices of this process; to the first where that fails."""
    devices = jax.local_devices()
    if len(devices) == 1 or rows % len(devices):
        return None
    return NamedSharding(Mesh(np.array(devices), ("rows",)), PartitionSpec("rows"))


class RowBlocks:
    """The rows of one level, ``(xi, eta)``, in blocks of one size; the last is filled up with copies of its last row.

    `dtype` is the precision of the program.
    """

    def __init__(self, xi: Any, eta: PyTree, dtype: Any, numbers: int, size: int | None = None):
        self.count, self.dtype = len(xi), np.dtype(dtype)
        self.size = self._size(numbers) if size is None else size
        self.begins = range(0, self.count, self.size)
        host, place = jax.tree.map(np.asarray, (xi, eta)), over_devices(self.size)
        self._data = [jax.device_put(jax.tree.map(lambda a, b=b: self.filled(a, b), host), place) for b in self.begins]

    def _size(self, numbers: int) -> int:
        """Rows in a block, where each has so many numbers."""
        large = _GROWTH * BLOCK
        size = BLOCK if self.count <= 2 * large else large if jax.default_backend() == "cpu" else _GROWTH * large
        while size > 1 and size * numbers > most_numbers():
            size //= 2
        return size

    def like(self, xi: Any, eta: PyTree, most: int | None = None) -> "RowBlocks":
        """Other rows, in blocks of the same size where they fill one by half, else of a smaller one, or of at `most` so
        many rows."""
        size = self.size if most is None else min(self.size, most)
        while size // 2 >= len(xi):
            size //= 2
        return RowBlocks(xi, eta, self.dtype, 0, size)

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

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._data))


def most_numbers() -> int:
    """Those that the derivatives of one block may have; on a processor so few that threads have blocks to share."""
    return AT_ONCE // FEW if jax.default_backend() == "cpu" else AT_ONCE


def flat_size(tree: PyTree) -> int:
    """The numbers in a pytree."""
    return sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(tree))


def _lower(x: Any, y: Any, xi: Any, eta: Any, g: Callable, crossed: bool) -> list[Any]:
    """``g`` and its derivatives."""

    def slope(p: Any, q: Any) -> tuple[Any, Any]:
        value, first = jax.value_and_grad(g, argnums=1)(p, q, xi, eta)
        return first, [value, first]

    hessian, parts = jax.jacfwd(slope, argnums=1, has_aux=True)(x, y)
    parts.append(hessian)
    if crossed:
        mixed = jax.jacfwd if len(x) <= len(y) else jax.jacrev
        parts.append(mixed(lambda p: slope(p, y)[0])(x))
    return parts


def _slope(x: Any, y: Any, xi: Any, eta: Any, g: Callable) -> list[Any]:
    """``g`` and ``d2 g`` alone."""
    return list(jax.value_and_grad(g, argnums=1)(x, y, xi, eta))


def _turned(x: Any, both: Any, xi: Any, eta: Any, g: Callable) -> list[Any]:
    """``d22 g v`` and ``d12 g v`` at ``(y, v)``."""
    y, v = jnp.split(both, 2)
    along = lambda p, q: jax.jvp(lambda q: g(p, q, xi, eta), (q,), (v,))[1]
    return list(jax.grad(along, argnums=(1, 0))(x, y))


def _upper(x: Any, y: Any, xi: Any, eta: Any, f: Callable) -> list[Any]:
    """``f`` and its gradients."""
    value, gradients = jax.value_and_grad(f, argnums=(0, 1))(x, y, xi, eta)
    return [value, *gradients]


def _bend(x: Any, both: Any, xi: Any, eta: Any, f: Callable, g: Callable) -> list[Any]:
    r"""$\partial_{22} f - \partial_{222} g\, v$ at ``(y, v)``."""
    y, v = jnp.split(both, 2)

    def alpha(z: Any) -> Any:
        product = jax.jvp(lambda q: jax.grad(g, argnums=1)(x, q, xi, eta), (z,), (v,))[1]
        return product - jax.grad(f, argnums=1)(x, z, xi, eta)

    return [-jax.jacfwd(alpha)(y)]


def _slack(x: Any, y: Any, xi: Any, eta: Any, h: Callable) -> list[Any]:
    """Slacks and their slopes in ``y``."""
    slack = lambda q: h(x, q, xi, eta)
    return [slack(y), jax.jacfwd(slack)(y)]


def of_vectors(program: Any, constants: list) -> Callable:
    """An objective as a function of vectors ``x`` and ``y``."""
    x, y, _, _ = jax.tree.unflatten(program.structure, program.shapes)
    to_x, to_y = (ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), part))[1] for part in (x, y))
    return lambda p, q, xi, eta: program.in_place(constants, to_x(p), to_y(q), xi, eta)


@lru_cache(_KEPT)
def _over_rows(parts: Callable, programs: tuple, *options: Any) -> tuple[Callable, Callable]:
    """What `parts` gives for each row, packed into one vector, for a block of rows; and the same compiled, a column a
    row: sums over rows run along memory."""

    def one(constants: tuple, x: Any, y: Any, xi: Any, eta: Any) -> Any:
        derivatives = parts(x, y, xi, eta, *map(of_vectors, programs, constants), *options)
        dtype = np.result_type(*(part.dtype for part in derivatives))  # functions may hold numbers in another precision
        return jnp.concatenate([jnp.ravel(part).astype(dtype) for part in derivatives])

    over = partial(jax.vmap, one, in_axes=(None, None, 0, 0, 0))
    return over(), unfused(over(out_axes=1))


class RowDerivatives(NamedTuple):
    """Objectives with the rows at which their derivatives are taken: `program` is compiled from `traced`."""

    rows: RowBlocks
    constants: tuple
    traced: Callable
    program: Callable

    @staticmethod
    def _of(parts: Callable, rows: RowBlocks, objectives: tuple[Traced, ...], *options: Any) -> "RowDerivatives":
        programs = _over_rows(parts, tuple(one.program for one in objectives), *options)
        return RowDerivatives(rows, tuple(one.constants for one in objectives), *programs)

    @staticmethod
    def lower(objective: Traced, rows: RowBlocks, crossed: bool = True) -> "RowDerivatives":
        return RowDerivatives._of(_lower, rows, (objective,), crossed)

    @staticmethod
    def slope(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_slope, rows, (objective,))

    @staticmethod
    def turned(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_turned, rows, (objective,))

    @staticmethod
    def upper(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_upper, rows, (objective,))

    @staticmethod
    def slack(objective: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_slack, rows, (objective,))

    @staticmethod
    def bend(upper: Traced, lower: Traced, rows: RowBlocks) -> "RowDerivatives":
        return RowDerivatives._of(_bend, rows, (upper, lower))

    def block(self, x: Float[np.ndarray, " dx"], table: np.ndarray, part: slice, xi: Any, eta: Any) -> np.ndarray:
        """The packed derivatives of one block, at its rows of a table (those of the block alone)."""
        rows = self.rows
        y = rows.filled(table, 0).astype(rows.dtype, copy=False)
        packed = self.program(self.constants, x.astype(rows.dtype, copy=False), y, xi, eta)
        return np.asarray(packed).T[: part.stop - part.start]

    def table(
        self,
        x: Float[np.ndarray, " dx"],
        table: np.ndarray,
        kept: Callable[[np.ndarray, slice], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The packed derivatives of the leading rows, as many as the table has, in double precision; or what is `kept`
        of each block."""

        def one(block: tuple[slice, Any, Any]) -> np.ndarray:
            part = slice(block[0].start, min(block[0].stop, len(table)))
            packed = self.block(x, table[part], part, *block[1:])
            return packed if kept is None else kept(packed, part)

        parts = list(side_by_side(one, [block for block in self.rows if block[0].start < len(table)]))
        return np.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts), float)


def side_by_side(one: Callable, items: list) -> Iterator[Any]:
    """A function of each item, in their order; in threads where items are many."""
    if len(items) == 1:
        return map(one, items)
    wide, answers = in_double(), np.geterr()

    def work(item: Any) -> Any:
        # the precision is a thread's own, and so is what NumPy says of infinities
        with double() if wide else nullcontext(), np.errstate(**answers):
            return one(item)

    return in_threads(work, items)
