"""Checks that many modules share: of single arguments; of where a call is made, which is neither inside a program that
JAX traces nor in a forked process; of packages that only some users need; and of memory.

Arrays held at one time may take three quarters of the available memory, which is the machine's, or less if a container,
a limit of the process or an accelerator has less.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

MEMORY_SHARE = 3 / 4  # of the memory at hand, for one thing and the copies made of it on the way
MOST_LISTED = 2**22  # products of functions in one list: beyond, the list alone takes a minute
MOST_NODES = 2**11  # of a Gauss rule along one dimension: their time grows with the cube, and is seconds here
MOST_KEPT = 8 * 2**30  # bytes of matrices that a solver keeps, however large the memory: beyond, steps take minutes


def whole(name: str, value: Any, least: int = 1, what: str = "") -> int:
    """`value` as a Python integer of at least `least`; raises otherwise."""
    most = np.iinfo(np.int32).max  # steps and sizes are counted in 32 bits
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        limit, meaning = f" and at most {most}" if number and value > most else "", f": {what}" if what else ""
        raise ValueError(f"{name} must be a whole number of at least {least}{limit}, got {value!r}{meaning}.")
    return int(value)


def path_given(name: str, value: Any) -> Path:
    """`value` as a path, ``~`` being the user's home folder; raises if it is not a path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file, as text or a pathlib.Path, got {value!r}.")
    if not os.fspath(value) or "\0" in os.fspath(value):
        raise ValueError(f"{name} is {value!r}; give a path that is not empty and holds no NUL character.")
    return Path(value).expanduser()


def needed(module: str, user: str, extra: str) -> Any:
    """A module of a package that only some need; if it is missing, the error says what to install."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        words = f'{user} {package}, which is not installed: pip install "cobilevel[{extra}]".'
        raise ModuleNotFoundError(words, name=error.name) from None


def positive(name: str, value: Any) -> float:
    """`value` as a positive, finite float; raises otherwise."""
    try:
        number = float("a bool" if isinstance(value, bool | np.bool_) else value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a positive number, got {value!r}.") from error
    if not 0 < number < np.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
    return number


def memory_at_hand() -> float:
    """The bytes that this process may use: of the machine, its container, its own limit, and the accelerator if any."""
    limits = [float("inf"), *_container_limits()]
    with suppress(AttributeError, ValueError, OSError):  # a system that does not say
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    if jax.default_backend() != "cpu":
        facts = jax.local_devices()[0].memory_stats() or {}
        limits += [float(facts["bytes_limit"])] if facts.get("bytes_limit") else []
    return min(limits)


def _container_limits() -> list[float]:
    """What control groups of Linux allow, in either of their versions, and the limit on the address space."""
    limits, files = [], [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, own = line.split(":", 2)
            if kinds in ("", "memory"):
                files.append(files[bool(kinds)].parent / own.strip("/") / files[bool(kinds)].name)
    for file in files:
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(float(file.read_text()))
    with suppress(ImportError, OSError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [float(most)] if most != resource.RLIM_INFINITY else []
    return [limit for limit in limits if limit > 0]


def memory_limit() -> float:
    """The bytes that may be held at one time."""
    return MEMORY_SHARE * memory_at_hand()


def gibibytes(size: int | float) -> str:
    """A size in words."""
    return f"{size / 2**30:,.1f} GiB"


def fits(name: str, what: str, size: int, instead: str) -> None:
    """Raises if something a solver must keep would take more memory than is sensible."""
    most = min(MOST_KEPT, memory_limit())
    if size > most:
        raise ValueError(
            f"{name}: {what} would take {gibibytes(size)}, more than {gibibytes(most)}. Use a smaller basis or fewer "
            f"samples, or a solver without them: {instead}."
        )


_FORKED_FROM: list[int] = []  # processes in which JAX had started before this one was forked from them


def _after_fork() -> None:
    """Threads are not copied by a fork: anything that waits for one of JAX's waits forever."""
    devices = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)  # which is refused once JAX has started
    except RuntimeError:
        _FORKED_FROM.append(os.getppid())
    else:
        jax.config.update("jax_num_cpu_devices", devices)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def require_threads(caller: str) -> None:
    """Raises in a process that was forked after JAX had started, where it would wait forever."""
    if _FORKED_FROM:
        raise RuntimeError(
            f"{caller}: this process was forked after JAX had started in process {_FORKED_FROM[-1]}. A fork does not "
            'copy its threads, so it would wait forever. Start processes with "spawn": '
            'multiprocessing.get_context("spawn"), or concurrent.futures.ProcessPoolExecutor(mp_context=...) with it.'
        )


def entered(caller: str, *arguments: Any) -> None:
    """Raises if a call that needs concrete data is made inside a program that JAX traces, as the arguments or closures
    of functions among them show, or in a forked process."""
    require_threads(caller)
    inside = isinstance(jax.device_put(np.zeros(())), Tracer)
    if inside or any(isinstance(leaf, Tracer) for leaf in _leaves_held(arguments)):
        raise TypeError(
            f"{caller} was called under jax.jit, vmap, grad or another transformation of JAX, but it needs concrete "
            "values: it checks its data and compiles its own programs. Call it outside, in a plain loop for many "
            "problems. Only solution.policy can be jitted, mapped and differentiated."
        )


def _leaves_held(tree: Any) -> Iterator[Any]:
    """The leaves of a pytree; of functions among them, what their closures hold."""
    try:
        leaves = jax.tree.leaves(tree)
    except (TypeError, ValueError):  # a dict that cannot be sorted, which is refused elsewhere
        return
    for leaf in leaves:
        yield leaf
        for cell in getattr(leaf, "__closure__", None) or ():
            with suppress(ValueError):  # a name that is not bound yet
                yield from jax.tree.leaves(cell.cell_contents)
