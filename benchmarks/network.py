"""Capacities of a road network from noisy counts: ``cb.solve``, and per-context assignment inside L-BFGS.

The network is that of ``--folder`` (TNTP files); else Sioux Falls, where AequilibraE is installed; else a grid.
Both methods see the same samples; L-BFGS has as many seconds as ``cb.solve`` took, compilation included in both. It
assigns every sample's demand exactly (Newton's method from the times of the last call) and differentiates implicitly.
For one group, so does SciPy's ``least_squares``, given the true flows, without noise, at nine demands.
Errors: of capacities, as shares of those stated (root mean square over links), and of flows at fresh contexts.

``--large``: seconds a sample for the potential and its derivatives on a generated grid of 898 links, and nothing else.
``--picture``: writes ``network.csv`` and ``network.png`` to that folder.
"""

import os
import resource
import time
from pathlib import Path

import harness

os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

jax.config.update("jax_enable_x64", True)

import cobilevel as cb
from cobilevel.gallery import tntp
from cobilevel.gallery.network import Equilibrium, _equilibria


def roads_of(given):
    if given.folder is not None:
        return tntp.read_folder(given.folder)
    try:
        return tntp.sioux_falls()
    except ImportError:
        print("AequilibraE is not installed: a generated grid")
        return cb.gallery.grid(4, 6)


class Assignment:
    """The mean misfit at exact equilibria, and its gradient; for an optimiser of one's own."""

    def __init__(self, instance, seconds):
        f, g = instance.problem.upper, instance.problem.lower
        self.data = instance.train
        self.ends, self.best, self.calls = time.perf_counter() + seconds, (np.inf, None), 0
        xi, eta = jnp.asarray(self.data.xi), jnp.asarray(self.data.eta)
        self.y = np.repeat(instance.truth.y(instance.problem.x0, np.full_like(xi[:1], 1.0)), len(xi), axis=0)
        bend = jax.hessian(g, argnums=1)

        def step(x, y, xi, eta):
            slope = jax.grad(g, argnums=1)(x, y, xi, eta)
            p = -jnp.linalg.solve(bend(x, y, xi, eta), slope)
            sizes = 0.5 ** jnp.arange(12.0)
            values = jax.vmap(lambda s: g(x, y + s * p, xi, eta))(sizes)
            best = jnp.nanargmin(jnp.append(values, g(x, y, xi, eta)))
            return y + jnp.append(sizes, 0.0)[best] * p, -slope @ p

        def last(x, y, xi, eta):
            value, (in_x, in_y) = jax.value_and_grad(f, argnums=(0, 1))(x, y, xi, eta)
            adjoint = jnp.linalg.solve(bend(x, y, xi, eta), in_y)
            pull = jax.grad(lambda q: jax.grad(g, argnums=1)(q, y, xi, eta) @ adjoint)(x)
            return value, in_x - pull

        many = lambda of: jax.jit(lambda x, y: jax.lax.map(lambda row: of(x, *row), (y, xi, eta), batch_size=128))
        self.step, self.last = many(step), many(last)

    def __call__(self, x):
        for _ in range(50):
            if time.perf_counter() > self.ends:
                raise TimeoutError
            self.y, promised = self.step(x, self.y)
            if float(jnp.max(promised)) < 1e-12:
                break
        value, slope = (np.asarray(part).mean(axis=0) for part in self.last(x, self.y))
        self.calls += 1
        self.best = min(self.best, (float(value), tuple(x)))
        return value, slope


def with_the_truth(instance, nodes=9):
    """Least squares on the exact flows at a few demands, weighted as in the objective; with exact slopes."""
    truth, lower = instance.truth, instance.truth.lower
    at, shares = np.polynomial.legendre.leggauss(nodes)
    xi = truth.span[0] + (truth.span[1] - truth.span[0]) * (at + 1) / 2
    weights = np.sqrt(shares / 2 / len(truth.x))[:, None] / truth.upper.deviation
    prior = 1 / np.sqrt(len(truth.x) * truth.upper.samples) / truth.upper.spread

    def moved(x, y, xi):
        cross, bend = jax.jacfwd(jax.grad(lower, argnums=1), argnums=(0, 1))(x, y, xi, xi)
        return jax.jacfwd(lower.attracted)(y, xi)[lower.open] @ -jnp.linalg.solve(bend, cross)

    slopes = jax.jit(jax.vmap(moved, (None, 0, 0)))
    exact, last = truth.flows(truth.y(truth.x, xi), xi)[:, lower.open], [None, truth.y(np.ones(len(truth.x)), xi)]

    def times(x):
        """Of the last capacities, if these are the same; else from those on."""
        if last[0] is None or np.any(x != last[0]):
            y, solved = _equilibria(lower, x, xi, last[1])
            last[:] = x.copy(), y if solved.all() else truth.y(x, xi)
        return last[1]

    def apart(x):
        return np.append(weights * (truth.flows(times(x), xi)[:, lower.open] - exact), prior * (x - 1))

    def jacobian(x):
        by_node = weights[..., None] * np.asarray(slopes(x, times(x), xi))
        return np.concatenate([by_node.reshape(-1, len(x)), prior * np.eye(len(x))])

    start = np.ones(len(truth.x))
    return scipy.optimize.least_squares(apart, start, jacobian, bounds=(0.5, 2.0), xtol=1e-12, ftol=1e-12)


