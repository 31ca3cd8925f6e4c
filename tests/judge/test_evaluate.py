"""Figures of merit against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb


def test_evaluate_agrees_with_closed_forms(quadratic):
    solution = cb.solve(quadratic.problem, quadratic.train, basis=cb.Chebyshev(5))
    judged = cb.evaluate(quadratic.problem, solution, quadratic.test.rows(slice(0, 1000)), quadratic.truth, draws=512)
    assert abs(judged.loss - float(quadratic.truth.F(solution.x))) < 4 * judged.loss.error + 1e-3
    np.testing.assert_allclose(judged.x_error, np.sum((solution.x - quadratic.truth.x) ** 2), rtol=1e-12)
    xi = quadratic.test.xi[:1000]
    exact = np.mean(np.sum((solution.policy(xi) - quadratic.truth.y(solution.x, xi)) ** 2, axis=1))
    sampled = 3 * 0.3**2 / 512  # the exact solve averages 512 draws of three components: that is taken off
    assert abs(judged.policy_error - exact) < 3 * judged.policy_error.error < sampled / 4
    assert judged.trouble == ""


@pytest.mark.thorough
def test_evaluate_over_product_data(quadratic):
    eta = jax.tree.map(lambda a: a[:50], quadratic.train.eta)
    product = cb.Product(jnp.linspace(-1.0, 1.0, 30), eta)
    solution = cb.solve(quadratic.problem, product, basis=cb.Chebyshev(10))
    judged = cb.evaluate(quadratic.problem, solution, product)
    mean = eta["lower"].mean(axis=0)
    y = jax.vmap(lambda c: quadratic.truth.lower.slope(c) @ solution.x + mean)(product.contexts().xi)
    gap = y[:, None] - eta["upper"][None]
    Q = quadratic.truth.upper.Q
    loss = jnp.mean(jnp.einsum("mna,ab,mnb->mn", gap, Q, gap)) / 2
    loss += quadratic.truth.upper.rho * jnp.sum((solution.x - quadratic.truth.upper.centre) ** 2) / 2
    np.testing.assert_allclose(judged.loss, loss, rtol=1e-9)
    assert judged.policy_error < 1e-8
