"""A list of tasks worked off to its end, however often it is stopped, by one process or many.

A function at every case of a table is what a study of solvers, seeds and step sizes mostly is: ``tabulate``.
"""

import asyncio
import itertools
import logging
import operator
import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..answer import Solution
from ..ground import ProgressBar, whole
from .store import DamageError, Run, Runs, name_of
from .workers import LocalProcesses, NoWorkersError, Outcome, carry_out, packed_task, working_executor

_sweep_log = logging.getLogger(__name__)
_submissions = itertools.count()


@dataclass(frozen=True)
class Task:
    """Runs that are computed together: `work(tell)` returns one ``Run`` for each of `specs`, in their order.

    `after`: specifications whose runs the work reads from the store; it starts once they are there.

    **Arguments:**

    - `label`: its name in messages.
    - `specs`, `work`, `after`: as above.

    **Example:**

    >>> work = lambda tell: [cb.sweep.Run({"seed": 0}, {"loss": 1.5})]
    >>> task = cb.sweep.Task("seed 0", [{"seed": 0}], work)
    >>> cb.sweep.sweep([task], cb.sweep.Runs("tasks"), executor="here", progress=False)
    True
    """

    label: str
    specs: Sequence[Mapping[str, Any]]
    work: Callable[[Callable[[float], None]], Sequence[Run]]
    after: Sequence[Mapping[str, Any]] = ()


class SweepError(RuntimeError):
    """Some tasks failed; `failures` has the reason of each by its label. Finished tasks are kept.

    **Arguments:**

    - `failures`: reasons by label.
    - `finished`: how many tasks were finished.

    **Example:**

    >>> error = cb.sweep.SweepError({"seed 0": "ValueError: no data"}, finished=3)
    >>> error.failures["seed 0"]
    'ValueError: no data'
    """

    def __init__(self, failures: Mapping[str, str], finished: int):
        self.failures = dict(failures)
        words = "".join(f"\n  {label}: {reason}" for label, reason in failures.items())
        super().__init__(
            f"{len(failures)} tasks failed; the other {finished} are finished and kept. Start again to retry those "
            f"that failed:{words}"
        )


def sweep(
    tasks: Iterable[Task],
    runs: Runs,
    total: int | None = None,
    label: str = "sweep",
    progress: bool | None = None,
    limit: float | None = None,
    executor: Any = "processes",
    workers: int | None = None,
    retries: int = 3,
    in_order: bool = False,
) -> bool:
    """Runs the tasks that are not finished yet. It can be stopped at any time and started again.

    Every run is stored once, whatever happens: workers compute, and only this process writes their results. A task
    whose worker died is done again; a task that raises is reported at the end, and the others continue.

    **Arguments:**

    - `tasks`: a list, or a generator, which is asked for more tasks as workers become free.
    - `total`: how many a generator will yield, for the progress bar.
    - `limit`: seconds after which no further task is started.
    - `executor`: ``"processes"`` of this machine, each with its share of the processors; ``"here"``, one after the
      other in this process, where errors are raised at once; a client of a dask cluster, or the address of its
      scheduler; or any executor with ``submit``.
    - `workers`: how many processes; by default as many as there are processors.
    - `retries`: how often a task is tried again after its worker died.
    - `in_order`: whether a generator uses the results of earlier tasks before it yields: then it is asked for the
      next task only when all earlier ones are finished.
    - `runs`: the store that keeps them.
    - `label`: the label of the progress bar.
    - `progress`: show a progress bar; by default on a terminal, after two seconds.

    **Returns:** whether all are finished; ``False`` if time was up. Raises a ``SweepError`` if some failed.

    **Example:**

    >>> work = lambda tell: [cb.sweep.Run({"seed": 0}, {"loss": 1.5})]
    >>> task = cb.sweep.Task("seed 0", [{"seed": 0}], work)
    >>> cb.sweep.sweep([task], cb.sweep.Runs("tasks"), executor="here", progress=False)
    True
    """
    whole("retries", retries, 0)
    count = total or operator.length_hint(tasks, 0) or 1
    runs.mend()
    with ProgressBar(1000 * count, label, progress) as bar:
        if isinstance(executor, str) and executor == "here":
            return _one_by_one(tasks, runs, bar, limit)
        with working_executor(executor, workers, progress is not False) as found:
            return _Sweep(iter(tasks), runs, found, bar, limit, retries, in_order).to_its_end()


def _one_by_one(tasks: Iterable[Task], runs: Runs, bar: ProgressBar, limit: float | None) -> bool:
    clock = time.monotonic()
    for number, task in enumerate(tasks):
        if not runs.missing(task.specs):
            continue
        if limit is not None and time.monotonic() - clock > limit:
            return False
        tell = lambda share, n=number, t=task: bar.update(int(1000 * (n + share)), t.label)
        tell(0.0)
        began = time.monotonic()
        finished = task.work(tell)
        if fault := _other_runs(task, finished):
            raise ValueError(f"the task {task.label!r} {fault}.")
        runs.add(finished)
        runs.spend(time.monotonic() - began)
    return True


