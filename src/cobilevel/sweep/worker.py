"""What is done with a task elsewhere: it is packed, worked off under the same settings of JAX, and sent back.

A worker is a fresh process, never a fork: JAX has threads, and a fork of a process with threads hangs sooner or later.
It reads tasks from its standard input and ends when that is closed, so none outlives its parent.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .run_files import Run
from .store import versions

# Settings of JAX that decide over numbers, and go wherever a task goes; and those of this machine alone.
_SWITCHES = (
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_disable_jit",
    "jax_debug_nans",
)
_LOCAL_SWITCHES = (
    "jax_platforms",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
_BETWEEN_TELLS = 0.2  # seconds: a bar needs no more


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its runs and what they were computed with, or `failure` in words."""

    runs: Sequence[Run] = ()
    used: Mapping[str, str] | None = None
    failure: str | None = None


def packed_task(label: str, work: Callable[..., Any], local: bool) -> bytes:
    """A task's work with the settings it is to be done under, as bytes."""
    names = _SWITCHES + (_LOCAL_SWITCHES if local else ())
    switches = {name: getattr(jax.config, name) for name in names if hasattr(jax.config, name)}
    try:
        return _dumps((switches, work))
    except Exception as error:  # pickle raises as it likes
        raise TypeError(
            f"the work of the task {label!r} cannot be sent to another process: {error}. Make it a function at the top "
            "level of a module, with functools.partial for its arguments; install cobilevel[cluster], which sends "
            'lambdas and what a script defines too; or give executor="here".'
        ) from error


def _dumps(content: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        found = pickle.dumps(content)
        if b"__main__" in found:
            raise pickle.PicklingError("it is defined in the script that runs, which others cannot import") from None
        return found
    return cloudpickle.dumps(content)


def carry_out(task: bytes, tell: Callable[[float], None] = lambda share: None) -> Outcome:
    """Works off a packed task. Errors of its own come back in words, so that they reach any parent."""
    try:
        switches, work = pickle.loads(task)
        for name, value in switches.items():
            if getattr(jax.config, name, value) != value:
                jax.config.update(name, value)
        return Outcome(list(work(tell)), versions())
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}, line {where.lineno}"
        return Outcome(failure=f"{type(error).__name__}: {error} ({place})")


def worker_main() -> None:
    """The life of a worker process. What is printed in it goes to the standard error output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lock, tasks, last = threading.Lock(), queue.SimpleQueue(), [0.0]

    def send(kind: str, content: Any) -> None:
        with lock:
            try:
                pickle.dump((kind, content), replies)
                replies.flush()
            except OSError:  # there is nobody left to report to
                os._exit(1)

    def tell(share: float) -> None:
        if time.monotonic() - last[0] > _BETWEEN_TELLS:
            last[0] = time.monotonic()
            send("tell", float(share))

    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    send("ready", None)
    while True:
        send("done", carry_out(tasks.get(), tell))


def _listen(tasks: Any) -> None:
    try:
        while True:
            tasks.put(pickle.load(sys.stdin.buffer))
    finally:  # the parent is done, or dead
        os._exit(0)
