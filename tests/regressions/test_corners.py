"""A corner of the policy, where a bound begins to bind: what a small basis misses there moves ``x``."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

BEST = -0.104337  # the minimum of F, with the policy clipped at each of 200,000 contexts
TURN = [1.0, 0.0, -1.0]

problem = cb.Problem(
    lambda x, y, xi, eta: jnp.sum((y - wanted(xi)) ** 2) / 2 + 0.05 * (x - 0.3) ** 2,
    lambda x, y, xi, eta: jnp.sum((y - eta - x * jnp.array(TURN)) ** 2) / 2,
    x0=0.0,
    y0=jnp.full(3, 1 / 3),
    domain=cb.Interval(-1.0, 1.0),
    constraints=[cb.Bounds(0.0, 0.5)],
)


def wanted(t):
    return jnp.stack([0.3 + 0.2 * t, 0.4 - 0.1 * t, 0.3 - 0.1 * t])


def draw(seed, n=600, noise=0.27):
    rng = np.random.default_rng([seed, 7])
    t = rng.uniform(-1, 1, n)
    mean = np.stack([0.4 + 0.3 * t, 0.2 - 0.2 * np.sin(2 * t), 0.5 * t**2], axis=-1)
    return cb.Samples(t, mean + noise * rng.normal(size=(n, 3)))


def covers(solution):
    low, high = solution.uncertainty.interval[:, 0]
    return low <= BEST <= high


def test_the_basis_chosen_under_bounds_follows_the_corner():
    """Three functions were chosen, as good as any on held-out samples; with them x is off by three standard errors of
    the samples alone."""
    solution = cb.solve(problem, draw(0), progress=False)
    assert covers(solution)
    assert solution.standard_error < 0.02


@pytest.mark.parametrize("seed", [0, 2])
def test_a_basis_too_small_for_the_corner_is_counted_in_the_standard_error(seed):
    solution = cb.solve(problem, draw(seed), basis=cb.Chebyshev(3), progress=False)
    assert covers(solution)
    assert solution.standard_error < 0.05
