"""A sweep of short solves whose workers are killed without warning: on local processes, and on a dask cluster.

Each must come to the same store as the undisturbed sweep: every run once, results and curves bit for bit.
"""

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path

import jax

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb
from cobilevel.sweep import Runs, name_of, tabulate

SEEDS, STEPS = 12, (0.02, 0.05, 0.1, 0.15, 0.2)
WORKERS = 2


def solve_case(seed, outer):
    """A small quadratic instance, a few hundred steps of a stochastic method."""
    one = cb.gallery.quadratic(seed, dx=2, dy=1, train=100, test=10, condition=2.0)
    solver = cb.SOBA(inner=0.2, outer=outer, batch=16)
    return cb.solve(one.problem, one.train, basis=cb.Chebyshev(3), solver=solver, steps=200, key=seed)


def contents(folder):
    """All that is in a store but for what runs cost; and that there is one file for each."""
    runs = Runs(folder)
    found = runs.find()
    table = {
        name_of(run.spec): (
            dict(run.spec),
            dict(run.result),
            {name: (curve.dtype.str, curve.tobytes()) for name, curve in runs.curves(run.spec).items()},
        )
        for run in found
    }
    files = sorted(path.stem for path in (Path(folder) / "runs").iterdir())
    assert sorted(table) == files, "index and files differ"
    assert len(found) == len(table), "a run is there twice"
    return table


def children():
    """The worker processes of this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"worker_main" in (path.parent / "cmdline").read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has just ended
            continue
    return found


class Killer(threading.Thread):
    """Kills a worker each time so many runs are finished, somewhat later."""

    def __init__(self, folder, workers, kills, runs, rng):
        super().__init__(daemon=True)
        self.folder, self.workers, self.rng = Path(folder), workers, rng
        self.moments = sorted(rng.sample(range(1, runs - 2 * WORKERS), kills))
        self.killed = []

    def run(self):
        for moment in self.moments:
            while sum(1 for _ in self.folder.glob("runs/*.npz")) < moment:
                time.sleep(0.005)
            time.sleep(self.rng.uniform(0.0, 0.3))
            while not (alive := self.workers()):
                time.sleep(0.01)
            chosen = self.rng.choice(alive)
            os.kill(chosen, signal.SIGKILL)
            self.killed.append(chosen)


def swept(folder, cases, kills, rng, cluster=None):
    """One sweep; how long it took, how many workers were killed, and what is in its store."""
    began = time.perf_counter()
    workers = children if cluster is None else lambda: dask_workers(cluster)
    killer = Killer(folder, workers, kills, len(cases), rng)
    killer.start()
    if cluster is None:
        tabulate(solve_case, cases, folder, workers=WORKERS, progress=False)
    else:
        from distributed import Client

        with Client(cluster) as client:
            tabulate(solve_case, cases, folder, client)
    killer.join(5)
    return time.perf_counter() - began, len(killer.killed), contents(folder)


def dask_workers(cluster):
    return [n.process.pid for n in cluster.workers.values() if n.process is not None and n.process.pid]


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--kills", 3),
        ("--runs", SEEDS * len(STEPS)),
        ("--seed", int(time.time())),
        ("--only", str, "one kind of workers alone", {"choices": ["local", "dask"]}),
    )
    rng = random.Random(arguments.seed)
    cases = [{"seed": seed, "outer": outer} for seed in range(SEEDS) for outer in STEPS][: arguments.runs]
    print(f"{len(cases)} runs on {WORKERS} workers, seed {arguments.seed}")
    print(f"{'workers':12s} {'killed':>6s} {'runs':>5s} {'each once':>9s} {'equal':>5s} {'seconds':>8s}")
    with tempfile.TemporaryDirectory() as place:
        seconds, _, whole = swept(Path(place) / "whole", cases, 0, rng)
        print(f"{'undisturbed':12s} {0:6d} {len(whole):5d} {'yes':>9s} {'':>5s} {seconds:8.1f}", flush=True)
        for kind in ("local", "dask"):
            if arguments.only not in (None, kind):
                continue
            if kind == "local":
                seconds, killed, found = swept(Path(place) / kind, cases, arguments.kills, rng)
            else:
                from distributed import LocalCluster

                options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
                with LocalCluster(processes=True, **options) as cluster:
                    seconds, killed, found = swept(Path(place) / kind, cases, arguments.kills, rng, cluster)
            equal = sum(found.get(name) == run for name, run in whole.items())
            print(f"{kind:12s} {killed:6d} {len(found):5d} {'yes':>9s} {equal:5d} {seconds:8.1f}", flush=True)
            assert killed == arguments.kills
            assert equal == len(found) == len(whole) == len(cases)


if __name__ == "__main__":
    main()
