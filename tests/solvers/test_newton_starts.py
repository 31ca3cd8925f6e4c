"""Newton from starts at which a guess of scale misleads: optima of one coordinate, saddles, maxima, kinks."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE

RNG = np.random.default_rng(0)
SAMPLES = cb.Samples(RNG.uniform(0, 1, 600), RNG.normal(size=600))


def line_upper(x, y, xi, eta):
    return (y - 1 - xi) ** 2 + 0.1 * x[0] ** 2 + (x[1] - 0.3) ** 2


def line_lower(x, y, xi, eta):
    return (y - x[0] * xi - 0.3 * eta) ** 2


def wells_upper(x, y, xi, eta):
    return (x[0] - 1) ** 2 + (y**2 - 1) ** 2


def wells_lower(x, y, xi, eta):
    return (y - x[1] - 0.1 * eta) ** 2


def even_upper(x, y, xi, eta):
    return (y**2 - xi) ** 2 + x[0] ** 2


def even_lower(x, y, xi, eta):
    return (y - x[1]) ** 2


def absolute_upper(x, y, xi, eta):
    return jnp.abs(y - 1 - xi) + (x[1] - 0.3) ** 2


def absolute_lower(x, y, xi, eta):
    return (y - x[0] * xi - x[1] - 0.3 * eta) ** 2


def solved(upper, lower, x0, **options):
    problem = cb.Problem(upper, lower, jnp.asarray(x0), 0.0, LINE, **options)
    return cb.solve(problem, SAMPLES, basis=cb.Chebyshev(3))


@pytest.mark.parametrize("x0", [(0.5, 0.3), (0.0, 0.3), (0.5, 0.3 + 1e-9), (1.94, -1.0), (1e-300, 0.3)])
def test_one_coordinate_at_its_best_is_not_the_end(x0):
    found = solved(line_upper, line_lower, x0)
    assert found.converged
    np.testing.assert_allclose(found.x, solved(line_upper, line_lower, (0.4, 0.5)).x, rtol=1e-8)
    assert found.stats["steps"] == 2  # solved at the start, and one Newton step: it is a parabola
    assert "ended" not in found.uncertainty.table()


@pytest.mark.parametrize("x0", [(0.0, 0.0), (1.0, 0.0), (1.0, 1e-9)])
def test_next_to_a_maximum_it_goes_on(x0):
    found = solved(wells_upper, wells_lower, x0)
    assert found.converged
    np.testing.assert_allclose(np.abs(found.x), [1.0, 1.0], atol=0.05)
    assert found.history["upper"][-1] < 0.01


def test_an_exact_maximum_is_left():
    """Both gradient and noise vanish there: only the curvature shows that it is no minimum."""
    found = solved(even_upper, even_lower, (0.0, 0.0))
    assert found.converged
    np.testing.assert_allclose(found.x[1] ** 2, np.mean(np.asarray(SAMPLES.xi)), rtol=1e-6)


@pytest.mark.parametrize("bounds", [(-1.0, 0.0), (0.0, 1.0)])
def test_a_maximum_at_a_bound_is_left_inwards(bounds):
    upper = lambda x, y, xi, eta: -(x**2) + 0.1 * (y - xi) ** 2
    found = cb.solve(
        cb.Problem(upper, lambda x, y, xi, eta: (y - eta) ** 2, 0.0, 0.0, LINE, x_bounds=bounds),
        SAMPLES,
        basis=cb.Chebyshev(3),
    )
    assert found.converged
    assert abs(float(found.x)) == 1.0
    assert found.stats["steps"] < 10


def test_a_kink_of_a_concave_objective_ends_the_run():
    """The Hessian sees the concave part alone, along which nothing is lower."""
    upper = lambda x, y, xi, eta: jnp.abs(x - 0.3) - 0.1 * x**2 + 0.1 * (y - xi) ** 2
    found = cb.solve(
        cb.Problem(upper, lambda x, y, xi, eta: (y - eta) ** 2, -0.5, 0.0, LINE, x_bounds=(-1.0, 1.0)),
        SAMPLES,
        basis=cb.Chebyshev(3),
    )
    assert found.result is cb.Result.KINK
    assert float(found.x) == pytest.approx(0.3, abs=1e-9)


def test_a_coordinate_that_matters_only_later_without_a_hessian():
    """More coordinates than a Hessian is formed for, and one without gradient at the start."""

    def upper(x, y, xi, eta):
        late = (x[0] - 1) ** 2 + (x[1] * x[0] - 2) ** 2
        return late + jnp.sum((x[2:] - 1) ** 2) / 1000 + 0.1 * (y - eta) ** 2

    problem = cb.Problem(upper, lambda x, y, xi, eta: (y - xi) ** 2, jnp.zeros(2001), 0.0, LINE)
    found = cb.solve(problem, SAMPLES.rows(slice(0, 60)), basis=cb.Chebyshev(2))
    assert found.converged
    np.testing.assert_allclose(found.x[:2], [1.0, 2.0], atol=1e-5)


@pytest.mark.parametrize("unit", [(1.0, 1.0), (1e-9, 1e9)])
def test_a_minimum_at_kinks_of_two_coordinates(unit):
    """Least absolute deviations: the objective is linear between the kinks of single samples."""
    scale = jnp.asarray(unit)
    upper, lower = (lambda x, *rest, f=f: f(x / scale, *rest) for f in (absolute_upper, absolute_lower))
    found = solved(upper, lower, np.array([0.5, 0.3]) * unit)
    assert found.converged, found.result
    at = np.asarray(found.x) / unit
    other = solved(absolute_upper, absolute_lower, (1.0, 0.0))
    assert found.history["upper"][-1] == pytest.approx(other.history["upper"][-1], rel=1e-9)
    np.testing.assert_allclose(at, other.x, atol=1e-5)


def test_a_tolerance_is_a_share_of_the_spread():
    problem = cb.Problem(wells_upper, wells_lower, jnp.array([0.3, 0.4]), 0.0, LINE)
    loose, tight = (
        cb.solve(problem, SAMPLES, basis=cb.Chebyshev(3), solver=cb.Newton(tolerance=share)) for share in (1e-3, 1e-12)
    )
    assert loose.converged
    assert tight.converged
    assert loose.stats["steps"] < tight.stats["steps"]
    assert loose.history["promised"][-1] > tight.history["promised"][-1]


def test_where_the_model_was_wrong_the_next_step_begins_no_longer():
    """Far off the lower level takes long to solve: two trials at the corner took 150 Hessians each."""
    case = cb.gallery.two_edge_traffic(2)
    found = cb.solve(case.problem, case.train, basis=cb.Chebyshev(50))
    assert found.converged
    assert found.stats["oracles"]["hessian"]["calls"] < 250
