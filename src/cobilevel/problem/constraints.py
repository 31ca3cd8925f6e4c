"""Constraints on ``y`` that a user can state; bounds are in ``bounds``."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .array_checks import real_numbers
from .bounds import Bounds
from .constraint import Constraint, entry_names


class Equalities(Constraint):
    """``A y = b``, on the flattened ``y``; ``b`` is a number, an array, or a function ``b(x, xi)``.

    Eliminated, not penalised: the policy meets them at every context to rounding, and the lower level need be strongly
    convex along ``A y = 0`` only.
    """

    A: Any = eqx.field(converter=lambda v: real_numbers(v, "Equalities: A"))
    b: Any = 0.0

    def __check_init__(self):
        if self.A.ndim != 2 or not self.A.size:
            raise ValueError(
                f"Equalities: A must be a matrix with one row an equality, got shape {self.A.shape}. For one equality "
                "write A[None, :]."
            )

    def equalities(self, y0):
        size = len(entry_names(y0))
        if self.A.shape[1] != size:
            raise ValueError(
                f"Equalities: A has {self.A.shape[1]} columns, and y holds {size} numbers ({', '.join(_few(y0))})."
            )
        b, rows = self.b, len(self.A)

        def right(x, xi):
            value = jnp.asarray(b(x, xi) if callable(b) else b)
            if value.shape not in ((), (rows,)):
                raise ValueError(f"Equalities: b must have shape ({rows},), one number a row of A, got {value.shape}.")
            return jnp.broadcast_to(value, (rows,))

        return self.A, right


class Simplex(Constraint):
    """``y >= 0`` and ``sum(y) = total``, over all numbers of ``y``; `total` is a number, or a function of ``xi``."""

    total: Any = 1.0

    def equalities(self, y0):
        total = self.total
        right = lambda x, xi: jnp.reshape(jnp.asarray(total(xi) if callable(total) else total), (1,))
        return np.ones((1, len(entry_names(y0)))), right

    def slack(self, x, y, xi):
        return ravel_pytree(y)[0]

    def names(self, y0, count):
        return [f"{entry} >= 0" for entry in entry_names(y0)]


class Inequalities(Constraint):
    """``h(x, y, xi) <= 0``, entry by entry of what ``h`` returns, each convex in ``y``."""

    h: Callable

    def __check_init__(self):
        if not callable(self.h):
            raise TypeError(f"Inequalities takes a function h(x, y, xi), got {type(self.h).__name__}.")

    def slack(self, x, y, xi):
        return -jnp.ravel(jnp.asarray(self.h(x, y, xi)))

    def names(self, y0, count):
        name = getattr(self.h, "__name__", "h")
        name = "h" if name == "<lambda>" else name
        return [f"{name}(x, y, xi)[{k}] <= 0" if count > 1 else f"{name}(x, y, xi) <= 0" for k in range(count)]


def _few(y0: Any) -> list[str]:
    entries = entry_names(y0)
    return entries if len(entries) <= 4 else [*entries[:3], "..."]


def as_constraints(given: Any) -> tuple[Constraint, ...]:
    """What a user states as constraints: one or several, functions standing for inequalities."""
    if given is None:
        return ()
    table = given if isinstance(given, Sequence) else (given,)
    found = []
    for one in table:
        if not isinstance(one, Constraint) and (isinstance(one, type) or not callable(one)):
            raise TypeError(
                "constraints must be a list of cb.Equalities, cb.Bounds, cb.Simplex, cb.Inequalities or functions "
                f"h(x, y, xi) that are to be at most zero, got {one!r}."
            )
        found.append(one if isinstance(one, Constraint) else Inequalities(one))
    sides = [one for one in found if isinstance(one, Bounds)]
    if any(one.lo is None and one.hi is None for one in sides):
        raise ValueError("constraints: a Bounds without lo and hi bounds nothing. Leave it out, or give a side.")
    return tuple(found)
