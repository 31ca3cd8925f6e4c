"""Where inequalities bind, and how far a smooth basis is from corners of the policy."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb


@pytest.fixture(scope="module")
def clipped():
    """A policy ``min(x + sum(xi), 1)`` at contexts in two dimensions, through noise."""
    rng = np.random.default_rng(0)
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 0.9) ** 2 / 2 + 0.05 * x**2,
        lambda x, y, xi, eta: (y - x - jnp.sum(xi) - eta) ** 2 / 2,
        x0=0.2,
        y0=0.0,
        domain=cb.Box([0.0, 0.0], [1.0, 1.0]),
        constraints=cb.Bounds(-5.0, 1.0),
    )
    return cb.solve(problem, cb.Samples(rng.uniform(size=(2000, 2)), 0.3 * rng.normal(size=2000)))


def test_the_share_of_contexts_at_which_a_bound_binds(clipped):
    places = np.random.default_rng(1).uniform(size=(20_000, 2))
    truth = np.mean(float(clipped.x) + places.sum(axis=1) >= 1)
    shares = {row.name: row.active for row in clipped.feasibility.rows}
    assert shares["y <= 1"] == pytest.approx(truth, abs=0.03)
    assert shares["y >= -5"] == 0


def test_standard_errors_of_the_policy_count_what_is_missed_at_corners(clipped):
    places = np.random.default_rng(2).uniform(size=(2000, 2))
    exact = np.minimum(float(clipped.x) + places.sum(axis=1), 1.0)
    error = np.asarray(clipped.policy_standard_error(places))
    off = np.abs(np.asarray(clipped.policy(places)) - exact)
    assert np.mean(off <= 1.96 * error) > 0.9
    assert np.median(error) < 0.1  # and not by being wide
