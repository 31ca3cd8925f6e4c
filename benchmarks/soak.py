"""A long solve on a stream, under a limit on memory: is it flat, bounded and alive?

    python benchmarks/soak.py [--minutes 60] [--megabytes 1500]

Prints resident memory over time, the steps taken, the size of the history and of the checkpoint.
"""

import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax

import harness

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb
from cobilevel.iteration import course
from cobilevel.iteration.course import MOST_ENTRIES

_LOOKS = 20  # at memory, over the whole time
_FLAT = 1.03  # times what was held at first


def resident() -> float:
    """Megabytes of memory held now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def problem_and_stream() -> tuple[cb.Problem, cb.Stream]:
    """``y`` follows ``x xi + sin(3 xi)`` under noise, and ``x`` is to bring it to a goal: known in closed form."""

    def lower(x, y, xi, eta):
        return 0.5 * (y - x * xi - jnp.sin(3 * xi) - eta) ** 2

    def upper(x, y, xi, eta):
        return 0.5 * (y - 2 * xi - jnp.sin(3 * xi)) ** 2

    def draw(key, size):
        one, two = jax.random.split(key)
        return cb.Samples(jax.random.uniform(one, (size,)), 0.1 * jax.random.normal(two, (size,)))

    return cb.Problem(upper, lower, 0.5, 0.0, cb.Interval(0.0, 1.0)), cb.Stream(draw)


def soak(minutes: float) -> tuple[cb.Solution, np.ndarray]:
    """Solves until the time is up, with a checkpoint; the solution so far, and memory over time."""
    problem, stream = problem_and_stream()
    began, seen, reached, stop = time.monotonic(), [], [0], threading.Event()
    add = course.Course.add

    def watched(self, state, records, chunk):
        add(self, state, records, chunk)
        reached[0] = self.step
        if time.monotonic() - began > 60 * minutes:
            stop.set()
            signal.raise_signal(signal.SIGTERM)  # Ctrl-C is ignored by processes in the background

    course.Course.add = watched

    def look() -> None:
        while not stop.wait(60 * minutes / _LOOKS):
            seen.append((time.monotonic() - began, resident(), reached[0]))
            print("  {:6.0f} s  {:7.1f} MB  {:12,d} steps".format(*seen[-1]), flush=True)

    threading.Thread(target=look, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        try:
            cb.solve(problem, stream, cb.Chebyshev(6), cb.SOBA(batch=32), steps=2**31 - 1, checkpoint=folder)
        except cb.Interrupted as stopped:
            size = (Path(folder) / "checkpoint.npz").stat().st_size / 2**20
            print(f"checkpoint {size:.1f} MB")
            return stopped.solution, np.array(seen)
        finally:
            course.Course.add = add
    raise SystemExit("the run ended by itself")


def main() -> None:
    options = harness.arguments(__doc__.split("\n")[0], ("--minutes", 60.0), ("--megabytes", 1500.0))
    limit = int(options.megabytes * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    found, seen = soak(options.minutes)
    seen = seen[seen[:, 2] > 0][1:]  # all is compiled
    early, late, kept = seen[:3, 1].mean(), seen[-3:, 1].mean(), len(found.history["step"])
    print(f"{found.stats['steps']:,d} steps, {kept:,d} entries of the history; x = {float(found.x):.4f} (it is 2)")
    print(f"resident memory: {early:.1f} MB at first, {late:.1f} MB at the end, at most {seen[:, 1].max():.1f} MB")
    fine = late < _FLAT * early and kept <= MOST_ENTRIES + 1 and np.diff(seen[:, 2]).min() > 0
    print("flat, bounded and alive" if fine else "NOT flat, bounded and alive")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
