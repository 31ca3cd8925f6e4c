"""Functions of a few learned directions of the context."""

from dataclasses import replace

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..checks import whole
from ..host import module_of
from ..problem import Box
from ..programs import Held
from .base import Basis, plain_integer
from .families import Chebyshev, ProductBasis
from .index_sets import TotalDegree
from .learned import UNLEARNED


class Rotated(Basis):
    r"""A basis in ``k`` linear combinations of the context's coordinates, learned from the problem.

    For policies $y^\star(\xi) = h(a_1 \cdot \xi, \dots, a_k \cdot \xi)$ that vary along few directions, which products
    over the coordinates themselves take very many functions to follow. Directions come from the gradients of a rough
    fit, and are then refined together with polynomials in them, by Gauss-Newton steps on the lower objective. Beyond
    the contexts observed along a direction, the policy stays as it is at the last of them.

    **Arguments:**

    - `k`: how many directions, one to three or so.
    - `basis`: a family in ``k`` dimensions; ``Chebyshev(6, index=TotalDegree())`` when left out.
    """

    k: int = eqx.field(static=True, converter=plain_integer)
    basis: Basis = eqx.field(default_factory=lambda: Chebyshev(6, index=TotalDegree()))
    axes: Float[Held, "d k"] | None = None  # learned, so that observed contexts fill the cube
    shift: Float[Held, " k"] | None = None

    def __check_init__(self):
        whole("Rotated: k", self.k, 1, "the directions")
        if not isinstance(self.basis, ProductBasis):
            raise TypeError(f"Rotated: basis must be a family such as Chebyshev(6), got {self.basis!r}.")

    @property
    def learned(self):
        return self.axes is not None

    def forgotten(self):
        return replace(self, axes=None, shift=None)

    def _cube(self) -> Box:
        return Box(-np.ones(self.k), np.ones(self.k))

    def evaluate(self, domain, xi):
        if self.axes is None or self.shift is None:
            raise RuntimeError(UNLEARNED.format(self))
        u = domain.reference(xi)
        z = u @ self.axes.astype(u.dtype) + self.shift.astype(u.dtype)
        return self.basis.evaluate(self._cube(), module_of(z).clip(z, -1, 1))

    def count(self, domain):
        return self.basis.count(self._cube())

    def constant(self, domain):
        return self.basis.constant(self._cube())

    def __repr__(self):
        return f"Rotated({self.k}, {self.basis!r})"
