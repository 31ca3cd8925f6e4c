"""Who does the work of a sweep: processes of this machine, or any executor with ``submit``, dask's client included.

A task is packed, worked off under the same settings of JAX, and its outcome sent back. A worker of this machine is a
fresh process, never a fork: JAX has threads, and a fork of a process with threads hangs sooner or later. It reads tasks
from its standard input and ends when that is closed, so none outlives its parent.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax

from ..ground import whole
from .store import Run, versions

_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # the last is XLA's
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


@contextmanager
def working_executor(executor: Any, workers: int | None, announce: bool) -> Iterator[Any]:
    """What has ``submit``, for an executor as a user names it; what was started for it ends on leaving."""
    local = isinstance(executor, str) and executor == "processes"
    if workers is not None and not local:
        raise ValueError('workers is only for executor="processes"; set the size of the executor itself.')
    if local:
        with closing(LocalProcesses((os.cpu_count() or 1) if workers is None else whole("workers", workers))) as own:
            yield own
    elif isinstance(executor, str) and "://" in executor:
        try:
            from distributed import Client
        except ImportError as error:
            raise ImportError("a dask cluster needs dask.distributed: pip install 'cobilevel[cluster]'.") from error
        with Client(executor) as client, working_executor(client, None, announce) as found:
            yield found
    elif hasattr(executor, "submit"):
        context = getattr(executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise ValueError(
                "executor forks this process, in which JAX has threads, and would hang. Use "
                'ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")), or executor="processes".'
            )
        link = getattr(executor, "dashboard_link", None)
        if announce and link:
            print(f"dashboard: {link}", file=sys.stderr, flush=True)
        yield executor
    else:
        raise TypeError(
            'executor must be "processes", "here", the address of a dask scheduler ("tcp://host:8786"), a client of '
            f"one, or an executor with submit; got {executor!r}."
        )


# -- processes of this machine


class NoWorkersError(RuntimeError):
    """Processes of this machine end before they begin, so that no task is to blame."""


class LocalProcesses:
    """An executor of fresh processes, each spoken to by a thread. They are started as they are needed; one that dies is
    replaced, and the others go on. After so many false `starts` in a row it gives up."""

    def __init__(self, workers: int, starts: int = 3):
        self.workers = workers
        self._starts_left = self._starts = starts
        self._threads, self._own, self._lock = ThreadPoolExecutor(workers), threading.local(), threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._environment = dict.fromkeys(_ONE_THREAD, threads) | os.environ | {"PYTHONPATH": paths}

    def submit(self, function: Callable[..., Any], task: bytes, tell: Callable[[float], None]) -> Future[Any]:
        """Calls ``function(task, tell)`` in a process; the future breaks where that dies."""
        return self._threads.submit(self._call, function, task, tell)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-c", f"from {__name__} import worker_main; worker_main()"]
        with self._lock:
            if self._closed:
                raise BrokenExecutor("the executor is closed")
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=self._environment)
            self._processes.add(process)
        return process

    def _call(self, function: Callable[..., Any], task: bytes, tell: Callable[[float], None]) -> Any:
        process: Any = getattr(self._own, "process", None)
        began = process is not None and process.poll() is None
        process = self._own.process = process if began else self._start()
        try:
            with suppress(OSError):  # it has just died, which is heard next
                pickle.dump((function, task), process.stdin)
                process.stdin.flush()
            while True:
                kind, content = pickle.load(process.stdout)
                if kind == "done":
                    return content
                if kind == "ready":
                    began, self._starts_left = True, self._starts
                else:
                    tell(content)
        except Exception as error:  # closed, or cut short in the middle of a message
            self._own.process = None
            words = _ending(self._end(process))
            self._starts_left -= not began
            if self._starts_left > 0:
                raise BrokenExecutor(words) from error
            raise NoWorkersError(
                f"worker processes end before they start ({words}); see what they printed. "
                'executor="here" works without them.'
            ) from error

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Ends a process, and how it ended."""
        process.kill()
        with suppress(OSError), process:  # what it did not read is gone with it
            pass
        return process.wait()

    def close(self) -> None:
        """Stops what is still at work."""
        with self._lock:
            self._closed = True
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            self._end(process)


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")
    return f"killed by signal {-code}"


# -- what is done elsewhere


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
            "level of a module, with functools.partial for its arguments; install cobilevel[cluster], which can "
            'also send lambdas and functions defined in a script; or use executor="here".'
        ) from error


def _dumps(content: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        packed = pickle.dumps(content)
        if b"__main__" in packed:
            raise pickle.PicklingError("it is defined in the running script, which others cannot import") from None
        return packed
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
    lock, calls, shown = threading.Lock(), queue.SimpleQueue(), [-1]

    def send(kind: str, content: Any) -> None:
        with lock:
            try:
                pickle.dump((kind, content), replies)
                replies.flush()
            except OSError:  # there is nobody left to report to
                os._exit(1)

    def tell(share: float) -> None:
        if int(1000 * share) != shown[0]:  # a progress bar needs no more
            shown[0] = int(1000 * share)
            send("tell", float(share))

    def listen() -> None:
        try:
            while True:
                calls.put(pickle.load(sys.stdin.buffer))
        finally:  # the parent is done, or dead
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    send("ready", None)
    while True:
        function, task = calls.get()
        send("done", function(task, tell))
