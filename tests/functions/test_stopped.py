"""A derivative that does not see what a value depends on is noticed; what cancels is not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

stop = jax.lax.stop_gradient
RNG = np.random.default_rng(0)
SAMPLES = cb.Samples(RNG.uniform(0, 1, 200), RNG.normal(size=(200, 2)))
UPPER = lambda x, y, xi, eta: jnp.sum((y - 1) ** 2) + jnp.sum((x - eta) ** 2)
LOWER = lambda x, y, xi, eta: jnp.sum((y - x - xi) ** 2)


def looped(x, y, xi, eta):
    return jax.lax.fori_loop(0, 2, lambda k, a: a + jnp.sum((stop(y) - 1) ** 2), 0.0 * xi) + jnp.sum((x - eta) ** 2)


@jax.custom_jvp
def own_rule(a):
    return stop(a)


own_rule.defjvp(lambda at, along: (at[0], along[0]))


def solved(upper=UPPER, lower=LOWER, scale=1.0, steps=12, **more):
    """With few steps: where derivatives are wrong a run uses up all it has, elsewhere four are enough."""
    taller = lambda function: lambda x, y, xi, eta: scale * function(x, y, xi, eta)
    problem = cb.Problem(taller(upper), taller(lower), jnp.zeros(2), jnp.zeros(2), cb.Interval(0, 1))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        solution = cb.solve(problem, SAMPLES, basis=cb.Chebyshev(2), steps=steps, **more)
    return solution, [str(one.message) for one in said]


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize(
    ("level", "function", "named"),
    [
        ("upper", lambda x, y, xi, eta: UPPER(x, stop(y), xi, eta), "upper changes with y otherwise"),
        ("upper", lambda x, y, xi, eta: UPPER(stop(x), y, xi, eta), "upper changes with x otherwise"),
        ("upper", looped, "upper changes with y otherwise"),
        ("lower", lambda x, y, xi, eta: LOWER(stop(x), y, xi, eta), "lower changes with x otherwise"),
    ],
    ids=["f of y", "f of x", "in a loop", "g of x"],
)
def test_what_is_stopped_is_said_where_the_run_is_called_converged(level, function, named, scale):
    solution, said = solved(**{level: function}, scale=scale)
    assert named in solution.detail
    assert named in repr(solution)
    assert any(named.lower() in words.lower() for words in said)


def test_batches_say_it_too():
    solution, _ = solved(lambda x, y, xi, eta: UPPER(x, stop(y), xi, eta), solver=cb.SOBA(), steps=3)
    assert "upper changes with y otherwise" in solution.detail


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(
    "upper",
    [
        lambda x, y, xi, eta: UPPER(x, y, xi, eta) + jax.nn.logsumexp(y) + jax.nn.softmax(y)[0],
        lambda x, y, xi, eta: UPPER(x, y, xi, eta) + jnp.sum(jax.nn.softmax(x * y)),
        lambda x, y, xi, eta: UPPER(x, y, xi, eta) + jnp.sum(jax.nn.log_softmax(1e3 * y)),
        lambda x, y, xi, eta: UPPER(x, y, xi, stop(eta)) + jnp.floor(y[0]) + jnp.abs(y[1]),
        lambda x, y, xi, eta: UPPER(x, own_rule(y), xi, eta),
    ],
    ids=["logsumexp", "a sum of one", "log_softmax", "data", "a rule by hand"],
)
def test_what_cancels_is_not(upper, precision):
    solution, said = solved(upper, precision=precision)
    assert "otherwise than its derivative" not in solution.detail
    assert not any("otherwise" in words for words in said)
