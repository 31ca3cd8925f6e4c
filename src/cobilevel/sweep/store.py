"""Runs on disk: one row and one folder each, so that finished work is never done twice and none of it is lost.

``runs.sqlite`` says which runs are finished and what came out; ``runs/NAME/`` holds the specification with the versions
it was run with, the result, the curves, and a manifest. A folder is complete before its row is written, and the rows of
runs that were computed together appear together, so a sweep can be stopped at any moment. What is read is first held
against its SHA-256: the row by ``get`` and ``find``, the curves by ``curves``, all of a run by ``missing``.
"""

import json
import os
import platform
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .rows import Row, RunTable, cells_digest, is_sound, word_of
from .run_files import (
    CURVES,
    MANIFEST,
    RESULT,
    SPECIFICATION,
    DamageError,
    Run,
    as_json,
    check_files,
    entry_of,
    name_of,
    new_draft,
    parsed,
    place_draft,
    read_curves,
    read_document,
    read_manifest,
    sweep_out_drafts,
    write_folder,
)

_PACKAGES = ("cobilevel", "jax", "jaxlib", "equinox", "numpy")


@cache
def versions() -> dict[str, str]:
    """What a run was computed with."""

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:  # run from a checkout that is not installed
            return "unknown"

    found = {name: of(name) for name in _PACKAGES}
    return found | {"python": platform.python_version(), "device": jax.devices()[0].device_kind}


