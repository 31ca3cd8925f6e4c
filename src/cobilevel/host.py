"""Arithmetic on the host: in NumPy where arrays hold values now, without a program for each shape; else in JAX."""

from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .programs import is_spread, program, put

P = ParamSpec("P")
R = TypeVar("R")


def module_of(array: Any) -> Any:
    """``jax.numpy`` for arrays of JAX, NumPy for its own and for plain numbers."""
    return jnp if isinstance(array, jax.Array) else np


class plain:
    """A method that is bound as plain functions are.

    Equinox makes a module of each bound method, which takes longer than the arithmetic on a thousand numbers does.
    """

    def __init__(self, function: Callable):
        update_wrapper(self, function)
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function if instance is None else partial(self.function, instance)


def on_host(function: Callable[P, R]) -> Callable[P, R]:
    """A method of arrays that is written for both: it gets NumPy's where all hold values in this process.

    It returns JAX arrays where some came in. Where arrays are traced, or spread over devices, it gets JAX's.
    """
    return plain(_on_host(function, function))  # pyright: ignore[reportReturnType]


def on_host_or_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function, with a program of its own where arrays are traced or spread."""
    return _on_host(function, program(function))


def _on_host(function: Callable[P, R], elsewhere: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(isinstance(leaf, Tracer) or is_spread(leaf) for leaf in leaves):
            return elsewhere(*[jnp.asarray(a) if isinstance(a, np.ndarray | np.generic | float) else a for a in args])
        foreign = any(isinstance(leaf, jax.Array) for leaf in leaves)
        with np.errstate(all="ignore"):  # NaN and infinity are answers here
            found = function(*(jax.tree.map(_as_numpy, args) if foreign else args))
        return put(found) if foreign else found

    return call


def _as_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
