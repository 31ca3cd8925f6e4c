"""Many solves as one program: the answers of one by one, kept so that stopping and starting again loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.iteration.loop import advance, run
from cobilevel.reduction.result import Result
from cobilevel.sweep.bundles import How, Pool, Trials, measure, solve_all
from cobilevel.sweep.store import Run, Runs, name_of
from cobilevel.sweep.tasks import Task, sweep


@pytest.fixture(scope="module")
def bundle():
    """Three small instances, five trials with steps of their own."""
    table = [cb.gallery.quadratic(seed, dx=2, dy=1, train=60, test=10, condition=2.0) for seed in range(3)]
    bare = [cb.Problem(i.problem.upper, i.problem.lower, i.problem.x0, i.problem.y0, i.problem.domain) for i in table]
    reduced = [cb.reduce(problem, cb.Chebyshev(3), i.train) for problem, i in zip(bare, table, strict=True)]
    trials = Trials(
        jnp.array([0, 1, 2, 0, 1]),
        jax.random.split(jax.random.key(0), 5),
        {"inner": jnp.full(5, 0.2), "outer": jnp.array([0.1, 0.1, 0.1, 0.05, 1e9])},
    )
    solver = cb.StocBiO(1.0, 1.0, neumann=0.2, terms=3, inner_steps=2, batch=16)
    return reduced, Pool.of(reduced), trials, solver


@pytest.mark.parametrize(
    "how", [How(2, 1, 2), How(2, 2, 1), How(4, 4, 2)], ids=lambda how: f"{how.together}-of-{how.block}"
)
def test_a_bundle_is_its_runs_one_by_one(bundle, how):
    """Whatever the blocks (the last one is filled up), the trial that diverges too."""
    reduced, pool, trials, solver = bundle
    found = solve_all(solver, pool, trials, 40, 20, how)
    for k in range(len(trials)):
        settings = {name: float(values[k]) for name, values in trials.settings.items()}
        one = cb.StocBiO(**settings, neumann=0.2, terms=3, inner_steps=2, batch=16)
        state = one.init(reduced[int(trials.instance[k])], trials.key[k], jnp.int32(40))
        state, _ = advance(one, reduced[int(trials.instance[k])], state, 40)
        assert int(state.result) == int(found.states.result[k])
        np.testing.assert_allclose(found.states.x[k], state.x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.states.W_mean[k], state.W_mean, rtol=1e-10, atol=1e-12)
    assert list(found.diverged) == [False] * 4 + [True]
    assert int(found.states.result[0]) == Result.RUNNING


def test_ways_to_share_the_machine_are_measured(bundle):
    _, pool, trials, solver = bundle
    taken = measure(solver, pool, trials, (How(2, 1, 1), How(2, 2, 1)))
    assert set(taken) == {How(2, 1, 1), How(2, 2, 1)}
    assert all(seconds > 0 for seconds in taken.values())


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
    told = json.loads((tmp_path / "runs" / name_of(spec) / "specification.json").read_text())
    assert told["specification"]["N"] == 3
    assert told["versions"]["jax"] == jax.__version__
    with pytest.raises(KeyError, match="no finished run"):
        runs.get({"kind": "y"})
    assert runs.noted("how") is None
    runs.note("how", {"block": 4})
    assert Runs(tmp_path).noted("how") == {"block": 4}


def test_a_store_heals(tmp_path):
    """A folder that is gone is run again, a damaged one is named, and two that write the same run agree."""
    runs, run_once = Runs(tmp_path), Run({"k": 1}, {}, {"curve": np.arange(3.0)})
    runs.add([run_once])
    runs.add([run_once])
    place = tmp_path / "runs" / name_of({"k": 1})
    (place / "curves.npz").write_bytes(b"half")
    with pytest.raises(ValueError, match="damaged"):
        runs.curves({"k": 1})
    (place / "curves.npz").unlink()
    assert runs.missing([{"k": 1}]) == [{"k": 1}]
    runs.add([run_once])
    assert runs.missing([{"k": 1}]) == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [place.name]
    assert sum(runs.origins().values()) == 1
    runs.spend(1.5)
    runs.spend(2.0)
    assert runs.noted("seconds") == 3.5


def test_a_limit_begins_nothing_new(tmp_path):
    task = Task("one", [{"k": 1}], lambda tell: [Run({"k": 1}, {})])
    assert not sweep([task], Runs(tmp_path), 1, "test", False, limit=0.0)
    assert sweep([task], Runs(tmp_path), 1, "test", False)
    never = Task("one", [{"k": 1}], lambda tell: pytest.fail("run twice"))
    assert sweep([never], Runs(tmp_path), 1, "test", False)


SWEEP = """
import sys, time, numpy as np
from cobilevel.sweep.store import Run, Runs
from cobilevel.sweep.tasks import Task, sweep
def work(k):
    def run(tell):
        time.sleep(0.03)
        rng = np.random.default_rng(k)
        return [Run({"bundle": k, "run": j}, {"loss": rng.normal()}, {"curve": rng.normal(size=500)}) for j in range(8)]
    return run
tasks = [Task(str(k), [{"bundle": k, "run": j} for j in range(8)], work(k)) for k in range(25)]
print("begun", flush=True)
sweep(tasks, Runs(sys.argv[1]), len(tasks), "test", False)
print("done", flush=True)
"""


def _contents(folder):
    runs = Runs(folder)
    table = {name_of(run.spec): (run.spec, run.result, runs.curves(run.spec)["curve"].tobytes()) for run in runs.find()}
    folders = sorted(path.name for path in (folder / "runs").iterdir() if not path.name.startswith("."))
    return table, folders


def test_killed_at_random_moments_gives_the_same_store(tmp_path):
    """Killed without warning, several times, then run to its end: nothing lost, nothing twice, nothing half."""
    command = lambda folder: [sys.executable, "-c", SWEEP, str(folder)]
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    rng = np.random.default_rng(int(time.time()))
    broken = tmp_path / "broken"
    for _ in range(3):
        with subprocess.Popen(command(broken), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begun\n"
            time.sleep(rng.uniform(0.05, 0.5))
            os.kill(process.pid, signal.SIGKILL)
    assert Runs(broken).missing([{"bundle": 24, "run": 0}]), "killed too late to show anything"
    subprocess.run(command(broken), check=True, capture_output=True)
    whole, again = _contents(tmp_path / "whole"), _contents(broken)
    assert whole == again
    assert len(whole[0]) == 200
    assert sorted(whole[0]) == whole[1]


@pytest.mark.thorough
def test_a_solve_is_what_the_sweep_does(bundle):
    """``run`` on one problem, and the same trial in a bundle."""
    reduced, pool, _, solver = bundle
    one = cb.StocBiO(0.2, 0.1, neumann=0.2, terms=3, inner_steps=2, batch=16)
    key = jax.random.key(7)
    alone = run(one, reduced[1], key, 40)
    trials = Trials(
        jnp.array([1]), jax.random.split(key)[1][None], {"inner": jnp.full(1, 0.2), "outer": jnp.full(1, 0.1)}
    )
    found = solve_all(solver, pool, trials, 40, 20, How(1, 1, 1))
    np.testing.assert_allclose(found.states.x_mean[0], alone.x, rtol=1e-10)
