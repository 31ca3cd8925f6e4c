"""``Problem``: what the user states, and the checks that it fits the data."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from .data import Data, Level, Product, Samples, Stream, concrete, levels, path_name
from .domain import Distribution, Domain, Finite


def _float_leaf(leaf: Any, name: str) -> Array:
    try:
        array = jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a float array, got {type(leaf).__name__}.") from error
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{name} must be a float array, got dtype {array.dtype}. Derivatives are taken with respect to it: write "
            "1.0 for 1, or convert with .astype(float)."
        )
    if array.dtype.itemsize < 4:
        raise TypeError(f"{name} has dtype {array.dtype}, too coarse to solve in: use float32 or float64.")
    if array.size == 0:
        raise ValueError(f"{name} is empty, shape {array.shape}: give a starting point with at least one number.")
    if concrete(array) and not bool(jnp.all(jnp.isfinite(array))):
        raise ValueError(f"{name} holds NaN or infinity; give a finite starting point.")
    return jnp.asarray(array, array.dtype)  # drops weak types, so that loops keep their dtype


def _float_tree(tree: PyTree, argument: str) -> PyTree:
    if not jax.tree.leaves(tree):
        raise ValueError(f"{argument} holds no array: give a starting point as a float array or a pytree of them.")
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _float_leaf(leaf, path_name(argument, path)), tree)


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
        self.x0, self.y0 = _float_tree(x0, "x0"), _float_tree(y0, "y0")
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


def example(level: Level, rows: int = 1) -> Samples:
    """A few samples of a level, to look at shapes and dtypes."""
    if isinstance(level, Stream):
        return level.draw(jax.random.key(0), rows)
    if isinstance(level, Product):
        context = level.context_rule()
        index = jnp.arange(rows)
        return Samples(context.xi[index % len(context)], jax.tree.map(lambda a: a[index % level.eta_rows], level.eta))
    return level.rows(jnp.arange(rows) % len(level))


def one(sample: Samples) -> tuple[Array, PyTree]:
    """Context and noise of the first row."""
    return sample.xi[0], jax.tree.map(lambda a: a[0], sample.eta)


def working_dtype(problem: Problem, data: Data) -> Any:
    """The floating dtype of a solve: what ``x0``, ``y0`` and the samples promote to."""
    rows = [example(level) for level in levels(data)]
    leaves = jax.tree.leaves((problem.x0, problem.y0, [(row.xi, row.eta) for row in rows]))
    return jnp.result_type(*[leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)])


def check(problem: Problem, data: Data) -> None:
    """Raises, naming the argument and the remedy, where problem and data do not fit together."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a cb.Problem, got {type(problem).__name__}.")
    for name, function, level in zip(("upper", "lower"), (problem.upper, problem.lower), levels(data), strict=True):
        _check_contexts(problem.domain, level, "samples" if not hasattr(data, "upper") else f"samples.{name}")
        _check_objective(problem, name, function, level)
    lower_depends_on_noise(problem, data)


def _check_contexts(domain: Domain, level: Level, where: str) -> None:
    if isinstance(level, Product):
        xi, where = level.context_rule().xi, f"{where}.contexts"
    elif isinstance(level, Stream):
        xi, where = example(level, 1024).xi, f"{where}.draw(...).xi"
    else:
        xi, where = level.xi, f"{where}.xi"
    if xi.shape[1:] != domain.shape:
        wanted = "(n,)" if not domain.shape else f"(n, {domain.dimension})"
        raise ValueError(f"{where} has shape {xi.shape}, but contexts of {domain!r} are given as {wanted}.")
    if not isinstance(domain, Finite) and not jnp.issubdtype(xi.dtype, jnp.floating):
        raise TypeError(
            f"{where} has dtype {xi.dtype}, but contexts of {domain!r} are floats: convert with .astype(float), or use "
            "cb.Finite(values) if they are categories."
        )
    if isinstance(domain, Finite):
        order = np.asarray(domain.index(jnp.asarray(domain.values)))
        if not np.array_equal(order, np.arange(len(order))):
            raise ValueError(
                "domain: some values of Finite are too close to be told apart in this precision. Number them 0, 1, 2, "
                "or set jax.config.update('jax_enable_x64', True)."
            )
    inside = np.asarray(domain.contains(xi))
    if not inside.all():
        first = int(np.argmin(inside))
        hint = "Add the missing values to Finite" if isinstance(domain, Finite) else "Widen the domain"
        raise ValueError(
            f"{where}: {np.sum(~inside)} of {len(inside)} contexts lie outside {domain!r}, first in row {first} "
            f"({np.asarray(xi[first])}). {hint}, or drop these rows."
        )
    if isinstance(level, Product) and isinstance(level.contexts, Distribution):
        corners = level.contexts.domain.place(jnp.outer(jnp.array([-1.0, 1.0]), jnp.ones(domain.dimension)))
        if not bool(jnp.all(domain.contains(corners))):
            raise ValueError(f"{where}: the distribution lives on {level.contexts.domain!r}, not inside {domain!r}.")


