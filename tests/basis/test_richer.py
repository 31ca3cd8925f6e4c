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


def test_richer_than_additive_are_functions_of_higher_degree_and_products():
    cube = cb.Box([0.0] * 3, [1.0] * 3)
    few = cb.Chebyshev(5, index=cb.Additive())
    members = np.array(richer_basis(few, cube, 13, 100).index.members)
    assert len(members) == 29  # about twice 13
    together = np.sum(members > 0, axis=1)
    assert {tuple(k) for k in members[together == 2]} >= {(1, 1, 0), (1, 0, 1), (0, 1, 1)}
    assert members[together == 1].max() > 4
    assert {tuple(k) for k in few.index.table(5, 3)} <= {tuple(k) for k in members}
    pairs = richer_basis(cb.Chebyshev(3, index=cb.Interactions(2)), cube, 19, 100)
    assert (1, 1, 1) in pairs.index.members
    assert len(richer_basis(few, cube, 13, 14).index.members) == 14
    days = cb.Mixed(day=cb.Finite(["a", "b", "c"]), hour=cb.Interval(0.0, 1.0))
    mixed = cb.Components({"day": cb.Categorical(), "hour": cb.Chebyshev(3)}, coupling=cb.Additive())
    assert (1, 1) in richer_basis(mixed, days, 5, 100).coupling.members


def test_unions():
    xi = np.linspace(0, 1, 40)
    both = cb.Union([cb.Chebyshev(3), cb.Partition(2)]).fit(LINE, xi)
    assert both(xi).shape == (40, 5)
    assert np.asarray(both(xi) @ both.constant) == pytest.approx(np.ones(40))
    with pytest.raises(TypeError, match="Union takes bases"):
        cb.Union([3])
