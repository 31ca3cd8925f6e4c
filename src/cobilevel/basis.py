r"""Bases: families of functions of the context, and the feature map $\Phi(\xi) \in R^N$ they give on a domain.

A basis is what a user names, ``Chebyshev(5)``; fitted to a domain and to the contexts observed there it becomes a
``FeatureMap``, which can be called. The families of polynomials, waves and splines are in ``families``.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from .checks import whole
from .domain import Domain, Finite


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

    def learn(self, problem: Any, samples: Any) -> "Basis":
        """The recipe with all it has to learn from the problem learned, at ``problem.x0``; most have nothing to."""
        return self

    @property
    def learned(self) -> bool:
        """Whether ``learn`` has nothing left to learn."""
        return True


def plain_integer(n: Any) -> Any:
    """NumPy integers as Python ones."""
    return int(n) if isinstance(n, np.integer) else n


def check_count(name: str, n: Any) -> None:
    whole(f"{name}: n", n, what="the functions per dimension")


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

    def learn(self, problem, samples):
        return Union([part.learn(problem, samples) for part in self.parts])

    @property
    def learned(self):
        return all(part.learned for part in self.parts)

    def __repr__(self):
        return f"Union([{', '.join(map(repr, self.parts))}])"


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

    def learn(self, problem, samples):
        return Orthonormal(self.basis.learn(problem, samples), self.tolerance)

    @property
    def learned(self):
        return self.basis.learned

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
