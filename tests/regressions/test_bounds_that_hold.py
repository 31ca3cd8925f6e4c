"""Bounds that hold ``x``: what is asked of a solution there has an answer."""

import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb


def samples(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=rows)
    return cb.Samples(rng.uniform(size=rows), noise - noise.mean())


def follower(x, y, xi, eta):
    return (y - xi - 0.3 * eta) ** 2


def test_a_bound_that_holds_the_only_coordinate_leaves_no_regret():
    problem = cb.Problem(
        lambda x, y, xi, eta: (x + 2) ** 2 + y**2, follower, 0.5, 0.0, cb.Interval(0.0, 1.0), x_bounds=(-1.0, 1.0)
    )
    solution = cb.solve(problem, samples())
    assert float(solution.x) == -1
    found = cb.certify(problem, solution, samples(seed=1))
    assert found.blocked == 1
    assert found.regret is None


def test_a_direction_without_room_is_not_undetermined():
    """At a corner where the gradient vanishes, neither side of the diagonal can be looked at."""

    def upper(x, y, xi, eta):
        return (x[0] + x[1] - 1) ** 2 + 2 * (x[0] - x[1] + 1) ** 2 + eta * x[0] + eta * x[1] + y**2

    problem = cb.Problem(upper, follower, jnp.full(2, 0.5), 0.0, cb.Interval(0.0, 1.0), x_bounds=(0.0, 1.0))
    solution = cb.solve(problem, samples())
    np.testing.assert_allclose(solution.x, [0, 1], atol=1e-6)
    assert not solution.uncertainty.undetermined
    assert np.all(np.isfinite(solution.uncertainty.error))


def test_equalities_are_the_same_in_single_precision():
    """The context they are stated at is written with fewer digits then."""
    rng, where = np.random.default_rng(0), cb.Box([-1.0, 0.0], [1.0, np.pi])
    data = cb.Samples(rng.uniform([-1, 0], [1, np.pi], (200, 2)), rng.normal(size=200))
    with jax.enable_x64(False):
        problem = cb.Problem(
            lambda x, y, xi, eta: (x - y[0]) ** 2,
            lambda x, y, xi, eta: jnp.sum((y - xi - 0.1 * eta) ** 2),
            0.5, jnp.zeros(2), where, constraints=[cb.Equalities([[1.0, 1.0]], lambda x, xi: 0.1 * xi[:1])],
        )  # fmt: skip
        solution = cb.solve(problem, data, basis=cb.Chebyshev(2, index=cb.TotalDegree()), precision="single")
        assert cb.certify(problem, solution, data).objective is not None
