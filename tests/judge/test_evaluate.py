"""Figures of merit against closed forms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE


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


CONTEXTS = np.linspace(0, 1, 20)
DATA = cb.Samples(CONTEXTS, np.zeros(20))


def stated(y0=0.0, x0=0.5, domain=LINE, **options):
    flat = lambda tree: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    lower = lambda x, y, xi, eta: jnp.sum((flat(y) - jnp.sum(flat(x)) - xi) ** 2)
    upper = lambda x, y, xi, eta: jnp.sum((flat(y) - 1) ** 2) + jnp.sum(flat(x) ** 2)
    return cb.Problem(upper, lower, x0, y0, domain, **options)


@pytest.fixture(scope="module")
def known():
    reduced = cb.reduce(stated(), cb.Chebyshev(3), DATA)
    return reduced.lift(reduced.x0, reduced.W0)


OTHERS = {
    "y a vector of one": {"y0": np.zeros(1)},
    "y a vector": {"y0": np.zeros(3)},
    "y a dict": {"y0": {"a": 0.0}},
    "x a vector": {"x0": np.zeros(2)},
    "x a tuple": {"x0": (0.5,)},
    "another domain": {"domain": cb.Interval(0.0, 2.0)},
}


@pytest.mark.parametrize("judge", [cb.evaluate, cb.certify])
def test_a_solution_of_another_problem_is_refused(judge, known):
    for change in OTHERS.values():
        with pytest.raises(ValueError, match=r"solution.*another"):
            judge(stated(**change), known, DATA)
    for nothing in (None, known.W, 3.0):
        with pytest.raises(TypeError, match=r"solution must be a Solution, as cb\.solve returns it"):
            judge(stated(), nothing, DATA)
    with pytest.raises(ValueError, match=r"solution holds NaN.*solution\.result"):
        judge(stated(), replace(known, x=jnp.asarray(np.nan), precise=None), DATA)


@pytest.mark.parametrize("judge", [cb.evaluate, cb.certify])
@pytest.mark.parametrize("draws", [0, 1, -3, 2.5, True, None, "many"])
def test_draws_that_are_no_number_of_draws(judge, draws, known):
    with pytest.raises(ValueError, match="draws must be a whole number of at least 2"):
        judge(stated(), known, DATA, draws=draws)


def test_a_truth_that_is_none(known):
    for truth, error, words in (
        (np.nan, ValueError, "truth must be finite"),
        ("a", TypeError, "truth must hold real numbers"),
        (np.zeros(2), ValueError, "truth must have the shapes of x"),
        ({"x": 0.5}, ValueError, "truth must have the shapes of x"),
    ):
        with pytest.raises(error, match=words):
            cb.evaluate(stated(), known, DATA, truth)
    with pytest.raises(TypeError, match=r"constants must be cb\.Constants"):
        cb.certify(stated(), known, DATA, constants=3.0)


def test_a_conditional_sampler_is_looked_at_before_it_is_used(known):
    noisy = lambda x, y, xi, eta: (y - x - xi - eta) ** 2
    data = cb.Samples(CONTEXTS, np.random.default_rng(0).normal(size=20))
    for draw, words in (
        (lambda key, xi, size: jnp.zeros(size), "does not use its key"),
        (lambda key, xi, size: np.random.normal(size=size), "uses randomness from elsewhere"),
        (lambda key, xi, size: 1 / 0, "conditional.*fails"),
    ):
        problem = replace(stated(conditional=draw), lower=noisy)
        for judge in (cb.evaluate, cb.certify, lambda p, s, data: cb.diagnose(p, cb.Chebyshev(3), data)):
            with pytest.raises(ValueError, match=words):
                judge(problem, known, data)
