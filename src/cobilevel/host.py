"""Arithmetic on the host: in NumPy where arrays hold values now, without a program for each shape; else in JAX."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial, update_wrapper, wraps
from threading import current_thread
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .programs import is_spread, program, put

Params = ParamSpec("Params")
Returned = TypeVar("Returned")

_THREADS = "cobilevel"  # begins the names of threads that share work
_FEW = 4  # items that are not worth sharing
_ALIGNED = 64  # bytes: where arrays begin that JAX does not copy


def module_of(array: Any) -> Any:
    """``jax.numpy`` for arrays of JAX, NumPy for its own and for plain numbers."""
    return jnp if isinstance(array, jax.Array) else np


def empty_table(rows: int, columns: int, dtype: Any) -> np.ndarray:
    """A table to be filled that JAX takes as it is: without a copy, since it begins where JAX's own arrays would."""
    size = rows * columns * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + size].view(dtype).reshape(rows, columns)


class _Plain:
    """What a class holds in place of a method that is bound without Equinox."""

    def __init__(self, function: Callable):
        update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function if instance is None else partial(self.function, instance)


def plain(method: Callable[Params, Returned]) -> Callable[Params, Returned]:
    """A method bound without Equinox, which makes a module of each: that takes longer than the arithmetic on a thousand
    numbers."""
    return _Plain(method)


def on_host(function: Callable[Params, Returned]) -> Callable[Params, Returned]:
    """A method of arrays that is written for both: it gets NumPy's where all hold values in this process.

    It returns JAX arrays where some came in. Where arrays are traced, or spread over devices, it gets JAX's.
    """
    return plain(_on_host(function, function))


def on_host_or_compiled(function: Callable[Params, Returned]) -> Callable[Params, Returned]:
    """The same for a function, with a program of its own where arrays are traced or spread."""
    compiled = program(function)
    return _on_host(function, lambda *args: compiled(*put(args)))  # NumPy's would be cut by the precision of the caller


def _on_host(function: Callable[Params, Returned], elsewhere: Callable[Params, Returned]) -> Callable[Params, Returned]:
    @wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(isinstance(leaf, Tracer) or is_spread(leaf) for leaf in leaves):
            return elsewhere(*[jnp.asarray(a) if isinstance(a, np.ndarray | np.generic | float) else a for a in args])
        foreign = any(isinstance(leaf, jax.Array) for leaf in leaves)
        with np.errstate(all="ignore"):  # NaN and infinity are answers here
            result = function(*(jax.tree.map(_as_numpy, args) if foreign else args))
        return put(result) if foreign else result

    return call


def _as_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def in_threads(one: Callable[[Any], Returned], items: Sequence[Any]) -> Iterator[Returned]:
    """A function of each item, in their order; in as many threads as there are cores, where items are many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(items) < _FEW or cores == 1 or current_thread().name.startswith(_THREADS):
        yield from map(one, items)
        return
    for begin in range(0, len(items), cores):  # few at a time: what they give may be large
        yield from _threads(cores, os.getpid()).map(one, items[begin : begin + cores])


@lru_cache(1)
def _threads(cores: int, process: int) -> ThreadPoolExecutor:
    """Those of this process: they do not survive a fork."""
    return ThreadPoolExecutor(cores, thread_name_prefix=_THREADS)
