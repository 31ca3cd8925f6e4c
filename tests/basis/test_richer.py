"""Richer bases around given ones, and unions."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import Axes, richer_basis
from problems import LINE


def test_neighbours_and_richer_bases():
    axes, corner = Axes.of(cb.Box([0.0, 0.0], [1.0, 1.0])), np.array([[0, 0], [1, 0], [0, 1]])
    assert {tuple(k) for k in axes.neighbours(corner)} == {(2, 0), (1, 1), (0, 2)}
    assert {tuple(k) for k in axes.neighbours(np.array([[0, 0], [1, 0]]))} == {(2, 0), (0, 1)}
    assert repr(richer_basis(cb.Chebyshev(5), LINE, 5, 100)) == "Chebyshev(10)"
    assert repr(richer_basis(cb.Orthonormal(cb.Partition(5)), LINE, 5, 100)) == "Orthonormal(Partition(10))"
    assert richer_basis(cb.Partition(5), LINE, 5, 9) is None  # only halved cells hold the span
    assert repr(richer_basis(cb.Chebyshev(5), LINE, 5, 7)) == "Chebyshev(7)"
    own = cb.Features(lambda xi: jnp.stack([jnp.ones(()), xi]), 2)
    assert richer_basis(own, LINE, 2, 10).basis.parts[0] is own
    assert richer_basis(cb.Categorical(), cb.Finite([0.0, 1.0]), 2, 10) is None


def test_unions():
    xi = np.linspace(0, 1, 40)
    both = cb.Union([cb.Chebyshev(3), cb.Partition(2)]).fit(LINE, xi)
    assert both(xi).shape == (40, 5)
    assert np.asarray(both(xi) @ both.constant) == pytest.approx(np.ones(40))
    with pytest.raises(TypeError, match="Union takes bases"):
        cb.Union([3])