def _other_runs(task: Task, runs: Sequence[Run]) -> str:
    """What is wrong with the runs that a task returned, if anything."""
    wanted, own = ({name_of(spec) for spec in specs} for specs in (task.specs, [run.spec for run in runs]))
    return "" if wanted == own else f"returned {len(own)} runs, which are not the {len(wanted)} asked for"


@dataclass
class _Sweep:
    """The state of a sweep that others work for. Tasks go by number: unfinished ones are held or flying."""

    tasks: Iterator[Task]
    runs: Runs
    executor: Any
    bar: ProgressBar
    limit: float | None
    retries: int
    in_order: bool
    ahead: int = 64  # tasks that are taken up ahead of their turn, at least
    clock: float = field(default_factory=time.monotonic)
    mark: float = 0.0  # when the time that is spent was last counted
    held: dict[int, Task] = field(default_factory=dict)
    flying: dict[int, Task] = field(default_factory=dict)
    futures: dict[int, Any] = field(default_factory=dict)
    news: queue.SimpleQueue[tuple[int, Any]] = field(default_factory=queue.SimpleQueue)  # shares, and futures done
    makers: dict[str, int] = field(default_factory=dict)  # by the name of a run: the unfinished task that computes it
    failures: dict[str, str] = field(default_factory=dict)
    spoiled: dict[str, str] = field(default_factory=dict)  # by the name of a run: the task that failed to compute it
    deaths: Counter[int] = field(default_factory=Counter)
    shares: dict[int, float] = field(default_factory=dict)
    asked: int = 0
    finished: int = 0
    exhausted: bool = False
    late: bool = False

    def __post_init__(self) -> None:
        self.local, self.dask = isinstance(self.executor, LocalProcesses), hasattr(self.executor, "scheduler_info")
        cores = sum(self.executor.ncores().values()) if self.dask else 0
        self.most = self.executor.workers if self.local else max(self.ahead, 2 * cores)

    def to_its_end(self) -> bool:
        try:
            while self.going_on():
                pass
        finally:
            for future in self.futures.values():
                with suppress(Exception):  # nothing is lost if it is done all the same
                    future.cancel()
        if self.failures:
            raise SweepError(self.failures, self.finished)
        return not self.late

    def going_on(self) -> bool:
        """Begins what can be begun and takes in the next news; whether there is more to do."""
        before = (self.asked, len(self.held))
        self.fill()
        if self.flying:
            self.handle(*self.news.get())
        elif self.late or (self.exhausted and not self.held):
            return False
        elif self.exhausted and before == (self.asked, len(self.held)):
            for number, task in list(self.held.items()):
                self.fail(number, task, "it waits for tasks that wait for it")
        return True

    def fill(self) -> None:
        """Begins what can be begun, and asks for further tasks while there is room."""
        for number, task in list(self.held.items()):
            self.consider(number, task)
        while len(self.flying) < self.most and not (self.exhausted or self.late):
            if self.flying and (self.in_order or len(self.held) >= self.ahead):
                return
            task = next(self.tasks, None)
            self.exhausted = task is None
            if task is not None:
                for spec in task.specs:
                    self.makers.setdefault(name_of(spec), self.asked)
                self.asked += 1
                self.consider(self.asked - 1, task)

    def consider(self, number: int, task: Task) -> None:
        """Begins a task, or holds it, or finds it finished or impossible."""
        self.held[number] = task
        names = [name_of(spec) for spec in (*task.specs, *task.after)]
        lost = next((self.spoiled[name] for name in names if name in self.spoiled), None)
        if lost is not None:
            self.fail(number, task, f"it needs {lost!r}, which failed")
        elif any(self.makers.get(name, number) != number for name in names):
            pass  # another task is to compute what it needs, or the same
        elif task.after and self.runs.missing(task.after):
            if self.exhausted:
                self.fail(number, task, "it needs runs that no task computes")
        elif not self.runs.missing(task.specs):
            self.finished += 1
            self.leave(number, task)
        elif len(self.flying) < self.most:
            self.late = self.late or (self.limit is not None and time.monotonic() - self.clock > self.limit)
            if not self.late:
                self.begin(number, self.held.pop(number))

    def begin(self, number: int, task: Task) -> None:
        packed = packed_task(task.label, task.work, self.local)
        own: dict[str, Any] = {"tell": lambda share: self.news.put((number, share))} if self.local else {}
        if self.dask:  # a key of its own, or equal tasks would be one
            own = {"key": f"cobilevel-{os.getpid()}-{next(_submissions)}", "pure": False}
        try:
            future = self.executor.submit(carry_out, packed, **own)
        except Exception as error:
            raise RuntimeError(
                f"the executor accepts no more tasks: {error}. Finished runs are kept; start again with a new executor."
            ) from error
        if not self.flying:
            self.mark = time.monotonic()
        self.flying[number], self.futures[number] = task, future
        future.add_done_callback(lambda done: self.news.put((number, done)))
        self.show(task.label)

    def handle(self, number: int, news: Any) -> None:
        """Takes note of what a worker reports: the share that is done, or its future."""
        task = self.flying[number]
        if isinstance(news, float):
            self.shares[number] = news
            return self.show(task.label)
        try:
            outcome = news.result()
        except NoWorkersError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            lost = isinstance(error, BrokenExecutor | CancelledError | asyncio.CancelledError | OSError)
            died = lost or type(error).__name__ == "KilledWorker"  # dask's
            words = str(error) if self.local else f"{type(error).__name__}: {error}"
        else:
            return self.keep(number, task, outcome)
        self.deaths[number] += died
        if died and self.deaths[number] <= self.retries:
            _sweep_log.warning("the worker of %r died (%s): the task is done again.", task.label, words)
            self.shares.pop(number, None)
            return self.begin(number, task)
        often = f"its worker died {self.deaths[number]} times, the last time "
        return self.fail(number, task, often + words if died else words)

    def keep(self, number: int, task: Task, outcome: Outcome) -> None:
        """Writes the runs of a finished task."""
        fault = outcome.failure or _other_runs(task, outcome.runs)
        try:
            if not fault:
                self.runs.add(outcome.runs, outcome.used)
        except DamageError:
            raise
        except (TypeError, ValueError) as error:
            fault = str(error)  # what it returned cannot be kept
        if fault:
            return self.fail(number, task, fault)
        now = time.monotonic()
        self.runs.spend(now - self.mark)
        self.mark = now
        self.finished += 1
        self.leave(number, task)
        return self.show(task.label)

    def fail(self, number: int, task: Task, reason: str) -> None:
        self.failures[task.label if task.label not in self.failures else f"{task.label} ({number})"] = reason
        self.spoiled.update({name: task.label for name in map(name_of, task.specs) if self.makers.get(name) == number})
        self.leave(number, task)

    def leave(self, number: int, task: Task) -> None:
        for part in (self.held, self.flying, self.futures, self.shares):
            part.pop(number, None)
        for name in map(name_of, task.specs):
            if self.makers.get(name) == number:
                del self.makers[name]

    def show(self, words: str) -> None:
        share = self.finished + len(self.failures) + sum(self.shares.values())
        failed = f", {len(self.failures)} failed" if self.failures else ""
        self.bar.update(int(1000 * share), f"{self.finished} done, {len(self.flying)} running{failed}: {words}")


