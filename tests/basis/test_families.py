import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
from numpy.polynomial import chebyshev, legendre, polynomial

import cobilevel as cb
from cobilevel.basis.base import combine
from cobilevel.basis.whitening import whiten

UNIT = cb.Interval(-1.0, 1.0)
EVERY = [
    cb.Chebyshev(6), cb.Legendre(6), cb.Monomial(6), cb.Fourier(6), cb.Fourier(5, period=1.0), cb.Partition(6),
    cb.BSpline(6), cb.BSpline(2), cb.BSpline(7, degree=1), cb.Orthonormal(cb.Chebyshev(6)),
    cb.Features(lambda xi: jnp.stack([jnp.exp(xi), jnp.ones_like(xi), xi**2]), 3),
]  # fmt: skip


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


@pytest.mark.parametrize("basis", EVERY, ids=repr)
@pytest.mark.parametrize("domain", [cb.Interval(0.5, 2.0), cb.Box([0.0, -1.0], [2.0, 3.0])], ids=["line", "plane"])
def test_every_basis_holds_the_constant_batches_and_knows_its_domain(basis, domain):
    if isinstance(basis, cb.Features) and domain.shape:
        basis = cb.Features(lambda xi: jnp.stack([jnp.exp(xi[0]), jnp.ones(()), xi[1]]), 3)
    phi, xi = fit(basis, domain)
    features = phi(xi)
    assert features.shape == (400, phi.size)
    np.testing.assert_allclose(combine(features, phi.constant), 1, atol=1e-10)
    grid = xi[:12].reshape(3, 4, *domain.shape)
    np.testing.assert_allclose(phi(grid).reshape(12, -1), features[:12], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(jax.vmap(phi)(xi[:12]), features[:12], rtol=1e-13, atol=1e-13)
    assert np.all(np.isnan(phi(xi[:1] + 100.0)))


def test_fourier_is_half_a_period_by_default():
    phi, xi = fit(cb.Fourier(5), cb.Interval(0.0, 1.0))
    u = 2 * np.asarray(xi) - 1
    waves = [np.ones_like(u), np.sin(np.pi * u / 2), np.cos(np.pi * u / 2), np.sin(np.pi * u), np.cos(np.pi * u)]
    np.testing.assert_allclose(phi(xi), np.stack(waves, 1), atol=1e-14)
    periodic, _ = fit(cb.Fourier(5, period=1.0), cb.Interval(0.0, 1.0))
    np.testing.assert_allclose(periodic(jnp.array(0.0)), periodic(jnp.array(1.0)), atol=1e-14)


def test_half_period_fourier_is_a_frame():
    nodes, weights = cb.Uniform(UNIT).quadrature(200)
    for n, least in ((10, 3.527e-6), (20, 1.127e-13)):
        phi = cb.Fourier(n).fit(UNIT, nodes)
        smallest = float(whiten(phi(nodes), weights, 0.0).singular_values[-1]) ** 2
        np.testing.assert_allclose(smallest, least, rtol=1e-2)


def test_chebyshev_gram_matrix_is_better_than_the_lemma_says():
    nodes, weights = cb.Uniform(UNIT).quadrature(256)
    for n in (2, 5, 20, 100):
        phi = cb.Chebyshev(n).fit(UNIT, nodes)
        smallest = float(whiten(phi(nodes), weights, 0.0).singular_values[-1]) ** 2
        assert 0.6 < n * smallest < 1.0


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


def test_index_sets():
    assert cb.Tensor().table(4, 3).shape == (64, 3)
    assert cb.TotalDegree().table(4, 3).shape == (20, 3)
    cross = {tuple(k) for k in cb.HyperbolicCross().table(4, 2)}
    assert cross == {(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (3, 0), (0, 3), (1, 1)}
    for index in (cb.Tensor(), cb.TotalDegree(), cb.HyperbolicCross()):
        assert index.table(5, 1).ravel().tolist() == [0, 1, 2, 3, 4]
        small, large = ({tuple(k) for k in index.table(n, 3)} for n in (3, 5))
        assert small < large
    order = cb.TotalDegree().table(5, 2).sum(axis=1)
    assert np.all(np.diff(order) >= 0)


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


@pytest.mark.parametrize(
    ("basis", "rank"),
    [(cb.Chebyshev(8), 8), (cb.Monomial(10), 10), (cb.Monomial(40), None), (cb.Fourier(40), None)],
    ids=repr,
)
def test_orthonormal_whitens_what_can_be_told_apart(basis, rank):
    phi, xi = fit(cb.Orthonormal(basis), cb.Interval(0.0, 1.0), 2000)
    gram = np.asarray(phi(xi)).T @ np.asarray(phi(xi)) / len(xi)
    np.testing.assert_allclose(gram, np.eye(phi.size), atol=1e-6)
    assert phi.size == rank if rank else 10 < phi.size < 40


def test_orthonormal_where_contexts_fill_half_the_box():
    domain = cb.Interval(0.0, 1.0)
    xi = jax.random.uniform(jax.random.key(0), (2000,)) / 2
    phi = cb.Orthonormal(cb.Chebyshev(12)).fit(domain, xi)
    np.testing.assert_allclose(np.asarray(phi(xi)).T @ phi(xi) / len(xi), np.eye(phi.size), atol=1e-6)


def test_orthonormal_respects_weights():
    xi = jnp.linspace(0.0, 1.0, 50)
    weights = jnp.exp(3 * xi)
    phi = cb.Orthonormal(cb.Legendre(5)).fit(cb.Interval(0.0, 1.0), xi, weights)
    gram = (phi(xi) * (weights / weights.sum())[:, None]).T @ phi(xi)
    np.testing.assert_allclose(gram, np.eye(5), atol=1e-12)


@pytest.mark.parametrize("dimension", [2, 3])
def test_total_degree_beats_tensor_on_an_isotropic_function(dimension):
    """The fewest functions with which each index set fits ``exp(xi_1 + ... + xi_d)`` to 1e-6, as a policy."""
    rng = np.random.default_rng(0)
    domain = cb.Box(-np.ones(dimension), np.ones(dimension))
    xi, fresh = jnp.asarray(rng.uniform(-1, 1, (3000, dimension))), jnp.asarray(rng.uniform(-1, 1, (500, dimension)))
    truth = lambda points: np.exp(np.asarray(points).sum(axis=1))

    def fewest(index):
        for n in range(7, 13):
            basis = cb.Chebyshev(n, index=index).fit(domain, xi)
            W = np.linalg.lstsq(np.asarray(basis(xi)), truth(xi), rcond=None)[0]
            if np.max(np.abs(np.asarray(basis(fresh)) @ W - truth(fresh))) < 1e-6 * np.max(truth(fresh)):
                return basis.size
        return np.inf

    assert fewest(cb.TotalDegree()) < fewest(cb.Tensor()) < np.inf
