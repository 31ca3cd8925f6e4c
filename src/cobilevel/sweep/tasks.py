"""A list of tasks worked off to its end, however often it is stopped."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..progress import ProgressBar
from .run_files import Run
from .store import Runs


@dataclass(frozen=True)
class Task:
    """Runs that are computed together: `work(tell)` returns one ``Run`` for each of `specs`, in their order."""

    label: str
    specs: Sequence[Mapping[str, Any]]
    work: Callable[[Callable[[float], None]], Sequence[Run]]


def sweep(
    tasks: Iterable[Task],
    runs: Runs,
    total: int,
    label: str,
    progress: bool | None = None,
    limit: float | None = None,
) -> bool:
    """Works off the tasks that are not finished yet. Stop it when you like, and start again.

    `tasks` may be a generator, whose later tasks look at what earlier ones found; `total` is how many it will yield.
    After `limit` seconds no further task is begun. Returns whether all are finished.
    """
    clock = time.monotonic()
    with ProgressBar(1000 * total, label, progress) as bar:
        for number, task in enumerate(tasks):
            if not runs.missing(task.specs):
                continue
            if limit is not None and time.monotonic() - clock > limit:
                return False
            tell = lambda share, n=number, t=task: bar.update(int(1000 * (n + share)), t.label)
            tell(0.0)
            began = time.monotonic()
            runs.add(task.work(tell))
            runs.spend(time.monotonic() - began)
    return True
