"""Every solver with nothing set: 20 random quadratics of condition numbers 1 to 1e4, and the two-edge network.

For each, the samples after which the gap first is 1% of its first value (condition up to 100), whether anything
diverged, and where it stood in the end. Run: python benchmarks/defaults.py [solver ...]
"""

import sys
import time

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb
from cobilevel.derivatives import Expansions, flattened
from cobilevel.iteration import advance
from cobilevel.lower import solve_at
from cobilevel.solvers import STOCHASTIC

BASIS = cb.Orthonormal(cb.Chebyshev(3))
CONDITIONS = np.geomspace(1.0, 1e4, 20)
SHARE = 20  # beyond condition 100 a twentieth of the default steps: what diverges, does so early


def value(reduced, x):
    expansions = Expansions(reduced.ordinary())
    return solve_at(expansions, flattened(x), expansions.table(reduced.W0), 1e-12).value


def instances():
    for seed, condition in enumerate(CONDITIONS):
        instance = cb.gallery.quadratic(seed, dx=2, dy=2, train=1024, test=10, condition=condition)
        reduced = cb.reduce(instance.problem, BASIS, instance.train)
        best, _ = instance.truth.sample_optimum(reduced.basis, instance.train, instance.train)
        yield condition, reduced, jnp.asarray(best)


def traffic(seeds=3):
    for seed in range(seeds):
        instance = cb.gallery.two_edge_traffic(seed)
        basis = cb.Orthonormal(cb.Chebyshev(5))
        best = cb.solve(instance.problem, instance.train, basis=basis)
        yield np.nan, cb.reduce(instance.problem, basis, instance.train), best.x


def samples(ledger):
    return sum(count["samples"] for count in ledger.totals().values())


def pursue(kind, reduced, best, steps, share=0.01):
    """Runs up to so many steps, and stops a while after the gap has come below `share`."""
    solver = kind()
    reduced = solver.prepare(reduced)
    state, problem = solver.init(reduced, jax.random.key(1), steps), reduced.ordinary()
    first, lowest = value(problem, problem.x0), value(problem, best)
    gap = lambda x: float((value(problem, x) - lowest) / (first - lowest))
    reached = None
    while bool(state.clock.running):
        state, _ = advance(solver, problem, state, 50)
        if reached is None and gap(state.x) < share:
            reached = samples(state.ledger)
            break
    return cb.Result.of(int(state.result)) is cb.Result.DIVERGED, gap(state.x), reached


def main():
    names = sys.argv[1:] or [kind.__name__ for kind in STOCHASTIC]
    easy_and_hard, roads = list(instances()), list(traffic())
    print("condition up to 100: samples until 1% of the gap; beyond, and on the roads: the gap reached")
    print(f"{'solver':8} {'reached':>9} {'median':>9} {'most':>9} {'diverged':>9} {'gap beyond 100':>15} "
          f"{'gap on roads':>13} {'seconds':>8}")  # fmt: skip
    for name in names:
        kind, clock = getattr(cb, name), time.perf_counter()
        found, beyond, on_roads, diverged = [], [], [], 0
        for condition, reduced, best in easy_and_hard:
            small = condition <= 100
            steps = 4 * kind.default_steps if small else max(100, kind.default_steps // SHARE)
            failed, gap, reached = pursue(kind, reduced, best, steps)
            diverged += failed
            (found if small else beyond).append(reached if small else gap)
        for _, reduced, best in roads:
            failed, gap, _ = pursue(kind, reduced, best, max(100, kind.default_steps // SHARE))
            diverged += failed
            on_roads.append(gap)
        done = [count for count in found if count is not None]
        print(
            f"{name:8} {len(done):4}/{len(found):<4} {np.median(done):9.2e} {np.max(done):9.2e} {diverged:9} "
            f"{np.max(beyond):15.2g} {np.max(on_roads):13.2g} {time.perf_counter() - clock:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
