"""Runs on disk: one sealed file each, so that finished work is never done twice and none of it is lost.

``runs/NAME.npz`` holds the specification of a run, its result, what it cost, the versions it was run with, and its
curves. ``index.npz`` names the runs that are finished, and the time they took. Both are archives, compared with their
SHA-256 as they are read. The index is written after the files of the runs it adds, so a sweep can be stopped at any
moment; what it lists and is no longer there is noticed.
"""

import hashlib
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..ground import archive

_DIGITS = 20  # of the name of a run
_LOCKED_FOR = 60.0  # seconds to wait for another process that writes


class DamageError(ValueError):
    """Something in a store is damaged."""


@dataclass(frozen=True)
class Run:
    """One run: `spec` is its specification, `result` its result, `curves` its history, `cost` what it took.

    The first three are the same whenever it is run; `cost` is not.

    **Example:**

    >>> run = cb.sweep.Run({"seed": 0}, {"loss": 1.5}, {"upper": np.array([2.0, 1.5])})
    >>> run.result["loss"]
    1.5
    """

    spec: Mapping[str, Any]
    result: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


def name_of(spec: Mapping[str, Any]) -> str:
    """The name of a run: a digest of its specification, whatever the order of its entries.

    **Arguments:**

    - `spec`: a dict that JSON can hold.

    **Example:**

    >>> cb.sweep.name_of({"seed": 0, "n": 5}) == cb.sweep.name_of({"n": 5, "seed": 0})
    True
    """
    return hashlib.sha256(archive.as_json(dict(spec), sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _outcome(run: Run) -> Any:
    """What two runs that came to the same have in common."""
    arrays = {name: np.asarray(curve) for name, curve in run.curves.items()}
    curves = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
    return archive.as_json(dict(run.result), sort_keys=True), curves


@cache
def versions() -> dict[str, str]:
    """The device and the versions that runs are computed with here."""

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:  # run from a checkout that is not installed
            return "unknown"

    packages = {name: of(name) for name in ("cobilevel", "jax", "jaxlib", "equinox", "numpy")}
    return packages | {"python": platform.python_version(), "device": jax.devices()[0].device_kind}


class Runs:
    """The runs of one folder. Several processes may read and write it at the same time.

    A folder that cannot be written to can still be read. Damage raises a ``ValueError`` that says what to do.

    **Arguments:**

    - `folder`: where they are kept; made when the first is added.

    **Example:**

    >>> runs = cb.sweep.Runs("study")
    >>> runs.add([cb.sweep.Run({"seed": 0}, {"loss": 1.5})])
    >>> [run.result["loss"] for run in runs.find(seed=0)]
    [1.5]
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).expanduser()
        self._path = self.folder / "index.npz"
        there = (part for part in (self._path, self.folder / "runs", self.folder) if part.exists())
        self._writable = all(os.access(part, os.W_OK) for part in there)
        if self._path.is_file():
            self._index()
        elif (self.folder / "runs.sqlite").exists():
            raise ValueError(
                f"{self.folder} holds runs of an earlier version, which this version cannot read. Give another folder."
            )
        elif not self._writable:
            raise PermissionError(f"{self.folder} holds no runs and cannot be written to. Give another folder.")
        else:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
            with self._changing():
                pass  # an index is made of the files that are there

    def _check_writable(self) -> None:
        if not self._writable:
            raise PermissionError(f"{self.folder} cannot be written to: this store is read-only.")

    @contextmanager
    def _changing(self) -> Iterator[tuple[set[str], dict[str, Any]]]:
        """The names of the finished runs and the notes, for this process alone to change; kept on leaving."""
        self._check_writable()
        held = archive.lock(self.folder / "lock", _LOCKED_FOR)
        if held is None:
            raise TimeoutError(
                f"{self.folder} has been locked by another process for {_LOCKED_FOR:.0f} s: try again later."
            )
        with held:
            there = self._path.is_file()
            names, notes = self._index() if there else (self._whole(), {})
            before = (set(names), dict(notes))
            yield names, notes
            if not there or (names, notes) != before:
                digits = np.frombuffer(bytes.fromhex("".join(sorted(names))), np.uint8)
                archive.write(self._path, {"notes": notes}, {"runs": digits})

    def _index(self) -> tuple[set[str], dict[str, Any]]:
        """The names of the finished runs, and the notes."""
        try:
            document, arrays = archive.read(self._path, "index of runs")
            names = arrays["runs"].tobytes().hex()
            return {names[k : k + _DIGITS] for k in range(0, len(names), _DIGITS)}, dict(document["notes"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamageError(
                f"{error} Move it away and open the store again: runs whose files are intact are recovered, and a "
                "sweep computes the others again."
            ) from error

    def _read(self, name: str) -> tuple[Run, dict[str, str]]:
        """A run, and the versions it was computed with; raises where its file is not what was written."""
        try:
            document, arrays = archive.read(self.folder / "runs" / f"{name}.npz", "run")
            if name_of(document["spec"]) != name:
                raise ValueError("its file holds another run.")
            curves = archive.group(arrays, "curves/")
            return Run(document["spec"], document["result"], curves, document["cost"]), document["versions"]
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise DamageError(
                f"the run {name} in {self.folder} is damaged: {error} Start the sweep again to recompute what is "
                "missing."
            ) from error

    def _known(self, name: str) -> Run | None:
        """A run whose file is there and whole."""
        with suppress(DamageError):
            return self._read(name)[0]
        return None

    def _whole(self) -> set[str]:
        """The names of the runs whose files are what was written."""
        return {path.stem for path in self.folder.glob("runs/*.npz") if self._known(path.stem) is not None}

    def mend(self) -> list[str]:
        """Repairs a store after damage; a sweep does this first.

        Runs whose files are intact are finished. **Returns:** the names of runs that were finished but whose files are
        damaged or lost: they count as missing.
        """
        with self._changing() as (names, _):
            whole = self._whole()
            lost = names - whole
            names.intersection_update(whole)
            names.update(whole)
        return sorted(lost)

    # -- what is asked

    def missing(self, specs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The specifications whose runs are not finished, or are damaged."""
        finished, _ = self._index()
        return [spec for spec in specs if name_of(spec) not in finished or self._known(name_of(spec)) is None]

    def add(self, runs: Sequence[Run], used: Mapping[str, str] | None = None) -> None:
        """Adds finished runs; a run that is already there stays as it is. A task that was stopped is done again.

        `used`: the versions they were computed with, if not those of this process.
        """
        self._check_writable()
        added = {name_of(run.spec): run for run in runs}
        for name, run in added.items():
            known = self._known(name)
            if known is None or _outcome(known) != _outcome(run):
                document = {"spec": dict(run.spec), "result": dict(run.result), "cost": dict(run.cost)}
                document["versions"] = dict(versions() if used is None else used)
                curves = {f"curves/{key}": part for key, part in run.curves.items()}
                archive.write(self.folder / "runs" / f"{name}.npz", document, curves)
        with self._changing() as (names, _):
            names.update(added)

    def find(self, **where: Any) -> list[Run]:
        """The finished runs whose specification has these entries, without their curves; in a fixed order."""
        runs = (self._read(name)[0] for name in sorted(self._index()[0]))
        return [replace(run, curves={}) for run in runs if all(run.spec.get(k) == v for k, v in where.items())]

    def get(self, spec: Mapping[str, Any]) -> Run:
        """The finished run with this specification, without its curves."""
        return replace(self.whole([spec])[0], curves={})

    def curves(self, spec: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The curves of a finished run."""
        return dict(self.whole([spec])[0].curves)

    def whole(self, specs: Iterable[Mapping[str, Any]]) -> list[Run]:
        """The finished runs with these specifications and their curves."""
        finished, runs = self._index()[0], []
        for spec in specs:
            if name_of(spec) not in finished:
                raise KeyError(f"no finished run has the specification {dict(spec)}.")
            runs.append(self._read(name_of(spec))[0])
        return runs

    def origins(self) -> Counter[str]:
        """The devices and versions the runs were computed with, and how many runs with each."""
        every = (self._read(name)[1] for name in sorted(self._index()[0]))
        return Counter(f"{used['device']}, jax {used['jax']}, Python {used['python']}" for used in every)

    # -- time

    def spend(self, seconds: float) -> None:
        """Adds to the total time spent on these runs."""
        with self._changing() as (_, notes):
            notes["seconds"] = notes.get("seconds", 0.0) + seconds

    @property
    def seconds(self) -> float:
        """The total time spent on these runs, so far."""
        return self._index()[1].get("seconds", 0.0)
