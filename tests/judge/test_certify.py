"""Certificates against closed forms: the identity behind the gap, what it is blamed on, intervals that cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference import Galerkin
from problems import AROUND, LINE, XI, Aim, Line, row, scalar

POINTS = -1 + (np.arange(400) + 0.5) / 200


@pytest.fixture(scope="module")
def blind_spot():
    """The policy lies in the span of ``1, xi`` exactly at ``x = 0``; adjoint and sensitivity do not."""
    upper = Aim(row(), ridge=0.0, pull=0.0, tilt=row(0.0, 0.0, 0.0, 1.0))
    problem = scalar(Line(row(0.0, 0.0, 1.0), row(1.0, 1.0), weight=0.5), upper, domain=AROUND)
    samples = cb.Samples(POINTS)
    return problem, cb.reduce(problem, cb.Monomial(2), samples).lift(jnp.array(0.0), jnp.ones(2)), samples


@pytest.mark.parametrize("mode", ["exact", "enriched"])
def test_exact_policy_does_not_make_the_gradient_right(blind_spot, mode):
    found = cb.certify(*blind_spot, mode=mode)
    assert found.mode == mode
    assert found.policy_error < 1e-20
    assert found.hypergradient_gap == pytest.approx(0.0477, rel=0.01)
    assert abs(found.parts["policy"]) < 1e-10
    assert abs(found.parts["adjoint and sensitivity"]) == pytest.approx(0.0477, rel=0.01)
    assert "adjoint and sensitivity 100%" in found.blame
    assert "100%" in repr(found)
    phi = np.stack([np.ones_like(POINTS), POINTS], axis=1)
    rest = lambda v: v - phi @ np.linalg.lstsq(phi, v, rcond=None)[0]
    assert found.adjoint_error == pytest.approx(
        np.mean(rest(np.exp(POINTS)) ** 2), rel=0.02 if mode == "enriched" else 1e-8
    )
    assert found.sensitivity_error == pytest.approx(np.mean(rest(POINTS**2) ** 2), rel=1e-8)
    assert found.gradient_norm == pytest.approx(np.mean(np.exp(POINTS) * POINTS**2), rel=1e-4)


def test_bound_of_the_corrected_theorem(blind_spot):
    constants = cb.Constants(f0=np.e, f1=0.0, g1=1.0, g2=0.0, mu=1.0)
    found = cb.certify(*blind_spot, constants=constants)
    assert constants.policy == 0  # f is linear in y and the Hessian of g constant: the printed bound would be zero
    most = np.sqrt(found.adjoint_error.interval[1] * found.sensitivity_error.interval[1])
    assert found.bound == pytest.approx(found.reduced_gradient_norm.high + most)
    assert found.gradient_norm <= found.bound < 0.55
    with pytest.raises(ValueError, match="mu"):
        cb.Constants(1.0, 1.0, 1.0, 1.0, 0.0)


def test_a_single_sample_is_not_certain(blind_spot):
    problem, solution, samples = blind_spot
    found = cb.certify(problem, solution, samples.rows(slice(0, 1)))
    assert found.stationary(1e6) is None
    assert "could not be measured" in found.trouble


@pytest.fixture(scope="module")
def instance():
    return cb.gallery.quadratic(3, dx=3, dy=2, train=2000, test=2000)


@pytest.fixture(scope="module")
def judged(instance):
    """A quadratic at a point that is not stationary, judged in two modes; the population's gap by quadrature."""
    x = jnp.array([0.5, -1.0, 0.3])
    reduced = cb.reduce(instance.problem, cb.Chebyshev(2), instance.train)
    solution = reduced.lift(x, reduced.W0)
    nodes, weights = instance.truth.contexts.quadrature(64)
    both = {"upper": instance.truth.target, "lower": instance.truth.offset}
    quiet = {level: jax.jit(jax.vmap(mean))(nodes) for level, mean in both.items()}
    whole = cb.reduce(instance.problem, cb.Chebyshev(2), cb.Samples(nodes, quiet, weights)).whitened()
    gradient = np.asarray(instance.truth.gradient(x))
    gap = gradient - Galerkin.at(whole, np.asarray(x)).point.gradient
    found = {mode: cb.certify(instance.problem, solution, instance.test, mode=mode) for mode in ("exact", "enriched")}
    return solution, gradient, gap, found


@pytest.mark.parametrize("mode", ["exact", "enriched"])
def test_gradient_and_gap_against_closed_form(judged, mode):
    _, gradient, gap, found = judged
    one = found[mode]
    assert np.linalg.norm(np.asarray(one.gradient) - gradient) < 4 * one.gradient_norm.error * np.sqrt(3)
    low, high = one.hypergradient_gap.interval
    assert 0 < low < np.linalg.norm(gap) * 1.1
    assert high > np.linalg.norm(gap) * 0.9
    assert one.hypergradient_gap == pytest.approx(np.linalg.norm(gap), rel=0.15)


