"""Damped Newton where plain Newton fails, and its word where there is no minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cobilevel.lower import Dense, MatrixFree, minimise


@pytest.mark.thorough
def test_plain_newton_fails_where_ours_does_not(traffic):
    lower, x, xi = traffic.problem.lower, jnp.array([0.5, 0.5]), jnp.array(0.6)
    objective = lambda y: lower(x, y, xi, y)

    def plain(y, _):
        return y - jnp.linalg.solve(jax.hessian(objective)(y), jax.grad(objective)(y)), None

    start = jnp.full(2, 1e-3)
    undamped = jax.lax.scan(plain, start, None, length=6)[0]
    assert not float(jnp.max(jnp.abs(undamped))) < 10  # far away, or NaN
    model = Dense(lambda y: (objective(y), jax.grad(objective)(y), jax.hessian(objective)(y)))
    found = minimise(model, start, 1e-12)
    assert bool(found.converged)
    assert int(found.evaluations) < 30
    np.testing.assert_allclose(found.point, traffic.truth.y(x, xi), atol=1e-9)


def valley(z):
    return 100 * (z[1] - z[0] ** 2) ** 2 + (1 - z[0]) ** 2  # not convex on the way


SLOPE = jax.grad(valley)
KINDS = {
    "dense": Dense(lambda z: (valley(z), SLOPE(z), jax.hessian(valley)(z))),
    "free": MatrixFree(jax.value_and_grad(valley), lambda z, v: jax.jvp(SLOPE, (z,), (v,))[1]),
}
BOTTOM = {name: jax.jit(lambda z, kind=kind: minimise(kind, z, 1e-10)) for name, kind in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [[-1.2, 1.0], [3.0, -4.0], [0.0, 0.0]])
def test_minimise_reaches_the_bottom_of_a_curved_valley(kind, start):
    found = BOTTOM[kind](jnp.array(start))
    assert bool(found.converged)
    np.testing.assert_allclose(found.point, [1, 1], atol=1e-8)


def test_minimise_says_when_there_is_no_minimum():
    slide = lambda z: jnp.sum(-(z**3)) + jnp.sum(z)
    model = Dense(lambda z: (slide(z), jax.grad(slide)(z), jax.hessian(slide)(z)))
    assert not bool(minimise(model, jnp.array([2.0]), 1e-10).converged)
