"""Under inequalities: constraints that are not convex, and a lower level without curvature of its own, are said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

RNG = np.random.default_rng(0)
XI = RNG.uniform(size=200)
NOISE = 0.1 * RNG.normal(size=200)
LINE = cb.Interval(0.0, 1.0)


def solved(lower, constraints, y0, best=0.0):
    upper = lambda x, y, xi, eta: jnp.sum((y - 1.0) ** 2) + 4 * (x - best) ** 2
    problem = cb.Problem(upper, lower, 0.5, y0, LINE, constraints=constraints)
    return cb.solve(problem, cb.Samples(XI, NOISE), basis=cb.Chebyshev(4))


def nearest(x, y, xi, eta):
    return jnp.sum((y - xi - x - eta) ** 2)


TWO = np.array([1.0, 0.5])
HOLES = {
    "waves": (lambda x, y, xi: jnp.sin(6 * y), 0.0),
    "outside of a ball": (lambda x, y, xi: 1 - jnp.sum(y**2), TWO),
    "a gap": (lambda x, y, xi: 0.01 - (y - xi) ** 2, 0.0),
    "a ring": (lambda x, y, xi: jnp.stack([0.6 - jnp.sum(y**2), jnp.sum(y**2) - 1]), TWO),
}
CONVEX = {
    "linear": (lambda x, y, xi: y - 0.8 - 0.1 * xi, 0.0),
    "nearly flat": (lambda x, y, xi: y - 0.8 + 1e-10 * y**2, 0.0),
    "a ball": (lambda x, y, xi: jnp.sum(y**2) - 1, TWO / 9),
    "a ball in other units": (lambda x, y, xi: 1e-6 * (jnp.sum(y**2) - 1), TWO / 9),
    "log-sum-exp": (lambda x, y, xi: jax.nn.logsumexp(50 * jnp.stack([y - 0.7, -y])) / 50, 0.1),
    "exponential": (lambda x, y, xi: jnp.exp(3 * y) - 8.0, 0.0),
    "a set that is convex": (lambda x, y, xi: y**3 - 0.5, 0.0),  # though its function is not
    "several": (lambda x, y, xi: jnp.stack([jnp.abs(y) - 0.7, y**4 - 0.5, y - 2 * xi - 1]), 0.0),
}


@pytest.mark.parametrize("name", HOLES)
def test_constraints_that_are_not_convex_are_said(name):
    h, y0 = HOLES[name]
    with pytest.warns(UserWarning, match="is not convex in y: at xi = "):
        solution = solved(nearest, [cb.Inequalities(h)], y0)
    assert not solution.converged
    assert "between them does not" in solution.detail


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.filterwarnings("error")
def test_convex_constraints_give_no_alarm(name):
    h, y0 = CONVEX[name]
    assert solved(nearest, [cb.Inequalities(h)], y0).converged
