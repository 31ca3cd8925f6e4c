"""A table on the workers of a dask cluster has the answer of one array, also where workers die, fall silent or join."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import cobilevel as cb
from cobilevel.ground import parts
from partitioned import BOUNDED, LINE, MIXED, cut, same, table

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
pytestmark = pytest.mark.filterwarnings("ignore")  # of dask and what it is made of

CASES = {
    "weights": (LINE, {"context": "t", "eta": "d", "weights": "w"}),
    "bounds": (BOUNDED, {"context": "t", "eta": "d"}),
    "strings": (MIXED, {"context": ["t", "day"], "eta": ["d"]}),
}


@pytest.fixture(scope="module")
def cluster():
    """Two processes on this machine, which JAX has not been switched to double precision in."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": "127.0.0.1:0"}
    with dask.config.set({"distributed.logging.distributed": "error"}), distributed.LocalCluster(**options) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def frame_of_dask():
    return pytest.importorskip("dask.dataframe").from_pandas(table(), npartitions=5, sort=False)


def delayed():
    return [dask.delayed(part) for part in cut(table())]


@pytest.fixture(scope="module")
def alone():
    """The answers of one array, each computed once."""
    known = {}

    def answer(name):
        problem, roles = CASES[name]
        if name not in known:
            known[name] = cb.solve(problem, cb.Samples.from_frame(table(), **roles))
        return known[name]

    return answer


def solved(name, given):
    problem, roles = CASES[name]
    samples = cb.Samples.from_frame(given, **roles)
    return cb.solve(problem, samples), samples.parts.workers


@pytest.mark.parametrize(
    ("name", "given"),
    [("weights", delayed), ("strings", frame_of_dask), pytest.param("bounds", delayed, marks=pytest.mark.thorough)],
)
def test_the_answer_of_one_array_and_one_message_a_worker(client, alone, monkeypatch, name, given):
    asked, ask = [], parts._OnDask.ask
    monkeypatch.setattr(parts._OnDask, "ask", lambda self, *args: asked.append(args[0].__name__) or ask(self, *args))
    found, workers = solved(name, given())
    same(alone(name), found, table(), CASES[name][1]["context"])
    assert "partitions on 2 dask workers" in found.choices["samples"]
    # one message for each worker and question: counts, the sample, the whitening, and at most what oracles are charged
    calls = found.stats["oracles"]
    assert workers.messages == 2 * len(asked)
    assert found.stats["messages"] == 2 * (len(asked) - asked.count("_counted") - asked.count("_drawn"))
    assert asked.count("_sums") <= calls["hessian"]["calls"] + calls["upper_gradient"]["calls"]
    assert set(asked) == {"_counted", "_drawn", "_triangle", "_sums"}
    assert (
        workers.received / asked.count("_sums") < 2e4
    )  # bytes: sums, not rows; the sample, which is all rows, with it


def test_the_sample_is_the_same_whoever_draws_it(client, monkeypatch):
    drawn = lambda given: cb.Samples.from_frame(given, context=["t", "day"], eta="d", sample=200).sample
    there = drawn(delayed())
    monkeypatch.setattr(parts, "_active_client", lambda: None)
    here = drawn(delayed())
    assert len(there) == 200
    for name in ("t", "day"):
        np.testing.assert_array_equal(there.xi[name], here.xi[name])
    np.testing.assert_array_equal(there.eta, here.eta)


def _kept():
    """How much a worker keeps of partitions it was asked for."""
    gc.collect()
    return sum(type(one).__name__ == "_Kept" for one in gc.get_objects())


