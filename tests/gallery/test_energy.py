"""Batteries on a feeder: against Clarabel, context by context, and brute force over the charge."""

import matplotlib
import numpy as np
import pytest

import cobilevel as cb

pytest.importorskip("pandas")
from cobilevel.gallery.energy import BLOCKS, draw_energy, energy


@pytest.fixture(scope="module")
def solved():
    instance = energy(0, train=1000, test=1000)
    return instance, cb.solve(instance.problem, instance.train)


def by_clarabel(truth, x, xi):
    """The dispatch at each context, as a quadratic program."""
    clarabel, sparse = pytest.importorskip("clarabel"), pytest.importorskip("scipy.sparse")
    price, load = truth.means(xi)
    one, settings = np.eye(BLOCKS), clarabel.DefaultSettings()
    settings.verbose = False
    rows = sparse.csc_matrix(np.concatenate([np.ones((1, BLOCKS)), one, -one]))
    right = np.concatenate([[0.0], np.full(2 * BLOCKS, truth.capacity)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * BLOCKS)]
    bend = sparse.csc_matrix(truth.wear * one)
    programs = (clarabel.DefaultSolver(bend, -c, rows, right, cones, settings) for c in price + float(x) * load)
    return np.array([program.solve().x for program in programs])


def some(xi, count):
    return {name: np.asarray(column)[:count] for name, column in xi.items()}


def test_the_charge_is_within_one_percent_of_the_best(solved):
    instance, solution = solved
    truth = instance.truth
    assert solution.converged, solution.result
    assert truth.objective(solution.x) <= truth.objective(truth.x) * 0.99


@pytest.mark.thorough
def test_the_interval_of_the_charge_covers_the_best():
    instance = energy(0)
    low, high = cb.solve(instance.problem, instance.train).interval
    assert low <= instance.truth.x <= high
    assert high - low < 1


def test_the_judges_agree(solved):
    """Bisection with Clarabel to its accuracy, the policy with both as far as samples allow."""
    instance, solution = solved
    truth, xi = instance.truth, some(instance.test.xi, 150)
    exact = by_clarabel(truth, solution.x, xi)
    np.testing.assert_allclose(truth.policy(solution.x, xi), exact, atol=1e-5)
    learned = np.asarray(solution.policy(xi))
    np.testing.assert_allclose(learned.sum(axis=1), 0, atol=1e-5)
    assert np.abs(learned).max() <= 1.02 * truth.capacity
    assert np.mean((learned - exact) ** 2) < 0.03 * np.mean(exact**2)


def test_the_rule_for_the_mean_cost_agrees_with_many_draws(solved):
    truth = solved[0].truth
    xi = truth.table(40_000, np.random.default_rng(1))
    cost = truth.cost(truth.policy(truth.x, xi), xi)
    assert abs(cost.mean() - truth.objective(truth.x)) < 4 * cost.std() / 200


def test_the_certificate_covers_the_objective(solved):
    instance, solution = solved
    low, high = cb.certify(instance.problem, solution, instance.test).objective.interval
    assert low <= instance.truth.objective(instance.truth.x) <= high


def test_the_picture(solved):
    matplotlib.use("agg")
    left, right = draw_energy(*solved).axes
    assert left.get_xlabel() == "hour of the day"
    assert "cents" in right.get_ylabel()
