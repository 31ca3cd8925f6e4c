"""How this process comes together with the others: it meets them, listens where it should, and leaves in order."""

import atexit
import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from jax.extend.backend import register_backend_factory

from .environment import Place
from .meeting import enter_meeting, open_meeting
from .watch import PeerWatch

_COME = 300  # seconds in which all processes must have come


def free_port() -> int:
    """A port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def meet(place: Place) -> PeerWatch:
    """Finds the other processes. JAX knows of them from then on, and a watch over them is ready to begin."""
    state: Any = importlib.import_module("jax._src.distributed").global_state
    if state.client is not None:
        raise RuntimeError("jax.distributed is initialised already: leave that to cb.cluster.join().")
    address, host = place.coordinator or f"127.0.0.1:{free_port()}", None
    if place.process == 0:
        host = open_meeting(place.bind or address, place.processes)
    try:
        client = enter_meeting(address, place.process, _COME)
    except Exception as error:
        raise RuntimeError(
            f"process {place.process} of {place.processes} did not find the others at {address} within {_COME} s: have "
            f"all of them been started, and can they reach that address? ({error})"
        ) from error
    state.client, state.coordinator_address = client, address
    state.process_id, state.num_processes = place.process, place.processes
    _exchange_on(address, client)
    watch = PeerWatch(client, place.process, place.processes, place.parent)
    _leave_in_order(watch, state, host)
    return watch


def _exchange_on(address: str, client: Any) -> None:
    """Has processors exchange data on the interface that leads to the meeting point, and listen on no other."""
    host, _, port = address.rpartition(":")
    family, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        own = probe.getsockname()[0]
    bridge: Any = importlib.import_module("jax._src.xla_bridge")
    library: Any = importlib.import_module("jaxlib._jax")
    wires = lambda: library.make_gloo_tcp_collectives(distributed_client=client, hostname=own)
    register_backend_factory("cpu", lambda: bridge.make_cpu_client(collectives=wires()), priority=0, fail_quietly=False)


def _leave_in_order(watch: PeerWatch, state: Any, host: Any) -> None:
    """At the end the others are informed, of an error too, and the meeting point is closed."""
    before, failed = sys.excepthook, []

    def informed(kind: Any, error: Any, trace: Any) -> None:
        failed.append(kind)
        with contextlib.suppress(Exception):
            watch.leave(f"{kind.__name__}: {error}".splitlines()[0])
        before(kind, error, trace)

    def leave() -> None:
        with contextlib.suppress(Exception):
            if not failed:
                watch.leave()
            client, state.client = state.client, None
            client.shutdown()
        if host is not None:
            with contextlib.suppress(OSError):
                host.stdin.write(b"done")
                host.stdin.close()
                host.stdin = None

    sys.excepthook = informed
    atexit.register(leave)


@contextlib.contextmanager
def without_output() -> Iterator[None]:
    """Within it, nothing is printed to standard output, by libraries of other languages included."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
