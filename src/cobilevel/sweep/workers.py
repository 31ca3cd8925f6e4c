"""Who does the work of a sweep: processes of this machine, or any executor with ``submit``, dask's client included.

A task is packed, worked off under the same settings of JAX, and its outcome sent back. A worker of this machine is a
fresh process, never a fork: JAX has threads, and a fork of a process with threads hangs sooner or later. It reads tasks
from its standard input and ends when that is closed, so none outlives its parent.
"""

import asyncio
import concurrent.futures
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from ..checks import whole
from .store import Run, versions

AHEAD = 64  # tasks that are taken up ahead of their turn, at least
_STARTS = 3  # processes in a row that may end before they begin
_BETWEEN_REPORTS = 0.2  # seconds: a progress bar needs no more
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


class Event(NamedTuple):
    """News of a task: `kind` is "tell" (a share is done), "done" (an outcome), "failed" or "died" (words)."""

    kind: str
    number: int
    content: Any


@contextmanager
def crew_of(executor: Any, workers: int | None, announce: bool) -> Iterator["LocalProcesses | Submitted"]:
    """The crew for an executor as a user gives it. On leaving, whatever is still at work is stopped."""
    local = isinstance(executor, str) and executor == "processes"
    if workers is not None and not local:
        raise ValueError('workers is for executor="processes": give the executor the size you want it to have.')
    if local:
        with closing(LocalProcesses((os.cpu_count() or 1) if workers is None else whole("workers", workers))) as crew:
            yield crew
    elif isinstance(executor, str) and "://" in executor:
        try:
            from distributed import Client
        except ImportError as error:
            raise ImportError("a dask cluster needs dask.distributed: pip install 'cobilevel[cluster]'.") from error
        with Client(executor) as client, crew_of(client, None, announce) as crew:
            yield crew
    elif hasattr(executor, "submit"):
        context = getattr(executor, "_mp_context", None)
        if context is not None and context.get_start_method() == "fork":
            raise ValueError(
                "executor forks this process, in which JAX has threads, and would hang: give "
                'ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")), or executor="processes".'
            )
        link = getattr(executor, "dashboard_link", None)
        if announce and link:
            print(f"dashboard: {link}", file=sys.stderr, flush=True)
        with closing(Submitted(executor)) as crew:
            yield crew
    else:
        raise TypeError(
            'executor must be "processes", "here", the address of a dask scheduler ("tcp://host:8786"), a client of '
            f"one, or an executor with submit; got {executor!r}."
        )


# -- processes of this machine


class _Worker:
    """One worker process, and the thread that listens to it."""

    def __init__(self, environment: dict[str, str], news: Any):
        self.task: int | None = None
        self.began = False
        command = [sys.executable, "-P", "-c", f"from {__name__} import worker_main; worker_main()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._news = news
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        stdout: Any = self.process.stdout
        try:
            while True:
                self._news.put((self, *pickle.load(stdout)))
        except Exception:  # closed, or cut short in the middle of a message
            stdout.close()
            self.process.kill()
            self._news.put((self, "gone", self.process.wait()))

    def take(self, number: int, task: bytes) -> None:
        self.task = number
        stdin: Any = self.process.stdin
        with suppress(OSError):  # it has just died, which is heard soon
            pickle.dump(task, stdin)
            stdin.flush()

    def end(self) -> None:
        stdin: Any = self.process.stdin
        self.process.kill()
        with suppress(OSError):  # what it did not read is gone with it
            stdin.close()
        self._thread.join()


class LocalProcesses:
    """Fresh processes, started as they are needed; one that dies is replaced, and the others go on."""

    local = True

    def __init__(self, workers: int):
        self.workers = workers
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._team: list[_Worker] = []
        self._false_starts = 0
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._environment = dict.fromkeys(_ONE_THREAD, threads) | os.environ | {"PYTHONPATH": paths}

    @property
    def room(self) -> bool:
        """Whether it takes another task."""
        return sum(worker.task is not None for worker in self._team) < self.workers

    def submit(self, number: int, task: bytes) -> None:
        """Has a task done."""
        idle = next((worker for worker in self._team if worker.task is None), None)
        if idle is None:
            idle = _Worker(self._environment, self._news)
            self._team.append(idle)
        idle.take(number, task)

    def wait(self) -> Event:
        """The next event."""
        while True:
            worker, kind, content = self._news.get()
            number = worker.task
            if kind == "ready":
                worker.began, self._false_starts = True, 0
            elif kind == "gone":
                self._team.remove(worker)
                worker.end()
                self._false_starts += not worker.began
                if self._false_starts >= _STARTS:
                    raise RuntimeError(
                        f"worker processes end before they begin ({_ending(content)}); what they printed says why. "
                        'executor="here" works without them.'
                    )
                if number is not None:
                    return Event("died", number, _ending(content))
            elif number is not None:
                if kind == "done":
                    worker.task = None
                return Event(kind, number, content)

    def close(self) -> None:
        """Stops what is still at work."""
        for worker in self._team:
            worker.end()


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", as a machine does that is short of memory" if name == "SIGKILL" else "")
    return f"killed by signal {-code}"


