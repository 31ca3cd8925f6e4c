"""Parts of a table that stay where they are: on the workers of a dask cluster, or in files read one after the other.

A function is called on all parts, and returns something small. On a cluster each worker is sent one message for all of
its parts; the scheduler recomputes a lost part elsewhere.
"""

import asyncio
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from .checks import memory_limit
from .precision import double

_SILENT = 20.0  # seconds without a word, after which a worker is given up: dask's own limit is minutes


def unpickled(content: bytes) -> Any:
    """What another process pickled, with all digits of its arrays: JAX would round them where it is not in double."""
    with double():
        return pickle.loads(content)


class Part:
    """One part of a table: where it comes from, and which of its columns are wanted."""

    def __init__(self, number: int, given: Any, columns: Sequence[Any]):
        self.number, self.given, self.columns = number, given, list(columns)

    def frame(self) -> Any:
        """The part as a data frame."""
        given = self.given
        if isinstance(given, str | Path):
            given = _frame_library().read_parquet(given, columns=self.columns)
        elif hasattr(given, "__dask_graph__"):
            given = given.compute(scheduler="synchronous")
        elif callable(given):
            given = given()
        return given


def _frame_library() -> Any:
    """The library that reads files: the one the user has imported, pandas before polars."""
    for name in ("pandas", "polars"):
        if name in sys.modules:
            return sys.modules[name]
    for name in ("pandas", "polars"):
        try:
            return __import__(name)
        except ImportError:
            continue
    raise ImportError("reading Parquet files needs pandas or polars: pip install pandas pyarrow.")


class PartError(ValueError):
    """What went wrong with one part, which is named."""


class Parts:
    """Parts of a table, in order, and what works on them: the active dask client, or this process."""

    def __init__(self, given: Sequence[Any], columns: Sequence[Any]):
        self.parts = tuple(Part(number, one, columns) for number, one in enumerate(given))
        client = _active_client()
        self.workers: Any = _Here(self.parts) if client is None else _OnDask(self.parts, client)

    def __len__(self) -> int:
        return len(self.parts)

    def ask(self, function: Callable, common: "Common", *args: Any) -> Iterator[Any]:
        """What ``function(parts, common, *args)`` returns for groups of parts, in the order of their first ones."""
        return self.workers.ask(function, common, *args)

    def each(self, function: Callable, common: "Common", *args: Any) -> list[Any]:
        """What a function returns for single parts, as pairs of a part's number and this; in the order of the parts."""
        pairs = (pair for group in self.ask(function, common, *args) for pair in group)
        return [found for _, found in sorted(pairs, key=lambda pair: pair[0])]

    def words(self) -> str:
        """What works on them."""
        return self.workers.words()


class Common:
    """Data that all workers need, the same for many calls: sent to each worker once.

    `kept`: what a process keeps along with it, until its last user is gone.
    """

    def __init__(self, value: Any):
        self.value = value
        self.kept: Any = None
        self.sent: Any = None  # to a cluster: the future of its copies

    def __reduce__(self) -> Any:
        import cloudpickle

        return _with_all_digits, (cloudpickle.dumps(self.value),)


def _with_all_digits(content: bytes) -> Common:
    return Common(unpickled(content))


def room() -> float:
    """The bytes that may be kept of parts in this process: half of its memory, or of a dask worker's."""
    if "distributed" in sys.modules:
        with suppress(ValueError):  # no worker
            limit = sys.modules["distributed"].get_worker().memory_manager.memory_limit
            return (limit or memory_limit()) / 2
    return memory_limit() / 2


# -- in this process


class _Here:
    """The parts one after the other; the next is read while one is worked on."""

    def __init__(self, parts: Sequence[Part]):
        self.parts = parts
        self.messages = self.sent = self.received = 0  # nothing is sent

    def ask(self, function: Callable, common: Common, *args: Any) -> Iterator[Any]:
        """As ``Parts.ask``."""
        with ThreadPoolExecutor(1) as reader:
            ahead: dict[int, Any] = {}  # the one that is read while another is worked on

            def read(number: int) -> Any:
                found = ahead.pop(number, None) or reader.submit(self.parts[number].frame)
                ahead.clear()
                if number + 1 < len(self.parts):
                    ahead[number + 1] = reader.submit(self.parts[number + 1].frame)
                return found.result()

            for part in self.parts:
                yield _named(function, [(part.number, lambda k=part.number: read(k))], common, *args)

    def words(self) -> str:
        return f"{len(self.parts)} partitions, one after the other in this process"


def _named(function: Callable, parts: list[tuple[int, Callable[[], Any]]], common: Any, *args: Any) -> Any:
    try:
        return function(parts, common, *args)
    except (ValueError, TypeError) as error:
        if isinstance(error, PartError):
            raise
        raise PartError(f"{_numbers([number for number, _ in parts])}: {error}") from error


def _numbers(numbers: list[int]) -> str:
    return f"partition {numbers[0]}" if len(numbers) == 1 else f"partitions {numbers[0]} to {numbers[-1]}"


# -- on dask


def _active_client() -> Any:
    """The client that dask would use, if any; without one nothing is imported."""
    if "distributed" not in sys.modules:
        return None
    try:
        return sys.modules["distributed"].get_client()
    except ValueError:
        return None


_ONE_AT_A_TIME = threading.Lock()  # a worker may have threads, and questions share what it keeps


