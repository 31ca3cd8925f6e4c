"""One solve on many processes: weak scaling, the same program on one device, and what happens when a process is lost.

Each process holds the same number of rows, so that twice as many processes solve a problem twice as large; what a step
sends is stated next to its time. On a machine with fewer cores than processes these take turns, and the time of a
step grows with them: `per core` is the time of a step times the cores that were to be had for each process.

    python benchmarks/processes.py                     # weak scaling: 1, 2 and 4 processes
    python benchmarks/processes.py --device            # the same program on the one device there is, a GPU for example
    python benchmarks/processes.py --faults 5          # a process killed, and one stopped, five times each
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

ROWS, FUNCTIONS, SIZE = 100_000, 12, 2  # rows of each process; functions; numbers in y
STEPS = {"Newton": 30, "SOBA": 200}
BATCH = 256
NUMBERS_A_ROW = FUNCTIONS + 2 + 2  # features, context, noise and weight: what a row takes that is fetched for a batch
PROCESSES = 3  # of the trials with a fault


def stated(rows):
    import jax.numpy as jnp
    import numpy as np

    import cobilevel as cb

    rng = np.random.default_rng(0)
    xi, eta = rng.uniform(size=rows), rng.normal(size=(rows, 2))
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - jnp.sin(6 * xi) - eta[0]) ** 2) / 2 + 0.05 * jnp.sum(x**2),
        lambda x, y, xi, eta: jnp.sum((y - x * jnp.exp(xi) - eta[1]) ** 2) / 2 + 0.01 * jnp.sum(y**4),
        x0=jnp.array([0.3, 1.0]),
        y0=jnp.zeros(SIZE),
        domain=cb.Interval(0.0, 1.0),
    )
    return problem, cb.Samples(xi, eta)


def bytes_a_step(solver, stats):
    """What one step adds up over all processes, in bytes: results of oracles for Newton, fetched rows for batches."""
    if solver != "Newton":
        return 8 * NUMBERS_A_ROW * 2 * BATCH  # SOBA takes one batch of each level
    unknowns = FUNCTIONS * SIZE
    each = {"hessian": SIZE * (SIZE + 1) // 2 * FUNCTIONS**2 + unknowns + 1, "upper_gradient": unknowns + 3}
    sizes = {"lower_gradient": unknowns, "hessian_vector": unknowns, "cross_product": 2, **each}
    return 8 * sum(sizes.get(kind, 1) * cost["calls"] for kind, cost in stats["oracles"].items()) / stats["steps"]


def solved(solver, rows, spread=True):
    """One solve, in a process that has joined: what it took and what came out."""
    import numpy as np

    import cobilevel as cb

    problem, samples = stated(rows)
    chosen = cb.Newton() if solver == "Newton" else cb.SOBA(inner=0.2, linear=0.2, outer=0.1, batch=BATCH)
    samples = cb.spread(samples) if spread else samples
    found = cb.solve(problem, samples, cb.Chebyshev(FUNCTIONS), chosen, steps=STEPS[solver], progress=False)
    stats = found.stats
    x, W = np.asarray(found.x), np.asarray(found.W)
    return {
        "milliseconds": 1e3 * stats["seconds"] / stats["steps"],
        "steps": stats["steps"],
        "bytes": bytes_a_step(solver, stats),
        "x": x.tolist(),
        "bits": hashlib.sha256(x.tobytes() + W.tobytes()).hexdigest()[:8],
    }


def work(args):
    """What each process runs."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import cobilevel as cb

    cluster = cb.cluster.join()
    if args.work == "fault":
        Path(args.out).with_suffix(f".{cluster.process}").write_text(str(os.getpid()))
        problem, samples = stated(3000)
        given = cb.SOBA(inner=0.01, linear=0.01, outer=0.001, batch=16)
        cb.solve(problem, cb.spread(samples), cb.Chebyshev(4), given, steps=10**8, progress=False)
    found = solved(args.work, args.rows)
    if cluster.first:
        Path(args.out).write_text(json.dumps(found))