def test_workers_keep_nothing_of_a_solve_that_is_over(client, monkeypatch):
    asked, ask = [], parts._OnDask.ask
    monkeypatch.setattr(parts._OnDask, "ask", lambda self, *args: asked.append(args[1]) or ask(self, *args))
    samples = cb.Samples.from_frame(delayed(), context="t", eta="d")
    cb.solve(LINE, samples, basis=cb.Chebyshev(3))
    assert any(client.run(_kept).values())  # what was asked is still there, where it was asked
    asked.clear()
    gc.collect()
    until = time.monotonic() + 20
    while any(client.run(_kept).values()):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_table_of_policies(client, alone):
    whole, contexts = alone("strings"), frame_of_dask()[["t", "day"]]
    found = whole.table(contexts)
    assert hasattr(found, "to_delayed")
    there, here = found.compute(), whole.table(table()[["t", "day"]])
    assert list(there.columns) == list(here.columns)
    np.testing.assert_allclose(there["y"], here["y"], rtol=1e-14)


def struck(client, monkeypatch, number, silent=20.0):
    """Sends a signal to the worker that has the first part, as the fourth question is on its way."""
    asked, ask = [], parts._OnDask.ask
    processes, begun = client.run(os.getpid), []

    def wrapped(self, *args):
        asked.append(args)
        if len(asked) == 4:
            begun.append(processes[self.home[0]])
            threading.Timer(0.01, os.kill, (begun[0], number)).start()
        return ask(self, *args)

    monkeypatch.setattr(parts._OnDask, "ask", wrapped)
    monkeypatch.setattr(parts, "_SILENT", silent)
    return begun


def test_a_worker_that_is_killed(client, alone, monkeypatch):
    begun = struck(client, monkeypatch, signal.SIGKILL)
    found, _ = solved("weights", delayed())
    assert begun
    same(alone("weights"), found, table())


@pytest.mark.thorough
def test_a_worker_that_falls_silent(client, alone, monkeypatch):
    begun = struck(client, monkeypatch, signal.SIGSTOP, silent=3.0)
    try:
        found, workers = solved("weights", delayed())
        assert len(set(workers.home.values())) < 2
        same(alone("weights"), found, table())
    finally:
        os.kill(begun[0], signal.SIGKILL)


@pytest.mark.thorough
def test_a_worker_that_joins_is_used(cluster, client, alone):
    _, roles = CASES["weights"]
    samples = cb.Samples.from_frame(delayed(), **roles)
    before = set(samples.parts.workers.home.values())
    cluster.scale(3)
    client.wait_for_workers(3, timeout=60)
    samples.parts.workers.looked = 0.0  # as if two seconds had passed
    found = cb.solve(LINE, samples)
    assert len(set(samples.parts.workers.home.values()) - before) >= 1
    assert "on 3 dask workers" in found.choices["samples"]
    same(alone("weights"), found, table())


@pytest.mark.thorough
def test_one_worker(alone):
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": True, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        found, workers = solved("strings", frame_of_dask())
        same(alone("strings"), found, table(), ["t", "day"])
        assert set(workers.home) == set(range(5))
        broken = [*cut(table())[:3], _unreadable]
        with pytest.raises(ValueError, match=r"partition 3: .*cannot be read"):
            cb.Samples.from_frame(broken, context="t", eta="d")


def _unreadable():
    raise OSError("cannot be read")


DEVICES = """
    import jax
    jax.config.update("jax_enable_x64", True)
    assert len(jax.local_devices()) == 4
    import numpy as np
    import cobilevel as cb
    from cobilevel.derivatives.rows import over_devices
    from partitioned import LINE, cut, table

    assert len(over_devices(1024).device_set) == 4
    roles = {"context": "t", "eta": "d", "weights": "w"}
    for given in (table(), cut(table())):
        found = cb.solve(LINE, cb.Samples.from_frame(given, **roles))
        print(repr(float(found.x)), repr(float(found.policy(0.3))))
"""


@pytest.mark.thorough
def test_several_devices_of_one_process(alone):
    flags = {"XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"}
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEVICES)], env=os.environ | flags | {"PYTHONPATH": paths},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = [float(alone("weights").x), float(alone("weights").policy(0.3))]
    for line in done.stdout.splitlines():
        np.testing.assert_allclose([float(word) for word in line.split()], expected, rtol=1e-10)
