"""Where the policy has too many coefficients for standard errors, that is reported."""

import jax.numpy as jnp
import numpy as np

import cobilevel as cb


def test_a_large_x_and_many_coefficients():
    x0, y0 = np.zeros(60), np.zeros(700)
    upper = lambda x, y, xi, eta: jnp.sum((y - 1) ** 2) + jnp.sum(x**2)
    lower = lambda x, y, xi, eta: jnp.sum((y - xi - eta) ** 2) + jnp.sum((y[:60] - x) ** 2)
    problem = cb.Problem(upper, lower, x0=x0, y0=y0, domain=cb.Interval(0.0, 1.0))
    samples = cb.Samples(np.linspace(0, 1, 40), np.cos(np.arange(40.0)))
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(3), solver=cb.HOAG(outer=0.1), steps=1)
    assert "too many coefficients" in str(solution)


def test_printing_takes_no_derivatives_without_number():
    """With 250 rows of 700 x 700 second derivatives the objective itself would take minutes."""
    x0, y0 = np.zeros(3000), np.zeros(700)
    upper = lambda x, y, xi, eta: jnp.sum((y - 1) ** 2) + jnp.sum(x**2)
    lower = lambda x, y, xi, eta: jnp.sum((y - xi - eta) ** 2) + jnp.sum((y - x[:700]) ** 2)
    problem = cb.Problem(upper, lower, x0=x0, y0=y0, domain=cb.Interval(0.0, 1.0))
    samples = cb.Samples(np.linspace(0, 1, 250), np.cos(np.arange(250.0)))
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(2), solver=cb.HOAG(outer=0.1), steps=1)
    assert "derivatives would be computed" in str(solution)
