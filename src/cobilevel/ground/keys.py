"""Random keys: from a seed, recognised among the leaves of a pytree, and derived from each other cheaply."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Key, UInt32

_THREEFRY = "threefry2x32"  # the generator that JAX has by default


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key, which has no plain bytes."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_key(key: Any) -> jax.Array:
    """A random key from an integer seed, or the key itself; old-style keys, arrays of 32-bit words, are accepted."""
    array = isinstance(key, jax.Array | np.ndarray)
    if array and is_key(key):
        if key.shape != ():
            shape = key.shape
            raise ValueError(f"key must be one key, got an array of keys of shape {shape}. Pass one, such as key[0].")
        return key
    if array and key.dtype == np.uint32 and key.shape == (2,):  # as jax.random.PRNGKey makes them
        return jax.random.wrap_key_data(jnp.asarray(key))
    one = array and key.shape == () and np.issubdtype(key.dtype, np.integer) and not isinstance(key, Tracer)
    if one or (isinstance(key, int | np.integer) and not isinstance(key, bool)):
        return _seeded(int(key))
    raise TypeError(f"key must be a whole number or a jax.random.key, got {key!r}.")


@cache
def _seeded(seed: int) -> jax.Array:
    """The key that JAX makes of a seed; of a small one its two words are known, and no program is compiled for it."""
    if not -(2**63) <= seed < 2**63:
        raise ValueError(
            f"key must be a whole number of at most 64 bits, from {-(2**63)} to {2**63 - 1}, got {seed}. Use a "
            f"smaller one, such as {seed % 2**32}."
        )
    threefry = jax.config.jax_default_prng_impl == _THREEFRY  # pyright: ignore[reportAttributeAccessIssue]
    if threefry and 0 <= seed < 2**31:
        return jax.random.wrap_key_data(np.array([0, seed], np.uint32), impl=_THREEFRY)
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


def below(bits: Any, count: Any) -> Any:
    """Random bits as a whole number from 0 to ``count - 1``: the high half of their product, in NumPy or JAX."""
    low, count = np.uint32(0xFFFF), count.astype(np.uint32) if hasattr(count, "astype") else np.uint32(count)
    middle = (bits >> 16) * (count & low) + (((bits & low) * (count & low)) >> 16)
    carry = (bits & low) * (count >> 16) + (middle & low)
    return (bits >> 16) * (count >> 16) + (middle >> 16) + (carry >> 16)


def derived(key: Key[Array, ""], number: Any) -> Key[Array, ""]:
    """Another key for each number, independent of this one: ``fold_in`` by a cheaper hash."""
    words = jax.random.key_data(key)
    places = np.arange(words.shape[-1], dtype=np.uint32)
    bits = hashed(key, jnp.asarray(number).astype(jnp.uint32) * np.uint32(len(places)) + places)
    return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(key))
