"""Bases of contexts of several kinds: what they span, what couplings keep, what is not seen."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import Axes, basis_from_json, basis_of, basis_to_json, by_component, combine, richer_basis
from cobilevel.problem import enter
from cobilevel.reduction import reduce_study
from cobilevel.study import Study

DAYS = ["mon", "tue", "wed", "thu"]
DOMAIN = cb.Mixed(weather=cb.Interval(0.0, 2.0), hour=cb.Periodic(0.0, 24.0), day=cb.Finite(DAYS))
PARTS = {"day": cb.Categorical(), "weather": cb.Chebyshev(4), "hour": cb.Fourier(3)}
RNG = np.random.default_rng(0)
ROWS = 600
COLUMNS = {"weather": RNG.uniform(0, 2, ROWS), "hour": RNG.uniform(0, 24, ROWS), "day": RNG.integers(0, 3, ROWS)}
XI = enter(DOMAIN, COLUMNS, data=True).values
DEGREES = list(product(range(4), (0, 1, 1), (0, 1, 1, 1)))  # of the weather, the hour and the day
COUPLINGS = {
    cb.Tensor(): 4 * 3 * 4,
    cb.Additive(): 1 + 3 + 2 + 3,
    cb.Interactions(2): 1 + (3 + 2 + 3) + (6 + 9 + 6),
    cb.Interactions(3): 48,
    cb.TotalDegree(): sum(a + b + c <= 3 for a, b, c in DEGREES),
    cb.HyperbolicCross(): sum((a + 1) * (b + 1) * (c + 1) <= 4 for a, b, c in DEGREES),
}  # fmt: skip


@pytest.mark.parametrize("coupling", COUPLINGS, ids=repr)
def test_each_coupling_keeps_its_products(coupling):
    """The number of functions by counting; the first is 1, and all are products of those of single parts."""
    basis = cb.Components(PARTS, coupling=coupling)
    fitted = basis.fit(DOMAIN, XI)
    phi = np.asarray(fitted(XI))
    assert phi.shape == (ROWS, COUPLINGS[coupling])
    np.testing.assert_allclose(combine(phi, fitted.constant), 1, atol=1e-12)
    full = np.asarray(cb.Components(PARTS).fit(DOMAIN, XI)(XI))
    inside = full @ np.linalg.lstsq(full, phi, rcond=None)[0]
    np.testing.assert_allclose(inside, phi, atol=1e-10)
    back = basis_from_json(basis_to_json(fitted.basis))
    np.testing.assert_array_equal(back.evaluate(DOMAIN, XI), fitted.basis.evaluate(DOMAIN, XI))
    assert repr(back) == repr(basis)


def test_tensor_and_additive_span_what_they_should():
    """By least squares: a product of all parts is in the tensor's span, and not in the sum of parts'; a sum in both."""
    wave, effect = np.cos(2 * np.pi * COLUMNS["hour"] / 24), np.array([1.0, -3.0, 0.5])[COLUMNS["day"]]
    alone, together = COLUMNS["weather"] ** 3 + wave + effect, COLUMNS["weather"] * wave * effect
    left = {}
    for coupling in (cb.Tensor(), cb.Additive()):
        phi = np.asarray(cb.Components(**PARTS, coupling=coupling).fit(DOMAIN, XI)(XI))
        for name, values in (("alone", alone), ("together", together)):
            rest = values - phi @ np.linalg.lstsq(phi, values, rcond=None)[0]
            left[type(coupling).__name__, name] = np.abs(rest).max()
    assert max(left["Tensor", "alone"], left["Tensor", "together"], left["Additive", "alone"]) < 1e-10
    assert left["Additive", "together"] > 0.1


def test_a_category_never_seen_has_no_effect():
    """Thursday is in the domain, not in the data: all contrasts vanish there, and have mean zero over the data."""
    fitted = cb.Components(PARTS, coupling=cb.Additive()).fit(DOMAIN, XI)
    thursday = np.asarray(fitted(enter(DOMAIN, COLUMNS | {"day": "thu"}, data=True).values))
    phi = np.asarray(fitted(XI))
    contrasts = np.flatnonzero(np.abs(phi).max(axis=0) * (np.abs(thursday).max(axis=0) == 0) > 0)
    assert len(contrasts) == 2
    np.testing.assert_allclose(phi[:, contrasts].mean(axis=0), 0, atol=1e-12)
    other = np.setdiff1d(np.arange(phi.shape[1]), contrasts)
    np.testing.assert_allclose(thursday[:, other], np.where(np.abs(phi[:, other]).max(axis=0) > 0, phi[:, other], 0))


def test_the_policy_at_a_category_never_seen_is_the_mean():
    """With shares of the categories known, that mean is known."""
    effect = np.array([2.0, -1.0, 5.0])
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - x) ** 2, lambda x, y, xi, eta: (y - eta) ** 2, x0=0.0, y0=7.0, domain=DOMAIN
    )
    samples = cb.Samples(COLUMNS, COLUMNS["weather"] + effect[COLUMNS["day"]])
    for coupling in (cb.Additive(), cb.Tensor()):
        basis = cb.Components({**PARTS, "weather": cb.Chebyshev(2), "hour": cb.Fourier(1)}, coupling=coupling)
        found = cb.solve(problem, samples, basis=basis)
        shares = np.bincount(COLUMNS["day"]) / ROWS
        at = {"weather": np.array([0.0, 1.0, 2.0]), "hour": 3.0, "day": "thu"}
        np.testing.assert_allclose(found.policy(at), shares @ effect + at["weather"], atol=1e-8)
        assert "day 'thu'" in found.choices["contexts"]


def test_fourier_repeats_where_contexts_do():
    hours = cb.Periodic(0.0, 24.0)
    for basis in (cb.Fourier(5), cb.Fourier(5, period=1.0)):
        phi = basis.fit(hours, np.linspace(0, 24, 50))
        np.testing.assert_allclose(phi(jnp.array([0.0, 3.0])), phi(jnp.array([24.0, 51.0])), atol=1e-12)
    table = np.asarray(cb.Fourier(3).fit(hours, np.zeros(1))(jnp.array([18.0])))
    np.testing.assert_allclose(table, [[1, 1, 0]], atol=1e-12)  # the reference runs from -1: sin(pi/2), cos(pi/2)
    line = cb.Fourier(3).fit(cb.Interval(0.0, 24.0), np.zeros(1))
    assert abs(float(line(jnp.array([0.0]))[0, 1] - line(jnp.array([24.0]))[0, 1])) > 1


def test_one_family_for_all_parts():
    basis = by_component(cb.Orthonormal(cb.Legendre(3, index=cb.Additive())), DOMAIN)
    wanted = {"weather": cb.Legendre(3), "hour": cb.Fourier(3), "day": cb.Categorical()}
    assert repr(basis) == repr(cb.Orthonormal(cb.Components(wanted, coupling=cb.Additive())))
    assert by_component(cb.Chebyshev(3), cb.Interval(0.0, 1.0)) == cb.Chebyshev(3)
    problem = cb.Problem(lambda x, y, xi, eta: x * y, lambda x, y, xi, eta: (y - x) ** 2, 0.0, 0.0, DOMAIN)
    reduced = reduce_study(Study.of(problem, cb.Samples(COLUMNS)), cb.Chebyshev(3, index=cb.Additive()))
    assert reduced.basis.size == 1 + 2 + 2 + 3


def test_richer_holds_the_poorer():
    listed = basis_of(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 0, 2]]), DOMAIN)
    for basis in (cb.Components(PARTS, coupling=cb.Additive()), cb.Components(PARTS), listed):
        poor = np.asarray(basis.fit(DOMAIN, XI)(XI))
        rich = np.asarray(richer_basis(basis, DOMAIN, poor.shape[1], 300).fit(DOMAIN, XI)(XI))
        assert poor.shape[1] < rich.shape[1] <= 300
        np.testing.assert_allclose(rich @ np.linalg.lstsq(rich, poor, rcond=None)[0], poor, atol=1e-8)


def test_sums_on_a_box():
    """``1 + d (n - 1)`` functions, and products of two coordinates with ``Interactions(2)``."""
    box = cb.Box(np.zeros(3), np.ones(3))
    xi = np.random.default_rng(0).uniform(size=(50, 3))
    assert cb.Chebyshev(5, index=cb.Additive()).fit(box, xi).size == 1 + 3 * 4
    assert cb.Chebyshev(3, index=cb.Interactions(2)).fit(box, xi).size == 1 + 3 * 2 + 3 * 4
    for index in (cb.Additive(), cb.Interactions(2)):
        table, each = index.table(4, 3), [index.admits(row, 4) for row in cb.Tensor().table(4, 3)]
        assert len(table) == sum(each)


def test_the_coordinates_agree_with_the_basis():
    """What the hunt for functions works with spans what the basis made of it does."""
    axes = Axes.of(DOMAIN)
    members = axes.closed(np.zeros((1, 3), int), [(2, 2, 0), (0, 1, 2), (1, 0, 1)])
    table = axes.table(axes.places(DOMAIN, XI), members)
    phi = np.asarray(basis_of(members, DOMAIN).fit(DOMAIN, XI)(XI))
    assert phi.shape == table.shape
    np.testing.assert_allclose(phi @ np.linalg.lstsq(phi, table, rcond=None)[0], table, atol=1e-9)


def test_sets_grow_by_levels():
    axes = Axes.of(DOMAIN)
    first = {tuple(row) for row in axes.neighbours(np.zeros((1, 3), int)).tolist()}
    assert first == {(1, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)}
    next_wave = {tuple(row) for row in axes.neighbours(np.array([[0, 0, 0], [0, 2, 0]])).tolist()}
    assert {(0, 3, 0), (0, 4, 0), (0, 1, 0)} <= next_wave
    assert not any(row[2] and row[1] for row in next_wave)
    closed = {tuple(row) for row in axes.closed(np.zeros((1, 3), int), [(0, 4, 3)]).tolist()}
    assert closed == {(0, k, d) for k in (0, 1, 2, 4) for d in (0, 3)}
    groups = axes.groups(np.array([[0, 1, 0], [0, 0, 1], [0, 2, 0], [0, 0, 3], [1, 0, 0]]))
    assert sorted(map(tuple, (group.tolist() for group in groups))) == [(0, 2), (1, 3), (4,)]


def test_errors_of_components():
    with pytest.raises(ValueError, match=r"bases for .'weather'."):
        cb.Components({"weather": cb.Chebyshev(3)}).fit(DOMAIN, XI)
    with pytest.raises(TypeError, match=r"day, which lives on Finite.*Use Categorical"):
        cb.Components(PARTS | {"day": cb.Chebyshev(3)}).fit(DOMAIN, XI)
    with pytest.raises(TypeError, match=r"weather, which lives on Interval.*Use Chebyshev"):
        cb.Components(PARTS | {"weather": cb.Categorical()}).fit(DOMAIN, XI)
    with pytest.raises(TypeError, match="hour must be Categorical"):
        cb.Components(PARTS | {"hour": cb.Neural(3)})
    with pytest.raises(TypeError, match="coupling must be"):
        cb.Components(PARTS, coupling="tensor")
    with pytest.raises(TypeError, match=r"cb\.Components"):
        cb.Chebyshev(3).fit(DOMAIN, XI)(XI)
    with pytest.raises(ValueError, match="do not fit coordinates"):
        cb.Components(PARTS, coupling=cb.Listed([(0, 0, 0), (9, 0, 0)])).fit(DOMAIN, XI)


def test_policies_of_components_can_be_traced():
    fitted = cb.Components(PARTS, coupling=cb.Additive()).fit(DOMAIN, XI)
    columns = {name: jnp.asarray(column) for name, column in COLUMNS.items()}
    np.testing.assert_allclose(jax.jit(lambda at: fitted(at))(columns), fitted(XI), atol=1e-12)