def errors(instance, x):
    truth, xi = instance.truth, np.asarray(instance.test.xi)
    size = lambda a: np.sqrt(np.mean(a**2))
    exact = truth.flows(truth.y(truth.x, xi), xi)
    return {
        "capacities": size(np.asarray(x, float) - truth.x),
        "flows": size(truth.flows(truth.y(x, xi), xi) - exact) / size(exact),
    }


def shown(name, seconds, figures):
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    words = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
    print(f"{name:<12} {seconds / 60:6.2f} min, {memory:.1f} GiB: {words}", flush=True)


def large(rows=16):
    lower = Equilibrium.of(cb.gallery.grid(15, 16, zones=24))
    x, xi = jnp.ones(len(lower.capacity)), jnp.linspace(0.7, 1.2, rows)
    y = jnp.tile(lower.times(x, lower.capacity), (rows, 1))
    slope = jax.grad(lambda t, xi: lower(x, t, xi, xi))
    kinds = {
        "potential": lambda t, xi: lower(x, t, xi, xi),
        "gradient": slope,
        "product": lambda t, xi: jax.jvp(lambda q: slope(q, xi), (t,), (t,))[1],
    }
    for name, of in kinds.items():
        program = jax.jit(jax.vmap(of))
        jax.block_until_ready(program(y, xi))
        _, seconds = harness.timed(program, y, xi)
        shown(name, seconds, {"milliseconds a sample": 1e3 * seconds / rows})


def main():
    given = harness.arguments(
        __doc__,
        ("--groups", 1),
        ("--samples", 1000),
        ("--theta", 1.0),
        ("--steps", int, "of cb.solve, at most"),
        ("--functions", int, "Chebyshev polynomials along each axis, by total degree; chosen when left out"),
        ("--folder", Path),
        ("--large", False),
        ("--picture", Path),
    )
    print(harness.circumstances())
    if given.large:
        return large()
    make = lambda: cb.gallery.network(0, given.groups, roads=roads_of(given), theta=given.theta, train=given.samples)
    instance, seconds = harness.timed(make)
    shown("instance", seconds, errors(instance, instance.problem.x0))
    basis = None if given.functions is None else cb.Chebyshev(given.functions, index=cb.TotalDegree())
    solution, seconds = harness.timed(
        lambda: cb.solve(instance.problem, instance.train, basis=basis, steps=given.steps)
    )
    print(solution.result, solution.basis.basis, solution.choices.get("basis", ""), flush=True)
    xi = np.asarray(instance.test.xi)
    policy, exact = (instance.truth.y(instance.truth.x, xi), instance.truth.flows)
    exact = instance.truth.flows(policy, xi)
    gap = instance.truth.flows(np.asarray(solution.policy(instance.test.xi)), xi) - exact
    of_policy = {"flows of the policy": np.linalg.norm(gap) / np.linalg.norm(exact)}
    steps = {"objective": float(solution.history["upper"][-1]), "steps": solution.stats["steps"]}
    shown("cb.solve", seconds, errors(instance, solution.x) | of_policy | steps)
    if given.picture is not None:
        middle = np.mean(np.atleast_2d(xi.T), axis=1).squeeze()
        table = instance.truth.table(solution.x, solution.policy(jnp.asarray(middle)), middle)
        cb.gallery.write_table(given.picture / "network.csv", table)
        error = np.asarray(solution.x) / instance.truth.x - 1
        roads = instance.truth.roads
        cb.gallery.draw_roads(
            roads, table["flow"], error, given.picture / "network.png", "error of the capacity, as a share"
        )
    if given.groups == 1:
        found, spent = harness.timed(lambda: with_the_truth(instance))
        figures = {"objective": instance.truth.objective(found.x), "calls": found.nfev}
        shown("the truth", spent, errors(instance, found.x) | figures)
    began = time.perf_counter()
    assignment = Assignment(instance, seconds)
    try:
        bounds = [(0.5, 2.0)] * len(instance.truth.x)
        scipy.optimize.minimize(assignment, np.asarray(instance.problem.x0), jac=True, method="L-BFGS-B", bounds=bounds)
    except TimeoutError:
        pass
    spent, (objective, x) = time.perf_counter() - began, assignment.best
    if x is None:
        print(f"L-BFGS has not assigned all samples once in {spent / 60:.2f} min")
    else:
        shown("L-BFGS", spent, errors(instance, np.array(x)) | {"objective": objective, "calls": assignment.calls})


if __name__ == "__main__":
    main()
