"""Every stochastic solver with nothing set, on bounded lower levels and on heads of eight weights with 45 functions.

The gap is that of the loss to Newton's with the same basis and nothing set, over that at ``x0``: by ``x``, with the
lower level solved as Newton has it, and by the pair that was returned.

Run: python benchmarks/first_order.py [problem ...] [--solvers SOBA SABA] [--share 1.0]
"""

import argparse
import time
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

import cobilevel as cb
from cobilevel.solvers import STOCHASTIC


def bounded(target, contexts, noise, pull=0.1):
    rng = np.random.default_rng(0)
    xi, eta = rng.uniform(*contexts, 1000), noise * rng.normal(size=1000)
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - target * xi - 0.2) ** 2 + pull * (x - target) ** 2,
        lambda x, y, xi, eta: (y - (x * xi + 0.2 + eta)) ** 2 / 2,
        x0=contexts[0],
        y0=0.5,
        domain=cb.Interval(*map(float, contexts)),
        constraints=[cb.Bounds(0, 1)],
    )
    return problem, cb.Samples(xi, eta), cb.Chebyshev(8)


def simplex(noise):
    rng = np.random.default_rng(0)
    xi, eta = rng.uniform(0, 1, 1000), noise * rng.normal(size=(1000, 3))
    wanted = lambda xi: jnp.array([0.9 * xi, 0.4, 0.6 - 0.9 * xi])
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - wanted(xi)) ** 2) + 0.01 * jnp.sum(x**2),
        lambda x, y, xi, eta: jnp.sum((y - x[0] * jnp.array([xi, 0.4, -xi]) - x[1:] - eta) ** 2) / 2,
        x0=np.zeros(4),
        y0=np.full(3, 1 / 3),
        domain=cb.Interval(0.0, 1.0),
        constraints=[cb.Simplex()],
    )
    return problem, cb.Samples(xi, eta), cb.Chebyshev(8)


def heads(covariates=8, rows=3000):
    """Regression weights for each task, drawn to shared ones: those are the decision."""
    rng = np.random.default_rng(0)
    xi, a = rng.uniform(-1, 1, (rows, covariates)), rng.normal(size=(rows, 8)) * np.geomspace(1, 0.3, 8)
    true = 1 + xi @ rng.normal(size=(covariates, 8)) / 2 + xi[:, :1] * xi[:, 1:2]
    b = np.sum(a * true, axis=1) + 0.1 * rng.normal(size=rows)
    fit = lambda y, eta: (eta["b"] - eta["a"] @ y) ** 2 / 2
    problem = cb.Problem(
        lambda x, y, xi, eta: fit(y, eta),
        lambda x, y, xi, eta: fit(y, eta) + 0.1 * jnp.sum((y - x) ** 2),
        x0=np.zeros(8),
        y0=np.zeros(8),
        domain=cb.Box(-np.ones(covariates), np.ones(covariates)),
    )
    return problem, cb.Samples(xi, {"a": a, "b": b}), cb.Chebyshev(3, index=cb.TotalDegree())


PROBLEMS = {
    f"{name} {noise:g}": (lambda make=make, noise=noise: make(noise))
    for name, make in {
        "none": lambda noise: bounded(0.6, (0.0, 1.0), noise),
        "part": lambda noise: bounded(1.5, (0.0, 1.0), noise),
        "all": lambda noise: bounded(1.5, (1.0, 2.0), noise),
        "simplex": simplex,
    }.items()
    for noise in (0.0, 0.1)
} | {"heads": heads}


def fixed(problem, x):
    """The problem with its decision held: Newton then solves the lower level alone."""
    return replace(problem, x0=np.asarray(x), x_bounds=(np.asarray(x), np.asarray(x)))


def compare(name, problem, samples, basis, solvers, share):
    best, reduced = cb.solve(problem, samples, basis=basis), cb.reduce(problem, basis, samples)
    loss = lambda found: float(reduced.upper(found.x, found.W, reduced.upper_pool))
    at = lambda x: loss(cb.solve(fixed(problem, x), samples, basis=basis, steps=1))
    first, least = at(problem.x0), loss(best)
    print(f"{name}: loss {first:.5g} at x0, {least:.5g} by Newton at x {np.asarray(best.x).round(4)}", flush=True)
    for kind in solvers:
        solver, clock = getattr(cb, kind)(), time.perf_counter()
        steps = max(1, int(share * solver.default_steps))
        found = cb.solve(problem, samples, basis=basis, solver=solver, steps=steps)
        took = time.perf_counter() - clock
        gap, pair = ((value - least) / (first - least) for value in (at(found.x), loss(found)))
        print(
            f"  {kind:8} gap {gap:8.2%} pair {pair:8.2%} steps {found.stats['steps']:6} {took:6.1f} s  "
            f"{found.result.name} {found.detail} | {found.choices.get('retreats', '')[:60]} "
            f"{found.choices.get('step sizes', '')}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--solvers", nargs="*", default=[kind.__name__ for kind in STOCHASTIC])
    parser.add_argument("--share", type=float, default=1.0, help="of the default steps")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, make in PROBLEMS.items():
        if options.problems and not any(name.startswith(wanted) for wanted in options.problems):
            continue
        compare(name, *make(), options.solvers, options.share)


if __name__ == "__main__":
    main()
