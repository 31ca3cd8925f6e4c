"""Distributions of contexts on an interval or a box: sampled, and integrated by Gauss rules."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..ground import MOST_NODES, arithmetic, gibibytes, memory_limit, program, put, whole
from .domain import Box, Domain, Interval
from .input_checks import real_numbers

_FAR = 9.0  # standard deviations: beyond, the mass is 2e-19; an end as far out sees the tail alone
_MORE_POINTS = 200  # of the rule that stands for the density, beyond two for each node asked for


class Distribution(eqx.Module):
    """A distribution of contexts on an ``Interval`` or a ``Box``: a mixture of products of one-dimensional densities.

    ``rules(n)`` defines it, as quadrature: a list of ``(weight, nodes, weights)``, one entry per component of the
    mixture, with nodes and weights of shape ``(dimension, n)``. All integrals are computed from it.
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
    """Raises if a Gauss rule would take too long or would not fit in memory; says what to use instead."""
    d, most, parts = law.domain.dimension, memory_limit(), len(law.rules(1))
    each = 4 * 8 * parts * (d + 1)  # bytes of a node and its weight, with three copies made on the way
    fits = lambda count: count <= MOST_NODES and each * count**d <= most
    if fits(n):
        return
    largest = max(1, min(MOST_NODES, int((most / each) ** (1 / d))))
    largest -= not fits(largest)  # a root may be rounded up
    size, limit = f", {gibibytes(each * n**d)}", gibibytes(most)
    if n > MOST_NODES:
        size, limit = "", f"{MOST_NODES} along one dimension"
    raise ValueError(
        f"{argument} = {n} in {d} dimension{'s'[: d != 1]} makes {parts * n**d:,} contexts{size}, more than {limit}. "
        f"Use {largest} or fewer, or draw contexts at random: law.sample(jax.random.key(0), 10_000)."
    )


def _box_only(domain: Domain, name: str) -> None:
    if not isinstance(domain, Interval | Box):
        raise TypeError(
            f"{name} needs an Interval or a Box, got {domain!r}. For finite contexts pass the array itself."
        )


class Uniform(Distribution):
    """Every context of an ``Interval`` or ``Box`` equally likely.

    **Arguments:**

    - `domain`: an ``Interval`` or a ``Box``.

    **Example:**

    >>> law = cb.Uniform(cb.Interval(0.0, 2.0))
    >>> law.sample(jax.random.key(0), 5).shape
    (5,)
    """

    domain: Domain

    def __check_init__(self):
        _box_only(self.domain, "Uniform")

    def sample(self, key, size):
        u = jax.random.uniform(key, (size, self.domain.dimension))
        return put(self.domain.place(2 * arithmetic(u).asarray(u) - 1))

    def rules(self, n):
        u, w = np.polynomial.legendre.leggauss(n)
        lo, hi = (np.asarray(end)[:, None] for end in self.domain.bounds)
        return [(1.0, lo + (hi - lo) * (u + 1) / 2, np.broadcast_to(w / 2, (self.domain.dimension, n)))]


class Stratified(Uniform):
    """Contexts drawn in turn from each of `cells` equal cells of an interval, uniformly within the cell.

    A batch of ``cells * b`` then holds a batch of ``b`` for every cell, and its mean is the mean of the cells' means.
    """

    cells: int = eqx.field(static=True)

    def sample(self, key, size):
        u = jax.random.uniform(key, (size,))
        u = ((jnp.arange(size) % self.cells).astype(u.dtype) + u) / self.cells
        return self.domain.place((2 * u - 1)[:, None])


class TruncatedNormal(Distribution):
    """Independent normal distributions in each dimension, truncated to the domain.

    **Arguments:**

    - `domain`: an ``Interval`` or a ``Box``.
    - `mean`, `std`: before truncation; numbers, or one for each dimension.

    **Example:**

    >>> law = cb.TruncatedNormal(cb.Interval(0.0, 2.0), mean=1.0, std=0.5)
    >>> drawn = law.sample(jax.random.key(0), 100)
    >>> bool((drawn >= 0).all() & (drawn <= 2).all())
    True
    """

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
        xi = _normal_draws(key, lo, hi, self.mean.ravel(), self.std.ravel(), (size, self.domain.dimension))
        return xi if self.domain.shape else put(arithmetic(xi).asarray(xi)[..., 0])

    def rules(self, n):
        sides = np.broadcast_arrays(*self.domain.bounds, self.mean.ravel(), self.std.ravel())
        nodes, weights = zip(*(_normal_rule(*side, n) for side in zip(*sides, strict=True)), strict=True)
        return [(1.0, np.stack(nodes), np.stack(weights))]


