"""What a user states: the problem, constraints on ``y``, and bounds on ``x`` with what they leave of a gradient."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..ground import REMEDY, Held, arithmetic, cast, positive, put
from .domain import Domain
from .input_checks import concrete, each_leaf, float_tree, path_name, real_numbers

Right = Callable[[PyTree, Any], Any]  # b(x, xi)


class Constraint(eqx.Module):
    """A constraint on ``y``, stated for one context: equalities, which are eliminated, and slacks, which must not be
    negative."""

    def equalities(self, y0: PyTree) -> tuple[Float[np.ndarray, "m dy"], Right] | None:
        """``A`` and ``b(x, xi)`` of ``A y = b`` on the flattened ``y``, if there are any."""
        return None

    def slack(self, x: PyTree, y: PyTree, xi: Any) -> Float[Array, " m"] | None:
        """The numbers that must not be negative, if there are any."""
        return None

    def names(self, y0: PyTree, count: int) -> list[str]:
        """Each slack in words, for messages."""
        return []


def entry_names(y0: PyTree[Held]) -> list[str]:
    """``y[0]``, ``y['flow'][1]``, ...: the numbers of ``y``, flattened."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(y0):
        places = np.ndindex(leaf.shape)
        names += [path_name("y", path) + (str(list(place)) if place else "") for place in places]
    return names


class Equalities(Constraint):
    """``A y = b``, on the flattened ``y``; `A` is a matrix, `b` a number, an array, or a function ``b(x, xi)``.

    Eliminated, not penalised: the policy satisfies them at every context up to rounding, and the lower level needs to
    be strongly convex along ``A y = 0`` only.

    **Example:**

    >>> lower = lambda x, y, xi, eta: jnp.sum((y - xi) ** 2)
    >>> limits = [cb.Equalities(np.ones((1, 2)), 1.0)]
    >>> problem = cb.Problem(lower, lower, 0.0, jnp.zeros(2), cb.Interval(0.0, 1.0), constraints=limits)
    >>> solution = cb.solve(problem, cb.Samples(np.linspace(0.0, 1.0, 50)), basis=cb.Chebyshev(3))
    >>> float(solution.policy(np.array(0.3)).sum().round(6))
    1.0
    """

    A: Any = eqx.field(converter=lambda v: real_numbers(v, "Equalities: A"))
    b: Any = eqx.field(default=0.0, converter=lambda right: _owned(right))

    def __check_init__(self):
        if self.A.ndim != 2 or not self.A.size:
            raise ValueError(
                f"Equalities: A must be a matrix with one row per equality, got shape {self.A.shape}. For a single "
                "equality write A[None, :]."
            )
        empty = ~np.any(self.A != 0, axis=1)
        if empty.any():
            raise ValueError(f"Equalities: row {int(np.argmax(empty))} of A is zero. Drop it.")
        if callable(self.b):
            _check_callable("Equalities: b", self.b, "b(x, xi)")
        else:
            real_numbers(self.b, "Equalities: b")

    def equalities(self, y0):
        entries = entry_names(y0)
        if self.A.shape[1] != len(entries):
            few = ", ".join(entries if len(entries) <= 4 else [*entries[:3], "..."])
            raise ValueError(
                f"Equalities: A has {self.A.shape[1]} columns, but y holds {len(entries)} numbers ({few})."
            )
        b, rows, sizes = self.b, len(self.A), np.linalg.norm(self.A, axis=1)

        def right(x, xi):
            here = jnp.result_type(float)
            value = jnp.asarray(b(x, xi) if callable(b) else b, here)
            if value.shape not in ((), (rows,)):
                raise ValueError(
                    f"Equalities: b must have shape ({rows},), one number per row of A, got {value.shape}."
                )
            return jnp.broadcast_to(value, (rows,)) / jnp.asarray(sizes, here)

        return self.A / sizes[:, None], right


