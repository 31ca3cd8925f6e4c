"""Bases with a copy on each piece of an interval, stated by a domain or by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import Axes, basis_of, by_component, piece_of, richer_basis

DAY = cb.Interval(0, 24, breaks=(7, 10))
HOURS = np.linspace(0, 24, 200)
OWN = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), jnp.abs(xi)]), 2)
BASES = [
    cb.Chebyshev(4), cb.Fourier(5), cb.BSpline(4), cb.Partition(3), OWN, cb.Orthonormal(cb.Legendre(3)),
    cb.Union([cb.Chebyshev(2), cb.Partition(2)]),
]  # fmt: skip


@pytest.mark.parametrize("basis", BASES, ids=repr)
def test_every_basis_has_a_copy_on_each_piece(basis):
    fitted = by_component(basis, DAY).fit(DAY, HOURS)
    whole = basis.fit(cb.Interval(0, 24), HOURS)
    assert fitted.size == 3 * whole.size
    np.testing.assert_allclose(fitted(HOURS) @ fitted.constant, 1, atol=1e-5)
    richer = richer_basis(basis, DAY, fitted.size, 60).fit(DAY, HOURS)
    phi, more = np.asarray(fitted(HOURS)), np.asarray(richer(HOURS))
    assert richer.size > fitted.size
    np.testing.assert_allclose(more @ np.linalg.lstsq(more, phi, rcond=None)[0], phi, atol=1e-3)


def test_pieces_meet_in_a_jump_also_in_a_program():
    fitted = by_component(cb.Chebyshev(2), DAY).fit(DAY, HOURS)
    before, at = fitted(np.array([7 - 1e-6, 7.0]))
    np.testing.assert_allclose(before, [1, 0, 0, 1, 0, 0], atol=1e-5)
    assert at.tolist() == [0, 1, 0, 0, -1, 0]
    np.testing.assert_allclose(jax.jit(fitted)(HOURS), fitted(HOURS), atol=1e-6)
    assert np.isnan(fitted(np.array(25.0))).all()
    again = by_component(cb.Piecewise(cb.Chebyshev(2), (12,)), DAY)
    assert again.breaks == (7, 10, 12)
    assert by_component(again, DAY) == again


def test_coordinates_grow_by_degree_on_all_pieces():
    axes = Axes.of(DAY)
    assert [len(axes.up_to(k)) for k in range(4)] == [1, 6, 9, 12]
    table = axes.table(axes.places(DAY, HOURS), axes.up_to(2))
    phi = np.asarray(basis_of(axes.up_to(2), DAY).basis.evaluate(DAY, HOURS))
    assert np.linalg.matrix_rank(table) == np.linalg.matrix_rank(np.concatenate([table, phi], axis=1)) == 9


def test_a_part_of_mixed_contexts():
    domain, rng = cb.Mixed(hour=DAY, day=cb.Finite(["mon", "sun"])), np.random.default_rng(0)
    xi = np.stack([rng.uniform(0, 24, 300), rng.integers(0, 2, 300)], axis=1)
    fitted = by_component(cb.Chebyshev(2), domain).fit(domain, xi)
    assert fitted.size == 12
    np.testing.assert_allclose(fitted.at(xi) @ fitted.constant, 1, atol=1e-5)
    given = by_component(cb.Components(hour=cb.BSpline(4), day=cb.Categorical(), coupling=cb.Additive()), domain)
    assert given.fit(domain, xi).size == 1 + 11 + 1
    assert len(np.unique(piece_of(given, domain, xi))) == 3
    assert piece_of(cb.Chebyshev(3), cb.Interval(0, 24), HOURS) is None


def test_what_is_refused():
    with pytest.raises(TypeError, match="not learned"):
        cb.Piecewise(cb.Snapshot(3), (7,))
    with pytest.raises(TypeError, match="needs an Interval"):
        cb.Piecewise(cb.Chebyshev(3), (7,)).fit(cb.Periodic(0, 24), HOURS)
    with pytest.raises(ValueError, match="breaks outside"):
        cb.Piecewise(cb.Chebyshev(3), (30,)).fit(cb.Interval(0, 24), HOURS)
