"""Bases given by the user: a free value for each category, functions of one's own, several bases together."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..problem.domain import Finite
from .base import Basis, check_count, plain_integer


class Categorical(Basis):
    """One free ``y`` for each value of a ``Finite`` domain; a value never observed keeps ``y0``."""

    def fit(self, domain, xi, weights=None):
        if not isinstance(domain, Finite):
            raise TypeError(f"Categorical needs a Finite domain, got {domain!r}. For an interval take Chebyshev(n).")
        return super().fit(domain, xi, weights)

    def evaluate(self, domain: Any, xi):
        dtype = xi.dtype if jnp.issubdtype(xi.dtype, jnp.floating) else float
        return jax.nn.one_hot(domain.index(xi), len(domain.values), dtype=dtype)

    def constant(self, domain: Any):
        return np.ones(len(domain.values))


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
        phi = jax.vmap(self.function)(flat)
        if getattr(phi, "shape", None) != (len(flat), self.n):
            shape = getattr(phi, "shape", (None,))[1:]
            raise ValueError(f"Features: function(xi) must return an array of shape ({self.n},), got {shape}.")
        return phi.reshape(*xi.shape[: xi.ndim - len(domain.shape)], self.n)

    def constant(self, domain):
        return None


class Union(Basis):
    """The functions of several bases together; whiten it (``Orthonormal``) where they overlap."""

    parts: tuple[Basis, ...] = eqx.field(
        converter=lambda parts: tuple(parts) if isinstance(parts, Iterable) else (None,)
    )

    def __check_init__(self):
        if not self.parts or not all(isinstance(part, Basis) for part in self.parts):
            raise TypeError(f"Union takes bases, such as Union([Chebyshev(5), Partition(4)]), got {self.parts!r}.")

    def evaluate(self, domain, xi):
        return jnp.concatenate([part.evaluate(domain, xi) for part in self.parts], axis=-1)

    def constant(self, domain):
        return None

    def with_parts(self, change):
        return Union([change(part) for part in self.parts])

    @property
    def learned(self):
        return all(part.learned for part in self.parts)

    def __repr__(self):
        return f"Union([{', '.join(map(repr, self.parts))}])"
