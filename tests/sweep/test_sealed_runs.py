"""A store under damage: what it says is what was written, or an error that names the run and the remedy."""

import importlib.util
import json
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from cobilevel.sweep import Run, Runs, name_of, rows, run_files

SPECS = [{"k": k} for k in range(3)]
NAME = name_of(SPECS[1])


def made(folder):
    runs = Runs(folder)
    runs.add([Run(spec, {"loss": 0.5 + spec["k"]}, {"curve": np.arange(4.0)}, {"seconds": 1.0}) for spec in SPECS])
    return runs


@contextmanager
def table_of(folder):
    with closing(sqlite3.connect(folder / "runs.sqlite", isolation_level=None)) as base:
        yield base


def losses(runs):
    return {run.spec["k"]: run.result["loss"] for run in runs.find()}


LOSSES = {0: 0.5, 1: 1.5, 2: 2.5}


@pytest.mark.parametrize(
    "damage",
    [
        "update runs set result = replace(result, '1.5', '1.7')",
        "update runs set cost = replace(cost, '1.0', '9.0') where name = '{name}'",
        "update runs set manifest = null, digest = null where name = '{name}'",
        "update runs set name = 'x' || substr(name, 2) where name = '{name}'",
        "update runs set result = 7 where name = '{name}'",
        "delete from runs where name = '{name}'",
    ],
)
def test_a_row_that_changed_is_noticed_and_mended(tmp_path, damage):
    runs = made(tmp_path)
    runs.note("how", {"block": 4})
    with table_of(tmp_path) as base:
        base.execute(damage.format(name=NAME))
    with pytest.raises(ValueError, match="damaged"):
        runs.find()
    with pytest.raises((ValueError, KeyError), match=r"damaged|no finished run"):
        runs.get(SPECS[1])
    assert runs.get(SPECS[2]).result == {"loss": 2.5}
    assert runs.missing(SPECS) == [SPECS[1]]
    assert set(runs.mend()) <= {"x" + NAME[1:]}, "what is in a folder is not lost"
    assert losses(runs) == LOSSES
    assert runs.missing(SPECS) == []
    assert runs.get(SPECS[1]).cost == {"seconds": 1.0}
    assert runs.noted("how") == {"block": 4}
    assert runs.mend() == []


def test_a_run_that_cannot_be_mended_is_computed_again(tmp_path):
    """Its row is damaged, and so is its folder."""
    runs = made(tmp_path)
    with table_of(tmp_path) as base:
        base.execute("update runs set result = '{}' where name = ?", (NAME,))
    path = tmp_path / "runs" / NAME / "result.json"
    path.write_text(path.read_text().replace("1.5", "1.7"))
    with pytest.raises(ValueError, match=f"run {NAME} .* damaged: its row .* Start the sweep again"):
        runs.get(SPECS[1])
    assert runs.mend() == [NAME]
    assert runs.missing(SPECS) == [SPECS[1]]
    runs.add([Run(SPECS[1], {"loss": 1.5}, {"curve": np.arange(4.0)})])
    assert losses(runs) == LOSSES
    assert runs.missing(SPECS) == []


@pytest.mark.parametrize("file", ["curves.npz", "result.json", "specification.json"])
def test_a_file_that_changed_is_noticed(tmp_path, file):
    runs = made(tmp_path)
    path = tmp_path / "runs" / NAME / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    assert runs.missing(SPECS) == [SPECS[1]]
    asked = {"curves.npz": lambda: runs.curves(SPECS[1]), "specification.json": runs.origins}
    if file in asked:
        with pytest.raises(ValueError, match=f"run {NAME} .* {file} is not what was written"):
            asked[file]()
    assert losses(runs) == LOSSES, "rows say what was written"
    runs.add([Run(SPECS[1], {"loss": 1.5}, {"curve": np.arange(4.0)})])
    assert runs.missing(SPECS) == []
    np.testing.assert_array_equal(runs.curves(SPECS[1])["curve"], np.arange(4.0))


