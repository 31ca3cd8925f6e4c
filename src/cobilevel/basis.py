r"""Bases: families of functions of the context, and the feature map $\Phi(\xi) \in R^N$ they give on a domain.

A basis is what a user names, ``Chebyshev(5)``; fitted to a domain and to the contexts observed there it becomes a
``FeatureMap``, which can be called. All families are written on the reference interval ``[-1, 1]``; in several
dimensions they are multiplied over an index set.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from .checks import whole
from .domain import Domain, Finite
from .indices import IndexSet, Tensor


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A fitted basis: call it with contexts, batched over leading axes, to get features, NaN outside the domain.

    `transform`, when there is one, mixes the functions of `basis` into `size` new ones; `constant` holds the
    coefficients of the function 1 (or its best fit).
    """

    def __repr__(self):
        return f"FeatureMap({self.basis!r} on {self.domain!r}, size={self.size})"

    basis: "Basis"
    domain: Domain
    transform: Float[Array, "raw N"] | None
    constant: Float[Array, " N"]

    @property
    def size(self) -> int:
        """``N``, the number of functions."""
        return len(self.constant)

    def __call__(self, xi: Shaped[Array, "..."]) -> Float[Array, "... N"]:
        xi = jnp.asarray(xi)
        depth = len(self.domain.shape)
        if xi.shape[xi.ndim - depth :] != self.domain.shape or xi.ndim < depth:
            raise ValueError(f"contexts of {self.domain!r} end in shape {self.domain.shape}, got {xi.shape}.")
        return _features(self, xi)


@eqx.filter_jit
def _features(fitted: FeatureMap, xi: Shaped[Array, "..."]) -> Float[Array, "... N"]:
    dtype = fitted.constant.dtype
    inside = fitted.domain.contains(xi)  # judged in the precision the contexts came in
    xi = xi.astype(dtype) if jnp.issubdtype(xi.dtype, jnp.floating) else xi
    phi = fitted.basis.evaluate(fitted.domain, xi).astype(dtype)
    if fitted.transform is not None:
        phi = phi @ fitted.transform
    return jnp.where(inside[..., None], phi, jnp.nan)


class Basis(eqx.Module):
    """A recipe for functions of the context."""

    @abstractmethod
    def evaluate(self, domain: Domain, xi: Shaped[Array, "..."]) -> Float[Array, "... raw"]:
        """The functions at the contexts, before any transform."""

    @abstractmethod
    def constant(self, domain: Domain) -> np.ndarray | None:
        """Coefficients of the function 1; ``None`` where that is a matter of fitting."""

    def fit(self, domain: Domain, xi: Shaped[Array, "n ..."], weights: Float[Array, " n"] | None = None) -> FeatureMap:
        """The feature map on a domain, given the observed contexts (and their weights)."""
        xi = jnp.asarray(xi)
        dtype = xi.dtype if jnp.issubdtype(xi.dtype, jnp.floating) else float
        constant = self.constant(domain)
        if constant is None:
            phi = np.asarray(eqx.filter_jit(self.evaluate)(domain, xi))
            if not np.isfinite(phi).all():
                raise ValueError(f"basis {self!r} gives NaN or infinity at observed contexts; check its function.")
            constant = np.linalg.lstsq(phi, np.ones(len(phi)), rcond=None)[0]
        return FeatureMap(self, domain, None, jnp.asarray(constant, dtype))


def _plain(n: Any) -> Any:
    """NumPy integers as Python ones."""
    return int(n) if isinstance(n, np.integer) else n


def _check_count(name: str, n: Any) -> None:
    whole(f"{name}: n", n, what="the functions per dimension")


class ProductBasis(Basis):
    """Products of one-dimensional functions over an index set; ``n`` functions per dimension."""

    n: int = eqx.field(static=True, converter=_plain)
    index: IndexSet = eqx.field(static=True, default=Tensor())

    def __check_init__(self):
        _check_count(type(self).__name__, self.n)
        if not isinstance(self.index, IndexSet):
            raise TypeError(
                f"{type(self).__name__}: index must be Tensor(), TotalDegree() or HyperbolicCross(), got "
                f"{self.index!r}."
            )

    @abstractmethod
    def univariate(self, u: Float[Array, "..."]) -> Float[Array, "... n"]:
        """The one-dimensional functions on ``[-1, 1]``."""

    def evaluate(self, domain, xi):
        values = self.univariate(domain.reference(xi))
        table = self.index.table(self.n, domain.dimension)
        phi = values[..., 0, table[:, 0]]
        for j in range(1, domain.dimension):
            phi = phi * values[..., j, table[:, j]]
        return phi

    def constant(self, domain):
        table = self.index.table(self.n, domain.dimension)
        return (table.sum(axis=1) == 0).astype(float)

    def __repr__(self):
        index = "" if isinstance(self.index, Tensor) else f", index={type(self.index).__name__}()"
        return f"{type(self).__name__}({self.n}{index})"


class Polynomial(ProductBasis):
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


