"""Certificates against closed forms: the identity behind the gap, what it is blamed on, intervals that cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.judge.estimates import Estimate, mean_estimate, norm_estimate
from cobilevel.judge.gap import galerkin


def blind_spot(count=2000):
    """The policy lies in the span of ``1, xi`` exactly at ``x = 0``; adjoint and sensitivity do not."""
    xi = -1 + (np.arange(count) + 0.5) * 2 / count
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: jnp.exp(xi) * y,
        lower=lambda x, y, xi, eta: (y - x * xi**2 - 1 - xi) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=cb.Interval(-1.0, 1.0),
    )
    samples = cb.Samples(xi)
    solution = cb.reduce(problem, cb.Monomial(2), samples).lift(jnp.array(0.0), jnp.ones(2))
    return problem, solution, samples


@pytest.mark.parametrize("mode", ["exact", pytest.param("enriched", marks=pytest.mark.thorough)])
def test_exact_policy_does_not_make_the_gradient_right(mode):
    problem, solution, samples = blind_spot()
    found = cb.certify(problem, solution, samples, mode=mode)
    assert found.mode == mode
    assert found.policy_error < 1e-20
    assert found.hypergradient_gap == pytest.approx(0.0477, rel=0.01)
    assert abs(found.parts["policy"]) < 1e-10
    assert abs(found.parts["adjoint and sensitivity"]) == pytest.approx(0.0477, rel=0.01)
    assert "adjoint and sensitivity 100%" in found.blame
    assert "100%" in repr(found)
    xi = np.asarray(samples.xi)
    phi = np.stack([np.ones_like(xi), xi], axis=1)
    rest = lambda v: v - phi @ np.linalg.lstsq(phi, v, rcond=None)[0]
    assert found.adjoint_error == pytest.approx(
        np.mean(rest(np.exp(xi)) ** 2), rel=0.02 if mode == "enriched" else 1e-8
    )
    assert found.sensitivity_error == pytest.approx(np.mean(rest(xi**2) ** 2), rel=1e-8)
    assert found.gradient_norm == pytest.approx(np.mean(np.exp(xi) * xi**2), rel=1e-4)


def test_bound_of_the_corrected_theorem():
    problem, solution, samples = blind_spot(400)
    constants = cb.Constants(f0=np.e, f1=0.0, g1=1.0, g2=0.0, mu=1.0)
    found = cb.certify(problem, solution, samples, constants=constants)
    assert constants.policy == 0  # f is linear in y and the Hessian of g constant: the printed bound would be zero
    most = np.sqrt(found.adjoint_error.interval[1] * found.sensitivity_error.interval[1])
    assert found.bound == pytest.approx(float(found.reduced_gradient_norm) + most)
    assert found.gradient_norm <= found.bound < 0.47
    with pytest.raises(ValueError, match="mu"):
        cb.Constants(1, 1, 1, 1, 0.0)


@pytest.fixture(scope="module")
def judged():
    """A quadratic at a point that is not stationary, judged in two modes; the population's gap by quadrature."""
    one = cb.gallery.quadratic(3, dx=3, dy=2, train=1000, test=1500)
    x = jnp.array([0.5, -1.0, 0.3])
    reduced = cb.reduce(one.problem, cb.Chebyshev(2), one.train)
    solution = reduced.lift(x, reduced.W0)
    nodes, weights = one.truth.contexts.quadrature(64)
    quiet = {"upper": jax.vmap(one.truth.target)(nodes), "lower": jax.vmap(one.truth.offset)(nodes)}
    whole = cb.reduce(one.problem, cb.Chebyshev(2), cb.Samples(nodes, quiet, weights)).whitened()
    gap = np.asarray(one.truth.gradient(x)) - np.asarray(galerkin(whole, x, False).gradient)
    found = {mode: cb.certify(one.problem, solution, one.test, mode=mode) for mode in ("exact", "enriched")}
    return one, solution, np.asarray(one.truth.gradient(x)), gap, found


@pytest.mark.parametrize("mode", ["exact", "enriched"])
@pytest.mark.thorough
def test_gradient_and_gap_against_closed_form(judged, mode):
    _, _, gradient, gap, found = judged
    one = found[mode]
    assert np.linalg.norm(np.asarray(one.gradient) - gradient) < 4 * one.gradient_norm.error * np.sqrt(3)
    low, high = one.hypergradient_gap.interval
    assert 0 < low < np.linalg.norm(gap) * 1.1
    assert high > np.linalg.norm(gap) * 0.9
    assert one.hypergradient_gap == pytest.approx(np.linalg.norm(gap), rel=0.15)


@pytest.mark.thorough
def test_the_gap_is_the_sum_of_its_parts_and_bounded(judged):
    found = judged[-1]["exact"]
    product = np.linalg.norm(found.parts["adjoint and sensitivity"])
    assert product <= np.sqrt(found.adjoint_error.interval[1] * found.sensitivity_error.interval[1])
    total = np.asarray(found.parts["policy"]) + np.asarray(found.parts["adjoint and sensitivity"])
    assert np.linalg.norm(total) == pytest.approx(found.hypergradient_gap, rel=0.02)  # it has its noise taken out


