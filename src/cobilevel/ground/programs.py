"""Compiled programs, as few as can be, and arithmetic without them.

XLA takes seconds over a program that then runs for milliseconds. Where the arrays are small, most of its optimisations
gain less than they cost: such programs are compiled without, in about a quarter of the time; the loops of stochastic
solvers with the cheapest of them. Single operations outside of a program are compiled too, each for every shape: where
arrays hold values now, these are NumPy's.
"""

import os
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, lru_cache, partial, update_wrapper, wraps
from pathlib import Path
from threading import Lock, current_thread
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree
from threadpoolctl import ThreadpoolController

from .checks import require_threads

# A JAX array, or a NumPy one: small ones are worked on without a program, and NumPy keeps digits JAX would cut off.
Held = Array | np.ndarray

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS_AT_MOST = 2_000_000  # of a small program: it is done before a better one would be compiled
_QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_UNFUSED = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 2}
_CHEAPEST = {"xla_backend_optimization_level": 1}  # half as long to compile as with all, and about as fast
_KINDS_KEPT = 48  # programs of one function: at about 25 MB for all those of a problem, 1.2 GB
_HELD = object()  # in place of an array
_THREADS = "cobilevel"  # begins the names of threads that share work
FEW = 4  # items that are not worth sharing
_ALIGNED = 64  # bytes: where arrays begin that JAX does not copy

# -- arrays here and there


def module_of(array: Any) -> Any:
    """``jax.numpy`` for arrays of JAX, NumPy for its own and for plain numbers."""
    return jnp if isinstance(array, jax.Array) else np


def arithmetic(*trees: PyTree) -> Any:
    """NumPy where the arrays hold values now and are few, or where the processor is all there is; else JAX's."""
    leaves = jax.tree.leaves(trees)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return jnp
    few = sum(np.size(leaf) for leaf in leaves) <= _NUMBERS_AT_MOST
    return np if few or jax.default_backend() == "cpu" else jnp


def put(tree: PyTree) -> PyTree:
    """NumPy's arrays as JAX's, without a program for each shape."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf, tree)


def rows_at(array: Any, index: Any) -> Any:
    """An array at some positions of its leading axis, given as a slice or a list of them."""
    return put(np.asarray(array)[index]) if arithmetic(array, index) is np else array[index]


def empty_table(rows: int, columns: int, dtype: Any) -> np.ndarray:
    """A table to be filled that JAX takes as it is: without a copy, since it begins where JAX's own arrays would."""
    size = rows * columns * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + size].view(dtype).reshape(rows, columns)


# -- compiled


