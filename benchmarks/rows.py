"""Rows in partitions: how sums over them scale with workers of dask, what they take of memory, and who may be killed.

- scaling: seconds of an expansion (both levels, after the first) and of a whole solve on 1, 2, 4, 8, 16 worker
  processes of one core each, with as many rows on each (weak) or four times as many in all (strong), and bytes both
  ways; beside them the same expansions in processes that have nothing to do with each other (apart), which is what
  the machine can do;
- large: Parquet files solved in this process, one after the other: seconds, and the most memory held;
- killed: workers ended or stopped at random moments; clients ended, and started again with their checkpoint;
- stochastic: a step of SOBA beside a message to a worker and back.

    python benchmarks/rows.py --only scaling [--rows 1000000] [--workers 16]
    python benchmarks/rows.py --only large --folder /somewhere/large [--rows 10000000] [--room 0]
    python benchmarks/rows.py --only killed [--runs 6] [--clients 2]
    python benchmarks/rows.py --only stochastic
"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness

# a process has one core, and this one does little
ALONE = {"OPENBLAS_NUM_THREADS": "1", "NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
PART_ROWS = 250_000
FUNCTIONS = 10


def stated():
    """A demand that bends in the context; the lower level follows its mean, moved by x."""
    import cobilevel as cb

    return cb.Problem(
        lambda x, y, xi, eta: (y - 1 - xi) ** 2 / 2 + (x - 1) ** 2 / 20,
        lambda x, y, xi, eta: (y - (x * xi + eta)) ** 2 / 2,
        0.3,
        0.0,
        cb.Interval(-1.0, 1.0),
    )


def part(seed, rows):
    """Rows of one partition."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, rows)
    return pd.DataFrame({"t": t, "d": np.sin(2 * t) + 0.3 * rng.normal(size=rows)})


def parts_made(count, rows):
    """Partitions that workers make themselves."""
    from functools import partial

    return [partial(part, seed, rows) for seed in range(count)]


def cluster_of(workers):
    """So many processes on this machine, each listening on the loopback interface alone."""
    from distributed import LocalCluster

    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    return LocalCluster(n_workers=workers, **options)


def samples_of(given):
    import cobilevel as cb

    return cb.Samples.from_frame(given, context="t", eta="d")


# -- scaling


