"""Runs of stochastic solvers that once were passed off as converged, or did not get going."""

import re
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.iteration import measure
from problems import LINE, NOISE, XI, Aim, Line, joint, numbers, row, scalar

POOL = 256  # four batches, and a power of two: programs that shuffle such rows take half as long to compile

BASIS, ONE = cb.Chebyshev(3), cb.Chebyshev(1)
FLAT_START = {"upper": Aim(row(), ridge=1.0, centre=1.0, pull=3.0), "lower": Line(row(1.0, 1.0), noise=0.0)}


def solve(x0, basis=BASIS, samples=None, upper=FLAT_START["upper"], lower=FLAT_START["lower"], **options):
    samples = joint(rows=POOL) if samples is None else samples
    return cb.solve(scalar(lower, upper, x0), samples, basis=basis, **options)


@pytest.mark.thorough
def test_a_stochastic_solver_notices_a_lower_level_without_minimum():
    """While it measures the scales at x0, with noise, where single samples could not show it."""
    upper = Aim(row(), ridge=1.0, noise=1.0)
    options = {"upper": upper, "solver": cb.SOBA(), "steps": 300}
    unbounded = solve(0.5, lower=Line(row(1.0), weight=-1.0), **options)
    flat = solve(0.5, lower=lambda x, y, xi, eta: (x - eta) * y, **options)
    assert not unbounded.converged
    assert "could not be minimised" in unbounded.result
    assert not flat.converged
    assert "could not be minimised" in flat.result or "not strongly convex" in flat.result


@pytest.mark.thorough
def test_defaults_where_the_upper_gradient_vanishes_at_the_start():
    """Its size there sets neither the penalty nor the ball: both would be zero."""
    best = solve(0.0)
    found = solve(0.0, solver=cb.FdeHBO(), steps=4000)
    np.testing.assert_allclose(found.x, best.x, atol=0.01)
    reduced = cb.reduce(scalar(FLAT_START["lower"], FLAT_START["upper"]), BASIS, joint())
    scales = measure(reduced.ordinary(), jax.random.key(0), 64).scales
    assert float(scales.pull) < 1e-10
    assert float(cb.F2SA().defaults(scales)["penalty"].value) > 1


def test_bouncing_between_the_bounds_is_not_convergence():
    problem = scalar(FLAT_START["lower"], FLAT_START["upper"], 0.5, x_bounds=(-2.0, 3.0))
    for tolerance in (0.02, None):
        solver = cb.SOBA(0.1, 5.0, 0.1, tolerance=tolerance)
        found = cb.solve(problem, joint(1.0, rows=POOL), basis=BASIS, solver=solver, steps=600)
        assert not found.converged
        assert found.result is cb.Result.BOUNCING
        assert "bouncing" in found.result


def test_steps_too_small_to_move_x_are_not_convergence():
    for solver in (cb.SABA(0.1, 1e-18, 0.1), cb.SOBA(0.1, 1e-18, 0.1, tolerance=1e-3)):
        found = solve(3.0, solver=solver, steps=300)
        assert not found.converged, found.result


@pytest.mark.thorough
def test_a_stale_adjoint_is_not_convergence():
    """HOAG settles on a frozen linear system while its accuracy is still coarse."""
    upper = Aim(row(1000.0), ridge=50.0, centre=3.0, pull=0.1)
    found = solve(0.0, ONE, upper=upper, lower=Line(row(1.0), noise=0.0), solver=cb.HOAG())
    assert found.converged
    np.testing.assert_allclose(found.x, (100 * 3 + 0.2 * 1000) / (100 + 0.2), rtol=1e-6)


def test_growing_without_end_is_divergence_also_while_finite():
    found = solve(0.5, solver=cb.SOBA(0.1, 30.0, 0.1), steps=30)
    assert found.result is cb.Result.DIVERGED
    assert found.result.startswith("Diverged")