class Simplex(Constraint):
    """``y >= 0`` and ``sum(y) = total``, over all entries of ``y``; `total` is a number, or a function of ``xi``.

    **Arguments:**

    - `total`: what the entries add up to.

    **Example:**

    >>> lower = lambda x, y, xi, eta: jnp.sum((y - xi) ** 2)
    >>> limits = [cb.Simplex()]
    >>> problem = cb.Problem(lower, lower, 0.0, jnp.ones(2) / 2, cb.Interval(0.0, 1.0), constraints=limits)
    >>> solution = cb.solve(problem, cb.Samples(np.linspace(0.0, 1.0, 50)), basis=cb.Chebyshev(3))
    >>> float(solution.policy(np.array(0.3)).sum().round(6))
    1.0
    """

    total: Any = 1.0

    def __check_init__(self):
        if callable(self.total):
            _check_callable("Simplex: total", self.total, "total(xi)")
            return
        if real_numbers(self.total, "Simplex: total").shape:
            raise ValueError(f"Simplex: total must be one number, or a function of xi; got {self.total!r}.")
        if not self.total > 0:
            raise ValueError(f"Simplex: total must be positive, since all of y is at least 0; got {self.total!r}.")

    def equalities(self, y0):
        total, size = self.total, len(entry_names(y0))
        right = lambda x, xi: jnp.reshape(jnp.asarray(total(xi) if callable(total) else total), (1,)) / size**0.5
        return np.full((1, size), size**-0.5), right

    def slack(self, x, y, xi):
        return ravel_pytree(y)[0]

    def names(self, y0, count):
        return [f"{entry} >= 0" for entry in entry_names(y0)]


class Inequalities(Constraint):
    """``h(x, y, xi) <= 0`` for every entry that `h` returns, each convex in ``y``.

    **Example:**

    >>> lower = lambda x, y, xi, eta: jnp.sum((y - xi) ** 2)
    >>> limits = [cb.Inequalities(lambda x, y, xi: y - 2.0)]
    >>> problem = cb.Problem(lower, lower, 0.0, 0.0, cb.Interval(0.0, 1.0), constraints=limits)
    >>> solution = cb.solve(problem, cb.Samples(np.linspace(0.0, 1.0, 50)), basis=cb.Chebyshev(3))
    >>> bool(solution.policy(np.array(0.5)) < 2)
    True
    """

    h: Callable

    def __check_init__(self):
        _check_callable("Inequalities", self.h, "h(x, y, xi)")

    def slack(self, x, y, xi):
        slack = -jnp.ravel(jnp.asarray(self.h(x, y, xi)))
        if not slack.size:
            raise ValueError("Inequalities: h(x, y, xi) returns an empty array. Return what must be at most 0.")
        return slack

    def names(self, y0, count):
        name = getattr(self.h, "__name__", "h")
        name = "h" if name == "<lambda>" else name
        return [f"{name}(x, y, xi)[{k}] <= 0" if count > 1 else f"{name}(x, y, xi) <= 0" for k in range(count)]


