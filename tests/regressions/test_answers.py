"""Problems that once led to a wrong answer presented as right, or to a failure without cause."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb
from cobilevel.lower.damped_newton import DENSE_LIMIT

LINE = cb.Interval(0.0, 1.0)
RNG = np.random.default_rng(0)
XI = RNG.uniform(size=400)
NOISE = RNG.normal(size=400)
BASIS = cb.Chebyshev(3)


def solve(upper, lower, x0, y0=0.0, eta=None, **options):
    samples = cb.Samples(XI, 0.1 * NOISE if eta is None else eta)
    return cb.solve(cb.Problem(upper, lower, x0, y0, LINE), samples, **({"basis": BASIS} | options))


def fit(x, y, xi, eta):
    return (y - x * xi - eta) ** 2


def aim(x, y, xi, eta):
    return (y - 1) ** 2 + 0.1 * x**2


@pytest.fixture(scope="module")
def usual():
    return float(solve(aim, fit, 1.0).x)


@pytest.mark.parametrize("x0", [0.0, 39.1, -1e4])
def test_far_starts(usual, x0):
    found = solve(aim, fit, x0)
    assert found.converged
    np.testing.assert_allclose(found.x, usual, rtol=1e-7)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("shift", [0.0, 1e5])
def test_scale_and_shift_of_the_objective_do_not_matter(usual, scale, shift):
    found = solve(lambda x, y, xi, eta: scale * (aim(x, y, xi, eta) + shift), fit, 3.0)
    assert found.converged
    np.testing.assert_allclose(found.x, usual, rtol=1e-5)


def test_starting_at_the_optimum(usual):
    found = solve(aim, fit, usual)
    assert found.converged, found.result
    np.testing.assert_allclose(found.x, usual, rtol=1e-7)


@pytest.mark.thorough
def test_a_huge_first_gradient_is_not_a_yardstick():
    steep = solve(lambda x, y, xi, eta: aim(x, y, xi, eta) + jnp.exp(x) - 2 * x, fit, 15.0)
    gentle = solve(lambda x, y, xi, eta: aim(x, y, xi, eta) + jnp.exp(x) - 2 * x, fit, 0.0)
    np.testing.assert_allclose(steep.x, gentle.x, rtol=1e-6)
    wall = solve(lambda x, y, xi, eta: (x - 1) ** 2 + 1e12 * jnp.maximum(-x - 0.5, 0) ** 2 + 0 * y, fit, -3.0)
    np.testing.assert_allclose(wall.x, 1.0, rtol=1e-6)


def cosh(x, y, xi, eta):
    return jnp.cosh(y - x - xi)


def test_a_lower_start_far_away_does_not_loosen_the_lower_tolerance():
    near, far = (solve(aim, cosh, 0.0, y0, basis=cb.Chebyshev(2)) for y0 in (0.0, 50.0))
    assert near.converged
    assert not far.converged or np.isclose(far.x, near.x, rtol=1e-6)
    problem = cb.Problem(aim, cosh, 0.0, 50.0, LINE)
    judged = cb.evaluate(problem, near, cb.Samples(XI[:50]))
    assert judged.trouble or judged.policy_error < 1e-12


def test_no_minimiser_is_no_answer():
    assert not solve(lambda x, y, xi, eta: y**2 + x**2, lambda x, y, xi, eta: jnp.exp(-y * (1 + x**2)), 0.5).converged
    assert not solve(lambda x, y, xi, eta: -jnp.exp(x) + 0 * y, fit, 0.5).converged


def test_a_jump_in_the_upper_objective_is_no_convergence():
    found = solve(lambda x, y, xi, eta: (x - 2) ** 2 + jnp.where(x > 1, 5.0, 0.0) + 0 * y, fit, 0.0)
    assert not found.converged


def test_centred_data():
    found = solve(aim, lambda x, y, xi, eta: (y - x - eta) ** 2, 0.0, eta=NOISE - NOISE.mean(), basis=cb.Chebyshev(1))
    assert found.converged, found.result


def test_the_default_basis_looks_beside_x0():
    """At x0 = 0 the policy does not vary with the context; the optimum is elsewhere."""
    domain, rng = cb.Interval(-1.0, 1.0), np.random.default_rng(1)
    upper = lambda x, y, xi, eta: (y - 2 * xi) ** 2 + 0.1 * x**2
    samples = cb.Samples(rng.uniform(-1, 1, 5000), rng.normal(size=5000))
    found = cb.solve(cb.Problem(upper, fit, 0.0, 0.0, domain), samples)
    np.testing.assert_allclose(found.x, 2 / 1.3, rtol=0.1)


def test_the_default_basis_starts_at_y0():
    barrier = lambda x, y, xi, eta: y * (1 + 3 * xi) * (1 + x**2) - jnp.log(y)
    found = solve(lambda x, y, xi, eta: (y - 0.3) ** 2 + 0.1 * x**2, barrier, 0.5, 1.0, basis=None)
    rich = solve(lambda x, y, xi, eta: (y - 0.3) ** 2 + 0.1 * x**2, barrier, 0.5, 1.0, basis=cb.Chebyshev(8))
    np.testing.assert_allclose(found.x, rich.x, rtol=1e-2)


@pytest.mark.thorough
def test_the_default_basis_for_product_data_varies():
    rng, truth = np.random.default_rng(2), np.array([2.0, -1, 0, 0])
    A, V = rng.normal(size=(30, 4)), rng.normal(size=(50, 4))
    a, v = A @ truth + 0.5 * rng.normal(size=30), V @ truth + 0.5 * rng.normal(size=50)
    domain = cb.Interval(0.1, 10.0)
    loss = lambda y, row: (row[0] @ y - row[1]) ** 2
    problem = cb.Problem(
        lambda x, y, xi, row: loss(y, row),
        lambda x, y, xi, row: loss(y, row) + xi * jnp.sum(jnp.exp(x) * y**2),
        jnp.zeros(4),
        jnp.zeros(4),
        domain,
        x_bounds=(-5.0, 5.0),
    )
    law = cb.Uniform(domain)
    data = cb.Levels(cb.Product(law, (V, v)), cb.Product(law, (A, a)))
    found = cb.solve(problem, data)
    assert found.converged
    assert cb.evaluate(problem, found, data).policy_error < 1e-6
    nodes, weights = law.quadrature(64)

    def exact(x):
        ridge = [np.linalg.solve(A.T @ A / 30 + c * np.diag(np.exp(x)), A.T @ a / 30) for c in np.asarray(nodes)]
        return float(np.asarray(weights) @ [np.mean((V @ y - v) ** 2) for y in ridge])

    best = scipy.optimize.minimize(exact, np.asarray(found.x), bounds=[(-5, 5)] * 4)
    assert exact(np.asarray(found.x)) <= best.fun * (1 + 1e-4)


def test_few_contexts_with_many_samples():
    rng = np.random.default_rng(0)
    xi, eta = rng.choice(np.linspace(0, 1, 5), 3000), 0.01 * rng.normal(size=3000)
    problem = cb.Problem(aim, lambda x, y, xi, eta: (y - x - 5 * xi - eta) ** 2, 0.0, 0.0, LINE)
    found = cb.solve(problem, cb.Samples(xi, eta))
    np.testing.assert_allclose(found.policy(1.0) - found.policy(0.0), 5, atol=0.1)
    finite = cb.Problem(aim, lambda x, y, xi, eta: (y - x - 5 * xi - eta) ** 2, 0.0, 0.0, cb.Finite([0.0, 1.0]))
    few = cb.solve(finite, cb.Samples(np.array([0.0, 1.0] * 5), 0.01 * rng.normal(size=10)))
    np.testing.assert_allclose(few.policy(1.0) - few.policy(0.0), 5, atol=0.1)


def test_units_of_the_features_do_not_matter():
    domain = cb.Interval(0.0, 1e6)
    lower = lambda x, y, xi, eta: (y - 5 - 1e-12 * xi**2 - x) ** 2
    basis = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), xi**2]), 2)
    found = cb.solve(cb.Problem(aim, lower, 0.0, 0.0, domain), cb.Samples(1e6 * XI), basis=basis)
    np.testing.assert_allclose(found.policy(0.0), 5 + found.x, rtol=1e-8)


def test_contexts_of_lower_precision_belong():
    for domain, xi in (
        (cb.Finite([0.1, 0.2, 0.7]), np.float32([0.1, 0.2, 0.7] * 20)),
        (cb.Interval(-0.1, 0.2), np.linspace(-0.1, 0.2, 60, dtype=np.float32)),
    ):
        found = cb.solve(cb.Problem(aim, lambda x, y, xi, eta: (y - x * xi) ** 2, 1.0, 0.0, domain), cb.Samples(xi))
        assert found.converged
        assert np.all(np.isfinite(found.policy(xi)))
    assert np.isfinite(found.policy(0.2 + 1e-12))


@pytest.mark.filterwarnings("ignore:The lower level is not strongly convex")
def test_a_lower_level_flat_at_every_context_is_no_answer():
    lower = lambda x, y, xi, eta: (jnp.cos(3 * xi) * y[0] + jnp.sin(3 * xi) * y[1] - x * xi - 1) ** 2
    found = solve(lambda x, y, xi, eta: jnp.sum(y**2) + x**2, lower, 0.5, jnp.zeros(2))
    assert not found.converged


def test_resume_refuses_other_data_and_bounds():
    first = solve(aim, fit, 0.0, steps=2)
    for change in ({"eta": 5 + NOISE}, {"basis": cb.Legendre(3)}):
        with pytest.raises(ValueError, match="another"):
            solve(aim, fit, 0.0, resume=first, **change)


def test_a_stream_must_use_its_key():
    with pytest.raises(ValueError, match="key"):
        cb.Stream(lambda key, size: cb.Samples(np.random.uniform(size=size), np.zeros(size)))
    cb.Stream(lambda key, size: cb.Samples(jax.random.uniform(key, (size,)), jnp.zeros(size)))


def test_quadrature_weights_that_vanish_and_numpy_counts():
    product = cb.Product(cb.TruncatedNormal(LINE, 0.5, 0.01), NOISE[:20])
    found = cb.solve(cb.Problem(aim, fit, 0.0, 0.0, LINE), product, basis=cb.Chebyshev(np.int64(3)))
    assert found.converged


def test_finite_values_too_close_for_the_precision():
    domain = cb.Finite([1.0, 1.0 + 1e-15, 1e6])
    with pytest.raises(ValueError, match="told apart"):
        cb.solve(cb.Problem(aim, fit, 0.0, 0.0, domain), cb.Samples(np.array([1.0, 1e6] * 5), np.zeros(10)))


def test_upper_contexts_the_lower_level_never_saw_are_told():
    rng = np.random.default_rng(0)
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - eta) ** 2 + 0.1 * x**2,
        lambda x, y, xi, eta: (y - x * xi - eta) ** 2,
        x0=0.5,
        y0=0.0,
        domain=cb.Interval(0.0, 1.0),
    )
    left, right = rng.uniform(0, 0.45, 200), rng.uniform(0.55, 1, 100)
    data = cb.Levels(upper=cb.Samples(right, 0 * right), lower=cb.Samples(left, 0 * left))
    with pytest.warns(UserWarning, match="100 of 100 upper-level contexts"):
        solution = cb.solve(problem, data, basis=cb.Partition(10))
    assert "unseen" in solution.choices


def test_a_large_lower_level_with_negative_curvature_is_not_passed_off():
    """Beyond the size at which the Hessian is formed, conjugate gradients must notice: y0 is a saddle in one place."""
    size = DENSE_LIMIT // 2 + 1
    well = lambda y, target: jnp.where(jnp.arange(size) == 3, y**4 - y**2, (y - target) ** 2)
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - xi) ** 2) + x**2,
        lambda x, y, xi, eta: jnp.sum(well(y, x * xi)),
        x0=0.5,
        y0=jnp.zeros(size),
        domain=cb.Interval(0.0, 1.0),
    )
    solution = cb.solve(problem, cb.Samples(np.linspace(0, 1, 20)), basis=cb.Chebyshev(2), steps=20)
    assert not solution.converged
    assert "not strongly convex" in solution.result


@pytest.mark.thorough
def test_a_stochastic_solver_notices_a_lower_level_without_minimum():
    """While it measures the scales at x0, with noise, where single samples could not show it."""
    upper = lambda x, y, xi, eta: (y - eta) ** 2 + x**2
    unbounded = solve(upper, lambda x, y, xi, eta: -((y - x - eta) ** 2), 0.5, solver=cb.SOBA(), steps=300)
    flat = solve(upper, lambda x, y, xi, eta: (x - eta) * y, 0.5, solver=cb.SOBA(), steps=300)
    assert not unbounded.converged
    assert "could not be minimised" in unbounded.result
    assert not flat.converged
    assert "could not be minimised" in flat.result or "not strongly convex" in flat.result


ONE = cb.Chebyshev(1)
FLAT_START = (lambda x, y, xi, eta: (x - 1) ** 2 + 3 * y**2, lambda x, y, xi, eta: (y - x * (1 + xi)) ** 2)


@pytest.mark.thorough
def test_defaults_where_the_upper_gradient_vanishes_at_the_start():
    """Its size there sets neither the penalty nor the ball: both would be zero."""
    best = solve(*FLAT_START, 0.0)
    found = solve(*FLAT_START, 0.0, solver=cb.FdeHBO(), steps=4000)
    np.testing.assert_allclose(found.x, best.x, atol=0.01)
    reduced = cb.reduce(cb.Problem(*FLAT_START, 0.0, 0.0, LINE), BASIS, cb.Samples(XI, 0.1 * NOISE))
    scales = cb.F2SA().measure(reduced, jax.random.key(0)).scales
    assert float(scales.pull) < 1e-10
    assert float(cb.F2SA().defaults(scales)["penalty"].value) > 1


def test_bouncing_between_the_bounds_is_not_convergence():
    problem = cb.Problem(*FLAT_START, 0.5, 0.0, LINE, x_bounds=(-2.0, 3.0))
    samples = cb.Samples(XI, NOISE)
    for tolerance in (0.02, None):
        solver = cb.SOBA(0.1, 5.0, 0.1, tolerance=tolerance)
        found = cb.solve(problem, samples, basis=BASIS, solver=solver, steps=600)
        assert not found.converged
        assert "bouncing" in found.result


def test_steps_too_small_to_move_x_are_not_convergence():
    for solver in (cb.SABA(0.1, 1e-18, 0.1), cb.SOBA(0.1, 1e-18, 0.1, tolerance=1e-3)):
        found = solve(*FLAT_START, 3.0, solver=solver, steps=300)
        assert not found.converged, found.result


@pytest.mark.thorough
def test_a_stale_adjoint_is_not_convergence():
    """HOAG settles on a frozen linear system while its accuracy is still coarse."""
    found = solve(
        lambda x, y, xi, eta: 50 * (x - 3) ** 2 + 0.1 * (y - 1000) ** 2,
        lambda x, y, xi, eta: (y - x) ** 2,
        0.0,
        basis=ONE,
        solver=cb.HOAG(),
    )
    assert found.converged
    np.testing.assert_allclose(found.x, (100 * 3 + 0.2 * 1000) / (100 + 0.2), rtol=1e-6)


def test_growing_without_end_is_divergence_also_while_finite():
    found = solve(*FLAT_START, 0.5, solver=cb.SOBA(0.1, 30.0, 0.1), steps=30)
    assert found.result.startswith("Diverged")


@pytest.mark.thorough
def test_a_category_never_seen_does_not_stop_a_stochastic_solver():
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 1) ** 2 + 0.1 * x**2,
        lambda x, y, xi, eta: (y - x - eta) ** 2,
        x0=0.0,
        y0=0.0,
        domain=cb.Finite(np.arange(4.0)),
    )
    samples = cb.Samples(np.arange(300) % 3 * 1.0, 0.1 * NOISE[:300])
    best = cb.solve(problem, samples, basis=cb.Categorical())
    found = cb.solve(problem, samples, basis=cb.Categorical(), solver=cb.SOBA(), steps=2000)
    np.testing.assert_allclose(found.x, best.x, atol=0.01)


@pytest.mark.thorough
def test_a_fixed_coordinate_does_not_set_the_pace():
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 1) ** 2 + 1e6 * x[1],
        lambda x, y, xi, eta: (y - x[0]) ** 2,
        x0=jnp.zeros(2),
        y0=0.0,
        domain=LINE,
        x_bounds=(jnp.array([-5.0, 0.0]), jnp.array([5.0, 1.0])),
    )
    found = cb.solve(problem, cb.Samples(XI), basis=ONE, solver=cb.SOBA(), steps=2000)
    np.testing.assert_allclose(found.x, [1.0, 0.0], atol=1e-3)


def test_a_run_is_resumed_with_its_own_settings_only():
    start = solve(*FLAT_START, 0.5, solver=cb.SOBA(0.1, 0.01, 0.1), steps=20)
    for other in (cb.SOBA(0.1, 0.01, 0.1, batch=32), cb.SOBA(0.1, 0.01, 0.1, shuffle=False), cb.SOBA()):
        with pytest.raises(ValueError, match="other settings"):
            solve(*FLAT_START, 0.5, solver=other, steps=40, resume=start)
    assert solve(*FLAT_START, 0.5, solver=cb.SOBA(0.1, 0.01, 0.1), steps=40, resume=start).stats["steps"] == 40