# -- executors of others


class Submitted:
    """An executor with ``submit(function, argument)``: those of ``concurrent.futures``, and dask's client."""

    local = False
    _names = itertools.count()

    def __init__(self, executor: Any):
        self._executor = executor
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._flying: dict[int, Any] = {}
        self._dask = hasattr(executor, "scheduler_info")
        self._most = max(AHEAD, 2 * sum(executor.ncores().values()) if self._dask else 0)

    @property
    def room(self) -> bool:
        """Whether it takes another task."""
        return len(self._flying) < self._most

    def submit(self, number: int, task: bytes) -> None:
        """Has a task done."""
        own = {"key": f"cobilevel-{os.getpid()}-{next(self._names)}", "pure": False} if self._dask else {}
        try:
            future = self._executor.submit(carry_out, task, **own)
        except Exception as error:
            raise RuntimeError(
                f"the executor takes no more tasks: {error}. What is finished is kept; start again with a new one."
            ) from error
        self._flying[number] = future
        future.add_done_callback(lambda done, n=number: self._news.put((n, done)))

    def wait(self) -> Event:
        """The next event."""
        number, future = self._news.get()
        self._flying.pop(number)
        try:
            return Event("done", number, future.result())
        except (Exception, asyncio.CancelledError) as error:
            lost = concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError, asyncio.CancelledError, OSError
            died = isinstance(error, lost) or type(error).__name__ == "KilledWorker"  # dask's
            return Event("died" if died else "failed", number, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Stops what is still at work."""
        for future in self._flying.values():
            with suppress(Exception):  # nothing is lost if it is done all the same
                future.cancel()


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
            "level of a module, with functools.partial for its arguments; install cobilevel[cluster], which sends "
            'lambdas and what a script defines too; or give executor="here".'
        ) from error


def _dumps(content: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        packed = pickle.dumps(content)
        if b"__main__" in packed:
            raise pickle.PicklingError("it is defined in the script that runs, which others cannot import") from None
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
    lock, tasks, last = threading.Lock(), queue.SimpleQueue(), [0.0]

    def send(kind: str, content: Any) -> None:
        with lock:
            try:
                pickle.dump((kind, content), replies)
                replies.flush()
            except OSError:  # there is nobody left to report to
                os._exit(1)

    def tell(share: float) -> None:
        if time.monotonic() - last[0] > _BETWEEN_REPORTS:
            last[0] = time.monotonic()
            send("tell", float(share))

    def listen() -> None:
        try:
            while True:
                tasks.put(pickle.load(sys.stdin.buffer))
        finally:  # the parent is done, or dead
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    send("ready", None)
    while True:
        send("done", carry_out(tasks.get(), tell))
