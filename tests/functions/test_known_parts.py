"""What depends on samples alone is computed once, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.functions import known_parts
from problems import curved_problem


def problems():
    instance = cb.gallery.quadratic(0, dx=3, dy=2, train=40, test=10)
    yield instance.problem, instance.train
    yield curved_problem(40)


@pytest.mark.parametrize("number", [0, 1])
def test_values_and_derivatives_are_those_of_the_objectives(number):
    problem, samples = list(problems())[number]
    plain = cb.reduce(problem, cb.Chebyshev(3), samples).ordinary()
    ahead = plain.looked_through()
    nudge = lambda tree: jax.tree.map(lambda a: np.asarray(a) + np.cos(np.arange(a.size)).reshape(a.shape), tree)
    x, W = nudge(plain.x0), nudge(plain.W0)
    for level in ("upper", "lower"):
        slope = lambda part, W, level=level: jax.grad(getattr(part, level), argnums=(0, 1))(
            x, W, getattr(part, f"{level}_pool")
        )
        look = lambda part, slope=slope: jax.jvp(lambda W: slope(part, W), (W,), (W,))
        for one, other in zip(*(jax.tree.leaves(jax.jit(look)(part)) for part in (plain, ahead)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_only_what_gains_and_fits_is_kept():
    xi, eta = jnp.linspace(0, 1, 50), jnp.ones(50)
    traced = lambda lower: (
        cb.reduce(
            cb.Problem(lambda x, y, xi, eta: (y - x) ** 2, lower, 0.0, 0.0, cb.Interval(0.0, 1.0)),
            cb.Chebyshev(2),
            cb.Samples(xi, eta),
        ).problem.lower
    )
    assert known_parts(traced(lambda x, y, xi, eta: (y - xi * x - eta) ** 2), xi, eta) is None
    found = known_parts(traced(lambda x, y, xi, eta: (y - jnp.sin(xi) * x - eta) ** 2), xi, eta)
    assert found is not None
    assert sorted(leaf.shape for leaf in found[1]) == [(50,), (50,)]
    np.testing.assert_allclose(found[1][0] + found[1][1], jnp.sin(xi) + eta)
    again = known_parts(traced(lambda x, y, xi, eta: (y - jnp.sin(xi) * x - eta) ** 2), xi, eta)
    assert again[0].cut is found[0].cut  # with its program: a second run compiles nothing
    large = lambda x, y, xi, eta: jnp.sum((y - jnp.sin(xi * jnp.arange(200_000.0)) * x - eta) ** 2)
    assert known_parts(traced(large), xi, eta) is None
    assert known_parts(lambda x, y, xi, eta: jnp.sin(xi) * y, xi, eta) is None  # not traced
