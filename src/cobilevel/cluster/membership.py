"""``join``: this process becomes one of those that solve a problem together; alone, nothing happens."""

import contextlib
import hashlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..checks import whole
from ..keys import is_key
from ..programs import is_spread
from .connections import meet, without_output
from .environment import Place, place_in
from .rows import shards_of
from .watch import PeerWatch

ROWS = "rows"  # the axis of the mesh: samples are cut along it
_DIMENSIONS = 8  # the most that an array which is gathered has
_TOGETHER: list["Cluster"] = []  # what this process joined: JAX can be in one cluster at a time


class Cluster:
    """The processes that solve together, and the devices of all of them in a row.

    - `process`, `processes`: which one this is, and of how many.
    - `mesh`: the devices, one for each shard of the samples; ``None`` for a process alone.
    """

    def __init__(self, process: int = 0, processes: int = 1, mesh: Mesh | None = None, watch: PeerWatch | None = None):
        self.process, self.processes, self.mesh, self._watch = process, processes, mesh, watch

    def __repr__(self) -> str:
        return f"Cluster(process {self.process} of {self.processes}, {self.shards} shards)"

    @property
    def first(self) -> bool:
        """Whether this is the process that prints, draws and saves."""
        return self.process == 0

    @property
    def shards(self) -> int:
        """In how many pieces samples are cut."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def own(self) -> range:
        """The shards this process holds."""
        each = self.shards // self.processes
        return range(self.process * each, (self.process + 1) * each)

    def placed(self, pieces: list[np.ndarray]) -> jax.Array:
        """One array of the shards of all processes, each of which hands over its own; in their order, end to end."""
        assert self.mesh is not None
        if self.shards == 1:  # as any other array: programs are compiled for where their arguments are
            return jax.device_put(pieces[0])
        rows, devices = PartitionSpec(ROWS), self.mesh.devices.ravel()
        shape = (self.shards * len(pieces[0]), *pieces[0].shape[1:])
        parts = [jax.device_put(piece, devices[k]) for k, piece in zip(self.own, pieces, strict=True)]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, rows), parts)

    def gathered(self, pieces: list[np.ndarray]) -> list[np.ndarray]:
        """The arrays that all processes have for their shards, of any shapes, in the order of the shards."""
        if self.mesh is None:
            return pieces
        kind = pieces[0].dtype
        shapes = [np.array([*piece.shape, *[-1] * (_DIMENSIONS - piece.ndim)], np.int32) for piece in pieces]
        shapes = [shape[shape >= 0] for shape in self._everywhere(shapes)]
        most = max(kind.itemsize * int(np.prod(shape)) for shape in shapes)
        flat = [np.frombuffer(np.ascontiguousarray(piece).tobytes(), np.uint8) for piece in pieces]
        found = self._everywhere([np.pad(row, (0, most - len(row))) for row in flat])
        cut = lambda row, shape: row[: kind.itemsize * int(np.prod(shape))].copy().view(kind).reshape(shape)
        return [cut(row, shape) for row, shape in zip(found, shapes, strict=True)]

    def _everywhere(self, pieces: list[np.ndarray]) -> np.ndarray:
        """Pieces of one shape from all shards, stacked."""
        table = self.placed([piece[None] for piece in pieces])
        assert self.mesh is not None
        with self.in_touch():
            copied = jax.jit(lambda a: a, out_shardings=NamedSharding(self.mesh, PartitionSpec()))(table)
            return np.asarray(copied.addressable_data(0))

    def agreed(self, array: np.ndarray) -> np.ndarray:
        """What process 0 has: for numbers that all must have to the last bit, whatever their processors round to."""
        return array if self.processes == 1 else self.gathered([array] * len(self.own))[0]

    @contextlib.contextmanager
    def in_touch(self) -> Iterator[None]:
        """Around work that needs the others: should that fail, the watch has time to find out whose fault it is."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # JAX raises either
            if self._watch is None or self.processes == 1 or not _broken_off(error):
                raise
            self._watch.name_the_culprit()
            raise RuntimeError(
                "another process ended before this one was done. All must run the same script to its end; start all "
                "again, and a run with a checkpoint goes on."
            ) from error


def _broken_off(error: Exception) -> bool:
    """Whether an error is the compiler's word for a peer that does not answer."""
    words = str(error).lower()
    return any(sign in words for sign in ("gloo ", "nccl", "coordination service"))


