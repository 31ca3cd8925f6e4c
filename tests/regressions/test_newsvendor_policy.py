"""Slopes that jump elsewhere for each sample, as demand does for a seller, are smooth in the mean."""

import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb

WIDTH, PRICE, COST = 0.3, 12.0, 5.0


def draw(seed, rows=5000):
    rng = np.random.default_rng(seed)
    t = rng.uniform(size=rows)
    return cb.Samples(t, 2 + t + (1 + t) * rng.uniform(size=rows))


def test_the_policy_error_of_a_newsvendor():
    problem = cb.Problem(
        lambda x, y, xi, eta: (x - 1) ** 2 + 0 * y,
        lambda x, y, xi, eta: COST * y - PRICE * y + PRICE * WIDTH * jax.nn.softplus((y - eta) / WIDTH),
        x0=0.5,
        y0=2.0,
        domain=cb.Interval(0.0, 1.0),
    )
    solution = cb.solve(problem, draw(0), basis=cb.Chebyshev(4))
    fresh = draw(1)
    found = cb.certify(problem, solution, fresh).policy_error
    u = (np.arange(400) + 0.5) / 400  # demand is uniform: the mean of the slope is a sum over it
    xi = np.asarray(fresh.xi)
    below, above = np.zeros_like(xi), np.full_like(xi, 8.0)
    for _ in range(50):
        y = (below + above) / 2
        sold = np.mean(jax.nn.sigmoid((y[:, None] - 2 - xi[:, None] - (1 + xi[:, None]) * u) / WIDTH), axis=1)
        below, above = np.where(COST - PRICE + PRICE * sold < 0, (y, above), (below, y))
    truth = np.mean((np.asarray(solution.policy(jnp.asarray(xi))) - y) ** 2)
    assert found.low <= truth <= found.high
    assert found.high < 0.1  # of a policy of about 3, whose error is a hundredth
