"""Bases grown from the data: as few functions as a tolerance asks for, in the directions that matter."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.adaptive import choose_basis
from cobilevel.adaptive.doubling import Doubling
from cobilevel.basis import basis_of
from cobilevel.covariates import Fits
from cobilevel.study import Study
from problems import AROUND, Aim, Line, row, scalar


def bump(width=0.4):
    """``y* = x phi(xi)`` with poles at ``+- i width``: the share of ``F`` that N functions lose, by quadrature."""
    phi = lambda xi: 1 / (1 + (xi / width) ** 2)
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: (y - 1 - jnp.sin(2 * xi)) ** 2 / 2 + 0.05 * (x - 2) ** 2,
        lower=lambda x, y, xi, eta: (y - x * phi(xi) - eta) ** 2 / 2,
        x0=1.0,
        y0=0.0,
        domain=cb.Interval(-1.0, 1.0),
    )
    nodes, weights = np.polynomial.legendre.leggauss(400)
    weights, target = weights / 2, 1 + np.sin(2 * nodes)
    solve = lambda seen: (weights @ (seen * target) + 0.2) / (weights @ seen**2 + 0.1)
    loss = lambda x: weights @ (x * phi(nodes) - target) ** 2 / 2 + 0.05 * (x - 2) ** 2

    def lost(n):
        table = np.polynomial.legendre.legvander(nodes, n - 1) * np.sqrt(2 * np.arange(n) + 1)
        return loss(solve(table @ (table.T @ (weights * phi(nodes))))) / loss(solve(phi(nodes))) - 1

    return problem, lost


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_tolerance_takes_as_many_functions_as_it_asks_for(noise):
    problem, lost = bump()
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(-1, 1, 2000), noise * rng.normal(size=2000))
    best = next(n for n in range(1, 40) if lost(n) <= 1e-3)
    found = cb.solve(problem, samples, tolerance=1e-3)
    size = found.stats["functions"]
    assert found.converged
    assert best / 1.5 <= size <= 1.5 * best
    assert "tolerance of 0.001" in found.choices["basis"]
    single = cb.solve(problem, samples, basis=cb.Orthonormal(cb.Chebyshev(best)))
    assert single.stats["samples"] < found.stats["samples"] <= 3 * single.stats["samples"]


def test_a_basis_is_not_judged_by_itself():
    """The policy is constant where the solution lies, so that held-out samples ask for no second function; but the
    sensitivity is even, and one function loses 3% of the objective."""
    rng = np.random.default_rng(2)
    xi, eta = rng.uniform(-1, 1, 2000), rng.normal(size=2000)
    centre = 1 + np.mean(np.exp(3 * xi) * xi**2) / 2
    upper = Aim(row(), ridge=1.0, centre=centre, pull=0.0, tilt=row(0.0, 0.0, 0.0, 1.0), rate=3.0)
    lower = Line(row(0.0, 0.0, 1.0), row(1.0, 0.0, -1.0), weight=0.5)
    found = cb.solve(scalar(lower, upper, domain=AROUND), cb.Samples(xi, eta), tolerance=0.005)
    assert float(found.x) == pytest.approx(1.0, abs=0.05)


def test_a_tolerance_needs_no_basis():
    problem, _ = bump()
    samples = cb.Samples(np.linspace(-1, 1, 50), np.zeros(50))
    with pytest.raises(TypeError, match="Leave one of them out"):
        cb.solve(problem, samples, basis=cb.Chebyshev(3), tolerance=0.1)
    with pytest.raises(ValueError, match="positive"):
        cb.solve(problem, samples, tolerance=-1)


def one_direction(dimension):
    policy = lambda x, c: x / (1.3 - c[0]) + 0.2 * jnp.sin(c[1]) * (1 + 0.3 * c[0]) + 0.1 * c[-1] ** 2
    return cb.Problem(
        upper=lambda x, y, xi, eta: (y - 1 - xi[0]) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi, eta: (y - policy(x, xi)) ** 2 / 2,
        x0=1.0,
        y0=0.0,
        domain=cb.Box(-np.ones(dimension), np.ones(dimension)),
    ), lambda xi: np.asarray(jax.vmap(lambda c: policy(1.0, c))(jnp.asarray(xi)))


@pytest.mark.parametrize("dimension", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_index_sets_grow_where_it_matters(dimension):
    """At equal error at most half the functions of total degree, for every size from six functions on."""
    problem, policy = one_direction(dimension)
    rng = np.random.default_rng(0)
    xi, test = (rng.uniform(-1, 1, (2000, dimension)) for _ in range(2))
    choice = choose_basis(Study.of(problem, cb.Samples(xi)), problem.x0, jax.random.key(0))

    def error(members):
        features = lambda c: np.prod(
            [np.polynomial.chebyshev.chebvander(c[:, j], 20)[:, members[:, j]] for j in range(dimension)], axis=0
        )
        W = np.linalg.lstsq(features(xi), policy(xi), rcond=None)[0]
        return np.sqrt(np.mean((features(test) @ W - policy(test)) ** 2))

    totals = [cb.TotalDegree().table(n, dimension) for n in range(1, 13)]
    errors = np.array([error(table) for table in totals])
    members, reached = choice.members, error(choice.members)
    assert len(members) >= 6
    assert reached >= errors[-1]
    assert 2 * len(members) <= len(totals[int(np.argmax(errors <= reached))])
    assert repr(choice.basis) == repr(basis_of(members, problem.domain))
    first, *others = members.max(axis=0)
    assert first > max(others)


def means_of_products(fits):
    table = fits.axes.table(fits.u, np.arange(20)[:, None])
    return (table.T * fits.shares) @ table


@pytest.mark.parametrize(("fastest", "jump"), [(4.0, 0.0), (4.0, 3.0), (30.0, 0.0)])
def test_nodes_of_a_quadrature_stand_for_samples_of_a_large_y(fastest, jump, monkeypatch):
    """Without noise in ``g`` the choice is that of all samples, from a quarter of them; jumps and many functions take
    all."""
    rates, smooth = np.linspace(0.2, fastest, 40), not jump and fastest < 10
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - eta) ** 2) / 2,
        lambda x, y, xi, eta: jnp.sum((y - x * jnp.sin(rates * xi) - jnp.where(xi > 0.3, jump, 0.0)) ** 2) / 2,
        x0=1.5,
        y0=np.zeros(40),
        domain=cb.Interval(-1.0, 1.0),
    )
    rng = np.random.default_rng(0)
    xi = rng.uniform(-1, 1, 3000)
    study = Study.of(problem, cb.Samples(xi, np.sin(np.outer(xi, rates)) + rng.normal(size=(3000, 40)) / 10))
    few = choose_basis(study, np.asarray(1.5), jax.random.key(0))
    monkeypatch.setattr(Fits, "at_nodes", lambda *_: None)
    every = choose_basis(study, np.asarray(1.5), jax.random.key(0))
    assert few.selection.on_nodes == smooth
    assert not every.selection.on_nodes
    assert repr(few.basis) == repr(every.basis)
    assert few.breaks == every.breaks
    assert bool(few.breaks) == bool(jump)
    if smooth:
        assert 4 * few.spent["hessian", "samples"] < 1.1 * every.spent["hessian", "samples"]
        np.testing.assert_allclose(*(means_of_products(choice.selection.fits) for choice in (few, every)), atol=1e-6)


def test_a_basis_that_cannot_grow_is_not_chosen_again(monkeypatch):
    """In several dimensions nothing but more functions could come of it."""
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - eta) ** 2) / 2,
        lambda x, y, xi, eta: jnp.sum((y - x * jnp.exp(2 * xi[0] * xi[1])) ** 2) / 2,
        x0=1.5,
        y0=np.zeros(222),
        domain=cb.Box(-np.ones(2), np.ones(2)),
    )
    xi = np.random.default_rng(0).uniform(-1, 1, (60, 2))
    study = Study.of(problem, cb.Samples(xi, np.ones((60, 222))))
    first = choose_basis(study, np.asarray(1.5), jax.random.key(0))
    assert len(first.members) == first.selection.most == 9
    monkeypatch.setattr(Fits, "fit", None)
    assert choose_basis(study, np.asarray(1.0), jax.random.key(0), before=first) is first


@pytest.mark.parametrize(("gain", "words"), [(0.1, "by 1.0 standard errors"), (-0.1, "not improve the policy")])
def test_what_more_functions_change_on_held_out_samples(gain, words):
    spread = gain + np.resize([1.0, -1.0], 100)
    few, many = (SimpleNamespace(held=np.stack([losses, losses])) for losses in (spread, np.zeros(100)))
    counts, said = Doubling.difference(None, few, many)
    assert not counts
    assert words in said
