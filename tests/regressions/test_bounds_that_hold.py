"""Bounds that hold ``x``: what is asked of a solution there has an answer."""

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
    sums = cb.Equalities(jnp.ones((1, 2)), lambda x, xi: 0.1 + jnp.sin(xi / 3)[None])
    problem = cb.Problem(
        lambda x, y, xi, eta: (x - y[0]) ** 2,
        lambda x, y, xi, eta: jnp.sum((y - xi - 0.1 * eta) ** 2),
        0.5, jnp.zeros(2), cb.Interval(0.0, np.pi), constraints=[sums],
    )  # fmt: skip
    solution = cb.solve(problem, samples(), basis=cb.Chebyshev(3), precision="single")
    assert cb.certify(problem, solution, samples(seed=1), precision="single").objective is not None
