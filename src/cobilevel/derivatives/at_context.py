r"""Both levels at one context, as functions of vectors ``x`` and ``y``: means over rows of noise, differentiated.

What methods that do not reduce ask for. The mean is differentiated, not its rows: over many rows of data a
Hessian-vector product then takes two products of matrices.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..functions import Traced
from .rows import of_vectors

_Slopes = tuple[Float[Array, ""], Float[Array, " dx"], Float[Array, " dy"]]


class AtContext(eqx.Module):
    """The two objectives. `eta` holds rows of noise at the context `xi`, `weights` the share of each."""

    upper: Traced
    lower: Traced

    def _mean(self, objective: Traced, x: Any, y: Any, xi: Any, eta: PyTree, weights: Any) -> Float[Array, ""]:
        function = of_vectors(objective.program, objective.constants)
        row = lambda noise, weight: weight * function(x, y, xi, noise).astype(weight.dtype)
        return jnp.sum(jax.vmap(row)(eta, weights))

    def mean(self, x: Any, y: Any, xi: Any, eta: PyTree, weights: Any) -> Float[Array, ""]:
        """The mean of ``g``."""
        return self._mean(self.lower, x, y, xi, eta, weights)

    def upper_slopes(self, x: Any, y: Any, xi: Any, eta: PyTree, weights: Any) -> _Slopes:
        """The mean of ``f`` with its gradients in ``x`` and ``y``."""
        value = lambda p, q: self._mean(self.upper, p, q, xi, eta, weights)
        mean, (d1, d2) = jax.value_and_grad(value, argnums=(0, 1))(x, y)
        return mean, d1, d2

    def slope(self, x: Any, y: Any, *rows: Any) -> tuple[Float[Array, ""], Float[Array, " dy"]]:
        """The mean of ``g``, with its gradient in ``y``."""
        return jax.value_and_grad(self.mean, argnums=1)(x, y, *rows)

    def hessian(self, x: Any, y: Any, *rows: Any) -> Float[Array, "dy dy"]:
        """``d22 g``."""
        return jax.jacfwd(lambda q: jax.grad(self.mean, argnums=1)(x, q, *rows))(y)

    def product(self, x: Any, y: Any, v: Any, *rows: Any) -> Float[Array, " dy"]:
        """``d22 g v``."""
        return jax.jvp(lambda q: jax.grad(self.mean, argnums=1)(x, q, *rows), (y,), (v,))[1]

    def cross(self, x: Any, y: Any, v: Any, *rows: Any) -> Float[Array, " dx"]:
        """``d12 g v``: the gradient in ``x`` of ``<d2 g, v>``."""
        along = lambda p: jax.jvp(lambda q: self.mean(p, q, *rows), (y,), (v,))[1]
        return jax.grad(along)(x)


def parameter_gradient(loss: Any, parameters: PyTree) -> PyTree:
    """Of a loss in the parameters of a network."""
    return eqx.filter_grad(loss)(parameters)
