"""Tasks that others work off: none lost, none twice, whoever dies or fails; and what cannot work is refused."""

import concurrent.futures
import multiprocessing
import sys
import threading
import time

import jax
import numpy as np
import pytest

from cobilevel.sweep import Run, Runs, SweepError, Task, sweep, tabulate
from cobilevel.sweep.workers import carry_out, packed_task


class Mortal(concurrent.futures.Executor):
    """Does everything at once, but for the submissions that are named: with these a worker dies."""

    def __init__(self, *deaths):
        self.deaths, self.count = set(deaths), 0

    def submit(self, function, *arguments):
        future = concurrent.futures.Future()
        if self.count in self.deaths:
            future.set_exception(concurrent.futures.BrokenExecutor("no more"))
        else:
            future.set_result(function(*arguments))
        self.count += 1
        return future


def counted(folder, k, after=(), seconds=0.0, error=None):
    """A task that leaves a line for each time it is done, and can tell what it found when it began."""

    def work(tell):
        time.sleep(seconds)
        with (folder / f"done-{k}").open("a") as file:
            file.write("x")
        if error is not None:
            raise ValueError(error)
        before = sorted(run.spec["k"] for run in Runs(folder / "store").find())
        tell(1.0)
        return [Run({"k": k}, {"square": k * k}, {"curve": np.arange(k)}, {"before": float(len(before))})]

    return Task(f"task {k}", [{"k": k}], work, [{"k": one} for one in after])


def times_done(folder):
    return {int(path.name[5:]): len(path.read_text()) for path in folder.glob("done-*")}


def found(folder):
    return {run.spec["k"]: run.result["square"] for run in Runs(folder / "store").find()}


def test_the_work_of_the_dead_is_done_again(tmp_path):
    executor = Mortal(0, 3, 5)
    tasks = [counted(tmp_path, k) for k in range(8)]
    assert sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=executor)
    assert found(tmp_path) == {k: k * k for k in range(8)}
    assert times_done(tmp_path) == dict.fromkeys(range(8), 1)
    assert executor.count == 8 + 3
    again = Mortal()
    assert sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=again)
    assert again.count == 0, "what is finished was done again"


def test_what_fails_is_named_and_the_others_go_on(tmp_path):
    """One whose workers die each time, one that raises, and one that needs it."""
    tasks = [counted(tmp_path, 0), counted(tmp_path, 1, error="by zero"), counted(tmp_path, 2, after=[1])]
    tasks.append(counted(tmp_path, 3))
    with pytest.raises(SweepError) as caught:
        sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=Mortal(0, 3, 4), retries=2)
    reasons = caught.value.failures
    assert reasons.keys() == {"task 0", "task 1", "task 2"}
    assert "died 3 times" in reasons["task 0"]
    assert reasons["task 1"].startswith("ValueError: by zero (test_tasks.py")
    assert reasons["task 2"] == "it needs 'task 1', which failed"
    assert found(tmp_path) == {3: 9}
    assert times_done(tmp_path) == {1: 1, 3: 1}, "what raises would raise again"
    with pytest.raises(SweepError, match=r"2 tasks .* the other 2"):
        sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=Mortal())
    assert found(tmp_path) == {0: 0, 3: 9}


def test_tasks_wait_for_what_they_read(tmp_path):
    """The first is slow and listed last; equal ones are done once."""
    tasks = [counted(tmp_path, 1, after=[0]), counted(tmp_path, 2, after=[0, 1]), counted(tmp_path, 3)]
    tasks += [counted(tmp_path, 0, seconds=0.3), counted(tmp_path, 0), counted(tmp_path, 3)]
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        assert sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=executor)
    assert found(tmp_path) == {k: k * k for k in range(4)}
    assert times_done(tmp_path) == dict.fromkeys(range(4), 1)
    before = {run.spec["k"]: run.cost["before"] for run in Runs(tmp_path / "store").find()}
    assert before == {3: 0, 0: 1, 1: 2, 2: 3}
    missing = [counted(tmp_path, 5, after=[9]), counted(tmp_path, 6, after=[7]), counted(tmp_path, 7, after=[6])]
    with pytest.raises(SweepError) as caught:
        sweep(missing, Runs(tmp_path / "store"), progress=False, executor=Mortal())
    assert "no task computes" in caught.value.failures["task 5"]
    assert {caught.value.failures[f"task {k}"] for k in (6, 7)} == {"it waits for tasks that wait for it"}


def test_a_generator_may_look_at_what_was_found(tmp_path):
    runs = Runs(tmp_path / "store")

    def tasks():
        yield counted(tmp_path, 1, seconds=0.1)
        for _ in range(3):
            yield counted(tmp_path, 1 + max(run.result["square"] for run in runs.find()))

    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        assert sweep(tasks(), runs, progress=False, executor=executor, in_order=True)
    assert sorted(found(tmp_path)) == [1, 2, 5, 26]


