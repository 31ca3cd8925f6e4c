"""Rows cut into shards, one for each device: who holds which, and arrays made of what each process holds.

A shard is filled up to the common length by rows of weight 0. All that is done shard by shard, and added up in their
order, gives the same bits for any number of processes.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


@dataclass(frozen=True)
class RowLayout:
    """How many rows each shard has, of all processes, in order; and how long a shard is, fillings included."""

    counts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The rows there are."""
        return sum(self.counts)

    @property
    def length(self) -> int:
        """The rows of a shard, with those it is filled up by."""
        return max(self.counts)

    @property
    def filled(self) -> int:
        """All rows, with those that fill up."""
        return self.length * len(self.counts)

    def place(self, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """Where rows lie, by their number among those that are real."""
        ends = np.cumsum(self.counts)
        gaps = np.arange(len(ends)) * self.length - np.concatenate([[0], ends[:-1]])
        shard = jnp.searchsorted(ends.astype(np.int32), index, side="right", method="compare_all")
        return index + jnp.asarray(gaps.astype(np.int32))[shard]


def even_counts(rows: int, shards: int) -> tuple[int, ...]:
    """Rows dealt out to shards: as many to each, and the last ones fewer."""
    each = -(-rows // shards)
    return tuple(max(0, min(each, rows - k * each)) for k in range(shards))


def shards_of(array: Any) -> list[np.ndarray]:
    """What this process holds of an array, shard by shard, in order."""
    parts = sorted(array.addressable_shards, key=lambda part: part.index[0].start or 0)
    return [np.asarray(part.data) for part in parts]
