"""``launch``: starts a script several times on this machine, and looks after the processes until they have ended."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from .connections import free_port
from .environment import COORDINATOR, PARENT, PROCESS, PROCESSES, SHARDS

_LOOK = 0.1  # seconds between looks at the processes
_GRACE = 5.0  # seconds that the others have to end on their own, once they are asked to
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(command: Sequence[str], processes: int, shards: int | None = None) -> int:
    """Runs a Python script in so many processes that solve together, over the loopback interface.

    Standard output is that of process 0; errors of all are passed on, with the number of the process in front from 1
    on. Signals are passed on. When one process ends badly, the others are ended.

    **Arguments:**

    - `command`: the script and its arguments.
    - `processes`: how many.
    - `shards`: in how many pieces samples are cut; see ``join``.

    **Returns:** 0, or the exit code of the process that ended badly first (128 and the number of a signal).
    """
    if shards is not None and shards % processes:
        raise ValueError(f"--shards must be a multiple of the number of processes, {processes}, got {shards}.")
    common = {COORDINATOR: f"127.0.0.1:{free_port()}", PROCESSES: str(processes), PARENT: str(os.getpid())}
    common |= {} if shards is None else {SHARDS: str(shards)}
    children = [_started(command, os.environ | common | {PROCESS: str(k)}, k) for k in range(processes)]
    readers = [_passing_on(child.stderr, f"[{k}] ".encode()) for k, child in enumerate(children) if k]
    before = {number: signal.signal(number, lambda sent, _: _send(children, sent)) for number in _FORWARDED}
    try:
        code = _looked_after(children)
    finally:
        _send(children, signal.SIGKILL)
        for number, handler in before.items():
            signal.signal(number, handler)
    for child in children:
        child.wait()
    for reader in readers:
        reader.join(timeout=1)
    return code


def _started(command: Sequence[str], environment: dict[str, str], number: int) -> subprocess.Popen:
    """A process in a session of its own: signals reach it from here, once."""
    mute: Any = {} if number == 0 else {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True, **mute)


def _passing_on(source: Any, prefix: bytes) -> threading.Thread:
    def copy() -> None:
        with source:
            for line in source:
                os.write(2, prefix + line)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _send(children: list[subprocess.Popen], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _looked_after(children: list[subprocess.Popen]) -> int:
    """Waits until all have ended; after the first that ended badly, the others have a few seconds."""
    code, until = 0, float("inf")
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        bad = [k for k, child in enumerate(children) if child.poll()]
        if bad and not code:
            code = _exit_code(children[bad[0]])
            how = f"was ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
            print(f"cobilevel: process {bad[0]} of {len(children)} {how}; ending the others.", file=sys.stderr)
            until = time.monotonic() + _GRACE
            _send(children, signal.SIGTERM)
        time.sleep(_LOOK)
    return code or next((_exit_code(child) for child in children if child.poll()), 0)


def _exit_code(child: subprocess.Popen) -> int:
    return 128 - child.returncode if child.returncode < 0 else child.returncode