class Mixture(Distribution):
    """Draws from ``components[k]`` with probability ``weights[k]``; all components share one domain.

    **Arguments:**

    - `components`: a list of distributions.
    - `weights`: their probabilities.

    **Example:**

    >>> domain = cb.Interval(0.0, 2.0)
    >>> law = cb.Mixture([cb.Uniform(domain), cb.TruncatedNormal(domain, 1.0, 0.1)], [0.3, 0.7])
    >>> law.sample(jax.random.key(0), 5).shape
    (5,)
    """

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
                f"Mixture needs one weight per component, got {len(self.components)} components and "
                f"{self.weights.size} weights."
            )
        if np.any(self.weights < 0) or not np.isclose(self.weights.sum(), 1):
            raise ValueError(f"Mixture: weights must be nonnegative and sum to 1, got {self.weights}.")
        for part in self.components[1:]:
            if repr(part.domain) != repr(self.domain):
                raise ValueError(
                    f"Mixture: components must share one domain, got {self.domain!r} and {part.domain!r}. Define them "
                    "all on the larger one."
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


# A truncated normal is measured from the place of its highest density: the mean, or the end nearest to it. With m >= 0
# standard deviations from the mean to there, the density s standard deviations further out is proportional to
# exp(-m s - s^2 / 2): nothing large is subtracted from anything large, however narrow the law is and wherever its mean.


def _normal_rule(lo: Any, hi: Any, mean: Any, std: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss rule of a normal distribution on ``[lo, hi]``: exact up to degree ``2 n - 1``."""
    peak = min(max(mean, lo), hi)
    m = min(abs(peak - mean) / std, np.finfo(float).max ** 0.25)
    reach = _FAR**2 / (np.hypot(m, _FAR) + m)
    below, above = (min(abs(end - peak) / std, reach) for end in (lo, hi))
    u, w = np.polynomial.legendre.leggauss(2 * n + _MORE_POINTS)
    s = (below + above) * (u + 1) / 2 - below
    nodes, weights = _gauss_rule(s, w * np.exp(-np.abs(s) * m - s * s / 2), n)
    return np.clip(peak + std * nodes, lo, hi), weights


def _gauss_rule(points: np.ndarray, masses: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss rule of a discrete measure: its recurrence by Stieltjes' procedure, nodes and weights from that."""
    masses = masses / masses.sum()
    centre = masses @ points
    scale = np.sqrt(masses @ (points - centre) ** 2)
    if n == 1 or not scale > 0:
        return np.full(n, centre), np.full(n, 1 / n)
    t = (points - centre) / scale
    before, now = np.zeros_like(t), np.ones_like(t)
    alpha, beta = np.zeros(n), np.zeros(n + 1)
    for k in range(n):
        alpha[k] = (masses * now**2) @ t
        after = (t - alpha[k]) * now - beta[k] * before
        beta[k + 1] = np.sqrt(masses @ after**2)
        before, now = now, after / beta[k + 1]
    nodes, vectors = np.linalg.eigh(np.diag(alpha) + np.diag(beta[1:-1], 1) + np.diag(beta[1:-1], -1))
    weights = vectors[0] ** 2
    return centre + scale * nodes, weights / weights.sum()


@program
def _normal_draws(key: Array, lo: Any, hi: Any, mean: Any, std: Any, shape: tuple[int, int]) -> Float[Array, "size d"]:
    """Independent draws on ``[lo, hi]``; one column for each of several distributions."""
    lo, hi, mean, std = (jnp.asarray(part, float) for part in (lo, hi, mean, std))
    u = jax.random.uniform(key, shape, float)
    peak = jnp.clip(mean, lo, hi)
    m = jnp.minimum(jnp.abs(peak - mean) / std, jnp.finfo(u.dtype).max ** 0.25)
    side = jnp.where(mean > hi, -1, 1).astype(u.dtype)  # below the mean, the mirror image
    below, above = (side * (end - peak) / std for end in (lo, hi))
    below, above = jnp.minimum(below, above), jnp.maximum(below, above)
    inner = jnp.where(m > 0, 0, below)
    s = jnp.where(m < _FAR, _near_draw(u, m, inner, above), _tail_draw(u, jnp.maximum(m, _FAR), above))
    return jnp.clip(peak + side * std * jnp.clip(s, below, above), lo, hi)


def _near_draw(u: Array, m: Array, below: Array, above: Array) -> Array:
    """By the inverse of the distribution function, taken on the side where it keeps its digits."""
    ndtr, facts = jax.scipy.special.ndtr, jnp.finfo(u.dtype)
    first, last = -(m + above), -(m + below)
    flip = last > -first  # more of it above 0: the mirror image has its mass where the function is small
    first, last = jnp.where(flip, -last, first), jnp.where(flip, -first, last)
    low, high = ndtr(first), ndtr(last)
    z = jax.scipy.special.ndtri(jnp.clip(low + u * (high - low), facts.tiny, 1 - facts.epsneg))
    drawn = jnp.where(flip, z, -z) - m
    # where the density is nearly flat the difference of the two loses digits, and two orders of its expansion do not
    wide, from_mean = above - below, m + below
    bent = from_mean * wide * (u * u - u) / 2 + wide**2 * (u**3 - u) / 6
    change = wide * (jnp.abs(from_mean) + wide)  # of the logarithm of the density: its square is the error of `bent`
    return jnp.where(change < float(facts.eps) ** 0.4, below + wide * (u + bent), drawn)


def _tail_draw(u: Array, m: Array, above: Array) -> Array:
    r"""From :math:`s m + s^2/2 - \log(R(m + s) / R(m)) = E`, with ``E`` exponential and ``R`` Mills' ratio: where the
    logarithm is left out, a quadratic equation; put back, it is more accurate by a factor of :math:`m^2` each time."""
    rounds = math.ceil(-math.log(float(jnp.finfo(u.dtype).eps)) / math.log(_FAR**2))

    def mills(z):
        """The mass beyond ``z`` over the density there, by its continued fraction."""
        value = z
        for level in range(2 * rounds, 0, -1):
            value = z + level / value
        return 1 / value

    ratio = lambda s: jnp.log(mills(m + s) / mills(m))
    most = above * m + above**2 / 2 - ratio(above)
    e = -jnp.log1p(u * jnp.expm1(-jnp.where(jnp.isfinite(most), most, jnp.inf)))

    def put_back(_, s):
        here = jnp.maximum(e + ratio(s), 0)
        return 2 * here / (m + jnp.sqrt(m**2 + 2 * here))

    return jax.lax.fori_loop(0, rounds, put_back, jnp.zeros_like(u))
