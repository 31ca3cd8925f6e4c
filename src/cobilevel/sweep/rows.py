"""The table of a store: rows with digests, and a tally of all of them, so that none changes or is lost unseen.

It is written with a rollback journal. A write-ahead log can be cut short without a trace, cannot be read where nothing
can be written, and does not work on file systems that machines share; stores that have one are changed.
"""

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .run_files import MOST_TEXT_BYTES, DamageError

_LOCKED_FOR = 60.0  # seconds to wait for another process that writes
_MODULUS = 2**256
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_COLUMNS = {
    "runs": ("name", "spec", "result", "cost", "manifest", "digest"),
    "notes": ("topic", "words", "digest"),
}
_BEFORE = {"runs": ("name", "spec", "result", "cost"), "notes": ("topic", "words")}  # there were no digests
_TALLY = ("one", "count", "total")


class Row(NamedTuple):
    """A row of the table of runs, as bytes; those of before there were digests have no manifest and no digest."""

    name: bytes
    spec: bytes
    result: bytes
    cost: bytes
    manifest: bytes | None
    digest: bytes | None

    @staticmethod
    def sealed(name: str, spec: str, result: str, cost: str, manifest: str) -> "Row":
        parts = name.encode(), spec.encode(), result.encode(), cost.encode(), manifest.encode()
        return Row(*parts, cells_digest(parts))


def _bytes_of(cell: Any) -> bytes:
    if isinstance(cell, bytes):
        return b"=" + cell
    return repr(cell).encode()


def cells_digest(cells: Sequence[Any]) -> bytes:
    """The SHA-256 of the cells of a row, in hexadecimal digits; where one ends and the next begins counts too."""
    found = hashlib.sha256()
    for cell in map(_bytes_of, cells):
        found.update(len(cell).to_bytes(8, "big") + cell)
    return found.hexdigest().encode()


def is_sound(cells: Sequence[Any]) -> bool:
    """Whether the last cell is the digest of the others."""
    return all(isinstance(cell, bytes) for cell in cells) and cells_digest(cells[:-1]) == cells[-1]


def word_of(cell: Any) -> str:
    """A cell in words, whatever damage has made of it."""
    return cell.decode(errors="replace") if isinstance(cell, bytes) else repr(cell)


def _weight(cells: Sequence[Any]) -> int:
    return int(cells_digest(cells), 16)


