"""Newton from far away and at large numbers: the truth, or it says that it has not converged; at bounds, converged."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import cobilevel as cb
from problems import LINE, XI, numbers

CONTEXTS = XI[:200]
SAMPLES = cb.Samples(CONTEXTS)


class Valley(eqx.Module):
    """``(y - 1)^2 + root (1 + (x - 2)^2)^(1/2) + log log(1 + (x - 2)^2) + bowl (x - 2)^2 + push x``: convex near 2
    alone, where it grows like a root or a logarithm; without a minimum where it is pushed."""

    root: jnp.ndarray = eqx.field(converter=numbers, default=0.0)
    log: jnp.ndarray = eqx.field(converter=numbers, default=0.0)
    bowl: jnp.ndarray = eqx.field(converter=numbers, default=0.0)
    push: jnp.ndarray = eqx.field(converter=numbers, default=0.0)

    def __call__(self, x, y, xi, eta):
        from_two = (x - 2) ** 2
        far = self.root * jnp.sqrt(1 + from_two) + self.log * jnp.log1p(from_two)
        return (y - 1) ** 2 + far + self.bowl * from_two + self.push * x


class Response(eqx.Module):
    """``y = (line x + bent tanh x) xi`` minimises it."""

    line: jnp.ndarray = eqx.field(converter=numbers, default=0.0)
    bent: jnp.ndarray = eqx.field(converter=numbers, default=0.0)

    def __call__(self, x, y, xi, eta):
        return (y - (self.line * x + self.bent * jnp.tanh(x)) * xi) ** 2


def solved(upper, lower, x0):
    return cb.solve(cb.Problem(upper, lower, x0, 0.0, LINE), SAMPLES, basis=cb.Chebyshev(3))


def truth(upper, lower):
    """By a search over the objective itself, of which policies are known."""

    def objective(x):
        y = (float(lower.line) * x + float(lower.bent) * np.tanh(x)) * CONTEXTS
        far = float(upper.root) * np.sqrt(1 + (x - 2) ** 2) + float(upper.log) * np.log1p((x - 2) ** 2)
        return np.mean((y - 1) ** 2) + far + float(upper.bowl) * (x - 2) ** 2

    return minimize_scalar(objective, bounds=(0.0, 4.0), method="bounded", options={"xatol": 1e-9}).x


@pytest.mark.parametrize("x0", [1e30, -1e30])
def test_a_start_far_away_leads_to_the_truth(x0):
    for upper, lower in (
        (Valley(bowl=0.1), Response(line=1.0)),
        (Valley(root=0.1), Response(line=1.0)),
        (Valley(root=0.1), Response(bent=1.0)),
        (Valley(log=0.1), Response(line=1.0)),
        (Valley(log=0.1), Response(bent=1.0)),
    ):
        found = solved(upper, lower, x0)
        if x0 > 0 or found.converged:  # from the other side, nothing leads past the step of tanh
            np.testing.assert_allclose(found.x, truth(upper, lower), rtol=1e-6)
            assert found.converged


def test_an_objective_without_minimum_does_not_converge():
    found = solved(Valley(push=-1e-3), Response(), 1e8)
    assert not found.converged
    assert found.x > 1e9


@pytest.mark.parametrize("rows", [300, 600])
def test_an_objective_that_falls_without_end_is_said(rows):
    """Overtime is cheaper than staff, and may be negative: by less staff everything gains, whatever the basis."""
    rng = np.random.default_rng(1)
    day, heat = rng.integers(0, 7, rows), rng.uniform(-8.0, 36.0, rows)
    need = np.stack([30 + day + 0.015 * (heat - 15) ** 2, 18 + 0.1 * heat], axis=1) + 3 * rng.normal(size=(rows, 2))

    def hospital(x, y, xi, need):
        return jnp.sum(jnp.array([1.0, 1.3]) * x + jnp.array([1.6, 2.2]) * y + (need - x - y) ** 2 / 2)

    def manager(x, y, xi, need):
        return jnp.sum((need - x - y) ** 2 / 4 + y / 2)

    domain = cb.Mixed(day=cb.Finite(range(7)), heat=cb.Interval(-8.0, 36.0))
    problem = cb.Problem(hospital, manager, jnp.array([25.0, 15.0]), jnp.array([2.0, 2.0]), domain)
    found = cb.solve(problem, cb.Samples({"day": day, "heat": heat}, need))
    assert found.result is cb.Result.UNBOUNDED
    assert not found.converged


@pytest.mark.parametrize("x0", [0.0, 1e-15, 1e-300])
def test_a_start_at_which_the_objective_vanishes(x0):
    """Revenue is zero at a price of zero, at every sample: no spread to measure by."""
    rng = np.random.default_rng(0)
    weather = rng.uniform(0, 1, 500)
    demand = 11 + weather + rng.normal(size=500)
    problem = cb.Problem(lambda p, y, xi, eta: -p * y, lambda p, y, xi, eta: (y - (eta - p)) ** 2, x0, 0.0, LINE)
    found = cb.solve(problem, cb.Samples(weather, demand), basis=cb.Chebyshev(3))
    assert found.converged
    assert float(found.x) == pytest.approx(demand.mean() / 2, rel=1e-5)


class Steep(eqx.Module):
    """``(y - 1)^2 + z A z / 10`` with ``z = slope (x - centre)``."""

    centre: jnp.ndarray = eqx.field(converter=numbers)
    slope: jnp.ndarray = eqx.field(converter=numbers)

    def __call__(self, x, y, xi, eta):
        z = (x - self.centre) * self.slope
        return (y - 1) ** 2 + (z @ z + 0.8 * z[0] * z[1]) / 10


class Shifted(eqx.Module):
    """``y = rate sum(x - centre) xi`` minimises it."""

    centre: jnp.ndarray = eqx.field(converter=numbers)
    rate: jnp.ndarray = eqx.field(converter=numbers)

    def __call__(self, x, y, xi, eta):
        return (y - self.rate * jnp.sum(x - self.centre) * xi) ** 2


@pytest.mark.parametrize(
    ("far", "slope", "rate"), [(1e10, 1.0, 1e-4), (1e10, 1e-4, 1e-8), (1e8, 1e4, 1e-8), (1e8, 1.0, 1.0)]
)
def test_at_bounds_among_large_numbers_it_converges(far, slope, rate):
    # the minimum lies beyond both bounds, so the answer is where they meet; the short way there and the long one
    centre, bounds = np.array([far, far]), np.array([far - 5.0, far - 2.5])
    for x0 in (np.zeros(2), bounds / 2, bounds - 1):
        problem = cb.Problem(Steep(centre, slope), Shifted(centre, rate), x0, 0.0, LINE, x_bounds=(None, bounds))
        found = cb.solve(problem, SAMPLES, basis=cb.Chebyshev(3))
        assert found.converged, found
        np.testing.assert_array_equal(found.x, bounds)


def test_a_bound_nearby_is_reached_before_it_converges():
    # within sqrt(eps) |x| of the bounds, and yet more than a unit away in x, which the objective sees
    far = 1e8
    bounds, centre = np.array([far, far]), np.array([far + 3, far + 3])
    problem = cb.Problem(Steep(centre, 0.0), Shifted(centre, 1.0), bounds - 1.4, 0.0, LINE, x_bounds=(None, bounds))
    found = cb.solve(problem, SAMPLES, basis=cb.Chebyshev(3))
    assert found.converged
    np.testing.assert_array_equal(found.x, bounds)


def test_the_lower_level_is_solved_in_a_corner_that_one_step_leads_to():
    """Far off it is solved to half the digits: not where the search ends."""
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - eta) ** 2 - 40 * x,
        lambda x, y, xi, eta: jnp.exp(y) - jnp.exp(x * xi) * y + y**4,
        x0=-0.9,
        y0=1.0,
        domain=cb.Interval(-1.0, 1.0),
        x_bounds=(-1.0, 1.5),
    )
    xi = np.linspace(-1, 1, 200)
    solution = cb.solve(problem, cb.Samples(xi, np.sin(7 * xi)), cb.Chebyshev(6))
    assert solution.converged
    assert solution.x == 1.5
    assert len(solution.history["step"]) == 2
    assert solution.history["lower_gradient"][-1] < 1e-8
