"""The closed forms of the quadratic gallery, each checked another way."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb

KINDS = [(None, "uniform"), (None, "normal"), (2, "mixture"), (3, "uniform"), (6, "normal")]


@eqx.filter_jit
def _losses(upper, x, y, test):
    return jax.vmap(lambda y, xi, eta: upper(x, y, xi, eta))(y, test.xi, test.eta)


@jax.jit
def _objective(truth, x):
    """The objective with its derivative, and the gradient that is stated; the truth's functions of contexts aside."""
    return truth.F(x), jax.grad(truth.F)(x), truth.gradient(x)


@pytest.mark.parametrize(("dimension", "contexts"), KINDS)
def test_population_closed_forms(dimension, contexts):
    instance = cb.gallery.quadratic(5, dx=3, dy=2, dimension=dimension, contexts=contexts, test=200_000, train=10)
    truth, test = instance.truth, instance.test
    assert bool(jnp.all(instance.problem.domain.contains(test.xi)))
    x = jnp.array([0.3, -1.0, 0.5])
    losses = np.asarray(_losses(instance.problem.upper, x, truth.y(x, test.xi), test))
    value, slope, stated = _objective(truth, x)
    assert abs(losses.mean() - float(value)) < 5 * losses.std() / np.sqrt(len(losses))
    np.testing.assert_allclose(stated, slope, rtol=1e-12)
    np.testing.assert_allclose(_objective(truth, truth.x)[2], 0, atol=1e-12)
    found = scipy.optimize.minimize(lambda v: float(_objective(truth, v)[0]), np.zeros(3), tol=1e-12)
    np.testing.assert_allclose(found.x, truth.x, atol=1e-4)


def test_the_conditional_mean_is_the_policy(quadratic):
    """The gradient of the lower objective, averaged over noise at one context, vanishes at the closed form."""
    x, xi = np.asarray(quadratic.truth.x) + 0.1, jnp.array(0.37)
    y = quadratic.truth.y(x, np.array([0.37]))[0]
    eta = jax.jit(lambda key: quadratic.problem.conditional(key, xi, 200_000))(jax.random.key(0))
    slopes = np.asarray(jax.jit(jax.vmap(lambda e: jax.grad(quadratic.problem.lower, 1)(x, y, xi, e)))(eta))
    assert np.all(np.abs(slopes.mean(axis=0)) < 5 * slopes.std(axis=0) / np.sqrt(len(slopes)))


def test_sample_optimum_is_optimal(quadratic):
    """The bilevel optimum of a sample, by brute force: outer BFGS over an inner linear solve."""
    sample = quadratic.train.rows(slice(0, 300))
    reduced = cb.reduce(quadratic.problem, cb.Chebyshev(3), sample)
    x, W = quadratic.truth.sample_optimum(reduced.basis, sample, sample)
    pool = reduced.lower_pool

    @jax.jit
    def objective(x):
        flat = lambda w: reduced.lower(x, w.reshape(3, 3), pool)
        w = jnp.linalg.solve(jax.hessian(flat)(jnp.zeros(9)), -jax.grad(flat)(jnp.zeros(9)))
        return reduced.upper(x, w.reshape(3, 3), pool), w.reshape(3, 3)

    slope = jax.jit(jax.grad(lambda x: objective(x)[0]))
    found = scipy.optimize.minimize(lambda v: float(objective(v)[0]), np.zeros(5), jac=slope, tol=1e-10)
    np.testing.assert_allclose(found.x, x, atol=1e-6)
    np.testing.assert_allclose(objective(x)[1], W, rtol=1e-9, atol=1e-9)


def test_sizes_and_condition():
    instance = cb.gallery.quadratic(0, dx=2, dy=4, condition=100.0, train=50, test=50, noise=(0.0, 0.0))
    eigenvalues = np.linalg.eigvalsh(jax.jit(lambda xi: instance.truth.lower.metric(xi))(0.3))
    assert 100 / 3 < eigenvalues[-1] / eigenvalues[0] < 300
    one = cb.gallery.quadratic(0, dx=1, dy=1, train=50, test=50)
    assert cb.solve(one.problem, one.train, basis=cb.Chebyshev(2)).converged
