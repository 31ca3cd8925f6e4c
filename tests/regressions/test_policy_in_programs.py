"""A policy within a program of the caller's, whatever precision JAX is in, and plain calls after it; copies of it."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.ground.precision import double


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


def test_a_fitted_basis_is_a_function_as_well(under_equalities):
    """It could not be hashed."""
    basis, xi = under_equalities.basis, np.linspace(0.1, 0.9, 5)
    for program in (jax.jit(basis), jax.vmap(basis), jax.jit(jax.vmap(basis)), jax.jit(basis)):
        np.testing.assert_allclose(program(xi), basis(xi), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.jacfwd(basis))(xi)[:, 1], 2, rtol=1e-5)  # the second is 2 xi - 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sums", [cb.Simplex(), cb.Equalities([[1.0, 2.0]], 1.5)], ids=["simplex", "equalities"])
def test_equalities_that_are_numbers_cross_to_another_process(sums):
    """There is no function of the user's in them. In single precision, with a start in double, nothing is warned of."""
    g = lambda x, y, xi, eta: jnp.sum((y - jnp.stack([xi, -x]) - eta) ** 2)
    f = lambda x, y, xi, eta: (y[0] - 0.6) ** 2 + 0.01 * x**2
    xi = np.linspace(0, 1, 60)
    with double(False):
        problem = cb.Problem(f, g, 0.1, np.array([0.3, 0.7]), cb.Interval(0.0, 1.0), constraints=[sums])
        solution = cb.solve(problem, cb.Samples(xi, 0.1 * np.sin(40 * xi)), basis=cb.Chebyshev(2))
        objective = cb.certify(problem, solution, cb.Samples(xi, 0 * xi)).objective
        for copied in (pickle.loads(pickle.dumps(solution)), copy.deepcopy(solution), copy.copy(solution)):
            assert str(copied) == str(solution)
            np.testing.assert_array_equal(copied.policy(xi), solution.policy(xi))
            np.testing.assert_allclose(jax.jit(copied.policy)(xi), solution.policy(xi), rtol=1e-5, atol=1e-6)
            assert cb.certify(problem, copied, cb.Samples(xi, 0 * xi)).objective == objective


def test_equalities_that_are_functions_say_what_to_do(under_equalities):
    with pytest.raises(TypeError, match=r"Write it with solution.save"):
        pickle.dumps(under_equalities)
