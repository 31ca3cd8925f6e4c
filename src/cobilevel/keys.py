"""Random keys: from a seed, and recognised among the leaves of a pytree."""

from functools import cache
from typing import Any

import jax
import numpy as np


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
