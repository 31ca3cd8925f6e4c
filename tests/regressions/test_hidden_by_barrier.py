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


def quick(cases, slow):
    """The names of cases, the one that takes longest left to thorough runs."""
    return [pytest.param(name, marks=pytest.mark.thorough if name == slow else ()) for name in cases]


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


@pytest.mark.parametrize("name", quick(HOLES, slow="a ring"))
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


BOX = [cb.Bounds(0.0, 1.0)]
HALF = np.array([0.5, 0.5])
FLAT = {
    "linear": (lambda x, y, xi, eta: (xi - x / 2) * y, BOX, 0.5),
    "linear, with noise": (lambda x, y, xi, eta: (xi - x / 2 + eta) * y, BOX, 0.5),
    "one of two": (lambda x, y, xi, eta: (xi - x / 2) * y[0] + (y[1] - xi) ** 2, BOX, HALF),
    "a difference": (lambda x, y, xi, eta: (xi - x / 2) * (y[0] - y[1]) + (y[0] + y[1] - 1) ** 2, BOX, HALF),
    "on a simplex": (lambda x, y, xi, eta: (xi - x / 2) * y[0], [cb.Simplex()], HALF),
    "at most contexts": (lambda x, y, xi, eta: jnp.where(xi > 0.8, (y - xi) ** 2, (xi - x / 2) * y), BOX, 0.5),
    "nothing": (lambda x, y, xi, eta: 0 * y, BOX, 0.5),
}
CURVED = {
    "a small term": (lambda x, y, xi, eta: (xi - x / 2) * y + 0.05 * (y - 0.5) ** 2, BOX, 0.5),
    "held on one side": (lambda x, y, xi, eta: (xi + 0.2 + x**2) * y, BOX, 0.5),
    "linear on a ball": (
        lambda x, y, xi, eta: (xi - x / 2) * y[0] + y[1],
        [cb.Inequalities(lambda x, y, xi: jnp.sum(y**2) - 1)],
        HALF / 5,
    ),
    "the larger of two": (
        lambda x, y, xi, eta: y[1] + (y[0] - x) ** 2,
        [cb.Inequalities(lambda x, y, xi: jnp.stack([y[0] - xi - y[1], xi - y[0] - y[1]]))],
        np.array([0.1, 2.0]),
    ),
    "at most contexts": (lambda x, y, xi, eta: jnp.where(xi > 0.2, (y - xi) ** 2, (xi - x / 2) * y), BOX, 0.5),
    "outside of a ball that is far away": (
        lambda x, y, xi, eta: jnp.sum((y - xi - 2 * x - eta) ** 2) + y[0] * y[1],
        [cb.Inequalities(lambda x, y, xi: 0.01 - jnp.sum(y**2))],
        HALF * 4,
    ),
    "curved within bounds alone": (lambda x, y, xi, eta: y**3 - (xi - 0.5) * y + 0.02 * y**2, BOX, 0.5),
    "units": (
        lambda x, y, xi, eta: 1e6 * (y[0] - xi - x) ** 2 + (1e-5 * y[1] - xi) ** 2,
        [cb.Bounds(0.0, np.array([1.0, 1e6]))],
        HALF,
    ),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_lower_level_without_curvature_of_its_own_is_said(name):
    with pytest.warns(UserWarning, match="no curvature in y"):
        solution = solved(*FLAT[name], best=1.0)  # where constraints press from both sides
    assert not solution.converged
    assert "Bounds alone do not give a smooth policy" in solution.detail


BENT = {
    "concave": (lambda x, y, xi, eta: -((y - 0.3) ** 2) - x * y * xi, BOX, 0.1),
    "with noise": (lambda x, y, xi, eta: -((y - 0.6 - eta) ** 2), BOX, 0.9),
    "one of two": (lambda x, y, xi, eta: (y[0] - xi) ** 2 - (y[1] - 0.3 - x * xi) ** 2, BOX, HALF),
    "a saddle": (lambda x, y, xi, eta: (y[0] - xi) * (y[1] - 0.4), BOX, HALF),
}


@pytest.mark.parametrize("name", BENT)
def test_bounds_do_not_hide_negative_curvature(name):
    """The end of the interval next to the start was given as the minimiser; the other may be lower."""
    with pytest.warns(UserWarning, match="not strongly convex"):
        solution = solved(*BENT[name], best=1.0)
    assert not solution.converged


@pytest.mark.parametrize("name", quick(CURVED, slow="linear on a ball"))
def test_curvature_from_elsewhere_is_enough(name):
    assert solved(*CURVED[name], best=1.0).converged