def test_a_limit_ends_what_others_do_too(tmp_path):
    tasks = [counted(tmp_path, k) for k in range(3)]
    assert not sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=Mortal(), limit=0.0)
    assert times_done(tmp_path) == {}
    assert sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=Mortal())
    assert sweep(tasks, Runs(tmp_path / "store"), progress=False, executor=Mortal(), limit=0.0)


def test_only_the_runs_that_were_asked_for_are_kept(tmp_path):
    other = Task("other", [{"k": 1}], lambda tell: [Run({"k": 2}, {})])
    thing = Task("thing", [{"k": 1}], lambda tell: [Run({"k": 1}, {"a": object()})])
    for executor, kind in ((Mortal(), SweepError), ("here", ValueError)):
        with pytest.raises(kind, match="which are not the 1 asked for"):
            sweep([other], Runs(tmp_path), progress=False, executor=executor)
    with pytest.raises(SweepError, match="cannot be saved"):
        sweep([thing], Runs(tmp_path), progress=False, executor=Mortal())
    assert Runs(tmp_path).find() == []


def test_work_is_done_under_the_settings_it_was_given(tmp_path):
    wide = packed_task("wide", lambda tell: [Run({}, {"wide": jax.config.jax_enable_x64})], False)
    try:
        jax.config.update("jax_enable_x64", False)
        outcome = carry_out(wide)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert outcome.runs[0].result == {"wide": True}
    assert outcome.used["jax"] == jax.__version__


def test_what_cannot_be_sent_is_refused(tmp_path, monkeypatch):
    """Without cloudpickle only what another process can import; nothing that is open, with it or without."""
    lock = threading.Lock()
    locked = Task("locked", [{"k": 1}], lambda tell: lock)
    with pytest.raises(TypeError, match=r"work of the task 'locked' cannot be sent .* executor=.here"):
        sweep([locked], Runs(tmp_path), progress=False, executor=Mortal())
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match="work of the task 'task 1' cannot be sent"):
        sweep([counted(tmp_path, 1)], Runs(tmp_path), progress=False, executor=Mortal())


def test_executors_that_cannot_serve_are_refused(tmp_path):
    runs, none = Runs(tmp_path), []
    with (
        concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as forks,
        pytest.raises(ValueError, match='get_context\\("spawn"\\)'),
    ):
        sweep(none, runs, progress=False, executor=forks)
    with pytest.raises(TypeError, match='executor must be "processes"'):
        sweep(none, runs, progress=False, executor="threads")
    with pytest.raises(ValueError, match="workers is only for"):
        sweep(none, runs, progress=False, executor=Mortal(), workers=2)
    with pytest.raises(ValueError, match="workers must be a whole number"):
        sweep(none, runs, progress=False, workers=0)
    closed = concurrent.futures.ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(RuntimeError, match="accepts no more tasks"):
        sweep([counted(tmp_path, 1)], runs, progress=False, executor=closed)


def test_the_link_to_the_dashboard_is_printed(tmp_path, capfd):
    executor = Mortal()
    executor.dashboard_link = "http://here:8787/status"
    sweep([], Runs(tmp_path), executor=executor)
    assert "http://here:8787/status" in capfd.readouterr().err


def test_a_table_of_cases(tmp_path):
    """Every combination, in order; what is there is not computed again; arrays are curves."""
    seen = tmp_path / "seen"

    def power(base, exponent):
        with seen.open("a") as file:
            file.write("x")
        return {"value": np.float64(base**exponent), "steps": np.arange(exponent)}

    cases = {"base": [2, 3], "exponent": np.arange(1, 3)}
    rows = tabulate(power, cases, tmp_path / "store", executor="here", progress=False)
    assert [(row["base"], row["exponent"], row["value"]) for row in rows] == [
        (2, 1, 2),
        (2, 2, 4),
        (3, 1, 3),
        (3, 2, 9),
    ]
    more = tabulate(power, [{"base": 3, "exponent": 2}, {"base": 5, "exponent": 2}], tmp_path / "store", Mortal())
    assert [row["value"] for row in more] == [9, 25]
    assert len(seen.read_text()) == 5
    curves = Runs(tmp_path / "store").curves({"function": "power", "base": 5, "exponent": 2})
    np.testing.assert_array_equal(curves["steps"], [0, 1])
    with pytest.raises(SweepError, match="must return a dict or a Solution"):
        tabulate(lambda k: k, {"k": [1]}, tmp_path / "other", Mortal(), progress=False)
