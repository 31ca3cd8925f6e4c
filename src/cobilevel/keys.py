"""Random keys: from a seed, recognised among the leaves of a pytree, and derived from each other cheaply."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, UInt32


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key, which has no plain bytes of its own."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_key(key: Any) -> jax.Array:
    """A random key from an integer seed, or the key itself."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return _seeded(int(key))
    if not isinstance(key, jax.Array) or not is_key(key):
        raise TypeError(f"key must be an integer or a jax.random.key, got {key!r}.")
    return key


@cache
def _seeded(seed: int) -> jax.Array:
    return jax.random.key(seed)


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator for a key: what is drawn once, on the host, needs no compiled program."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def split_key(key: jax.Array, count: int = 2) -> tuple[jax.Array, ...]:
    """Independent keys from one, on the host."""
    words = generator(key).integers(0, 2**32, (count, *jax.random.key_data(key).shape), dtype=np.uint32)
    return tuple(jax.random.wrap_key_data(row, impl=jax.random.key_impl(key)) for row in words)


def mix(value: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A good 32-bit hash: every bit of the value changes half of the bits of the result."""
    value = (value ^ (value >> 16)) * np.uint32(0x21F0AAAD)
    value = (value ^ (value >> 15)) * np.uint32(0xD35A2D97)
    return value ^ (value >> 15)


def hashed(key: Key[Array, ""], number: Any) -> UInt32[Array, "..."]:
    """A number (or an array of them) and a key as 32 random bits: far cheaper than ``jax.random``, in one kernel."""
    words = jax.random.key_data(key)
    value = jnp.asarray(number).astype(jnp.uint32)
    for k in range(words.shape[-1]):
        value = mix(value + words[k]) ^ words[k]
    return mix(value)


def below(bits: UInt32[Array, "..."], count: Any) -> UInt32[Array, "..."]:
    """Random bits as a whole number from 0 to ``count - 1``: the high half of their product."""
    low, count = np.uint32(0xFFFF), jnp.asarray(count).astype(jnp.uint32)
    middle = (bits >> 16) * (count & low) + (((bits & low) * (count & low)) >> 16)
    carry = (bits & low) * (count >> 16) + (middle & low)
    return (bits >> 16) * (count >> 16) + (middle >> 16) + (carry >> 16)


def derived(key: Key[Array, ""], number: Any) -> Key[Array, ""]:
    """Another key for each number, independent of this one: ``fold_in`` by a cheaper hash."""
    words = jax.random.key_data(key)
    places = np.arange(words.shape[-1], dtype=np.uint32)
    bits = hashed(key, jnp.asarray(number).astype(jnp.uint32) * np.uint32(len(places)) + places)
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(key))
