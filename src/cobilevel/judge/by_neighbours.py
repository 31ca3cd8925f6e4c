"""The reduced problem against the problem as stated by products of neighbouring samples: joint samples are enough."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from ..answer import Solution
from ..inference import Around, Missed, Products, features_of, what_is_missed
from ..problem import Study
from .intervals import Estimate, freedom_of
from .measured import Errors, Measured, NoisyVector, as_rows


def measure_by_neighbours(study: Study, solution: Solution, around: Around) -> Measured:
    """The gradients, what lies between them and why, at the ``x`` around which the reduced problem was solved."""
    rows = study.lower.contexts()
    given = as_rows(solution.policy(rows.xi))
    missed = what_is_missed(around)
    adjoint, sensitivity, cross = missed.slopes()
    k = around.lengths
    shares = rows.shares()
    upper, lower = (table / k for table in around.scores())
    own = (upper + lower - shares @ (upper + lower)) * shares[:, None]
    gradient = around.at_x(around.solved.gradient)
    stated = NoisyVector(gradient + _pair_slopes(missed.total, k), _slope_noise(missed.total, k, own))
    reduced = NoisyVector(gradient + _pair_slopes(missed.overfit, k), _slope_noise(missed.overfit, k, own))
    gap = NoisyVector(_pair_slopes(missed.basis, k), _slope_noise(missed.basis, k))
    product = cross.value / k
    freedom = freedom_of(shares)
    values = around.at_x(around.solved.rows.f)
    m = (values - around.at_x(around.solved.rows.vr))[:, None]
    value_noise = missed.total.covariance(_first(missed.total, (m - shares @ m) * shares[:, None]))[0, 0]
    return Measured(
        gradient=stated,
        reduced=reduced,
        freedom=freedom,
        trouble="" if around.sound else "the reduced problem could not be solved at x",
        difference=gap,
        parts={"policy": gap.mean - product, "adjoint and sensitivity": product},
        errors=_errors_missed(missed.policies(given), adjoint, sensitivity, freedom, around),
        scale=float(np.sqrt(np.sum(shares @ (upper + lower) ** 2))),
        unresolved=missed.unresolved,
        compared=_compared(missed),
        value=Estimate.of(float(shares @ m[:, 0]) + float(missed.total.value[0]), float(np.sqrt(value_noise)), freedom),
        fitted=NoisyVector(gradient, around.covariance((upper, lower))),
        more_bend=missed.total_bend / k**2,
    )


def _pair_slopes(products: Products, k: Float[np.ndarray, " dx"]) -> Float[np.ndarray, " dx"]:
    """The derivatives of a mean over pairs, without its value."""
    return products.value[1:] / k


def _slope_noise(
    products: Products, k: Float[np.ndarray, " dx"], own: Float[np.ndarray, "n dx"] | None = None
) -> np.ndarray:
    """Their covariance, of the sum with what single samples contribute where that is given."""
    scale = np.concatenate([[1.0], 1 / k])
    scaled = replace(products, single=products.single * scale, pairs=products.pairs * scale)
    also = 0.0 if own is None else np.concatenate([np.zeros((len(own), 1)), own], axis=1)
    return scaled.covariance(also)[1:, 1:]


def _first(products: Products, rows: Float[np.ndarray, "n 1"]) -> np.ndarray:
    """Rows for the value alone, next to zeros for the derivatives."""
    return np.concatenate([rows, np.zeros((len(rows), len(products.value) - 1))], axis=1)


def _errors_missed(
    policies: tuple[Products, Products, bool], adjoint: Products, sensitivity: Products, freedom: float, around: Around
) -> Errors:
    """Squared errors of policy, adjoint and sensitivity; zero where they are rounding of what they are errors of."""
    phi, A = features_of(around), np.asarray(around.solved.rows.curvature)[0]
    square = lambda table: float(np.mean(np.einsum("na,nab,nb->n", table, A, table)))
    y, v = (phi @ around.at_x(table) for table in (around.solved.W, around.solved.adjoint))
    moves = around.slope(around.solved.W) / around.lengths[:, None, None]

    def one(products: Products, size: float) -> Estimate:
        found = Estimate.of_square(float(products.value[0]), products.variance(), products.growth, freedom)
        return found.beyond_rounding(size)

    size = float(np.mean(np.sum(y**2, axis=1)))
    best, given, same = policies
    if same:
        # on the samples fitted to, the fit's error is known by its mean: one draw of a square of N d_y numbers
        fit = max(float(given.value[0] - best.value[0]), 0.0)
        drawn = 2 * fit**2 / around.at_x(around.solved.W).size
        error = float(np.sqrt(given.covariance()[0, 0] + drawn))
        policy = Estimate.of(float(given.value[0]), error, freedom, least=0.0).beyond_rounding(size)
    else:
        policy = one(given, size)
    of_adjoint, of_slopes = one(adjoint, square(v)), one(sensitivity, sum(square(phi @ s) for s in moves))
    return Errors(policy, of_adjoint, of_slopes, distance=float(np.sqrt(policy.high)))


def _compared(missed: Missed) -> str:
    near = missed.total.near
    if near.group is not None:
        return "products of samples at the same context"
    return (
        f"products of neighbouring samples, {near.width} on each side"
        if near.order is not None
        else (f"products of neighbouring samples, the nearest {near.width}")
    )
