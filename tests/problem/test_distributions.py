"""Laws of contexts however narrow, against SciPy's truncated normal and against closed forms."""

import jax
import numpy as np
import pytest
from scipy.stats import truncnorm

import cobilevel as cb
from cobilevel.problem.distributions import _near_draw
from problems import LINE

NARROW_TO_WIDE = [1e-8, 1e-6, 1e-4, 5e-3, 0.1, 1.0, 30.0, 1e3]


def moments(law, n):
    ((_, nodes, weights),) = law.rules(n)
    assert np.all(weights >= 0)
    assert np.all((nodes >= 0) & (nodes <= 1))
    mean = float(weights[0] @ nodes[0])
    return mean, float(np.sqrt(weights[0] @ (nodes[0] - mean) ** 2))


def known_moments(mean, std):
    """By SciPy; of a wide law by an integral over the density, since SciPy loses digits there."""
    if std < 0.1:
        known = truncnorm(-mean / std, (1 - mean) / std, mean, std)
        return known.mean(), known.std()
    u, w = np.polynomial.legendre.leggauss(100)
    x = (u + 1) / 2
    w = w * np.exp(-(x - 2 * mean) * x / (2 * std**2))
    centre = w @ x / w.sum()
    return centre, np.sqrt(w @ (x - centre) ** 2 / w.sum())


@pytest.mark.parametrize("std", NARROW_TO_WIDE)
def test_quadrature_has_the_mean_and_spread_of_the_law(std):
    for mean in (0.0, 0.3, 1.0, -2 * std, 1 + 3 * std):
        known = known_moments(mean, std)
        for n in (2, 5, 64):  # 2 are enough for a Gauss rule
            np.testing.assert_allclose(moments(cb.TruncatedNormal(LINE, mean, std), n), known, rtol=1e-8)


def test_the_reported_narrow_law():
    nodes, weights = cb.TruncatedNormal(LINE, 0.3, 0.005).quadrature(64)
    mean = weights @ nodes
    np.testing.assert_allclose(mean, 0.3, rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(weights @ (nodes - mean) ** 2), 0.005, rtol=1e-12)
    assert np.all(np.isfinite(cb.TruncatedNormal(LINE, 0.3, 1e-6).quadrature(64)[1]))


@pytest.mark.parametrize("std", [1e-8, 1e-6, 1e-4])
def test_far_from_the_mean_the_law_is_exponential(std):
    # m standard deviations beyond the mean, the tail has mean and spread std / m, up to terms of 1 / m^2
    for outside in (-0.5, -2.0):
        rate = std**2 / -outside
        np.testing.assert_allclose(
            moments(cb.TruncatedNormal(LINE, outside, std), 6), rate, rtol=1e-8 + 3.1 * rate / -outside
        )


def test_a_wide_law_is_uniform():
    for n in (3, 12):
        nodes, weights = cb.TruncatedNormal(LINE, 0.2, 1e9).quadrature(n)
        uniform, shares = cb.Uniform(LINE).quadrature(n)
        np.testing.assert_allclose(nodes, uniform, atol=1e-13)
        np.testing.assert_allclose(weights, shares, atol=1e-13)


def test_draws_follow_the_law_wherever_its_mean_lies():
    # of a law, what lies below its own quantiles; beyond 8 standard deviations draws go by the shape of the tail
    box = cb.Box(np.zeros(7), np.ones(7))
    mean = np.array([0.3, 0.3, -0.6, -0.9, 1.85, -1.0, 0.5])
    std = np.array([0.2, 1e-6, 0.1, 0.1, 0.1, 0.01, 1e9])
    drawn = np.asarray(cb.TruncatedNormal(box, mean, std).sample(jax.random.key(0), 20_000))
    assert np.all((drawn >= 0) & (drawn <= 1))
    for k in range(6):
        known = truncnorm(-mean[k] / std[k], (1 - mean[k]) / std[k], mean[k], std[k])
        below = [np.mean(drawn[:, k] <= known.ppf(q)) for q in (0.1, 0.5, 0.9)]
        np.testing.assert_allclose(below, (0.1, 0.5, 0.9), atol=4 * 0.5 / np.sqrt(20_000))
    assert len(np.unique(drawn[:, 6])) > 19_000
    np.testing.assert_allclose(np.quantile(drawn[:, 6], [0.1, 0.5, 0.9]), (0.1, 0.5, 0.9), atol=0.015)


_NEAR = jax.jit(_near_draw)


@pytest.mark.parametrize(("m", "below", "above"), [(3e-3, 0.0, 1e-4), (0.0, -2e-4, 3e-4), (0.0, 2e-4, 3e-4)])
def test_draws_where_the_density_is_nearly_flat(m, below, above):
    """The inverse of the distribution function by Newton's method, to the digits that the expansion has left."""
    u, (nodes, weights) = np.linspace(0.01, 0.99, 9), np.polynomial.legendre.leggauss(20)
    density = lambda s: np.exp(-m * s - s**2 / 2)
    mass = lambda s: (s - below) / 2 * (density(below + np.outer((s - below) / 2, nodes + 1)) @ weights)
    s = below + (above - below) * u
    for _ in range(5):
        s = s - (mass(s) - u * mass(np.array([above]))) / density(s)
    drawn = _NEAR(u, m, below, above)
    slope = np.abs(m + below) * (above - below) / 8  # the largest share of the width that the slope moves a draw by
    assert np.abs(np.asarray(drawn) - s).max() < 1e-3 * max(slope, (above - below) ** 2 / 16) * (above - below)
