"""Who does the work of a sweep: processes of this machine, or any executor with ``submit``, dask's client included."""

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
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..checks import whole
from .worker import carry_out

_SUBMITTED = 64  # tasks handed to an executor ahead of their turn, at least
_STARTS = 3  # processes in a row that may end before they begin
_BEGIN = "from cobilevel.sweep.worker import worker_main; worker_main()"
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # the last is XLA's


class Event(NamedTuple):
    """News of a task: `kind` is "tell" (a share is done), "done" (an outcome), "failed" or "died" (words)."""

    kind: str
    number: int
    content: Any


class Crew(ABC):
    """Takes tasks by number, as packed bytes, while it has room, and reports events."""

    local: bool

    @property
    @abstractmethod
    def room(self) -> bool:
        """Whether it takes another task."""

    @abstractmethod
    def submit(self, number: int, task: bytes) -> None:
        """Has a task done."""

    @abstractmethod
    def wait(self) -> Event:
        """The next event."""

    @abstractmethod
    def close(self) -> None:
        """Stops what is still at work."""


@contextmanager
def crew_of(executor: Any, workers: int | None, announce: bool) -> Iterator[Crew]:
    """The crew for an executor as a user gives it. On leaving, whatever is still at work is stopped."""
    if workers is not None and executor != "processes":
        raise ValueError('workers is for executor="processes": give the executor the size you want it to have.')
    if isinstance(executor, str) and executor == "processes":
        crew = LocalProcesses((os.cpu_count() or 1) if workers is None else whole("workers", workers))
        try:
            yield crew
        finally:
            crew.close()
    elif isinstance(executor, str) and "://" in executor:
        with _client(executor) as client, crew_of(client, None, announce) as crew:
            yield crew
    elif hasattr(executor, "submit"):
        _refuse_forks(executor)
        link = getattr(executor, "dashboard_link", None)
        if announce and link:
            print(f"dashboard: {link}", file=sys.stderr, flush=True)
        crew = Submitted(executor)
        try:
            yield crew
        finally:
            crew.close()
    else:
        raise TypeError(
            'executor must be "processes", "here", the address of a dask scheduler ("tcp://host:8786"), a client of '
            f"one, or an executor with submit; got {executor!r}."
        )


def _client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("a dask cluster needs dask.distributed: pip install 'cobilevel[cluster]'.") from error
    return Client(address)


def _refuse_forks(executor: Any) -> None:
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            "executor forks this process, in which JAX has threads, and would hang: give "
            'ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")), or executor="processes".'
        )


# -- processes of this machine


class _Hand:
    """One worker process, and the thread that listens to it."""

    def __init__(self, environment: dict[str, str], news: Any):
        self.task: int | None = None
        self.began = False
        command = [sys.executable, "-P", "-c", _BEGIN]
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


class LocalProcesses(Crew):
    """Fresh processes, started as they are needed; one that dies is replaced, and the others go on."""

    local = True

    def __init__(self, workers: int):
        self.workers = workers
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hands: list[_Hand] = []
        self._false_starts = 0
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._environment = dict.fromkeys(_ONE_THREAD, threads) | os.environ | {"PYTHONPATH": paths}

    @property
    def room(self) -> bool:
        return sum(hand.task is not None for hand in self._hands) < self.workers

    def submit(self, number: int, task: bytes) -> None:
        idle = next((hand for hand in self._hands if hand.task is None), None)
        if idle is None:
            idle = _Hand(self._environment, self._news)
            self._hands.append(idle)
        idle.take(number, task)

    def wait(self) -> Event:
        while True:
            hand, kind, content = self._news.get()
            number = hand.task
            if kind == "ready":
                hand.began, self._false_starts = True, 0
            elif kind == "gone":
                self._hands.remove(hand)
                hand.end()
                self._count_false_starts(hand, content)
                if number is not None:
                    return Event("died", number, _how_it_ended(content))
            elif number is not None:
                if kind == "done":
                    hand.task = None
                return Event(kind, number, content)

    def _count_false_starts(self, hand: _Hand, code: int) -> None:
        self._false_starts += not hand.began
        if self._false_starts >= _STARTS:
            raise RuntimeError(
                f"worker processes end before they begin ({_how_it_ended(code)}); what they printed says why. "
                'executor="here" works without them.'
            )

    def close(self) -> None:
        for hand in self._hands:
            hand.end()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", as a machine does that is short of memory" if name == "SIGKILL" else "")
    return f"killed by signal {-code}"


# -- executors of others


class Submitted(Crew):
    """An executor with ``submit(function, argument)``: those of ``concurrent.futures``, and dask's client."""

    local = False
    _names = itertools.count()

    def __init__(self, executor: Any):
        self._executor = executor
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._flying: dict[int, Any] = {}
        self._dask = hasattr(executor, "scheduler_info")
        cores = sum(executor.ncores().values()) if self._dask else 0
        self._most = max(_SUBMITTED, 2 * cores)

    @property
    def room(self) -> bool:
        return len(self._flying) < self._most

    def submit(self, number: int, task: bytes) -> None:
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
        number, future = self._news.get()
        self._flying.pop(number)
        try:
            return Event("done", number, future.result())
        except (Exception, asyncio.CancelledError) as error:
            return Event("died" if _is_death(error) else "failed", number, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        for future in self._flying.values():
            with suppress(Exception):  # nothing is lost if it is done all the same
                future.cancel()


def _is_death(error: BaseException) -> bool:
    lost = (concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError, asyncio.CancelledError, OSError)
    return isinstance(error, lost) or type(error).__name__ == "KilledWorker"  # dask's
