"""The standard error of the policy against the formula for linear fits, and how often its interval covers."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

AT = np.linspace(0.0, 1.0, 7)
BASIS = cb.Chebyshev(3)
REPLICATES = 200


def keeper(x, y, xi, eta):
    return jnp.sum((y - eta - x) ** 2)


PROBLEM = cb.Problem(lambda x, y, xi, eta: (x - 1.0) ** 2, keeper, x0=0.0, y0=np.zeros(2), domain=cb.Interval(0.0, 1.0))


def draw(seed, rows=60):
    """Quadratic means, and noise that grows with the context."""
    rng = np.random.default_rng(seed)
    xi = rng.uniform(size=rows)
    means = np.stack([1 + xi**2, 2 - 3 * xi], axis=1)
    return xi, means + (0.2 + xi)[:, None] * rng.normal(size=(rows, 2))


def test_it_is_the_sandwich_of_a_linear_fit():
    """With residuals divided by one minus leverage (HC3), and with weights."""
    xi, eta = draw(0)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 60)
    found = cb.solve(PROBLEM, cb.Samples(xi, eta, weight), basis=BASIS).policy_standard_error(AT)
    share = weight / weight.sum()
    phi, at = (np.vander(points, 3) for points in (xi, AT))
    inverse = np.linalg.inv(phi.T @ (share[:, None] * phi))
    fitted = phi @ inverse @ phi.T @ (share[:, None] * eta)
    leverage = share * np.einsum("nk,kl,nl->n", phi, inverse, phi)
    for j in range(2):
        rows = (share * (eta - fitted)[:, j] / (1 - leverage))[:, None] * phi
        rows = rows - share[:, None] * rows.sum(axis=0)
        wanted = np.sqrt(np.einsum("nk,kl,nl->n", at @ inverse, rows.T @ rows, at @ inverse))
        np.testing.assert_allclose(found[:, j], wanted, rtol=1e-6)


@pytest.mark.thorough
def test_the_interval_covers():
    """60 samples for 3 functions, noise of different size at each context: 95% of the points of two curves."""
    truth, inside = np.stack([1 + AT**2, 2 - 3 * AT], axis=1), []
    for seed in range(REPLICATES):
        solution = cb.solve(PROBLEM, cb.Samples(*draw(seed), np.ones(60)), basis=BASIS)
        error = np.abs(np.asarray(solution.policy(AT)) - truth - float(solution.x))
        inside.append(np.mean(error <= 1.96 * solution.policy_standard_error(AT)))
    noise = np.std(inside) / np.sqrt(REPLICATES)  # points of one replicate err together
    assert abs(np.mean(inside) - 0.95) <= 3 * noise + 0.01


def test_shapes_and_what_has_none(tmp_path):
    samples = cb.Samples(*draw(0), np.ones(60))
    solution = cb.solve(PROBLEM, samples, basis=BASIS)
    assert solution.policy_standard_error(0.5).shape == (2,)
    table = solution.policy_standard_error(AT.reshape(7, 1))
    assert table.shape == (7, 1, 2)
    np.testing.assert_allclose(table[3, 0], solution.policy_standard_error(0.5), rtol=1e-12)
    assert np.isnan(solution.policy_standard_error(2.0)).all()
    back = cb.load(solution.save(tmp_path / "a.npz"), PROBLEM)
    with pytest.raises(ValueError, match="keeps no samples"):
        back.policy_standard_error(0.5)
