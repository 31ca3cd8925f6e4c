"""Bounds: on the decision, which coordinates they leave free and what gradient they leave; on ``y``, their slacks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..programs import arithmetic, put
from .array_checks import concrete, path_name
from .constraint import Constraint, entry_names


class Bounds(Constraint):
    """``lo <= y <= hi``, as a constraint on ``y``: numbers, arrays (prefix pytrees of ``y``) or functions of ``xi``;
    ``None`` or infinity where there is no bound.

    On ``x`` the library keeps bounds in the same form, each shaped like ``x``. Points, gradients and bounds are then
    pytrees of one structure; ``flat`` gives the same bounds on flattened vectors.
    """

    lo: Any = None
    hi: Any = None

    def _ends(self, y: PyTree, xi: Any) -> list[tuple[int, Any, np.ndarray]]:
        """Each side that bounds something: its sign, its value on the flattened ``y``, and which entries it bounds."""
        found = []
        for side, sign, end in (("lower", 1, self.lo), ("upper", -1, self.hi)):
            if end is None:
                continue
            if callable(end):
                filled = ravel_pytree(_fill_bound(end(xi), y, side, -sign * np.inf, "Bounds"))[0]
                some = np.ones(len(filled), bool)
            else:
                shapes = jax.tree.map(lambda a: np.empty(a.shape, a.dtype), y)
                leaves = jax.tree.leaves(_fill_bound(end, shapes, side, -sign * np.inf, "Bounds"))
                filled = np.concatenate([leaf.ravel() for leaf in leaves])
                some = np.isfinite(filled)
            found += [(sign, filled, some)] if some.any() else []
        return found

    def slack(self, x, y, xi):
        flat = ravel_pytree(y)[0]
        gaps = [(sign * (flat - end))[some] for sign, end, some in self._ends(y, xi)]
        return jnp.concatenate(gaps) if gaps else None

    def names(self, y0, count):
        entries, found = entry_names(y0), []
        for sign, end in ((1, self.lo), (-1, self.hi)):
            sign_words, name = (">=", "lo(xi)") if sign > 0 else ("<=", "hi(xi)")
            if callable(end):
                found += [f"{entry} {sign_words} {name}" for entry in entries]
                continue
            for _, filled, some in Bounds(end if sign > 0 else None, end if sign < 0 else None)._ends(y0, None):
                rows = zip(entries, filled, some, strict=True)
                found += [f"{entry} {sign_words} {value:.6g}" for entry, value, there in rows if there]
        return found

    @staticmethod
    def of(pair: Any, x0: PyTree) -> "Bounds":
        """From a user's ``(lo, hi)``: prefix pytrees of ``x``, ``None`` for no bound. ``x0`` must lie within."""
        pair = (None, None) if pair is None else pair
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"x_bounds must be a pair (lo, hi), got {pair!r}.")
        lo, hi = _fill_bound(pair[0], x0, "lower", -np.inf), _fill_bound(pair[1], x0, "upper", np.inf)
        _check_bounds(x0, lo, hi)
        return Bounds(lo, hi)

    def flat(self) -> "Bounds":
        """The same bounds on the flattened decision."""
        return Bounds(ravel_pytree(self.lo)[0], ravel_pytree(self.hi)[0])

    def project(self, x: PyTree) -> PyTree:
        """The nearest point within the bounds."""
        return put(jax.tree.map(arithmetic(x, self.lo, self.hi).clip, x, self.lo, self.hi))

    def fixed(self) -> PyTree:
        """Which coordinates have no room at all."""
        return jax.tree.map(lambda lo, hi: lo == hi, self.lo, self.hi)

    def free(self, x: PyTree, gradient: PyTree, margin: PyTree | float = 0.0) -> PyTree:
        """Which coordinates may move against the gradient.

        Those at a bound (or within `margin` of it) that the gradient pushes against may not, nor those with no room.
        """

        xp = arithmetic(x, gradient, self.lo, self.hi, margin)

        def leaf(*arrays):
            x, g, lo, hi, near = (xp.asarray(a) for a in arrays)
            blocked = ((x <= lo + near) & (g > 0)) | ((x >= hi - near) & (g < 0)) | (lo == hi)
            return ~blocked

        near = jax.tree.map(lambda a: margin, x) if isinstance(margin, float) else margin
        return jax.tree.map(leaf, x, gradient, self.lo, self.hi, near)

    def projected_gradient(self, x: PyTree, gradient: PyTree, length: Any = 1) -> PyTree:
        """``(x - P(x - length * gradient)) / length``: zero exactly at first-order points of the bounded problem.

        Not computed as that difference, which would round small gradients off. Steps are compared with the room that is
        left: added to a large ``x``, a short one would vanish, and a bound would not be met.
        """

        def leaf(x, g, lo, hi):
            step = jnp.asarray(length, x.dtype)
            safe = jnp.where(step > 0, step, 1)
            return jnp.where(step * g > x - lo, (x - lo) / safe, jnp.where(-step * g > hi - x, (x - hi) / safe, g))

        return jax.tree.map(leaf, x, gradient, self.lo, self.hi)


def _fill_bound(bound: PyTree, x0: PyTree, side: str, default: float, argument: str = "x_bounds") -> PyTree:
    """A prefix pytree of ``x``, spread over all its leaves; ``None`` means no bound."""

    def spread(value, subtree):
        value = default if value is None else value

        def leaf(x):
            try:
                if isinstance(x, np.ndarray):
                    return np.broadcast_to(np.asarray(value, x.dtype), x.shape).copy()
                if concrete(value) and concrete(x):
                    return put(np.broadcast_to(np.asarray(value, x.dtype), x.shape).copy())
                return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{argument}: the {side} bound of shape {np.shape(value)} does not fit "
                    f"{'x0' if argument == 'x_bounds' else 'y'} of shape {x.shape}."
                ) from error

        return jax.tree.map(leaf, subtree)

    try:
        return jax.tree.map(spread, bound, x0, is_leaf=lambda v: v is None)
    except ValueError as error:
        if str(error).startswith(argument):
            raise
        raise ValueError(
            f"{argument}: the {side} bound must be a prefix of the pytree "
            f"{'x0' if argument == 'x_bounds' else 'y'} (a single number bounds everything): {error}"
        ) from error


def _check_bounds(x0: PyTree, lo: PyTree, hi: PyTree) -> None:
    for (path, x), low, high in zip(
        jax.tree_util.tree_leaves_with_path(x0), jax.tree.leaves(lo), jax.tree.leaves(hi), strict=True
    ):
        if not (concrete(x) and concrete(low) and concrete(high)):
            continue
        x, low, high = (np.asarray(part) for part in (x, low, high))
        if np.any(np.isnan(low) | np.isnan(high)):
            raise ValueError("x_bounds: bounds may be infinite (or None) but not NaN.")
        if not np.all(low <= high):
            raise ValueError("x_bounds: every lower bound must be at most its upper bound; are they swapped?")
        if not np.all((low <= x) & (x <= high)):
            raise ValueError(
                f"{path_name('x0', path)} = {x} lies outside x_bounds [{low}, {high}]. Move x0 inside, or widen the "
                "bounds."
            )
