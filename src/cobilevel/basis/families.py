"""Families of functions on the reference interval ``[-1, 1]``, multiplied over an index set in several dimensions."""

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..checks import positive, whole
from ..problem import Mixed, Periodic
from .base import Basis, check_count, plain_float, plain_integer
from .index_sets import IndexSet, Tensor


def products(
    values: Float[Array, "... all"], table: np.ndarray, starts: np.ndarray, from_one: bool
) -> Float[Array, "... N"]:
    """Products of functions that lie one after another, those of each coordinate from `starts` on.

    Where the first of each is 1 (`from_one`), such factors are left out.
    """
    places = starts + table
    if from_one:
        order = np.argsort(table == 0, axis=1, kind="stable")
        most = max(1, int(np.sum(table > 0, axis=1).max()))
        places = np.take_along_axis(places, order, axis=1)[:, :most]
    phi = values[..., places[:, 0]]
    for column in places.T[1:]:
        phi = phi * values[..., column]
    return phi


class ProductBasis(Basis):
    """Products of one-dimensional functions over an index set; ``n`` functions per dimension."""

    local: ClassVar[bool] = False  # whether functions live on cells, so that only halving these keeps the span

    n: int = eqx.field(static=True, converter=plain_integer)
    index: IndexSet = eqx.field(static=True, default=Tensor())

    def __check_init__(self):
        check_count(type(self).__name__, self.n)
        if not isinstance(self.index, IndexSet):
            raise TypeError(
                f"{type(self).__name__}: index must be Tensor(), TotalDegree(), HyperbolicCross(), Additive() or "
                f"Interactions(order), got {self.index!r}."
            )

    @abstractmethod
    def univariate(self, u: Float[Array, "..."]) -> Float[Array, "... n"]:
        """The one-dimensional functions on ``[-1, 1]``."""

    def evaluate(self, domain, xi):
        if isinstance(domain, Mixed):
            raise TypeError(
                f"{self!r} has one kind of functions, and {domain!r} several kinds of contexts. Write "
                f"cb.Components({{{', '.join(f'{name!r}: ...' for name in domain.names)}}})."
            )
        values = self.univariate(domain.reference(xi))
        table = self.index.table(self.n, domain.dimension)
        starts = np.arange(domain.dimension) * self.n
        from_one = type(self).constant is ProductBasis.constant
        return products(values.reshape(*values.shape[:-2], domain.dimension * self.n), table, starts, from_one)

    def count(self, domain):
        return self.index.count(self.n, domain.dimension)

    def constant(self, domain):
        table = self.index.table(self.n, domain.dimension)
        return (table.sum(axis=1) == 0).astype(float)

    def __repr__(self):
        index = "" if isinstance(self.index, Tensor) else f", index={self.index}"
        return f"{type(self).__name__}({self.n}{index})"


class PolynomialBasis(ProductBasis):
    r"""A polynomial family is its recurrence: $P_0 = 1$, $P_{k+1} = a_k u P_k - c_k P_{k-1}$."""

    @abstractmethod
    def recurrence(self) -> tuple[np.ndarray, np.ndarray]:
        """``a_k`` and ``c_k`` for ``k = 0 .. n-2``."""

    def univariate(self, u):
        def advance(carry, coefficients):
            before, now = carry
            a, c = coefficients
            after = (a * u) * now - c * before
            return (now, after), after

        one = jnp.ones_like(u)
        a, c = (jnp.asarray(v, u.dtype) for v in self.recurrence())
        _, higher = jax.lax.scan(advance, (jnp.zeros_like(u), one), (a, c))
        return jnp.moveaxis(jnp.concatenate([one[None], higher]), 0, -1)


class Chebyshev(PolynomialBasis):
    """Chebyshev polynomials of the first kind: the default, near-best for analytic policies."""

    def recurrence(self):
        k = np.arange(self.n - 1)
        return np.where(k == 0, 1.0, 2.0), np.ones(self.n - 1)


class Legendre(PolynomialBasis):
    """Legendre polynomials: orthogonal for contexts uniform on the box."""

    def recurrence(self):
        k = np.arange(self.n - 1)
        return (2 * k + 1) / (k + 1), k / (k + 1)