def this_cluster() -> Cluster:
    """The cluster this process has joined; one of its own where it has not."""
    return _TOGETHER[0] if _TOGETHER else Cluster()


def join(shards: int | None = None) -> Cluster:
    """Makes this process one of those that ``cobilevel launch``, Slurm or Kubernetes started; alone, does nothing.

    To be called once, before anything is computed with JAX. From then on ``cb.spread`` cuts samples into shards, and
    ``cb.solve`` works on all of them together.

    **Arguments:**

    - `shards`: in how many pieces samples are cut, a multiple of the number of processes. With it, results are the same
      bit for bit whatever the number of processes. Left out, as many as there are devices (processors count as one
      for each process); ``COBILEVEL_SHARDS`` in the environment stands for it.
    """
    if _TOGETHER:
        return _TOGETHER[0]
    place = place_in(os.environ)
    shards = place.shards if shards is None else whole("shards", shards)
    if place.processes == 1 and shards is None:
        return Cluster()
    if shards is not None and shards % place.processes:
        raise ValueError(f"shards must be a multiple of the number of processes, {place.processes}, got {shards}.")
    bridge: Any = importlib.import_module("jax._src.xla_bridge")
    if bridge.backends_are_initialized():
        raise RuntimeError(
            "cb.cluster.join() comes before everything that JAX computes, arrays included: put it at the top of the "
            "script, right after the imports."
        )
    return _come_together(place, shards)


def _come_together(place: Place, shards: int | None) -> Cluster:
    jax.config.update("jax_num_cpu_devices", 1 if shards is None else shards // place.processes)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # programs that wait for others must not wait in a queue
    if (shards or 1) > 1:  # sums within a device are split among threads, and how depends on their number
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    watch = None if place.processes * (shards or 1) == 1 else meet(place)
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if shards is not None and len(devices) != shards:
        raise ValueError(
            f"shards is {shards}, and there are {len(devices)} devices ({devices[0].platform}). On other devices than "
            "processors there is one shard for each: leave shards out."
        )
    if watch is not None:
        watch.start()
    cluster = Cluster(place.process, place.processes, Mesh(np.array(devices), (ROWS,)), watch)
    with without_output():
        cluster.gathered([np.zeros(1)] * len(cluster.own))  # connects all to all
    _TOGETHER.append(cluster)
    return cluster


def digest_of(array: Any) -> bytes:
    """The bytes of an array; of one that is spread, a digest of each shard, the same in all processes."""
    if not is_spread(array):
        return np.ascontiguousarray(array).tobytes()
    digests = [hashlib.sha256(np.ascontiguousarray(part).tobytes()).digest() for part in shards_of(array)]
    return b"".join(part.tobytes() for part in this_cluster().gathered([np.frombuffer(d, np.uint8) for d in digests]))


def everywhere(tree: Any, like: Any) -> Any:
    """Arrays that are the same in all processes, on each of the devices over which something in `like` is spread.

    What a program is compiled for includes where its arguments are: the results of one step are on all devices.
    """
    mesh = next((leaf.sharding.mesh for leaf in jax.tree.leaves(like) if is_spread(leaf)), None)
    return tree if mesh is None else jax.tree.map(lambda leaf: _copied_to(mesh, leaf), tree)


def _copied_to(mesh: Mesh, leaf: Any) -> Any:
    if is_key(leaf):
        return jax.random.wrap_key_data(_copied_to(mesh, jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    if not isinstance(leaf, jax.Array) or leaf.sharding == (wanted := NamedSharding(mesh, PartitionSpec())):
        return leaf
    held = np.asarray(leaf)
    parts = [jax.device_put(held, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(held.shape, wanted, parts)


def in_step(like: Any, number: int, signal: int | None) -> tuple[int, int | None]:
    """A number as process 0 has it, and a signal that any process was sent, where something in `like` is spread.

    All processes must do the same: take as many steps, and stop at the same one.
    """
    if not any(map(is_spread, jax.tree.leaves(like))):
        return number, signal
    cluster = this_cluster()
    found = cluster.gathered([np.array([number, signal or 0])] * len(cluster.own))
    return int(found[0][0]), int(max(part[1] for part in found)) or None
