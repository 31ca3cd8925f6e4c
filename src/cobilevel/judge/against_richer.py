"""The reduced problem against that of a richer basis at one ``x``: for joint samples, each context seen about once."""

from collections.abc import Callable

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..answer import Solution
from ..basis import Basis
from ..derivatives import Ledger, linear_direction, oracles
from ..problem import Study
from ..programs import program
from ..reduction import Reduced, reduce_study, reduce_with
from .galerkin import Galerkin, galerkin, galerkin_without, policy_of
from .jackknife import GROUPS, as_rows, jackknife, jackknife_estimate
from .measured import Errors, Measured, NoisyVector


def measure_against_richer(study: Study, solution: Solution, richer: Basis) -> Measured:
    """Against a richer basis, on joint samples; noise measured by leaving groups of samples out in turn."""
    x = ravel_pytree(solution.x)[0]
    poor = reduce_with(study, solution.basis, solution.W).whitened()
    rich = reduce_study(study, richer).whitened()
    low, high = (galerkin(part.ordinary(), x) for part in (poor, rich))
    low_out, high_out = (galerkin_without(part.ordinary(), x, study.shared) for part in (poor, rich))
    reduced, gradient = (np.asarray(found.gradient, float) for found in (low, high))
    reduced_out, gradient_out = (np.asarray(found.gradient, float) for found in (low_out, high_out))

    lost = _lost(poor, rich)
    H = np.asarray(high.hessian, float)
    lost_v, lost_s = lost(low, high)
    product = lost_s.T @ H @ lost_v
    again = [lost(*jax.tree.map(lambda a, k=k: a[k], (low_out, high_out))) for k in range(GROUPS)]
    policy_noise, adjoint_noise = _own_noise(study, rich, high, solution.x)
    adjoint_noise *= 1 - len(low.W) / len(high.W)
    apart = _policy_distance(study, solution, rich)
    policy = jackknife_estimate(apart(high.W) - policy_noise, [apart(high_out.W[k]) for k in range(GROUPS)])
    difference = gradient - reduced
    return Measured(
        gradient=NoisyVector(gradient, jackknife(gradient_out)),
        reduced=NoisyVector(reduced, jackknife(reduced_out)),
        difference=NoisyVector(difference, jackknife(gradient_out - reduced_out)),
        parts={"policy": difference - product, "adjoint and sensitivity": product},
        errors=Errors(
            policy=policy,
            adjoint=jackknife_estimate(_square(H, lost_v) - adjoint_noise, [_square(H, v) for v, _ in again]),
            sensitivity=jackknife_estimate(_square(H, lost_s), [_square(H, s) for _, s in again]),
            distance=float(np.sqrt(policy)),
        ),
        freedom=GROUPS - 1.0,
        trouble="" if bool(low.sound & high.sound) else "a reduced problem could not be solved at x",
        compared=repr(richer),
    )


def _square(H: Float[np.ndarray, "M M"], vectors: Float[np.ndarray, "M ..."]) -> float:
    """The squared length in the norm of ``H``, of all columns together."""
    return float(np.sum(vectors * (H @ vectors)))


def _lost(poor: Reduced, rich: Reduced) -> Callable[[Galerkin, Galerkin], tuple[np.ndarray, np.ndarray]]:
    """What the smaller basis misses of adjoint and sensitivity, in the coordinates of the richer one.

    The span of the richer basis holds the other, so that every function has coefficients there.
    """
    phi, phi_rich = (np.asarray(part.lower_pool.features, float) for part in (poor, rich))
    embed = np.linalg.lstsq(phi_rich, phi, rcond=None)[0]
    inside = lambda coefficients: np.tensordot(embed, np.asarray(coefficients, float), axes=1)

    def lost(low: Galerkin, high: Galerkin) -> tuple[np.ndarray, np.ndarray]:
        v = (np.asarray(high.adjoint, float) - inside(low.adjoint)).reshape(-1)
        s = np.asarray(high.sensitivity, float) - inside(low.sensitivity)
        return v, s.reshape(len(v), -1)

    return lost


def _policy_distance(study: Study, solution: Solution, rich: Reduced) -> Callable[[Array], float]:
    """The mean square distance of the solution's policy to one in the richer basis, given its coefficients."""
    rows = study.lower.contexts()
    shares, given = rows.shares(), as_rows(solution.policy(rows.xi))
    return lambda W: float(shares @ np.sum((as_rows(policy_of(rich, W, rows.xi)) - given) ** 2, axis=1))


@program
def _noise_rows(reduced: Reduced, x: PyTree, W: PyTree, V: PyTree, shared: bool) -> tuple[PyTree, PyTree]:
    """Row by row, ``d2 g`` and ``d22 g v``, less ``d2 f`` where both levels see these rows."""
    ledger = Ledger.page()
    (d2, product, _), _ = oracles.lower_rows(reduced, x, W, V, reduced.lower_pool, ledger)
    if not shared:
        return d2, product
    (_, _, pull), _ = oracles.upper_rows(reduced, x, W, reduced.upper_pool, ledger)
    return d2, linear_direction(product, pull)


def _own_noise(study: Study, rich: Reduced, found: Galerkin, x: PyTree) -> tuple[float, float]:
    """The mean squares by which noise moves policy and adjoint of the richer fit: no errors of the solution.

    ``d2 g`` and ``d22 g v - d2 f`` times the features vanish in the mean; their spread, through the inverse Hessian
    (features are orthonormal), is that noise.
    """
    _, unflatten = oracles.flatten(rich.W0)
    W, V = (unflatten(part.reshape(-1)) for part in (found.W, found.adjoint))
    phi, shares = np.asarray(rich.lower_pool.features, float), study.lower.contexts().shares()
    spread = lambda rows: np.einsum("nk,na->nka", phi, as_rows(rows)).reshape(len(phi), -1)
    of_policy, of_adjoint = (spread(rows) for rows in _noise_rows(rich, x, W, V, study.shared))
    H = np.asarray(found.hessian, float)
    policy = np.sum(np.linalg.solve(H, of_policy.T) ** 2, axis=0)
    adjoint = np.einsum("nk,nk->n", of_adjoint, np.linalg.solve(H, of_adjoint.T).T)
    return float(shares**2 @ policy), float(shares**2 @ adjoint)
