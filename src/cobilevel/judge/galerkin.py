"""The reduced problem at one ``x`` with its sensitivity: on all samples, and with groups of them left out."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..answer import Solution
from ..basis import combine
from ..derivatives import Ledger, oracles, sensitivity
from ..lower import solve_at
from ..problem import Study
from ..programs import Held, program
from ..reduction import Batch, Bilevel, Reduced, as_coefficients, reduce_with
from .jackknife import GROUPS, jackknife, split_rows
from .measured import Measured, NoisyVector

_TARGET = 0.9  # the power of the precision that the lower gradient is brought to


class Galerkin(eqx.Module):
    """Coefficients of policy, adjoint and (where asked for) sensitivity, the gradient, and the lower Hessian."""

    W: Float[Held, "N dy"]
    adjoint: Float[Held, "N dy"]
    gradient: Float[Held, " dx"]
    sound: Bool[Held, ""]
    sensitivity: Float[Held, "N dy dx"] | None = None
    hessian: Float[Held, "M M"] | None = None


@program
def galerkin(reduced: Bilevel, x: Float[Held, " dx"], matrices: bool = True) -> Galerkin:
    """Solves the reduced problem at ``x``; without its matrices only coefficients and gradient."""
    tree = ravel_pytree(reduced.x0)[1](x)
    ledger, pool = Ledger.page(), reduced.lower_pool
    slope, _ = oracles.lower_gradient(reduced, tree, reduced.W0, pool, ledger)
    target = jnp.finfo(x.dtype).eps ** _TARGET * jnp.linalg.norm(oracles.flatten(slope)[0])
    point, _ = solve_at(reduced, x, reduced.W0, target, ledger)
    count = len(jax.tree.leaves(reduced.W0)[0])
    W, v = (oracles.flatten(part)[0].reshape(count, -1) for part in (point.W, point.adjoint))
    if not matrices:
        return Galerkin(W, v, point.gradient, point.sound)
    (_, _, hessian), _ = oracles.lower_model(reduced, tree, point.W, pool, ledger)
    cross, _ = oracles.cross_matrix(reduced, tree, point.W, pool, ledger)
    s = sensitivity(lambda right: jnp.linalg.solve(hessian, right), cross.T).reshape(*W.shape, len(x))
    return Galerkin(W, v, point.gradient, point.sound, s, hessian)


def galerkin_without(reduced: Bilevel, x: Float[Held, " dx"], shared: bool, matrices: bool = True) -> Galerkin:
    """The reduced problem solved with one group of samples left out at a time; a leading axis over groups.

    Without the Hessian. `shared`: whether both levels see the same samples.
    """
    rng = np.random.default_rng(0)
    lower, upper = (jnp.asarray(split_rows(len(pool), rng)) for pool in (reduced.lower_pool, reduced.upper_pool))
    return _each_without(reduced, x, lower, lower if shared else upper, matrices)


@program
def _each_without(
    reduced: Bilevel, x: Array, lower: Int[Held, " n"], upper: Int[Held, " m"], matrices: bool
) -> Galerkin:
    def kept(pool: Batch, group: Array, k: Array) -> Batch:
        weight = pool.weight * (group != k).astype(pool.weight.dtype)
        return replace(pool, weight=weight / jnp.mean(weight))

    def one(k):
        part = reduced.with_pools(kept(reduced.upper_pool, upper, k), kept(reduced.lower_pool, lower, k))
        return replace(galerkin(part, x, matrices), hessian=None)

    return jax.lax.map(one, jnp.arange(GROUPS))


def policy_of(reduced: Reduced, W: Float[Held, "N dy"], xi: Array) -> PyTree[Array]:
    """The policy with the given coefficients, at contexts."""
    return combine(reduced.basis(xi), reduced.restore(as_coefficients(np.asarray(W), reduced.W0)))


def measure_reduced(study: Study, solution: Solution) -> Measured:
    """The gradient of the reduced problem alone, with its noise."""
    reduced = reduce_with(study, solution.basis, solution.W).whitened().ordinary()
    x = ravel_pytree(solution.x)[0]
    found = galerkin(reduced, x, False)
    left_out = np.asarray(galerkin_without(reduced, x, study.shared, False).gradient, float)
    gradient = NoisyVector(np.asarray(found.gradient, float), jackknife(left_out))
    trouble = "" if bool(found.sound) else "the reduced problem could not be solved at x"
    return Measured(gradient, gradient, len(left_out) - 1.0, trouble)
