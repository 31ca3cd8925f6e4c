"""Decay of coefficients and kinks, from functions whose singularities are known."""

import numpy as np
import pytest

from cobilevel.diagnosis.decay import find_kinks, find_noisy_kinks, from_coefficients, from_values, points, transform
from problems import bernstein

EPS = np.finfo(float).eps


def decay_of(function):
    return from_values(lambda u: function(u)[:, None], EPS)


ANALYTIC = {
    "Runge": (lambda u: 1 / (1 + 25 * u**2), 0.2j),
    "pair of poles": (lambda u: 1 / (1 + 4 * (u - 0.3) ** 2), 0.3 + 0.5j),
    "tanh": (lambda u: np.tanh(5 * u), np.pi / 10 * 1j),
    "logarithm": (lambda u: np.log(1.2 - u), 1.2),
    "double pole": (lambda u: 1 / (1.3 - u) ** 2, 1.3),
    "small pole next to an exponential": (lambda u: np.exp(u) + 0.01 / (1.1 - u), 1.1),
    "smoothed kink": (lambda u: np.log1p(np.exp(30 * (u - 0.2))) / 30, 0.2 + np.pi / 30 * 1j),
    **{f"pole {a}": (lambda u, a=a: 1 / (a - u), a) for a in (1.05, 1.2, 1.5, 2, 3)},
    **{f"root {a}": (lambda u, a=a: np.sqrt(a - u), a) for a in (1.05, 1.2, 1.5, 2, 3)},
}


@pytest.mark.parametrize("name", ANALYTIC)
def test_rates_of_analytic_functions(name):
    function, singularity = ANALYTIC[name]
    decay, _, _ = decay_of(function)
    assert decay.kind == "geometric"
    assert decay.resolved
    assert abs(decay.rho / bernstein(singularity) - 1) < 0.05
    assert decay.plateau < 1e-14 * decay.coefficients.max()


def test_entire_functions_polynomials_and_constants():
    for function in (np.exp, lambda u: np.cos(20 * u), lambda u: np.exp(-25 * u**2)):
        decay, _, _ = decay_of(function)
        assert decay.kind == "geometric"
        assert decay.entire
    for function, degree in (
        (lambda u: u**3 - u, 3),
        (lambda u: u**20, 20),
        (lambda u: 0 * u + 2, 0),
        (lambda u: 0 * u, 0),
    ):
        decay, _, _ = decay_of(function)
        assert (decay.kind, decay.length) == ("finite", degree + 1)
    spike, _, _ = decay_of(lambda u: 1 / (1 + 1e6 * (u - 0.1) ** 2))
    assert spike.kind == "unresolved"


@pytest.mark.parametrize("name", ["Runge", "root 1.05", "small pole next to an exponential", "exponential", "kink"])
@pytest.mark.parametrize("accuracy", [1e-2, 1e-4, 1e-8])
def test_predicted_sizes_reach_their_accuracy(name, accuracy):
    """With that many terms of the series; and with two thirds of them it is missed."""
    more = {"exponential": (np.exp, None), "kink": (lambda u: np.maximum(u + 0.4, 0) ** 2, None)}
    function = (ANALYTIC | more)[name][0]
    decay, _, _ = decay_of(function)
    series = transform(function(points(4097))[:, None])[:, 0]
    u = np.linspace(-1, 1, 4001)
    error = lambda n: np.sqrt(np.mean((np.polynomial.chebyshev.chebval(u, series[:n]) - function(u)) ** 2)) / decay.size
    n = decay.predict(accuracy)
    assert error(n) < 1.5 * accuracy
    assert error(max(1, 2 * n // 3)) > accuracy


KINKS = {
    "modulus": (lambda u, t: np.abs(u - t), 1, 2),
    "hinge next to a pole": (lambda u, t: np.maximum(u - t, 0) + 1 / (1.3 - u), 1, 2),
    "squared hinge": (lambda u, t: 3 * np.maximum(u - t, 0) ** 2 + np.exp(u), 2, 3),
    "jump": (lambda u, t: np.sign(u - t) + np.sin(5 * u), 0, 1),
}


@pytest.mark.parametrize("place", [-0.61, 0.13, 0.82])
@pytest.mark.parametrize("name", KINKS)
def test_kinks_are_located(name, place):
    function, power, order = KINKS[name]
    decay, u, values = decay_of(lambda u: function(u, place))
    assert decay.kind == "algebraic"
    assert abs(decay.order - order) < 0.2
    kink = find_kinks(u, values)[0]
    assert abs(kink.location - place) < 0.004
    assert kink.power == power


def test_the_stronger_of_two_kinks_comes_first():
    _, u, values = decay_of(lambda u: np.abs(u + 0.6) + 0.5 * np.abs(u - 0.37) + np.sin(8 * u))
    np.testing.assert_allclose([kink.location for kink in find_kinks(u, values)], [-0.6, 0.37], atol=1e-3)


def noisy_decay(function, count, noise, seed):
    """The decay seen through noisy samples, by plain regression on orthonormal polynomials."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1, 1, count)
    z = function(u) + noise * rng.normal(size=count)
    n = min(64, count // 8)
    phi = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, n - 1))[0] * np.sqrt(count)
    a = phi.T @ z / count
    spread = np.sqrt(np.sum((z - phi @ a) ** 2) / (count - n))
    kinks = find_noisy_kinks(u, z[:, None] / spread, np.ones(count), n)
    scale = np.where(np.arange(n) > 0, np.sqrt(2), 1)
    return from_coefficients(np.abs(a) * scale, np.full(n, spread / np.sqrt(count)) * scale, 1.0, kinks)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "noise"), [("modulus", 0.1), ("modulus", 0.3), ("jump", 0.3)])
def test_kinks_are_located_through_noise(name, noise, seed):
    decay = noisy_decay(lambda u: KINKS[name][0](u, 0.3), 4000, noise, seed)
    assert decay.kind == "algebraic"
    assert abs(decay.kinks[0].location - 0.3) < 0.04  # 2% of the interval
    assert decay.kinks[0].power == KINKS[name][1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["pair of poles", "pole 1.05", "pole 1.2"])
def test_rates_are_seen_through_noise(name, seed):
    function, singularity = ANALYTIC[name]
    decay = noisy_decay(function, 4000, 0.1, seed)
    assert decay.kind == "geometric"
    assert abs(decay.rho / bernstein(singularity) - 1) < 0.1
    assert abs(decay.plateau / (0.1 * np.sqrt(2 / 4000)) - 1) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_noise_alone_shows_nothing(seed):
    nothing = noisy_decay(lambda u: 0 * u, 2000, 0.3, seed)
    assert (nothing.kind, nothing.length, nothing.kinks) == ("noise", 1, ())
    line = noisy_decay(lambda u: u, 2000, 0.3, seed)
    assert (line.length, line.kinks) == (2, ())


def test_an_accuracy_must_be_positive():
    with pytest.raises(ValueError, match="accuracy must be"):
        decay_of(np.exp)[0].predict(0.0)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_what_is_not_resolved_has_a_level_in_the_units_of_the_function(scale):
    """A spike finer than any grid: where coefficients do not fall, the level is their root mean square."""
    spike = lambda u: 1 / (1 + 1e6 * (u - 0.1) ** 2)
    plain, scaled = decay_of(spike)[0], decay_of(lambda u: scale * spike(u))[0]
    half = plain.coefficients[len(plain.coefficients) // 2 :]
    assert plain.kind == scaled.kind == "unresolved"
    assert plain.plateau == pytest.approx(np.sqrt(np.mean(half**2)))
    assert scaled.plateau == pytest.approx(scale * plain.plateau)
