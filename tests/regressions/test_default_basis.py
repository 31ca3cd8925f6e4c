"""Bases chosen for the user that once were too small, or chosen from the wrong data."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb
from problems import AROUND, NOISE, ROWS, XI, Aim, Line, joint, row, scalar


def test_the_default_basis_looks_near_x0():
    """At x0 = 0 the policy does not vary with the context; the optimum is elsewhere."""
    xi = 2 * XI - 1
    found = cb.solve(scalar(upper=Aim(row(0.0, 2.0)), domain=AROUND), joint(0.25, xi))
    share = np.mean(xi**2)
    np.testing.assert_allclose(found.x, 2 * share / (share + 0.1), rtol=0.1)


def test_the_default_basis_starts_at_y0():
    barrier = lambda x, y, xi, eta: y * (1 + 3 * xi) * (1 + x**2) - jnp.log(y)
    problem = scalar(barrier, Aim(row(0.3)), 0.5, 1.0)
    found, rich = (cb.solve(problem, joint(), basis=basis) for basis in (None, cb.Chebyshev(8)))
    np.testing.assert_allclose(found.x, rich.x, rtol=1e-2)


@pytest.mark.thorough
def test_the_default_basis_for_product_data_varies():
    rng, truth = np.random.default_rng(2), np.array([2.0, -1, 0, 0])
    A, V = rng.normal(size=(30, 4)), rng.normal(size=(50, 4))
    a, v = A @ truth + 0.5 * rng.normal(size=30), V @ truth + 0.5 * rng.normal(size=50)
    domain = cb.Interval(0.1, 10.0)
    loss = lambda y, row: (row[0] @ y - row[1]) ** 2
    problem = cb.Problem(
        lambda x, y, xi, row: loss(y, row),
        lambda x, y, xi, row: loss(y, row) + xi * jnp.sum(jnp.exp(x) * y**2),
        jnp.zeros(4),
        jnp.zeros(4),
        domain,
        x_bounds=(-5.0, 5.0),
    )
    law = cb.Uniform(domain)
    data = cb.Levels(cb.Product(law, (V, v)), cb.Product(law, (A, a)))
    found = cb.solve(problem, data)
    assert found.converged
    assert cb.evaluate(problem, found, data).policy_error < 1e-6
    nodes, weights = law.quadrature(64)

    def exact(x):
        ridge = [np.linalg.solve(A.T @ A / 30 + c * np.diag(np.exp(x)), A.T @ a / 30) for c in np.asarray(nodes)]
        return float(np.asarray(weights) @ [np.mean((V @ y - v) ** 2) for y in ridge])

    best = scipy.optimize.minimize(exact, np.asarray(found.x), bounds=[(-5, 5)] * 4)
    assert exact(np.asarray(found.x)) <= best.fun * (1 + 1e-4)


def test_few_contexts_with_many_samples():
    lower = Line(row(1.0), row(0.0, 5.0))
    xi = np.random.default_rng(0).choice(np.linspace(0, 1, 5), ROWS)
    found = cb.solve(scalar(lower), cb.Samples(xi, 0.01 * NOISE))
    np.testing.assert_allclose(found.policy(1.0) - found.policy(0.0), 5, atol=0.1)
    finite = scalar(lower, domain=cb.Finite([0.0, 1.0]))
    few = cb.solve(finite, cb.Samples(np.array([0.0, 1.0] * 5), 0.01 * NOISE[:10]))
    np.testing.assert_allclose(few.policy(1.0) - few.policy(0.0), 5, atol=0.1)


def test_contexts_of_lower_precision_belong():
    for domain, xi in (
        (cb.Finite([0.1, 0.2, 0.7]), np.float32([0.1, 0.2, 0.7] * 20)),
        (cb.Interval(-0.1, 0.2), np.linspace(-0.1, 0.2, 60, dtype=np.float32)),
    ):
        found = cb.solve(scalar(x0=1.0, domain=domain), cb.Samples(xi))
        assert found.converged
        assert np.all(np.isfinite(found.policy(xi)))
    assert np.isfinite(found.policy(0.2 + 1e-12))
