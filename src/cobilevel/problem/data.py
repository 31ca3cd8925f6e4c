"""The kinds of data a user can hand over, each checked when it is made.

``Samples`` are joint draws of context and noise; ``Product`` pairs contexts with data that do not depend on them;
``Levels`` gives the two levels different data; ``Stream`` draws without end.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree, Shaped

from ..checks import whole
from .distributions import Distribution


def path_name(argument: str, path: tuple) -> str:
    """``eta['demand'][0]`` for a leaf of a pytree, to name it in an error."""
    return argument + jax.tree_util.keystr(path)


def _array(value: Any, name: str) -> Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}.") from error
    return array


def _arrays(tree: PyTree, argument: str) -> PyTree:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _array(leaf, path_name(argument, path)), tree)


def concrete(array: Any) -> bool:
    """Whether an array holds values now, rather than being traced."""
    return not isinstance(array, Tracer)


def _require_finite(array: Array, name: str) -> None:
    if not concrete(array) or not jnp.issubdtype(array.dtype, jnp.inexact):
        return
    bad = np.any(~np.isfinite(np.asarray(array)).reshape(len(array), -1), axis=1)
    if bad.any():
        raise ValueError(
            f"{name} holds NaN or infinity in {bad.sum()} of {len(bad)} rows, first in row {int(np.argmax(bad))}. "
            "Drop or repair these rows before solving."
        )


def _require_rows(tree: PyTree, argument: str, rows: int | None) -> int:
    """Checks that every leaf has the same, nonzero number of rows and finite values; returns that number."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = path_name(argument, path)
        if leaf.ndim == 0:
            raise ValueError(
                f"{name} is a scalar, but needs a leading axis over samples. A list of numbers is read as a pytree of "
                "scalars: wrap it in numpy.asarray."
            )
        if rows is not None and len(leaf) != rows:
            raise ValueError(
                f"{name} has {len(leaf)} rows where {rows} were expected. All arrays of one data set share their "
                "leading axis: one row a sample."
            )
        rows = len(leaf)
        if rows == 0:
            raise ValueError(f"{name} has no rows: at least one sample is needed.")
        _require_finite(leaf, name)
    if rows is None:
        raise ValueError(f"{argument} holds no array: at least one sample is needed.")
    return rows


class Samples(eqx.Module):
    """Joint samples of context and noise, one a row.

    **Arguments:**

    - `xi`: contexts, shape ``(n,)`` for an ``Interval``, ``(n, d)`` for a ``Box``.
    - `eta`: noise, any pytree of arrays with leading axis ``n`` (or ``None``).
    - `weights`: optional nonnegative weights, shape ``(n,)``; only their ratios matter.
    """

    xi: Shaped[Array, "n ..."] = eqx.field(converter=lambda v: _array(v, "Samples: xi"))
    eta: PyTree[Shaped[Array, "n ..."]] = eqx.field(converter=lambda v: _arrays(v, "Samples: eta"), default=None)
    weights: Float[Array, " n"] | None = eqx.field(
        converter=lambda v: None if v is None else _array(v, "Samples: weights"), default=None
    )

    def __check_init__(self):
        rows = _require_rows(self.xi, "Samples: xi", None)
        if jax.tree.leaves(self.eta):
            _require_rows(self.eta, "Samples: eta", rows)
        if self.weights is None:
            return
        if self.weights.shape != (rows,):
            raise ValueError(f"Samples: weights must have shape ({rows},), got {self.weights.shape}.")
        _require_finite(self.weights, "Samples: weights")
        if concrete(self.weights) and (bool(jnp.any(self.weights < 0)) or not float(jnp.sum(self.weights)) > 0):
            raise ValueError("Samples: weights must be nonnegative and not all zero.")

    def __len__(self) -> int:
        return len(self.xi)

    def rows(self, index: Any) -> "Samples":
        """The samples at the given positions."""
        return jax.tree.map(lambda a: a[index], self)

    def mean_one_weights(self) -> Float[Array, " n"]:
        """The weights scaled to mean 1, so that ``mean(w * f)`` estimates the expectation, on any batch."""
        if self.weights is None:
            dtype = self.xi.dtype if jnp.issubdtype(self.xi.dtype, jnp.floating) else float
            return jnp.ones(len(self), dtype)
        return self.weights / jnp.mean(self.weights)


