"""A mandate for a portfolio: against Clarabel, state by state, and brute force over the mandate."""

import matplotlib
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.gallery.portfolio import ASSETS, draw_portfolio, portfolio


@pytest.fixture(scope="module")
def solved():
    instance = portfolio(0, train=1500, test=1000)
    return instance, cb.solve(instance.problem, instance.train)


def by_clarabel(market, x, xi):
    """The weights in each state, as a quadratic program."""
    clarabel, sparse = pytest.importorskip("clarabel"), pytest.importorskip("scipy.sparse")
    mean, square = market.seen(xi)
    size, settings = len(ASSETS), clarabel.DefaultSettings()
    settings.verbose = False
    rows = sparse.csc_matrix(np.concatenate([np.ones((1, size)), -np.eye(size)]))
    right, cones = np.eye(1 + size)[0], [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(size)]
    bend = lambda matrix: sparse.csc_matrix(np.triu(float(x) / 100 * matrix))
    programs = (
        clarabel.DefaultSolver(bend(H), -c, rows, right, cones, settings) for H, c in zip(square, mean, strict=True)
    )
    return np.array([program.solve().x for program in programs])


def test_the_mandate_is_within_one_percent_of_the_best(solved):
    instance, solution = solved
    truth = instance.truth
    assert solution.converged, solution.result
    assert truth.objective(solution.x) <= truth.objective(truth.x) * 0.99
    assert truth.objective(truth.aversion) > truth.objective(solution.x) * 0.9  # the owner's own aversion is no mandate


def test_the_judges_agree(solved):
    instance, solution = solved
    truth, xi = instance.truth, np.linspace(10, 50, 101)
    exact = by_clarabel(truth.market, solution.x, xi)
    np.testing.assert_allclose(truth.policy(solution.x, xi), exact, atol=1e-4)
    learned = np.asarray(solution.policy(xi))
    np.testing.assert_allclose(learned.sum(axis=1), 1, atol=1e-5)
    assert learned.min() >= -0.01


def test_no_mandate_of_a_grid_is_better():
    truth = portfolio(0, train=10, test=10).truth
    assert truth.objective(truth.x) <= min(truth.objective(x) for x in np.linspace(1, 80, 60))


def test_the_closed_form_of_the_loss_agrees_with_many_draws():
    truth = portfolio(0, train=10, test=10).truth
    drawn = truth.market.draw(50_000, np.random.default_rng(2))
    xi = np.asarray(drawn.xi)
    weights = truth.policy(truth.x, xi)
    earned = np.einsum("nta,na->n", np.asarray(drawn.eta), weights)
    loss = 100 * np.expm1(-truth.aversion * earned / 100) / truth.aversion
    assert abs(np.mean(loss - truth.loss(weights, xi))) < 4 * loss.std() / np.sqrt(len(loss))


def test_the_certificate_covers_the_objective(solved):
    instance, solution = solved
    low, high = cb.certify(instance.problem, solution, instance.test).objective.interval
    assert low <= instance.truth.objective(instance.truth.x) <= high


def test_the_picture(solved):
    matplotlib.use("agg")
    left, right = draw_portfolio(*solved).axes
    assert "volatility" in left.get_xlabel()
    assert "utility" in right.get_ylabel()
