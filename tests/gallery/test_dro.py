"""Robust regression with side information: defaults against quadrature, and the adversary against brute force."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import cobilevel as cb
from cobilevel.gallery.dro import draw_dro, dro, least_squares


@pytest.fixture(scope="module")
def solved():
    instance = dro()
    return instance, cb.solve(instance.problem, instance.train)


def test_within_a_hundredth_of_the_best(solved):
    instance, solution = solved
    truth = instance.truth
    assert solution.converged, solution.result
    best = truth.objective(truth.x)
    assert best <= truth.objective(solution.x) <= 1.01 * best
    certificate = cb.certify(instance.problem, solution, instance.test)
    assert certificate.objective.low <= truth.objective(solution.x) <= certificate.objective.high
    assert certificate.regret.total.high < 0.05 * best
    assert not solution.uncertainty.remarks  # on instruments: the policy is no conditional mean


def outcomes(truth, x, rain):
    """Losses at one rain and their probabilities: distances and noise by Gauss rules, roads blocked or not."""
    u, by_distance = np.polynomial.legendre.leggauss(40)
    noise, by_noise = np.polynomial.hermite_e.hermegauss(60)
    distance, blocked = (u + 1) / 2, np.arange(2)
    grid = np.meshgrid(distance, blocked, noise, indexing="ij")
    time = truth.mean(rain, grid[0], grid[1]) + truth.noise * grid[2]
    share = np.array([1 - truth.share(rain), truth.share(rain)])
    chance = np.einsum("d,k,e->dke", by_distance / 2, share, by_noise / by_noise.sum()).ravel()
    return ((time - x[0] - x[1] * grid[0] - x[2] * rain) ** 2).ravel(), chance


@pytest.mark.parametrize("rain", [0.0, 1.7, 5.0])
def test_the_adversary_is_exact(solved, rain):
    """Any weights give a lower bound on the worst case, any y an upper one: here they meet, at the closed form."""
    truth, price = solved[0].truth, solved[0].truth.price
    loss, chance = outcomes(truth, truth.x, rain)
    above = minimize_scalar(
        lambda y: chance @ (y + price * np.expm1((loss - y) / price)), bounds=(0, 3), method="bounded"
    )
    weights = np.exp(loss / price)
    weights /= chance @ weights
    below = chance @ (weights * loss - price * weights * np.log(weights))
    assert below == pytest.approx(above.fun, rel=1e-8)
    assert truth.policy(truth.x, np.array([rain]))[0] == pytest.approx(below, rel=1e-8)


def test_robust_beats_plain_under_shift(solved):
    """And pays for it where nothing shifts. Side information pays too."""
    instance, solution = solved
    truth, plain = instance.truth, least_squares(instance.train)
    blind = cb.solve(instance.problem, instance.train, basis=cb.Chebyshev(1))  # one adversary for all rains
    assert truth.error(plain, 1) < truth.error(solution.x, 1) < 1.2 * truth.error(plain, 1)
    for times in (2, 3):
        assert truth.error(solution.x, times) < truth.error(blind.x, times) < truth.error(plain, times)
    assert truth.error(solution.x, 3) < 0.85 * truth.error(plain, 3)


def test_too_low_a_price_is_refused():
    with pytest.raises(ValueError, match="above 4 noise"):
        dro(price=0.1)


def test_picture(solved):
    figure = draw_dro(*solved)
    assert [axis.get_xlabel() != "" for axis in figure.axes] == [True, True]
    plt.close(figure)