@pytest.mark.thorough
def test_a_category_never_seen_does_not_stop_a_stochastic_solver():
    problem = scalar(Line(row(1.0)), domain=cb.Finite(np.arange(4.0)))
    samples = cb.Samples(np.arange(300) % 3 * 1.0, 0.1 * NOISE[:300])
    best = cb.solve(problem, samples, basis=cb.Categorical())
    found = cb.solve(problem, samples, basis=cb.Categorical(), solver=cb.SOBA(), steps=2000)
    np.testing.assert_allclose(found.x, best.x, atol=0.01)


@pytest.mark.thorough
def test_a_fixed_coordinate_does_not_set_the_pace():
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 1) ** 2 + 1e6 * x[1],
        lambda x, y, xi, eta: (y - x[0]) ** 2,
        x0=jnp.zeros(2),
        y0=0.0,
        domain=cb.Interval(0.0, 1.0),
        x_bounds=(jnp.array([-5.0, 0.0]), jnp.array([5.0, 1.0])),
    )
    found = cb.solve(problem, cb.Samples(XI), basis=ONE, solver=cb.SOBA(), steps=2000)
    np.testing.assert_allclose(found.x, [1.0, 0.0], atol=1e-3)


def test_a_run_is_resumed_with_its_own_settings_only():
    start = solve(0.5, solver=cb.SOBA(0.1, 0.01, 0.1), steps=20)
    for other in (cb.SOBA(0.1, 0.01, 0.1, batch=32), cb.SOBA(0.1, 0.01, 0.1, shuffle=False), cb.SOBA()):
        with pytest.raises(ValueError, match="solver settings"):
            solve(0.5, solver=other, steps=40, resume=start)
    assert solve(0.5, solver=cb.SOBA(0.1, 0.01, 0.1), steps=40, resume=start).stats["steps"] == 40


class Follower(eqx.Module):
    """``weight (y - x xi - level - wave cos(3 xi) - eta / 10)^2``."""

    weight: jax.Array = eqx.field(converter=numbers)
    level: jax.Array = eqx.field(converter=numbers)
    wave: jax.Array = eqx.field(converter=numbers)

    def __call__(self, x, y, xi, eta):
        return self.weight * (y - x * xi - self.level - self.wave * jnp.cos(3 * xi) - 0.1 * eta) ** 2


class Leader(eqx.Module):
    """``(y - level - slope xi)^2 + (x - centre)^2 / 10``."""

    level: jax.Array = eqx.field(converter=numbers)
    slope: jax.Array = eqx.field(converter=numbers)
    centre: jax.Array = eqx.field(converter=numbers)

    def __call__(self, x, y, xi, eta):
        return (y - self.level - self.slope * xi) ** 2 + 0.1 * (x - self.centre) ** 2


def under_bounds(upper, lower, x0, y0, most, **more):
    """Two problems of one family, on the same samples with as many functions, so that they share compiled loops."""
    return cb.Problem(upper, lower, x0, y0, LINE, constraints=[cb.Bounds(0.0, most)], **more)


BOUNDED, SIX = joint(1.0, rows=POOL), cb.Chebyshev(6)


@pytest.mark.parametrize("kind", [cb.SOBA, cb.SABA, cb.F2SA], ids=lambda kind: kind.__name__)
def test_a_bound_that_is_met_downhill_does_not_throw_off_measured_steps(kind):
    """At x0 the policy is inside and the barrier flat; where the run goes it is hundreds of times as steep."""
    problem = under_bounds(Leader(0.6, 0.0, 1.0), Follower(1.0, 0.0, 0.2), 0.5, 0.3, 0.5)
    best = 1.1084  # by Newton, with the barrier that solvers on batches take
    found = cb.solve(problem, BOUNDED, basis=SIX, solver=kind(), steps=400)
    assert found.result is not cb.Result.DIVERGED
    assert abs(float(found.x) - best) < abs(0.5 - best)


