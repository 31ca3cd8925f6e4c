import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb
from cobilevel.lower.damped_newton import Dense, MatrixFree, minimise
from cobilevel.lower.per_context import exact_lower, worst


def test_traffic_flows_match_the_closed_form(traffic):
    for x in ([0.3, 0.6], [0.05, 3.0], [0.8, 0.2]):
        x = jnp.array(x)
        found = exact_lower(traffic.problem, x, traffic.train.xi, traffic.train)
        assert worst(found) == ""
        assert float(found.gradient.max()) <= 1e-10
        np.testing.assert_allclose(found.y, traffic.truth.y(x, traffic.train.xi), atol=1e-7)


def test_closed_form_flows_are_stationary_and_differentiable(traffic):
    x, xi = traffic.truth.x, jnp.linspace(0.0, 1.0, 500)
    flows = traffic.truth.y(x, xi)
    slopes = jax.vmap(lambda y, c: jax.grad(traffic.problem.lower, 1)(x, y, c, c))(flows, xi)
    assert float(jnp.max(jnp.abs(slopes))) < 1e-12
    one = lambda x: traffic.truth.loss(x, traffic.train)
    step = 1e-6
    numeric = [(one(x + step * e) - one(x - step * e)) / (2 * step) for e in jnp.eye(2)]
    np.testing.assert_allclose(jax.grad(one)(x), numeric, rtol=1e-6)


@pytest.mark.thorough
def test_plain_newton_fails_where_ours_does_not(traffic):
    lower, x, xi = traffic.problem.lower, jnp.array([0.5, 0.5]), jnp.array(0.6)
    objective = lambda y: lower(x, y, xi, y)

    def plain(y, _):
        return y - jnp.linalg.solve(jax.hessian(objective)(y), jax.grad(objective)(y)), None

    start = jnp.full(2, 1e-3)
    undamped = jax.lax.scan(plain, start, None, length=6)[0]
    assert not float(jnp.max(jnp.abs(undamped))) < 10  # far away, or NaN
    model = Dense(lambda y: (objective(y), jax.grad(objective)(y), jax.hessian(objective)(y)))
    found = minimise(model, start, 1e-12)
    assert bool(found.converged)
    assert int(found.evaluations) < 30
    np.testing.assert_allclose(found.point, traffic.truth.y(x, xi), atol=1e-9)


@pytest.mark.parametrize("free", [False, True], ids=["dense", "free"])
@pytest.mark.parametrize("start", [[-1.2, 1.0], [3.0, -4.0], [0.0, 0.0]])
def test_minimise_reaches_the_bottom_of_a_curved_valley(free, start):
    valley = lambda z: 100 * (z[1] - z[0] ** 2) ** 2 + (1 - z[0]) ** 2  # not convex on the way
    slope = jax.grad(valley)
    if free:
        objective = MatrixFree(jax.value_and_grad(valley), lambda z, v: jax.jvp(slope, (z,), (v,))[1])
    else:
        objective = Dense(lambda z: (valley(z), slope(z), jax.hessian(valley)(z)))
    found = jax.jit(lambda z: minimise(objective, z, 1e-10))(jnp.array(start))
    assert bool(found.converged)
    np.testing.assert_allclose(found.point, [1, 1], atol=1e-8)


def test_minimise_says_when_there_is_no_minimum():
    slide = lambda z: jnp.sum(-(z**3)) + jnp.sum(z)
    model = Dense(lambda z: (slide(z), jax.grad(slide)(z), jax.hessian(slide)(z)))
    assert not bool(minimise(model, jnp.array([2.0]), 1e-10).converged)


def noisy(x, y, xi, eta):
    return jnp.cosh(y - x * xi) + (y - eta) ** 2


def test_product_data_average_over_all_of_it():
    eta, contexts = np.random.default_rng(0).normal(size=40), np.linspace(0.0, 1.0, 7)
    problem = cb.Problem(lambda x, y, xi, eta: y, noisy, 1.5, 0.0, cb.Interval(0.0, 1.0))
    found = exact_lower(problem, jnp.array(2.0), contexts, cb.Product(contexts, eta))
    for y, xi in zip(found.y, contexts, strict=True):
        direct = scipy.optimize.minimize_scalar(
            lambda v, xi=xi: np.mean(np.cosh(v - 2 * xi) + (v - eta) ** 2), tol=1e-12
        )
        np.testing.assert_allclose(y, direct.x, atol=1e-7)


def test_finite_contexts_average_over_the_samples_of_each_value():
    rng = np.random.default_rng(1)
    xi, eta, weights = rng.choice([0.0, 1.0, 5.0], 200), rng.normal(size=200), rng.uniform(1, 2, 200)
    problem = cb.Problem(lambda x, y, xi, eta: y, noisy, 1.5, 0.0, cb.Finite([0.0, 1.0, 5.0]))
    found = exact_lower(problem, jnp.array(0.3), xi[:9], cb.Samples(xi, eta, weights))
    for y, value in zip(found.y, xi[:9], strict=True):
        e, w = eta[xi == value], weights[xi == value]
        direct = scipy.optimize.minimize_scalar(
            lambda v, value=value, e=e, w=w: np.sum(w * (np.cosh(v - 0.3 * value) + (v - e) ** 2)) / w.sum(), tol=1e-12
        )
        np.testing.assert_allclose(y, direct.x, atol=1e-7)


def test_conditional_sampler_approaches_the_conditional_mean(quadratic):
    xi = quadratic.test.xi[:50]
    exact = quadratic.truth.y(quadratic.truth.x, xi)
    found = exact_lower(quadratic.problem, quadratic.truth.x, xi, quadratic.test, draws=4096)
    spread = 0.3 / np.sqrt(4096)  # the noise in the lower level, averaged
    assert np.sqrt(np.mean((found.y - exact) ** 2)) < 1.5 * spread


def test_joint_samples_alone_are_not_enough():
    problem = cb.Problem(lambda x, y, xi, eta: y, noisy, 1.5, 0.0, cb.Interval(0.0, 1.0))
    samples = cb.Samples(np.linspace(0, 1, 5), np.zeros(5))
    with pytest.raises(ValueError, match="conditional"):
        exact_lower(problem, jnp.array(1.0), samples.xi, samples)


def test_many_components_go_matrix_free():
    size = 80
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum(y),
        lambda x, y, xi, eta: jnp.sum(jnp.cosh(y - x * xi * jnp.arange(size) / size)) + jnp.sum(jnp.diff(y) ** 2),
        jnp.array(1.0),
        jnp.zeros(size),
        cb.Interval(0.0, 1.0),
    )
    xi = jnp.linspace(0.0, 1.0, 5)
    found = exact_lower(problem, jnp.array(2.0), xi, cb.Samples(xi))
    slopes = jax.vmap(lambda y, c: jax.grad(problem.lower, 1)(jnp.array(2.0), y, c, None))(found.y, xi)
    first = jax.vmap(lambda c: jax.grad(problem.lower, 1)(jnp.array(2.0), problem.y0, c, None))(xi)
    assert bool(jnp.all(found.converged))
    assert np.all(np.linalg.norm(slopes[1:], axis=1) <= 1e-10 * np.linalg.norm(first[1:], axis=1))
