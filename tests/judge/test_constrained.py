"""The certificate of a constrained problem: its gradient is that of the constrained objective, as smoothing falls."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE

X = np.array([0.4, 0.7])
XI = np.concatenate([np.linspace(0.02, 0.25, 40), np.linspace(0.55, 0.95, 40)])  # no policy close to a corner there


def centre(x, xi, np=jnp):
    """The first is above 1 for small contexts and below 0 for large ones; the second is inside the bounds."""
    return np.stack([x[0] + 2 - 5 * xi, x[1] * xi + 0.2], axis=-1)


def objective(x, xi):
    """F of the constrained problem, in closed form."""
    y = np.clip(centre(x, xi, np), 0, 1)
    return np.mean(np.sum((y - 0.5) ** 2 * np.array([1.0, 2.0]), axis=1) + 0.1 * x[0] * y[:, 0])


def certified(smoothing, aside=0.0):
    """The certificate of a constant policy, `aside` of one that meets the constraints."""
    stated = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - 0.5) ** 2 * jnp.array([1.0, 2.0])) + 0.1 * x[0] * y[0],
        lambda x, y, xi, eta: jnp.sum((y - centre(x, xi)) ** 2),
        jnp.asarray(X), jnp.full(2, 0.5), LINE, constraints=[cb.Bounds(0.0, 1.0)], smoothing=smoothing,
    )  # fmt: skip
    reduced = cb.reduce(stated, cb.Chebyshev(6), cb.Samples(XI))
    W = reduced.W0.at[0].add(aside)
    return cb.certify(stated, reduced.lift(reduced.x0, W), cb.Samples(XI), mode="exact")


def test_the_gradient_is_that_of_the_constrained_problem_as_smoothing_falls():
    h = 1e-5
    slope = np.array([(objective(X + h * e, XI) - objective(X - h * e, XI)) / (2 * h) for e in np.eye(2)])
    errors = [np.abs(np.asarray(certified(s).gradient) - slope).max() for s in (1e-4, 1e-5, 1e-6)]
    assert errors[-1] < 1e-4
    assert all(after < before / 3 for before, after in itertools.pairwise(errors))


def test_the_certificate_says_how_far_constraints_are_met():
    found = certified(1e-4, aside=1.2)
    assert found.feasibility.largest == pytest.approx(0.7)  # 1.7 where at most 1 is allowed
    assert found.feasibility.rows[2].largest == pytest.approx(0.7)
    assert "violated by" in repr(found)


@pytest.mark.thorough
def test_bootstrap_keeps_the_constraints():
    rng = np.random.default_rng(0)
    xi = rng.uniform(size=200)
    stated = cb.Problem(
        lambda x, y, xi, eta: (y - eta) ** 2 + 0.1 * x**2,
        lambda x, y, xi, eta: (y - x * xi) ** 2,
        0.5, 0.2, LINE, constraints=[cb.Bounds(0.0, 0.4)],
    )  # fmt: skip
    samples = cb.Samples(xi, 0.3 + 0.1 * rng.normal(size=200))
    found = cb.solve(stated, samples, basis=cb.Chebyshev(10))
    spread = cb.bootstrap(stated, found, samples, replicates=20)
    np.testing.assert_allclose(float(spread.error), float(found.standard_error), rtol=0.7)


def middle(t, x):
    """What three shares of a whole would be without constraints."""
    return np.stack([0.4 + 0.3 * t, 0.2 - 0.2 * np.sin(2 * t), 0.5 * t**2], axis=-1) + x * np.array([1.0, 0.0, -1.0])


def clipped(m):
    return np.clip(m, 0, 0.5)


def on_simplex(m):
    """The nearest shares that are not negative and add up to one."""
    ordered = -np.sort(-m, axis=1)
    level = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, 4)
    last = (ordered > level).sum(axis=1) - 1
    return np.maximum(m - level[np.arange(len(m)), last][:, None], 0)


@pytest.mark.parametrize(
    ("constraint", "nearest", "best"),
    [(cb.Simplex(), on_simplex, -0.0968), (cb.Bounds(0.0, 0.5), clipped, -0.1043)],
    ids=["simplex", "bounds"],
)
def test_noise_under_constraints(constraint, nearest, best):
    """Products of neighbours with a barrier's curvature were off by a thousand standard errors."""
    wanted = lambda t, np: np.stack([0.3 + 0.2 * t, 0.4 - 0.1 * t, 0.3 - 0.1 * t], axis=-1)
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - wanted(xi, jnp)) ** 2) / 2 + 0.05 * (x - 0.3) ** 2,
        lambda x, y, xi, eta: jnp.sum((y - eta - x * jnp.array([1.0, 0.0, -1.0])) ** 2) / 2,
        x0=0.0,
        y0=jnp.full(3, 1 / 3),
        domain=cb.Interval(-1.0, 1.0),
        constraints=[constraint],
    )

    t = np.linspace(-1, 1, 4001)

    def objective(x):
        y = nearest(middle(t, x))
        return np.mean(np.sum((y - wanted(t, np)) ** 2, axis=1)) / 2 + 0.05 * (x - 0.3) ** 2

    def draw(rng, n=1000):
        xi = rng.uniform(-1, 1, n)
        return cb.Samples(xi, middle(xi, 0.0) + 0.1 * rng.normal(size=(n, 3)))

    rng = np.random.default_rng(1)
    samples = draw(rng)
    solution = cb.solve(problem, samples, progress=False)
    x, error = float(solution.x), float(solution.standard_error)
    assert abs(x - best) < 3 * error < 0.02
    slope = (objective(x + 1e-4) - objective(x - 1e-4)) / 2e-4
    for judged_by in (samples, draw(rng)):
        found = cb.certify(problem, solution, judged_by)
        assert found.mode == "enriched"
        assert (found.regret is None) == ("the regret" in found.left_out)
        assert abs(found.objective - objective(x)) < 3 * found.objective.error < 0.01
        assert found.gradient_norm.low <= abs(slope) <= found.gradient_norm.high < 0.05
    with pytest.raises(ValueError, match="a barrier bends too sharply"):
        cb.certify(problem, solution, samples, mode="neighbours")


def test_a_fit_has_its_own_noise_on_the_samples_it_was_fitted_to():
    rng = np.random.default_rng(0)
    xi = rng.uniform(-1, 1, 600)
    samples = cb.Samples(xi, 0.3 * xi + 0.5 * rng.normal(size=600))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 0.2) ** 2 + (x - 1) ** 2,
        lambda x, y, xi, eta: (y - x * eta) ** 2 / 2,
        1.0,
        0.0,
        cb.Interval(-1.0, 1.0),
        constraints=[cb.Bounds(-2.0, 2.0)],
    )
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(12))
    found = cb.certify(problem, solution, samples).policy_error
    truth = np.mean((np.asarray(solution.policy(xi)) - 0.3 * float(solution.x) * xi) ** 2)
    assert found.low <= truth <= found.high
    assert truth / 3 < float(found) < 3 * truth
