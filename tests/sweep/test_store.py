"""Runs kept on disk, so that stopping and starting again loses nothing."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from cobilevel.ground import archive
from cobilevel.sweep import Run, Runs, Task, name_of, sweep


def test_runs_are_kept_and_found_again(tmp_path):
    runs = Runs(tmp_path)
    spec = {"kind": "x", "N": 3, "grid": (1, 2)}
    assert runs.missing([spec]) == [spec]
    runs.add([Run(spec, {"loss": 0.5}, {"curve": np.arange(3.0)}, {"seconds": 1.0})])
    assert runs.missing([spec]) == []
    assert name_of(spec) == name_of({"grid": [1, 2], "N": 3, "kind": "x"})
    assert runs.get(spec).result == {"loss": 0.5}
    assert [run.cost["seconds"] for run in runs.find(kind="x")] == [1.0]
    assert runs.find(kind="y") == []
    np.testing.assert_array_equal(runs.curves(spec)["curve"], np.arange(3.0))
    written, _ = archive.read(tmp_path / "runs" / f"{name_of(spec)}.npz")
    assert written["spec"]["N"] == 3
    assert written["versions"]["jax"] == jax.__version__
    with pytest.raises(KeyError, match="no finished run"):
        runs.get({"kind": "y"})
    assert runs.seconds == 0
    runs.spend(4.0)
    assert Runs(tmp_path).seconds == 4.0


def test_a_store_heals(tmp_path):
    """A file that is gone is run again, a damaged one is named, and two that write the same run agree."""
    runs, run_once = Runs(tmp_path), Run({"k": 1}, {}, {"curve": np.arange(3.0)})
    runs.add([run_once])
    runs.add([run_once])
    place = tmp_path / "runs" / f"{name_of({'k': 1})}.npz"
    place.write_bytes(b"half")
    with pytest.raises(ValueError, match="damaged"):
        runs.curves({"k": 1})
    place.unlink()
    assert runs.missing([{"k": 1}]) == [{"k": 1}]
    runs.add([run_once])
    assert runs.missing([{"k": 1}]) == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [place.name]
    assert sum(runs.origins().values()) == 1
    runs.spend(1.5)
    runs.spend(2.0)
    assert runs.seconds == 3.5


def test_a_limit_begins_nothing_new(tmp_path):
    task = Task("one", [{"k": 1}], lambda tell: [Run({"k": 1}, {})])
    assert not sweep([task], Runs(tmp_path), 1, "test", False, limit=0.0, executor="here")
    assert sweep([task], Runs(tmp_path), 1, "test", False, executor="here")
    never = Task("one", [{"k": 1}], lambda tell: pytest.fail("run twice"))
    assert sweep([never], Runs(tmp_path), 1, "test", False, executor="here")


SWEEP = """
import sys, time, numpy as np
from cobilevel.sweep import Run, Runs, Task, sweep
def work(k):
    def run(tell):
        time.sleep(0.03)
        rng = np.random.default_rng(k)
        return [Run({"bundle": k, "run": j}, {"loss": rng.normal()}, {"curve": rng.normal(size=500)}) for j in range(8)]
    return run
def main(folder):
    tasks = [Task(str(k), [{"bundle": k, "run": j} for j in range(8)], work(k)) for k in range(25)]
    print("begun", flush=True)
    sweep(tasks, Runs(folder), len(tasks), "test", False, executor="here")
"""


def _contents(folder):
    runs = Runs(folder)
    table = {name_of(run.spec): (run.spec, run.result, runs.curves(run.spec)["curve"].tobytes()) for run in runs.find()}
    files = sorted(path.stem for path in (folder / "runs").glob("*.npz"))
    return table, files


def test_killed_at_random_moments_gives_the_same_store(tmp_path):
    """Killed without warning, several times, then run to its end: nothing lost, nothing twice, nothing half."""
    here: dict = {}
    exec(SWEEP, here)
    here["main"](tmp_path / "whole")
    rng = np.random.default_rng(int(time.time()))
    broken = tmp_path / "broken"
    command = [sys.executable, "-c", SWEEP + "main(sys.argv[1])", str(broken)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begun\n"
            time.sleep(rng.uniform(0.05, 0.5))
            os.kill(process.pid, signal.SIGKILL)
    assert Runs(broken).missing([{"bundle": 24, "run": 0}]), "killed too late to show anything"
    here["main"](broken)
    whole, again = _contents(tmp_path / "whole"), _contents(broken)
    assert whole == again
    assert len(whole[0]) == 200
    assert sorted(whole[0]) == whole[1]


def test_runs_of_an_earlier_version_are_refused(tmp_path):
    """They would otherwise be computed again, next to those that are there."""
    (tmp_path / "runs.sqlite").write_bytes(b"")
    with pytest.raises(ValueError, match="earlier version"):
        Runs(tmp_path)
