r"""The standard error of the policy at a context, with ``x`` held as it is.

The coefficients solve $\mathrm{mean}(\partial_2 g_i \otimes \Phi_i) = 0$, so their covariance is the sandwich
$H^{-1} S H^{-1}$ with $H$ the curvature of the lower level and $S$ the covariance of that mean; the policy is linear in
them. Residuals are enlarged by what the fit to each sample takes from them (without that, ten samples for each function
cover 90% instead of 95%). It is the noise of the samples alone: what the basis cannot follow is not in it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from ..basis import dense
from ..derivatives import Expansions, flattened, galerkin
from ..problem import Study
from ..reduction import Reduced
from .level_noise import level_covariance, pool_shares

_MOST_COEFFICIENTS = 1500  # whose covariance is formed
_MOST_SCORES = 3e7  # numbers, one for each sample and coefficient
_MOST_LEVERAGE = 0.9  # of a sample: a fit that follows one further says nothing of its noise

PolicyErrors = Callable[[Any], Float[np.ndarray, "n dy"]]


def _sample_leverage(phi: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """How far the fit follows each single sample: its residual is smaller than its noise by this share."""
    q = np.linalg.qr(phi * np.sqrt(shares)[:, None])[0]
    return np.sum(q**2, axis=1)


def policy_noise(study: Study, reduced: Reduced, x: PyTree, W: PyTree) -> PolicyErrors | str:
    """A function from contexts to the standard error of each component of ``y``; or why there is none, in words.

    `W`: the coefficients in the coordinates of `reduced`.
    """
    expansions = Expansions(reduced.ordinary())
    count, rows = expansions.functions * expansions.dy, reduced.lower_source.rows
    if rows is None or count > _MOST_COEFFICIENTS or rows * count > _MOST_SCORES:
        return f"the policy has {count} coefficients and {rows} samples, too many to form their covariance."
    found, phi = (
        expansions.lower_rows(flattened(x), expansions.table(W)),
        np.asarray(dense(reduced.lower_pool.features), float),
    )
    slopes, hessian = found.slope, galerkin(phi, found.hessian * pool_shares(study.lower)[:, None, None])
    if not np.all(np.isfinite(hessian)) or np.linalg.eigvalsh(hessian)[0] <= 0:
        return "the lower level is not strongly convex at the policy."
    if not study.lower.crossed:
        slopes = slopes / (1 - np.minimum(_sample_leverage(phi, pool_shares(study.lower)), _MOST_LEVERAGE))[:, None]
    scores = (phi[:, :, None] * slopes[:, None, :]).reshape(len(phi), -1)
    half = np.linalg.solve(hessian, level_covariance(study.lower, scores))
    sizes = phi.shape[1], slopes.shape[1]
    spread = np.einsum("kjlj->jkl", np.linalg.solve(hessian, half.T).reshape(*sizes, *sizes))

    def errors(xi: Any) -> Float[np.ndarray, "n dy"]:
        at = np.asarray(reduced.features(xi), float)
        return np.sqrt(np.maximum(np.einsum("nk,jkl,nl->nj", at, spread, at), 0))

    return errors
