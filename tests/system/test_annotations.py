"""Annotations of the package, checked at run time: in a process of its own, over one pass through all of it."""

import subprocess
import sys

PASS = """
import warnings

import jax
import jaxtyping

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jaxtyping.install_import_hook("cobilevel", "beartype.beartype")

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import combine

with pytest.raises(jaxtyping.TypeCheckError):
    combine(jnp.zeros(3, int), jnp.zeros(3))  # they are

rng = np.random.default_rng(0)
xi, eta = rng.uniform(size=200), rng.normal(size=200)


def upper(x, y, xi, eta):
    return (y["a"] - 1) ** 2 + jnp.sum((y["b"] - eta) ** 2) + 0.1 * jnp.sum(x**2)


def lower(x, y, xi, eta):
    return (y["a"] - x[0] * xi - eta) ** 2 + jnp.sum((y["b"] - x[1]) ** 2) + 0.1 * jnp.cosh(y["a"])


y0 = {"a": jnp.zeros(()), "b": jnp.zeros(2)}
problem = cb.Problem(upper, lower, jnp.ones(2), y0, cb.Interval(0.0, 1.0), x_bounds=(-5.0, 5.0))
samples = cb.Samples(xi, eta, rng.uniform(0.5, 1.5, 200))
solution = cb.solve(problem, samples)
print(solution, solution.table(xi[:3]))
for mode in ("neighbours", "enriched", "held-out"):
    print(cb.certify(problem, solution, samples, mode=mode))
print(cb.bootstrap(problem, solution, samples, replicates=2))
print(cb.diagnose(problem, cb.Chebyshev(4), samples))
cb.solve(problem, samples, basis=cb.Partition(70), steps=3)
cb.solve(problem, samples, tolerance=0.5)
cb.solve(problem, samples, basis=cb.Chebyshev(3), restarts=1, steps=3)
cb.solve(problem, cb.Product(xi[:20], eta[:20]), basis=cb.Orthonormal(cb.Legendre(3)), steps=3)
cb.solve(problem, samples, basis=cb.Snapshot(2), steps=3)
bounded = cb.Problem(upper, lower, jnp.ones(2), y0, cb.Interval(0.0, 1.0), constraints=[cb.Bounds(-9.0, 9.0)])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cb.solve(bounded, samples, basis=cb.Chebyshev(3), steps=2)
for solver in (cb.SABA(batch=8), cb.HOAG()):
    cb.solve(problem, samples, basis=cb.Chebyshev(3), solver=solver, steps=3)
roads = cb.gallery.two_edge_traffic(0, train=60, test=20)
found = cb.solve(roads.problem, roads.train, basis=cb.Chebyshev(4))
print(cb.evaluate(roads.problem, found, roads.test, roads.truth), cb.certify(roads.problem, found, roads.test))
without = {"first": 4, "epochs": 2, "batch": 4}
for method in (
    cb.direct.PerContext(), cb.direct.Collocation(4), cb.direct.DLSGD(**without), cb.direct.RTMLMC(**without)
):
    print(cb.solve(roads.problem, roads.train, solver=method, steps=2))
near = cb.direct.LocalWeights("kernel"), cb.direct.LocalWeights("forest", trees=3)
for method in (*near, cb.direct.Amortized(width=4)):
    print(method.solve(problem, samples, steps=2).policy(xi[:3]))
plane = cb.Mixed(u=cb.Interval(0, 1), day=cb.Finite(["mon", "tue"]), hour=cb.Periodic(0, 24))
mixed = {"u": xi, "day": np.where(xi > 0.5, "mon", "tue"), "hour": 24 * rng.uniform(size=200)}
scalar = cb.Problem(
    lambda x, y, xi, eta: (y - 1) ** 2 + x**2, lambda x, y, xi, eta: (y - x * xi["u"] - eta) ** 2, 0.5, 0.0, plane
)
print(cb.solve(scalar, cb.Samples(mixed, eta)))
"""


def test_annotations_are_true():
    found = subprocess.run([sys.executable, "-c", PASS], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-4000:]
