"""Which rows make up which batch, as a pure function of a key and the number of the batch.

So a sampler's whole position is one counter: any batch can be drawn again (variance reduction does), a saved run goes
on exactly where it stopped, and nothing is stored per row. Without replacement, each epoch runs through a fresh
pseudo-random permutation of the pool, evaluated row by row rather than by sorting.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from ..keys import below, derived, hashed, mix

_ROUNDS = 16  # of swapping: each parts two rows that kept together so far with odds of one half
_TURNS = 4  # of a Feistel network, each of them two rounds
_GOLDEN = 0x9E3779B9  # its multiples are far apart from each other
_WIDTH = 8  # of the product that settles an index


class RowIndex(eqx.Module):
    """The rows of one batch: positions in the pool, the share each has in the batch mean times the batch size, and how
    many are real (a ragged last batch is filled up with rows of share 0). Where no batch is ragged, the last two are
    plain numbers, so that what follows from them is known before anything runs."""

    index: Int[Array, " b"]
    share: Float[Array | np.ndarray, " b"]
    count: Int[Array | np.ndarray, ""]

    @staticmethod
    def full(index: Int[Array, " b"], dtype: Any) -> "RowIndex":
        """A batch all of whose rows are real."""
        return RowIndex(index, np.ones(len(index), dtype), np.asarray(len(index), np.int32))


def permute(key: Array, position: Int[Array, " b"], rows: int) -> Int[Array, " b"]:
    """Where a pseudo-random permutation of ``range(rows)`` sends each position.

    For a power of two a Feistel network: in turn, each half of the bits is changed by a hash of the other half. Else
    "swap or not": in each round every position has a partner, the two add up to a random number, and a bit that is the
    same for both says whether they change places. Neither needs a loop, nor a look at other positions.
    """
    first, second = hashed(key, 0), hashed(key, 1)
    salts = [np.uint32(k * _GOLDEN % 2**32) for k in range(_ROUNDS)]
    value = position.astype(jnp.uint32)
    if rows & (rows - 1) == 0:
        bits = rows.bit_length() - 1
        half = np.uint32(bits // 2)
        left, right = value >> half, value & np.uint32((1 << half) - 1)
        for a, b in zip(salts[:_TURNS], salts[_TURNS : 2 * _TURNS], strict=True):
            left = left ^ (mix(right ^ (first + a)) >> np.uint32(32 - bits + half)) if bits > half else left
            right = right ^ (mix(left ^ (second + b)) & np.uint32((1 << half) - 1))
        return ((left << half) | right).astype(jnp.int32)
    for salt in salts:
        total = below(mix(first + salt), rows)
        partner = jnp.where(value <= total, total - value, total + np.uint32(rows) - value)
        swap = mix(jnp.maximum(value, partner) ^ (second + salt)) >> 31
        value = jnp.where(swap == 1, partner, value)
    return value.astype(jnp.int32)


def _settled(index: Int[Array, " b"]) -> Int[Array, " b"]:
    """The same numbers behind a product of matrices, which compilers do not look through: else every use of every row
    would compute them again."""
    table = jnp.pad(index, (0, -len(index) % _WIDTH)).reshape(-1, _WIDTH)
    return (table @ np.eye(_WIDTH, dtype=np.int32)).reshape(-1)[: len(index)]


def batch_rows(key: Array, number: Integer[Array, ""], size: int, pool: int, shuffle: bool, dtype: Any) -> RowIndex:
    """The rows of batch `number` from a pool: independent draws, or (`shuffle`) every row once an epoch."""
    places = np.arange(size, dtype=np.uint32)
    if not shuffle:
        return RowIndex.full(_settled(below(hashed(derived(key, number), places), pool).astype(jnp.int32)), dtype)
    batches = -(-pool // size)
    number = jnp.asarray(number)
    epoch, slot = number // batches, number % batches
    position = slot.astype(jnp.int32) * size + places.astype(np.int32)
    if pool % size == 0:
        return RowIndex.full(_settled(permute(derived(key, epoch), position, pool)), dtype)
    real = position < pool
    count = jnp.minimum(pool - slot.astype(jnp.int32) * size, size)
    index = permute(derived(key, epoch), jnp.where(real, position, 0), pool)
    share = jnp.where(real, size / count.astype(dtype), 0)
    return RowIndex(_settled(index), share, count)


def rows_ahead(
    key: Array, numbers: Integer[Array, " k"], size: int, pool: int, shuffle: bool, dtype: Any
) -> tuple[Callable[[Any], RowIndex], Int[Array | np.ndarray, " k"] | None]:
    """The rows of several batches, chosen all at once: by place in the list; and how many of each are real."""
    rows = lambda number: batch_rows(key, number, size, pool, shuffle, dtype)
    if shuffle and pool % size:
        ahead = jax.vmap(rows)(numbers)
        return lambda place: jax.tree.map(lambda a: a[place], ahead), ahead.count
    index = jax.vmap(lambda number: rows(number).index)(numbers)
    return lambda place: RowIndex.full(index[place], dtype), None
