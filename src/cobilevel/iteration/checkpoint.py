"""Checkpoints: one file with all the runs of a solve, written as it proceeds, from which it can continue.

A solve is one run, or several in sequence if a basis is chosen, grown or learned. What happens between runs is computed
again, with the same outcome; the runs are not.
"""

import time
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..ground import archive, path_given
from .course import Course

_WRITE_EVERY = 10.0  # seconds between two writes
_WRITE_RARELY = 20.0  # and so many times as long as a write takes: what is large is written less often


def _written_by() -> str:
    """The versions that a run depends on."""
    return f"cobilevel {version('cobilevel')} with jax {version('jax')}"


class Checkpoint:
    """The checkpoint of one solve in a folder. `solve`: what the solve is, as digests by name."""

    def __init__(self, folder: str | Path, solve: Mapping[str, str]):
        self.path = path_given("checkpoint", folder) / "checkpoint.npz"
        self._solve = dict(solve)
        self._parts: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []  # a document and arrays for each run
        self._number, self._structure = -1, ""  # of the run that goes on
        self._lock: Any = None
        self._written, self._took, self._trouble = -np.inf, 0.0, ""

    def __enter__(self) -> "Checkpoint":
        try:
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
        """Makes the folder, and ensures that only this process writes to it."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = archive.lock(folder / "lock")
        except OSError as error:
            raise OSError(f"checkpoint: {folder} cannot be written to ({error}). Give another folder.") from error
        if self._lock is None:
            raise ValueError(
                f"checkpoint: another process is writing to {folder}. Wait for it to end, or give another folder."
            )

    def _read(self) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """The runs that the file holds; raises if they belong to another solve."""
        document, arrays = archive.read(self.path, "checkpoint")
        if document.get("written_by") != _written_by():
            said = document.get("written_by") or "another version"
            raise ValueError(
                f"checkpoint: {self.path} was written by {said}, and this is {_written_by()}: a run goes on in the "
                "version that it began with. Give another folder, or delete this one to start again."
            )
        before, runs = document.get("run"), document.get("runs")
        if not isinstance(before, dict) or not isinstance(runs, list) or not all(isinstance(one, dict) for one in runs):
            raise ValueError(f"{self.path} is not a checkpoint that this version can read. Give another folder.")
        differing = sorted(name for name in {*before, *self._solve} if before.get(name) != self._solve.get(name))
        if differing:
            raise ValueError(
                f"checkpoint: {self.path.parent} holds another run, which differs in: {', '.join(differing)}. Give "
                "another folder, or delete this one to start again."
            )
        return [(numbers, archive.group(arrays, f"{k}/")) for k, numbers in enumerate(runs)]

    def next_run(self, structure: str, like: Any) -> Course | None:
        """The saved course of the next run of the solve, if it had begun; raises if that was another run."""
        self._number, self._structure = self._number + 1, structure
        if self._number >= len(self._parts):
            return None
        document, arrays = self._parts[self._number]
        if document.get("structure") != structure:
            raise ValueError(
                f"checkpoint: run {self._number + 1} in {self.path.parent} used another basis, solver or features. Use "
                "the same versions of JAX and cobilevel, or delete the folder to start again."
            )
        try:
            return Course.again(document, arrays, like)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{self.path} is not a valid checkpoint: {error!r}. Delete it.") from error

    def put(self, course: Course, at_once: bool = False) -> None:
        """Keeps the course of the run; writes the file if that is due, or asked for.

        The first failure to write is an error; later ones are warnings, since the run is worth more.
        """
        now = time.monotonic()
        if not at_once and now - self._written < max(_WRITE_EVERY, _WRITE_RARELY * self._took):
            return
        numbers, arrays = course.kept()
        self._parts[self._number :] = [({**numbers, "structure": self._structure}, arrays)]
        runs = [numbers for numbers, _ in self._parts]
        document = {"written_by": _written_by(), "run": self._solve, "runs": runs}
        arrays = {f"{k}/{name}": part for k, (_, parts) in enumerate(self._parts) for name, part in parts.items()}
        try:
            archive.write(self.path, document, arrays)
            self._trouble = ""
        except OSError as error:
            words = f"checkpoint: {self.path} could not be written ({error})."
            if self._written < 0:
                raise OSError(f"{words} Free some space, or give another folder.") from error
            if words != self._trouble:
                warnings.warn(f"{words} The previous one is intact; the run continues and tries again.", stacklevel=5)
            self._trouble = words
        self._written = time.monotonic()
        self._took = self._written - now

    def words(self) -> str:
        """How to continue after an interruption."""
        return self._trouble or f"The same call with checkpoint={str(self.path.parent)!r} continues from there."
