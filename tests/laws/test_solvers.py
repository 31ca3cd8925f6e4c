"""The laws every solver of the family must obey, over one table of all of them."""

import collections
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cobilevel as cb
from cobilevel.answer import Job
from cobilevel.derivatives import Expansions, Ledger, flattened, oracles
from cobilevel.ground.programs import quick
from cobilevel.iteration import Result, Scales, advance, at, measure, stochastic
from cobilevel.iteration.loop import CHUNKS
from cobilevel.lower import solve_at
from cobilevel.solvers import STOCHASTIC

# steps within which each reaches 1% of the first gap with nothing set, and the samples that takes (in millions)
BUDGET = {
    "StocBiO": (250, 8.0),
    "BSA": (2000, 30.0),
    "TTSA": (2000, 30.0),
    "STABLE": (250, 0.3),
    "HOAG": (60, 4.0),
    "AmIGO": (250, 0.5),
    "SOBA": (4000, 1.3),
    "SABA": (6000, 1.8),
    "SUSTAIN": (2000, 60.0),
    "MRBO": (600, 35.0),
    "VRBO": (250, 85.0),
    "RSVRB": (2000, 1.1),
    "SPABA": (6000, 4.8),
    "F2SA": (500, 1.2),
    "FdeHBO": (4000, 2.4),
}
BASIS = cb.Orthonormal(cb.Chebyshev(3))
# the solvers with a Neumann series of their own take longest: `make thorough` runs them
SERIES = ("BSA", "TTSA", "SUSTAIN", "MRBO", "VRBO", "StocBiO")


def over_all(later):
    """A law over all solvers, with those named left to `make thorough`."""
    marks = lambda kind: [pytest.mark.thorough] if kind.__name__ in later else []
    return pytest.mark.parametrize("kind", [pytest.param(k, id=k.__name__, marks=marks(k)) for k in STOCHASTIC])


ALL = over_all(SERIES)


def judged(condition):
    """An instance with 1024 samples, reduced; and the share of the first gap that is left at an ``x``."""
    instance = cb.gallery.quadratic(0, dx=2, dy=2, train=1024, condition=condition)
    reduced = cb.reduce(instance.problem, BASIS, instance.train)
    best, _ = instance.truth.sample_optimum(reduced.basis, instance.train, instance.train)
    expansions = Expansions(reduced.ordinary())
    objective = lambda x: solve_at(expansions, flattened(x), expansions.table(reduced.W0), 1e-12).value
    lowest, first = objective(best), objective(reduced.x0)
    return instance, reduced, lambda x: float((objective(x) - lowest) / (first - lowest))


@pytest.fixture(scope="module")
def quadratic():
    """A reduced lower level of condition number 94."""
    return judged(60.0)


@pytest.fixture(scope="module")
def well_conditioned():
    """The same with a condition number near 3: runs take fewer steps, by the same programs."""
    return judged(3.0)


@pytest.fixture(scope="module")
def measured(quadratic):
    return measure(quadratic[1].ordinary(), jax.random.key(0), 64)


def cut(kind, **options):
    """A solver with few terms, if it has terms; all else as it is where nothing is set."""
    few = {"terms": 4} if hasattr(kind, "terms") else {}
    few |= {"difference": 1e-2} if kind is cb.FdeHBO else {}  # so that differences do not magnify rounding
    return kind(**few, **options)


def explicit(kind, scales, **options):
    """The same, with every step size a plain number."""
    solver = cut(kind, **options)
    rates = {name: float(at(value, jnp.int32(0), float)) for name, value in solver.defaults(scales).items()}
    return replace(solver, **{name: rates[name] for name in solver.schedules})


def hessian_of(reduced):
    """Of the lower level, at the start."""
    model = jax.jit(lambda W: oracles.lower_model(reduced, reduced.x0, W, reduced.lower_pool, Ledger.empty())[0][2])
    return model(reduced.W0)


def test_the_condition_number_is_as_stated(quadratic):
    _, reduced, _ = quadratic
    eigenvalues = np.linalg.eigvalsh(hessian_of(reduced))
    assert 90 < eigenvalues[-1] / eigenvalues[0] < 110


@over_all((*SERIES, "RSVRB", "F2SA", "FdeHBO", "SPABA"))
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


