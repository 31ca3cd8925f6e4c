"""One solve on several processes: the same answer as on one, bit for bit where the shards are the same ones."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import cobilevel as cb
from cobilevel.cluster import free_port, launch, this_cluster
from cobilevel.cluster.watch import ENDED_BY_PEER

SCRIPT = str(Path(__file__).with_name("together.py"))


def run(tmp_path, processes, shards, *kinds):
    out = tmp_path / f"found-{processes}-{shards}"
    assert launch([SCRIPT, "solve", str(out), *kinds], processes, shards) == 0
    return json.loads(out.read_text())


def test_alone_nothing_happens():
    cluster = cb.cluster.join()
    assert (cluster.processes, cluster.shards, cluster.mesh, cluster.first) == (1, 1, None, True)
    samples = cb.Samples(np.arange(3.0))
    assert cb.spread(samples) is samples
    array = [np.arange(3.0)]
    assert this_cluster().gathered(array) is array


def test_what_cannot_be_spread_is_named():
    with pytest.raises(TypeError, match="spread takes Samples, got Product"):
        cb.spread(cb.Product(np.arange(3.0), np.arange(2.0)))  # pyright: ignore[reportArgumentType]


def test_join_comes_first(monkeypatch):
    np.asarray(cb.Samples(np.arange(3.0)).xi)  # JAX has computed something in this process
    monkeypatch.setenv("COBILEVEL_SHARDS", "2")
    with pytest.raises(RuntimeError, match="put it at the top of the script"):
        cb.cluster.join()


def plain():
    """The same samples in one process."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from together import stated  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.pop(0)
    problem, samples = stated(this_cluster(), False)
    return cb.solve(problem, samples, cb.Chebyshev(4))


def test_spread_over_two_devices_of_one_process(tmp_path):
    """Against a plain solve of the same samples, of which every seventh has no weight."""
    found, wanted = run(tmp_path, 1, 2, "Newton")["Newton"], plain()
    assert found["x"] == pytest.approx(float(wanted.x), abs=1e-12)
    assert found["rows"] == 203 - 29
    assert found["samples"] == wanted.stats["samples"]


@pytest.mark.thorough
@pytest.mark.long
def test_one_and_two_processes_give_the_same_bits(tmp_path):
    one, two = run(tmp_path, 1, 2, "Newton with error"), run(tmp_path, 2, 2, "Newton with error", "Newton own")
    (first,), (second, own) = one.values(), two.values()
    assert first == second
    assert first["error"] == pytest.approx(float(plain().standard_error), rel=1e-9)
    # shares of 60 and 143 rows: other sums, to rounding the same
    assert own["x"] == pytest.approx(first["x"], abs=1e-12)
    assert own["rows"] == first["rows"]


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.parametrize(("number", "victim"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)])
def test_a_process_that_is_lost_ends_the_other_with_a_sentence(tmp_path, number, victim):
    out, words = tmp_path / "begun", tmp_path / "words"
    common = {"COBILEVEL_COORDINATOR": f"127.0.0.1:{free_port()}", "COBILEVEL_PROCESSES": "2"}
    command = [sys.executable, SCRIPT, "talk", str(out)]
    with words.open("w") as log:
        started = [
            subprocess.Popen(command, env={**os.environ, **common, "COBILEVEL_PROCESS": str(k)}, stderr=log)
            for k in (0, 1)
        ]
    try:
        while not all(Path(f"{out}.{k}").exists() for k in (0, 1)):
            assert all(process.poll() is None for process in started)
            time.sleep(0.1)
        started[victim].send_signal(number)
        assert started[1 - victim].wait(15) == ENDED_BY_PEER
        assert f"process {victim} of 2" in words.read_text()
        assert "has not answered for 10 s" in words.read_text()
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.thorough
@pytest.mark.long
def test_a_run_that_lost_a_process_goes_on_from_its_checkpoint(tmp_path):
    """With another number of processes, to the same bits as a run that lost none."""
    steps = "600"
    assert launch([SCRIPT, "keep", str(tmp_path / "smooth"), str(tmp_path / "one"), steps], 2, 2) == 0
    again = [SCRIPT, "keep", str(tmp_path / "broken"), str(tmp_path / "two"), steps]
    code = f"import sys; from cobilevel.cluster import launch; sys.exit(launch({again!r}, 2, 2))"
    first = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "two" / "checkpoint.npz").exists():
        assert first.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    first.terminate()  # passed on to both processes
    assert first.wait(60) != 0
    assert not (tmp_path / "broken").exists()
    assert launch(again, 1, 2) == 0
    assert (tmp_path / "broken").read_text() == (tmp_path / "smooth").read_text()
