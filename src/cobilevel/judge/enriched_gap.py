"""The gap where only joint samples are at hand: measured against a richer basis, as adaptive methods do."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree
from scipy import stats

from ..basis.base import Basis
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..problem.data import Levels, Product, Samples
from ..problem.problem import Problem
from ..reduction.batches import Table
from ..reduction.reduced import Reduced, build
from .estimates import LEVEL, Estimate
from .gap import GROUPS, Galerkin, Gap, galerkin, jackknife, policy_at, reduced_at, rows_of


def enriched_gap(problem: Problem, solution: Any, above: Samples, below: Samples, richer: Basis) -> Gap:
    """Against a richer basis, on joint samples; noise measured by leaving groups of samples out in turn."""
    data = Levels(upper=above, lower=below)
    x = ravel_pytree(solution.x)[0]
    poor = reduced_at(problem, solution.basis, data, solution.W)
    rich = build(problem, richer, data).whitened()
    low, high = galerkin(poor, x), galerkin(rich, x)
    groups = [_without(part, x, above is below) for part in (poor, rich)]
    left_out = np.stack([np.asarray(found.gradient, float) for found in groups])
    reduced, gradient = (np.asarray(found.gradient, float) for found in (low, high))

    # everything in the coordinates of the richer basis, whose span holds the other
    phi, phi_rich = (np.asarray(part.lower_pool.features, float) for part in (poor, rich))
    embed = np.linalg.lstsq(phi_rich, phi, rcond=None)[0]
    inside = lambda coefficients: np.tensordot(embed, np.asarray(coefficients, float), axes=1)
    H = np.asarray(high.hessian, float)
    pick = lambda found, k: jax.tree.map(lambda a: a[k], found)

    def lost(low, high):
        v = (np.asarray(high.adjoint, float) - inside(low.adjoint)).reshape(-1)
        return v, (np.asarray(high.sensitivity, float) - inside(low.sensitivity)).reshape(len(H), -1)

    lost_v, lost_s = lost(low, high)
    product = lost_s.T @ H @ lost_v
    again = [lost(pick(groups[0], k), pick(groups[1], k)) for k in range(GROUPS)]
    shares = np.asarray(below.mean_one_weights(), float) / len(below)
    rho, noise = _scores(rich, high, solution.x, above is below)
    given = rows_of(solution.policy(below.xi))
    apart = lambda found: shares @ np.sum((rows_of(policy_at(rich, found, below.xi)) - given) ** 2, axis=1)
    # the richer policy's own noise, |H^-1 rho|^2 where features are orthonormal, is no error of this one
    own = float(np.sum(shares**2 * np.sum(np.linalg.solve(H, rho.T) ** 2, axis=0)))
    adjoint_noise = float(np.sum(shares**2 * np.einsum("nk,nk->n", noise, np.linalg.solve(H, noise.T).T)))
    adjoint_noise *= 1 - phi.shape[1] / phi_rich.shape[1]
    policy = _judged(apart(high) - own, [apart(pick(groups[1], k)) for k in range(GROUPS)])
    adjoint = _judged(lost_v @ H @ lost_v - adjoint_noise, [v @ H @ v for v, _ in again])
    sensitivity = _judged(np.sum(lost_s * (H @ lost_s)), [np.sum(s * (H @ s)) for _, s in again])
    difference = gradient - reduced
    return Gap(
        gradient=(gradient, jackknife(left_out[1])),
        reduced=(reduced, jackknife(left_out[0])),
        difference=(difference, jackknife(left_out[1] - left_out[0])),
        parts={"policy": difference - product, "adjoint and sensitivity": product},
        policy_error=policy,
        adjoint_error=adjoint,
        sensitivity_error=sensitivity,
        distance=float(np.sqrt(policy)),
        freedom=float(len(left_out[0]) - 1),
        trouble="" if bool(low.sound & high.sound) else "a reduced problem could not be solved at x",
    )


def reduced_gap(problem: Problem, solution: Any, above: Samples | Product, below: Samples | Product) -> Gap:
    """The reduced gradient alone, with its noise."""
    reduced = reduced_at(problem, solution.basis, Levels(upper=above, lower=below), solution.W)
    x = ravel_pytree(solution.x)[0]
    found = galerkin(reduced, x, False)
    gradient = np.asarray(found.gradient, float)
    spread = jackknife(np.asarray(_without(reduced, x, above is below, False).gradient, float))
    trouble = "" if bool(found.sound) else "the reduced problem could not be solved at x"
    return Gap((gradient, spread), (gradient, spread), GROUPS - 1.0, trouble)


def _judged(value: float, left_out: list) -> Estimate:
    """A nonnegative figure with its error, from its values with a group of samples left out."""
    error = float(np.sqrt(jackknife(np.array(left_out, float)[:, None])[0, 0]))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(left_out) - 1)) * error
    value = max(float(value), 0.0)
    return Estimate(value, error, (max(value - reach, 0.0), value + reach))


def _without(reduced: Reduced, x: Array, same: bool, matrices: bool = True) -> Galerkin:
    """The reduced problem solved with one group of samples left out at a time; a leading axis over groups."""
    rng = np.random.default_rng(0)
    pools = (reduced.lower_pool, reduced.upper_pool)
    groups = [rng.permutation(len(pool)) % GROUPS for pool in pools]
    below, above = (jnp.asarray(group) for group in ((groups[0], groups[0]) if same else groups))
    return _each_without(reduced, x, below, above, matrices)


@eqx.filter_jit
def _each_without(reduced: Reduced, x: Array, below: Array, above: Array, matrices: bool) -> Galerkin:
    def thin(source, group, k):
        pool = source.pool()
        weight = pool.weight * (group != k)
        return Table(replace(pool, weight=weight / jnp.mean(weight)))

    def one(k):
        part = replace(
            reduced,
            lower_source=thin(reduced.lower_source, below, k),
            upper_source=thin(reduced.upper_source, above, k),
        )
        found = galerkin(part, x, matrices)
        return replace(found, hessian=jnp.zeros((0, 0), x.dtype))

    return jax.lax.map(one, jnp.arange(GROUPS))


@eqx.filter_jit
def _scores_jit(reduced: Reduced, x: PyTree, W: PyTree, V: PyTree):
    ledger, pool = Ledger.empty(), reduced.lower_pool
    (d2, product, _), _ = oracles.lower_rows(reduced, x, W, V, pool, ledger)
    return d2, product


def _scores(reduced: Reduced, found: Galerkin, x: PyTree, same: bool) -> tuple[np.ndarray, np.ndarray]:
    """Row by row, ``d2 g`` and ``d2 f - d22 g v`` times the features: their means vanish, their spread is noise."""
    _, unflatten = oracles.flatten(reduced.W0)
    W, V = unflatten(found.W.reshape(-1)), unflatten(found.adjoint.reshape(-1))
    d2, product = (rows_of(tree) for tree in _scores_jit(reduced, x, W, V))
    phi = np.asarray(reduced.lower_pool.features, float)
    pool = reduced.upper_pool
    spread = lambda rows: np.einsum("nk,na->nka", phi, rows).reshape(len(phi), -1)
    if not same:
        return spread(d2), spread(product)
    above, _ = oracles.upper_rows(reduced, x, W, pool, Ledger.empty())
    return spread(d2), spread(rows_of(above[2]) - product)
