"""The laws every solver of the family must obey, over one table of all of them."""

import collections
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel import oracles
from cobilevel.implicit import solve_at
from cobilevel.oracles import Ledger
from cobilevel.scales import Scales
from cobilevel.schedules import at
from cobilevel.solver import Result, advance, run
from cobilevel.solvers import STOCHASTIC

# steps within which each reaches 1% of the first gap with nothing set, and the samples that takes (in millions)
BUDGET = {
    "StocBiO": (250, 5.0),
    "BSA": (1000, 11.0),
    "TTSA": (1000, 10.0),
    "STABLE": (250, 0.2),
    "HOAG": (60, 4.0),
    "AmIGO": (250, 0.5),
    "SOBA": (2000, 0.7),
    "SABA": (4000, 1.2),
    "SUSTAIN": (1000, 20.0),
    "MRBO": (1000, 40.0),
    "VRBO": (250, 70.0),
    "RSVRB": (2000, 0.9),
    "SPABA": (4000, 3.2),
    "F2SA": (500, 1.2),
    "FdeHBO": (2000, 1.2),
}
BASIS = cb.Orthonormal(cb.Chebyshev(3))
ALL = pytest.mark.parametrize("kind", STOCHASTIC, ids=lambda kind: kind.__name__)


@pytest.fixture(scope="module")
def quadratic():
    """A reduced lower level of condition number 94, and 1024 samples."""
    instance = cb.gallery.quadratic(0, dx=2, dy=2, train=1024, condition=60.0)
    reduced = cb.reduce(instance.problem, BASIS, instance.train)
    best, _ = instance.truth.sample_optimum(reduced.basis, instance.train, instance.train)
    objective = jax.jit(lambda x: solve_at(reduced, x, reduced.W0, 1e-12, Ledger.empty())[0].value)
    lowest, first = objective(jnp.asarray(best)), objective(reduced.x0)
    return instance, reduced, lambda x: float((objective(x) - lowest) / (first - lowest))


@pytest.fixture(scope="module")
def measured(quadratic):
    return cb.SOBA().measure(quadratic[1], jax.random.key(0))


def short(kind, **options):
    """A solver with few terms and small batches."""
    few = {"terms": 4} if hasattr(kind, "terms") else {}
    return kind(batch=16, **few, **options)


def explicit(kind, scales, **options):
    """The same, with every step size a plain number."""
    solver = short(kind, **options)
    rates = {name: float(at(value, jnp.int32(0), float)) for name, value in solver.defaults(scales).items()}
    return replace(solver, **{name: rates[name] for name in solver.schedules})


def test_the_condition_number_is_as_stated(quadratic):
    _, reduced, _ = quadratic
    (_, _, hessian), _ = oracles.lower_model(reduced, reduced.x0, reduced.W0, reduced.lower_pool, Ledger.empty())
    eigenvalues = np.linalg.eigvalsh(hessian)
    assert 90 < eigenvalues[-1] / eigenvalues[0] < 110


@ALL
def test_one_percent_with_default_steps(kind, quadratic):
    instance, _, gap = quadratic
    steps, millions = BUDGET[kind.__name__]
    solution = cb.solve(instance.problem, instance.train, basis=BASIS, solver=kind(), steps=steps)
    assert gap(solution.x) < 0.01
    assert solution.stats["samples"] <= millions * 1e6
    assert "step sizes" in solution.choices


def upper(x, y, xi, eta):
    return (y[0] - eta) ** 2 + jnp.sum((y[1] - 2) ** 2) + 0.1 * jnp.sum(x["b"] ** 2) + 0.1 * x["a"] ** 2


def lower(x, y, xi, eta):
    gap = y[1] - x["b"] * xi - x["a"]
    return (y[0] - x["a"] * xi - eta) ** 2 + jnp.sum(gap**2) + 0.1 * jnp.sum(gap**4)


SCALES = Scales(*[jnp.asarray(v) for v in (20.0, 0.2, 4.0, 2.0, 2.0, 2.0)])  # of the problem above, roughly
KINDS = {
    "upper_value": ("upper_value",),
    "upper_gradients": ("upper_gradient",),
    "upper_rows": ("upper_gradient",),
    "lower_value": ("lower_value",),
    "lower_gradient": ("lower_gradient",),
    "lower_gradients": ("lower_gradient",),
    "hessian_vector": ("hessian_vector",),
    "cross_product": ("cross_product",),
    "cross_matrix": ("cross_matrix",),
    "lower_model": ("hessian",),
    "lower_products": ("lower_gradient", "hessian_vector", "cross_product"),
    "lower_rows": ("lower_gradient", "hessian_vector", "cross_product"),
}


