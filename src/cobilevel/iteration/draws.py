"""iteration.draws."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..derivatives.linear_systems import Draw
from ..reduction.batches import Batch, Source
from ..reduction.reduced import Reduced
from ..reduction.row_order import Rows, rows_of


class Draws:
    """The batches of one step, in order; lives while the step is traced, and its position goes back into the state."""

    def __init__(self, solver: Any, reduced: Reduced, state: Any):
        self._solver, self._reduced = solver, reduced
        self._keys = jax.random.split(state.key, 3)
        self._step = state.step
        self.position = list(state.drawn)

    def _take(self, level: int, count: Any) -> Draw:
        source = (self._reduced.upper_source, self._reduced.lower_source)[level]
        begin, size = self.position[level], self._solver.batch
        self.position[level] = begin + jnp.asarray(count, jnp.uint32)
        return lambda number: source.batch(
            self._keys[level], begin + jnp.asarray(number, jnp.uint32), size, self._solver.shuffle
        )

    def upper(self) -> Batch:
        return self._take(0, 1)(0)

    def lower(self) -> Batch:
        return self._take(1, 1)(0)

    def lowers(self, count: Any) -> Draw:
        """The next `count` lower batches, by number."""
        return self._take(1, count)

    def independent(self) -> Draw:
        """Lower batches by number, always with replacement: products of Hessians need them independent."""
        key, source = jax.random.fold_in(self.key(), 2), self._reduced.lower_source
        return lambda number: source.batch(key, jnp.asarray(number, jnp.uint32), self._solver.batch, False)

    def uppers(self, count: Any) -> Draw:
        return self._take(0, count)

    def rows(self) -> tuple[Rows, Rows]:
        """Which rows of the two pools come next, for solvers that keep something for each."""
        taken = []
        for level, source in enumerate((self._reduced.upper_source, self._reduced.lower_source)):
            number, self.position[level] = self.position[level], self.position[level] + 1
            dtype = self._reduced.basis.constant.dtype
            assert source.rows is not None
            taken.append(rows_of(self._keys[level], number, self._solver.batch, source.rows, True, dtype))
        return tuple(taken)

    def key(self) -> Array:
        """For other random choices in this step."""
        return jax.random.fold_in(self._keys[2], self._step)

    def large(self, size: int | None) -> tuple[Batch, Batch]:
        """Of each level all there is, or `size` fresh rows where that is asked for, or there is no end of them."""
        key = jax.random.fold_in(self.key(), 1)

        def part(source: Source, key: Array) -> Batch:
            if source.rows is not None and (size is None or size >= source.rows):
                return source.pool()
            return source.draw(key, 16 * self._solver.batch if size is None else size)

        above, below = jax.random.split(key)
        return part(self._reduced.upper_source, above), part(self._reduced.lower_source, below)