class Bounds(Constraint):
    """``lo <= y <= hi``, as a constraint on ``y``.

    `lo` and `hi` are numbers, arrays (prefix pytrees of ``y``) or functions of ``xi``; ``None`` or infinity where there
    is no bound.

    The library keeps bounds on ``x`` in the same form, each shaped like ``x``, so that points, gradients and bounds
    are pytrees of the same structure.

    **Example:**

    >>> lower = lambda x, y, xi, eta: jnp.sum((y - xi) ** 2)
    >>> limits = [cb.Bounds(-0.5, 1.5)]
    >>> problem = cb.Problem(lower, lower, 0.0, 0.2, cb.Interval(0.0, 1.0), constraints=limits)
    >>> solution = cb.solve(problem, cb.Samples(np.linspace(0.0, 1.0, 50)), basis=cb.Chebyshev(3))
    >>> solution.feasibility is not None
    True
    """

    lo: Any = eqx.field(default=None, converter=lambda end: _owned(end))
    hi: Any = eqx.field(default=None, converter=lambda end: _owned(end))

    def _ends(self, y: PyTree, xi: Any) -> list[tuple[int, Any, np.ndarray]]:
        """Each side that bounds something: its sign, its value on the flattened ``y``, and which entries it bounds."""
        ends = []
        for side, sign, end in (("lower", 1, self.lo), ("upper", -1, self.hi)):
            if callable(end):
                given, none = end(xi), lambda value: value is None
                if any(map(none, jax.tree.leaves(given, is_leaf=none))):
                    raise ValueError(f"Bounds: the {side} bound returns None; where there is none, return -inf or inf.")
                filled = ravel_pytree(_fill_bound(given, y, side, "Bounds"))[0]
                some = np.ones(len(filled), bool)
            else:
                shapes = jax.tree.map(lambda a: np.empty(a.shape, a.dtype), y)
                leaves = jax.tree.leaves(_fill_bound(end, shapes, side, "Bounds"))
                filled = np.concatenate([leaf.ravel() for leaf in leaves])
                some = np.isfinite(filled)
            ends += [(sign, filled, some)] if some.any() else []
        return ends

    def ends(self, y: PyTree, xi: Any) -> tuple[Array, Array]:
        """Both ends at one context, on the flattened ``y``; infinite where there is no bound."""
        flat, known = ravel_pytree(y)[0], {sign: filled for sign, filled, _ in self._ends(y, xi)}
        lo, hi = (jnp.asarray(known.get(sign, -sign * np.inf), flat.dtype) for sign in (1, -1))
        return jnp.broadcast_to(lo, flat.shape), jnp.broadcast_to(hi, flat.shape)

    def slack(self, x, y, xi):
        flat = ravel_pytree(y)[0]
        gaps = [(sign * (flat - end))[some] for sign, end, some in self._ends(y, xi)]
        return jnp.concatenate(gaps) if gaps else None

    def names(self, y0, count):
        entries, names = entry_names(y0), []
        for one, bound, function in ((Bounds(lo=self.lo), ">=", "lo(xi)"), (Bounds(hi=self.hi), "<=", "hi(xi)")):
            if callable(one.lo) or callable(one.hi):
                names += [f"{entry} {bound} {function}" for entry in entries]
                continue
            for _, filled, some in one._ends(y0, None):
                rows = zip(entries, filled, some, strict=True)
                names += [f"{entry} {bound} {value:.6g}" for entry, value, there in rows if there]
        return names

    @staticmethod
    def of(pair: Any, x0: PyTree) -> "Bounds":
        """From a user's ``(lo, hi)``: prefix pytrees of ``x``, ``None`` for no bound. ``x0`` must lie within."""
        pair = (None, None) if pair is None else pair
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"x_bounds must be a pair (lo, hi), got {pair!r}.")
        bounds = Bounds(_fill_bound(pair[0], x0, "lower", "x_bounds"), _fill_bound(pair[1], x0, "upper", "x_bounds"))
        for path, x, low, high in bounds._with(x0):
            if np.any(np.isnan(low) | np.isnan(high)):
                raise ValueError("x_bounds: bounds may be infinite (or None) but not NaN.")
            if not np.all(low <= high):
                raise ValueError("x_bounds: every lower bound must be at most its upper bound; are they swapped?")
            if not np.all((low <= x) & (x <= high)):
                raise ValueError(
                    f"{path_name('x0', path)} = {x} lies outside x_bounds [{low}, {high}]. Move x0 inside, or widen "
                    "the bounds."
                )
        return bounds

    def _with(self, x: PyTree) -> list[tuple[tuple, np.ndarray, np.ndarray, np.ndarray]]:
        """Of each leaf of ``x`` that holds values now: its path, itself, and its bounds."""
        rows = zip(jax.tree_util.tree_leaves_with_path(x), *map(jax.tree.leaves, (self.lo, self.hi)), strict=True)
        return [
            (path, np.asarray(leaf), np.asarray(lo), np.asarray(hi))
            for (path, leaf), lo, hi in rows
            if all(map(concrete, (leaf, lo, hi)))
        ]

    def astype(self, dtype: Any) -> "Bounds":
        """The same bounds in a floating dtype, infinite if too large for it; raises if two round to one number."""
        with np.errstate(over="ignore"):
            cast = Bounds(*jax.tree.map(lambda a: jnp.asarray(a, dtype), (self.lo, self.hi)))
            for path, low, _, high in self._with(self.lo):
                lost = (low < high) & (low.astype(dtype) >= high.astype(dtype))
                if lost.any():
                    pair = f"{low[lost].flat[0]} and {high[lost].flat[0]}"
                    raise ValueError(
                        f"{path_name('x_bounds', path)}: in {np.dtype(dtype).name} {pair} become one number. {REMEDY}"
                    )
        return cast

    def project(self, x: PyTree) -> PyTree:
        """The nearest point within the bounds."""
        return put(jax.tree.map(arithmetic(x, self.lo, self.hi).clip, x, self.lo, self.hi))

    def free(self, x: PyTree, gradient: PyTree) -> PyTree:
        """Which coordinates may move along the negative gradient: not those it pushes past a bound, nor fixed ones."""
        xp = arithmetic(x, gradient, self.lo, self.hi)

        def leaf(*arrays):
            x, g, lo, hi = (xp.asarray(a) for a in arrays)
            return ~(((x <= lo) & (g > 0)) | ((x >= hi) & (g < 0)) | (lo == hi))

        return jax.tree.map(leaf, x, gradient, self.lo, self.hi)

    def projected_gradient(self, x: PyTree, gradient: PyTree, length: Any = 1) -> PyTree:
        """``(x - P(x - length * gradient)) / length``: zero exactly at first-order points of the bounded problem.

        Not computed as that difference, which would lose small gradients to rounding. Steps are compared with the
        distance to the bound: added to a large ``x``, a short step would vanish and never reach the bound.
        """

        def leaf(x, g, lo, hi):
            step = jnp.asarray(length, x.dtype)
            safe = jnp.where(step > 0, step, 1)
            return jnp.where(step * g > x - lo, (x - lo) / safe, jnp.where(-step * g > hi - x, (x - hi) / safe, g))

        return jax.tree.map(leaf, x, gradient, self.lo, self.hi)


