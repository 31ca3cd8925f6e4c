"""A saved run goes on exactly as if it had not stopped, and only where it belongs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import same_recipe
from problems import NOISE, ROWS, XI, joint, scalar

BASIS = cb.Chebyshev(3)


def solve(samples=None, basis=BASIS, **options):
    return cb.solve(scalar(x0=1.0), joint() if samples is None else samples, basis=basis, **options)


@pytest.fixture(scope="module")
def part():
    return solve(steps=1)


def test_a_run_that_can_go_on_says_so(part):
    assert part.result is cb.Result.BUDGET
    assert part.result.startswith("Budget spent")
    assert part.result.resumable
    whole = solve()
    on = solve(resume=part)
    np.testing.assert_array_equal(on.x, whole.x)
    np.testing.assert_array_equal(on.W, whole.W)
    assert (on.result, on.stats["steps"]) == (whole.result, whole.stats["steps"])


@pytest.mark.parametrize("solver", [cb.Newton(), cb.SOBA()], ids=["Newton", "SOBA"])
def test_fewer_steps_than_were_taken_are_not_said_to_be_used_up(solver, tmp_path):
    well = replace(scalar(x0=-4.0), upper=lambda x, y, xi, eta: jnp.exp(x) - 20 * x + (y - eta) ** 2)
    go = lambda steps, **more: cb.solve(well, joint(), basis=BASIS, solver=solver, steps=steps, **more)
    two = go(2, checkpoint=tmp_path)
    for one in (go(1, checkpoint=tmp_path), go(1, resume=two)):
        assert one.result is cb.Result.BEYOND
        assert "had taken 2 steps, and steps is 1" in one.detail
        np.testing.assert_array_equal(one.x, two.x)
        assert go(3, resume=one).stats["steps"] == 3
    assert go(2, checkpoint=tmp_path).result is two.result


@pytest.mark.parametrize(
    "change",
    [
        {"samples": cb.Samples(XI, 5 + NOISE)},
        {"basis": cb.Legendre(3)},
        {"solver": cb.StocBiO(0.1, 0.1)},
        {"solver": cb.Newton(memory=7)},
    ],
    ids=["data", "basis", "solver", "settings"],
)
def test_resume_refuses_another_run(part, change):
    with pytest.raises(ValueError, match="another solver, other solver settings, another basis, data"):
        solve(resume=part, **change)


def test_resume_refuses_other_functions(part):
    own = scalar(x0=1.0)
    twice = lambda function: lambda x, y, xi, eta: 2 * function(x, y, xi, eta)
    for name in ("upper", "lower"):
        other = replace(own, **{name: twice(getattr(own, name))})
        with pytest.raises(ValueError, match=f"another problem: {name} has changed: its values differ by"):
            cb.solve(other, joint(), basis=BASIS, resume=part)


def test_resume_accepts_the_same_functions_written_otherwise(part):
    own = scalar(x0=1.0)
    aside = lambda x, y, xi, eta: (own.upper(x, y, xi, eta) + 0.0 * x) * 1.0
    on = cb.solve(replace(own, upper=aside), joint(), basis=BASIS, resume=part, steps=1)
    np.testing.assert_array_equal(on.x, part.x)


def test_resume_refuses_other_bounds(part):
    with pytest.raises(ValueError, match="bounds"):
        cb.solve(scalar(x0=1.0, x_bounds=(-9.0, 9.0)), joint(), basis=BASIS, resume=part)


def test_listed_functions_are_distinguished_by_their_members():
    """Two index sets of one size with other members are other recipes, and a run with one is not one with the other."""
    lists = [[(0, 0), (1, 0), (0, 1)], [(0, 0), (1, 0), (2, 0)]]
    one, other = (cb.Chebyshev(3, index=cb.Listed(members)) for members in lists)
    assert same_recipe(one, cb.Chebyshev(3, index=cb.Listed(lists[0])))
    assert not same_recipe(one, other)
    assert not same_recipe(cb.Orthonormal(one), cb.Orthonormal(other))
    plane = cb.Box([0.0, 0.0], [1.0, 1.0])
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(size=(ROWS, 2)), NOISE)
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - xi[1]) ** 2 + x**2, lambda x, y, xi, eta: (y - x * xi[0] - eta) ** 2, 1.0, 0.0, plane
    )
    begun = cb.solve(problem, samples, basis=one, steps=1)
    with pytest.raises(ValueError, match="another basis"):
        cb.solve(problem, samples, basis=other, resume=begun)
    assert cb.solve(problem, samples, basis=one, resume=begun, steps=3).stats["steps"] == 2