def test_measured_steps_do_not_depend_on_how_the_basis_is_written():
    bases = cb.Monomial(3), cb.Orthonormal(BASIS)
    found = [solve(0.5, basis, solver=cb.SOBA(), steps=100) for basis in bases]
    np.testing.assert_allclose(found[0].x, found[1].x, rtol=1e-6)
    at = np.linspace(0.1, 0.9, 5)
    np.testing.assert_allclose(found[0].policy(at), found[1].policy(at), rtol=1e-6)
    given = [solve(0.5, basis, solver=cb.SOBA(0.1, 0.1, 0.1), steps=100) for basis in bases]
    assert not np.allclose(given[0].x, given[1].x, rtol=1e-6), "given ones are steps of the coefficients as they are"


def test_measured_steps_that_turn_out_too_long_are_shortened():
    """Bounds come to bind that bind at none of the points looked at."""
    rng = np.random.default_rng(0)
    xi, eta = rng.uniform(0, 1, 512), 0.1 * rng.normal(size=(512, 3))
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - jnp.array([0.9 * xi, 0.4, 0.6 - 0.9 * xi])) ** 2) + 0.01 * jnp.sum(x**2),
        lambda x, y, xi, eta: jnp.sum((y - x[0] * jnp.array([xi, 0.4, -xi]) - x[1:] - eta) ** 2) / 2,
        x0=np.zeros(4),
        y0=np.full(3, 1 / 3),
        domain=cb.Interval(0.0, 1.0),
        constraints=[cb.Simplex()],
    )
    options = {"basis": cb.Chebyshev(6), "solver": cb.SOBA(), "steps": 150}
    lost = cb.solve(problem, cb.Samples(xi, eta), **options, retreats=0)
    found = cb.solve(problem, cb.Samples(xi, eta), **options)
    assert lost.result is cb.Result.DIVERGED
    assert found.result is not cb.Result.DIVERGED
    assert "times as long" in found.choices["retreats"]


@cache
def best_within_bounds():
    return cb.solve(bounded(), BOUNDED, basis=SIX)


def bounded():
    """Bounds bind at no context for the first x, and at half of them for the best."""
    return under_bounds(Leader(0.2, 1.5, 1.5), Follower(0.5, 0.2, 0.0), 0.3, 0.5, 1.0, smoothing=1e-2)


def test_a_barrier_is_evenly_curved_in_the_coordinates_of_measured_steps():
    reduced = cb.reduce(bounded(), SIX, BOUNDED)
    condition = lambda problem: float(measure(problem, jax.random.key(0), 64).scales.condition)
    ours = cb.SOBA().prepare(reduced)
    assert condition(reduced.whitened()) > 200
    assert condition(ours) < 40
    W = jax.tree.map(lambda a: a + 0.1, ours.W0)
    batch = reduced.upper_pool
    np.testing.assert_allclose(
        ours.upper(0.7, W, ours.upper_pool), reduced.upper(0.7, ours.restore(W), batch), rtol=1e-4
    )
    np.testing.assert_allclose(ours.enter(ours.restore(W)), W, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [cb.SOBA, cb.SABA, cb.RSVRB], ids=lambda kind: kind.__name__)
def test_a_bound_that_binds_does_not_take_the_whole_budget(kind):
    best = best_within_bounds()
    found = cb.solve(bounded(), BOUNDED, basis=SIX, solver=kind(), steps=1000)
    assert abs(float(found.x - best.x)) < 0.1 * abs(0.3 - float(best.x))


def test_a_run_out_of_steps_says_how_many_more_it_takes():
    found = solve(3.0, solver=cb.SOBA(0.1, 0.00005, 0.1), steps=1000)
    assert found.result is cb.Result.BUDGET
    share, more = (float(part) for part in re.findall(r"at ([\d.e+-]+) of.* about ([\d.e+-]+) more", found.detail)[0])
    first = found.history["gradient"][:100].max()
    np.testing.assert_allclose(share, found.history["gradient"][-1] / first, rtol=0.2)
    further = solve(3.0, solver=cb.SOBA(0.1, 0.00005, 0.1), steps=1000 + int(more), resume=found)
    np.testing.assert_allclose(further.history["gradient"][-1] / first, 0.1, rtol=0.3)
