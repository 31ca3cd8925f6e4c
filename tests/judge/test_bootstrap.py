"""How far ``x`` would move had other samples been drawn: against samples that were."""

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: COMPILED.append(name) if name.endswith("backend_compile_duration") else None
)


@pytest.mark.thorough
def test_bootstrap_against_fresh_samples():
    one = cb.gallery.quadratic(0, dx=2, dy=2, train=500)
    basis = cb.Chebyshev(4)
    solution = cb.solve(one.problem, one.train, basis=basis)
    spread = cb.bootstrap(one.problem, solution, one.train, 60)

    @jax.jit
    def draw(key):
        for_context, for_noise = jax.random.split(key)
        xi = one.truth.contexts.sample(for_context, 500)
        single = lambda k, c: jax.tree.map(lambda v: v[0], one.problem.conditional(k, c, 1))
        return xi, jax.vmap(single)(jax.random.split(for_noise, 500), xi)

    fresh = []
    for seed in range(60):
        data = cb.Samples(*draw(jax.random.key(1000 + seed)))
        fresh.append(one.truth.sample_optimum(basis.fit(one.problem.domain, data.xi), data, data)[0])
    assert spread.failed == 0
    assert spread.error == pytest.approx(np.std(fresh, axis=0), rel=0.5)
    low, high = spread.interval
    assert np.all(low < np.asarray(solution.x))
    assert np.all(np.asarray(solution.x) < high)


def instrumented(scale, upper=None):
    """A regressor moved by an instrument, and one that is given, in units of its own; x is their coefficients."""
    rng = np.random.default_rng(0)
    n = 600
    z, u, given = rng.uniform(-1, 1, n), rng.normal(size=n), 3 + rng.normal(size=n)
    t = 1.5 * z + 0.4 * given + u
    outcome = 1 + 0.5 * t - 0.7 * given + u + rng.normal(size=n)
    plain = lambda x, y, xi, eta: (eta["outcome"] - x[0] - x[1] * y - x[2] * xi[1] * scale) ** 2 / 2
    lower = lambda x, y, xi, eta: (y - eta["t"]) ** 2 / 2
    contexts = np.stack([z, given], axis=1)
    domain = cb.Box(contexts.min(axis=0), contexts.max(axis=0))
    problem = cb.Problem(upper or plain, lower, np.zeros(3), 0.0, domain)
    samples = cb.Samples(contexts, {"t": t, "outcome": outcome})
    return problem, samples, cb.Features(lambda xi: jnp.concatenate([jnp.ones(1), xi]), 3)


@pytest.fixture(scope="module")
def in_large_units():
    problem, samples, basis = instrumented(1e6)
    return problem, samples, cb.solve(problem, samples, basis=basis)


def test_sandwich_and_bootstrap_agree_whatever_the_units(in_large_units):
    problem, samples, solution = in_large_units
    spread = cb.bootstrap(problem, solution, samples, 100, progress=False)
    assert spread.failed == 0
    assert spread.error == pytest.approx(solution.standard_error, rel=0.15)
    rows = repr(spread).splitlines()
    assert rows[0] == "Bootstrap(100 resamplings)"
    assert rows[1].split() == ["standard", "error", "of", "bootstrap", "sandwich"]
    assert float(rows[4].split()[1]) == pytest.approx(float(rows[4].split()[2]), rel=0.15)


def test_each_resampling_is_solved_to_its_own_optimum(in_large_units):
    problem, samples, solution = in_large_units
    spread = cb.bootstrap(problem, solution, samples, 3, key=5, progress=False)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.key(5))))
    data = samples.eta
    Z = np.column_stack([np.ones(len(data["t"])), np.asarray(samples.xi)])
    for found in np.asarray(spread.x):
        often = [samples.resample(rng) for _ in range(2)][1]
        root = np.sqrt(np.asarray(often))[:, None]
        fitted = Z @ np.linalg.lstsq(root * Z, root[:, 0] * np.asarray(data["t"]), rcond=None)[0]
        X = np.column_stack([Z[:, 0], fitted, Z[:, 2]])
        truth = np.linalg.lstsq(root * X, root[:, 0] * np.asarray(data["outcome"]), rcond=None)[0]
        assert found * [1, 1, 1e6] == pytest.approx(truth, rel=1e-7)


def test_sandwich_and_bootstrap_agree_on_a_quadratic():
    one = cb.gallery.quadratic(0, dx=2, dy=2, train=500)
    solution = cb.solve(one.problem, one.train, basis=cb.Chebyshev(4))
    spread = cb.bootstrap(one.problem, solution, one.train, 100, progress=False)
    assert spread.failed == 0
    assert spread.error == pytest.approx(solution.standard_error, rel=0.15)


def test_what_is_not_determined_has_no_finite_error():
    only_the_sum = lambda x, y, xi, eta: (eta["outcome"] - x[0] - (x[1] + x[2]) * y) ** 2 / 2
    problem, samples, basis = instrumented(1.0, only_the_sum)
    solution = cb.solve(problem, samples, basis=basis)
    spread = cb.bootstrap(problem, solution, samples, 20, progress=False)
    assert np.array_equal(np.isinf(spread.error), [False, True, True])
    assert "x[1] - x[2] is not determined" in repr(spread)
    assert np.array_equal(np.isinf(spread.interval[0]), [False, True, True])
    assert spread.failed == 0


def test_bounds_hold_in_every_resampling():
    aside = lambda x, y, xi, eta: (eta["outcome"] - x[0] - x[1] * y - x[2] * xi[1]) ** 2 / 2
    problem, samples, basis = instrumented(1.0, aside)
    ends = np.array([-5.0, 0.54, -5.0]), np.array([5.0, 2.0, 5.0])
    start = np.array([0.0, 1.0, 0.0])
    problem = cb.Problem(problem.upper, problem.lower, start, 0.0, problem.domain, ends)
    solution = cb.solve(problem, samples, basis=basis)
    assert float(solution.x[1]) == pytest.approx(0.54)
    spread = cb.bootstrap(problem, solution, samples, 40, progress=False)
    found = np.asarray(spread.x)
    assert spread.failed == 0
    assert np.all(found[:, 1] >= 0.54 - 1e-12)
    held = found[:, 1] < 0.54 + 1e-9
    assert 0 < held.sum() < 40
    assert np.all(np.std(found, axis=0) > 0)


def test_what_was_solved_is_judged_without_another_program(traffic):
    """Row derivatives are all that is compiled, and a solution has compiled them; a second basis apart."""
    train, test = traffic.train.rows(slice(0, 500)), traffic.test.rows(slice(0, 700))
    solution = cb.solve(traffic.problem, train, basis=cb.Chebyshev(5))
    before = len(COMPILED)
    assert cb.bootstrap(traffic.problem, solution, train, 3, progress=False).failed == 0
    cb.evaluate(traffic.problem, solution, test)
    cb.certify(traffic.problem, solution, test)
    assert len(COMPILED) == before
