"""What a set of functions leaves of the policy and the adjoint at one ``x``: residuals, sample by sample."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..basis import dense
from ..derivatives import Direct, Ledger, hypergradient, linear_direction, noise_reach, oracles
from ..lower import Dense, Minimum, minimise
from ..programs import program
from ..reduction import Batch, Bilevel


class Residuals(eqx.Module):
    """At one ``x``, with some of a table's functions fitted.

    - `r`: ``d2 g``; `alpha`: ``d22 g v - d2 f``, where both levels see the same samples; their conditional means vanish
      where the functions suffice.
    - `z`: the coefficients fitted; `pull`: the mean of ``d2 f``; `curvature`: that of ``d22 g``.
    - `spread`: of ``f`` over the samples; `sizes`: of single samples' gradients, coordinate by coordinate of ``x``;
      `turning`: the distances over which the lower level's noise turns.
    """

    r: Float[Array, "n dy"]
    alpha: Float[Array, "n dy"] | None
    z: Float[Array, " m"]
    pull: Float[Array, " dy"]
    curvature: Float[Array, "dy dy"]
    spread: Float[Array, ""]
    sizes: Float[Array, " dx"]
    turning: Float[Array, " dx"]
    sound: Bool[Array, ""]
    ledger: Ledger


def _flat(rows: PyTree) -> Float[Array, "n k"]:
    return jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(rows)


def _mean(batch: Batch, table: Array) -> Array:
    return jnp.tensordot(batch.weight / len(batch), table, axes=1)


def masked(batch: Batch, mask: Float[Array, " N"]) -> Batch:
    """A batch with some of its functions alone, the others zero."""
    return eqx.tree_at(lambda b: b.features, batch, dense(batch.features) * mask)


def masked_minimum(
    bare: Bilevel, x: PyTree, z: Float[Array, " m"], mask: Float[Array, " N"], lower: Batch
) -> tuple[Minimum, PyTree]:
    """The lower objective minimised from ``z`` over the functions in the mask; and the coefficients in their shape.

    The coefficients of the others stay as they are: the Hessian is the identity there.
    """
    _, unflatten = oracles.flatten(bare.W0)
    idle = jnp.diag(jnp.repeat(1 - mask, len(z) // len(mask)))

    def model(point):
        (value, slope, hessian), _ = oracles.lower_model(bare, x, unflatten(point), lower, Ledger.page())
        return value, slope, hessian + idle

    slope, _ = oracles.lower_gradient(bare, x, unflatten(jnp.zeros_like(z)), lower, Ledger.page())
    target = jnp.finfo(z.dtype).eps ** 0.5 * jnp.linalg.norm(oracles.flatten(slope)[0])
    found = minimise(Dense(model), z, target)
    return found, unflatten(found.point)


@program
def residuals(
    bare: Bilevel, x: PyTree, z: Float[Array, " m"], mask: Float[Array, " N"], joint: bool, ledger: Ledger
) -> Residuals:
    """Minimises the lower objective over the functions in the mask, solves for the adjoint, and takes residuals."""
    lower, upper = (masked(pool, mask) for pool in (bare.lower_pool, bare.upper_pool))
    found, W = masked_minimum(bare, x, z, mask, lower)
    size = len(z) // len(mask)
    _, gradient, v, ledger = hypergradient(bare, x, W, upper, lower, Direct(found.hessian), lambda _: lower, ledger)
    (d2, product, cross), ledger = oracles.lower_rows(
        bare, x, W, v, lower, ledger.add("hessian", lower, found.evaluations)
    )
    (values, d1, pull), ledger = oracles.upper_rows(bare, x, W, upper, ledger)
    squares = _mean(upper, _flat(d1) ** 2) + _mean(lower, _flat(cross) ** 2)
    centred = values - _mean(upper, values)
    sound = found.converged & jnp.all(jnp.isfinite(ravel_pytree(gradient)[0])) & jnp.all(jnp.isfinite(found.point))
    return Residuals(
        r=_flat(d2),
        alpha=_flat(linear_direction(product, pull)) if joint else None,
        z=found.point,
        pull=_mean(upper, _flat(pull)),
        curvature=found.hessian[:size, :size],  # the first function is a constant of mean square one
        spread=jnp.sqrt(_mean(upper, centred**2)),
        sizes=jnp.sqrt(squares),
        turning=noise_reach(bare, x, W, lower),
        sound=sound,
        ledger=ledger,
    )
