"""What happens on Ctrl-C or SIGTERM: a run ends between two steps, and hands over what it has."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from ..answer import Solution


class Interrupted(KeyboardInterrupt):
    """A solve that was stopped by a signal; `solution` is what it had so far, with which ``resume=`` goes on.

    `signal` is the number of the signal.
    """

    def __init__(self, words: str, solution: Solution, number: int = signal.SIGINT):
        super().__init__(words)
        self.solution, self.signal = solution, number


class Signals:
    """While it is entered, Ctrl-C (and SIGTERM, where that `ends` a run) is only noted, in `raised`.

    A second one of the same kind does what it always did. Only the main thread can do this; in others it does nothing.
    """

    def __init__(self, ends: bool):
        self._kinds = (signal.SIGINT, signal.SIGTERM) if ends else (signal.SIGINT,)
        self._before: dict[int, Any] = {}
        self.raised: int | None = None

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for kind in self._kinds:
                # someone else's handler stays where it is: a server or a notebook has its own way to end
                if signal.getsignal(kind) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[kind] = signal.signal(kind, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.raised = number
        signal.signal(number, self._before[number])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        for number, handler in self._before.items():
            signal.signal(number, handler)
