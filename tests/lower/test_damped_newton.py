"""Damped Newton where plain Newton fails, and its word where there is no minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cobilevel.lower import Dense, MatrixFree, minimise


def dense(objective):
    """Several problems with one objective: values, gradients and Hessians, a row for each."""
    model = jax.jit(jax.vmap(lambda z: (objective(z), jax.grad(objective)(z), jax.hessian(objective)(z))))
    return Dense(lambda z: tuple(np.asarray(part) for part in model(z)))


@pytest.mark.thorough
def test_plain_newton_fails_where_ours_does_not(traffic):
    lower, x, xi = traffic.problem.lower, jnp.array([0.5, 0.5]), jnp.array(0.6)
    objective = lambda y: lower(x, y, xi, y)

    def plain(y, _):
        return y - jnp.linalg.solve(jax.hessian(objective)(y), jax.grad(objective)(y)), None

    start = np.full(2, 1e-3)
    undamped = jax.lax.scan(plain, jnp.asarray(start), None, length=6)[0]
    assert not float(jnp.max(jnp.abs(undamped))) < 10  # far away, or NaN
    found = minimise(dense(objective), start[None], 1e-12)
    assert found.converged.all()
    assert found.evaluations < 30
    np.testing.assert_allclose(found.point[0], traffic.truth.y(x, xi), atol=1e-9)


def valley(z):
    return 100 * (z[1] - z[0] ** 2) ** 2 + (1 - z[0]) ** 2  # not convex on the way


SLOPE, PRODUCT = (
    jax.jit(jax.vmap(jax.value_and_grad(valley))),
    jax.jit(jax.vmap(lambda z, v: jax.jvp(jax.grad(valley), (z,), (v,))[1])),
)
KINDS = {
    "dense": dense(valley),
    "free": MatrixFree(lambda z: tuple(np.asarray(part) for part in SLOPE(z)), lambda z, v: np.asarray(PRODUCT(z, v))),
}
STARTS = [[-1.2, 1.0], [3.0, -4.0], [0.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", STARTS)
def test_minimise_reaches_the_bottom_of_a_curved_valley(kind, start):
    found = minimise(KINDS[kind], np.array([start]), 1e-10)
    assert found.converged.all()
    np.testing.assert_allclose(found.point, [[1, 1]], atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_several_problems_go_as_each_would_alone(kind):
    """Each has its own lengths, damping and end; one that is solved already stays where it is."""
    starts = np.array([*STARTS, [1.0, 1.0]])
    together = minimise(KINDS[kind], starts, 1e-10)
    assert together.converged.all()
    for start, point in zip(starts, together.point, strict=True):
        alone = minimise(KINDS[kind], start[None], 1e-10).point[0]
        np.testing.assert_allclose(point, alone, atol=0 if kind == "dense" else 1e-8)
    np.testing.assert_array_equal(together.point[3], [1.0, 1.0])


def test_minimise_says_when_there_is_no_minimum():
    slide = lambda z: jnp.sum(-(z**3)) + jnp.sum(z)
    bowl = lambda z: jnp.where(z[0] > 5, slide(z), jnp.sum((z - 1) ** 2))
    found = minimise(dense(bowl), np.array([[20.0], [2.0]]), 1e-10)
    assert found.converged.tolist() == [False, True]


def test_one_hessian_serves_for_several_steps_where_they_take_long():
    """And the one at the end is that of the end."""
    objective = lambda z: jnp.sum(jnp.cosh(z - jnp.arange(3.0)))
    plain, spent = dense(objective), []

    def local(z):
        spent.append("hessian")
        return plain.local(z)

    slope = jax.jit(jax.vmap(jax.value_and_grad(objective)))
    saving = Dense(local, slope=lambda z: tuple(map(np.asarray, slope(z))))
    start = np.full((1, 3), 0.7)
    found, known = minimise(saving, start, 1e-10), minimise(plain, start, 1e-10)
    np.testing.assert_allclose(found.point, known.point, atol=1e-9)
    np.testing.assert_array_equal(found.hessian, plain.local(found.point)[2])
    assert found.converged.all()
    assert len(spent) < known.evaluations


def test_a_hessian_that_is_far_off_leads_to_the_end_below_the_rounding_of_values():
    """Each step leaves six tenths of the gradient, long after no decrease is seen."""
    about = np.diag([1 / 0.4, 1 / 1.6])[None]
    end = minimise(Dense(lambda z: (1 + np.sum(z**2, axis=1) / 2, z, about)), np.ones((1, 2)), 1e-13)
    assert end.converged.all()
    assert np.linalg.norm(end.point) < 1e-13


def test_a_rough_hessian_is_not_taken_anew_for_being_rough():
    """It leaves six tenths of the gradient at every step, wherever it is taken."""
    about, spent = np.diag([1 / 0.4, 1 / 1.6])[None], []
    slope = lambda z: (1 + np.sum((z - 1) ** 2, axis=1) / 2, z - 1)

    def local(z):
        spent.append("hessian")
        return *slope(z), about

    for rough, most in ((True, 5), (False, 100)):
        spent.clear()
        end = minimise(Dense(local, slope=slope, rough=rough), np.zeros((1, 2)), 1e-10)
        assert end.converged.all()
        assert len(spent) <= most
    assert len(spent) > 20