def scaling(rows):
    from cobilevel.cluster import launch

    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}; {rows} rows a process, double precision")
    head = ("solver", "processes", "rows", "steps", "ms a step", "per core", "kB a step")
    print("".join(f"{word:>11}" for word in head), "  x")
    for solver in STEPS:
        for processes in (1, 2, 4):
            with tempfile.TemporaryDirectory() as folder:
                out, total = f"{folder}/found", rows * processes
                command = [__file__, "--work", solver, "--rows", str(total), "--out", out]
                if launch(command, processes, shards=1 if processes == 1 else None):
                    sys.exit(f"{solver} on {processes} processes failed")
                found = json.loads(Path(out).read_text())
            per_core = found["milliseconds"] * min(1, cores / processes)
            sent = 0 if processes == 1 else found["bytes"] / 1e3
            cells = f"{found['milliseconds']:>11.2f}{per_core:>11.2f}{sent:>11.1f}"
            print(f"{solver:>11}{processes:>11}{total:>11}{found['steps']:>11}{cells}   {found['x']}", flush=True)


def on_one_device(rows):
    import jax

    jax.config.update("jax_enable_x64", True)
    import cobilevel as cb

    cluster = cb.cluster.join(shards=1)
    print(f"{cluster} on {jax.devices()}; {rows} rows, double precision")
    print(f"{'solver':>11}{'':>11}{'steps':>8}{'ms a step':>11}   bits, x")
    for solver in STEPS:
        for name, spread in (("spread", True), ("plain", False)):
            found = solved(solver, rows, spread)
            cells = f"{found['steps']:>8}{found['milliseconds']:>11.3f}   {found['bits']} {found['x']}"
            print(f"{solver:>11}{name:>11}{cells}", flush=True)


def lose_one(number, victim, folder):
    """Starts processes, sends a signal to one, and waits for the others: seconds, exit codes and last words."""
    from cobilevel.cluster import free_port

    out = Path(folder) / "fault"
    where = {"COBILEVEL_COORDINATOR": f"127.0.0.1:{free_port()}", "COBILEVEL_PROCESSES": str(PROCESSES)}
    started, logs = [], [Path(folder) / f"words.{k}" for k in range(PROCESSES)]
    for k, log in enumerate(logs):
        command = [sys.executable, __file__, "--work", "fault", "--out", str(out)]
        own = {**os.environ, **where, "COBILEVEL_PROCESS": str(k)}
        started.append(subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=log.open("w")))
    try:
        while not all(out.with_suffix(f".{k}").exists() for k in range(PROCESSES)):
            assert all(process.poll() is None for process in started), logs[0].read_text()
            time.sleep(0.2)
        time.sleep(random.uniform(0, 30))  # before, while and after programs are compiled
        started[victim].send_signal(number)
        begin = time.monotonic()
        others = [process for k, process in enumerate(started) if k != victim]
        while any(process.poll() is None for process in others) and time.monotonic() < begin + 60:
            time.sleep(0.05)
        seconds = time.monotonic() - begin
        words = [line for k, log in enumerate(logs) if k != victim for line in log.read_text().splitlines()]
        return seconds, [process.poll() for process in others], [line for line in words if "cobilevel:" in line]
    finally:
        for process in started:
            process.kill()
            process.wait()


def faults(trials):
    print(f"{PROCESSES} processes, load {os.getloadavg()[0]:.1f}")
    print(f"{'signal':>9}{'to':>4}{'seconds':>9}  exit codes of the others, and what they said")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        for trial in range(trials):
            with tempfile.TemporaryDirectory() as folder:
                seconds, codes, words = lose_one(number, trial % PROCESSES, folder)
            said = words[0] if len(words) == PROCESSES - 1 else f"{len(words)} sentences: {words}"
            print(f"{number.name:>9}{trial % PROCESSES:>4}{seconds:>9.1f}  {codes} {said}", flush=True)


if __name__ == "__main__":
    args = harness.arguments(
        __doc__, ("--rows", ROWS), ("--device", False), ("--faults", 0), ("--work", ""), ("--out", "")
    )
    if args.work:
        work(args)
    elif args.device:
        on_one_device(args.rows)
    elif args.faults:
        faults(args.faults)
    else:
        scaling(args.rows)
