"""The gap where only joint samples are at hand: measured against a richer basis, as adaptive methods do."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from . import oracles
from .basis import Basis
from .data import Levels, Product, Samples
from .gap import GROUPS, Galerkin, Gap, galerkin, jackknife, policy_at, reduced_at, rows_of
from .intervals import Estimate, mean_estimate
from .oracles import Ledger
from .problem import Problem
from .reduction import Reduced, Table, build


def enriched_gap(problem: Problem, solution: Any, above: Samples, below: Samples, richer: Basis) -> Gap:
    """Against a richer basis, on joint samples; noise measured by leaving groups of samples out in turn."""
    data = Levels(upper=above, lower=below)
    x = ravel_pytree(solution.x)[0]
    poor = reduced_at(problem, solution.basis, data, solution.W)
    rich = build(problem, richer, data).whitened()
    low, high = galerkin(poor, x), galerkin(rich, x)
    left_out = np.stack([_left_out(part, x, above is below) for part in (poor, rich)])
    reduced, gradient = (np.asarray(found.gradient, float) for found in (low, high))

    # everything in the coordinates of the richer basis, whose span holds the other
    phi, phi_rich = (np.asarray(part.lower_pool.features, float) for part in (poor, rich))
    embed = np.linalg.lstsq(phi_rich, phi, rcond=None)[0]
    inside = lambda coefficients: np.tensordot(embed, np.asarray(coefficients, float), axes=1)
    H = np.asarray(high.hessian, float)
    lost_v = (np.asarray(high.adjoint, float) - inside(low.adjoint)).reshape(-1)
    lost_s = (np.asarray(high.sensitivity, float) - inside(low.sensitivity)).reshape(len(H), -1)
    product = lost_s.T @ H @ lost_v
    shares = np.asarray(below.mean_one_weights(), float) / len(below)
    rho, noise = _scores(rich, high, solution.x)
    y = rows_of(policy_at(rich, high, below.xi))
    apart = np.sum((y - rows_of(solution.policy(below.xi))) ** 2, axis=1)
    # the richer policy's own noise, |H^-1 rho|^2 where features are orthonormal, is no error of this one
    own = float(np.sum(shares**2 * np.sum(np.linalg.solve(H, rho.T) ** 2, axis=0)))
    policy = mean_estimate(apart, shares)
    policy = Estimate(
        max(float(policy) - own, 0.0), policy.error, (max(policy.interval[0] - own, 0), policy.interval[1])
    )
    adjoint_noise = float(np.sum(shares**2 * np.einsum("nk,nk->n", noise, np.linalg.solve(H, noise.T).T)))
    adjoint = float(lost_v @ H @ lost_v)
    adjoint_noise *= 1 - phi.shape[1] / phi_rich.shape[1]
    difference = gradient - reduced
    return Gap(
        gradient=(gradient, jackknife(left_out[1])),
        reduced=(reduced, jackknife(left_out[0])),
        difference=(difference, jackknife(left_out[1] - left_out[0])),
        parts={"policy": difference - product, "adjoint and sensitivity": product},
        policy_error=policy,
        adjoint_error=Estimate(max(adjoint - adjoint_noise, 0.0), adjoint_noise, (0.0, adjoint + 2 * adjoint_noise)),
        sensitivity_error=Estimate(float(np.sum(lost_s * (H @ lost_s)))),
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
    spread = jackknife(_left_out(reduced, x, above is below))
    trouble = "" if bool(found.sound) else "the reduced problem could not be solved at x"
    return Gap((gradient, spread), (gradient, spread), GROUPS - 1.0, trouble)


def _left_out(reduced: Reduced, x: Array, same: bool) -> np.ndarray:
    """Gradients with one group of samples left out at a time."""
    rng = np.random.default_rng(0)
    pools = (reduced.lower_pool, reduced.upper_pool)
    groups = [rng.permutation(len(pool)) % GROUPS for pool in pools]
    if same:
        groups[1] = groups[0]
    return np.asarray(_gradients_without(reduced, x, *(jnp.asarray(g) for g in groups)), float)


@eqx.filter_jit
def _gradients_without(reduced: Reduced, x: Array, below: Array, above: Array) -> Array:
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
        return galerkin(part, x, False).gradient

    return jax.lax.map(one, jnp.arange(GROUPS))


@eqx.filter_jit
def _scores_jit(reduced: Reduced, x: PyTree, W: PyTree, V: PyTree):
    ledger, pool = Ledger.empty(), reduced.lower_pool
    (d2, product, _), _ = oracles.lower_rows(reduced, x, W, V, pool, ledger)
    return d2, product


def _scores(reduced: Reduced, found: Galerkin, x: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Row by row, ``d2 g`` and ``d2 f - d22 g v`` times the features: their means vanish, their spread is noise."""
    _, unflatten = oracles.flatten(reduced.W0)
    W, V = unflatten(found.W.reshape(-1)), unflatten(found.adjoint.reshape(-1))
    d2, product = (rows_of(tree) for tree in _scores_jit(reduced, x, W, V))
    phi = np.asarray(reduced.lower_pool.features, float)
    pool = reduced.upper_pool
    spread = lambda rows: np.einsum("nk,na->nka", phi, rows).reshape(len(phi), -1)
    if len(pool) != len(phi):
        return spread(d2), spread(product)
    above, _ = oracles.upper_rows(reduced, x, W, pool, Ledger.empty())
    return spread(d2), spread(rows_of(above[2]) - product)
