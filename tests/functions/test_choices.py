"""Maxima and minima by comparison: the values and derivatives of JAX's own, also where a compiler rounds twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import cobilevel as cb
from cobilevel.derivatives import RowBlocks, RowDerivatives
from cobilevel.functions.choices import by_comparison
from cobilevel.study import Study
from problems import LINE

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 5, 3))
FUNCTIONS = {
    "entry by entry": lambda a, b: jnp.sum(jnp.maximum(a, b) * jnp.minimum(a, 0.3)),
    "over axes": lambda a, b: jnp.sum(jnp.max(a, axis=1)) * jnp.min(b) + jnp.max(a * b, axis=(0, 1)),
    "running": lambda a, b: jnp.sum(jax.lax.cummax(a, axis=0) * jax.lax.cummin(b, axis=1, reverse=True)),
    "in a loop": lambda a, b: jnp.sum(jax.lax.fori_loop(0, 3, lambda k, c: jnp.maximum(c, 0.5 * c + b), a)),
    "in a branch": lambda a, b: jax.lax.cond(a[0, 0] > 0, jnp.max, jnp.min, a * b),
    "in a call": lambda a, b: jnp.sum(jax.jit(jnp.maximum)(a, b)),
    "computed again": lambda a, b: jnp.sum(jax.checkpoint(jnp.maximum)(a, b)),
    "a tie": lambda a, b: jnp.sum(jnp.maximum(a, 1.0 * a) * b),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_are_those_of_jax(name):
    function = FUNCTIONS[name]
    program = jax.make_jaxpr(function)(A, B)
    anew = by_comparison(program)
    assert anew is not program
    assert " max " not in str(anew)
    assert " min " not in str(anew)
    mine = lambda a, b: jaxpr_as_fun(anew)(a, b)[0]
    assert float(mine(A, B)) == float(function(A, B))
    for own, theirs in zip(*(jax.grad(f, argnums=(0, 1))(A, B) for f in (mine, function)), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "function", [lambda a, b: jnp.sum(jax.nn.relu(a) * b), lambda a, b: jax.nn.logsumexp(a) + b[0, 0]]
)
def test_what_has_rules_of_its_own_is_left_alone(function):
    program = jax.make_jaxpr(function)(A, B)
    assert by_comparison(program) is program


def test_a_maximum_that_is_not_a_number_stays_so():
    program = by_comparison(jax.make_jaxpr(lambda a, b: jnp.sum(jnp.maximum(a, b)) + jnp.max(a))(A, B))
    for at in (A, B):
        given = [np.where(at == A, np.nan, A), np.where(at == B, np.nan, B)]
        assert np.isnan(jaxpr_as_fun(program)(*given)[0])
    large = jaxpr_as_fun(program)(np.full_like(A, 1.7e308 / 30), np.full_like(B, -np.inf))[0]
    assert np.isfinite(large)


def test_derivatives_of_many_rows_where_the_compiler_computes_an_operand_twice():
    """Compiled for 4096 rows, ``demand - 0.8 price`` was rounded otherwise for the minimum and for its derivative: of
    one row in six the derivative along the price was lost, and at 40,000 samples a solve ended 0.06 away."""
    price, rows = np.array([2.96, 1.77]), 4096
    demand, stock = RNG.normal([6.0, 4.0], size=(rows, 2)), RNG.normal(3.0, size=(rows, 2))
    profit = lambda x, y, xi, eta: jnp.sum(x * jnp.minimum(eta - 0.8 * x, y))
    problem = cb.Problem(profit, lambda x, y, xi, eta: jnp.sum((y - eta) ** 2), price, np.zeros(2), LINE)
    study = Study.of(problem, cb.Samples(np.linspace(0.0, 1.0, rows), demand))
    blocks = RowBlocks(np.linspace(0.0, 1.0, rows), demand, np.float64, 0, size=rows)
    found = RowDerivatives.upper(study.problem.upper, blocks).table(price, stock)
    left = demand - 0.8 * price
    np.testing.assert_allclose(found[:, 1:3], np.where(left < stock, left - 0.8 * price, stock), atol=1e-12)
    np.testing.assert_allclose(found[:, 3:], np.where(left < stock, 0.0, price), atol=1e-12)
