"""Random walks over the links of a network: what trips cost, the flows that follow, and derivatives in closed form."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int

from ..ground import Held


@jax.custom_jvp
def _passages(M: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """``(I - M)^-1``: how often walks pass each node, by where they start; NaN where they never end.

    Node by node, walks through it are added (Kleene): sums of positive numbers, so that tiny entries are exact too. Not
    by LAPACK: where two blocks of rows call that at once, its threads wait for each other forever (jaxlib 0.10).
    """

    def through(k, M):
        stays = M[k, k]
        return M + M[:, k][:, None] * M[k] / jnp.where(stays < 1, 1 - stays, jnp.nan)

    return jnp.eye(len(M), dtype=M.dtype) + jax.lax.fori_loop(0, len(M), through, M)


@_passages.defjvp
def _(primals, tangents):
    Z = _passages(*primals)
    return Z, Z @ tangents[0] @ Z  # products, where differentiating the inverse would solve triangular systems


@jax.custom_jvp
def _ratio(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """``a / b``, with derivatives that do not overflow where ``b`` is tiny: no power of it is formed; 0 where it is."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


@_ratio.defjvp
def _(primals, tangents):
    ratio = _ratio(*primals)
    return ratio, _ratio(tangents[0] - ratio * tangents[1], primals[1])


class Walks(eqx.Module):
    r"""Random walks over links from zone to zone: $S(t, q) = \sum q_{od} \tau_{od}(t)$ and its derivatives in closed
    form. With $A = Z_{o \cdot}$, $B = Z_{\cdot d}$ and $w_a = e^{-\theta t_a}$, the flow on $a$ from $o$ to $d$ is
    $q_{od}\, w_a A_{o i} B_{j d} / Z_{od}$, less what goes on from $d$ and comes back to it.

    Rules of differentiation say so to JAX: each derivative is made of gathers from $Z$ and of products of matrices,
    once for all directions. The logit's parameter $\theta$ and the network are held.
    """

    tail: Int[Held, " links"]
    head: Int[Held, " links"]
    ends: Int[Held, " zones"]
    theta: Float[Held, ""]
    nodes: int = eqx.field(static=True)

    def weights(self, t: Float[Array, " links"]) -> tuple[Float[Array, " links"], Float[Array, "n n"]]:
        """``w`` and ``Z``."""
        w = jnp.exp(-self.theta * t)
        return w, _passages(jnp.zeros((self.nodes, self.nodes), t.dtype).at[self.tail, self.head].add(w))

    def costs(self, t: Float[Array, " links"]) -> Float[Array, "zones zones"]:
        """Expected least costs between zones; NaN where no walk leads, or where times are so long that none shows."""
        Z = self.weights(t)[1]
        logs = jnp.log(jnp.where(Z > 0, Z, jnp.nan))
        return (logs[self.ends, self.ends] - logs[: len(self.ends), self.ends]) / self.theta

    def _shares(self, t: Float[Array, " links"], q: Float[Array, "zones zones"]) -> tuple[Array, ...]:
        r"""``w``, ``Z``, trips less those that would come back, and $\sum_{od} A_{oi} q_{od} B_{jd} / Z_{od}$."""
        w, Z = self.weights(t)
        zones = len(self.ends)
        open_ = self.ends == np.arange(zones)  # nothing leaves the others
        q = q - jnp.diag(jnp.where(open_, jnp.sum(q, axis=0), 0))
        return w, Z, q, Z[:zones].T @ _ratio(q, Z[:zones, self.ends]) @ Z[:, self.ends].T

    def flows(self, t: Float[Array, " links"], q: Float[Array, "zones zones"]) -> Float[Array, " links"]:
        w, _, _, P = self._shares(t, q)
        return w * P[self.tail, self.head]

    def bend(self, t: Float[Array, " links"], q: Float[Array, "zones zones"]) -> Float[Array, "links links"]:
        """How flows change with times: the links passed by the same trips, destination by destination."""
        (w, Z, q, P), (i, j), zones = self._shares(t, q), (self.tail, self.head), len(self.ends)
        to = Z[:, self.ends]
        chance = _ratio(w[:, None] * to[j], to[i])  # of each link, for who is at its tail

        def add(d, sums):
            there = Z[:zones] * _ratio(to[:, d], to[:zones, d, None])  # how often each node is passed, from each zone
            return sums + (there.T @ (q[:, d, None] * there))[i][:, i] * (chance[:, d, None] * chance[:, d])

        both = jax.lax.fori_loop(0, zones, add, jnp.zeros((len(w), len(w)), t.dtype))
        again = (w[:, None] * Z[j][:, i]) * (w * P[i][:, j])  # first one link, then the other
        return -self.theta * (jnp.diag(w * P[i, j]) + again + again.T - both)


