"""What every basis must hold: the constant, any batch of contexts, NaN outside, a recipe that can be written down."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import basis_from_json, basis_to_json, combine, richer_basis, same_recipe

EVERY = [
    cb.Chebyshev(6), cb.Legendre(6), cb.Monomial(6), cb.Fourier(6), cb.Fourier(5, period=1.0), cb.Partition(6),
    cb.BSpline(6), cb.BSpline(2), cb.BSpline(7, degree=1), cb.Orthonormal(cb.Chebyshev(6)),
    cb.Features(lambda xi: jnp.stack([jnp.exp(xi), jnp.ones_like(xi), xi**2]), 3),
]  # fmt: skip
PLANE = cb.Features(lambda xi: jnp.stack([jnp.exp(xi[0]), jnp.ones(()), xi[1]]), 3)


@pytest.mark.parametrize("basis", EVERY, ids=repr)
@pytest.mark.parametrize("domain", [cb.Interval(0.5, 2.0), cb.Box([0.0, -1.0], [2.0, 3.0])], ids=["line", "plane"])
def test_every_basis_holds_the_constant_batches_and_knows_its_domain(basis, domain):
    if isinstance(basis, cb.Features) and domain.shape:
        basis = PLANE
    xi = cb.Uniform(domain).sample(jax.random.key(0), 400)
    phi = basis.fit(domain, xi)
    table = phi(jnp.concatenate([xi, xi[:8] + 100.0]))
    features, outside = table[:400], table[400:]
    assert features.shape == (400, phi.size)
    np.testing.assert_allclose(combine(features, phi.constant), 1, atol=1e-10)
    grid = xi[:12].reshape(3, 4, *domain.shape)
    np.testing.assert_allclose(phi(grid).reshape(12, -1), features[:12], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(jax.vmap(phi)(xi[:12]), features[:12], rtol=1e-13, atol=1e-13)
    assert np.all(np.isnan(outside))


@pytest.mark.parametrize("basis", EVERY[:-1], ids=repr)
def test_every_recipe_can_be_written_down_and_read_back(basis):
    back = basis_from_json(basis_to_json(basis))
    assert repr(back) == repr(basis)
    assert same_recipe(back, basis)
    assert not any(same_recipe(basis, other) for other in EVERY[:-1] if other is not basis)
    assert basis.learned
    assert basis.forgotten() is basis or same_recipe(basis.forgotten(), basis)


@pytest.mark.parametrize(
    "basis", [cb.Chebyshev(4), cb.Fourier(4), cb.Partition(4), cb.BSpline(6), cb.BSpline(5, degree=1)]
)
def test_richer_spans_hold_the_poorer(basis):
    domain = cb.Interval(0.0, 2.0)
    xi = np.linspace(0, 2, 300)
    poor = np.asarray(basis.fit(domain, xi)(xi))
    rich = np.asarray(richer_basis(basis, domain, poor.shape[1], 100).fit(domain, xi)(xi))
    inside = rich @ np.linalg.lstsq(rich, poor, rcond=None)[0]
    assert rich.shape[1] > poor.shape[1]
    assert np.abs(inside - poor).max() < 1e-10
