"""Derivatives of one plain function at one point: what exact solves of single contexts are made of."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PyTree

Objective = Callable[[Float[Array, " n"]], Float[Array, ""]]


def value_and_slope(objective: Objective) -> Callable[[Array], tuple[Array, Array]]:
    """The value and the gradient."""
    return jax.value_and_grad(objective)


def local_model(objective: Objective) -> Callable[[Array], tuple[Array, Array, Array]]:
    """The value, the gradient and the Hessian."""
    return lambda z: (*jax.value_and_grad(objective)(z), jax.hessian(objective)(z))


def hessian_product(objective: Objective) -> Callable[[Array, Array], Array]:
    """The Hessian at the first argument times the second, without forming it."""
    return lambda z, v: jax.jvp(jax.grad(objective), (z,), (v,))[1]


def lower_derivatives(
    objective: Callable[[Array, Array], Array], x: Float[Array, " dx"], z: Float[Array, " dy"]
) -> tuple[Float[Array, " dy"], Float[Array, "dy dy"], Float[Array, "dy dx"]]:
    """``d2``, ``d22`` and ``d21`` of a function of two vectors."""
    slope = jax.grad(objective, argnums=1)
    mixed = jax.jacfwd if len(x) <= len(z) else jax.jacrev
    return slope(x, z), jax.jacfwd(slope, argnums=1)(x, z), mixed(slope, argnums=0)(x, z)


def upper_derivatives(
    upper: Callable, x: PyTree, y: PyTree, xi: Array, eta: PyTree
) -> tuple[Float[Array, " n"], PyTree, PyTree]:
    """``(f, d1 f, d2 f)`` sample by sample, at a ``y`` for each."""
    rows = jax.vmap(jax.value_and_grad(upper, argnums=(0, 1)), in_axes=(None, 0, 0, 0))
    values, (d1, d2) = rows(x, y, xi, eta)
    return values, d1, d2


def lower_slopes(lower: Callable, x: PyTree, y: PyTree, xi: Array, eta: PyTree) -> tuple[Float[Array, " n"], PyTree]:
    """``(g, d2 g)`` sample by sample, at a ``y`` for each."""
    return jax.vmap(jax.value_and_grad(lower, argnums=1), in_axes=(None, 0, 0, 0))(x, y, xi, eta)