# -- a table of cases


def tabulate(
    function: Callable[..., Any],
    cases: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    folder: str | Path | Runs,
    executor: Any = "processes",
    workers: int | None = None,
    progress: bool | None = None,
    retries: int = 3,
) -> list[dict[str, Any]]:
    """Calls a function with the arguments of each case, except cases whose runs the folder already holds.

    **Arguments:**

    - `function`: called with the entries of a case as keyword arguments. It returns a ``Solution``, or a dict, whose
      numbers, strings and lists make the row of the table and whose arrays are kept as curves.
    - `cases`: a list of dicts; or a dict of lists, for every combination. A case is identified by its entries and the
      name of the function: when the function has changed, use another name or another folder.
    - `folder`: where runs are kept.
    - `executor`, `workers`, `progress`, `retries`: as for ``sweep``.

    **Returns:** a row for each case, in order: its entries and what the function returned.

    **Example:**

    >>> def study(seed, n):
    ...     case = cb.gallery.quadratic(seed, dx=2, dy=1, train=300, test=300)
    ...     return {"x": float(cb.solve(case.problem, case.train, basis=cb.Chebyshev(n)).x[0])}
    ...
    >>> rows = cb.sweep.tabulate(study, {"seed": [0], "n": [3, 4]}, "table", executor="here", progress=False)
    >>> [row["n"] for row in rows]
    [3, 4]
    """
    rows: Any = cases
    if isinstance(cases, Mapping):
        rows = [dict(zip(cases, values, strict=True)) for values in itertools.product(*cases.values())]
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"function must have a name, which identifies its runs; got {function!r}.")
    runs = folder if isinstance(folder, Runs) else Runs(folder)
    table = [(dict(case), {"function": name, **case}) for case in rows]
    label = lambda case: ", ".join(f"{key} {value}" for key, value in case.items())
    tasks = [Task(label(case), [spec], partial(_one_case, function, spec, case)) for case, spec in table]
    sweep(tasks, runs, len(tasks), name, progress, None, executor, workers, retries)
    return [{**case, **runs.get(spec).result} for case, spec in table]


def _one_case(function: Callable[..., Any], spec: Mapping[str, Any], case: Mapping[str, Any], tell: Any) -> list[Run]:
    answer = function(**case)
    if isinstance(answer, Solution):
        result = {
            "x": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), answer.x),
            "converged": bool(answer.converged),
            "ended": answer.result.name,
            "steps": int(answer.stats["steps"]),
        }
        return [Run(spec, result, dict(answer.history), {"seconds": float(answer.stats["seconds"])})]
    if not isinstance(answer, Mapping):
        raise TypeError(f"{spec['function']} must return a dict or a Solution, got {type(answer).__name__}")
    arrays = {key: np.asarray(value) for key, value in answer.items() if getattr(value, "ndim", 0)}
    return [Run(spec, {key: value for key, value in answer.items() if key not in arrays}, arrays)]