@pytest.mark.thorough
def test_policy_error_is_that_of_the_policy_given(judged):
    one, solution, _, _, found = judged
    exact = one.truth.y(solution.x, one.test.xi) - solution.policy(one.test.xi)
    truth = float(np.mean(np.sum(np.asarray(exact) ** 2, axis=1)))
    assert found["exact"].policy_error == pytest.approx(truth, rel=0.02)
    assert found["enriched"].policy_error == pytest.approx(truth, rel=0.1)


@pytest.mark.thorough
def test_held_out_mode_and_what_is_impossible(judged):
    one, solution, gradient, gap, _ = judged
    found = cb.certify(one.problem, solution, one.test, mode="held-out")
    assert found.hypergradient_gap is None
    assert found.policy_error is None
    assert found.gradient_norm == pytest.approx(np.linalg.norm(gradient - gap), abs=5 * found.gradient_norm.error)
    values = jax.vmap(one.problem.lower, in_axes=(None, 0, 0, 0))(
        solution.x, solution.policy(one.test.xi), one.test.xi, one.test.eta
    )
    assert found.lower_loss == pytest.approx(float(jnp.mean(values)))
    joint = cb.Problem(one.problem.upper, one.problem.lower, one.problem.x0, one.problem.y0, one.problem.domain)
    with pytest.raises(ValueError, match="conditional"):
        cb.certify(joint, solution, one.test, mode="exact")
    few = one.test.rows(slice(0, 20))
    with pytest.raises(ValueError, match="no richer basis"):
        cb.certify(joint, solution, few, mode="enriched")
    with pytest.raises(ValueError, match="one of exact, enriched, held-out"):
        cb.certify(joint, solution, few, mode="precise")
    lost = cb.reduce(joint, cb.Chebyshev(2), few).lift(solution.x * jnp.nan, solution.W)
    with pytest.raises(ValueError, match="nothing to certify"):
        cb.certify(joint, lost, few)


@pytest.mark.thorough
def test_blocked_coordinates_are_left_out():
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: jnp.sum(x) + (y - 1) ** 2,
        lower=lambda x, y, xi, eta: (y - x[0] * xi) ** 2,
        x0=jnp.array([0.5, 1.0]),
        y0=0.0,
        domain=cb.Interval(0.0, 1.0),
        x_bounds=(jnp.array([-5.0, 1.0]), 5.0),
    )
    samples = cb.Samples(np.linspace(0, 1, 200))
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(3))
    found = cb.certify(problem, solution, samples)
    assert found.blocked == 1
    assert found.stationary
    assert "blocked" in repr(found)
    assert float(found.gradient[1]) == pytest.approx(1.0)


def test_lengths_of_noisy_vectors_are_covered():
    rng = np.random.default_rng(0)
    for size, length in ((1, 0.5), (5, 0.0), (5, 1.0), (5, 4.0), (30, 3.0)):
        hits = 0
        for _ in range(300):
            root = rng.normal(size=(size, size)) / size**0.5
            spread = root @ root.T + 0.1 * np.eye(size)
            unit = rng.normal(size=size)
            truth = length * unit / np.linalg.norm(unit)
            found = norm_estimate(truth + np.linalg.cholesky(spread) @ rng.normal(size=size), spread)
            hits += found.interval[0] - 1e-12 <= np.linalg.norm(truth) <= found.interval[1]
        assert hits / 300 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300), (size, length)


def test_short_vectors_and_single_samples_are_not_certain():
    for size in (1, 2, 30):
        for length in (0.0, 1e-12):
            vector = np.zeros(size)
            vector[0] = length
            assert norm_estimate(vector, np.eye(size)).interval[1] > 1
    assert norm_estimate(np.ones(2), np.full((2, 2), np.nan)).interval == (0, np.inf)
    problem, solution, samples = blind_spot()
    found = cb.certify(problem, solution, samples.rows(slice(0, 1)))
    assert not found.stationary
    assert "could not be measured" in found.trouble


@pytest.mark.thorough
def test_rows_of_no_weight_are_not_samples(judged):
    one, solution, _, _, _ = judged
    weights = np.zeros(1500)
    weights[:300] = 1
    idle = cb.Samples(one.test.xi, one.test.eta, weights)
    few, same = (
        cb.certify(one.problem, solution, data, mode="held-out") for data in (idle, one.test.rows(slice(0, 300)))
    )
    assert few.samples == 300
    assert few.gradient_norm.interval == pytest.approx(same.gradient_norm.interval)


@pytest.mark.thorough
def test_a_solution_of_another_problem_is_refused(judged, traffic):
    solution = judged[1]
    for call in (cb.certify, cb.bootstrap):
        with pytest.raises(ValueError, match="another's"):
            call(traffic.problem, solution, traffic.test)


