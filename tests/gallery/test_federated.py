"""Personalised models of clients: against normal equations client by client, and L-BFGS on them."""

import matplotlib
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.gallery.federated import draw_federated, federated


@pytest.fixture(scope="module")
def solved():
    instance = federated(0)
    return instance, cb.solve(instance.problem, instance.train)


def test_the_decision_is_that_of_exact_models(solved):
    instance, solution = solved
    truth = instance.truth
    assert solution.converged, solution.result
    assert isinstance(solution.basis.basis, cb.Categorical)
    assert truth.objective(solution.x) <= truth.objective(truth.x) * (1 + 1e-8)
    np.testing.assert_allclose(solution.x["shared"], truth.x["shared"], atol=1e-3)
    np.testing.assert_allclose(solution.x["log_pull"], truth.x["log_pull"], atol=1e-3)


def test_models_are_those_of_least_squares(solved):
    """Ridge regression as least squares on rows and a pull, by NumPy, for each client from its rows."""
    instance, solution = solved
    local, pull = instance.train.lower, np.exp(float(solution.x["log_pull"]))
    shared = np.asarray(solution.x["shared"], float)
    for name in instance.truth.names:
        own = np.asarray(local.xi) == name
        z, t = (np.asarray(local.eta[key], float)[own] for key in ("inputs", "target"))
        matrix = np.concatenate([z / np.sqrt(len(z)), np.sqrt(pull) * np.eye(len(shared))])
        right = np.concatenate([t / np.sqrt(len(z)), np.sqrt(pull) * shared])
        model = np.linalg.lstsq(matrix, right, rcond=None)[0]
        np.testing.assert_allclose(solution.policy(name), model, atol=1e-5)


def test_no_pull_of_a_grid_is_better(solved):
    instance, solution = solved
    truth, best = instance.truth, instance.truth.objective(solution.x)
    shared = np.asarray(solution.x["shared"], float)
    for log_pull in np.linspace(-6, 6, 49):
        for shift in (-0.1, 0.0, 0.1):
            assert truth.objective({"shared": shared + shift, "log_pull": log_pull}) >= best * (1 - 1e-8)


def test_personal_models_beat_both_extremes_on_endless_rows(solved):
    instance, solution = solved
    truth = instance.truth
    loss = lambda models: truth.true_loss(models).mean()
    learned = loss(np.asarray(solution.policy(np.array(truth.names))))
    assert learned < loss(truth.policy(solution.x | {"log_pull": -np.inf}))
    assert learned < loss(np.broadcast_to(solution.x["shared"], truth.models.shape))


def test_the_certificate_covers_the_objective(solved):
    """On fresh rows held out; the clients' models are exact for their own rows."""
    instance, solution = solved
    truth = instance.truth
    certificate = cb.certify(instance.problem, solution, instance.test)
    low, high = certificate.objective.interval
    assert low <= truth.true_loss(truth.policy(truth.x)).mean() <= high
    assert certificate.mode == "exact"


def test_the_picture(solved):
    matplotlib.use("agg")
    left, right = draw_federated(*solved).axes
    assert "rows" in left.get_xlabel()
    assert "pull" in right.get_xlabel()