def test_the_gap_is_the_sum_of_its_parts_and_bounded(judged):
    found = judged[-1]["exact"]
    product = np.linalg.norm(found.parts["adjoint and sensitivity"])
    assert product <= np.sqrt(found.adjoint_error.interval[1] * found.sensitivity_error.interval[1])
    total = np.asarray(found.parts["policy"]) + np.asarray(found.parts["adjoint and sensitivity"])
    assert np.linalg.norm(total) == pytest.approx(found.hypergradient_gap, rel=0.02)  # it has its noise taken out


def square_error(instance, solution):
    """``E|policy - y*|^2`` on the test contexts."""
    apart = instance.truth.y(solution.x, instance.test.xi) - solution.policy(instance.test.xi)
    return float(np.mean(np.sum(np.asarray(apart) ** 2, axis=1)))


def test_policy_error_is_that_of_the_policy_given(instance, judged):
    solution, _, _, found = judged
    truth = square_error(instance, solution)
    assert found["exact"].policy_error == pytest.approx(truth, rel=0.02)
    assert found["enriched"].policy_error == pytest.approx(truth, rel=0.1)


def test_the_noise_of_the_richer_fit_is_no_error_of_the_policy(instance):
    """A policy as good as its samples let it be: what the noise of the judge itself adds is as large as its error."""
    solution = cb.solve(instance.problem, instance.train, basis=cb.Chebyshev(4))
    found = cb.certify(instance.problem, solution, instance.test, mode="enriched").policy_error
    truth = square_error(instance, solution)
    noise = 8 * 2 * 0.3**2 / 2000  # of eight functions for two components
    assert truth < noise
    assert abs(found - truth) < 0.6 * noise
    assert found.interval[0] <= truth <= found.interval[1]


def test_held_out_mode(instance, judged):
    solution, gradient, gap, _ = judged
    found = cb.certify(instance.problem, solution, instance.test, mode="held-out")
    assert found.hypergradient_gap is None
    assert found.policy_error is None
    assert found.gradient_norm == pytest.approx(np.linalg.norm(gradient - gap), abs=5 * found.gradient_norm.error)
    values = jax.jit(jax.vmap(instance.problem.lower, in_axes=(None, 0, 0, 0)))(
        solution.x, solution.policy(instance.test.xi), instance.test.xi, instance.test.eta
    )
    assert found.lower_loss == pytest.approx(float(jnp.mean(values)))


def test_rows_of_no_weight_are_not_samples(instance, judged):
    solution = judged[0]
    weights = np.where(np.arange(2000) < 400, 1.0, 0.0)
    idle = cb.Samples(instance.test.xi, instance.test.eta, weights)
    few, same = (
        cb.certify(instance.problem, solution, data, mode="held-out")
        for data in (idle, instance.test.rows(slice(0, 400)))
    )
    assert few.samples == 400
    assert few.gradient_norm.interval == pytest.approx(same.gradient_norm.interval)


def test_samples_it_was_solved_from_are_recognised(instance):
    train, test = instance.train, instance.test
    solution = cb.solve(instance.problem, train, basis=cb.Chebyshev(2))
    both = lambda a, b: np.concatenate([np.asarray(a)[:300], np.asarray(b)[:700]])
    mixed = cb.Samples(*jax.tree.map(both, (train.xi, train.eta), (test.xi, test.eta)))
    for data, words in ((train.rows(slice(0, 400)), "100% of these"), (mixed, "30% of these"), (test, "")):
        trouble = cb.certify(instance.problem, solution, data, mode="held-out").trouble
        assert trouble.startswith(words) if words else not trouble


def test_what_is_impossible_is_refused(instance, judged, traffic):
    solution, one = judged[0], instance.problem
    joint = cb.Problem(one.upper, one.lower, one.x0, one.y0, one.domain)
    few = instance.test.rows(slice(0, 20))
    for problem, data, mode, words in (
        (joint, instance.test, "exact", "conditional"),
        (joint, few, "enriched", "no richer basis"),
        (joint, few, "precise", "one of exact, neighbours, enriched, held-out"),
    ):
        with pytest.raises(ValueError, match=words):
            cb.certify(problem, solution, data, mode=mode)
    lost = cb.reduce(joint, cb.Chebyshev(2), few).lift(solution.x * jnp.nan, solution.W)
    with pytest.raises(ValueError, match="nothing to certify"):
        cb.certify(joint, lost, few)
    for call in (cb.certify, cb.bootstrap):
        with pytest.raises(ValueError, match="another problem"):
            call(traffic.problem, solution, traffic.test)


