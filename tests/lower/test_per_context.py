"""Exact lower-level solutions, context by context, against closed forms and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb
from cobilevel.lower import exact_lower, trouble_with
from cobilevel.study import Study
from problems import LINE, scalar


def test_traffic_flows_match_the_closed_form(traffic):
    study = Study.of(traffic.problem, traffic.train)
    for x in ([0.3, 0.6], [0.05, 3.0], [0.8, 0.2]):
        x = jnp.array(x)
        found = exact_lower(study, x, traffic.train.xi)
        assert trouble_with(found) == ""
        assert float(found.gradient.max()) <= 1e-10
        np.testing.assert_allclose(found.y, traffic.truth.y(x, traffic.train.xi), atol=1e-7)


def test_closed_form_flows_are_stationary_and_differentiable(traffic):
    x, xi = traffic.truth.x, jnp.linspace(0.0, 1.0, 500)
    flows = traffic.truth.y(x, xi)
    slopes = jax.jit(jax.vmap(lambda y, c: jax.grad(traffic.problem.lower, 1)(x, y, c, c)))(flows, xi)
    assert float(jnp.max(jnp.abs(slopes))) < 1e-12
    one = jax.jit(jax.value_and_grad(lambda x: traffic.truth.loss(x, traffic.train)))
    step = 1e-6
    numeric = [(one(x + step * e)[0] - one(x - step * e)[0]) / (2 * step) for e in jnp.eye(2)]
    np.testing.assert_allclose(one(x)[1], numeric, rtol=1e-6)


def noisy(x, y, xi, eta):
    return jnp.cosh(y - x * xi) + (y - eta) ** 2


def test_product_data_average_over_all_of_it():
    eta, contexts = np.random.default_rng(0).normal(size=40), np.linspace(0.0, 1.0, 7)
    found = exact_lower(Study.of(scalar(noisy), cb.Product(contexts, eta)), jnp.array(2.0), jnp.asarray(contexts))
    for y, xi in zip(found.y, contexts, strict=True):
        direct = scipy.optimize.minimize_scalar(
            lambda v, xi=xi: np.mean(np.cosh(v - 2 * xi) + (v - eta) ** 2), tol=1e-12
        )
        np.testing.assert_allclose(y, direct.x, atol=1e-7)


def test_finite_contexts_average_over_the_samples_of_each_value():
    rng = np.random.default_rng(1)
    xi, eta, weights = rng.choice([0.0, 1.0, 5.0], 200), rng.normal(size=200), rng.uniform(1, 2, 200)
    study = Study.of(scalar(noisy, domain=cb.Finite([0.0, 1.0, 5.0])), cb.Samples(xi, eta, weights))
    found = exact_lower(study, jnp.array(0.3), jnp.asarray(xi[:9]))
    for y, value in zip(found.y, xi[:9], strict=True):
        e, w = eta[xi == value], weights[xi == value]
        direct = scipy.optimize.minimize_scalar(
            lambda v, value=value, e=e, w=w: np.sum(w * (np.cosh(v - 0.3 * value) + (v - e) ** 2)) / w.sum(), tol=1e-12
        )
        np.testing.assert_allclose(y, direct.x, atol=1e-7)


def test_conditional_sampler_approaches_the_conditional_mean(quadratic):
    xi = quadratic.test.xi[:50]
    exact = quadratic.truth.y(quadratic.truth.x, xi)
    found = exact_lower(Study.of(quadratic.problem, quadratic.test), quadratic.truth.x, xi, draws=4096)
    spread = 0.3 / np.sqrt(4096)  # the noise in the lower level, averaged
    assert np.sqrt(np.mean((found.y - exact) ** 2)) < 1.5 * spread


def test_joint_samples_alone_are_not_enough():
    samples = cb.Samples(np.linspace(0, 1, 5), np.zeros(5))
    with pytest.raises(ValueError, match="conditional"):
        exact_lower(Study.of(scalar(noisy), samples), jnp.array(1.0), samples.xi)


def test_many_components_go_matrix_free():
    size = 80
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum(y),
        lambda x, y, xi, eta: jnp.sum(jnp.cosh(y - x * xi * jnp.linspace(0.0, 1.0, size))) + jnp.sum(jnp.diff(y) ** 2),
        jnp.array(1.0),
        jnp.zeros(size),
        LINE,
    )
    xi = jnp.linspace(0.0, 1.0, 5)
    found = exact_lower(Study.of(problem, cb.Samples(xi)), jnp.array(2.0), xi)
    slope = jax.jit(jax.vmap(lambda y, c: jax.grad(problem.lower, 1)(jnp.array(2.0), y, c, None)))
    slopes, first = slope(found.y, xi), slope(jnp.zeros((5, size)), xi)
    assert bool(jnp.all(found.converged))
    assert np.all(np.linalg.norm(slopes[1:], axis=1) <= 1e-10 * np.linalg.norm(first[1:], axis=1))
