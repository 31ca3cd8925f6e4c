"""Families of functions on the reference interval ``[-1, 1]``, multiplied over an index set in several dimensions; one
function for each category; and a user's own functions.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ..functions import failure
from ..ground import Held, module_of, plain, positive, program, whole
from ..problem import Domain, Finite, Mixed, Periodic
from .base import Basis, plain_number
from .index_sets import IndexSet, Tensor, check_index
from .tables import one_hot

_ROWS_AT_ONCE = 1024  # contexts of one call of a user's function: it is compiled for so many, whatever the data


def products(
    values: Float[Held, "... all"], table: np.ndarray, starts: np.ndarray, from_one: bool
) -> Float[Held, "... N"]:
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

    n: int = eqx.field(static=True, converter=plain_number)
    index: IndexSet = eqx.field(static=True, default=Tensor())

    def __check_init__(self):
        name = type(self).__name__
        whole(f"{name}: n", self.n, what="the functions per dimension")
        check_index(f"{name}: index", self.index)
        if self.local and not isinstance(self.index, Tensor):
            raise ValueError(
                f"{name} is local: its functions have no degree to truncate by, so only index=Tensor() is possible. "
                "For sparse index sets use Chebyshev, Legendre or Fourier."
            )

    def resized(self, n: int) -> Any:
        """The same family with `n` functions per dimension."""
        return replace(self, n=n)

    @abstractmethod
    def univariate(self, u: Float[Held, "..."]) -> Float[Held, "... n"]:
        """The one-dimensional functions on ``[-1, 1]``."""

    @plain
    def evaluate(self, domain, xi):
        if isinstance(domain, Mixed):
            raise TypeError(
                f"{self!r} has one kind of function, but {domain!r} has several kinds of contexts. Use "
                f"cb.Components({{{', '.join(f'{name!r}: ...' for name in domain.names)}}})."
            )
        values = self.univariate(domain.reference(xi))
        if domain.dimension == 1 and isinstance(self.index, Tensor):
            return values[..., 0, :]
        table = self.index.table(self.n, domain.dimension)
        starts = np.arange(domain.dimension) * self.n
        from_one = not self.local and type(self).constant is ProductBasis.constant
        return products(values.reshape(*values.shape[:-2], domain.dimension * self.n), table, starts, from_one)

    def count(self, domain):
        return self.index.count(self.n, domain.dimension)

    @plain
    def degree_of(self, k: Any) -> Any:
        """The degrees of functions of one coordinate, by number; those of all cells count as 1."""
        return np.minimum(k, 1) if self.local else k

    def constant(self, domain):
        if self.local:
            return np.ones(self.n**domain.dimension)
        return (self.index.table(self.n, domain.dimension).sum(axis=1) == 0).astype(float)

    def __repr__(self):
        index = "" if isinstance(self.index, Tensor) else f", index={self.index}"
        return f"{type(self).__name__}({self.n}{index})"


class PolynomialBasis(ProductBasis):
    r"""A polynomial family is its recurrence: $P_0 = 1$, $P_{k+1} = a_k u P_k - c_k P_{k-1}$."""

    @abstractmethod
    def recurrence(self) -> tuple[np.ndarray, np.ndarray]:
        """``a_k`` and ``c_k`` for ``k = 0 .. n-2``."""

    @plain
    def univariate(self, u):
        xp, (a, c) = module_of(u), (part.tolist() for part in self.recurrence())
        values = [xp.ones_like(u)]
        for k in range(self.n - 1):
            ahead = a[k] * u * values[k]
            values.append(ahead - c[k] * values[k - 1] if k and c[k] else ahead)
        return xp.moveaxis(xp.stack(values), 0, -1)


class Chebyshev(PolynomialBasis):
    """Chebyshev polynomials of the first kind: the default, near-best for analytic policies.

    **Arguments:**

    - `n`: how many functions per dimension.
    - `index`: which products there are in several dimensions: ``Tensor()``, ``TotalDegree()``, ``HyperbolicCross()``,
      ``Additive()``, ``Interactions(order)`` or ``Listed(members)``.

    **Example:**

    >>> grid = np.linspace(0.0, 1.0, 50)
    >>> basis = cb.Chebyshev(3).fit(cb.Interval(0.0, 1.0), grid)
    >>> basis(np.array([0.0, 0.5, 1.0])).round(3).tolist()
    [[1.0, -1.0, 1.0], [1.0, 0.0, -1.0], [1.0, 1.0, 1.0]]
    >>> cb.Chebyshev(6, index=cb.TotalDegree())
    Chebyshev(6, index=TotalDegree())
    """

    @plain
    def recurrence(self):
        k = np.arange(self.n - 1)
        return np.where(k == 0, 1.0, 2.0), np.ones(self.n - 1)


class Legendre(PolynomialBasis):
    """Legendre polynomials: orthogonal for contexts uniform on the box.

    **Arguments:**

    - `n`: how many functions per dimension.
    - `index`: which products there are in several dimensions: ``Tensor()``, ``TotalDegree()``, ``HyperbolicCross()``,
      ``Additive()``, ``Interactions(order)`` or ``Listed(members)``.

    **Example:**

    >>> grid = np.linspace(0.0, 1.0, 50)
    >>> basis = cb.Legendre(3).fit(cb.Interval(0.0, 1.0), grid)
    >>> basis(np.array([0.0, 1.0])).round(3).tolist()
    [[1.0, -1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    @plain
    def recurrence(self):
        k = np.arange(self.n - 1)
        return (2 * k + 1) / (k + 1), k / (k + 1)


class Monomial(PolynomialBasis):
    """Powers ``1, u, u^2, ...`` on the reference interval; badly conditioned from about ``n = 10``.

    **Arguments:**

    - `n`: how many functions per dimension.
    - `index`: which products there are in several dimensions: ``Tensor()``, ``TotalDegree()``, ``HyperbolicCross()``,
      ``Additive()``, ``Interactions(order)`` or ``Listed(members)``.

    **Example:**

    >>> grid = np.linspace(0.0, 1.0, 50)
    >>> basis = cb.Monomial(3).fit(cb.Interval(0.0, 1.0), grid)
    >>> basis(np.array([0.0, 0.5, 1.0])).round(3).tolist()
    [[1.0, -1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """

    @plain
    def recurrence(self):
        return np.ones(self.n - 1), np.zeros(self.n - 1)


class Fourier(ProductBasis):
    """``1, sin, cos, sin, cos, ...`` with `period` in units of the domain's length.

    With the default of 2 the domain is half a period, so that policies that are not periodic do not ring; the price is
    near-dependence (smallest singular value 3e-7 at ``n = 20``). On a ``Periodic`` domain the period is at most 1, its
    length, so that ``Fourier(n)`` repeats with the contexts.

    **Arguments:**

    - `n`: how many functions per dimension.
    - `index`: which products there are in several dimensions: ``Tensor()``, ``TotalDegree()``, ``HyperbolicCross()``,
      ``Additive()``, ``Interactions(order)`` or ``Listed(members)``.
    - `period`: the period of the lowest frequency, in units of the domain's length.

    **Example:**

    >>> hours = np.arange(24.0)
    >>> basis = cb.Fourier(3).fit(cb.Periodic(0.0, 24.0), hours)
    >>> bool(np.allclose(basis(np.array(1.0)), basis(np.array(25.0))))
    True
    """

    period: float = eqx.field(static=True, converter=plain_number, default=2.0, kw_only=True)

    def __check_init__(self):
        positive("Fourier: period", self.period)  # 2.0 makes the domain half a period

    def evaluate(self, domain, xi):
        once = isinstance(domain, Periodic) and self.period > 1
        if once and self.period != Fourier.period:
            raise ValueError(
                f"Fourier: period={self.period:g} is in units of the domain's length, but functions on {domain!r} "
                "repeat with it: use period=1, the default there, or 1/2, 1/3, ... of it."
            )
        return ProductBasis.evaluate(replace(self, period=1.0) if once else self, domain, xi)

    @plain
    def degree_of(self, k):
        """A sine and its cosine count by their frequency."""
        return (k + 1) // 2

    @plain
    def univariate(self, u):
        xp, waves = module_of(u), np.arange(1, self.n // 2 + 1)
        angle = u[..., None] * (np.pi / self.period * waves).astype(u.dtype)
        pairs = xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1).reshape(*u.shape, 2 * len(waves))
        return xp.concatenate([xp.ones_like(u)[..., None], pairs], axis=-1)[..., : self.n]


def _cell_of(u: Float[Held, "..."], n: int) -> Int[Held, "..."]:
    """Which of ``n`` equal cells of ``[-1, 1]`` each number lies in; of NaN, the first."""
    xp = module_of(u)
    cell = xp.floor((u + 1) / 2 * n)
    return xp.clip(xp.where(xp.isnan(cell), 0, cell), 0, n - 1).astype(int)


class Partition(ProductBasis):
    """One-hot of ``n`` equal cells per dimension: an independent ``y`` in each cell.

    The paper's stocBiO[N] is exactly this basis. A cell without observed contexts keeps ``y0``.

    **Arguments:**

    - `n`: how many functions per dimension.
    - `index`: which products there are in several dimensions: ``Tensor()`` only.

    **Example:**

    >>> grid = np.linspace(0.0, 1.0, 50)
    >>> basis = cb.Partition(4).fit(cb.Interval(0.0, 1.0), grid)
    >>> basis(np.array([0.1, 0.6])).round(1).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    """

    local = True

    @plain
    def univariate(self, u):
        return one_hot(_cell_of(u, self.n), self.n, u.dtype)

    def cell(self, domain, xi):
        along = _cell_of(domain.reference(xi), self.n)
        radix = self.n ** np.arange(domain.dimension)
        order = np.argsort(self.index.table(self.n, domain.dimension) @ radix)
        return module_of(along).asarray(order)[along @ radix]


class BSpline(ProductBasis):
    """``n`` B-splines on equal, clamped knots per dimension: local and smooth, for policies with kinks.

    **Arguments:**

    - `n`: how many functions per dimension.
    - `index`: which products there are in several dimensions: ``Tensor()`` only.
    - `degree`: the degree of the pieces, 3 for cubic splines.

    **Example:**

    >>> grid = np.linspace(0.0, 1.0, 50)
    >>> basis = cb.BSpline(6).fit(cb.Interval(0.0, 1.0), grid)
    >>> float(basis(np.array(0.3)).sum().round(6))  # they add up to 1
    1.0
    """

    local = True

    degree: int = eqx.field(static=True, converter=plain_number, default=3, kw_only=True)

    def __check_init__(self):
        whole("BSpline: degree", self.degree, 0)

    @plain
    def univariate(self, u):
        degree = min(self.degree, self.n - 1)
        spans = self.n - degree
        knots = np.concatenate([-np.ones(degree), np.linspace(-1, 1, spans + 1), np.ones(degree)])
        values = one_hot(_cell_of(u, spans) + degree, len(knots) - 1, u.dtype)
        for p in range(1, degree + 1):  # Cox-de Boor; a quotient 0/0 counts as 0
            count = len(knots) - 1 - p
            width = knots[p : p + count + 1] - knots[: count + 1]
            weight = np.divide(1, width, out=np.zeros_like(width), where=width > 0).astype(u.dtype)
            rise = (u[..., None] - knots[:count].astype(u.dtype)) * weight[:count]
            fall = (knots[p + 1 : p + 1 + count].astype(u.dtype) - u[..., None]) * weight[1:]
            values = rise * values[..., :-1] + fall * values[..., 1:]
        return values


class Categorical(Basis):
    """One free ``y`` for each value of a ``Finite`` domain; a value never observed keeps ``y0``.

    **Example:**

    >>> days = cb.Finite(["mon", "tue", "wed"])
    >>> basis = cb.Categorical().fit(days, np.array([0, 1, 2, 0]))
    >>> basis.size
    3
    """

    local = True

    def fit(self, domain, xi, weights=None):
        if not isinstance(domain, Finite):
            raise TypeError(f"Categorical needs a Finite domain, got {domain!r}. For an interval use Chebyshev(n).")
        return super().fit(domain, xi, weights)

    def evaluate(self, domain: Any, xi):
        dtype = xi.dtype if jnp.issubdtype(xi.dtype, jnp.floating) else jnp.result_type(float)
        return one_hot(domain.index(xi), len(domain.values), dtype)

    def cell(self, domain: Any, xi):
        return domain.index(xi)

    def count(self, domain: Any):
        return len(domain.values) if isinstance(domain, Finite) else None

    @plain
    def degree_of(self, k: Any) -> Any:
        """All values count as of degree 1."""
        return np.minimum(k, 1)

    def constant(self, domain: Any):
        return np.ones(len(domain.values))


class Features(Basis):
    """A user's own functions: ``function(xi)`` returns an array of shape ``(n,)`` for ONE context.

    **Arguments:**

    - `function`: a function of one context, in JAX.
    - `n`: how many numbers it returns.

    **Example:**

    >>> basis = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), jnp.abs(xi)]), 2)
    >>> fitted = basis.fit(cb.Interval(-1.0, 1.0), np.linspace(-1.0, 1.0, 50))
    >>> fitted(np.array([-0.5, 0.25])).round(2).tolist()
    [[1.0, 0.5], [1.0, 0.25]]
    """

    function: Callable[[Array], Array]
    n: int = eqx.field(static=True, converter=plain_number)

    def __check_init__(self):
        whole("Features: n", self.n, what="the number of functions")
        if not callable(self.function):
            raise TypeError(f"Features: function must map one context to an array of shape ({self.n},).")

    def evaluate(self, domain, xi):
        lead = xi.shape[: xi.ndim - len(domain.shape)]
        flat = xi.reshape(math.prod(lead), *domain.shape)
        if module_of(xi) is np:
            padded = np.resize(flat, (max(1, -(-len(flat) // _ROWS_AT_ONCE)) * _ROWS_AT_ONCE, *domain.shape))
            blocks = padded.reshape(-1, _ROWS_AT_ONCE, *domain.shape)
            values = np.concatenate([np.asarray(_of_block(self, domain, block)) for block in blocks])
            return values[: len(flat)].reshape(*lead, self.n)
        return self._of_rows(domain, flat).reshape(*lead, self.n)

    def _of_rows(self, domain: Domain, flat: Shaped[Array, "rows ..."]) -> Float[Array, "rows n"]:
        try:
            phi = jax.vmap(lambda row: self.function(domain.unpack(row)))(flat)
        except Exception as error:
            raise failure("Features: function(xi)", error, "fails on one context") from error
        if getattr(phi, "shape", None) != (len(flat), self.n):
            shape = getattr(phi, "shape", (None,))[1:] if hasattr(phi, "shape") else f"a {type(phi).__name__}"
            raise ValueError(
                f"Features: function(xi) must return an array of shape ({self.n},), got {shape}. Combine several "
                "numbers with jnp.stack."
            )
        return phi

    def count(self, domain):
        return self.n

    def constant(self, domain):
        return None


@program
def _of_block(basis: Features, domain: Domain, rows: Shaped[Array, "rows ..."]) -> Float[Array, "rows n"]:
    return basis._of_rows(domain, rows)
