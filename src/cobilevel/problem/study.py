"""problem.study."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from .data import Data, Level, Product, Samples, Stream, levels
from .distributions import Distribution
from .domain import Domain, Finite
from .problem import Problem


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
