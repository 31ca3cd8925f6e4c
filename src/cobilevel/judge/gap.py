"""judge.gap."""

from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..basis.base import FeatureMap, combine
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..lower.reduced_at_x import solve_at
from ..problem.data import Levels
from ..problem.problem import Problem
from ..reduction.reduced import Reduced, assemble
from .estimates import Estimate, freedom_of

GROUPS = 20  # groups of samples left out in turn, where that is how noise is measured


@dataclass(frozen=True)
class Gap:
    """What was measured at one ``x``; vectors after the flattened ``x``, `freedom` of their estimated covariances."""

    gradient: tuple[np.ndarray, np.ndarray]
    reduced: tuple[np.ndarray, np.ndarray]
    freedom: float
    trouble: str
    difference: tuple[np.ndarray, np.ndarray] | None = None
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    policy_error: Estimate | None = None
    adjoint_error: Estimate | None = None
    sensitivity_error: Estimate | None = None
    distance: float = np.nan
    scale: float = 0.0


def rows_of(tree: PyTree) -> np.ndarray:
    """A batch of pytrees as a matrix, one row each."""
    return np.asarray(jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(tree), dtype=float)


def covariance(rows: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Of the weighted mean of independent rows."""
    apart = (rows - shares @ rows) * shares[:, None]
    freedom = freedom_of(shares)
    return apart.T @ apart * (1 + 1 / freedom if freedom > 0.5 else np.nan)


def jackknife(left_out: Float[np.ndarray, "k d"]) -> np.ndarray:
    """The covariance of an estimate, from its values with one of `k` groups of samples left out at a time."""
    apart = left_out - left_out.mean(axis=0)
    return (len(left_out) - 1) / len(left_out) * apart.T @ apart


def _count(reduced: Reduced) -> int:
    return len(jax.tree.leaves(reduced.W0)[0])


class Galerkin(eqx.Module):
    """The reduced problem solved at one ``x``: coefficients of policy, adjoint and sensitivity, gradient, Hessian."""

    W: Float[Array, "N dy"]
    adjoint: Float[Array, "N dy"]
    sensitivity: Float[Array, "N dy dx"]
    gradient: Float[Array, " dx"]
    hessian: Float[Array, "M M"]
    sound: Array


@eqx.filter_jit
def galerkin(reduced: Reduced, x: Float[Array, " dx"], matrices: bool = True) -> Galerkin:
    """Solves the reduced problem at ``x``; without its matrices only coefficients and gradient."""
    _, unravel = ravel_pytree(reduced.x0)
    ledger, pool = Ledger.empty(), reduced.lower_pool
    slope, _ = oracles.lower_gradient(reduced, unravel(x), reduced.W0, pool, ledger)
    target = jnp.finfo(x.dtype).eps ** 0.9 * jnp.linalg.norm(oracles.flatten(slope)[0])
    point, _ = solve_at(reduced, x, reduced.W0, target, ledger)
    W, v = (oracles.flatten(tree)[0].reshape(_count(reduced), -1) for tree in (point.W, point.adjoint))
    if not matrices:
        nothing = jnp.zeros((0, 0), x.dtype)
        return Galerkin(W, v, jnp.zeros((*W.shape, 0)), point.gradient, nothing, point.sound)
    (_, _, hessian), _ = oracles.lower_model(reduced, unravel(x), point.W, pool, ledger)
    cross, _ = oracles.cross_matrix(reduced, unravel(x), point.W, pool, ledger)
    s = -jnp.linalg.solve(hessian, cross.T).reshape(*W.shape, len(x))
    return Galerkin(W, v, s, point.gradient, hessian, point.sound)


def reduced_at(problem: Problem, fitted: FeatureMap, data: Levels, W: PyTree | None = None) -> Reduced:
    """The reduced problem for a fitted basis, in whitened coordinates, starting from the coefficients ``W``."""
    reduced = assemble(problem, fitted, data)
    return (reduced if W is None else replace(reduced, W0=W)).whitened()


def features(reduced: Reduced, xi: Array) -> Array:
    """The features in the coordinates of the reduced problem."""
    phi = reduced.basis(xi)
    return phi if reduced.coordinates is None else phi @ reduced.coordinates.transform


def policy_at(reduced: Reduced, found: Galerkin, xi: Array) -> PyTree:
    """The policy of the reduced problem's solution, at contexts."""
    _, unflatten = oracles.flatten(reduced.W0)
    W = reduced.lift(reduced.x0, unflatten(found.W.reshape(-1))).W
    return combine(reduced.basis(xi), W)
