"""Random keys: from a seed, and recognised among the leaves of a pytree."""

from typing import Any

import jax
import numpy as np


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key, which has no plain bytes of its own."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_key(key: Any) -> jax.Array:
    """A random key from an integer seed, or the key itself."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return jax.random.key(int(key))
    if not isinstance(key, jax.Array) or not is_key(key):
        raise TypeError(f"key must be an integer or a jax.random.key, got {key!r}.")
    return key