def _check_objective(problem: Problem, name: str, function: Callable, level: Level) -> None:
    xi, eta = one(example(level))
    try:
        out = eqx.filter_eval_shape(function, problem.x0, problem.y0, xi, eta)
    except Exception as error:
        shapes = jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", (problem.x0, problem.y0, xi, eta))
        hint = ""
        if isinstance(error, jax.errors.JAXTypeError):
            hint = " JAX traces the function: use jax.numpy instead of numpy, and jnp.where instead of if."
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise ValueError(
            f"{name}(x, y, xi, eta) fails on one sample with x, y, xi, eta = {shapes}: {reason}.{hint}"
        ) from error
    if not hasattr(out, "shape") or out.shape != ():
        shape = getattr(out, "shape", type(out).__name__)
        raise ValueError(
            f"{name}(x, y, xi, eta) must return a scalar for one sample, got {shape}. Sum or average inside it; the "
            "library does the averaging over samples."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(f"{name}(x, y, xi, eta) must return a float, got dtype {out.dtype}.")


def _uses_last_argument(function: Callable, *args: Any) -> bool:
    """Whether the output can depend on the last argument, by walking the traced program backwards.

    Conservative: an equation that is needed needs all its inputs.
    """
    last = len(jax.tree.leaves(args[-1]))
    if not last:
        return False
    arrays, static = eqx.partition(function, eqx.is_array)
    jaxpr = jax.make_jaxpr(lambda dynamic, *xs: eqx.combine(dynamic, static)(*xs))(arrays, *args).jaxpr
    needed = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            needed.update(var for var in equation.invars if not isinstance(var, Literal))
    return bool(needed.intersection(jaxpr.invars[-last:]))


def lower_depends_on_noise(problem: Problem, data: Data) -> bool:
    """Whether ``g`` depends on ``eta``: by the user's word (checked when it is ``False``), else by tracing."""
    if problem.lower_noise is True:
        return True
    level = levels(data)[1]
    traced = _uses_last_argument(problem.lower, problem.x0, problem.y0, *one(example(level)))
    if traced and problem.lower_noise is False:
        _check_noise_free(problem, level)
        return False
    return traced


def upper_depends_on_noise(problem: Problem, level: Level) -> bool:
    """Whether ``f`` can depend on ``eta``, by tracing."""
    return _uses_last_argument(problem.upper, problem.x0, problem.y0, *one(example(level)))


def _check_noise_free(problem: Problem, level: Level) -> None:
    """Compares the gradient of ``g`` in ``y`` under swapped noise; raises when it moves."""
    rows = example(level, 64)
    swapped = jax.tree.map(lambda a: jnp.roll(a, 1, axis=0), rows.eta)

    @jax.vmap
    def gradients(key, xi, eta, other):
        nudge = lambda a: a + (1 + jnp.abs(a)) * jax.random.normal(key, a.shape, a.dtype)
        y = jax.tree.map(nudge, problem.y0)  # not y0 itself, where a term such as eta * y^2 would hide
        slope = jax.grad(lambda y, e: problem.lower(problem.x0, y, xi, e))
        return slope(y, eta), slope(y, other)

    here, there = gradients(jax.random.split(jax.random.key(0), len(rows)), rows.xi, rows.eta, swapped)
    gaps = [float(jnp.max(jnp.abs(a - b))) for a, b in zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True)]
    scale = max(float(jnp.max(jnp.abs(a))) for a in jax.tree.leaves(here))
    eps = jnp.finfo(jax.tree.leaves(here)[0].dtype).eps
    if max(gaps) > 1e3 * eps * (scale + eps):
        raise ValueError(
            f"lower_noise=False, but the gradient of lower in y changes by {max(gaps):.3g} when eta is swapped between "
            "samples. Leave lower_noise at None, or remove eta from lower."
        )
