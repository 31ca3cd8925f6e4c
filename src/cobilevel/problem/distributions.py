"""Distributions of contexts on an interval or a box: sampled, and integrated by Gauss rules."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..checks import MOST_NODES, gibibytes, memory_limit, whole
from ..programs import arithmetic, program, put
from .array_checks import real_numbers
from .cut_normal import cut_normal_draws, cut_normal_rule
from .domain import Box, Domain, Interval

_NODE_BYTES = 32  # for each coordinate of a node: it is copied on the way


class Distribution(eqx.Module):
    """A law of contexts on an ``Interval`` or a ``Box``: a mixture of products of one-dimensional densities.

    ``rules(n)`` states it once, as quadrature: a list of ``(weight, nodes, weights)``, one entry a component of the
    mixture, with nodes and weights of shape ``(dimension, n)``. Everything that is integrated comes from there.
    """

    domain: eqx.AbstractVar[Domain]

    @abstractmethod
    def sample(self, key: Array, size: int) -> Float[Array, "size ..."]:
        """Independent contexts."""

    @abstractmethod
    def rules(self, n: int) -> list[tuple[float, np.ndarray, np.ndarray]]: ...

    def quadrature(self, n: int) -> tuple[Float[Array, "m ..."], Float[Array, " m"]]:
        """Nodes and weights (summing to 1) of the tensor Gauss rule with ``n`` nodes per dimension and component."""
        require_nodes(self, whole("quadrature: n", n), "quadrature: n")
        nodes, weights = [], []
        for share, points, masses in self.rules(n):
            nodes.append(np.stack(np.meshgrid(*points, indexing="ij"), axis=-1).reshape(-1, len(points)))
            mass = np.ones(1)
            for row in masses:
                mass = np.outer(mass, row).ravel()
            weights.append(share * mass)
        table = np.concatenate(nodes)
        return put((table if self.domain.shape else table[:, 0].copy(), np.concatenate(weights)))


def require_nodes(law: Distribution, n: int, argument: str) -> None:
    """Raises where a Gauss rule would take too long or would not fit in memory; says what would do."""
    d, most = law.domain.dimension, memory_limit()
    parts = len(law.rules(1))
    fits = lambda count: count <= MOST_NODES and _NODE_BYTES * parts * (d + 1) * count**d <= most
    if fits(n):
        return
    count, largest = parts * n**d, max(1, min(MOST_NODES, int((most / (_NODE_BYTES * parts * (d + 1))) ** (1 / d))))
    largest -= not fits(largest)  # a root may be rounded up
    said = f", {gibibytes(_NODE_BYTES * (d + 1) * count)}" if n <= MOST_NODES else ""
    limit = gibibytes(most) if said else f"{MOST_NODES} along one dimension"
    raise ValueError(
        f"{argument} = {n} in {d} dimension{'s'[: d != 1]} makes {count:,} contexts{said}, more than {limit}. Take "
        f"{largest} or fewer, or contexts drawn at random: law.sample(jax.random.key(0), 10_000)."
    )


def _box_only(domain: Domain, name: str) -> None:
    if not isinstance(domain, Interval | Box):
        raise TypeError(
            f"{name} needs an Interval or a Box, got {domain!r}. For finite contexts pass the array itself."
        )


def _gauss(domain: Domain, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes placed in each dimension, shape ``(dimension, n)``, and the weights of the reference."""
    u, w = np.polynomial.legendre.leggauss(n)
    lo, hi = (np.asarray(end)[:, None] for end in domain.bounds)
    return lo + (hi - lo) * (u + 1) / 2, np.broadcast_to(w / 2, (domain.dimension, n))


class Uniform(Distribution):
    """Every context of an ``Interval`` or ``Box`` equally likely."""

    domain: Domain

    def __check_init__(self):
        _box_only(self.domain, "Uniform")

    def sample(self, key, size):
        u = jax.random.uniform(key, (size, self.domain.dimension))
        return put(self.domain.place(2 * arithmetic(u).asarray(u) - 1))

    def rules(self, n):
        return [(1.0, *_gauss(self.domain, n))]


class TruncatedNormal(Distribution):
    """Independent normals in each dimension, cut off at the ends of the domain."""

    domain: Domain
    mean: Any = eqx.field(converter=lambda v: real_numbers(v, "TruncatedNormal: mean"))
    std: Any = eqx.field(converter=lambda v: real_numbers(v, "TruncatedNormal: std"))

    def __check_init__(self):
        _box_only(self.domain, "TruncatedNormal")
        for name in ("mean", "std"):
            if getattr(self, name).size not in (1, self.domain.dimension):
                raise ValueError(
                    f"TruncatedNormal: {name} needs one value, or one for each of the domain's "
                    f"{self.domain.dimension} dimensions, got {getattr(self, name).size}."
                )
        if not np.all(self.std > 0):
            raise ValueError(f"TruncatedNormal: std must be positive, got {self.std}.")

    def sample(self, key, size):
        lo, hi = self.domain.bounds
        xi = cut_normal_draws(key, lo, hi, self.mean.ravel(), self.std.ravel(), (size, self.domain.dimension))
        return xi if self.domain.shape else put(arithmetic(xi).asarray(xi)[..., 0])

    def rules(self, n):
        sides = np.broadcast_arrays(*self.domain.bounds, self.mean.ravel(), self.std.ravel())
        found = [cut_normal_rule(lo, hi, mean, std, n) for lo, hi, mean, std in zip(*sides, strict=True)]
        return [(1.0, np.stack([nodes for nodes, _ in found]), np.stack([weights for _, weights in found]))]


class Mixture(Distribution):
    """Draws from ``components[k]`` with probability ``weights[k]``; all components share one domain."""

    components: tuple[Distribution, ...] = eqx.field(
        converter=lambda v: tuple(v) if isinstance(v, list | tuple) else (v,)
    )
    weights: Any = eqx.field(converter=lambda v: real_numbers(v, "Mixture: weights"))

    def __check_init__(self):
        if not all(isinstance(part, Distribution) for part in self.components):
            raise TypeError(
                f"Mixture takes a list of distributions, such as cb.Uniform(domain), got {list(self.components)}."
            )
        if len(self.components) != self.weights.size or not len(self.components):
            raise ValueError(
                f"Mixture needs one weight a component, got {len(self.components)} components and "
                f"{self.weights.size} weights."
            )
        if np.any(self.weights < 0) or not np.isclose(self.weights.sum(), 1):
            raise ValueError(f"Mixture: weights must be nonnegative and sum to 1, got {self.weights}.")
        for part in self.components[1:]:
            if repr(part.domain) != repr(self.domain):
                raise ValueError(
                    f"Mixture: components must share one domain, got {self.domain!r} and {part.domain!r}. State all of "
                    "them on the larger one."
                )

    @property
    def domain(self) -> Domain:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.components[0].domain

    def sample(self, key, size):
        return _mixture_draws(put(self), key, size)

    def rules(self, n):
        return [
            (float(share) * inner, nodes, weights)
            for share, part in zip(self.weights, self.components, strict=True)
            for inner, nodes, weights in part.rules(n)
        ]


@program
def _mixture_draws(law: Mixture, key: Array, size: int) -> Float[Array, "size ..."]:
    pick, *keys = jax.random.split(key, len(law.components) + 1)
    draws = jnp.stack([part.sample(k, size) for part, k in zip(law.components, keys, strict=True)])
    which = jax.random.choice(pick, len(law.components), (size,), p=law.weights)
    return draws[which, jnp.arange(size)]