def test_blocked_coordinates_are_left_out():
    problem = scalar(
        Line([row(0.0, 1.0), row()]),
        Aim(ridge=0.0, push=1.0),
        jnp.array([0.5, 1.0]),
        x_bounds=(jnp.array([-5.0, 1.0]), 5.0),
    )
    samples = cb.Samples(XI)
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(3))
    found = cb.certify(problem, solution, samples)
    assert found.blocked == 1
    assert found.stationary(10.0) is True
    assert "blocked" in repr(found)
    assert float(found.gradient[1]) == pytest.approx(1.0)


def test_finite_contexts_count_the_lower_samples_too():
    """With few contexts the law of the noise is known from samples only: the error must hold their noise as well."""
    upper = Aim(pull=0.5, ridge=0.1)
    problem = scalar(Line(row(1.0, 1.0), weight=0.5), upper, 0.5, domain=cb.Finite(np.array([0.0, 1.0, 2.0])))
    rng, norms, errors = np.random.default_rng(0), [], []
    truth = 0.2 * 0.5 + np.mean([(0.5 * (1 + c) - 1) * (1 + c) for c in range(3)])
    for _trial in range(24):
        samples = cb.Samples(rng.integers(0, 3, 300).astype(float), rng.normal(size=300))
        solution = cb.reduce(problem, cb.Categorical(), samples).lift(jnp.array(0.5), jnp.zeros(3))
        found = cb.certify(problem, solution, samples)
        assert found.mode == "neighbours"
        norms.append(float(found.gradient))
        errors.append(found.gradient_norm.error)
    assert np.std(norms) == pytest.approx(np.median(errors), rel=0.4)
    assert np.mean(norms) == pytest.approx(truth, abs=4 * np.std(norms) / np.sqrt(24))


def test_finite_contexts_with_a_known_law_of_the_noise():
    """Each context is solved once, however many samples it has."""
    draw = lambda key, xi, size: jax.random.normal(key, (size,))
    lower, values = Line(row(1.0, 1.0), weight=0.5), np.array([0.0, 1.0, 2.0])
    problem = scalar(lower, Aim(pull=0.5, ridge=0.1), 0.5, domain=cb.Finite(values), conditional=draw)
    rng = np.random.default_rng(1)
    xi = rng.integers(0, 3, 300).astype(float)
    samples = cb.Samples(xi, rng.normal(size=300))
    solution = cb.reduce(problem, cb.Categorical(), samples).lift(jnp.array(0.5), jnp.zeros(3))
    found = cb.certify(problem, solution, samples)
    truth = 0.2 * 0.5 + np.mean((0.5 * (1 + xi) - 1) * (1 + xi))
    assert found.mode == "exact"
    assert float(found.gradient) == pytest.approx(truth, abs=0.1)  # means over 256 draws, at three contexts
    assert found.hypergradient_gap < 1e-8
    assert found.policy_error == pytest.approx(np.mean((0.5 * (1 + xi)) ** 2), abs=0.1)


def test_product_data_and_single_precision():
    problem = scalar(
        Line([row(0.0, 0.0, 0.0, 1.0), row(1.0)], weight=0.5),
        Aim(pull=0.5, ridge=0.1, noise=1.0),
        jnp.array([0.5, 0.2], jnp.float32),
        jnp.float32(0),
    )
    eta = np.random.default_rng(0).normal(size=400).astype(np.float32)
    data = cb.Product(cb.Uniform(LINE), eta)
    solution = cb.reduce(problem, cb.Chebyshev(2), data).lift(problem.x0, jnp.zeros(2, jnp.float32))
    found = cb.certify(problem, solution, data)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    xi, weights = (nodes + 1) / 2, weights / 2
    gap = 0.5 * np.exp(xi) + 0.2 + eta.mean() - 1 - eta.mean()
    truth = np.array([weights @ (gap * np.exp(xi)), weights @ gap]) + 0.2 * np.array([0.5, 0.2])
    assert found.mode == "exact"
    assert np.asarray(found.gradient) == pytest.approx(truth, rel=1e-3)
    assert found.gradient_norm.error < 1e-3  # the same noise in both levels cancels in the gradient


def test_a_solution_from_levels_is_not_judged_by_the_same_rows_for_both(tmp_path, quadratic):
    rows = lambda first, last: quadratic.train.rows(np.arange(first, last))
    lower = cb.Samples(rows(0, 300).xi, rows(300, 600).eta)
    data = cb.Levels(upper=rows(0, 300), lower=lower)  # at the same contexts
    solution = cb.solve(quadratic.problem, data, basis=cb.Chebyshev(4))
    solution.save(tmp_path / "run.npz")
    for found in (solution, cb.load(tmp_path / "run.npz", quadratic.problem)):
        for judge in (cb.certify, cb.bootstrap):
            with pytest.raises(ValueError, match=r"Pass cb\.Levels"):
                judge(quadratic.problem, found, quadratic.test)
    fresh = cb.Levels(upper=rows(900, 1200), lower=rows(1200, 1800))
    assert cb.certify(quadratic.problem, solution, fresh).samples == 300
