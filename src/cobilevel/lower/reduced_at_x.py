"""The reduced problem at one ``x``, exactly: the lower level solved, the hypergradient by implicit differentiation."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..basis import OneHot
from ..derivatives import ConjugateGradient, Direct, Ledger, hypergradient, oracles, positive_solve
from ..programs import program
from ..reduction import Batch, Bilevel
from .damped_newton import DENSE_LIMIT, Blocks, Curvature, Dense, MatrixFree, Minimum, minimise


class Point(eqx.Module):
    """The reduced problem at one ``x``, with its lower level solved."""

    x: Float[Array, " dx"]
    W: PyTree[Array]
    value: Float[Array, ""]
    gradient: Float[Array, " dx"]
    lower_gradient: Float[Array, ""]
    solved: Bool[Array, ""]
    definite: Bool[Array, ""]
    adjoint: PyTree[Array]

    @property
    def sound(self) -> Bool[Array, ""]:
        """Whether the value and the gradient mean anything."""
        return self.solved & self.definite & self.finite

    @property
    def finite(self) -> Bool[Array, ""]:
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.gradient))


def hessian_is_formed(start: Float[Array, " M"], batch: Batch) -> bool:
    """Whether so many coefficients have a Hessian small enough to be formed, or one of small blocks."""
    count = batch.features.shape[1]
    held = count * (len(start) // count) ** 2 if isinstance(batch.features, OneHot) else len(start) ** 2
    return held <= DENSE_LIMIT**2


def lower_objective(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, dense: bool) -> Curvature:
    """The reduced lower level at ``x`` as a function of ``flatten(W)``, for ``minimise``; what that spends is counted
    afterwards, by ``charge``."""
    _, unflatten = oracles.flatten(W)
    ledger = Ledger.page()

    def slope(z):
        value, _ = oracles.lower_value(reduced, x, unflatten(z), batch, ledger)
        gradient, _ = oracles.lower_gradient(reduced, x, unflatten(z), batch, ledger)
        return value, oracles.flatten(gradient)[0]

    if dense and isinstance(batch.features, OneHot):
        return Blocks(lambda z: oracles.lower_blocks(reduced, x, unflatten(z), batch, ledger)[0], slope)
    if dense:
        return Dense(lambda z: oracles.lower_model(reduced, x, unflatten(z), batch, ledger)[0], slope)

    def product(z, v):
        out, _ = oracles.hessian_vector(reduced, x, unflatten(z), unflatten(v), batch, ledger)
        return oracles.flatten(out)[0]

    return MatrixFree(slope, product)


def charge(ledger: Ledger, found: Minimum, batch: Batch, dense: bool) -> Ledger:
    """The ledger after ``minimise`` on a ``lower_objective``."""
    slopes = found.slopes if dense else found.slopes + found.evaluations
    ledger = ledger.add("lower_value", batch, slopes).add("lower_gradient", batch, slopes)
    if dense:
        return ledger.add("hessian", batch, found.evaluations)
    return ledger.add("hessian_vector", batch, found.products)


def solve_at(reduced: Bilevel, x: Float[Array, " dx"], W: PyTree, target: Any, ledger: Ledger) -> tuple[Point, Ledger]:
    """Solves the reduced lower level at ``x`` from ``W`` and takes the implicit hypergradient there."""
    _, unravel = ravel_pytree(reduced.x0)
    start, unflatten = oracles.flatten(W)
    batch, tree = reduced.lower_pool, unravel(x)
    dense = hessian_is_formed(start, batch)
    found = minimise(lower_objective(reduced, tree, W, batch, dense), start, target)
    ledger = charge(ledger, found, batch, dense)
    linear = Direct(found.hessian) if dense else ConjugateGradient()
    # a last Newton correction with the Hessian at hand: it brings the residual to rounding, and with it the noise in F
    last, definite = positive_solve(found.hessian, found.gradient) if dense else (jnp.zeros_like(start), True)
    found_W = unflatten(found.point - jnp.where(definite, last, 0))
    value, gradient, v, ledger = hypergradient(
        reduced, tree, found_W, reduced.upper_pool, batch, linear, lambda _: batch, ledger
    )
    flat = ravel_pytree(gradient)[0]
    if not dense:  # conjugate gradients answer NaN where they meet nonpositive curvature
        definite = jnp.all(jnp.isfinite(oracles.flatten(v)[0])) | ~jnp.isfinite(value)
    point = Point(x, found_W, value, flat, jnp.linalg.norm(found.gradient), found.converged, jnp.asarray(definite), v)
    return point, ledger


@program
def lower_minimiser(reduced: Bilevel, x: PyTree, W: PyTree, share: float) -> PyTree:
    """The coefficients that minimise the reduced lower level at ``x``, from ``W``.

    Until the gradient is `share` of its size at ``W0``; at least a square root of the precision where the Hessian is
    not formed.
    """
    start, unflatten = oracles.flatten(W)
    dense = hessian_is_formed(start, reduced.lower_pool)
    objective = lower_objective(reduced, x, W, reduced.lower_pool, dense)
    first = jnp.linalg.norm(objective.local(oracles.flatten(reduced.W0)[0])[1])
    share = share if dense else max(share, float(jnp.finfo(start.dtype).eps) ** 0.5)
    return unflatten(minimise(objective, start, share * first).point)