class Product(eqx.Module):
    """Contexts independent of the data: every context meets every row of ``eta``, as in hyper-cleaning.

    **Arguments:**

    - `contexts`: an array of contexts, or a distribution on the domain (then methods that need a finite pool use its
      Gauss quadrature with ``nodes`` nodes per dimension, and methods that draw, draw fresh contexts).
    - `eta`: the data, any pytree of arrays with a common leading axis.
    """

    contexts: Any
    eta: PyTree[Shaped[Array, "n ..."]] = eqx.field(converter=lambda v: _arrays(v, "Product: eta"))
    nodes: int = eqx.field(static=True)

    def __init__(self, contexts: Any, eta: PyTree, nodes: int = 64):
        self.contexts = contexts if isinstance(contexts, Distribution) else _array(contexts, "Product: contexts")
        self.eta = eta
        self.nodes = nodes

    def __check_init__(self):
        if not isinstance(self.contexts, Distribution):
            _require_rows(self.contexts, "Product: contexts", None)
        _require_rows(self.eta, "Product: eta", None)
        whole("Product: nodes", self.nodes)

    @property
    def eta_rows(self) -> int:
        return len(jax.tree.leaves(self.eta)[0])

    def context_rule(self) -> Samples:
        """The contexts as a weighted finite set."""
        if isinstance(self.contexts, Distribution):
            nodes, weights = self.contexts.quadrature(self.nodes)
            return Samples(nodes, None, weights)
        return Samples(self.contexts)

    def pairs(self, context: Samples, i: Array, j: Array) -> Samples:
        """The pairs of context ``i`` and data row ``j``."""
        weights = None if context.weights is None else context.weights[i]
        return Samples(context.xi[i], jax.tree.map(lambda a: a[j], self.eta), weights)


class Stream(eqx.Module):
    """Endless data: ``draw(key, size)`` returns fresh ``Samples``; it must be traceable by JAX."""

    draw: Callable[[Array, int], Samples]

    def __check_init__(self):
        if not callable(self.draw):
            raise TypeError(f"Stream: draw must be a function draw(key, size) -> Samples, got {self.draw!r}.")
        drawn = eqx.filter_eval_shape(lambda key: self.draw(key, 3), jax.random.key(0))
        if not isinstance(drawn, Samples):
            raise TypeError(f"Stream: draw(key, size) must return Samples, got {type(drawn).__name__}.")
        if len(drawn) != 3:
            raise ValueError(f"Stream: draw(key, 3) returned {len(drawn)} samples instead of 3.")
        program = jax.make_jaxpr(lambda key: self.draw(key, 3))(jax.random.key(0)).jaxpr
        if not any(program.invars[0] in equation.invars for equation in program.eqns):
            raise ValueError(
                "Stream: draw(key, size) does not use its key, so every batch would be the same one: the function is "
                "traced once and compiled. Draw with jax.random and the key, not with NumPy's generators."
            )


Level = Samples | Product | Stream


class Levels(eqx.Module):
    """The two levels see different data: the upper objective gets the upper ``eta``, the lower one the lower."""

    upper: Level
    lower: Level

    def __check_init__(self):
        for name in ("upper", "lower"):
            if not isinstance(getattr(self, name), Level):
                raise TypeError(
                    f"Levels: {name} must be Samples, Product or Stream, got {type(getattr(self, name)).__name__}."
                )


Data = Samples | Product | Stream | Levels


def without_idle(data: Data) -> Data:
    """The data without rows of weight zero, which say nothing and must not be counted."""

    def busy(level: Level) -> Level:
        if not isinstance(level, Samples) or level.weights is None or bool(jnp.all(level.weights > 0)):
            return level
        return level.rows(np.flatnonzero(np.asarray(level.weights) > 0))

    return Levels(busy(data.upper), busy(data.lower)) if isinstance(data, Levels) else busy(data)


def levels(data: Data) -> tuple[Level, Level]:
    """What the upper and what the lower level sees."""
    if isinstance(data, Levels):
        return data.upper, data.lower
    if isinstance(data, Level):
        return data, data
    raise TypeError(
        f"samples must be Samples, Product, Levels or Stream, got {type(data).__name__}. Joint samples as arrays: "
        "cb.Samples(xi, eta)."
    )
