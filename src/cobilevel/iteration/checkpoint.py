"""Checkpoints: one file that holds all the runs of a solve, written while it goes on, from which it goes on.

A solve is one run, or several where a basis is chosen, grown or learned, one after the other. What happens between
runs is computed again, and comes out as before; the runs are not.
"""

import hashlib
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import archive
from ..cluster import Cluster
from .course import Course

_WRITE_EVERY = 10.0  # seconds between two writes
_WRITE_RARELY = 20.0  # and so many times as long as a write takes: what is large is written less often

Part = tuple[dict[str, Any], dict[str, np.ndarray]]


class Checkpoint:
    """The checkpoint of one solve in a folder. `run`: what the solve is, as digests by name."""

    def __init__(self, folder: str | Path, run: Mapping[str, str]):
        self.path = Path(folder) / "checkpoint.npz"
        self._run = dict(run)
        self._parts: list[Part] = []
        self._count = 0
        self._lock: Any = None
        self._writes = jax.process_index() == 0
        self._written, self._took, self.trouble = -np.inf, 0.0, ""

    def __enter__(self) -> "Checkpoint":
        try:
            if self._writes:
                self._prepare()
            if self.path.is_file():
                self._parts = self._read()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _prepare(self) -> None:
        """Makes the folder, and sees to it that this process alone writes to it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = archive.lock(self.path.parent / "lock")
        except OSError as error:
            raise OSError(
                f"checkpoint: {self.path.parent} cannot be written to ({error}). Give another folder."
            ) from error
        if self._lock is None:
            raise ValueError(
                f"checkpoint: another process is at work on the run in {self.path.parent}. Wait for it, or give "
                "another folder."
            )

    def _read(self) -> list[Part]:
        """The runs that the file holds; raises where they belong to another solve."""
        document, arrays = archive.read(self.path, "checkpoint")
        before, runs = document.get("run", 0), document.get("runs", 0)
        known = isinstance(before, dict) and isinstance(runs, list) and all(isinstance(one, dict) for one in runs)
        if not known:
            raise ValueError(f"{self.path} is no checkpoint that this version reads. Give another folder.")
        differing = sorted(name for name in {*before, *self._run} if before.get(name) != self._run.get(name))
        if differing:
            raise ValueError(
                f"checkpoint: {self.path.parent} holds another run, which differs in: {', '.join(differing)}. Give "
                "another folder for this one, or delete that one to begin anew."
            )
        return [(numbers, archive.group(arrays, f"{k}/")) for k, numbers in enumerate(runs)]

    def check_everywhere(self, cluster: Cluster) -> None:
        """Raises where the processes of a cluster do not see the same file."""
        own = np.frombuffer(hashlib.sha256(archive.seal_of(self.path)).digest(), np.uint8)
        seen = cluster.gathered([own] * len(cluster.own))
        if any(part.tobytes() != seen[0].tobytes() for part in seen):
            raise ValueError(
                f"checkpoint: {self.path.parent} is not the same in all processes. Give a folder that they share."
            )

    def next_run(self, structure: str, like: Any) -> tuple["Kept", Course | None]:
        """Where the next run of the solve is kept, and how far it had come; raises where that is another one."""
        number, self._count = self._count, self._count + 1
        kept = Kept(self, number, structure)
        if number >= len(self._parts):
            return kept, None
        document, arrays = self._parts[number]
        if document.get("structure") != structure:
            raise ValueError(
                f"checkpoint: run {number + 1} of those in {self.path.parent} was with another basis or solver, or "
                "other features. Versions of JAX and cobilevel must be the same; else delete the folder to begin anew."
            )
        try:
            return kept, Course.again(document, arrays, like)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{self.path} does not hold what a checkpoint does: {error!r}. Delete it.") from error

    def put(self, number: int, structure: str, course: Course, at_once: bool) -> None:
        """Keeps a run; the file is written where that is due, or asked for."""
        now = time.monotonic()
        if not at_once and now - self._written < max(_WRITE_EVERY, _WRITE_RARELY * self._took):
            return
        numbers, arrays = course.kept()
        self._parts[number:] = [({**numbers, "structure": structure}, arrays)]
        if self._writes:
            self._write()
        self._written = time.monotonic()
        self._took = self._written - now

    def _write(self) -> None:
        """Writes the file; the first failure to do so is an error, later ones a warning: the run is worth more."""
        document = {"run": self._run, "runs": [numbers for numbers, _ in self._parts]}
        arrays = {f"{k}/{name}": part for k, (_, parts) in enumerate(self._parts) for name, part in parts.items()}
        try:
            archive.write(self.path, document, arrays)
        except OSError as error:
            words = f"checkpoint: {self.path} could not be written ({error})."
            if self._written < 0:
                raise OSError(f"{words} Make room, or give another folder.") from error
            if words != self.trouble:
                warnings.warn(f"{words} The one before it is intact; the run goes on, and tries again.", stacklevel=6)
            self.trouble = words
        else:
            self.trouble = ""


class Kept:
    """Where one run of a solve is kept."""

    def __init__(self, checkpoint: Checkpoint, number: int, structure: str):
        self._checkpoint, self._number, self._structure = checkpoint, number, structure

    def put(self, course: Course, at_once: bool = False) -> None:
        """Keeps how far the run has come, where that is due or asked for."""
        self._checkpoint.put(self._number, self._structure, course, at_once)

    def words(self) -> str:
        """How to go on, after an interruption."""
        if self._checkpoint.trouble:
            return self._checkpoint.trouble
        return f"The same call with checkpoint={str(self._checkpoint.path.parent)!r} goes on from there."
