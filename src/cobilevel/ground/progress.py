"""A progress bar for work that takes longer than two seconds; silent where nobody watches."""

import sys
import time
from typing import Any


class ProgressBar:
    """Call ``update(done, words)`` as work goes on; the bar appears on a terminal after some `patience`, in
    seconds."""

    def __init__(self, total: int, label: str, show: bool | None = None, patience: float = 2.0):
        self._total, self._label, self._patience = total, label, patience
        self._show = sys.stderr.isatty() if show is None else show
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: int, words: str = "") -> None:
        if not self._show:
            return
        if self._bar is None:
            if time.monotonic() - self._began < self._patience:
                return
            self._bar = self._start()
        self._bar.update(self._task, completed=done, description=f"{self._label} {words}")

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(stderr=True), transient=True)
        self._task = bar.add_task(self._label, total=self._total)
        bar.start()
        return bar

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