def _owned(tree: PyTree) -> PyTree:
    """The same, with arrays that no one else can change."""
    return jax.tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


def _fill_bound(bound: PyTree, point: PyTree, side: str, argument: str) -> PyTree:
    """A prefix pytree of a point, spread over all its leaves; ``None`` means no bound."""
    name, none = "x0" if argument == "x_bounds" else "y", -np.inf if side == "lower" else np.inf

    def spread(value, leaf):
        try:
            if not isinstance(leaf, np.ndarray) and not (concrete(value) and concrete(leaf)):
                return jnp.broadcast_to(jnp.asarray(value, leaf.dtype), leaf.shape)
            filled = np.broadcast_to(np.asarray(value, leaf.dtype), leaf.shape).copy()
            return filled if isinstance(leaf, np.ndarray) else put(filled)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{argument}: the {side} bound of shape {np.shape(value)} does not fit {name} of shape {leaf.shape}."
            ) from error

    below = lambda value, subtree: jax.tree.map(lambda leaf: spread(none if value is None else value, leaf), subtree)
    try:
        return jax.tree.map(below, bound, point, is_leaf=lambda v: v is None)
    except ValueError as error:
        if str(error).startswith(argument):
            raise
        raise ValueError(
            f"{argument}: the {side} bound must be a prefix of the pytree {name} (a single number bounds everything): "
            f"{error}"
        ) from error


def as_constraints(given: Any) -> tuple[Constraint, ...]:
    """The constraints a user passes: one or several; functions are inequalities."""
    if given is None:
        return ()
    constraints = []
    for one in given if isinstance(given, Sequence) and not isinstance(given, str) else (given,):
        if not isinstance(one, Constraint) and (isinstance(one, type) or not callable(one)):
            raise TypeError(
                "constraints must be a list of cb.Equalities, cb.Bounds, cb.Simplex, cb.Inequalities or functions "
                f"h(x, y, xi) that must be at most zero, got {one!r}."
            )
        if isinstance(one, Bounds):
            _check_sides(one)
        constraints.append(one if isinstance(one, Constraint) else Inequalities(one))
    return tuple(constraints)


