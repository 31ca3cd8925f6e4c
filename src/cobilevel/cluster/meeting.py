"""Where processes meet: JAX's coordination service in a small process of its own, so that it outlives the first one.

JAX has the first process host it. When that one is killed, all others are ended on the spot, without a word on why.
"""

import importlib
import subprocess
import sys
import time
from typing import Any

_LINGER = 20  # seconds it goes on after the first process is gone: the others need it to find out, and to say so
_BIND = 30  # seconds in which the port must become free
_HEARTBEAT = 100  # seconds after which JAX itself gives up on a process; the watch of this library is much faster
_SHUTDOWN = 5  # seconds that a process waits for the others when it leaves


def open_meeting(address: str, processes: int) -> Any:
    """Starts the process; what comes back is to be kept, for it ends some time after its standard input is closed."""
    command = [sys.executable, "-P", __file__, address, str(processes)]  # this file alone: it loads in no time
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert host.stdout is not None
    if host.stdout.readline().strip() != b"open":
        raise RuntimeError(
            f"the processes cannot meet at {address}: is the port in use, or the address not one of this machine? "
            "Choose another in COBILEVEL_COORDINATOR, or state the address to listen on in COBILEVEL_BIND."
        )
    return host


def _coordination() -> Any:
    """What of JAX the service and its clients are in; it has no public name."""
    return importlib.import_module("jaxlib._jax")


def serve(address: str, processes: int) -> None:
    """Hosts the service until standard input is closed, and a while longer; what the helper process runs."""
    give_up = time.monotonic() + _BIND
    while True:
        try:
            service = _coordination().get_distributed_runtime_service(
                address, processes, heartbeat_timeout=_HEARTBEAT, shutdown_timeout=_SHUTDOWN
            )
            break
        except Exception:  # the port of a meeting that has not ended yet
            if time.monotonic() > give_up:
                raise
            time.sleep(1)
    print("open", flush=True)
    if sys.stdin.read().strip() != "done":
        time.sleep(_LINGER)
    service.shutdown()


def enter_meeting(address: str, process: int, seconds: int) -> Any:
    """A client of the service, connected: all processes must come within so many seconds."""
    client = _coordination().get_distributed_runtime_client(
        address,
        process,
        init_timeout=seconds,
        heartbeat_timeout=_HEARTBEAT,
        shutdown_timeout=_SHUTDOWN,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    return client


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
