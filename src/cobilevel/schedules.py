"""Step sizes over the run, as data: a number, one of these records, or any function of the step (Optax's are)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

Schedule = Any  # a number, or a function of the step


def at(schedule: Schedule, step: Int[Array, ""], dtype: Any) -> Array:
    """The value of a schedule at a step: a number as it is, a function called."""
    return jnp.asarray(schedule(step) if callable(schedule) else schedule, dtype)


def traced(value: Schedule) -> Schedule:
    """Numbers become arrays, so that they are traced (and can be vmapped); functions and ``None`` stay as they are."""
    if callable(value) or value is None or isinstance(value, jax.Array):
        return value
    return np.asarray(value, dtype=float)


class Polynomial(eqx.Module):
    r"""$c\,(1 + k/w)^{-p}$ at step ``k``: `value` $c$, `power` $p$, `offset` $w$ (the steps before decay sets in)."""

    value: Any = eqx.field(converter=traced)
    power: Any = eqx.field(converter=traced)
    offset: Any = eqx.field(converter=traced, default=1.0)

    def __call__(self, step: Int[Array, ""]) -> Array:
        return self.value * (1 + step / self.offset) ** (-self.power)


class Cosine(eqx.Module):
    """From `value` down to `last` along half a cosine over `steps` steps, and `last` from there on."""

    value: Any = eqx.field(converter=traced)
    steps: Any = eqx.field(converter=traced)
    last: Any = eqx.field(converter=traced, default=0.0)

    def __call__(self, step: Int[Array, ""]) -> Array:
        share = jnp.clip(step / self.steps, 0, 1)
        return self.last + (self.value - self.last) * (1 + jnp.cos(jnp.pi * share)) / 2
