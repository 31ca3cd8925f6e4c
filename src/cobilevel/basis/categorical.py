"""A free policy for each of finitely many contexts."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..problem import Finite
from .base import Basis
from .one_hot import one_hot


class Categorical(Basis):
    """One free ``y`` for each value of a ``Finite`` domain; a value never observed keeps ``y0``."""

    def fit(self, domain, xi, weights=None):
        if not isinstance(domain, Finite):
            raise TypeError(f"Categorical needs a Finite domain, got {domain!r}. For an interval take Chebyshev(n).")
        return super().fit(domain, xi, weights)

    def evaluate(self, domain: Any, xi):
        dtype = xi.dtype if jnp.issubdtype(xi.dtype, jnp.floating) else jnp.result_type(float)
        return one_hot(domain.index(xi), len(domain.values), dtype)

    def cell(self, domain: Any, xi):
        return domain.index(xi)

    def count(self, domain: Any):
        return len(domain.values) if isinstance(domain, Finite) else None

    def constant(self, domain: Any):
        return np.ones(len(domain.values))
