r"""The noise of means over the rows of a level, and the standard error that it gives the policy at a context.

With ``x`` held, the coefficients solve $\mathrm{mean}(\partial_2 g_i \otimes \Phi_i) = 0$, so their covariance is the
sandwich $H^{-1} S H^{-1}$ with $H$ the curvature of the lower level and $S$ the covariance of that mean; the policy is
linear in them. Residuals are enlarged by what the fit to each sample takes from them (without that, ten samples for
each function cover 90% instead of 95%). What the basis cannot follow is not in it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from ..derivatives import Expansions, flattened, galerkin
from ..lower import DENSE_LIMIT
from ..problem import Level
from ..reduction import Reduced
from ..study import Study

CLEAR = 2.5  # standard errors by which a gradient must push against a bound or a kink, for it to hold x
NEGLIGIBLE = 1e-3  # of a whole: a share that counts for nothing
MOST_NUMBERS = 1.5e8  # held at one time: 1.2 GB
_MOST_LEVERAGE = 0.9  # of a sample: a fit that follows one further says nothing of its noise


def slope_accuracy(eps: float) -> float:
    """The relative accuracy that slopes are trusted to: that of a difference quotient with the best step."""
    return eps ** (2 / 3)


def mean_covariance(rows: Float[np.ndarray, "n k"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the weighted mean of independent rows."""
    apart = (rows - shares @ rows) * shares[:, None]
    return apart.T @ apart


def level_covariance(level: Level, rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the mean of rows over a level's pool; of contexts and data apart where they are crossed."""
    shares = level.contexts().shares()
    if not level.crossed:
        return mean_covariance(rows, shares)
    table = rows.reshape(len(shares), -1, rows.shape[1])
    by_data = np.tensordot(shares, table, axes=1)
    spread = mean_covariance(by_data, np.full(len(by_data), 1 / len(by_data)))
    return spread if level.law is not None else spread + mean_covariance(table.mean(axis=1), shares)


def policy_noise(
    study: Study, reduced: Reduced, x: PyTree, W: PyTree
) -> Callable[[Any], Float[np.ndarray, "n dy"]] | str:
    """A function from contexts to the standard error of each component of ``y``; or why there is none, in words.

    `W`: the coefficients in the coordinates of `reduced`.
    """
    expansions = Expansions(reduced.ordinary())
    count, rows = expansions.functions * expansions.dy, reduced.lower_source.rows
    if rows is None or count > DENSE_LIMIT or 3 * rows * count > MOST_NUMBERS:  # scores, and two copies of them
        return f"the policy has {count} coefficients and {rows} samples, too many to form their covariance."
    (pool,) = expansions.lower_pools
    phi, shares = np.asarray(pool.features, float), pool.shares
    lower = expansions.lower_rows(flattened(x), expansions.table(W))
    slopes, hessian = lower.slope, galerkin(phi, lower.hessian * shares[:, None, None])
    if not np.all(np.isfinite(hessian)) or np.linalg.eigvalsh(hessian)[0] <= 0:
        return "the lower level is not strongly convex at the policy."
    if not study.lower.crossed:
        leverage = np.sum(np.linalg.qr(phi * np.sqrt(shares)[:, None])[0] ** 2, axis=1)
        slopes = slopes / (1 - np.minimum(leverage, _MOST_LEVERAGE))[:, None]
    scores = (phi[:, :, None] * slopes[:, None, :]).reshape(len(phi), -1)
    half = np.linalg.solve(hessian, level_covariance(study.lower, scores))
    sizes = phi.shape[1], slopes.shape[1]
    spread = np.einsum("kjlj->jkl", np.linalg.solve(hessian, half.T).reshape(*sizes, *sizes))

    def errors(xi: Any) -> Float[np.ndarray, "n dy"]:
        at = np.asarray(reduced.features(xi), float)
        return np.sqrt(np.maximum(np.einsum("nk,jkl,nl->nj", at, spread, at), 0))

    return errors