@ALL
def test_float32_pytrees_bounds_ledger_and_one_compilation(kind, monkeypatch):
    """One run in single precision, on pytrees, against a bound, with every oracle call counted as it happens."""
    seen, traces = collections.Counter(), []

    def counted(name):
        oracle = getattr(oracles, name)

        def call(*args):
            batch = args[-2]
            rows = len(batch) if batch.count is None else batch.count

            def tell(rows):
                for kind in KINDS[name]:
                    seen.update({(kind, "calls"): 1, (kind, "samples"): int(rows)})

            jax.debug.callback(tell, rows)
            return oracle(*args)

        return call

    for name in KINDS:
        monkeypatch.setattr(oracles, name, counted(name))

    def watched(x, y, xi, eta):
        traces.append(1)
        return upper(x, y, xi, eta)

    rng = np.random.default_rng(0)
    xi, eta = rng.uniform(0, 1, 50).astype(np.float32), rng.normal(size=50).astype(np.float32)
    x0 = {"a": jnp.float32(0.0), "b": jnp.zeros(2, jnp.float32)}
    y0 = (jnp.float32(0.0), jnp.zeros(2, jnp.float32))
    bounds = ({"a": -0.02, "b": -1.0}, {"a": 0.02, "b": 1.0})
    problem = cb.Problem(watched, lower, x0, y0, cb.Interval(0.0, 1.0), x_bounds=bounds)
    solver = explicit(kind, SCALES)
    reduced = solver.prepare(cb.reduce(problem, cb.Chebyshev(3), cb.Samples(xi, eta)))
    state = solver.init(reduced, jax.random.key(1), 1000)
    jax.effects_barrier()
    for part in range(3):
        state, _ = advance(solver, reduced, state, 5)
        if part == 0:
            before = len(traces)
    jax.effects_barrier()
    assert len(traces) == before, "compiled more than once"
    told = state.ledger.totals()
    assert {(k, what): number for k, counts in told.items() for what, number in counts.items()} == dict(seen)
    for leaf in jax.tree.leaves(eqx.filter(state, eqx.is_inexact_array)):
        assert leaf.dtype == np.float32
    assert jax.tree.structure(state.x) == jax.tree.structure(x0)
    assert jax.tree.structure(state.W) == jax.tree.structure(y0)
    sides = (jax.tree.leaves(side) for side in reduced.problem.x_bounds)
    for leaf, lo, hi in zip(jax.tree.leaves(state.x), *sides, strict=True):
        assert bool(jnp.all((leaf >= lo) & (leaf <= hi)))
    assert float(state.x["a"]) == np.float32(0.02), "the bound is where the optimum lies"
    assert int(state.result) in (Result.RUNNING, Result.CONVERGED)
    assert float(jnp.max(jnp.abs(state.x["b"]))) > 0


@ALL
def test_seeds_and_step_sizes_vmapped_are_the_loop_over_them(kind, quadratic, measured):
    reduced = kind().prepare(quadratic[1])
    solver = explicit(kind, measured.scales)
    keys, factors = jax.random.split(jax.random.key(3), 3), np.array([0.3, 0.6, 1.0])

    def one(key, factor):
        chosen = replace(solver, outer=solver.outer * factor)
        return advance(chosen, reduced, chosen.init(reduced, key, 12, measured), solver.chunk)[0]

    together = jax.vmap(one)(keys, jnp.asarray(factors))
    for i, (key, factor) in enumerate(zip(keys, factors, strict=True)):
        alone = one(key, jnp.asarray(factor))
        for name in ("x", "W"):
            np.testing.assert_allclose(getattr(together, name)[i], getattr(alone, name), rtol=1e-12, atol=1e-12)
    assert len({float(value) for value in together.x[:, 0]}) == 3


@ALL
def test_resumed_is_uninterrupted_bit_for_bit(kind, quadratic, measured, tmp_path):
    instance, reduced, _ = quadratic
    solver = explicit(kind, measured.scales)
    whole = run(solver, reduced, jax.random.key(5), 14)
    half = run(solver, reduced, jax.random.key(5), 7)
    loaded = cb.load(half.save(tmp_path / "half.npz"), instance.problem)
    resumed = run(solver, reduced, jax.random.key(5), 14, resume=loaded.state)
    for one, other in zip(whole.state.leaves, resumed.state.leaves, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.any(half.x != whole.x)


@ALL
def test_divergence_is_reported(kind, quadratic, measured):
    solver = explicit(kind, measured.scales)
    wild = 1e200 if kind is cb.HOAG else 1e6  # HOAG halves its steps, so it takes more to throw it off
    solver = replace(solver, outer=solver.outer * wild)
    solution = run(solver, quadratic[1], jax.random.key(0), 200)
    assert not solution.converged
    assert solution.result.startswith("Diverged")
    assert f"at step {solution.stats['steps'] + 1}" in solution.result
    assert np.all(np.isfinite(solution.x))
    assert np.all(np.isfinite(solution.W))
