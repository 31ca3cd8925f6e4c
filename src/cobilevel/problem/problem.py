"""``Problem``: what the user states."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..checks import positive
from ..precision import Held, cast
from .array_checks import each_leaf, float_tree
from .constraints import Bounds, Constraint, as_constraints
from .domain import Domain


class Problem(eqx.Module):
    r"""A contextual stochastic bilevel problem.

    $$\min_x \; F(x) = E\, f(x, y^\star(x, \xi), \xi, \eta), \qquad
    y^\star(x, \xi) = \arg\min_y E[g(x, y, \xi, \eta) \mid \xi].$$

    **Arguments:**

    - `upper`: ``f(x, y, xi, eta)``, a scalar for ONE sample; only its first derivatives are taken.
    - `lower`: ``g(x, y, xi, eta)``, a scalar for ONE sample, strongly convex in ``y``, differentiated twice.
    - `x0`, `y0`: starting points, any pytrees of float arrays. They fix the shapes of ``x`` and ``y``.
    - `domain`: where contexts live.
    - `x_bounds`: ``(lo, hi)``, each a prefix pytree of ``x``; ``None`` on a side means unbounded.
    - `conditional`: optional ``draw(key, xi, size) -> eta``, a sampler of ``eta`` given one context.
    - `lower_noise`: whether ``g`` depends on ``eta``; found by tracing when left at ``None``.
    - `constraints`: on ``y``, stated for one context: a list of ``Equalities``, ``Bounds``, ``Simplex``,
      ``Inequalities`` or functions ``h(x, y, xi)`` that are to be at most zero. The minimum over ``y`` is then taken
      under them, and ``g`` need be strongly convex along the equalities only.
    - `smoothing`: the weight of the barrier that stands for inequalities, relative to the lower objective's own scale:
      1e-4 when left out (1e-2 with solvers on batches). Less rounds corners of the policy less, and takes more
      functions.
    """

    upper: Callable
    lower: Callable
    x0: PyTree[Held]
    y0: PyTree[Held]
    domain: Domain
    x_bounds: tuple[PyTree[Held], PyTree[Held]]
    conditional: Callable | None
    lower_noise: bool | None = eqx.field(static=True)
    constraints: tuple[Constraint, ...]
    smoothing: Any

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
        constraints: Any = None,
        smoothing: Any = None,
    ):
        _check_callable("upper", upper, "f(x, y, xi, eta)")
        _check_callable("lower", lower, "g(x, y, xi, eta)")
        if conditional is not None:
            _check_callable("conditional", conditional, "draw(key, xi, size)")
        if not isinstance(domain, Domain):
            raise TypeError(
                f"domain must be Interval, Box, Finite, Periodic, Unbounded or Mixed, got {type(domain).__name__}. For "
                "scalar contexts in [0, 1]: cb.Interval(0.0, 1.0)."
            )
        if lower_noise is not None and not isinstance(lower_noise, bool | np.bool_):
            raise TypeError(
                f"lower_noise must be True, False, or None to have it found by tracing, got {lower_noise!r}."
            )
        self.upper, self.lower, self.conditional = upper, lower, conditional
        self.x0, self.y0 = float_tree(x0, "x0"), float_tree(y0, "y0")
        self.domain = domain
        self.lower_noise = None if lower_noise is None else bool(lower_noise)
        self.constraints = as_constraints(constraints)
        if smoothing is not None and not hasattr(smoothing, "weight"):
            positive("smoothing", smoothing if isinstance(smoothing, int | float | np.number) else None)
        self.smoothing = smoothing
        bounds = Bounds.of(x_bounds, self.x0)
        self.x_bounds = (bounds.lo, bounds.hi)

    @property
    def bounds(self) -> Bounds:
        """The bounds on ``x``."""
        return Bounds(*self.x_bounds)

    @property
    def sizes(self) -> tuple[int, int]:
        """The dimensions of ``x`` and ``y``: how many numbers each holds."""
        count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
        return count(self.x0), count(self.y0)

    def smoothed(self, smoothing: Any) -> "Problem":
        """The same problem with another barrier, where it has constraints that take one."""
        return eqx.tree_at(lambda p: p.smoothing, self, smoothing, is_leaf=lambda v: v is None)

    def at(self, x: PyTree) -> "Problem":
        """The same problem, starting from ``x``."""
        return eqx.tree_at(lambda p: p.x0, self, x)

    def astype(self, dtype: Any) -> "Problem":
        """The same problem with ``x0``, ``y0`` and the bounds in one floating dtype; raises where they do not fit."""
        x0, y0 = (each_leaf(lambda a, name: cast(a, dtype, name), getattr(self, end), end) for end in ("x0", "y0"))
        bounds = self.bounds.astype(dtype)
        return eqx.tree_at(lambda p: (p.x0, p.y0, p.x_bounds), self, (x0, y0, (bounds.lo, bounds.hi)))


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