def test_a_note_that_changed_is_noticed(tmp_path):
    runs = made(tmp_path)
    runs.spend(3.5)
    with table_of(tmp_path) as base:
        base.execute("update notes set words = '9.5'")
    with pytest.raises(ValueError, match="damaged"):
        runs.noted("seconds")
    with pytest.raises(ValueError, match="damaged"):
        runs.spend(1.0)
    runs.mend()
    assert runs.noted("seconds") is None
    assert losses(runs) == LOSSES


def test_a_table_that_is_no_more_is_made_again_from_the_folders(tmp_path):
    made(tmp_path)
    (tmp_path / "runs.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(ValueError, match=r"runs.sqlite is damaged: .* Move it away"):
        Runs(tmp_path)
    (tmp_path / "runs.sqlite").write_bytes(b"")
    with pytest.raises(ValueError, match="it is empty"):
        Runs(tmp_path)
    (tmp_path / "runs.sqlite").unlink()
    (tmp_path / "runs" / NAME / "result.json").write_text("{}")
    assert losses(Runs(tmp_path)) == {0: 0.5, 2: 2.5}
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as base:
        base.execute("create table cats (name text)")
    os.replace(tmp_path / "other.sqlite", tmp_path / "runs.sqlite")
    with pytest.raises(ValueError, match="its tables are cats"):
        Runs(tmp_path)


def test_a_run_is_there_once_and_can_be_replaced(tmp_path):
    runs = made(tmp_path)
    before = (tmp_path / "runs" / NAME / "manifest.json").read_bytes()
    runs.add([Run(SPECS[1], {"loss": 1.5}, {"curve": np.arange(4.0)}, {"seconds": 7.0})])
    assert (tmp_path / "runs" / NAME / "manifest.json").read_bytes() == before, "the same run came again"
    runs.add([Run(SPECS[1], {"loss": 1.25}, {"curve": np.arange(4.0)})])
    assert losses(runs) == LOSSES | {1: 1.25}
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_drafts_of_the_dead_are_swept_out(tmp_path):
    """Of this machine's dead, and of anyone's after a day; never those of the living."""
    made(tmp_path)
    place, dead = tmp_path / "runs", 2**22 + 1  # no process has so high a number
    host, other = run_files._host(), "0" * 8
    drafts = {
        f".{NAME}-{host}-{dead}-00000000": False,
        f".{NAME}-{host}-{dead}-00000001-old": False,
        f".{NAME}-{host}-{os.getpid()}-00000000": True,
        f".{NAME}-{other}-{dead}-00000000": True,
        f".{NAME}-{dead}-00000000": True,  # of before drafts named their machine
        ".something else": True,
    }
    for name in drafts:
        (place / name).mkdir()
        (place / name / "result.json").write_text("{}")
    Runs(tmp_path)
    assert {name: (place / name).exists() for name in drafts} == drafts
    for name in (name for name, stays in drafts.items() if stays):
        os.utime(place / name, (time.time() - 90_000,) * 2)
    Runs(tmp_path)
    assert [name for name in drafts if (place / name).exists()] == [".something else"]


@contextmanager
def unable_to_write(folder):
    """As a user who may read only: permissions are taken away, and root becomes someone else."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root = os.getuid() == 0
    if root:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def shared():
    """A folder that others can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_store_that_cannot_be_written_can_be_read(shared):
    made(shared / "store")
    (shared / "empty").mkdir()
    with unable_to_write(shared):
        runs = Runs(shared / "store")
        assert losses(runs) == LOSSES
        assert runs.missing(SPECS) == []
        assert runs.get(SPECS[0]).result == {"loss": 0.5}
        np.testing.assert_array_equal(runs.curves(SPECS[0])["curve"], np.arange(4.0))
        for change in (lambda: runs.add([]), lambda: runs.note("a", 1), runs.mend):
            with pytest.raises(PermissionError, match="can be read only"):
                change()
        with pytest.raises(PermissionError, match="holds no runs, and cannot be written to"):
            Runs(shared / "empty")


def store_of_before(folder, log=False):
    """As stores were written before they had digests; with what was last written still in a log."""
    for spec in SPECS:
        place = folder / "runs" / name_of(spec)
        place.mkdir(parents=True)
        used = {"device": "cpu", "jax": "0.6", "python": "3.11"}
        (place / "specification.json").write_text(json.dumps({"specification": spec, "versions": used}))
        (place / "result.json").write_text(json.dumps({"loss": 0.5 + spec["k"]}, indent=1))
        np.savez_compressed(place / "curves.npz", curve=np.arange(1000.0))
    base = sqlite3.connect(folder / "live.sqlite", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("create table runs (name text primary key, spec text, result text, cost text)")
    base.execute("create table notes (topic text primary key, words text)")
    base.execute("insert into notes values ('seconds', 2.5)")
    for spec in SPECS:
        row = (name_of(spec), *map(json.dumps, (spec, {"loss": 0.5 + spec["k"]}, {"seconds": 1.0})))
        base.execute("insert into runs values (?, ?, ?, ?)", row)
    if not log:
        base.close()
    for path in folder.glob("live.sqlite*"):
        shutil.copy(path, folder / path.name.replace("live", "runs"))
    base.close()
    for path in folder.glob("live.sqlite*"):
        path.unlink()


@pytest.mark.parametrize("log", [False, True])
def test_stores_of_before_are_read(shared, log):
    """Where nothing can be written too; and then go on as new ones."""
    store_of_before(shared, log)
    with unable_to_write(shared):
        assert losses(Runs(shared)) == LOSSES
        assert Runs(shared).noted("seconds") == 2.5
    runs = Runs(shared)
    assert losses(runs) == LOSSES
    assert runs.missing([*SPECS, {"k": 3}]) == [{"k": 3}]
    assert sum(runs.origins().values()) == 3
    runs.add([Run({"k": 3}, {"loss": 3.5})])
    runs.spend(1.0)
    assert losses(runs) == LOSSES | {3: 3.5}
    assert runs.noted("seconds") == 3.5
    assert runs.curves(SPECS[1])["curve"].shape == (1000,)
    assert not (shared / "runs.sqlite-wal").exists()
    (shared / "runs" / NAME / "result.json").write_text('{"loss": 1.7}')
    with pytest.raises(ValueError, match=r"its row and result.json differ"):
        runs.get(SPECS[1])


def test_nothing_is_inflated_beyond_the_limit(tmp_path, monkeypatch):
    store_of_before(tmp_path)
    runs = Runs(tmp_path)
    monkeypatch.setattr(run_files, "MOST_CURVE_BYTES", 3000)
    with pytest.raises(ValueError, match="would inflate to 8128 bytes, more than 3000"):
        runs.curves(SPECS[0])
    with pytest.raises(ValueError, match="keep fewer points"):
        runs.add([Run({"k": 9}, {}, {"curve": np.zeros(1000)})])
    with pytest.raises(TypeError, match="arrays of plain numbers"):
        runs.add([Run({"k": 9}, {}, {"curve": np.array([None])})])
    assert len(list((tmp_path / "runs").iterdir())) == 3, "no draft stays"


def test_a_lock_is_waited_for_and_then_named(tmp_path, monkeypatch):
    runs = made(tmp_path)
    monkeypatch.setattr(rows, "_LOCKED_FOR", 0.05)
    with table_of(tmp_path) as base:
        base.execute("begin exclusive")
        with pytest.raises(TimeoutError, match="locked by another process"):
            runs.note("a", 1)
    runs.note("a", 1)


def test_numbers_of_numpy_are_kept_as_numbers(tmp_path):
    runs, spec = Runs(tmp_path), {"n": np.int64(3), "grid": np.arange(2), "file": 1}
    runs.add([Run(spec, {"loss": np.float32(0.5)}, {"file": np.arange(3)})])
    assert runs.get({"n": 3, "grid": [0, 1], "file": 1}).result == {"loss": 0.5}
    assert runs.missing([spec]) == []
    np.testing.assert_array_equal(runs.curves(spec)["file"], np.arange(3))
    with pytest.raises(TypeError, match="has no place in it"):
        name_of({"a": object()})


def test_no_damage_passes_for_the_truth():
    """Forty of the trials that benchmarks/store_damage.py makes."""
    path = Path(__file__).parents[2] / "benchmarks" / "store_damage.py"
    spec = importlib.util.spec_from_file_location("store_damage", path)
    harness = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(harness)
    faults, seen = harness.trial(40, 1, 2)
    assert not faults, faults[:3]
    assert seen["noticed"] > 12, "hardly anything was damaged"