def _check_sides(bounds: Bounds) -> None:
    """Raises if bounds on ``y`` bound nothing, cannot be met, or are not numbers."""
    if bounds.lo is None and bounds.hi is None:
        raise ValueError("constraints: a Bounds without lo and hi bounds nothing. Drop it, or give lo or hi.")
    for name, side, impossible in (("lo", bounds.lo, np.inf), ("hi", bounds.hi, -np.inf)):
        if callable(side):
            _check_callable(f"Bounds: {name}", side, f"{name}(xi)")
        for leaf in [] if callable(side) else jax.tree.leaves(side):
            values = np.asarray(leaf)
            if values.dtype.kind not in "fiu" or np.any(np.isnan(values)) or np.any(values == impossible):
                raise ValueError(
                    f"constraints: {name} of Bounds must hold numbers that y can meet ({-impossible} for no bound), "
                    f"got {leaf!r}."
                )
    both = [np.asarray(side) for side in (bounds.lo, bounds.hi) if isinstance(side, int | float | np.ndarray)]
    if len(both) == 2 and np.any(both[0] > both[1]):
        raise ValueError(
            f"constraints: lo of Bounds lies above hi ({bounds.lo!r} and {bounds.hi!r}) at every context; are they "
            "swapped?"
        )


class Problem(eqx.Module):
    r"""A contextual stochastic bilevel problem.

    $$\min_x \; F(x) = E\, f(x, y^\star(x, \xi), \xi, \eta), \qquad
    y^\star(x, \xi) = \arg\min_y E[g(x, y, \xi, \eta) \mid \xi].$$

    **Arguments:**

    - `upper`: ``f(x, y, xi, eta)``, a scalar for ONE sample; only its first derivatives are taken.
    - `lower`: ``g(x, y, xi, eta)``, a scalar for ONE sample, strongly convex in ``y``, differentiated twice.
    - `x0`, `y0`: starting points, any pytrees of float arrays. They fix the shapes of ``x`` and ``y``. ``x0`` may be a
      module, such as ``eqx.nn.MLP``: its functions are kept, and ``solution.x`` is a module of the same kind.
    - `domain`: where contexts live.
    - `x_bounds`: ``(lo, hi)``, each a prefix pytree of ``x``; ``None`` on a side means unbounded.
    - `conditional`: optional ``draw(key, xi, size) -> eta``, a sampler of ``eta`` given one context.
    - `lower_noise`: whether ``g`` depends on ``eta``; by default, found by tracing.
    - `constraints`: on ``y``, stated for one context: a list of ``Equalities``, ``Bounds``, ``Simplex``,
      ``Inequalities`` or functions ``h(x, y, xi)`` that must be at most zero. The lower level then minimises subject to
      them, and ``g`` needs to be strongly convex along the equalities only.
    - `smoothing`: the weight of the barrier that replaces inequalities, relative to the scale of the lower objective;
      by default 1e-4 (1e-2 with solvers on batches). A smaller weight rounds corners of the policy less, but the basis
      then needs more functions.

    **Raises:** ``ValueError`` or ``TypeError`` if shapes, bounds or functions do not fit; the message names the
    argument.

    **Example:**

    >>> def upper(x, y, xi, eta):
    ...     return (y - eta) ** 2 + 0.1 * x**2
    ...
    >>> def lower(x, y, xi, eta):
    ...     return (y - x * xi) ** 2
    ...
    >>> problem = cb.Problem(upper, lower, x0=0.0, y0=0.0, domain=cb.Interval(0.0, 1.0), x_bounds=(-5.0, 5.0))
    >>> xi = np.linspace(0.0, 1.0, 100)
    >>> round(float(cb.solve(problem, cb.Samples(xi, 2 * xi)).x), 2)
    1.54
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
            raise TypeError(f"lower_noise must be True, False, or None (found by tracing), got {lower_noise!r}.")
        self.upper, self.lower, self.conditional = upper, lower, conditional
        self.x0, self.y0 = float_tree(x0, "x0", functions=True), float_tree(y0, "y0")
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
        """The same problem with another smoothing, if it has constraints that need a barrier."""
        return eqx.tree_at(lambda p: p.smoothing, self, smoothing, is_leaf=lambda v: v is None)

    def at(self, x: PyTree) -> "Problem":
        """The same problem, starting from ``x``."""
        return eqx.tree_at(lambda p: p.x0, self, x)

    def astype(self, dtype: Any) -> "Problem":
        """The same problem with ``x0``, ``y0`` and the bounds in one floating dtype; raises if they do not fit."""
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
        plural = "s"[: count != 1]
        raise TypeError(f"{name} must accept the {count} argument{plural} of {call}, but takes {signature}.") from error
