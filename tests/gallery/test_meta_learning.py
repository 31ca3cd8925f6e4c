"""Meta-learning: default settings against the closed form, and each task against scikit-learn."""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.gallery.meta_learning import draw_meta_learning, meta_learning
from cobilevel.problem import enter


@cache
def answer(finite):
    instance = meta_learning(finite=finite, test=1500)
    return instance, cb.solve(instance.problem, instance.train)


@pytest.fixture(params=[False, True], ids=["climates", "sites"])
def solved(request):
    return answer(request.param)


def test_within_a_hundredth_of_the_best(solved):
    instance, solution = solved
    truth = instance.truth
    assert solution.converged, solution.result
    best = truth.objective(truth.x)
    assert best <= truth.objective(solution.x) <= 1.01 * best
    alone, together = (truth.objective(truth.with_best_prior(end)) for end in (-6.0, 6.0))
    assert best < 0.8 * min(alone, together)  # neither sites by themselves nor one calibration for all does
    certificate = cb.certify(instance.problem, solution, instance.test)
    assert certificate.objective.low <= truth.objective(solution.x) <= certificate.objective.high
    regret = certificate.regret.total
    assert regret.low <= truth.objective(solution.x) - best <= regret.high < 0.06 * best


def test_nothing_is_said_of_instruments(solved):
    """A regularised policy leaves slopes along y at most sites, with the best x: nothing is wrong."""
    assert not solved[1].uncertainty.remarks


def test_the_closed_form_is_where_no_other_decision_is_better():
    truth = meta_learning(1, train=8, test=8).truth
    rng, best = np.random.default_rng(0), truth.objective(truth.x)
    for _ in range(50):
        prior, log_ridge = truth.x["prior"] + 0.1 * rng.normal(size=3), truth.x["log_ridge"] + 0.1 * rng.normal()
        assert truth.objective({"prior": prior, "log_ridge": log_ridge}) > best


def ridge_of(rows, x):
    """The weights of one task by scikit-learn, as deviations from the prior."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    prior, penalty = np.asarray(x["prior"]), float(np.exp(x["log_ridge"]))
    z = np.column_stack([np.ones(len(rows["label"])), rows["voltage"], rows["ozone"]])
    model = linear_model.Ridge(alpha=len(z) * penalty, fit_intercept=False)
    return prior + model.fit(z, rows["label"] - z @ prior).coef_


def test_every_site_is_that_of_scikit_learn():
    instance, solution = answer(True)
    site = np.asarray(enter(instance.problem.domain, instance.train.xi, data=True).values)
    eta = {name: np.asarray(column) for name, column in instance.train.eta.items()}
    each = [ridge_of({name: column[site == k] for name, column in eta.items()}, solution.x) for k in range(12)]
    np.testing.assert_allclose(np.asarray(solution.policy(instance.truth.nodes)), each, rtol=0, atol=1e-8)


def test_a_climate_is_that_of_scikit_learn():
    """On many rows from one climate, which the samples never met."""
    truth, rng, here = answer(False)[0].truth, np.random.default_rng(1), np.array([[12.0, 65.0]])
    z = np.column_stack([np.ones(100_000), rng.normal(size=(100_000, 2)) @ np.linalg.cholesky(truth.moments[1:, 1:]).T])
    label = z @ truth.weights(here)[1][0] + truth.noise * rng.normal(size=len(z))
    rows = {"voltage": z[:, 1], "ozone": z[:, 2], "label": label}
    np.testing.assert_allclose(truth.policy(truth.x, here)[0], ridge_of(rows, truth.x), atol=0.02)


def test_picture(solved):
    figure = draw_meta_learning(*solved)
    assert [axis.get_xlabel() != "" for axis in figure.axes] == [True, True]
    plt.close(figure)
