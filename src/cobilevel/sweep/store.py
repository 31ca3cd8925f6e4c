"""Runs on disk: one row and one folder each, so that finished work is never done twice and none of it is lost.

``runs.sqlite`` (in write-ahead mode) says which runs are finished and what came out; ``runs/NAME/`` holds the
specification with the versions it was run with, the result and the curves. A folder is complete before its row is
written, and the rows of runs that were computed together appear together, so a sweep can be stopped at any moment.
"""

import hashlib
import json
import os
import platform
import secrets
import shutil
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

_PACKAGES = ("cobilevel", "jax", "jaxlib", "equinox", "numpy")


@dataclass(frozen=True)
class Run:
    """One run: `spec` says what it was, `result` what came out, `curves` how it went, `cost` what it took.

    The first three are the same whenever it is run; the last is not.
    """

    spec: Mapping[str, Any]
    result: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


def name_of(spec: Mapping[str, Any]) -> str:
    """The name of a run: a digest of its specification, whatever the order of its entries."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:20]


def versions() -> dict[str, str]:
    """What a run was computed with."""

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:  # run from a checkout that is not installed
            return "unknown"

    found = {name: of(name) for name in _PACKAGES}
    return found | {"python": platform.python_version(), "device": jax.devices()[0].device_kind}


def _run_of(row: tuple[str, str, str]) -> Run:
    spec, result, cost = (json.loads(part) for part in row)
    return Run(spec, result, {}, cost)


class Runs:
    """The runs of one folder. Several processes may read and write it at the same time."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        with closing(self._connect()) as base, base:
            base.execute("pragma journal_mode=wal")
            base.execute("create table if not exists runs (name text primary key, spec text, result text, cost text)")
            base.execute("create table if not exists notes (topic text primary key, words text)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "runs.sqlite", timeout=60)

    def missing(self, specs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the specifications that have not been run to their end."""
        with closing(self._connect()) as base:
            known = {name for (name,) in base.execute("select name from runs")}
        whole = lambda name: name in known and (self.folder / "runs" / name / "curves.npz").is_file()
        return [spec for spec in specs if not whole(name_of(spec))]

    def add(self, runs: Sequence[Run]) -> None:
        """Keeps finished runs: all of them, or (when stopped on the way) none."""
        used, rows = versions(), []
        for run in runs:
            name = name_of(run.spec)
            self._write(name, run, used)
            rows.append((name, *(json.dumps(dict(part), sort_keys=True) for part in (run.spec, run.result, run.cost))))
        with closing(self._connect()) as base, base:
            base.executemany("insert or replace into runs values (?, ?, ?, ?)", rows)

    def _write(self, name: str, run: Run, used: dict[str, str]) -> None:
        draft = self.folder / "runs" / f".{name}-{os.getpid()}-{secrets.token_hex(4)}"
        draft.mkdir()
        try:
            spec = {"specification": dict(run.spec), "versions": used}
            (draft / "specification.json").write_text(json.dumps(spec, indent=1, sort_keys=True))
            (draft / "result.json").write_text(json.dumps(dict(run.result), indent=1, sort_keys=True))
            np.savez_compressed(draft / "curves.npz", **{k: np.asarray(v) for k, v in run.curves.items()})  # pyright: ignore
            self._place(draft, self.folder / "runs" / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _place(self, draft: Path, final: Path) -> None:
        """Moves a folder to its place. What another process puts there meanwhile is as good: runs are repeatable."""
        try:
            draft.rename(final)
        except OSError:  # there is one: whole, or left behind by a sweep that was stopped
            shutil.rmtree(final, ignore_errors=True)
            try:
                draft.rename(final)
            except OSError:
                if not (final / "curves.npz").is_file():  # nobody else's either: a real fault
                    raise

    def find(self, **where: Any) -> list[Run]:
        """The finished runs whose specification has these entries, without their curves; in a fixed order."""
        with closing(self._connect()) as base:
            rows = base.execute("select spec, result, cost from runs order by name").fetchall()
        found = [_run_of(row) for row in rows]
        return [run for run in found if all(run.spec.get(key) == value for key, value in where.items())]

    def get(self, spec: Mapping[str, Any]) -> Run:
        """The finished run with this specification, without its curves."""
        with closing(self._connect()) as base:
            row = base.execute("select spec, result, cost from runs where name = ?", (name_of(spec),)).fetchone()
        if row is None:
            raise KeyError(f"no finished run has the specification {dict(spec)}.")
        return _run_of(row)

    def curves(self, spec: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The curves of a finished run."""
        path = self.folder / "runs" / name_of(spec) / "curves.npz"
        try:
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is missing or damaged: {error}. Delete its folder, and run again.") from error

    def origins(self) -> Counter[str]:
        """With what the runs were computed, and how many with each."""
        whole = (path for path in self.folder.glob("runs/*/specification.json") if path.parent.name[0] != ".")
        used = (json.loads(path.read_text())["versions"] for path in whole)
        return Counter(f"{v['device']}, jax {v['jax']}, Python {v['python']}" for v in used)

    def spend(self, seconds: float) -> None:
        """Adds to the time that was spent on these runs, by all processes together."""
        add = "insert into notes values ('seconds', ?) on conflict(topic) do update set words = words + excluded.words"
        with closing(self._connect()) as base, base:
            base.execute(add, (seconds,))

    def note(self, topic: str, words: Any) -> None:
        """Keeps something that was found out on the way, for the next start to know."""
        with closing(self._connect()) as base, base:
            base.execute("insert or replace into notes values (?, ?)", (topic, json.dumps(words)))

    def noted(self, topic: str) -> Any:
        """What was noted under a topic, or ``None``."""
        with closing(self._connect()) as base:
            row = base.execute("select words from notes where topic = ?", (topic,)).fetchone()
        return None if row is None else json.loads(row[0])
