"""Large problems: seconds of the first and of the second call, and the most memory that was held.

Four groups, all in double precision and with nothing given but the problem and its samples:

- many contexts: ``Finite(1000)`` and ``Finite(2500)`` with 10,000 rows, the lower level a mean for each context;
- many dimensions: 10,000 rows with 6 context dimensions (a smooth truth in which some coordinates hang together, and
  one in which all do) and with 20 (a linear truth);
- many rows: 10^6 rows with one scalar context, solved, certified, and resampled 20 times;
- many coordinates: 2000 rows and a decision of 10 to 20,000 numbers, a layer that all contexts share, with a head for
  each context below; certified on fresh samples. What is printed is shown.

A first call compiles its programs, a second one finds them compiled; printing a solution, which is when standard errors
are computed, is timed on its own. Every problem runs in a process of its own, so that programs and memory are its own
too. `cpu` are seconds of processor time: on a machine with other work they say more than seconds of the clock.

    python benchmarks/large.py                    # all of them
    python benchmarks/large.py --only contexts    # one group: contexts, dimensions, rows or coordinates
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

NOISE = 0.3
ROWS = 10_000
RESAMPLINGS = 20


def stated(xi, truth, domain, seed):
    """The lower level finds the conditional mean moved by x; the upper one would have it one higher."""
    rng = np.random.default_rng(seed)
    eta, goal = (truth + shift + NOISE * rng.standard_normal(len(xi)) for shift in (0.0, 1.0))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - eta["goal"]) ** 2 / 2 + 0.01 * x**2,
        lambda x, y, xi, eta: (y - x - eta["seen"]) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=domain,
    )
    return problem, cb.Samples(xi, {"seen": eta, "goal": goal})


def finite(count):
    xi = np.random.default_rng(1).integers(0, count, ROWS).astype(float)
    return stated(xi, np.sin(6 * xi / count), cb.Finite(np.arange(float(count))), 0)


def box(dimension, truth):
    xi = np.random.default_rng(1).uniform(-1, 1, (ROWS, dimension))
    return stated(xi, truth(xi), cb.Box([-1.0] * dimension, [1.0] * dimension), 0)


def coupled(xi):
    """Some coordinates hang together."""
    return np.sin(2 * xi[:, 0]) + xi[:, 1] * xi[:, 2] + xi[:, 3] ** 2 / 2 + np.exp(xi[:, 4] / 2) / 2 + xi[:, 5]


def ridge(xi):
    """All coordinates hang together."""
    return np.sin(xi.sum(axis=1)) + np.exp(-np.sum(xi**2, axis=1))


def line(rows=1_000_000):
    xi = np.random.default_rng(1).uniform(-1, 1, rows)
    return stated(xi, np.sin(3 * xi), cb.Interval(-1.0, 1.0), 0)


def layer(width, inputs, seed=0, rows=2000):
    """The weights of a layer, with a linear head for each context below."""
    fixed, rng = np.random.default_rng(5), np.random.default_rng(seed)
    true, start = (fixed.normal(size=(width, inputs)) / np.sqrt(inputs) for _ in range(2))
    xi, u = rng.uniform(-1, 1, rows), rng.normal(size=(rows, inputs))
    heads = np.cos(xi[:, None] + np.arange(width)) / np.sqrt(width)
    seen = np.sum(np.tanh(u @ true.T) * heads, axis=1) + 0.1 * rng.normal(size=rows)
    loss = lambda x, y, eta: (y @ jnp.tanh(x["w"] @ eta["u"]) - eta["seen"]) ** 2 / 2
    problem = cb.Problem(
        lambda x, y, xi, eta: loss(x, y, eta) + 1e-3 * jnp.sum(x["w"] ** 2),
        lambda x, y, xi, eta: loss(x, y, eta) + 1e-2 * jnp.sum(y**2),
        x0={"w": start},
        y0=np.zeros(width),
        domain=cb.Interval(-1.0, 1.0),
    )
    return problem, cb.Samples(xi, {"u": u, "seen": seen})


LAYERS = {10: (2, 5), 144: (12, 12), 1000: (10, 100), 5000: (10, 500), 20_000: (10, 2000)}
PROBLEMS = {
    "contexts": {"Finite(1000)": lambda: finite(1000), "Finite(2500)": lambda: finite(2500)},
    "dimensions": {
        "6 dimensions": lambda: box(6, coupled),
        "6 dimensions, all together": lambda: box(6, ridge),
        "20 dimensions, linear": lambda: box(20, lambda xi: xi @ np.linspace(1, 0.2, 20)),
    },
    "rows": {"10^6 rows": line},
    "coordinates": {
        f"x of {count}": lambda shape=shape, **seed: layer(*shape, **seed) for count, shape in LAYERS.items()
    },
}
GOALS = {  # seconds
    "Finite(1000)": {"solve": 5.0, "solve again": 1.0},
    "Finite(2500)": {"solve": 10.0},
    "6 dimensions": {"solve": 20.0, "solve again": 5.0},
    "6 dimensions, all together": {"solve": 20.0, "solve again": 5.0},
    "20 dimensions, linear": {"solve": 20.0, "solve again": 5.0},
    "10^6 rows": {"solve": 15.0, "solve again": 6.0, "certify": 15.0, f"{RESAMPLINGS} resamplings": 20.0},
}
MEMORY_GOALS = {("10^6 rows", "certify"): 1.5}  # GB held at most, by the end of a call
QUICK = ("Finite(1000)", "20 dimensions, linear")


def timed(name, what, call, lines):
    """One line of the table, and its entry; returns what the call did."""
    clock, cpu = time.perf_counter(), time.process_time()
    found = call()
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name:28s} {what:16s} {clock:8.2f} {cpu:8.2f} {held:9.2f}", flush=True)
    lines.append({"what": f"{name}: {what}", "value": clock, "unit": "s", "goal": GOALS.get(name, {}).get(what)})
    if (name, what) in MEMORY_GOALS:
        most = MEMORY_GOALS[name, what]
        lines.append({"what": f"{name}: peak memory, {what}", "value": held, "unit": "GB", "goal": most})
    return found


def measure(group, name):
    """All lines of one problem, in this process; returns their entries."""
    problem, samples = PROBLEMS[group][name]()
    lines = []
    timed(name, "solve", lambda: cb.solve(problem, samples), lines)
    solution = timed(name, "solve again", lambda: cb.solve(problem, samples), lines)
    said = timed(name, "print", lambda: repr(solution), lines)
    samples = PROBLEMS[group][name](seed=1)[1] if group == "coordinates" else samples
    found = timed(name, "certify", lambda: cb.certify(problem, solution, samples), lines)
    if group == "coordinates":
        print(f"{said}\n{found}", flush=True)
    timed(name, "certify again", lambda: cb.certify(problem, solution, samples), lines)
    if group == "rows":
        again = lambda: cb.bootstrap(problem, solution, samples, RESAMPLINGS)
        timed(name, f"{RESAMPLINGS} resamplings", again, lines)
    return lines


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--only", str, "one group alone", {"choices": tuple(PROBLEMS)}),
        ("--problem", str, "one problem of that group, in this process"),
        ("--quick", False, f"{' and '.join(QUICK)} alone"),
        ("--json", Path, "where the measurements are written, with their goals"),
    )
    lines = []
    if arguments.problem:
        lines = measure(arguments.only, arguments.problem)
    else:
        print(f"{'problem':28s} {'call':16s} {'seconds':>8s} {'cpu':>8s} {'peak, GB':>9s}", flush=True)
        groups = PROBLEMS if arguments.only is None else (arguments.only,)
        chosen = [(group, name) for group in groups for name in PROBLEMS[group] if not arguments.quick or name in QUICK]
        with tempfile.TemporaryDirectory() as folder:
            for group, name in chosen:
                part = Path(folder) / "part.json"
                command = [sys.executable, __file__, "--only", group, "--problem", name, "--json", str(part)]
                subprocess.run(command, check=True)
                lines += json.loads(part.read_text())
    harness.write_measurements(arguments.json, lines)


if __name__ == "__main__":
    main()
