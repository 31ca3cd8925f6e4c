"""Each family against an independent implementation of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
from numpy.polynomial import chebyshev, legendre, polynomial

import cobilevel as cb

UNIT = cb.Interval(-1.0, 1.0)


def fit(basis, domain, count=400, seed=0):
    xi = cb.Uniform(domain).sample(jax.random.key(seed), count)
    return basis.fit(domain, xi), xi


def near_the_ends():
    close = 10.0 ** -np.arange(1, 17)
    return np.unique(np.concatenate([np.linspace(-1, 1, 1001), 1 - close, close - 1]))


@pytest.mark.parametrize(
    ("family", "vander"),
    [(cb.Chebyshev, chebyshev.chebvander), (cb.Legendre, legendre.legvander), (cb.Monomial, polynomial.polyvander)],
)
def test_polynomials_agree_with_numpy_at_degree_50(family, vander):
    u = near_the_ends()
    phi, _ = fit(family(51), UNIT)
    assert np.max(np.abs(phi(u) - vander(u, 50))) < 1e-13


def test_chebyshev_is_right_and_not_only_like_numpy():
    u = near_the_ends()
    phi, _ = fit(cb.Chebyshev(51), UNIT)
    # cos(k arccos u) loses half the digits in arccos near the ends, but not in 2 arcsin(sqrt((1-u)/2))
    angle = 2 * np.arcsin(np.sqrt((1 - np.abs(u)) / 2))
    truth = np.cos(np.arange(51) * angle[:, None]) * np.where(u < 0, -1.0, 1.0)[:, None] ** np.arange(51)
    assert np.max(np.abs(phi(u) - truth)) < 1e-12


def test_derivatives_of_features():
    phi, _ = fit(cb.Chebyshev(20), cb.Interval(0.0, 4.0))
    slope = jax.vmap(jax.jacfwd(phi))(jnp.array([0.0, 1.3, 4.0]))
    u = np.array([-1.0, -0.35, 1.0])
    exact = np.stack([chebyshev.chebval(u, chebyshev.chebder(np.eye(20)[k])) / 2 for k in range(20)], axis=1)
    np.testing.assert_allclose(slope, exact, rtol=1e-11, atol=1e-11)


def test_fourier_is_half_a_period_by_default():
    phi, xi = fit(cb.Fourier(5), cb.Interval(0.0, 1.0))
    u = 2 * np.asarray(xi) - 1
    waves = [np.ones_like(u), np.sin(np.pi * u / 2), np.cos(np.pi * u / 2), np.sin(np.pi * u), np.cos(np.pi * u)]
    np.testing.assert_allclose(phi(xi), np.stack(waves, 1), atol=1e-14)
    periodic, _ = fit(cb.Fourier(5, period=1.0), cb.Interval(0.0, 1.0))
    np.testing.assert_allclose(periodic(jnp.array(0.0)), periodic(jnp.array(1.0)), atol=1e-14)


def test_partition_is_one_hot_with_both_ends_inside():
    phi, _ = fit(cb.Partition(4), cb.Interval(0.0, 2.0))
    cells = np.argmax(phi(np.array([0.0, 0.49, 0.5, 1.0, 1.99, 2.0])), axis=1)
    assert cells.tolist() == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(("n", "degree"), [(8, 3), (5, 2), (4, 3), (6, 1), (3, 0)])
def test_bsplines_agree_with_scipy(n, degree):
    phi, _ = fit(cb.BSpline(n, degree=degree), UNIT)
    u = np.linspace(-1, 1, 201)[:-1]
    knots = np.concatenate([-np.ones(degree), np.linspace(-1, 1, n - degree + 1), np.ones(degree)])
    exact = scipy.interpolate.BSpline.design_matrix(u, knots, degree).toarray()
    np.testing.assert_allclose(phi(u), exact, atol=1e-14)


def test_products_in_two_dimensions():
    domain = cb.Box([-1.0, -1.0], [1.0, 1.0])
    phi, xi = fit(cb.Chebyshev(4, index=cb.TotalDegree()), domain)
    u, v = (chebyshev.chebvander(np.asarray(xi)[:, j], 3) for j in range(2))
    table = cb.TotalDegree().table(4, 2)
    np.testing.assert_allclose(phi(xi), np.stack([u[:, a] * v[:, b] for a, b in table], axis=1), atol=1e-13)


def test_categorical():
    domain = cb.Finite([10.0, 20.0, 40.0])
    phi = cb.Categorical().fit(domain, jnp.asarray(domain.values))
    assert phi(jnp.array([40.0, 10.0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    whole = cb.Finite([3, 5])
    assert cb.Categorical().fit(whole, jnp.array([3, 5]))(jnp.array([5])).tolist() == [[0, 1]]
