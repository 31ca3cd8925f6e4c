"""A user's own functions of the context."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from ..host import module_of
from ..problem import Domain, failure
from ..programs import program
from .base import Basis, check_count, plain_integer

_ROWS_AT_ONCE = 1024  # contexts of one call of a user's function: it is compiled for so many, whatever the data


class Features(Basis):
    """A user's own functions: ``function(xi)`` returns an array of shape ``(n,)`` for ONE context."""

    function: Callable[[Array], Array]
    n: int = eqx.field(static=True, converter=plain_integer)

    def __check_init__(self):
        check_count("Features", self.n)
        if not callable(self.function):
            raise TypeError(f"Features: function must map one context to an array of shape ({self.n},).")

    def evaluate(self, domain, xi):
        lead = xi.shape[: xi.ndim - len(domain.shape)]
        flat = xi.reshape(math.prod(lead), *domain.shape)
        if module_of(xi) is np:
            blocks = [flat[k : k + _ROWS_AT_ONCE] for k in range(0, max(1, len(flat)), _ROWS_AT_ONCE)]
            found = [np.asarray(_of_block(self, domain, _filled(block)))[: len(block)] for block in blocks]
            return np.concatenate(found).reshape(*lead, self.n)
        return self._of_rows(domain, flat).reshape(*lead, self.n)

    def _of_rows(self, domain: Domain, flat: Shaped[Array, "rows ..."]) -> Float[Array, "rows n"]:
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
        return phi

    def count(self, domain):
        return self.n

    def constant(self, domain):
        return None


@program
def _of_block(basis: Features, domain: Domain, rows: Shaped[Array, "rows ..."]) -> Float[Array, "rows n"]:
    return basis._of_rows(domain, rows)


def _filled(rows: np.ndarray) -> np.ndarray:
    """Contexts repeated up to a full block."""
    return rows[np.arange(_ROWS_AT_ONCE) % len(rows)] if len(rows) else np.zeros((1, *rows.shape[1:]), rows.dtype)