SCALES = Scales(*[jnp.asarray(v) for v in (20.0, 0.2, 4.0, 2.0, 2.0, 2.0, 4.0)])  # of the problem above, roughly
KINDS = {
    "upper_gradients": ("upper_gradient",),
    "upper_rows": ("upper_gradient",),
    "lower_slope": ("lower_value", "lower_gradient"),
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
    xi, eta = rng.uniform(0, 1, 64).astype(np.float32), rng.normal(size=64).astype(np.float32)
    x0 = {"a": jnp.float32(0.0), "b": jnp.zeros(2, jnp.float32)}
    y0 = (jnp.float32(0.0), jnp.zeros(2, jnp.float32))
    bounds = ({"a": -0.02, "b": -1.0}, {"a": 0.02, "b": 1.0})
    problem = cb.Problem(watched, lower, x0, y0, cb.Interval(0.0, 1.0), x_bounds=bounds)
    solver = explicit(kind, SCALES, batch=24)  # the last of an epoch is filled up
    reduced = solver.prepare(cb.reduce(problem, cb.Chebyshev(3), cb.Samples(xi, eta))).ordinary()
    state = solver.init(reduced, jax.random.key(1), jnp.int32(1000))
    jax.effects_barrier()
    for part in range(3):
        state, _ = advance(solver, reduced, state, 5)
        if part == 0:
            before = len(traces)
    jax.effects_barrier()
    assert len(traces) == before, "compiled more than once"
    spent = state.ledger.totals()
    assert {(k, what): number for k, counts in spent.items() for what, number in counts.items()} == dict(seen)
    for leaf in jax.tree.leaves(eqx.filter(state, eqx.is_inexact_array)):
        assert leaf.dtype == np.float32
    assert jax.tree.structure(state.x) == jax.tree.structure(x0)
    assert jax.tree.structure(state.W) == jax.tree.structure(y0)
    sides = (jax.tree.leaves(side) for side in reduced.problem.x_bounds)
    for leaf, lo, hi in zip(jax.tree.leaves(state.x), *sides, strict=True):
        assert bool(jnp.all((leaf >= lo) & (leaf <= hi)))
    assert float(state.x["a"]) == np.float32(0.02), "the bound is where the optimum lies"
    assert Result.of(int(state.result)) in (Result.RUNNING, Result.CONVERGED)
    assert float(jnp.max(jnp.abs(state.x["b"]))) > 0


def test_functions_in_double_precision_serve_a_run_in_single(quadratic):
    """A function that holds double precision numbers gives values in double precision."""
    instance, few = quadratic[0], quadratic[0].train.rows(slice(0, 64))
    solution = cb.solve(instance.problem, few, basis=BASIS, solver=cb.SABA(batch=16), steps=3, precision="single")
    assert solution.stats["steps"] == 3
    assert solution.x.dtype == np.float32


def steps_together(solver, problem, states, count):
    """As many steps of a stack of states, in one program, to the states after; without the ledger."""

    def step(_, before):
        paged = eqx.tree_at(lambda s: s.ledger, before, Ledger.page(), is_leaf=lambda leaf: leaf is None)
        after = solver.step(problem, paged)
        after = eqx.tree_at(lambda s: (s.clock.step, s.ledger), after, (before.step + 1, None))
        return eqx.tree_at(lambda s: s.clock.result, after, solver.terminate(problem, after))

    bare = eqx.tree_at(lambda s: s.ledger, states, None)
    return quick(jax.vmap(lambda state: jax.lax.fori_loop(0, count, step, state)))(bare)


@over_all((*SERIES, "F2SA", "FdeHBO"))
def test_vmapped_is_the_loop_resumed_is_uninterrupted_and_divergence_is_reported(
    kind, quadratic, measured, tmp_path, monkeypatch
):
    """Three laws in one test, since they share their compiled program, which is that of a run with default steps. A
    whole run under ``vmap`` is in ``sweep/test_together``."""
    instance, reduced, _ = quadratic
    monkeypatch.setattr(stochastic, "measure", lambda *_: measured)  # once for all
    solver = cut(kind)
    prepared = solver.prepare(reduced).ordinary()
    ready, most = solver.ready(prepared), jnp.int32(12)
    keys, paces = jax.random.split(jax.random.key(3), 3), jnp.array([0.3, 0.6, 1.0])

    def begun(key, pace):
        return eqx.tree_at(lambda s: s.outer.pace, solver.init(prepared, key, jnp.int32(40)), pace)

    together = steps_together(solver, ready, jax.vmap(begun)(keys, paces), 12)
    for i, (key, pace) in enumerate(zip(keys, paces, strict=True)):
        alone = advance(solver, ready, begun(key, pace), CHUNKS * solver.chunk, most)[0]  # by the program of a run
        assert int(alone.step) == int(together.step[i]) == 12
        assert int(alone.result) == int(together.result[i])
        for name in ("x", "W"):
            np.testing.assert_allclose(getattr(together, name)[i], getattr(alone, name), rtol=1e-12, atol=1e-12)
    assert len({float(value) for value in together.x[:, 0]}) == 3

    whole = Job(None, solver, jax.random.key(5), 14).on(reduced)
    half = Job(None, solver, jax.random.key(5), 7).on(reduced)
    loaded = cb.load(half.save(tmp_path / "half.npz"), instance.problem)
    resumed = Job(None, solver, jax.random.key(5), 14).on(reduced, loaded)
    assert resumed.history.keys() == whole.history.keys()
    for name, curve in whole.history.items():
        np.testing.assert_array_equal(resumed.history[name], curve)
    for before, after in zip(whole.state.leaves, resumed.state.leaves, strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.any(half.x != whole.x)

    wild = 1e200 if kind is cb.HOAG else 1e6  # HOAG halves its steps, so it takes more to throw it off
    flat = eqx.tree_at(lambda start: start.scales.bend, measured, measured.scales.bend / wild)
    monkeypatch.setattr(stochastic, "measure", lambda *_: flat)
    solution = Job(None, solver, jax.random.key(0), 200).on(reduced)
    assert not solution.converged
    assert solution.result.startswith("Diverged")
    assert f"at step {solution.stats['steps'] + 1}" in solution.detail
    assert np.all(np.isfinite(solution.x))
    assert np.all(np.isfinite(solution.W))


@pytest.mark.parametrize("kind", [cb.SABA, cb.SPABA], ids=lambda kind: kind.__name__)
def test_finite_sums_are_solved_to_the_end(kind, well_conditioned):
    """Where batches would leave noise."""
    instance, _, gap = well_conditioned
    solution = cb.solve(instance.problem, instance.train, basis=BASIS, solver=kind(), steps=60_000)
    assert solution.converged, solution.result
    assert abs(gap(solution.x)) < 1e-10


@pytest.mark.thorough
def test_outer_steps_by_optax(quadratic, promotion):
    """Adam and momentum on the hypergradient, within bounds."""
    instance, _, gap = quadratic
    for transformation in (optax.adam(1e-3), optax.sgd(5e-4, momentum=0.9)):
        solution = cb.solve(
            instance.problem, instance.train, basis=BASIS, solver=cb.SOBA(outer=transformation), steps=4000
        )
        assert gap(solution.x) < 0.01
    near = (jnp.full(2, -0.01), jnp.full(2, 0.01))
    bounded = eqx.tree_at(lambda p: p.x_bounds, instance.problem, near)
    solution = cb.solve(bounded, instance.train, basis=BASIS, solver=cb.SOBA(outer=optax.adam(3e-3)), steps=200)
    assert bool(jnp.all(jnp.abs(solution.x) <= 0.01))
    assert float(jnp.max(jnp.abs(solution.x))) == 0.01


def test_scales_are_those_of_the_problem(quadratic, measured):
    """Against the matrices themselves; and the cost of measuring is in the ledger."""
    instance, reduced, _ = quadratic
    eigenvalues = np.linalg.eigvalsh(hessian_of(reduced))
    np.testing.assert_allclose(measured.scales.convex, eigenvalues[0], rtol=1e-6)
    assert eigenvalues[-1] <= measured.scales.smooth * (1 + 1e-9) <= 2 * eigenvalues[-1]
    bend = np.linalg.eigvalsh(instance.truth._hessian)[-1]
    np.testing.assert_allclose(measured.scales.bend, bend, rtol=0.1)
    assert measured.ledger.totals()["hessian"]["samples"] > 1024


def test_a_tolerance_ends_the_run_and_noise_is_reported(well_conditioned):
    instance, _, _ = well_conditioned
    solve = lambda tolerance: cb.solve(
        instance.problem, instance.train, basis=BASIS, solver=cb.SOBA(outer=0.05, tolerance=tolerance), steps=1000
    )
    early = solve(0.05)
    assert early.converged
    assert early.stats["steps"] < 1000
    assert "noise floor" in solve(1e-9).result
