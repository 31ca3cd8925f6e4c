"""Compiled programs, and how long the compiler may take over them.

XLA takes seconds over a program that then runs for milliseconds. Where the arrays are small, most of its optimisations
gain less than they cost: such programs are compiled with them left out, in about a quarter of the time.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS_AT_MOST = 2_000_000  # of a small program: it is done before a better one would be compiled
_QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@cache
def _quick_options() -> dict[str, Any] | None:
    """The options, where this compiler knows them."""
    try:
        jax.jit(lambda: 0.0, compiler_options=_QUICKLY)()
    except Exception:  # an option that another version does not have, under whatever error it reports that
        return None
    return _QUICKLY


def _small(arguments: Any) -> bool:
    """Whether there is little to compute with, on a processor, and outside of other programs."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(arguments) if eqx.is_array(leaf)}.values()  # each once
    if any(isinstance(leaf, Tracer) for leaf in leaves) or jax.default_backend() != "cpu":
        return False
    return sum(leaf.size for leaf in leaves) <= _NUMBERS_AT_MOST


def for_numpy(*arrays: Any) -> bool:
    """Whether small things are better done by NumPy with these arrays: values that lie in the processor's memory.

    An operation of ``jnp`` outside of a program is compiled as a program of its own, for every shape anew.
    """
    if any(isinstance(array, Tracer) or not hasattr(array, "dtype") for array in arrays):
        return False
    plain = all(not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended) for array in arrays)
    return plain and jax.default_backend() == "cpu"


def rows_at(array: Any, index: Any) -> Any:
    """An array at some positions of its leading axis, given as a slice or a list of them."""
    if isinstance(index, slice):
        return jnp.asarray(np.asarray(array)[index]) if for_numpy(array) else array[index]
    return jnp.asarray(np.asarray(array)[np.asarray(index)]) if for_numpy(array, index) else array[index]


def program(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function for each shape of its arguments: quickly for small ones, with all optimisations for others.

    Arrays are traced, all else is static.
    """
    return _compiled(function, lambda *args, **kwargs: False)


def program_of_steps(many: Callable[..., bool]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same, with all optimisations also for small arguments where `many` is true of them."""
    return lambda function: _compiled(function, many)


def _compiled(function: Callable[P, R], many: Callable[..., bool]) -> Callable[P, R]:
    thorough = eqx.filter_jit(function)

    @cache
    def quick() -> Callable[P, R]:
        options: dict[str, Any] = {"compiler_options": _quick_options()}
        return eqx.filter_jit(function, **options)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hurry = not many(*args, **kwargs) and _small((args, kwargs))
        return (quick() if hurry else thorough)(*args, **kwargs)

    return call
