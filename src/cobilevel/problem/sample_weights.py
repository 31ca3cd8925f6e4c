"""Weights of samples, of which only the ratios matter."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..programs import arithmetic


def of_mean_one(weights: Any) -> Any:
    """The same weights scaled to mean one, in a floating dtype.

    First by a power of two, which does not round, so that their sum neither overflows nor vanishes; and before they are
    cast to a precision in which they might not fit.
    """
    if arithmetic(weights) is jnp:
        scaled = jnp.ldexp(weights, -jnp.frexp(jnp.max(weights))[1])
        return scaled / jnp.mean(scaled)
    own = np.asarray(weights)
    wide = own.astype(float)
    wide = np.ldexp(wide, -int(np.frexp(wide.max())[1]))
    wide /= wide.mean()
    return wide.astype(own.dtype) if own.dtype.kind == "f" else wide