def test_estimates_are_numbers():
    value = mean_estimate([1.0, 2.0, 3.0], np.full(3, 1 / 3))
    assert value + 1 == 3.0
    assert value.interval[0] < 2 < value.interval[1]
    assert "[" in repr(value)
    assert Estimate(2.0).interval == (2.0, 2.0)
    assert repr(Estimate(2.0)) == "2"


@pytest.mark.thorough
def test_finite_contexts_count_the_lower_samples_too():
    """With few contexts the law of the noise is known from samples only: the error must hold their noise as well."""
    domain = cb.Finite(np.array([0.0, 1.0, 2.0]))
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: (y - 1) ** 2 / 2 + 0.1 * x**2,
        lower=lambda x, y, xi, eta: (y - x * (1 + xi) - eta) ** 2 / 2,
        x0=0.5,
        y0=0.0,
        domain=domain,
    )
    rng, norms, errors = np.random.default_rng(0), [], []
    truth = 0.2 * 0.5 + np.mean([(0.5 * (1 + c) - 1) * (1 + c) for c in range(3)])
    for _trial in range(40):
        samples = cb.Samples(rng.integers(0, 3, 300).astype(float), rng.normal(size=300))
        solution = cb.reduce(problem, cb.Categorical(), samples).lift(jnp.array(0.5), jnp.zeros(3))
        found = cb.certify(problem, solution, samples)
        assert found.mode == "exact"
        norms.append(float(found.gradient))
        errors.append(found.gradient_norm.error)
    assert np.std(norms) == pytest.approx(np.median(errors), rel=0.4)
    assert np.mean(norms) == pytest.approx(truth, abs=4 * np.std(norms) / np.sqrt(40))


@pytest.mark.thorough
def test_product_data_and_single_precision():
    rng = np.random.default_rng(0)
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: (y - 1 - eta) ** 2 / 2 + 0.1 * jnp.sum(x**2),
        lower=lambda x, y, xi, eta: (y - x[0] * jnp.exp(xi) - x[1] - eta) ** 2 / 2,
        x0=jnp.array([0.5, 0.2], jnp.float32),
        y0=jnp.float32(0),
        domain=cb.Interval(0.0, 1.0),
    )
    eta = rng.normal(size=400).astype(np.float32)
    data = cb.Product(cb.Uniform(cb.Interval(0.0, 1.0)), eta)
    solution = cb.reduce(problem, cb.Chebyshev(2), data).lift(problem.x0, jnp.zeros(2, jnp.float32))
    found = cb.certify(problem, solution, data)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    xi, weights = (nodes + 1) / 2, weights / 2
    gap = 0.5 * np.exp(xi) + 0.2 + eta.mean() - 1 - eta.mean()
    truth = np.array([weights @ (gap * np.exp(xi)), weights @ gap]) + 0.2 * np.array([0.5, 0.2])
    assert found.mode == "exact"
    assert np.asarray(found.gradient) == pytest.approx(truth, rel=1e-3)
    assert found.gradient_norm.error < 1e-3  # the same noise in both levels cancels in the gradient


@pytest.mark.thorough
def test_bootstrap_against_fresh_samples():
    one = cb.gallery.quadratic(0, dx=2, dy=2, train=500)
    basis = cb.Chebyshev(4)
    solution = cb.solve(one.problem, one.train, basis=basis)
    spread = cb.bootstrap(one.problem, solution, one.train, 60)
    draw = lambda k, c: jax.tree.map(lambda v: v[0], one.problem.conditional(k, c, 1))
    fresh = []
    for seed in range(60):
        a, b = jax.random.split(jax.random.key(1000 + seed))
        xi = one.truth.contexts.sample(a, 500)
        data = cb.Samples(xi, jax.vmap(draw)(jax.random.split(b, 500), xi))
        fresh.append(one.truth.sample_optimum(basis.fit(one.problem.domain, xi), data, data)[0])
    assert spread.failed == 0
    assert spread.error == pytest.approx(np.std(fresh, axis=0), rel=0.5)
    low, high = spread.interval
    assert np.all(low < np.asarray(solution.x))
    assert np.all(np.asarray(solution.x) < high)


@pytest.mark.thorough
def test_the_noise_of_the_richer_fit_is_no_error_of_the_policy():
    """A policy as good as its samples let it be: what the noise of the judge itself adds is as large as its error."""
    one = cb.gallery.quadratic(3, dx=3, dy=2, train=2000, test=2000)
    solution = cb.solve(one.problem, one.train, basis=cb.Chebyshev(4))
    found = cb.certify(one.problem, solution, one.test, mode="enriched").policy_error
    apart = one.truth.y(solution.x, one.test.xi) - solution.policy(one.test.xi)
    truth = float(np.mean(np.sum(np.asarray(apart) ** 2, axis=1)))
    noise = 8 * 2 * 0.3**2 / 2000  # of eight functions for two components
    assert truth < noise
    assert abs(found - truth) < 0.6 * noise
    assert found.interval[0] <= truth <= found.interval[1]
