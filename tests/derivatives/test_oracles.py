"""Every oracle and every hypergradient against central differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import cobilevel as cb
from cobilevel.derivatives import (
    ConjugateGradient,
    Expansions,
    Factored,
    Ledger,
    Neumann,
    directions,
    flattened,
    hypergradient,
    oracles,
    sensitivity,
)
from cobilevel.lower.reduced_at_x import solve_lower
from problems import curved_problem


@pytest.fixture(scope="module")
def setting():
    problem, samples = curved_problem()
    reduced = cb.reduce(problem, cb.Chebyshev(4), samples)
    nudge = lambda tree, seed: jax.tree.map(
        lambda a: a + 0.3 * np.random.default_rng(seed + a.size).standard_normal(a.shape), tree
    )
    return reduced, reduced.x0, nudge(reduced.W0, 1), nudge(reduced.W0, 2), reduced.lower_pool


def central(function, tree, step=1e-5):
    """The gradient of a scalar function of a pytree by central differences."""
    flat, unravel = ravel_pytree(tree)
    shifts = step * jnp.eye(len(flat))
    values = jax.jit(jax.vmap(lambda shift: function(unravel(flat + shift))))
    return unravel((values(shifts) - values(-shifts)) / (2 * step))


def agree(a, b, tolerance=1e-6):
    a, b = ravel_pytree(a)[0], ravel_pytree(b)[0]
    assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b))


def test_gradients(setting):
    reduced, x, W, _, pool = setting
    (value, d1, d2), _ = oracles.upper_gradients(reduced, x, W, pool, Ledger.empty())
    agree(value, reduced.upper(x, W, pool), 1e-15)
    agree(d1, central(lambda x: reduced.upper(x, W, pool), x))
    agree(d2, central(lambda W: reduced.upper(x, W, pool), W))
    slope, _ = oracles.lower_gradient(reduced, x, W, pool, Ledger.empty())
    agree(slope, central(lambda W: oracles.lower_slope(reduced, x, W, pool, Ledger.empty())[0][0], W))


def test_second_derivatives(setting):
    reduced, x, W, V, pool = setting
    along = lambda x, W: sum(
        jnp.sum(a * b)
        for a, b in zip(
            jax.tree.leaves(oracles.lower_gradient(reduced, x, W, pool, Ledger.empty())[0]),
            jax.tree.leaves(V),
            strict=True,
        )
    )
    product, _ = oracles.hessian_vector(reduced, x, W, V, pool, Ledger.empty())
    agree(product, central(lambda W: along(x, W), W))
    cross, _ = oracles.cross_product(reduced, x, W, V, pool, Ledger.empty())
    agree(cross, central(lambda x: along(x, W), x))


def test_structured_model_is_the_model(setting):
    reduced, x, W, V, pool = setting
    (value, gradient, hessian), _ = oracles.lower_model(reduced, x, W, pool, Ledger.empty())
    flat, unflatten = oracles.flatten(W)
    whole = lambda z: reduced.lower(x, unflatten(z), pool)
    agree(value, whole(flat), 1e-14)
    agree(gradient, jax.grad(whole)(flat), 1e-13)
    agree(hessian, jax.hessian(whole)(flat), 1e-13)
    product, _ = oracles.hessian_vector(reduced, x, W, V, pool, Ledger.empty())
    agree(oracles.flatten(product)[0], hessian @ oracles.flatten(V)[0], 1e-13)


def best(reduced, W):
    """The coefficients that minimise the lower level, as a function of ``x``."""
    expansions = Expansions(reduced)

    def found(x):
        start = expansions.table(W)
        point = solve_lower(expansions, flattened(x), start, 1e-14).point.reshape(start.shape)
        return jax.tree.map(jnp.asarray, expansions.coefficients(point))

    return found


@pytest.fixture(scope="module")
def solved(setting):
    """The lower level solved at ``x``, and the gradient of the upper objective along it by differences."""
    reduced, x, W, _, pool = setting
    at = best(reduced, W)
    objective = lambda x: reduced.upper(x, at(x), pool)
    flat, unravel = ravel_pytree(x)
    differences = [objective(unravel(flat + e)) - objective(unravel(flat - e)) for e in 1e-5 * jnp.eye(len(flat))]
    return at(x), objective(x), unravel(jnp.stack(differences) / 2e-5)


@pytest.mark.parametrize("linear", [ConjugateGradient(), Neumann(4000, 0.15)], ids=["cg", "sum"])
def test_hypergradients(setting, solved, linear):
    reduced, x, _, _, pool = setting
    W, objective, slope = solved
    value, gradient, _, _ = jax.jit(
        lambda x: hypergradient(reduced, x, W, pool, pool, linear, lambda _: pool, Ledger.empty())
    )(x)
    agree(value, objective, 1e-14)
    agree(gradient, slope)


def test_directions_and_sensitivities_have_the_same_signs(setting, solved):
    """At the adjoint the linear direction vanishes and the outer one is the hypergradient, by either form."""
    reduced, x, _, _, pool = setting
    W, _, slope = solved

    @jax.jit
    def everything(x):
        empty = Ledger.empty()
        (_, _, hessian), _ = oracles.lower_model(reduced, x, W, pool, empty)
        factored = Factored(lambda right: jnp.linalg.solve(hessian, right))
        _, gradient, v, _ = hypergradient(reduced, x, W, pool, pool, factored, lambda _: pool, empty)
        _, toward, _ = directions(reduced, x, W, v, pool, pool, empty)
        cross, _ = oracles.cross_matrix(reduced, x, W, pool, empty)
        (_, d1, d2), _ = oracles.upper_gradients(reduced, x, W, pool, empty)
        s = sensitivity(lambda right: jnp.linalg.solve(hessian, right), cross.T)
        return gradient, toward, ravel_pytree(d1)[0] + oracles.flatten(d2)[0] @ s

    gradient, toward, by_sensitivity = everything(x)
    agree(toward.outer, gradient, 1e-12)
    agree(by_sensitivity, gradient, 1e-10)
    agree(gradient, slope)
    assert np.max(np.abs(ravel_pytree(toward.linear)[0])) < 1e-10
    assert np.max(np.abs(ravel_pytree(toward.lower)[0])) < 1e-10


@pytest.mark.parametrize("terms", [0, 1, 10])
@pytest.mark.thorough
def test_neumann_recovers_the_share_it_should(setting, terms):
    reduced, x, W, _, pool = setting
    (_, _, hessian), _ = oracles.lower_model(reduced, x, W, pool, Ledger.empty())
    eigenvalues, vectors = np.linalg.eigh(hessian)
    step = 0.05
    _, unflatten = oracles.flatten(W)

    @eqx.filter_jit
    def series(kind, vector):
        v, _ = Neumann(terms, step, kind)(reduced, x, W, unflatten(vector), lambda _: pool, Ledger.empty())
        return oracles.flatten(v)[0]

    for value, vector in zip(eigenvalues, vectors.T, strict=True):
        share = 1 - (1 - step * value) ** (terms + 1)
        np.testing.assert_allclose(series("sum", jnp.asarray(vector)), share * vector / value, atol=1e-12)
        np.testing.assert_allclose(
            series("product", jnp.asarray(vector)), step * (1 - step * value) ** terms * vector, atol=1e-12
        )