class Chebyshev(Polynomial):
    """Chebyshev polynomials of the first kind: the default, near-best for analytic policies."""

    def recurrence(self):
        k = np.arange(self.n - 1)
        return np.where(k == 0, 1.0, 2.0), np.ones(self.n - 1)


class Legendre(Polynomial):
    """Legendre polynomials: orthogonal for contexts uniform on the box."""

    def recurrence(self):
        k = np.arange(self.n - 1)
        return (2 * k + 1) / (k + 1), k / (k + 1)


class Monomial(Polynomial):
    """Powers ``1, u, u^2, ...`` on the reference interval; badly conditioned from about ``n = 10``."""

    def recurrence(self):
        return np.ones(self.n - 1), np.zeros(self.n - 1)


class Fourier(ProductBasis):
    """``1, sin, cos, sin, cos, ...`` with `period` in units of the domain's length.

    With the default of 2 the domain is half a period, so that policies that do not repeat do not ring; the price is
    near-dependence (smallest singular value 3e-7 at ``n = 20``). For truly periodic contexts take ``period=1.0``.
    """

    period: float = eqx.field(static=True, default=2.0, kw_only=True)

    def __check_init__(self):
        if not self.period > 0:
            raise ValueError(
                f"Fourier: period must be positive, got {self.period}: 2.0 makes the domain half a period."
            )

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

    def __check_init__(self):
        _tensor_only(self)

    def univariate(self, u):
        cell = jnp.clip(jnp.floor((u + 1) / 2 * self.n), 0, self.n - 1)
        return jax.nn.one_hot(cell.astype(int), self.n, dtype=u.dtype)

    def constant(self, domain):
        return np.ones(self.n**domain.dimension)


class BSpline(ProductBasis):
    """``n`` B-splines on equal, clamped knots per dimension: local and smooth, for policies with kinks."""

    degree: int = eqx.field(static=True, default=3, kw_only=True)

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
    n: int = eqx.field(static=True, converter=_plain)

    def __check_init__(self):
        _check_count("Features", self.n)
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Whitening:
    r"""New coordinates in which the observed features are orthonormal: $\Psi = \Phi T$, $E[\Psi \Psi^T] = I$.

    From the singular value decomposition of the weighted features themselves (never from their Gram matrix, which
    squares the condition number). Directions below `tolerance` of the largest singular value are cut: there the data
    cannot tell coefficients apart.
    """

    transform: Float[Array, "N r"]
    inverse: Float[Array, "r N"]
    singular_values: Float[Array, " N"]

    @property
    def rank(self) -> int:
        """How many independent functions the observed contexts can see."""
        return self.transform.shape[1]


def whiten(
    phi: Float[Array, "n N"], weights: Float[Array, " n"] | None = None, tolerance: float | None = None
) -> Whitening:
    """Factorises observed features; `tolerance` defaults to the square root of the machine precision."""
    dtype = phi.dtype
    if tolerance is None:
        tolerance = float(np.sqrt(jnp.finfo(dtype).eps))
    table = np.asarray(phi, dtype=float)
    mass = np.full(len(table), 1.0) if weights is None else np.asarray(weights, dtype=float)
    scaled = table * np.sqrt(mass / mass.sum())[:, None]
    _, spectrum, _ = np.linalg.svd(scaled, full_matrices=False)
    norms = np.linalg.norm(scaled, axis=0)
    norms = np.where(norms > 0, norms, 1)  # the rank must not depend on the units of single functions
    _, values, rows = np.linalg.svd(scaled / norms, full_matrices=False)
    rank = max(1, int(np.sum(values > tolerance * values[0])))
    kept, basis = values[:rank], rows[:rank]
    forth, back = basis.T / kept / norms[:, None], kept[:, None] * basis * norms
    return Whitening(jnp.asarray(forth, dtype), jnp.asarray(back, dtype), jnp.asarray(spectrum, dtype))


class Orthonormal(Basis):
    r"""The span of another basis, whitened against the observed contexts, so that $m_\Phi = 1$ by construction."""

    basis: Basis
    tolerance: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if not isinstance(self.basis, Basis):
            raise TypeError(f"Orthonormal takes a basis, such as Orthonormal(Chebyshev(5)), got {self.basis!r}.")

    def evaluate(self, domain, xi):
        return self.basis.evaluate(domain, xi)

    def constant(self, domain):
        return self.basis.constant(domain)

    def fit(self, domain, xi, weights=None):
        plain = self.basis.fit(domain, xi, weights)
        factors = whiten(plain(xi), weights, self.tolerance)
        transform = factors.transform if plain.transform is None else plain.transform @ factors.transform
        constant = factors.inverse @ plain.constant.astype(factors.inverse.dtype)
        return FeatureMap(self, domain, transform, constant)

    def __repr__(self):
        return f"Orthonormal({self.basis!r})"


def combine(phi: Float[Array, "... N"], W: Any) -> Any:
    """``sum_k phi_k W[k]`` for every leaf of ``W``, batched over the leading axes of ``phi``."""
    return jax.tree.map(lambda w: jnp.tensordot(phi, w, axes=1), W)
