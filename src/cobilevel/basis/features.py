"""A user's own functions of the context."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array

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
        flat = xi.reshape(-1, *domain.shape)
        phi = jax.vmap(lambda row: self.function(domain.unpack(row)))(flat)
        if getattr(phi, "shape", None) != (len(flat), self.n):
            shape = getattr(phi, "shape", (None,))[1:]
            raise ValueError(f"Features: function(xi) must return an array of shape ({self.n},), got {shape}.")
        return phi.reshape(*xi.shape[: xi.ndim - len(domain.shape)], self.n)

    def constant(self, domain):
        return None