def program(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function for each shape of its arguments: quickly for small ones, with all optimisations for others.

    Arrays are traced, all else is static.
    """
    return _compiled(function, _QUICKLY)


def program_of_steps(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what runs a thousand times: with the cheapest optimisations for small arguments."""
    return _compiled(function, _QUICKLY, _CHEAPEST)


def unfused(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled without the fusion of loops: in two thirds of the time, to about as fast a program."""
    return _jitted(function, _UNFUSED if jax.default_backend() == "cpu" else {})


def quick(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled without optimisations: in a third of the time, to a program that is two to four times as slow."""
    return _jitted(function, _QUICKLY if jax.default_backend() == "cpu" else {})


def _small(arrays: list[Any]) -> bool:
    """Whether there is little to compute with, on a processor, and outside of other programs."""
    leaves = {id(leaf): leaf for leaf in arrays}.values()  # each once
    if any(isinstance(leaf, Tracer) for leaf in leaves) or jax.default_backend() != "cpu":
        return False
    return sum(leaf.size for leaf in leaves) <= _NUMBERS_AT_MOST


def _jitted(function: Callable, options: dict[str, Any]) -> Callable:
    """Compiled with options; without them where the compiler is another one, which has not all of them."""
    if not options:
        return jax.jit(function)
    chosen = jax.jit(function, compiler_options=dict(options))

    def call(*args: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*args)
        except Exception as error:
            if "compile option" not in str(error):
                raise
        chosen = jax.jit(function)
        return chosen(*args)

    return call


class _Said(eqx.Module):
    """What a function returned apart from arrays."""

    value: Any = eqx.field(static=True)


def _apart(tree: Any) -> tuple[list[Any], tuple[Any, tuple]]:
    """The arrays of a tree, and all else: its structure and its other leaves."""
    leaves, structure = jax.tree.flatten(tree)
    held = [leaf for leaf in leaves if eqx.is_array(leaf)]
    return held, (structure, tuple(_HELD if eqx.is_array(leaf) else leaf for leaf in leaves))


def _joined(structure: Any, rest: tuple, held: list[Array]) -> Any:
    arrays = iter(held)
    return jax.tree.unflatten(structure, [next(arrays) if leaf is _HELD else leaf for leaf in rest])


def _compiled(function: Callable[P, R], *options: dict[str, Any]) -> Callable[P, R]:
    """A program for each kind of arguments: what they are apart from the numbers in arrays. The last `_KINDS_KEPT` are
    kept, for functions that a user makes anew for each solve would otherwise fill the memory."""
    kept: OrderedDict[Any, Callable] = OrderedDict()

    def made(structure: Any, rest: tuple, small: bool) -> Callable:
        def run(held: list[Array]) -> tuple[list[Array], _Said]:
            args, kwargs = _joined(structure, rest, held)
            arrays, others = _apart(function(*args, **kwargs))
            return arrays, _Said(others)

        run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
        return _jitted(run, dict(ChainMap(*reversed(options))) if small else {})

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        require_threads("cobilevel")
        held, (structure, rest) = _apart((args, kwargs))
        small = _small(held)
        kind = (structure, rest, small, *map(type, rest))  # 1 is not True here
        run = kept.pop(kind, None) or made(structure, rest, small)
        kept[kind] = run
        while len(kept) > _KINDS_KEPT:
            kept.popitem(last=False)
        arrays, said = run(held)
        return _joined(*said.value, arrays)

    return call


def keep_programs(folder: str | Path | None = None) -> Path:
    """Keeps compiled programs on disk from now on, so that the next process does not compile them again.

    This is JAX's persistent cache, switched on for the whole process. The folder holds code that will be run: it is
    made readable and writable by its owner alone, and a folder that belongs to someone else, or that others may write
    to, is refused.

    **Arguments:**

    - `folder`: where to keep them; by default the user's cache folder.

    **Returns:** the folder.

    **Raises:** ``OSError`` if the folder cannot be made or does not belong to the user.

    **Example:**

    >>> folder = cb.keep_programs("programs")  # once, at the top of a script
    >>> folder.name
    'programs'
    """
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "cobilevel" / "programs"
    folder = Path(folder).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = folder.stat()
    if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & 0o022):
        raise PermissionError(
            f"{folder} belongs to someone else, or others may write to it, but its contents are run as code. Give "
            "another folder, or change its mode: chmod 700."
        )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


# -- on the host


class _Plain:
    """What a class holds in place of a method that is bound without Equinox."""

    def __init__(self, function: Callable):
        update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function if instance is None else partial(self.function, instance)


def plain(method: Callable[P, R]) -> Callable[P, R]:
    """A method bound without Equinox, which makes a module of each: that takes longer than the arithmetic on a thousand
    numbers."""
    return _Plain(method)


def on_host(function: Callable[P, R]) -> Callable[P, R]:
    """A method of arrays that is written for both: it gets NumPy's where all hold values.

    It returns JAX arrays where some came in. Where arrays are traced, it gets JAX's.
    """
    return plain(_on_host(function, function))


def on_host_or_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function, with a program of its own where arrays are traced."""
    compiled = program(function)
    return _on_host(function, lambda *args: compiled(*put(args)))  # NumPy's would be cut by the precision of the caller


def _on_host(function: Callable[P, R], traced: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            given = [jnp.asarray(a) if isinstance(a, np.ndarray | np.generic | float) else a for a in args]
            with jax.numpy_rank_promotion("allow"):
                return traced(*given)
        foreign = any(isinstance(leaf, jax.Array) for leaf in leaves)
        with np.errstate(all="ignore"):  # NaN and infinity are answers here
            known = lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
            result = function(*(jax.tree.map(known, args) if foreign else args))
        return put(result) if foreign else result

    return call


def _cores() -> int:
    """The cores that are this process's share: those that ``NPROC`` grants, which XLA heeds too, or all it may use."""
    held = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("NPROC", "")
    return max(1, min(held, int(granted))) if granted.isdecimal() else held


def in_threads(one: Callable[[Any], R], items: Sequence[Any]) -> Iterator[R]:
    """A function of each item, in their order; in as many threads as there are cores, where items are many."""
    cores = _cores()
    if len(items) < FEW or cores == 1 or current_thread().name.startswith(_THREADS):
        yield from map(one, items)
        return
    for begin in range(0, len(items), cores):  # few at a time: what they give may be large
        yield from _threads(cores, os.getpid()).map(one, items[begin : begin + cores])


@lru_cache(1)
def _threads(cores: int, process: int) -> ThreadPoolExecutor:
    """Those of this process: they do not survive a fork."""
    return ThreadPoolExecutor(cores, thread_name_prefix=_THREADS)


_pools = cache(ThreadpoolController)  # of the libraries that are loaded


class _OneThread:
    """A limit on the threads of factorisations, which is one for the whole process: the first in sets it, the last out
    restores what was there, whatever Python's threads do in between."""

    def __init__(self):
        self._lock, self._inside, self._limit = Lock(), 0, None

    def __enter__(self):
        with self._lock:
            if not self._inside:
                self._limit = _pools().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: Any):
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()  # pyright: ignore[reportOptionalMemberAccess]


_one_thread = _OneThread()


def one_thread() -> AbstractContextManager:
    """Within it, factorisations run on one thread: those of OpenBLAS wait by spinning, and where another process wants
    the same core, small matrices take many times as long with two."""
    return _one_thread
