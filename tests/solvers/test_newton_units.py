"""Newton gives one answer in all units: of each coordinate of ``x``, of ``y``, of ``f`` and of ``g``."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE, NOISE, ROWS, XI, joint, numbers, scalar

BASIS = cb.Chebyshev(4)


class Rescaled(eqx.Module):
    """An objective of other units: of ``x``, coordinate by coordinate, of ``y``, and its own."""

    function: Callable
    x: jax.Array = eqx.field(converter=numbers)
    y: jax.Array = eqx.field(converter=numbers)
    own: jax.Array = eqx.field(converter=numbers)

    def __call__(self, x, y, xi, eta):
        return self.own * self.function(x / self.x, y / self.y, xi, eta)


@pytest.fixture(scope="module")
def instance():
    return cb.gallery.quadratic(0, dx=4, dy=2)


BOUNDS = {"free": (np.full(4, -np.inf), np.full(4, np.inf)), "bounded": (np.full(4, -0.2), np.full(4, 0.6))}


def solve(instance, bounds, x=np.ones(4), y=1.0, f=1.0, g=1.0):  # noqa: B008
    usual, (lo, hi) = instance.problem, BOUNDS[bounds]
    problem = cb.Problem(
        Rescaled(usual.upper, x, y, f),
        Rescaled(usual.lower, x, y, g),
        np.zeros(4),
        np.zeros(2),
        usual.domain,
        (lo * x, hi * x),
    )
    found = cb.solve(problem, instance.train.rows(slice(0, ROWS)), basis=BASIS, solver=cb.Newton())
    return np.asarray(found.x) / x, found


CASES = {
    "large x": {"x": np.full(4, 1e8)},
    "small x": {"x": np.full(4, 1e-8)},
    "mixed x": {"x": np.array([1e8, 1e-8, 1.0, 3e4])},
    "mixed x, the other way": {"x": np.array([1e-8, 7.0, 1e8, 2e-5])},
    "large y": {"y": 1e8},
    "small y": {"y": 1e-8},
    "large f": {"f": 1e8},
    "small f": {"f": 1e-8},
    "large g": {"g": 1e8},
    "small g": {"g": 1e-8},
    "all": {"x": np.array([1e-5, 1e5, 3e7, 1e-8]), "y": 1e-6, "f": 1e7, "g": 1e-8},
}


@pytest.fixture(scope="module")
def in_usual_units(instance):
    return {bounds: solve(instance, bounds) for bounds in BOUNDS}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("name", CASES)
def test_units_do_not_matter(instance, in_usual_units, bounds, name):
    usual, reference = in_usual_units[bounds]
    x, found = solve(instance, bounds, **CASES[name])
    assert found.result is reference.result
    assert found.converged
    np.testing.assert_allclose(x, usual, rtol=1e-9)
    assert found.stats["steps"] <= reference.stats["steps"] + 10


def test_regressors_of_very_different_size():
    """Earnings on a constant, experience, its square and income: a Hessian of condition 1e11, by units alone."""
    rng = np.random.default_rng(0)
    years, income = rng.uniform(0, 40, ROWS), 1e5 * np.exp(0.5 * rng.normal(size=ROWS))
    table = np.stack([np.ones(ROWS), years, years**2, income], axis=1)
    wage = table @ [1.0, 0.05, -8e-4, 2e-6] + 0.3 * NOISE
    assert np.linalg.cond(table.T @ table) > 1e11
    size = np.max(np.abs(table), axis=0)
    exact = np.linalg.lstsq(table / size, wage, rcond=None)[0] / size
    upper = lambda x, y, xi, eta: (eta["wage"] - eta["table"] @ x - y) ** 2
    problem = cb.Problem(upper, lambda x, y, xi, eta: y**2, np.zeros(4), 0.0, LINE)
    found = cb.solve(problem, cb.Samples(XI, {"wage": wage, "table": table}), basis=cb.Chebyshev(3))
    assert found.converged
    np.testing.assert_allclose(found.x, exact, rtol=1e-8)


def line(x0, bounds=None):
    return cb.solve(scalar(x0=x0, x_bounds=bounds), joint(), basis=cb.Chebyshev(3))


@pytest.mark.parametrize("x0", [1e15, 1e30, -1e30])
def test_starts_beyond_all_reason(x0):
    found = line(x0)
    assert found.converged
    np.testing.assert_allclose(found.x, line(0.0).x, rtol=1e-9)


@pytest.mark.parametrize("side", [(1e8, 2e8), (1e8, 1e8 + 10), (-2e8, -1e8)])
def test_an_active_bound_far_out(side):
    found = line((side[0] + side[1]) / 2, side)
    assert found.converged
    assert float(found.x) == min(side, key=abs)


def test_a_coordinate_that_matters_only_later():
    """At the start no sample has a gradient in the second coordinate, so that its unit shows on the way only."""

    lower = lambda x, y, xi, eta: (y - eta) ** 2

    def late(x, y, xi, eta):
        return (y - x[0]) ** 2 + (x[0] - 1) ** 2 + ((x[1] - 2) * x[0]) ** 2

    for unit in (1e-7, 1e7):
        upper = Rescaled(late, np.array([1.0, unit]), 1.0, 1.0)
        problem = cb.Problem(upper, lower, np.zeros(2), 0.0, LINE)
        found = cb.solve(problem, cb.Samples(XI, 0.1 * NOISE), basis=cb.Chebyshev(3))
        assert found.converged
        np.testing.assert_allclose(found.x[1] / unit, 2.0, rtol=1e-6)
