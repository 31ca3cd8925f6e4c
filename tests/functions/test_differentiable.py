"""Functions of operations that JAX is known to differentiate are not differentiated once more to see that it can."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from cobilevel.functions import operations, traced

BOTH = lambda a: jnp.stack([a, a * a])
UNARY = "abs acos acosh asin asinh atan atanh cos cosh erf exp exp2 expm1 log log1p logistic neg rsqrt sign sin sinh"
FUNCTIONS = [getattr(lax, name) for name in f"{UNARY} sqrt square tan tanh".split()]
FUNCTIONS += [
    lambda a: lax.atan2(a, a + 1.0) - a / (a + 2.0) + a**3 + (a * a) ** a,
    lambda a: lax.clamp(0.0, a, 1.0) + jnp.maximum(a, 1.0) * jnp.minimum(a, 2.0),
    lambda a: jnp.cumsum(BOTH(a))[1] + lax.rev(BOTH(a), (0,))[0] + jnp.pad(a[None], 1).sum(),
    lambda a: BOTH(a).max() + BOTH(a).min() + BOTH(a)[jnp.array([1, 0])].sum() + jnp.split(BOTH(a), 2)[1][0],
    lambda a: jnp.where((a > 0) & (a >= 0) & (a < 9) & (a <= 9), a, a * a),
    lambda a: jnp.where(~(a == 1) | (a != 2) & jnp.isfinite(a), jnp.outer(BOTH(a), BOTH(a)).T.ravel() @ jnp.ones(4), a),
    lambda a: lax.dynamic_slice(BOTH(a), (a.astype(int),), (1,))[0] * jnp.arange(2)[1] + a.astype("float32"),
    lambda a: lax.slice(jnp.concatenate([a[None], BOTH(a)]), (1,), (2,))[0],
]
ROW = (jnp.ones(()),) * 4


def _traced(function):
    with jax.numpy_dtype_promotion("standard"):
        whole = lambda x, y, xi, eta: function(x * y + 0.1).astype(float)
        return traced.trace_objective(whole, ROW, traced.second_derivatives)


def test_each_operation_on_the_list_has_derivatives():
    seen = set()
    for one in map(_traced, FUNCTIONS):
        names = {operation.name for operation in one.listing.operations}
        assert names <= operations._DIFFERENTIABLE
        assert operations.differentiable(one.program.body)
        seen |= names
        traced._check_derivatives(
            one.program, tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in one.constants), traced.second_derivatives
        )
    assert {name for name in operations._DIFFERENTIABLE if hasattr(lax, f"{name}_p")} <= seen


def test_other_operations_are_looked_at():
    loop = _traced(lambda a: lax.while_loop(lambda b: b < 3, lambda b: b * 2, a))
    assert not operations.differentiable(loop.program.body)
    with pytest.raises(ValueError, match="while_loop"):
        traced.check_derivatives(loop, traced.second_derivatives)
    inside = _traced(jax.jit(lambda a: jax.pure_callback(np.sin, a, a, vmap_method="sequential")))
    assert not operations.differentiable(inside.program.body)