class Runs:
    """The runs of one folder. Several processes may read and write it at the same time.

    Where nothing can be written the store can be read. Damage is a ``ValueError`` that says what to do.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        path = self.folder / "runs.sqlite"
        self._table = RunTable(path, self._may_write(path))
        if self._table.writable:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
            sweep_out_drafts(self.folder / "runs")
            self._prepare()
        elif not path.is_file():
            raise PermissionError(f"{self.folder} holds no runs, and cannot be written to. Give another folder.")

    def _may_write(self, path: Path) -> bool:
        there = (part for part in (path, self.folder / "runs", self.folder) if part.exists())
        return all(os.access(part, os.W_OK) for part in there)

    def _prepare(self) -> None:
        self._table.without_log()  # of a store of before
        path = self._table.path
        emptied = path.is_file() and not path.stat().st_size and any(self.folder.glob("runs/[0-9a-f]*"))
        with self._table.reading() as base:
            if self._table.made(base) == "yes":
                return
        with self._table.writing() as base:
            made = self._table.made(base)
            if made == "yes":  # by another process, meanwhile
                return
            if emptied:
                raise self._table.refusal("it is empty")
            self._table.make(base)
            if made == "no":  # the table was moved away, or there are no runs yet
                for row in self._from_folders(set()):
                    self._table.put(base, "runs", row)

    def _place(self, name: str) -> Path:
        return self.folder / "runs" / name

    def _damaged(self, name: str, reason: object) -> DamageError:
        return DamageError(
            f"the run {name} in {self.folder} is damaged: {reason}. Start the sweep again: it mends what it can from "
            "the folder of the run, and computes the rest again."
        )

    # -- what is checked

    def _checked(self, row: Row) -> tuple[Run, Mapping[str, Any] | None]:
        """The run in a row, without its curves, and its manifest; raises where it is not what was written."""
        if row.digest is None and row.manifest is None:
            return self._unsealed(row), None
        if not is_sound(row):
            raise DamageError("its row is not what was written")
        spec, result, cost, manifest = (json.loads(part or b"") for part in row[1:5])
        return Run(spec, result, {}, cost), manifest

    def _unsealed(self, row: Row) -> Run:
        """A run of before there were digests: its row is held against its files."""
        if not all(isinstance(part, bytes) for part in row[:4]):
            raise DamageError("its row is not what was written")
        place = self._place(row.name.decode(errors="replace"))
        spec, result, cost = (parsed(part, "its row") for part in row[1:4])
        if not all(isinstance(part, dict) for part in (spec, result, cost)) or name_of(spec).encode() != row.name:
            raise DamageError("its row is not what was written")
        if (place / MANIFEST).exists():
            raise DamageError("its row has lost its digest")
        if (place / RESULT).is_file() and as_json(read_document(place / RESULT)) != as_json(result):
            raise DamageError(f"its row and {RESULT} differ")
        return Run(spec, result, {}, cost)

    def _whole(self, row: Row) -> bool:
        """Whether the row and all files of a run are what was written."""
        try:
            _, manifest = self._checked(row)
            place = self._place(row.name.decode())
            if manifest is None:
                return (place / CURVES).is_file()
            check_files(place, manifest)
        except DamageError:
            return False
        return True

    def _from_folders(self, known: set[str]) -> Iterator[Row]:
        """Rows for the folders, of names that are not known, that are whole."""
        for place in sorted(self.folder.glob("runs/[0-9a-f]*")):
            if place.name in known or not (place / MANIFEST).is_file():
                continue
            with suppress(ValueError, KeyError, TypeError):  # whatever is in it
                manifest = read_manifest(place)
                check_files(place, manifest)
                spec = read_document(place / SPECIFICATION)["specification"]
                texts = [as_json(part) for part in (spec, read_document(place / RESULT), manifest["cost"], manifest)]
                if name_of(spec) == place.name:
                    yield Row.sealed(place.name, *texts)

    def mend(self) -> list[str]:
        """Puts a store in order after damage, which a sweep does first of all.

        Rows that are damaged or lost are written again from the folders that are whole. **Returns:** the names of the
        runs whose row could not be: they are dropped, and count as missing.
        """
        with self._table.writing() as base:
            if self._in_order(base):
                return []
            base.execute("reindex")
            rows, notes, _ = self._table.everything(base)
            sound = self._sound(rows)
            found = [*sound.values(), *self._from_folders(set(sound))]
            kept = [note for note in notes if is_sound(note) or (note[-1] is None and isinstance(note[0], bytes))]
            self._table.write_again(base, found, kept)
        return sorted({word_of(row.name) for row in rows} - {word_of(row.name) for row in found})

    def _in_order(self, base: sqlite3.Connection) -> bool:
        """Whether nothing is damaged, lost, or without a row."""
        try:
            self._table.check(base)
        except DamageError:
            return False
        rows, _, complete = self._table.everything(base)
        sound = self._sound(rows)
        return complete and len(sound) == len(rows) and not list(self._from_folders(set(sound)))

    def _sound(self, rows: Sequence[Row]) -> dict[str, Row]:
        found = {}
        for row in rows:
            with suppress(DamageError):
                self._checked(row)
                found[row.name.decode()] = row
        return found

    # -- what is asked

    def missing(self, specs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the specifications that have not been run to their end, or whose run is damaged."""
        wanted = list(specs)
        with self._table.reading() as base:
            rows = [self._table.one(base, "runs", name_of(spec)) for spec in wanted]
        return [spec for spec, row in zip(wanted, rows, strict=True) if row is None or not self._whole(Row(*row))]

    def add(self, runs: Sequence[Run], used: Mapping[str, str] | None = None) -> None:
        """Keeps finished runs: all of them, or (when stopped on the way) none. One that is there already stays.

        `used`: what they were computed with, if not with what is at hand here.
        """
        if not self._table.writable:
            raise PermissionError(f"{self.folder} cannot be written to: this store can be read only.")
        used, drafts, rows = versions() if used is None else used, [], []
        try:
            for run in runs:
                name = name_of(run.spec)
                drafts.append(new_draft(self.folder / "runs", name))
                manifest = write_folder(drafts[-1], run, used)
                spec, result, cost = (as_json(dict(part)) for part in (run.spec, run.result, run.cost))
                rows.append(Row.sealed(name, spec, result, cost, manifest))
            with self._table.writing() as base:
                for draft, row in zip(drafts, rows, strict=True):
                    if not self._there(base, row):
                        place_draft(draft, self._place(row.name.decode()))
                        self._table.put(base, "runs", row)
        finally:
            for draft in drafts:
                shutil.rmtree(draft, ignore_errors=True)

    def _there(self, base: sqlite3.Connection, row: Row) -> bool:
        """Whether the same run is there, whole, with the same outcome."""
        found = self._table.one(base, "runs", row.name.decode())
        if found is None or found[4] is None or found[2] != row.result or not self._whole(Row(*found)):
            return False
        arrays = [json.loads(manifest or b"")["arrays"] for manifest in (found[4], row.manifest)]
        return arrays[0] == arrays[1]

    def _all(self) -> dict[str, Row]:
        """Every row by name, all of them sound and none lost; raises otherwise."""
        with self._table.reading() as base:
            rows, _, complete = self._table.everything(base)
        for row in rows:
            try:
                self._checked(row)
            except DamageError as error:
                raise self._damaged(word_of(row.name), error) from error
        if not complete:
            raise self._changed()
        return {row.name.decode(): row for row in sorted(rows, key=lambda row: row.name)}

    def find(self, **where: Any) -> list[Run]:
        """The finished runs whose specification has these entries, without their curves; in a fixed order."""
        found = [self._checked(row)[0] for row in self._all().values()]
        return [run for run in found if all(run.spec.get(key) == value for key, value in where.items())]

    def _row(self, spec: Mapping[str, Any]) -> tuple[Run, Mapping[str, Any] | None]:
        name = name_of(spec)
        with self._table.reading() as base:
            row = self._table.one(base, "runs", name)
        row = self._all().get(name) if row is None else Row(*row)
        if row is None:
            raise KeyError(f"no finished run has the specification {dict(spec)}.")
        try:
            return self._checked(row)
        except DamageError as error:
            raise self._damaged(name, error) from error

    def get(self, spec: Mapping[str, Any]) -> Run:
        """The finished run with this specification, without its curves."""
        return self._row(spec)[0]

    def curves(self, spec: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The curves of a finished run."""
        name, (_, manifest) = name_of(spec), self._row(spec)
        try:
            return read_curves(self._place(name) / CURVES, manifest)
        except DamageError as error:
            raise self._damaged(name, error) from error

    def origins(self) -> Counter[str]:
        """With what the runs were computed, and how many with each."""
        found: Counter[str] = Counter()
        for name, row in self._all().items():
            _, manifest = self._checked(row)
            try:
                entry = None if manifest is None else entry_of(manifest, SPECIFICATION)
                used = read_document(self._place(name) / SPECIFICATION, entry)["versions"]
                found[f"{used['device']}, jax {used['jax']}, Python {used['python']}"] += 1
            except (DamageError, KeyError, TypeError) as error:
                raise self._damaged(name, error) from error
        return found

    # -- notes

    def spend(self, seconds: float) -> None:
        """Adds to the time that was spent on these runs, by all starts together."""
        with self._table.writing() as base:
            before = self._words(self._table.one(base, "notes", "seconds"))
            self._put_note(base, "seconds", (before or 0.0) + seconds)

    def note(self, topic: str, words: Any) -> None:
        """Keeps something that was found out on the way, for the next start to know."""
        with self._table.writing() as base:
            self._put_note(base, topic, words)

    def _put_note(self, base: sqlite3.Connection, topic: str, words: Any) -> None:
        cells = [topic.encode(), as_json(words).encode()]
        self._table.put(base, "notes", [*cells, cells_digest(cells)])

    def noted(self, topic: str) -> Any:
        """What was noted under a topic, or ``None``."""
        with self._table.reading() as base:
            _, notes, complete = self._table.everything(base)
        if not complete:
            raise self._changed()
        return self._words(next((note for note in notes if note[0] == topic.encode()), None))

    def _changed(self) -> DamageError:
        return self._table.refusal("rows are lost or have changed; Runs(folder).mend() may put it in order")

    def _words(self, note: Sequence[Any] | None) -> Any:
        if note is None:
            return None
        if note[-1] is not None and not is_sound(note):
            raise self._table.refusal("a note is not what was written; Runs(folder).mend() drops it")
        try:
            return parsed(note[1] if isinstance(note[1], bytes) else repr(note[1]).encode(), "a note")
        except DamageError as error:
            raise self._table.refusal(str(error)) from error
