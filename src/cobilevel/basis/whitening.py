"""Whitening: coordinates in which the observed features are orthonormal, there and back."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from .. import trees
from ..checks import positive
from ..cluster import shards_of, this_cluster
from ..programs import Held, is_spread, module_of, on_host, put
from .base import Basis, FeatureMap
from .recipes import plain_number
from .tables import OneHot, Rows, combine, dense, upper_triangle


class Whitening(eqx.Module):
    r"""New coordinates in which the observed features are orthonormal: $\Psi = \Phi T$, $E[\Psi \Psi^T] = I$.

    From the singular value decomposition of the weighted features themselves (never from their Gram matrix, which
    squares the condition number). Directions below `tolerance` of the largest singular value are cut: there the data
    cannot tell coefficients apart.
    """

    transform: Float[Held, "N r"] | OneHot
    inverse: Float[Held, "r N"] | OneHot
    singular_values: Float[Held, " s"]

    @property
    def rank(self) -> int:
        """How many independent functions the observed contexts can see."""
        return self.transform.shape[1]

    @on_host
    def unseen(self, phi: Rows) -> Float[Held, " n"]:
        """The share of each row of features, by its norm, that the observed contexts do not see."""
        if isinstance(phi, OneHot):
            return (self.transform.value[phi.place] == 0).astype(phi.dtype)  # pyright: ignore
        xp = module_of(phi)
        size = xp.linalg.norm(phi, axis=1)
        return xp.linalg.norm(phi - (phi @ self.transform) @ self.inverse, axis=1) / xp.where(size > 0, size, 1)


def whiten(phi: Rows, weights: Float[Held, " n"] | None = None, tolerance: float | None = None) -> Whitening:
    """Factorises observed features; `tolerance` defaults to the square root of the machine precision."""
    dtype, spread = phi.dtype, is_spread(phi.place if isinstance(phi, OneHot) else phi)
    own = lambda array: [np.asarray(part) for part in (shards_of(array) if spread else [array])]
    gathered = this_cluster().gathered if spread else lambda parts: parts
    masses = [np.ones(len(phi))] if weights is None else [part.astype(float) for part in own(weights)]
    total = sum(part.sum() for part in gathered([np.atleast_1d(mass.sum()) for mass in masses]))
    shares = [mass / total for mass in masses]
    if isinstance(phi, OneHot):
        parts = [OneHot(*part, phi.size).on_host() for part in zip(own(phi.place), own(phi.value), strict=True)]
        sums = gathered([part.blocks(share) for part, share in zip(parts, shares, strict=True)])
        return put(_of_cells(np.sqrt(sum(sums)), len(phi), dtype))
    tables = [part.astype(float, copy=False) for part in own(phi)]
    triangles = gathered([upper_triangle(*part) for part in zip(tables, map(np.sqrt, shares), strict=True)])
    scaled = triangles[0] if len(triangles) == 1 else upper_triangle(np.concatenate(triangles))
    spectrum = np.linalg.svd(scaled, compute_uv=False)
    norms = np.linalg.norm(scaled, axis=0)
    norms = np.where(norms > 0, norms, 1)  # the rank must not depend on the units of single functions
    _, values, rows = np.linalg.svd(scaled / norms, full_matrices=False)
    least = float(np.sqrt(jnp.finfo(dtype).eps)) if tolerance is None else tolerance
    rank = max(1, int(np.sum(values > least * values[0])))
    kept, basis = values[:rank], rows[:rank]
    forth, back = basis.T / kept / norms[:, None], kept[:, None] * basis * norms
    factors = [part.astype(dtype) for part in (forth, back, spectrum)]
    return Whitening(*put([this_cluster().agreed(part) for part in factors] if spread else factors))


def _of_cells(norms: np.ndarray, rows: int, dtype: Any) -> Whitening:
    """Functions without overlap are orthogonal already: each is divided by its size, and those never seen are cut."""
    seen = np.flatnonzero(norms > 0)
    place, value = np.zeros(len(norms), int), np.zeros(len(norms))
    place[seen], value[seen] = np.arange(len(seen)), 1 / norms[seen]
    forth = OneHot(place, value.astype(dtype), len(seen))
    back = OneHot(seen, norms[seen].astype(dtype), len(norms))
    return Whitening(forth, back, np.sort(norms)[::-1][:rows].astype(dtype))


class Coordinates(eqx.Module):
    """Coefficients ``W`` in whitened coordinates ``Z``, and the way back: ``W = transform @ Z + rest``.

    ``rest`` is the part of the start that the observed contexts do not see; it stays as it is, so that a cell without
    contexts keeps ``y0``.
    """

    transform: Float[Held, "N r"] | OneHot
    inverse: Float[Held, "r N"] | OneHot
    rest: PyTree[Float[Held, "N ..."]]

    @staticmethod
    def of(whitening: Whitening, W: PyTree) -> "Coordinates":
        """Those in which coefficients near ``W`` are written."""
        bare = Coordinates(whitening.transform, whitening.inverse, W)
        seen = bare.direction(bare.enter(W))
        return Coordinates(bare.transform, bare.inverse, trees.sub(W, seen))

    def enter(self, W: PyTree) -> PyTree:
        """The whitened coefficients ``Z`` of ``W``."""
        return combine(self.inverse, W)

    def direction(self, V: PyTree) -> PyTree:
        """A direction (an adjoint, a step) in the coefficients, from one in whitened coordinates."""
        return combine(self.transform, V)

    def restore(self, Z: PyTree) -> PyTree:
        """The coefficients ``W`` of ``Z``."""
        return trees.add(self.direction(Z), self.rest)


class Orthonormal(Basis):
    r"""The span of another basis, whitened against the observed contexts, so that $m_\Phi = 1$ by construction."""

    basis: Basis
    tolerance: float | None = eqx.field(static=True, converter=plain_number, default=None)

    def __check_init__(self):
        if not isinstance(self.basis, Basis):
            raise TypeError(f"Orthonormal takes a basis, such as Orthonormal(Chebyshev(5)), got {self.basis!r}.")
        if self.tolerance is not None and positive("Orthonormal: tolerance", self.tolerance) >= 1:
            raise ValueError(
                f"Orthonormal: tolerance is a share of the largest singular value, below 1, got {self.tolerance!r}."
            )

    def evaluate(self, domain, xi):
        return self.basis.evaluate(domain, xi)

    def count(self, domain):
        return self.basis.count(domain)

    def constant(self, domain):
        return self.basis.constant(domain)

    def with_parts(self, change):
        return Orthonormal(change(self.basis), self.tolerance)

    @property
    def learned(self):
        return self.basis.learned

    def fit(self, domain, xi, weights=None):
        plain = self.basis.fit(domain, xi, weights)
        factors = whiten(plain(xi), weights, self.tolerance)
        turned = dense(factors.transform)
        transform = turned if plain.transform is None else combine(plain.transform, turned)
        constant = combine(factors.inverse, np.asarray(plain.constant, factors.inverse.dtype))
        own = self if plain.basis is self.basis else Orthonormal(plain.basis, self.tolerance)
        return FeatureMap(own, domain, transform, constant)

    def __repr__(self):
        return f"Orthonormal({self.basis!r})"
