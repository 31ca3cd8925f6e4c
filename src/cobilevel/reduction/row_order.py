"""Which rows make up which batch, as a pure function of a key and the number of the batch.

So a sampler's whole position is one counter: any batch can be drawn again (variance reduction does), a saved run goes
on exactly where it stopped, and nothing is stored per row. Without replacement, each epoch runs through a fresh
pseudo-random permutation of the pool, evaluated row by row by a Feistel network rather than by sorting.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer, UInt32

_ROUNDS = 6


_SMALL = 256


class RowIndex(eqx.Module):
    """The rows of one batch: positions in the pool, the share each has in the batch mean times the batch size, and how
    many are real (a ragged last batch is filled up with rows of share 0)."""

    index: Int[Array, " b"]
    share: Float[Array, " b"]
    count: Int[Array, ""]


def _mix(value: UInt32[Array, "..."], key: UInt32[Array, ""]) -> UInt32[Array, "..."]:
    """A good 32-bit hash of value and key."""
    value = (value ^ key) * jnp.uint32(0x9E3779B1)
    value = (value ^ (value >> 15)) * jnp.uint32(0x85EBCA6B)
    return value ^ (value >> 13)


def permute(key: Array, position: Int[Array, " b"], rows: int) -> Int[Array, " b"]:
    """Where a pseudo-random permutation of ``range(rows)`` sends each position.

    A small pool is sorted. Else a Feistel network permutes the next larger power of four; positions that leave the
    range walk on along their cycle until they come back into it.
    """
    if rows <= _SMALL:
        return jax.random.permutation(key, rows)[position].astype(jnp.int32)
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    low = jnp.uint32((1 << half) - 1)
    keys = jax.random.bits(key, (_ROUNDS,), jnp.uint32)

    def cipher(value):
        left, right = value >> half, value & low
        for round_key in keys:
            left, right = right, left ^ (_mix(right, round_key) & low)
        return (left << half) | right

    outside = lambda value: value >= rows
    walk = lambda value: jnp.where(outside(value), cipher(value), value)
    start = cipher(position.astype(jnp.uint32))
    return jax.lax.while_loop(lambda value: jnp.any(outside(value)), walk, start).astype(jnp.int32)


def batch_rows(key: Array, number: Integer[Array, ""], size: int, pool: int, shuffle: bool, dtype: Any) -> RowIndex:
    """The rows of batch `number` from a pool: independent draws, or (`shuffle`) every row once an epoch."""
    if not shuffle:
        index = jax.random.randint(jax.random.fold_in(key, number), (size,), 0, pool)
        return RowIndex(index, jnp.ones(size, dtype), jnp.int32(size))
    batches = -(-pool // size)
    epoch, slot = number // batches, number % batches
    position = slot.astype(jnp.int32) * size + jnp.arange(size, dtype=jnp.int32)
    real = position < pool
    count = jnp.sum(real, dtype=jnp.int32)
    index = permute(jax.random.fold_in(key, epoch), jnp.where(real, position, 0), pool)
    return RowIndex(index, jnp.where(real, size / count.astype(dtype), 0), count)