class Monomial(PolynomialBasis):
    """Powers ``1, u, u^2, ...`` on the reference interval; badly conditioned from about ``n = 10``."""

    def recurrence(self):
        return np.ones(self.n - 1), np.zeros(self.n - 1)


class Fourier(ProductBasis):
    """``1, sin, cos, sin, cos, ...`` with `period` in units of the domain's length.

    With the default of 2 the domain is half a period, so that policies that do not repeat do not ring; the price is
    near-dependence (smallest singular value 3e-7 at ``n = 20``). On a ``Periodic`` domain the period is at most 1, its
    length, so that ``Fourier(n)`` repeats as its contexts do.
    """

    period: float = eqx.field(static=True, converter=plain_float, default=2.0, kw_only=True)

    def __check_init__(self):
        positive("Fourier: period", self.period)  # 2.0 makes the domain half a period

    def evaluate(self, domain, xi):
        once = isinstance(domain, Periodic) and self.period > 1
        return ProductBasis.evaluate(replace(self, period=1.0) if once else self, domain, xi)

    def univariate(self, u):
        waves = np.arange(1, self.n // 2 + 1)
        angle = u[..., None] * jnp.asarray(np.pi / self.period * waves, u.dtype)
        pairs = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
        pairs = pairs.reshape(*u.shape, 2 * len(waves))
        return jnp.concatenate([jnp.ones_like(u)[..., None], pairs], axis=-1)[..., : self.n]


def _tensor_only(basis: ProductBasis) -> None:
    if not isinstance(basis.index, Tensor):
        raise ValueError(
            f"{type(basis).__name__} is local: its functions have no degree to truncate by, so only index=Tensor() is "
            "possible. For sparse index sets take Chebyshev, Legendre or Fourier."
        )


class Partition(ProductBasis):
    """One-hot of ``n`` equal cells per dimension: an independent ``y`` in each cell.

    The paper's stocBiO[N] is this basis and nothing else. A cell that holds no observed context keeps ``y0``.
    """

    local = True

    def __check_init__(self):
        _tensor_only(self)

    def univariate(self, u):
        return jax.nn.one_hot(self._interval(u), self.n, dtype=u.dtype)

    def _interval(self, u: Float[Array, "..."]) -> Int[Array, "..."]:
        """The number of the cell along each coordinate."""
        return jnp.clip(jnp.floor((u + 1) / 2 * self.n), 0, self.n - 1).astype(int)

    def cell(self, domain, xi):
        along = self._interval(domain.reference(xi))
        radix = self.n ** np.arange(domain.dimension)
        order = np.argsort(self.index.table(self.n, domain.dimension) @ radix)
        return jnp.asarray(order)[along @ radix]

    def constant(self, domain):
        return np.ones(self.n**domain.dimension)


class BSpline(ProductBasis):
    """``n`` B-splines on equal, clamped knots per dimension: local and smooth, for policies with kinks."""

    local = True

    degree: int = eqx.field(static=True, converter=plain_integer, default=3, kw_only=True)

    def __check_init__(self):
        _tensor_only(self)
        whole("BSpline: degree", self.degree, 0)

    def univariate(self, u):
        degree = min(self.degree, self.n - 1)
        spans = self.n - degree
        knots = np.concatenate([-np.ones(degree), np.linspace(-1, 1, spans + 1), np.ones(degree)])
        span = jnp.clip(jnp.floor((u + 1) / 2 * spans), 0, spans - 1).astype(int) + degree
        values = jax.nn.one_hot(span, len(knots) - 1, dtype=u.dtype)
        for p in range(1, degree + 1):  # Cox-de Boor; a quotient 0/0 counts as 0
            count = len(knots) - 1 - p
            width = np.maximum(knots[p : p + count + 1] - knots[: count + 1], 1e-300)
            weight = np.where(width > 1e-300, 1 / width, 0).astype(u.dtype)
            rise = (u[..., None] - knots[:count].astype(u.dtype)) * weight[:count]
            fall = (knots[p + 1 : p + 1 + count].astype(u.dtype) - u[..., None]) * weight[1:]
            values = rise * values[..., :-1] + fall * values[..., 1:]
        return values

    def constant(self, domain):
        return np.ones(self.n**domain.dimension)