@jax.custom_jvp
def cost(walks: Walks, t: Array, q: Array) -> Array:
    """``S(t, q)``."""
    return jnp.sum(q * walks.costs(t))


@jax.custom_jvp
def _along(walks: Walks, t: Array, q: Array, u: Array) -> Array:
    """How it changes along ``u``."""
    return flows_of(walks, t, q) @ u


@jax.custom_jvp
def flows_of(walks: Walks, t: Array, q: Array) -> Array:
    """How it changes with each time."""
    return walks.flows(t, q)


@jax.custom_jvp
def _bent(walks: Walks, t: Array, q: Array, u: Array) -> Array:
    """How flows change along ``u``."""
    return jax.jvp(lambda t: walks.flows(t, q), (t,), (u,))[1]


@jax.custom_jvp
def _pulled(walks: Walks, t: Array, q: Array, u: Array) -> Array:
    """The same, for ``distance``: which ``u`` alone changes."""
    return _bent(walks, t, q, u)


@jax.custom_jvp
def distance(walks: Walks, t: Array, q: Array, counts: Array, weight: Array) -> Array:
    """Half the weighted squares of flows less counts. Second derivatives are those of Gauss and Newton: with flows as
    though straight in the times, since residuals, which differ in sign, make little of their curvature."""
    return jnp.sum(weight * (flows_of(walks, t, q) - counts) ** 2) / 2


def _given(tangent: Any, of: Callable[[Array], Array]) -> Any:
    """What a tangent adds; 0, and nothing is computed, where it vanishes."""
    return 0.0 if type(tangent) is SymbolicZero else of(tangent)


def _cost_along(primals, tangents):
    (walks, t, q), (_, dt, dq) = primals, tangents
    moved = _given(dt, lambda dt: _along(walks, t, q, dt)) + _given(dq, lambda dq: cost(walks, t, dq))
    return cost(walks, t, q), moved


def _along_along(primals, tangents):
    (walks, t, q, u), (_, dt, dq, du) = primals, tangents
    moved = _given(dt, lambda dt: _bent(walks, t, q, u) @ dt) + _given(dq, lambda dq: _along(walks, t, dq, u))
    return _along(walks, t, q, u), moved + _given(du, lambda du: flows_of(walks, t, q) @ du)


def _flows_along(primals, tangents):
    (walks, t, q), (_, dt, dq) = primals, tangents
    moved = _given(dt, lambda dt: walks.bend(t, q) @ dt) + _given(dq, lambda dq: flows_of(walks, t, dq))
    return flows_of(walks, t, q), moved


def _bent_along(primals, tangents):
    (walks, t, q, u), (_, dt, dq, du) = primals, tangents
    third = lambda: jax.jvp(lambda t: walks.bend(t, q), (t,), (u,))[1]  # the third derivative along u, symmetric
    moved = _given(dt, lambda dt: third() @ dt) + _given(dq, lambda dq: _bent(walks, t, dq, u))
    return _bent(walks, t, q, u), moved + _given(du, lambda du: walks.bend(t, q) @ du)


def _pulled_along(primals, tangents):
    (walks, t, q, u), (_, _, _, du) = primals, tangents
    return _pulled(walks, t, q, u), jnp.zeros_like(u) + _given(du, lambda du: walks.bend(t, q) @ du)


def _distance_along(primals, tangents):
    (walks, t, q, counts, weight), (_, dt, dq, dc, dw) = primals, tangents
    off = flows_of(walks, t, q) - counts
    moved = _given(dt, lambda dt: _pulled(walks, t, q, weight * off) @ dt)
    moved = moved + _given(dq, lambda dq: (weight * off) @ flows_of(walks, t, dq))
    moved = moved - _given(dc, lambda dc: (weight * off) @ dc) + _given(dw, lambda dw: off**2 @ dw / 2)
    return distance(walks, t, q, counts, weight), moved


for _of, _rule in (
    (cost, _cost_along),
    (_along, _along_along),
    (flows_of, _flows_along),
    (_bent, _bent_along),
    (_pulled, _pulled_along),
    (distance, _distance_along),
):
    _of.defjvp(_rule, symbolic_zeros=True)
