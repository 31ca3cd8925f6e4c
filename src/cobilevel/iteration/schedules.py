"""Step sizes over the run, as data: a number, one of these records, or any function of the step (Optax's are).

Their shapes alone: which one a solver takes by default is in its ``defaults``, from measured scales.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..ground import Held, arithmetic

Schedule = Any  # a number, or a function of the step


def at(schedule: Schedule, step: Int[Held, ""], dtype: Any) -> Float[Array, ""]:
    """The value of a schedule at a step: a number as it is, a function called."""
    return jnp.asarray(schedule(step) if callable(schedule) else schedule, dtype)


def traced(value: Schedule) -> Schedule:
    """Numbers become arrays, so that they are traced (and can be vmapped); functions and ``None`` stay as they are."""
    if callable(value) or value is None or isinstance(value, jax.Array):
        return value
    try:
        return np.asarray("a bool" if isinstance(value, bool | np.bool_) else value, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "a step size must be a number, or a function of the step such as cb.PolynomialDecay or an Optax schedule, "
            f"got {value!r}."
        ) from error


def is_optax(value: Any) -> bool:
    """Whether something is an Optax transformation rather than a schedule."""
    return hasattr(value, "init") and hasattr(value, "update")


def check_schedule(name: str, value: Schedule, most: float = np.inf) -> None:
    """Raises where a number is not positive and at most `most`, or a function does not give one number for a step."""
    if value is None or is_optax(value):
        return
    if callable(value):
        try:
            shape = jax.eval_shape(value, jnp.int32(0)).shape
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise TypeError(
                f"{name}: a schedule must return one number per step, traceable by JAX (jnp.where instead of if), "
                f"but it fails with {reason.rstrip('.')}."
            ) from error
        if shape:
            raise TypeError(f"{name}: a schedule must return one number per step, got an array of shape {shape}.")
        return
    _check_number(name, value, most, also=", or a schedule;")


def _check_number(name: str, value: Any, most: float = np.inf, positive: bool = True, also: str = ",") -> None:
    """Raises unless something is a finite number, and between 0 and `most` if it must be `positive`."""
    if value is not None and not isinstance(value, np.ndarray):
        return  # traced, or mapped over
    if value is None or value.shape or not np.isfinite(value) or (positive and not 0 < value <= most):
        wanted = f"between 0 and {most:g}" if np.isfinite(most) else "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be one number, {wanted}{also} got {value}.")


class PolynomialDecay(eqx.Module):
    r"""$c\,(1 + k/w)^{-p}$ at step ``k``: `value` $c$, `power` $p$, `offset` $w$ (the steps before the decay begins).

    **Example:**

    >>> step = cb.PolynomialDecay(0.1, power=0.5, offset=10)
    >>> round(float(step(0)), 3), round(float(step(30)), 3)
    (0.1, 0.05)
    """

    value: Any = eqx.field(converter=traced)
    power: Any = eqx.field(converter=traced)
    offset: Any = eqx.field(converter=traced, default=1.0)

    def __check_init__(self):
        for name in ("value", "offset", "power"):
            _check_number(f"PolynomialDecay: {name}", getattr(self, name), positive=name != "power")

    def __call__(self, step: Any) -> Any:
        value, power, offset, step = _widest(self.value, self.power, self.offset, step)
        return value * (1 + step / offset) ** (-power)


class Cosine(eqx.Module):
    """From `value` down to `last` along half a cosine over `steps` steps, and `last` from there on.

    **Arguments:**

    - `value`: the value at the first step.
    - `steps`: the number of steps until it reaches `last`.
    - `last`: the final value.

    **Example:**

    >>> step = cb.Cosine(0.1, steps=100)
    >>> float(step(0)), round(float(step(50)), 3), float(step(100))
    (0.1, 0.05, 0.0)
    """

    value: Any = eqx.field(converter=traced)
    steps: Any = eqx.field(converter=traced)
    last: Any = eqx.field(converter=traced, default=0.0)

    def __check_init__(self):
        for name in ("value", "steps", "last"):
            _check_number(f"Cosine: {name}", getattr(self, name), positive=name != "last")

    def __call__(self, step: Any) -> Any:
        value, steps, last, step = _widest(self.value, self.steps, self.last, step)
        xp = arithmetic(step, steps)
        share = xp.clip(step / steps, 0, 1)
        return last + (value - last) * (1 + xp.cos(np.pi * share)) / 2


def _widest(*numbers: Any) -> tuple[Float[Held, ""], ...]:
    """Numbers in the widest precision that is switched on."""
    xp = arithmetic(numbers)
    return tuple(xp.asarray(number, float) for number in numbers)
