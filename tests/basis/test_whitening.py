"""Whitening: orthonormal over what was observed, there and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import Coordinates, whiten
from problems import AROUND, LINE

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("basis", "rank"),
    [(cb.Chebyshev(8), 8), (cb.Monomial(10), 10), (cb.Monomial(40), None), (cb.Fourier(40), None)],
    ids=repr,
)
def test_orthonormal_whitens_what_can_be_distinguished(basis, rank):
    xi = cb.Uniform(LINE).sample(jax.random.key(0), 2000)
    phi = cb.Orthonormal(basis).fit(LINE, xi)
    table = np.asarray(phi(xi))
    np.testing.assert_allclose(table.T @ table / len(xi), np.eye(phi.size), atol=1e-6)
    assert phi.size == rank if rank else 10 < phi.size < 40


def test_orthonormal_where_contexts_fill_half_the_box():
    xi = jax.random.uniform(jax.random.key(0), (2000,)) / 2
    phi = cb.Orthonormal(cb.Chebyshev(12)).fit(LINE, xi)
    table = np.asarray(phi(xi))
    np.testing.assert_allclose(table.T @ table / len(xi), np.eye(phi.size), atol=1e-6)


def test_orthonormal_respects_weights():
    xi = jnp.linspace(0.0, 1.0, 50)
    weights = jnp.exp(3 * xi)
    phi = cb.Orthonormal(cb.Legendre(5)).fit(LINE, xi, weights)
    gram = (phi(xi) * (weights / weights.sum())[:, None]).T @ phi(xi)
    np.testing.assert_allclose(gram, np.eye(5), atol=1e-12)


def test_half_period_fourier_is_a_frame():
    nodes, weights = cb.Uniform(AROUND).quadrature(200)
    for n, least in ((10, 3.527e-6), (20, 1.127e-13)):
        phi = cb.Fourier(n).fit(AROUND, nodes)
        smallest = float(whiten(phi(nodes), weights, 0.0).singular_values[-1]) ** 2
        np.testing.assert_allclose(smallest, least, rtol=1e-2)


def test_chebyshev_gram_matrix_is_better_than_the_lemma_says():
    nodes, weights = cb.Uniform(AROUND).quadrature(256)
    for n in (2, 5, 20, 100):
        phi = cb.Chebyshev(n).fit(AROUND, nodes)
        smallest = float(whiten(phi(nodes), weights, 0.0).singular_values[-1]) ** 2
        assert 0.6 < n * smallest < 1.0


def features(dependent):
    """Five columns, the last a copy of the first where they are `dependent`."""
    phi = RNG.normal(size=(40, 5))
    if dependent:
        phi[:, 4] = phi[:, 0]
    return phi


@pytest.mark.parametrize("dependent", [False, True])
def test_coordinates_there_and_back(dependent):
    """Against plain NumPy: the same policy at the observed contexts, and what they do not see stays as it is."""
    phi = features(dependent)
    factors = whiten(jnp.asarray(phi))
    assert factors.rank == (4 if dependent else 5)
    np.testing.assert_allclose(factors.singular_values, np.linalg.svd(phi / np.sqrt(40), compute_uv=False), atol=1e-12)
    start = {"a": jnp.asarray(RNG.normal(size=5)), "b": jnp.asarray(RNG.normal(size=(5, 2)))}
    there = Coordinates.of(factors, start)
    Z = there.enter(start)
    assert jax.tree.map(jnp.shape, Z) == {"a": (factors.rank,), "b": (factors.rank, 2)}
    T, inverse = np.asarray(factors.transform), np.asarray(factors.inverse)
    np.testing.assert_allclose(inverse @ T, np.eye(factors.rank), atol=1e-12)
    white = phi @ T
    np.testing.assert_allclose(white.T @ white / 40, np.eye(factors.rank), atol=1e-12)
    back = there.restore(Z)
    for name, W in start.items():
        np.testing.assert_allclose(Z[name], inverse @ np.asarray(W), atol=1e-12)
        np.testing.assert_allclose(back[name], W, atol=1e-12)
        np.testing.assert_allclose(there.direction(Z)[name], T @ np.asarray(Z[name]), atol=1e-12)
        rest = np.asarray(there.rest[name])
        np.testing.assert_allclose(phi @ rest, 0, atol=1e-12)  # unseen by the observed contexts
        assert (np.abs(rest).max() > 1e-3) == dependent
    moved = jax.tree.map(lambda z: z + 1.0, Z)
    for name in start:
        wanted = white @ np.asarray(moved[name])
        np.testing.assert_allclose(phi @ np.asarray(there.restore(moved)[name]), wanted, atol=1e-12)
