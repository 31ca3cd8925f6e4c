"""Processes that die: real ones, of this machine and of a dask cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cobilevel.sweep import Run, Runs, SweepError, Task, sweep


def short(folder, k):
    """A task that is the end of the first worker who takes it, if it is the third; and of everyone, if the last."""

    def work(tell):
        time.sleep(0.05)
        marker = folder / f"begun-{k}"
        with marker.open("a") as file:
            file.write("x")
        if (k == 2 and len(marker.read_text()) == 1) or k == 99:
            os.kill(os.getpid(), signal.SIGKILL)
        rng = np.random.default_rng(k)
        return [Run({"k": k}, {"loss": rng.normal()}, {"curve": rng.normal(size=50)})]

    return Task(f"task {k}", [{"k": k}], work)


def contents(folder):
    runs = Runs(folder)
    found = {run.spec["k"]: (run.result["loss"], runs.curves(run.spec)["curve"].tobytes()) for run in runs.find()}
    assert len(found) == len(list((folder / "runs").iterdir())) == len(runs.find())
    return found


def expected(tmp_path, count):
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "begun-2").write_text("x")
    sweep([short(tmp_path / "alone", k) for k in range(count)], Runs(tmp_path / "all"), progress=False, executor="here")
    return contents(tmp_path / "all")


@pytest.mark.thorough
def test_local_processes_that_are_killed(tmp_path):
    """One dies once and is replaced; the task that kills each of its workers is named; the others are all there."""
    tasks = [short(tmp_path, k) for k in (*range(8), 99)]
    with pytest.raises(SweepError) as caught:
        sweep(tasks, Runs(tmp_path / "store"), progress=False, workers=2, retries=1)
    assert caught.value.failures.keys() == {"task 99"}
    assert "died 2 times, the last time killed by SIGKILL" in caught.value.failures["task 99"]
    assert contents(tmp_path / "store") == expected(tmp_path, 8)
    assert {k: len((tmp_path / f"begun-{k}").read_text()) for k in range(4)} == {0: 1, 1: 1, 2: 2, 3: 1}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # of dask and what it is made of
def test_workers_of_a_cluster_that_are_killed(tmp_path, capfd):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(processes=True, **options) as cluster, distributed.Client(cluster) as client:
        assert sweep([short(tmp_path, k) for k in range(8)], Runs(tmp_path / "store"), executor=client)
        assert client.dashboard_link in capfd.readouterr().err
    assert contents(tmp_path / "store") == expected(tmp_path, 8)


LONG = """
import os, sys, time
from pathlib import Path
from cobilevel.sweep import Runs, Task, sweep
def main(folder):
    def work(tell):
        (Path(folder) / f"pid-{os.getpid()}").touch()
        time.sleep(600)
    sweep([Task("long", [{"k": 1}], work)], Runs(folder), progress=False, workers=1)
main(sys.argv[1])
"""


@pytest.mark.thorough
def test_no_worker_outlives_its_parent(tmp_path):
    with subprocess.Popen([sys.executable, "-c", LONG, str(tmp_path)]) as parent:
        try:
            worker = next(_soon(lambda: list(tmp_path.glob("pid-*")), 60))
        finally:
            parent.kill()
    gone = lambda: [True] if not Path(f"/proc/{worker.name[4:]}").exists() else []
    assert next(_soon(gone, 10))


def _soon(look, seconds):
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.05)
    yield from found
