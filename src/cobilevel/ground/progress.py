"""A line that says how far work has come, where it takes longer than two seconds; silent where nobody watches."""

import shutil
import sys
import time


class ProgressBar:
    """Call ``update(done, words)`` as work goes on; the line appears on a terminal after `patience` seconds."""

    def __init__(self, total: int, label: str, show: bool | None = None, patience: float = 2.0):
        self._total, self._label = total, label
        self._show = sys.stderr.isatty() if show is None else show
        self._began = time.monotonic()
        self._next = self._began + patience
        self._width = 0  # of the line that stands there

    def update(self, done: int, words: str = "") -> None:
        now = time.monotonic()
        if not self._show or now < self._next:
            return
        self._next = now + (0.1 if sys.stderr.isatty() else 1.0)  # a notebook, or a file
        share, passed = min(done / self._total, 1.0) if self._total else 1.0, now - self._began
        left = f", {_clock(passed * (1 - share) / share)} left" if share else ""
        bar = f"[{'#' * round(20 * share):<20}] {100 * share:3.0f}%"
        self._write(f"{self._label} {words}  {bar}, {_clock(passed)}{left}")

    def _write(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = line if len(line) <= width else line[: width - 3] + "..."
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
