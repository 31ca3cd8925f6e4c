"""A policy within a program of the caller's, whatever precision JAX is in, and plain calls after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.precision import double


@pytest.fixture(scope="module")
def under_equalities():
    rng = np.random.default_rng(0)
    xi, eta = rng.uniform(0, 1, 100), rng.normal(size=100)
    g = lambda x, y, xi, eta: (y[0] - eta - x) ** 2 + (y[1] - eta * xi) ** 2
    f = lambda x, y, xi, eta: (y[0] - 1) ** 2 + x**2
    sums = cb.Equalities(np.ones((1, 2)), lambda x, xi: x + xi)
    with double(False):
        problem = cb.Problem(f, g, x0=1.0, y0=np.zeros(2), domain=cb.Interval(0.0, 1.0), constraints=[sums])
        return cb.solve(problem, cb.Samples(xi, eta), basis=cb.Chebyshev(3))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_equalities_with_a_function_of_x(under_equalities, x64, given):
    policy, xi = under_equalities.policy, np.linspace(0.1, 0.9, 5).astype(given)
    with double(x64):
        first = lambda one: policy(one)[0]
        programs = [jax.jit(policy), jax.vmap(policy), jax.jit(jax.vmap(policy))]
        slopes = jax.jit(jax.vmap(jax.grad(first)))(jnp.asarray(xi))
        assert np.isfinite(slopes).all()
        for program in programs:
            np.testing.assert_allclose(program(xi), policy(xi), rtol=1e-4, atol=1e-5)
        sums = np.asarray(policy(xi)).sum(axis=1)
        np.testing.assert_allclose(sums, np.asarray(under_equalities.x) + xi, rtol=1e-5)
