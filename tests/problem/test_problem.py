"""``Problem``: its start can be moved and its precision changed; the pieces it is made of stay."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from problems import scalar


def test_moved_and_cast():
    problem = scalar(x0=0.5, x_bounds=(None, 2.0))
    assert problem.sizes == (1, 1)
    moved = problem.at(jnp.array(1.5))
    assert float(moved.x0) == 1.5
    assert eqx.tree_equal(moved.upper, problem.upper)
    short = problem.astype(jnp.float32)
    assert {short.x0.dtype, short.y0.dtype, short.x_bounds[1].dtype} == {np.dtype("float32")}
    assert (float(short.bounds.lo), float(short.bounds.hi)) == (-np.inf, 2.0)
