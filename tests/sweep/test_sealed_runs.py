"""A store under damage: what it says is what was written, or an error that names the run and the remedy."""

import importlib.util
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cobilevel.ground import archive
from cobilevel.sweep import Run, Runs, name_of, store

SPECS = [{"k": k} for k in range(3)]
NAME = name_of(SPECS[1])


def made(folder):
    runs = Runs(folder)
    runs.add([Run(spec, {"loss": 0.5 + spec["k"]}, {"curve": np.arange(4.0)}, {"seconds": 1.0}) for spec in SPECS])
    return runs


def losses(runs):
    return {run.spec["k"]: run.result["loss"] for run in runs.find()}


LOSSES = {0: 0.5, 1: 1.5, 2: 2.5}


def place(folder, name=NAME):
    return folder / "runs" / f"{name}.npz"


def spoil(path):
    """Flips one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def resealed(folder, change):
    """The file of a run with a change that its seal covers."""
    document, arrays = archive.read(place(folder))
    change(document)
    archive.write(place(folder), document, arrays)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: spoil(place(folder)),
        lambda folder: place(folder).write_bytes(place(folder).read_bytes()[:-100]),
        lambda folder: place(folder).write_bytes(b""),
        lambda folder: place(folder).unlink(),
        lambda folder: shutil.copy(place(folder, name_of(SPECS[0])), place(folder)),
        lambda folder: resealed(folder, lambda document: document.pop("result")),
        lambda folder: resealed(folder, lambda document: document.update(spec=7)),
    ],
)
def test_a_file_that_changed_is_noticed_and_computed_again(tmp_path, damage):
    runs = made(tmp_path)
    runs.spend(4.0)
    damage(tmp_path)
    for question in (runs.find, runs.origins, lambda: runs.get(SPECS[1]), lambda: runs.curves(SPECS[1])):
        with pytest.raises(ValueError, match=f"run {NAME} .* damaged: .* Start the sweep again"):
            question()
    assert runs.get(SPECS[2]).result == {"loss": 2.5}
    assert runs.missing(SPECS) == [SPECS[1]]
    assert runs.mend() == [NAME]
    assert losses(runs) == {0: 0.5, 2: 2.5}
    with pytest.raises(KeyError, match="no finished run"):
        runs.get(SPECS[1])
    runs.add([Run(SPECS[1], {"loss": 1.5}, {"curve": np.arange(4.0)}, {"seconds": 1.0})])
    assert losses(runs) == LOSSES
    assert runs.missing(SPECS) == []
    np.testing.assert_array_equal(runs.curves(SPECS[1])["curve"], np.arange(4.0))
    assert runs.seconds == 4.0
    assert runs.mend() == []


def test_an_index_that_changed_is_noticed(tmp_path):
    runs = made(tmp_path)
    runs.spend(3.5)
    spoil(tmp_path / "index.npz")
    for question in (runs.find, runs.mend, lambda: runs.seconds, lambda: runs.spend(1.0)):
        with pytest.raises(ValueError, match=r"index.npz .* damaged: .* Move it away"):
            question()


def test_an_index_that_is_no_more_is_made_again_from_the_files(tmp_path):
    made(tmp_path)
    for content in (b"not an archive" * 100, b""):
        (tmp_path / "index.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"index.npz .* damaged: .* Move it away"):
            Runs(tmp_path)
    archive.write(tmp_path / "index.npz", {"cats": 3}, {})
    with pytest.raises(ValueError, match="Move it away"):
        Runs(tmp_path)
    (tmp_path / "index.npz").unlink()
    spoil(place(tmp_path))
    assert losses(Runs(tmp_path)) == {0: 0.5, 2: 2.5}
    assert Runs(tmp_path).missing(SPECS) == [SPECS[1]]


def test_files_that_a_killed_writer_had_not_yet_listed_are_taken_up(tmp_path):
    runs = made(tmp_path)
    before = (tmp_path / "index.npz").read_bytes()
    runs.add([Run({"k": 3}, {"loss": 3.5})])
    (tmp_path / "index.npz").write_bytes(before)
    assert runs.missing([{"k": 3}]) == [{"k": 3}]
    assert runs.mend() == []
    assert losses(runs) == LOSSES | {3: 3.5}


def test_a_run_is_there_once_and_can_be_replaced(tmp_path):
    runs = made(tmp_path)
    before = place(tmp_path).read_bytes()
    runs.add([Run(SPECS[1], {"loss": 1.5}, {"curve": np.arange(4.0)}, {"seconds": 7.0})])
    assert place(tmp_path).read_bytes() == before, "the same run came again"
    runs.add([Run(SPECS[1], {"loss": 1.25}, {"curve": np.arange(4.0)})])
    assert losses(runs) == LOSSES | {1: 1.25}
    assert len(list((tmp_path / "runs").iterdir())) == 3


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
        for change in (lambda: runs.add([]), lambda: runs.spend(1.0), runs.mend):
            with pytest.raises(PermissionError, match="is read-only"):
                change()
        with pytest.raises(PermissionError, match="holds no runs and cannot be written to"):
            Runs(shared / "empty")


def test_what_cannot_be_kept_is_refused(tmp_path):
    runs = made(tmp_path)
    with pytest.raises(TypeError, match="dtype is object, not plain numbers"):
        runs.add([Run({"k": 9}, {}, {"curve": np.array([None])})])
    with pytest.raises(TypeError, match="cannot be saved"):
        runs.add([Run({"k": 9}, {"loss": object()})])
    assert len(list((tmp_path / "runs").iterdir())) == 3, "no draft stays"
    assert runs.missing([{"k": 9}]) == [{"k": 9}]


def test_a_lock_is_waited_for_and_then_named(tmp_path, monkeypatch):
    runs = made(tmp_path)
    monkeypatch.setattr(store, "_LOCKED_FOR", 0.05)
    with archive.lock(tmp_path / "lock"), pytest.raises(TimeoutError, match="locked by another process"):
        runs.spend(1.0)
    runs.spend(1.0)


def test_numbers_of_numpy_are_kept_as_numbers(tmp_path):
    runs, spec = Runs(tmp_path), {"n": np.int64(3), "grid": np.arange(2), "file": 1}
    runs.add([Run(spec, {"loss": np.float32(0.5)}, {"file": np.arange(3)})])
    assert runs.get({"n": 3, "grid": [0, 1], "file": 1}).result == {"loss": 0.5}
    assert runs.missing([spec]) == []
    np.testing.assert_array_equal(runs.curves(spec)["file"], np.arange(3))
    with pytest.raises(TypeError, match="cannot be saved"):
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
