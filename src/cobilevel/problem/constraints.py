"""Constraints on ``y`` that a user can state; bounds are in ``bounds``."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..keys import is_key
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
        if not np.all(np.any(self.A != 0, axis=1)):
            raise ValueError(f"Equalities: row {int(np.argmin(np.any(self.A != 0, axis=1)))} of A is zero. Drop it.")
        if not callable(self.b):
            real_numbers(self.b, "Equalities: b")

    def equalities(self, y0):
        size = len(entry_names(y0))
        if self.A.shape[1] != size:
            raise ValueError(
                f"Equalities: A has {self.A.shape[1]} columns, and y holds {size} numbers ({', '.join(_few(y0))})."
            )
        b, rows, sizes = self.b, len(self.A), np.linalg.norm(self.A, axis=1)

        def right(x, xi):
            value = jnp.asarray(b(x, xi) if callable(b) else b)
            if value.shape not in ((), (rows,)):
                raise ValueError(f"Equalities: b must have shape ({rows},), one number a row of A, got {value.shape}.")
            return jnp.broadcast_to(value, (rows,)) / sizes

        return self.A / sizes[:, None], right


class Simplex(Constraint):
    """``y >= 0`` and ``sum(y) = total``, over all numbers of ``y``; `total` is a number, or a function of ``xi``."""

    total: Any = 1.0

    def __check_init__(self):
        if not callable(self.total) and real_numbers(self.total, "Simplex: total").shape:
            raise ValueError(f"Simplex: total must be one number, or a function of xi; got {self.total!r}.")
        if not callable(self.total) and not self.total > 0:
            raise ValueError(f"Simplex: total must be positive, since all of y is at least 0; got {self.total!r}.")

    def equalities(self, y0):
        total = self.total
        size = len(entry_names(y0))
        right = lambda x, xi: jnp.reshape(jnp.asarray(total(xi) if callable(total) else total), (1,)) / size**0.5
        return np.full((1, size), size**-0.5), right

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
    table = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    found = []
    for one in table:
        if not isinstance(one, Constraint) and (isinstance(one, type) or not callable(one)):
            raise TypeError(
                "constraints must be a list of cb.Equalities, cb.Bounds, cb.Simplex, cb.Inequalities or functions "
                f"h(x, y, xi) that are to be at most zero, got {one!r}."
            )
        found.append(one if isinstance(one, Constraint) else Inequalities(one))
    for one in found:
        if isinstance(one, Bounds):
            _check_sides(one)
    return tuple(found)


def _check_sides(bounds: Bounds) -> None:
    """Raises where bounds on ``y`` bound nothing, or cannot be met, or are no numbers."""
    if bounds.lo is None and bounds.hi is None:
        raise ValueError("constraints: a Bounds without lo and hi bounds nothing. Leave it out, or give a side.")
    for name, side, impossible in (("lo", bounds.lo, np.inf), ("hi", bounds.hi, -np.inf)):
        for leaf in [] if callable(side) else jax.tree.leaves(side):
            values = np.asarray(None if is_key(leaf) else leaf)
            if values.dtype.kind not in "fiu" or np.any(np.isnan(values)) or np.any(values == impossible):
                raise ValueError(
                    f"constraints: {name} of Bounds must hold numbers that y can meet ({-impossible} for no bound), "
                    f"got {leaf!r}."
                )
    both = [np.asarray(side) for side in (bounds.lo, bounds.hi) if isinstance(side, int | float | np.ndarray)]
    if len(both) == 2 and np.any(both[0] > both[1]):
        raise ValueError(
            f"constraints: lo of Bounds lies above hi ({bounds.lo!r} and {bounds.hi!r}); are they swapped?"
        )
