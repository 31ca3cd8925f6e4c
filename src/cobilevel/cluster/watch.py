"""The watch: every process beats once a second, and one that has not for ten ends the others, with a sentence.

Beats go through the meeting point. Two threads, for a call there may hang: one beats and reads, the other looks at the
clock. Both run while the main thread waits for a peer that will never answer.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_BEAT, _SILENT = 1.0, 10.0  # seconds between beats; without one, after which a process counts as gone
_TIME_TO_NAME = 3.0  # seconds more that an error in communication waits for the watch to name the culprit
ENDED_BY_PEER = 75  # exit code: a failure that may pass, start again
_ROOT = "cobilevel/alive/"


class PeerWatch:
    """Watches all processes of a cluster from one of them."""

    def __init__(self, client: Any, process: int, processes: int, parent: int = 0):
        self.client, self.process, self.processes, self.parent = client, process, processes, parent
        self._seen = dict.fromkeys(range(processes), ("", time.monotonic()))
        self._said: dict[int, dict[str, Any]] = {}
        self._answered = time.monotonic()
        self._count, self._over = 0, False
        self._state = "at work"

    def start(self) -> None:
        """Begins to beat and to look; the threads end with the process."""
        self._beat()
        for task in (self._beating, self._looking):
            threading.Thread(target=task, daemon=True, name="cobilevel-watch").start()

    def leave(self, error: str = "") -> None:
        """Tells the others that this one is going, and why; it watches no more."""
        self._over = True
        self._state = error or "done"
        self._beat()

    def name_the_culprit(self) -> None:
        """After an error in communication: gives the watch the time to find out whose fault it is, and to end."""
        time.sleep(_SILENT + _TIME_TO_NAME)

    def _beat(self) -> None:
        self._count += 1
        words = {"count": self._count, "host": socket.gethostname(), "pid": os.getpid(), "state": self._state}
        self.client.key_value_set(f"{_ROOT}{self.process}", json.dumps(words), allow_overwrite=True)

    def _beating(self) -> None:
        while not self._over:
            with contextlib.suppress(Exception):  # the other thread sees that there was no answer
                self._beat()
                self._read()
            time.sleep(_BEAT)

    def _read(self) -> None:
        for key, text in self.client.key_value_dir_get(_ROOT):
            peer = int(key.rpartition("/")[2])
            if self._seen[peer][0] != text:
                self._seen[peer], self._said[peer] = (text, time.monotonic()), json.loads(text)
        self._answered = time.monotonic()

    def _looking(self) -> None:
        while not self._over:
            before = time.monotonic()
            time.sleep(_BEAT / 4)
            if time.monotonic() - before > _SILENT / 2:  # it was this one that stood still: the others may have been
                self._forgive()  # beating all the while
            words = self._trouble()
            if words and not self._over:
                end_with(words)

    def _forgive(self) -> None:
        """After a pause of this process itself: the clocks of the others begin again."""
        now = time.monotonic()
        self._answered = now
        self._seen = {peer: (text, now) for peer, (text, _) in self._seen.items()}

    def _trouble(self) -> str:
        """What is wrong with the others, in a sentence; empty where nothing is."""
        now = time.monotonic()
        if self.parent and os.getppid() != self.parent:
            return "the process that started this one is gone"
        if now - self._answered > _SILENT:
            return f"the meeting point, started by process 0, has not answered for {_SILENT:.0f} s"
        for peer in range(self.processes):
            said = self._said.get(peer, {})
            state, who = said.get("state", "at work"), self._who(peer)
            if peer == self.process or state == "done":
                continue
            if state != "at work":
                return f"{who} ended with an error ({state})"
            if now - self._seen[peer][1] > _SILENT:
                return f"{who} has not answered for {_SILENT:.0f} s: it was killed or stopped, or its machine is gone"
        return ""

    def _who(self, peer: int) -> str:
        said = self._said.get(peer)
        where = f" ({said['host']}, pid {said['pid']})" if said else ""
        return f"process {peer} of {self.processes}{where}"


def end_with(words: str, leave: Callable[[int], None] = os._exit) -> None:
    """Ends this process at once, whatever its main thread waits for."""
    sentence = f"cobilevel: {words}. Ending this process too; start all again, and a run with a checkpoint goes on."
    sys.stderr.flush()
    os.write(2, f"{sentence}\n".encode())
    leave(ENDED_BY_PEER)