class RunTable:
    """What is in ``runs.sqlite``. Every error comes as a sentence."""

    def __init__(self, path: Path, writable: bool):
        self.path, self.writable = path, writable

    def refusal(self, reason: str) -> DamageError:
        """The error for a table that cannot be read, with the remedy."""
        return DamageError(
            f"{self.path} is damaged: {reason}. Move it away and open the store again: runs whose folders are whole "
            "are taken back from there, and a sweep computes the others again."
        )

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in _BUSY:
                raise TimeoutError(
                    f"{self.path} has been locked by another process for {_LOCKED_FOR:.0f} s: try again later."
                ) from error
            if code in _NO_ROOM:
                raise OSError(f"{self.path} cannot be read or written: {error}.") from error
            raise self.refusal(str(error)) from error
        except (OverflowError, MemoryError, UnicodeError) as error:
            raise self.refusal(str(error) or type(error).__name__) from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection in which all reads see one state of the table."""
        with self._sentences(), self._connected() as base:
            base.execute("begin")
            yield base
            base.execute("rollback")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection that alone may write; what it wrote is there after it as a whole, or not at all."""
        if not self.writable:
            raise PermissionError(f"{self.path.parent} cannot be written to: this store can be read only.")
        with self._sentences(), self._connected() as base:
            base.execute("begin immediate")
            try:
                yield base
                base.execute("commit")
            except BaseException:
                if base.in_transaction:
                    base.execute("rollback")
                raise

    def without_log(self) -> None:
        """Changes a store that has a write-ahead log; not while another process uses it."""
        if self._has_log():
            with suppress(TimeoutError), self._sentences(), self._connected() as base:
                base.execute("pragma journal_mode=delete")

    def _has_log(self) -> bool:
        if not self.path.is_file():
            return False
        with self.path.open("rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        if self.writable:
            with closing(self._limited(str(self.path), False)) as base:
                yield base
            return
        leftovers = [self.path.with_name(self.path.name + end) for end in ("-wal", "-journal")]
        if any(path.exists() and path.stat().st_size for path in leftovers):  # of a killed writer: undone in a copy
            with tempfile.TemporaryDirectory() as folder:
                for path in (self.path, *leftovers):
                    if path.exists():
                        shutil.copy(path, folder)
                with closing(self._limited(str(Path(folder) / self.path.name), False)) as base:
                    yield base
            return
        alone = "&immutable=1" if self._has_log() else ""  # there is no log, and none could be begun
        address = f"{self.path.absolute().as_uri()}?mode=ro{alone}"
        with closing(self._limited(address, True)) as base:
            yield base

    @staticmethod
    def _limited(address: str, uri: bool) -> sqlite3.Connection:
        base = sqlite3.connect(address, timeout=_LOCKED_FOR, uri=uri, isolation_level=None)
        base.text_factory = bytes  # a damaged letter is no error before its digest is looked at
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT_BYTES)
        return base

    # -- what there is

    def made(self, base: sqlite3.Connection) -> str:
        """Whether its tables are there: "no", "before" there were digests, or "yes"; raises for anything else."""
        names = {word_of(name) for (name,) in base.execute("select name from sqlite_master where type = 'table'")}
        found = {name: self._columns(base, name) for name in sorted(names)}
        if not found:
            return "no"
        if found == _COLUMNS | {"tally": _TALLY}:
            return "yes"
        if found == _BEFORE:
            return "before"
        raise self.refusal(f"its tables are {', '.join(found)}, and not those of a store")

    @staticmethod
    def _columns(base: sqlite3.Connection, table: str) -> tuple[str, ...]:
        return tuple(word_of(row[1]) for row in base.execute("select * from pragma_table_info(?)", (table,)))

    def make(self, base: sqlite3.Connection) -> None:
        """Makes tables, or adds digests to those of before."""
        if self.made(base) == "no":
            for name, columns in _COLUMNS.items():
                base.execute(f"create table {name} ({columns[0]} text primary key, {' text, '.join(columns[1:])} text)")
        else:
            for name, columns in _COLUMNS.items():
                for column in columns[len(_BEFORE[name]) :]:
                    base.execute(f"alter table {name} add column {column} text")
        base.execute(f"create table tally ({_TALLY[0]} integer primary key, {_TALLY[1]} integer, {_TALLY[2]} text)")
        self.count_again(base)

    def everything(self, base: sqlite3.Connection) -> tuple[list[Row], list[tuple[Any, ...]], bool]:
        """All runs and all notes, past the indices; and whether they are as many and the same as were written."""
        old = self.made(base) == "before"
        runs = [Row(*row, *([None, None] if old else [])) for row in base.execute("select * from runs not indexed")]
        notes = [(*row, *([None] if old else [])) for row in base.execute("select * from notes not indexed")]
        if old:
            return runs, notes, True
        total = sum(_weight(row) for row in (*runs, *notes)) % _MODULUS
        tally = base.execute("select * from tally").fetchall()
        return runs, notes, tally == [(1, len(runs) + len(notes), b"%064x" % total)]

    def count_again(self, base: sqlite3.Connection) -> None:
        """Writes the tally of what is there."""
        rows = [row for name in _COLUMNS for row in base.execute(f"select * from {name} not indexed")]
        total = sum(map(_weight, rows)) % _MODULUS
        base.execute("insert or replace into tally values (1, ?, ?)", (len(rows), f"{total:064x}"))

    def one(self, base: sqlite3.Connection, table: str, key: str) -> tuple[Any, ...] | None:
        """The row with this key, by the index."""
        row = base.execute(f"select * from {table} where {_COLUMNS[table][0]} = ?", (key,)).fetchone()
        return None if row is None else (*row, *[None] * (len(_COLUMNS[table]) - len(row)))

    def put(self, base: sqlite3.Connection, table: str, row: Sequence[Any]) -> None:
        """Writes a row in place of the one with its key, and brings the tally up to date."""
        before = self.one(base, table, row[0].decode())
        marks = ", ".join("?" * len(row))
        cells = [cell.decode() if isinstance(cell, bytes) else cell for cell in row]
        base.execute(f"insert or replace into {table} values ({marks})", cells)
        found = base.execute("select count, total from tally").fetchone()
        try:
            count, total = int(found[0]) + (before is None), int(found[1], 16) + _weight(row)
        except (TypeError, ValueError) as error:
            raise self.refusal("its tally is gone") from error
        total = (total - (0 if before is None else _weight(before))) % _MODULUS
        base.execute("update tally set count = ?, total = ?", (count, f"{total:064x}"))

    def write_again(self, base: sqlite3.Connection, runs: Sequence[Row], notes: Sequence[Sequence[Any]]) -> None:
        """Puts these in place of all that is there."""
        for table, rows in (("runs", runs), ("notes", notes)):
            base.execute(f"delete from {table}")
            for row in rows:
                cells = [cell.decode() if isinstance(cell, bytes) else cell for cell in row]
                base.execute(f"insert into {table} values ({', '.join('?' * len(row))})", cells)
        base.execute("delete from tally")
        self.count_again(base)
        self.check(base)

    def check(self, base: sqlite3.Connection) -> None:
        """Raises where SQLite finds its own file in disorder."""
        found = base.execute("pragma integrity_check").fetchall()
        if found != [(b"ok",)]:
            raise self.refusal(b"; ".join(row[0] for row in found[:2]).decode(errors="replace"))
