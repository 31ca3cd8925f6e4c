"""What responses say about a policy of many coordinates, against truths whose shares of variance are known."""

import numpy as np
import pytest

from cobilevel import KernelFeatures
from cobilevel.covariates import Responses, structure_of
from cobilevel.covariates.fits import nested_errors
from cobilevel.covariates.regression import (
    along_directions,
    fit_directions,
    fit_kernel,
    kernel_functions,
    refined,
    tune_directions,
    tune_kernel,
)

N, D = 3000, 6
RNG = np.random.default_rng(0)
U = RNG.uniform(-1, 1, (N, D))
AXES = np.linalg.qr(RNG.normal(size=(D, 2)))[0]
NOISE = 0.3 * RNG.normal(size=(N, 1))


def responses(values, noise=NOISE):
    return Responses(U, values.reshape(N, -1) + noise, np.full(N, 1 / N))


ALONG = np.sin(2 * U @ AXES[:, 0]) + (U @ AXES[:, 1]) ** 2
ADDITIVE = U[:, 0] + 3 * U[:, 1] ** 2 + np.sin(3 * U[:, 2])


def test_responses_measure_the_lower_objective():
    """Mean squares of responses are those of ``y`` in the metric of the curvature."""
    A = np.array([[2.0, 0.5], [0.5, 1.0]])
    t = RNG.normal(size=(50, 2))
    found = Responses.of(np.zeros((50, 3)), t, A, np.full(50, 0.02))
    assert np.allclose(np.sum(found.t**2, axis=1), np.einsum("ni,ij,nj->n", t, A, t))


def test_weights_are_those_of_repeated_rows():
    twice = np.concatenate([U[:200], U[:100]])
    table = lambda u: np.concatenate([np.ones((len(u), 1)), u], axis=1)
    once = Responses(U[:200], ALONG[:200, None], np.repeat([2 / 300, 1 / 300], 100))
    many = Responses(twice, np.concatenate([ALONG[:200], ALONG[:100]])[:, None], np.full(300, 1 / 300))
    held = Responses(U[200:250], ALONG[200:250, None], np.full(50, 0.02))
    errors = [nested_errors(rows, held, (table(rows.u), table(held.u)), [2, 7]) for rows in (once, many)]
    assert np.allclose(*errors)


def test_gradients_of_the_kernel_fit_show_the_directions():
    """The outer product of gradients has the range of the true directions; by coordinates, its diagonal says which."""
    _, outer = fit_kernel(responses(ALONG), KernelFeatures(8))
    found = np.linalg.eigh(outer)[1][:, -2:]
    assert np.linalg.svd(found.T @ AXES)[1].min() > 0.99
    (recipe,), _ = fit_kernel(responses(ADDITIVE), KernelFeatures(8, "matern"), ("coordinates",))
    sizes = recipe.scale * np.diag(recipe.axes)
    assert sizes[:3].min() > 5 * sizes[3:].max()
    assert np.isclose(np.sum(sizes**2), D)


@pytest.mark.parametrize("kernel", ["gaussian", "matern"])
def test_gradients_of_the_kernel_fit_are_those_of_a_known_function(kernel):
    """``E[grad h grad h^T]`` of ``h = u_0 + u_1^2``, whose diagonal is 1 and 4/3; without noise."""
    _, outer = fit_kernel(responses(U[:, 0] + U[:, 1] ** 2, 0.0), KernelFeatures(8, kernel))
    assert np.abs(outer - np.diag([1, 4 / 3, 0, 0, 0, 0])).max() < 0.1


def test_directions_are_refined_to_the_parametric_rate():
    """From directions 0.3 off, to an error of order ``sqrt(d / n)`` times noise over slope."""
    rough = AXES + 0.3 * RNG.normal(size=AXES.shape)
    found = refined(responses(ALONG), along_directions(rough, 5))
    missed = np.sin(np.arccos(np.clip(np.linalg.svd(np.linalg.qr(found.axes)[0].T @ AXES)[1], 0, 1)))
    assert missed.max() < 3 * 0.3 * np.sqrt(D / N)
    z = found.projected(U)
    assert np.abs(z).max() == 1
    assert np.mean(np.abs(z) < 1) > 0.99


def test_directions_of_several_components():
    """Two components of ``y``, each along a direction of its own."""
    rows = responses(np.stack([np.sin(2 * U @ AXES[:, 0]), np.cos(2 * U @ AXES[:, 1])], axis=1))
    outer = fit_kernel(rows, KernelFeatures(8))[1]
    *_, found = fit_directions(rows, outer, 2, (2, 3, 5))
    assert np.linalg.svd(np.linalg.qr(found.axes)[0].T @ AXES)[1].min() > 0.999


def test_tuned_degree_and_directions():
    """A polynomial of degree 2 along one direction is found as such."""
    rows = responses((U @ AXES[:, 0]) ** 2)
    outer = fit_kernel(rows, KernelFeatures(8))[1]
    fitted, held = rows.to_tune(N)
    found, errors = tune_directions(fitted, held, outer, 100)
    assert found.axes.shape == (D, 1)
    assert abs(held.shares @ errors / 0.09 - 1) < 0.15  # the variance of the noise


def test_kernel_functions_come_smoothest_first():
    """Of a wide kernel, the first functions span the linear ones."""
    made = kernel_functions(KernelFeatures(D + 2, axes=np.eye(D) / 20), U, landmarks=200)
    table = made.on_cube(U)
    linear = np.concatenate([np.ones((N, 1)), U], axis=1)
    left = linear - table @ np.linalg.lstsq(table, linear, rcond=None)[0]
    assert np.abs(left).max() < 0.02


def test_tuned_kernel_takes_relevant_directions():
    tuned, error, _ = tune_kernel(responses(ALONG), (8, 16, 32, 64, 128), KernelFeatures(128))
    assert tuned.metric == "directions"
    assert 8 < tuned.n < 128
    assert error < 0.09 + 0.1 * np.var(ALONG)


def _shares(values, noise=NOISE):
    return structure_of(responses(values, noise), 375)


def test_shares_of_a_sum_of_known_parts():
    """``u_0 + c u_1 u_2`` with a third of its variance in the product: Var u = 1/3, Var u u' = 1/9."""
    found = _shares(U[:, 0] + np.sqrt(1.5) * U[:, 1] * U[:, 2])
    share, error = found.explained["additive"]
    assert abs(share - 2 / 3) < max(3 * error, 0.05)
    assert found.explained["pairs"][0] > 0.99
    assert found.functions["pairs"] == 1 + D * found.degree + D * (D - 1) // 2


def test_shares_along_directions():
    found = _shares(ALONG)
    assert found.directions.k == 2
    assert found.explained["directions"][0] > 0.99
    assert found.explained["additive"][0] < 0.9
    assert "2 directions 100%" in str(found)


def test_shares_of_all_coordinates_together():
    """``prod_j u_j`` of four coordinates has no additive part and no pairs."""
    found = _shares(10 * np.prod(U[:, :4], axis=1), NOISE / 3)
    for share, error in (found.explained["additive"], found.explained["pairs"]):
        assert share < max(3 * error, 0.05)
    assert found.explained["all"][0] == 1


def test_noise_alone_varies_with_nothing():
    found = _shares(np.zeros(N))
    assert not found.varies
    assert "stands out" in str(found)
