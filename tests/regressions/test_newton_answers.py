"""Problems that once led Newton to a wrong answer presented as right, or to a failure without cause."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.reduction import DENSE_LIMIT
from problems import AROUND, LINE, NOISE, XI, Aim, Bent, Line, joint, row, scalar

BASIS = cb.Chebyshev(3)


def solve(upper=None, x0=0.0, lower=None, y0=0.0, samples=None, **options):
    problem = scalar(lower, upper, x0, y0)
    return cb.solve(problem, joint() if samples is None else samples, **({"basis": BASIS} | options))


@pytest.fixture(scope="module")
def usual():
    return float(solve(x0=1.0).x)


@pytest.mark.parametrize("x0", [0.0, 39.1, -1e4])
def test_far_starts(usual, x0):
    found = solve(x0=x0)
    assert found.converged
    np.testing.assert_allclose(found.x, usual, rtol=1e-7)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("shift", [0.0, 1e5])
def test_scale_and_shift_of_the_objective_do_not_matter(usual, scale, shift):
    found = solve(Aim(scale=scale, shift=shift), 3.0)
    assert found.converged
    np.testing.assert_allclose(found.x, usual, rtol=1e-5)


def test_starting_at_the_optimum(usual):
    found = solve(x0=usual)
    assert found.converged, found.result
    np.testing.assert_allclose(found.x, usual, rtol=1e-7)


def test_a_huge_first_gradient_is_not_a_yardstick():
    steep, gentle = (solve(Aim(rise=1.0), x0) for x0 in (15.0, 0.0))
    np.testing.assert_allclose(steep.x, gentle.x, rtol=1e-6)
    wall = solve(Aim(pull=0.0, ridge=1.0, centre=1.0, wall=1e12), -3.0)
    np.testing.assert_allclose(wall.x, 1.0, rtol=1e-6)


def cosh(x, y, xi, eta):
    return jnp.cosh(y - x - xi)


def test_a_lower_start_far_away_does_not_loosen_the_lower_tolerance():
    near, far = (solve(lower=cosh, y0=y0, basis=cb.Chebyshev(2)) for y0 in (0.0, 50.0))
    assert near.converged
    assert not far.converged or np.isclose(far.x, near.x, rtol=1e-6)
    judged = cb.evaluate(scalar(cosh, y0=50.0), near, cb.Samples(XI[:50]))
    assert judged.trouble or judged.policy_error < 1e-12


def test_an_upper_objective_without_minimum_is_no_answer():
    assert not solve(Aim(pull=0.0, ridge=0.0, fall=1.0), 0.5).converged


def test_a_jump_in_the_upper_objective_is_no_convergence():
    found = solve(Aim(pull=0.0, ridge=1.0, centre=2.0, step=5.0))
    assert not found.converged


NOT_CONVEX = {
    "concave": Bent(concave=1),
    "flat": Bent(flat=1),
    "double well": Bent(wells=1),
    "saddle at the start": Bent(saddle=1),
    "unbounded": Bent(unbounded=1),
    "decaying": Bent(decaying=1),
}


@pytest.mark.filterwarnings("ignore:The lower level is not strongly convex")
@pytest.mark.parametrize("name", NOT_CONVEX)
def test_a_lower_level_that_is_not_convex_is_never_an_answer(name):
    problem = scalar(NOT_CONVEX[name], Aim(ridge=1.0), 0.3, domain=AROUND)
    solution = cb.solve(problem, cb.Samples(np.linspace(-1, 1, 200)), basis=cb.Chebyshev(4))
    assert not solution.converged
    if name != "decaying":  # there it may run away until the steps are used up
        assert "not strongly convex" in solution.result or "could not be minimised" in solution.result


def test_centred_data():
    samples = cb.Samples(XI, NOISE - NOISE.mean())
    found = solve(lower=Line(row(1.0)), samples=samples, basis=cb.Chebyshev(1))
    assert found.converged, found.result


def test_units_of_the_features_do_not_matter():
    lower, upper = Line(row(1.0), row(5.0, 0.0, 1e-12), rate=0.0), Aim(rate=0.0)
    basis = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), xi**2]), 2)
    found = cb.solve(scalar(lower, upper, domain=cb.Interval(0.0, 1e6)), cb.Samples(1e6 * XI), basis=basis)
    np.testing.assert_allclose(found.policy(0.0), 5 + found.x, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:The lower level is not strongly convex")
def test_a_lower_level_flat_at_every_context_is_no_answer():
    lower = lambda x, y, xi, eta: (jnp.cos(3 * xi) * y[0] + jnp.sin(3 * xi) * y[1] - x * xi - 1) ** 2
    found = solve(lambda x, y, xi, eta: jnp.sum(y**2) + x**2, 0.5, lower, jnp.zeros(2))
    assert not found.converged


def test_quadrature_weights_that_vanish_and_numpy_counts():
    law = cb.Mixture((cb.TruncatedNormal(LINE, 0.5, 0.01), cb.Uniform(LINE)), [1.0, 0.0])
    product = cb.Product(law, NOISE[:20], nodes=10)  # 400 pairs
    assert float(product.contexts().weights.min()) == 0.0
    found = cb.solve(scalar(), product, basis=cb.Chebyshev(np.int64(3)))
    assert found.converged


def test_upper_contexts_the_lower_level_never_saw_are_reported():
    rng = np.random.default_rng(0)
    left, right = rng.uniform(0, 0.45, 200), rng.uniform(0.55, 1, 100)
    data = cb.Levels(upper=cb.Samples(right, 0 * right), lower=cb.Samples(left, 0 * left))
    with pytest.warns(UserWarning, match="100 of 100 upper-level contexts"):
        solution = cb.solve(scalar(upper=Aim(row(), noise=1.0), x0=0.5), data, basis=cb.Partition(10), steps=3)
    assert "unseen" in solution.choices


@pytest.mark.parametrize("has_minimum", [True, False])
def test_a_large_lower_level_with_negative_curvature_is_not_passed_off(has_minimum):
    """Where the Hessian is not formed too, a saddle in one place of y0 is left, or said where there is no minimum."""
    size = DENSE_LIMIT // 2 + 1
    bent = lambda y: has_minimum * y**4 - y**2
    well = lambda y, target: jnp.where(jnp.arange(size) == 3, bent(y), (y - target) ** 2)
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - xi) ** 2) + x**2,
        lambda x, y, xi, eta: jnp.sum(well(y, x * xi)),
        x0=0.5,
        y0=jnp.zeros(size),
        domain=LINE,
    )
    solution = cb.solve(problem, cb.Samples(np.linspace(0, 1, 20)), basis=cb.Chebyshev(2), steps=20)
    assert solution.converged == has_minimum
    if has_minimum:
        np.testing.assert_allclose(np.abs(solution.policy(np.linspace(0, 1, 5))[:, 3]), np.sqrt(0.5), atol=1e-5)
    else:
        assert "not strongly convex" in solution.result
