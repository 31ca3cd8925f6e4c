"""Where a stochastic run stands in its draws, and the batches of one step, taken in order."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt32

from ..keys import below, derived, hashed
from ..programs import put
from ..reduction import Batch, Batches, Bilevel, RowIndex, Source, batch_rows

# what a key is folded with, so that the draws of one step for different purposes are independent
_LARGE, _INDEPENDENT, _CHOICE = 1, 2, 3
_LARGE_BATCHES = 16  # of a stream a large batch is so many small ones: enough to cut the noise by four


class DrawPosition(eqx.Module):
    """The key of a run, and how many batches of each level were taken: the whole position of its samplers."""

    key: Key[Array, ""]
    upper: UInt32[Array, ""]
    lower: UInt32[Array, ""]

    @staticmethod
    def start(key: Key[Array, ""]) -> "DrawPosition":
        """Before the first batch."""
        return DrawPosition(key, *put((np.uint32(0), np.uint32(0))))


class Draws:
    """The batches of one step, in order; lives while the step is traced, and its `position` goes into the state."""

    def __init__(self, reduced: Bilevel, position: DrawPosition, step: Int[Array, ""], batch: int, shuffle: bool):
        self._sources = {"upper": reduced.upper_source, "lower": reduced.lower_source}
        for_upper, for_lower, self._other = (derived(position.key, k) for k in range(3))
        self._keys = {"upper": for_upper, "lower": for_lower}
        self._step, self._batch, self._shuffle, self._dtype = step, batch, shuffle, reduced.dtype
        self.position = position

    def _advance(self, level: str, count: Int[Array, ""] | int) -> UInt32[Array, ""]:
        """The number of the next batch of a level, of which `count` are taken."""
        begin = getattr(self.position, level)
        after = begin + jnp.asarray(count, jnp.uint32)
        self.position = eqx.tree_at(lambda position: getattr(position, level), self.position, after)
        return begin

    def _take(self, level: str, count: Int[Array, ""] | int) -> Batches:
        begin = self._advance(level, count)
        return self._sources[level].batches(self._keys[level], begin, count, self._batch, self._shuffle)

    def _next(self, level: str) -> Batch:
        return self._sources[level].batch(self._keys[level], self._advance(level, 1), self._batch, self._shuffle)

    def upper(self) -> Batch:
        """The next upper batch."""
        return self._next("upper")

    def lower(self) -> Batch:
        """The next lower batch."""
        return self._next("lower")

    def uppers(self, count: Int[Array, ""] | int) -> Batches:
        """The next `count` upper batches, by number."""
        return self._take("upper", count)

    def lowers(self, count: Int[Array, ""] | int) -> Batches:
        """The next `count` lower batches, by number."""
        return self._take("lower", count)

    def independent(self, count: Int[Array, ""] | int | None = None) -> Batches:
        """Lower batches by number, always with replacement: products of Hessians need them independent.

        Where `count`, how many at most, is a plain number, their rows are chosen all at once.
        """
        key = derived(self.key(), _INDEPENDENT)
        return self._sources["lower"].batches(key, jnp.uint32(0), count, self._batch, False)

    def rows(self, level: str) -> RowIndex:
        """Which rows of the pool of a level come next, for solvers that keep something for each."""
        pool = self._sources[level].rows
        assert pool is not None
        number = self._advance(level, 1)
        return batch_rows(self._keys[level], number, self._batch, pool, True, self._dtype)

    def key(self) -> Key[Array, ""]:
        """For other random choices in this step."""
        return derived(self._other, self._step)

    def choice(self, count: Int[Array, ""] | int) -> Int[Array, ""]:
        """A random number from 0 to ``count - 1``."""
        return below(hashed(self.key(), _CHOICE), count).astype(jnp.int32)

    def large(self, size: int | None) -> tuple[Batch, Batch]:
        """Of each level all there is, or `size` fresh rows where that is asked for, or there is no end of them."""

        def part(source: Source, key: Array) -> Batch:
            if source.rows is not None and (size is None or size >= source.rows):
                return source.pool()
            return source.draw(key, _LARGE_BATCHES * self._batch if size is None else size)

        for_upper, for_lower = jax.random.split(derived(self.key(), _LARGE))
        return part(self._sources["upper"], for_upper), part(self._sources["lower"], for_lower)