class _Group:
    """The parts of one worker: references, as the scheduler is to see them, and made again where they were lost."""

    def __init__(self, numbers: list[int], frames: list[Any]):
        self.parts = list(zip(numbers, frames, strict=True))


def _on_worker(group: _Group, common: Common, call: bytes) -> bytes:
    """One message: a function asked of all parts of this worker, which takes the cores that dask gave it."""
    from distributed import get_worker

    os.environ.setdefault("NPROC", str(get_worker().state.nthreads))
    function, args = pickle.loads(call)
    parts = [(number, lambda frame=frame: frame) for number, frame in group.parts]
    with _ONE_AT_A_TIME:
        return pickle.dumps(_named(function, parts, common, *args))


class _OnDask:
    """The parts on the workers of a cluster, each at one of them; `home` says where."""

    def __init__(self, parts: Sequence[Part], client: Any):
        self.client, self.parts = client, parts
        delayed = [part.number for part in parts if hasattr(part.given, "__dask_graph__")]
        made = dict(zip(delayed, client.compute([parts[k].given for k in delayed]), strict=True))
        others = {part.number: client.submit(part.frame, pure=False) for part in parts if part.number not in made}
        self.frames = [(made | others)[part.number] for part in parts]  # the scheduler can have them made again
        self.home: dict[int, str] = {}
        self.groups: list[tuple[str, Any]] = []  # workers, in the order of their first parts, and what they hold
        self.messages = self.sent = self.received = 0
        self.looked = 0.0

    def words(self) -> str:
        return f"{len(self.parts)} partitions on {len(set(self.home.values())) or '?'} dask workers"

    def ask(self, function: Callable, common: Common, *args: Any) -> Iterator[Any]:
        """As ``Parts.ask``: one message to each worker, answers in the order of their first parts."""
        import cloudpickle

        self._settle()
        if common.sent is None:  # made by one worker, and copied to the others; as long as `common` is there
            common.sent = self.client.submit(_with_all_digits, cloudpickle.dumps(common.value), pure=False)
        call = cloudpickle.dumps((function, args))
        asked = [
            self.client.submit(_on_worker, group, common.sent, call, **_at(name), pure=False)
            for name, group in self.groups
        ]
        self.messages += len(asked)
        self.sent += len(asked) * len(call)
        for answer in self._watching(lambda seconds: self._gathered(asked, seconds)):
            self.received += len(answer)
            yield pickle.loads(answer)

    def _gathered(self, asked: list[Any], seconds: float) -> list[bytes]:
        """All answers at once, where they are there in time."""
        answers = asyncio.wait_for(self.client.gather(asked, asynchronous=True), seconds)
        return asyncio.run_coroutine_threadsafe(answers, self.client.loop.asyncio_loop).result()

    def _settle(self) -> None:
        """Gives every part a worker: the one that has it, unless that has gone, or has more than its share."""
        if self.home and time.monotonic() < self.looked + _SILENT / 10:
            return
        if not self.home:
            self._made()
        while not (alive := sorted(self._heard())):  # new ones may be on their way
            time.sleep(_SILENT / 10)
        self.looked, homeless = time.monotonic(), []
        most, load = -(-len(self.parts) // len(alive)), dict.fromkeys(alive, 0)
        for number in range(len(self.parts)):
            name = self.home.get(number, "")
            if load.get(name, most) < most:
                load[name] += 1
            else:
                homeless.append(number)
        for number in homeless:
            self.home[number] = min(load, key=lambda one: (load[one], one))
            load[self.home[number]] += 1
        if homeless or not self.groups:
            held: dict[str, list[int]] = {}
            for number in range(len(self.parts)):
                held.setdefault(self.home[number], []).append(number)
            self.groups = [
                (name, self.client.submit(_Group, numbers, [self.frames[k] for k in numbers], **_at(name), pure=False))
                for name, numbers in held.items()
            ]

    def _made(self) -> None:
        """Waits until all parts are there, and notes where."""
        from distributed import wait

        self._watching(lambda seconds: wait(self.frames, timeout=seconds))
        for number, frame in enumerate(self.frames):
            if frame.status == "error":
                raise PartError(f"{_numbers([number])}: {frame.exception()}") from frame.exception()
        held = self.client.who_has(self.frames)
        self.home = {number: min(held.get(frame.key) or [""]) for number, frame in enumerate(self.frames)}

    def _watching(self, wait: Callable[[float], Any]) -> Any:
        """What comes of waiting. A worker that is silent meanwhile is given up: the scheduler then has its parts worked
        on elsewhere."""
        while True:
            try:
                return wait(_SILENT / 10)
            except TimeoutError:
                heard = self._heard()
                latest = max(heard.values(), default=0.0)
                for silent in [one for one, last in heard.items() if last < latest - _SILENT]:
                    self.client.run_on_scheduler(_give_up, address=silent)

    def _heard(self) -> dict[str, float]:
        """When the scheduler last heard of each worker."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {name: float(facts["last_seen"]) for name, facts in workers.items()}


def _at(worker: str) -> dict[str, Any]:
    """Where a task belongs, while that worker is there."""
    return {"workers": [worker], "allow_other_workers": True}


async def _give_up(dask_scheduler: Any, address: str) -> None:
    """Removes a worker that does not answer."""
    await dask_scheduler.remove_worker(address, stimulus_id=f"silent-{time.time()}", close=False)
