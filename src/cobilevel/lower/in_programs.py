"""The lower level inside of a compiled program: truncated Newton steps, for solvers whose own steps are compiled."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ..derivatives import Ledger, conjugate_gradient, oracles
from ..reduction import Batch, Bilevel

_HALVINGS = 30  # of one step, at most
_PRODUCTS = 250  # with the Hessian, for one step
_ENOUGH = 1e-4  # of the decrease that the slope promised (Armijo), the customary constant


def newton_steps(
    reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, target: Any, steps: int, ledger: Ledger
) -> tuple[PyTree, Ledger]:
    """The coefficients after Newton steps from ``W`` on a batch: until the gradient is no longer than `target`, no step
    lowers the objective, or `steps` are taken. Directions by conjugate gradients, lengths by halving."""
    start, unflatten = oracles.flatten(W)
    page = Ledger.page()

    def slope(z: Array) -> tuple[Array, Array]:
        value, _ = oracles.lower_value(reduced, x, unflatten(z), batch, page)
        gradient, _ = oracles.lower_gradient(reduced, x, unflatten(z), batch, page)
        return value, oracles.flatten(gradient)[0]

    def product(z: Array, v: Array) -> Array:
        return oracles.flatten(oracles.hessian_vector(reduced, x, unflatten(z), unflatten(v), batch, page)[0])[0]

    def unfinished(now):
        _, _, gradient, moved, count, _, _ = now
        return moved & (jnp.linalg.norm(gradient) > target) & (count < steps)

    def one(now):
        z, value, gradient, _, count, products, slopes = now
        size = jnp.linalg.norm(gradient)
        effort = jnp.clip(target / size, 1e-2 * jnp.finfo(z.dtype).eps ** 0.5, 1e-1)
        p, spent, _ = conjugate_gradient(lambda v: product(z, v), -gradient, effort, _PRODUCTS)
        steep, noise = gradient @ p, 32 * jnp.finfo(z.dtype).eps * jnp.abs(value)

        def falls(trial):
            length, there, slope_there, _ = trial
            seen = there <= value + _ENOUGH * length * steep
            hidden = (there <= value + noise) & (jnp.linalg.norm(slope_there) < size)
            return (steep < 0) & (seen | hidden)

        def halve(trial):
            length, _, _, tries = trial
            return length / 2, *slope(z + length / 2 * p), tries + 1

        first = (jnp.ones_like(value), *slope(z + p), jnp.int32(1))
        trial = jax.lax.while_loop(lambda t: ~falls(t) & (t[3] < _HALVINGS), halve, first)
        moved = falls(trial)
        length, there, after, tries = trial
        keep = lambda new, old: jnp.where(moved, new, old)
        return (
            keep(z + length * p, z), keep(there, value), keep(after, gradient), moved, count + 1, products + spent,
            slopes + tries,
        )  # fmt: skip

    none = jnp.int32(0)
    begin = (start, *slope(start), jnp.asarray(True), none, none, jnp.int32(1))
    z, _, _, _, _, products, slopes = jax.lax.while_loop(unfinished, one, begin)
    ledger = ledger.add("lower_value", batch, slopes).add("lower_gradient", batch, slopes)
    return unflatten(z), ledger.add("hessian_vector", batch, products)
