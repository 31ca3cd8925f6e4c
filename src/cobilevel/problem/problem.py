"""``Problem``: what the user states."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .arrays import concrete, float_tree, path_name
from .bounds import Bounds
from .domain import Domain


def _fill_bound(bound: PyTree, x0: PyTree, side: str, default: float) -> PyTree:
    """A prefix pytree of ``x``, spread over all its leaves; ``None`` means no bound."""

    def spread(value, subtree):
        value = default if value is None else value

        def leaf(x):
            try:
                return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"x_bounds: the {side} bound of shape {np.shape(value)} does not fit x0 of shape {x.shape}."
                ) from error

        return jax.tree.map(leaf, subtree)

    try:
        return jax.tree.map(spread, bound, x0, is_leaf=lambda v: v is None)
    except ValueError as error:
        if str(error).startswith("x_bounds"):
            raise
        raise ValueError(
            f"x_bounds: the {side} bound must be a prefix of the pytree x0 (a single number bounds everything): {error}"
        ) from error


class Problem(eqx.Module):
    r"""A contextual stochastic bilevel problem.

    $$\min_x \; F(x) = E\, f(x, y^\star(x, \xi), \xi, \eta), \qquad
    y^\star(x, \xi) = \arg\min_y E[g(x, y, \xi, \eta) \mid \xi].$$

    **Arguments:**

    - `upper`: ``f(x, y, xi, eta)``, a scalar for ONE sample; only its first derivatives are taken.
    - `lower`: ``g(x, y, xi, eta)``, a scalar for ONE sample, strongly convex in ``y``, differentiated twice.
    - `x0`, `y0`: starting points, any pytrees of float arrays. They fix the shapes of ``x`` and ``y``.
    - `domain`: where contexts live.
    - `x_bounds`: ``(lo, hi)``, each a prefix pytree of ``x``; ``None`` on a side means unbounded. There are no
      constraints on ``y``: penalise them in ``lower``, or reparametrise.
    - `conditional`: optional ``draw(key, xi, size) -> eta``, a sampler of ``eta`` given one context.
    - `lower_noise`: whether ``g`` depends on ``eta``; found by tracing when left at ``None``.
    """

    upper: Callable
    lower: Callable
    x0: PyTree[Array]
    y0: PyTree[Array]
    domain: Domain
    x_bounds: tuple[PyTree[Array], PyTree[Array]]
    conditional: Callable | None
    lower_noise: bool | None = eqx.field(static=True)

    def __init__(
        self,
        upper: Callable,
        lower: Callable,
        x0: PyTree,
        y0: PyTree,
        domain: Domain,
        x_bounds: tuple[PyTree, PyTree] | None = None,
        conditional: Callable | None = None,
        lower_noise: bool | None = None,
    ):
        for name, function, call in (
            ("upper", upper, "f(x, y, xi, eta)"),
            ("lower", lower, "g(x, y, xi, eta)"),
            ("conditional", conditional, "draw(key, xi, size)"),
        ):
            if function is None and name == "conditional":
                continue
            _check_callable(name, function, call)
        if not isinstance(domain, Domain):
            raise TypeError(
                f"domain must be Interval, Box or Finite, got {type(domain).__name__}. For scalar contexts in [0, 1]: "
                "cb.Interval(0.0, 1.0)."
            )
        self.upper, self.lower, self.conditional = upper, lower, conditional
        self.x0, self.y0 = float_tree(x0, "x0"), float_tree(y0, "y0")
        self.domain = domain
        self.lower_noise = lower_noise
        if x_bounds is None:
            x_bounds = (None, None)
        if not isinstance(x_bounds, tuple | list) or len(x_bounds) != 2:
            raise TypeError(f"x_bounds must be a pair (lo, hi), got {x_bounds!r}.")
        lo = _fill_bound(x_bounds[0], self.x0, "lower", -np.inf)
        hi = _fill_bound(x_bounds[1], self.x0, "upper", np.inf)
        self.x_bounds = (lo, hi)
        _check_bounds(self.x0, lo, hi)

    @property
    def bounds(self) -> Bounds:
        """The bounds on ``x``."""
        return Bounds(*self.x_bounds)

    @property
    def sizes(self) -> tuple[int, int]:
        """The dimensions of ``x`` and ``y``: how many numbers each holds."""
        count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
        return count(self.x0), count(self.y0)

    def at(self, x: PyTree) -> "Problem":
        """The same problem, starting from ``x``."""
        return eqx.tree_at(lambda p: p.x0, self, x)

    def astype(self, dtype: Any) -> "Problem":
        """The same problem with ``x0``, ``y0`` and the bounds in one floating dtype."""
        parts = (self.x0, self.y0, self.x_bounds)
        cast = jax.tree.map(lambda a: a.astype(dtype), parts)
        return eqx.tree_at(lambda p: (p.x0, p.y0, p.x_bounds), self, cast)


def _check_callable(name: str, function: Any, call: str) -> None:
    if not callable(function):
        raise TypeError(f"{name} must be a function {call}, got {type(function).__name__}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # builtins and some wrappers have no signature; the first call will tell
    count = call.count(",") + 1
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise TypeError(f"{name} must accept the {count} arguments of {call}, but takes {signature}.") from error


def _check_bounds(x0: PyTree, lo: PyTree, hi: PyTree) -> None:
    for (path, x), low, high in zip(
        jax.tree_util.tree_leaves_with_path(x0), jax.tree.leaves(lo), jax.tree.leaves(hi), strict=True
    ):
        if not (concrete(x) and concrete(low) and concrete(high)):
            continue
        if bool(jnp.any(jnp.isnan(low) | jnp.isnan(high))):
            raise ValueError("x_bounds: bounds may be infinite (or None) but not NaN.")
        if not bool(jnp.all(low <= high)):
            raise ValueError("x_bounds: every lower bound must be at most its upper bound; are they swapped?")
        if not bool(jnp.all((low <= x) & (x <= high))):
            raise ValueError(
                f"{path_name('x0', path)} = {np.asarray(x)} lies outside x_bounds [{np.asarray(low)}, "
                f"{np.asarray(high)}]. Move x0 inside, or widen the bounds."
            )