def measured(workers, parts, rows):
    """Seconds of an expansion and of a solve, and the bytes of an expansion: of messages, and on the wire."""
    import psutil
    from distributed import Client

    import cobilevel as cb

    with cluster_of(workers) as cluster, Client(cluster):
        samples, problem = samples_of(parts_made(parts, rows)), stated()
        expansion, who = expansions(samples), samples.parts.workers
        expansion(0)
        before, wire, seconds = (who.sent, who.received), psutil.net_io_counters(True)["lo"].bytes_sent, []
        for k in range(1, 8):
            seconds.append(harness.timed(expansion, k)[1])
        wire = (psutil.net_io_counters(True)["lo"].bytes_sent - wire) / len(seconds)
        sent, received = (
            (now - then) / len(seconds) for now, then in zip((who.sent, who.received), before, strict=True)
        )
        solved = harness.timed(lambda: cb.solve(problem, samples, basis=cb.Chebyshev(FUNCTIONS)).x)[1]
    return sorted(seconds)[len(seconds) // 2], solved, sent, received, wire


def expansions(samples):
    """A function that takes the k-th expansion of both levels, each at another point."""
    import numpy as np

    import cobilevel as cb
    from cobilevel.derivatives import Expansions
    from cobilevel.reduction import reduce_study
    from cobilevel.study import Study, precision_for

    problem = stated()
    study = Study.of(problem, samples, precision_for(problem, samples))
    at, W = Expansions(reduce_study(study, cb.Chebyshev(FUNCTIONS)).whitened()), np.zeros((FUNCTIONS, 1))

    def expansion(k):
        x = np.array([0.3 + 0.01 * k])
        return at.lower(x, W).cross, at.upper(x, W)

    return expansion


def one_apart(rows):
    """Expansions of partitions in this process, whenever a line comes in."""
    expansion = expansions(samples_of(parts_made(-(-rows // PART_ROWS), min(rows, PART_ROWS))))
    expansion(0)
    for k, _ in enumerate(iter(sys.stdin.readline, "")):
        expansion(k + 1)
        print("done", flush=True)


def apart(count, rows):
    """The median seconds until so many processes have taken an expansion each, all at once."""
    command = [sys.executable, __file__, "--only", "scaling", "--rows", str(rows), "--child", "apart"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(count)]

    def all_once():
        for one in running:
            print("go", file=one.stdin, flush=True)
        return [one.stdout.readline() for one in running]

    all_once()
    seconds = sorted(harness.timed(all_once)[1] for _ in range(7))
    for one in running:
        one.stdin.close()
        one.wait()
    return seconds[len(seconds) // 2]


def scaling(rows, most):
    print(harness.circumstances())
    counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
    each, total = -(-rows // PART_ROWS), -(-4 * rows // PART_ROWS)
    each_alone = {count: apart(count, rows) for count in counts}
    for count, seconds in each_alone.items():
        print(f"apart  {count:3} {count * rows:9} {seconds * 1e3:9.1f} ms {each_alone[1] / seconds:7.0%}", flush=True)
    print("workers    rows  expansion  efficiency  solve  sent  received  on the wire")
    for kind, ideal in (("weak", lambda w: 1.0), ("strong", lambda w: 1 / w)):
        first = None
        for workers in counts:
            parts = each * workers if kind == "weak" else total
            each_part = min(rows, PART_ROWS)
            found, solved, *sizes = measured(workers, parts, each_part)
            first = found if first is None else first
            share = first * ideal(workers) / found
            print(
                f"{kind:6} {workers:3} {parts * each_part:9} {found * 1e3:9.1f} ms {share:7.0%} {solved:8.2f} s "
                f"{' '.join(f'{size:8.0f}' for size in sizes)} bytes",
                flush=True,
            )


# -- large


def large(folder, rows, room, child):
    if child:
        import pandas  # noqa: F401  what files are read with

        import cobilevel as cb
        from cobilevel.derivatives import far_sums

        far_sums.room = far_sums.room if room < 0 else lambda: room * 2**30
        paths = sorted(Path(folder).glob("*.parquet"))
        samples, reading = harness.timed(samples_of, paths)
        solution, solving = harness.timed(lambda: cb.solve(stated(), samples, basis=cb.Chebyshev(FUNCTIONS)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps([reading, solving, peak, float(solution.x), solution.stats["steps"], str(solution.result)]))
        return
    folder = Path(folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    count = -(-rows // 1_000_000)
    try:
        for k in range(count):
            part(k, rows // count).to_parquet(folder / f"{k:05}.parquet")
        size = sum(path.stat().st_size for path in folder.glob("*.parquet")) / 2**30
        given = ["--only", "large", "--folder", str(folder), "--room", str(room), "--child", "large"]
        found = harness.in_own_process(__file__, *given)
    finally:
        shutil.rmtree(folder)
    reading, solving, peak, x, steps, result = found
    needed = rows * (2 + FUNCTIONS) * 8 / 2**30
    print(f"{rows} rows in {count} files of {size:.2f} GiB in all; {harness.circumstances()}")
    print(f"counted and sampled in {reading:.1f} s, solved in {solving:.1f} s, {steps} steps; x = {x:.9f}; {result}")
    print(f"most memory held {peak:.2f} GiB; rows and features as arrays: {needed:.2f} GiB")


# -- killed


def one_solve(folder):
    """A solve on a cluster of its own, in a process that may be killed; prints its answer."""
    from distributed import Client

    import cobilevel as cb

    with cluster_of(2) as cluster, Client(cluster):
        print("begun", flush=True)
        found = cb.solve(stated(), samples_of(parts_made(8, 100_000)), cb.Chebyshev(FUNCTIONS), checkpoint=folder)
        print("ended", repr(float(found.x)), flush=True)


def client_killed(rng, seconds):
    """A client killed at a random moment, and started again: its answer, and the seconds of both together."""
    with tempfile.TemporaryDirectory() as folder:
        command, began = [sys.executable, __file__, "--only", "killed", "--child", folder], time.perf_counter()
        first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert first.stdout.readline() == "begun\n"
        time.sleep(rng.uniform(0, seconds))
        first.kill()
        first.wait()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return float(done.stdout.split("ended")[1]), time.perf_counter() - began


def killed(runs, clients, seed):
    from distributed import Client

    import cobilevel as cb

    rng, problem, right = random.Random(seed), stated(), []
    solved = lambda: cb.solve(problem, samples_of(parts_made(8, 100_000)), cb.Chebyshev(FUNCTIONS))
    for run in range(-1, runs):
        with cluster_of(2) as cluster, Client(cluster) as client:
            if run < 0:
                solved()  # programs compiled
                expected, usual = harness.timed(lambda: float(solved().x))
                print(f"undisturbed: {usual:.1f} s, x = {expected!r}", flush=True)
                continue
            number, victim = (signal.SIGKILL, signal.SIGSTOP)[run % 2], rng.choice(list(client.run(os.getpid).values()))
            after = rng.uniform(0, 2 * usual)
            threading.Timer(after, os.kill, (victim, number)).start()
            found, seconds = harness.timed(lambda: float(solved().x))
            right.append(abs(found / expected - 1) < 1e-10)
            print(
                f"{number.name} after {after:.1f} s: {seconds:.1f} s, off by {abs(found / expected - 1):.1e}",
                flush=True,
            )
            time.sleep(max(0.0, after - seconds) + 0.1)
            os.kill(victim, signal.SIGKILL) if Path(f"/proc/{victim}").exists() else None
    for _ in range(clients):
        found, seconds = client_killed(rng, 3 * usual)
        right.append(abs(found / expected - 1) < 1e-10)
        print(f"client killed, started again: {seconds:.1f} s, off by {abs(found / expected - 1):.1e}", flush=True)
    print(f"{sum(right)} of {len(right)} runs with the right answer")


# -- stochastic


def nothing(parts, common):
    return len(parts)


def stochastic(steps=20_000):
    from distributed import Client

    import cobilevel as cb
    from cobilevel.ground.parts import Common

    problem, rows = stated(), part(0, 100_000)
    samples = cb.Samples.from_frame(rows, context="t", eta="d")
    for batch in (64, 1024):
        run = lambda count, batch=batch: cb.solve(
            problem, samples, cb.Chebyshev(FUNCTIONS), cb.SOBA(), steps=count, batch=batch, progress=False
        )
        run(steps // 2)
        (_, short), (_, whole) = harness.timed(run, steps // 2), harness.timed(run, steps)
        print(f"a step of SOBA, batch {batch}: {(whole - short) / (steps / 2) * 1e6:.1f} us")
    with cluster_of(1) as cluster, Client(cluster):
        parts, common = samples_of([rows]).parts, Common(None)
        seconds = sorted(harness.timed(lambda: list(parts.ask(nothing, common)))[1] for _ in range(200))
    print(f"a message to a worker and back: {seconds[100] * 1e3:.2f} ms (median), {seconds[190] * 1e3:.2f} ms (95%)")


def main():
    options = harness.arguments(
        __doc__,
        ("--only", "", "scaling, large, killed or stochastic"),
        ("--rows", 0, "on a worker (scaling, 10^6), or in all (large, 10^7)"),
        ("--workers", os.cpu_count() or 1, "at most"),
        ("--folder", "", "where Parquet files are written, and deleted"),
        ("--room", -1.0, "GiB of partitions that are kept (large), instead of half of the memory at hand"),
        ("--runs", 6, "with a worker killed or stopped"),
        ("--clients", 2, "killed and started again"),
        ("--seed", 0),
        ("--child", "", harness.HIDDEN),
    )
    import jax

    jax.config.update("jax_enable_x64", True)
    if options.child and options.only == "killed":
        return one_solve(options.child)
    if options.child == "apart":
        return one_apart(options.rows)
    if options.only in ("", "scaling"):
        scaling(options.rows or 1_000_000, options.workers)
    if options.only in ("", "large"):
        large(options.folder, options.rows or 10_000_000, options.room, options.child)
    if options.only in ("", "killed"):
        killed(options.runs, options.clients, options.seed)
    if options.only in ("", "stochastic"):
        stochastic()
    return None


if __name__ == "__main__":
    os.environ |= {name: os.environ.get(name, value) for name, value in ALONE.items()}
    main()
