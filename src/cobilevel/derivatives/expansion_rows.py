r"""Sample by sample, what the upper objective is made of to second order in the errors of policy and adjoint.

At coefficients $W$ of the policy $y$ and $V$ of the adjoint $v$ each sample has
$$r = \partial_2 g, \qquad \alpha = \partial_{22} g\, v - \partial_2 f, \qquad m = f - v^T r ,$$
where $r$ and $\alpha$ vanish in conditional mean if policy and adjoint are exact. With
$A = E[\partial_{22} g \mid \xi]$ and $M = E[\partial_{22} f - \partial_{222} g\, v \mid \xi]$,
$$F = E[m] + E\big[\bar\alpha^T A^{-1} \bar r + \tfrac12\, \bar r^T A^{-1} M A^{-1} \bar r\big] + O(|y - y^\star|^3),$$
bars for conditional means.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from ..basis import combine
from ..programs import Held
from ..reduction import Batch, Bilevel


class ExpansionRows(eqx.Module):
    """One row a sample: `f`; ``v^T r``; and where asked for `r`, `alpha`, `curvature` ``d22 g`` and `bend` ``M``."""

    f: Float[Held, "*p m"]
    vr: Float[Held, "*p n"]
    r: Float[Held, "*p n dy"] | None = None
    alpha: Float[Held, "*p n dy"] | None = None
    curvature: Float[Held, "*p n dy dy"] | None = None
    bend: Float[Held, "*p n dy dy"] | None = None


def _flat_y(batch: Batch, W: PyTree) -> Float[Held, "n dy"]:
    return jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(combine(batch.features, W))


def expansion_rows(
    reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, upper: Batch, lower: Batch, joint: bool
) -> ExpansionRows:
    """The rows over a batch of each level; second derivatives only where both levels see the same (`joint`)."""
    f, g = reduced.problem.upper, reduced.problem.lower
    _, unravel = ravel_pytree(jax.tree.map(lambda a: a[0], W))
    y, v = _flat_y(lower, W), _flat_y(lower, V)
    values = jax.vmap(f, in_axes=(None, 0, 0, 0))(x, combine(upper.features, W), upper.xi, upper.eta)

    def slope(z, xi, eta):
        return jax.grad(lambda p: g(x, unravel(p), xi, eta))(z)

    if not joint:
        along = jax.vmap(lambda z, t, xi, eta: t @ slope(z, xi, eta))
        return ExpansionRows(values, along(y, v, lower.xi, lower.eta))

    def one(z, t, xi, eta):
        def alpha(p):
            product = jax.jvp(lambda q: slope(q, xi, eta), (p,), (t,))[1]
            return product - jax.grad(lambda q: f(x, unravel(q), xi, eta))(p)

        r = slope(z, xi, eta)
        return t @ r, r, alpha(z), jax.jacfwd(lambda q: slope(q, xi, eta))(z), -jax.jacfwd(alpha)(z)

    return ExpansionRows(values, *jax.vmap(one)(y, v, lower.xi, lower.eta))


def noise_reach(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> Float[Held, " dx"]:
    r"""The distance along each coordinate of ``x`` over which $r = \partial_2 g$ changes by its own size; 0 if unknown.

    The root mean square of $|r|^2$ over that of $\partial_{12} g\, r$.
    """
    _, unravel = ravel_pytree(jax.tree.map(lambda a: a[0], W))

    def one(z, xi, eta):
        r = jax.grad(lambda p: reduced.problem.lower(x, unravel(p), xi, eta))(z)
        along = lambda point: jax.jvp(lambda p: reduced.problem.lower(point, unravel(p), xi, eta), (z,), (r,))[1]
        return r @ r, ravel_pytree(jax.grad(along)(x))[0]

    squares, turned = jax.vmap(one)(_flat_y(batch, W), batch.xi, batch.eta)
    rms = lambda table: jnp.sqrt(jnp.tensordot(batch.weight / len(batch), table**2, axes=1))
    size = rms(turned)
    return jnp.where(size > 0, rms(squares) / jnp.where(size > 0, size, 1), 0)
