"""A long valley: where pairs of few coordinates do not end a run, the curvature does."""

import jax.numpy as jnp
import numpy as np

import cobilevel as cb


def test_few_coordinates_in_a_long_valley():
    """Rosenbrock's function, ten coordinates in a chain and a hundred times as steep: pairs of steps alone take more
    steps than are allowed."""

    def upper(x, y, xi, eta):
        return jnp.sum(1e4 * (y[1:] - y[:-1] ** 2) ** 2 + (1 - y[:-1]) ** 2)

    def lower(x, y, xi, eta):
        return jnp.sum((y - x) ** 2) + 0 * eta

    problem = cb.Problem(upper, lower, x0=-0.5 * np.ones(10), y0=np.zeros(10), domain=cb.Interval(0.0, 1.0))
    samples = cb.Samples(np.linspace(0, 1, 5), np.zeros(5))
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(1))
    assert solution.converged, solution.result
    np.testing.assert_allclose(solution.x, np.ones(10), atol=1e-5)
