"""A user's own functions of the context."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array

from ..problem import failure
from .base import Basis, check_count, plain_integer


class Features(Basis):
    """A user's own functions: ``function(xi)`` returns an array of shape ``(n,)`` for ONE context."""

    function: Callable[[Array], Array]
    n: int = eqx.field(static=True, converter=plain_integer)

    def __check_init__(self):
        check_count("Features", self.n)
        if not callable(self.function):
            raise TypeError(f"Features: function must map one context to an array of shape ({self.n},).")

    def evaluate(self, domain, xi):
        flat = xi.reshape(math.prod(xi.shape[: xi.ndim - len(domain.shape)]), *domain.shape)
        try:
            phi = jax.vmap(lambda row: self.function(domain.unpack(row)))(flat)
        except Exception as error:
            raise failure("Features: function(xi)", error, "fails on one context") from error
        if getattr(phi, "shape", None) != (len(flat), self.n):
            shape = getattr(phi, "shape", (None,))[1:] if hasattr(phi, "shape") else f"a {type(phi).__name__}"
            raise ValueError(
                f"Features: function(xi) must return an array of shape ({self.n},), got {shape}; jnp.stack makes one "
                "of several numbers."
            )
        return phi.reshape(*xi.shape[: xi.ndim - len(domain.shape)], self.n)

    def count(self, domain):
        return self.n

    def constant(self, domain):
        return None
