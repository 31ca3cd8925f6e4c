"""Bounds against plain NumPy: projection, what is free to move, and the projected gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import cobilevel as cb
from cobilevel.problem import Bounds
from problems import LINE, Aim, Line

LO, HI = np.array([-1.0, 0.0, -np.inf, 2.0]), np.array([1.0, np.inf, 3.0, 2.0])
X = np.array([-1.0, 0.0, 3.0, 2.0])  # each coordinate at a bound; the last has no room
BOUNDS = Bounds(jnp.asarray(LO), jnp.asarray(HI))
RNG = np.random.default_rng(0)


def test_projection_is_numpys_clip():
    points = RNG.normal(size=(50, 4)) * 5
    for point in points:
        np.testing.assert_array_equal(BOUNDS.project(jnp.asarray(point)), np.clip(point, LO, HI))
    assert np.array_equal(BOUNDS.project(jnp.asarray(X)), X)


def test_what_is_free_to_move():
    """A coordinate at a bound may move only away from it, along minus the gradient."""
    down, up = np.ones(4), -np.ones(4)
    assert np.asarray(BOUNDS.free(jnp.asarray(X), jnp.asarray(down))).tolist() == [False, False, True, False]
    assert np.asarray(BOUNDS.free(jnp.asarray(X), jnp.asarray(up))).tolist() == [True, True, False, False]
    inside = jnp.array([0.0, 1.0, 0.0, 2.0])
    assert np.asarray(BOUNDS.free(inside, jnp.asarray(down))).tolist() == [True, True, True, False]


@pytest.mark.parametrize("length", [1, 0.3, 1e-6])
def test_the_projected_gradient_is_the_step_it_stands_for(length):
    for _ in range(50):
        x = np.clip(RNG.normal(size=4) * 2, LO, HI)
        gradient = RNG.normal(size=4) * 3
        wanted = (x - np.clip(x - length * gradient, LO, HI)) / length
        found = BOUNDS.projected_gradient(jnp.asarray(x), jnp.asarray(gradient), length)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)
    blocked = BOUNDS.projected_gradient(jnp.asarray(X), jnp.array([1.0, 1.0, -1.0, 5.0]), length)
    np.testing.assert_array_equal(blocked, np.zeros(4))
    tiny = BOUNDS.projected_gradient(jnp.zeros(4), jnp.array([0.0, 0.0, 1e-200, 0.0]), length)
    assert float(tiny[2]) == 1e-200  # no small gradient is rounded off


def test_pytrees_and_flat_bounds_agree():
    x0 = {"a": jnp.zeros(2), "b": jnp.ones(())}
    problem = cb.Problem(Aim(), Line(), x0, 0.0, LINE, x_bounds=({"a": -1.0, "b": None}, {"a": jnp.ones(2), "b": 1.5}))
    bounds = problem.bounds
    flat = Bounds(*(ravel_pytree(end)[0] for end in problem.x_bounds))
    np.testing.assert_array_equal(flat.lo, [-1, -1, -np.inf])
    np.testing.assert_array_equal(flat.hi, [1, 1, 1.5])
    point = {"a": jnp.array([3.0, -3.0]), "b": jnp.array(9.0)}
    slope = {"a": jnp.array([1.0, -1.0]), "b": jnp.array(1.0)}
    pack = lambda tree: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    for found, wanted in (
        (bounds.project(point), flat.project(pack(point))),
        (bounds.free(point, slope), flat.free(pack(point), pack(slope))),
        (bounds.projected_gradient(x0, slope), flat.projected_gradient(pack(x0), pack(slope))),
    ):
        np.testing.assert_array_equal(pack(found), wanted)
    assert problem.sizes == (3, 1)
