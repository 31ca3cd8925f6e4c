r"""A normal distribution cut off at both ends, however narrow it is and wherever its mean lies: Gauss rules and draws.

All is measured from the place of the highest density between the ends: the mean, or the end nearest to it. With
:math:`m \ge 0` standard deviations from the mean to there, the density at :math:`s` standard deviations further out is
proportional to :math:`e^{-m s - s^2 / 2}`. Nothing large is subtracted from anything large.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..programs import program

_SDS_KEPT = 9.0  # standard deviations; beyond, the mass is 2e-19 (from a far end on, where the density is as low)
_SDS_AT_MOST = 1e100  # standard deviations from the mean to the nearer end: beyond, the law is a point all the same
_MORE_POINTS = 200  # of the rule that stands for the density, beyond two for each node asked for
_TAIL_FROM = 8.0  # standard deviations to the nearer end, from which on draws go by the shape of the tail
_NEARLY_FLAT = 1e-3  # the change of the logarithm of the density from end to end, below which it is nearly flat
_FRACTIONS = 24  # of the continued fraction of the tail: to all digits from _TAIL_FROM on
_PUT_BACK = 6  # of a draw from the tail, each more than 60 times as accurate as the one before


def _density_points(first: float, last: float, m: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points between `first` and `last`, in standard deviations from the highest density, and the mass of each."""
    u, w = np.polynomial.legendre.leggauss(n)
    s = first + (last - first) * (u + 1) / 2
    mass = w * np.exp(-np.abs(s) * m - s * s / 2)
    return s, mass / mass.sum()


def _gauss_rule(points: np.ndarray, masses: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss rule of a discrete measure: its recurrence by Stieltjes' procedure, nodes and weights from that."""
    centre = masses @ points
    scale = np.sqrt(masses @ (points - centre) ** 2)
    if n == 1 or not scale > 0:
        return np.full(n, centre), np.full(n, 1 / n)
    t = (points - centre) / scale
    before, now = np.zeros_like(t), np.ones_like(t)
    alpha, beta, norm = np.zeros(n), np.zeros(n), 1.0
    for k in range(n):
        alpha[k] = (masses * now**2) @ t
        after = (t - alpha[k]) * now - beta[k] * before
        norm = np.sqrt(masses @ after**2)
        before, now = now, after / norm
        if k + 1 < n:
            beta[k + 1] = norm
    nodes, vectors = np.linalg.eigh(np.diag(alpha) + np.diag(beta[1:], 1) + np.diag(beta[1:], -1))
    weights = vectors[0] ** 2
    return centre + scale * nodes, weights / weights.sum()


def cut_normal_rule(lo: Any, hi: Any, mean: Any, std: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss rule of a normal distribution on ``[lo, hi]``: exact up to degree ``2 n - 1``."""
    peak = min(max(mean, lo), hi)
    m = min(abs(peak - mean) / std, _SDS_AT_MOST)
    reach = _SDS_KEPT**2 / (np.hypot(m, _SDS_KEPT) + m)
    below, above = (min(abs(end - peak) / std, reach) for end in (lo, hi))
    s, mass = _density_points(-below, above, m, 2 * n + _MORE_POINTS)
    nodes, weights = _gauss_rule(s, mass, n)
    return np.clip(peak + std * nodes, lo, hi), weights


@program
def cut_normal_draws(
    key: Array, lo: Any, hi: Any, mean: Any, std: Any, shape: tuple[int, int]
) -> Float[Array, "size d"]:
    """Independent draws on ``[lo, hi]``; one column for each of several distributions."""
    lo, hi, mean, std = (jnp.asarray(part, float) for part in (lo, hi, mean, std))
    u = jax.random.uniform(key, shape, float)
    peak = jnp.clip(mean, lo, hi)
    m = jnp.minimum(jnp.abs(peak - mean) / std, jnp.finfo(u.dtype).max ** 0.25)
    side = jnp.where(mean > hi, -1, 1).astype(u.dtype)  # below the mean, the mirror image
    below, above = (side * (end - peak) / std for end in (lo, hi))
    below, above = jnp.minimum(below, above), jnp.maximum(below, above)
    inner = jnp.where(m > 0, 0, below)
    s = jnp.where(m < _TAIL_FROM, _near_draw(u, m, inner, above), _tail_draw(u, jnp.maximum(m, _TAIL_FROM), above))
    return jnp.clip(peak + side * std * jnp.clip(s, below, above), lo, hi)


def _near_draw(u: Array, m: Array, below: Array, above: Array) -> Array:
    """By the inverse of the distribution function, taken on the side where it keeps its digits."""
    ndtr = jax.scipy.special.ndtr
    first, last = -(m + above), -(m + below)
    flip = last > -first  # more of it above 0: the mirror image has its mass where the function is small
    first, last = jnp.where(flip, -last, first), jnp.where(flip, -first, last)
    low, high = ndtr(first), ndtr(last)
    tiny, most = jnp.finfo(u.dtype).tiny, 1 - jnp.finfo(u.dtype).epsneg
    z = jax.scipy.special.ndtri(jnp.clip(low + u * (high - low), tiny, most))
    drawn = jnp.where(flip, z, -z) - m
    # where the density is nearly flat the difference of the two drowns in rounding, and the first order is accurate
    wide, from_mean = above - below, m + below
    bent = from_mean * wide * (u * u - u) / 2 + wide**2 * (u**3 - u) / 6
    return jnp.where(wide * (jnp.abs(from_mean) + wide) < _NEARLY_FLAT, below + wide * (u + bent), drawn)


def _tail_draw(u: Array, m: Array, above: Array) -> Array:
    r"""From :math:`s m + s^2/2 - \log(R(m + s) / R(m)) = E`, with ``E`` exponential and ``R`` Mills' ratio: where the
    logarithm is left out, a quadratic equation; it is put back a few times over."""
    ratio = lambda s: jnp.log(_mills(m + s) / _mills(m))
    most = above * m + above**2 / 2 - ratio(above)
    e = -jnp.log1p(u * jnp.expm1(-jnp.where(jnp.isfinite(most), most, jnp.inf)))

    def put_back(_, s):
        here = jnp.maximum(e + ratio(s), 0)
        return 2 * here / (m + jnp.sqrt(m**2 + 2 * here))

    return jax.lax.fori_loop(0, _PUT_BACK, put_back, jnp.zeros_like(u))


def _mills(z: Array) -> Array:
    """The mass beyond ``z`` over the density there, by its continued fraction."""
    levels = jnp.arange(_FRACTIONS, 0, -1, dtype=z.dtype)
    return 1 / jax.lax.fori_loop(0, _FRACTIONS, lambda k, value: z + levels[k] / value, z)
