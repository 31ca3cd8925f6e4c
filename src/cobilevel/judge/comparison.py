"""The reduced problem at one ``x`` against a better one, on joint samples: that of a richer basis, or what products of
neighbouring samples show. Noise is measured over rows, or by leaving groups of samples out in turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..answer import Solution
from ..basis import Basis, combine
from ..inference import Around, Galerkin, Missed, Products, features_of
from ..lower import solve_at
from ..reduction import Reduced, reduce_study
from ..study import Study
from ..trees import as_rows
from .intervals import Estimate, freedom_of

UNSOLVED = "reduced problem could not be solved at x"
GROUPS = 20  # left out in turn; with 19 degrees of freedom an interval is 7% wider than with endless ones


class NoisyVector(NamedTuple):
    """An estimated vector, after the flattened ``x``, and the covariance of the estimate."""

    mean: Float[np.ndarray, " dx"]
    covariance: Float[np.ndarray, "dx dx"]


@dataclass(frozen=True)
class Measured:
    """The gradients of the contextual and of the reduced problem, and why they differ.

    - `freedom`: of the estimated covariances; `scale`: the size of single rows, whose rounding gradients inherit.
    - `compared`: with what, in words; `trouble`: what went wrong.
    - `difference`, `parts` and the squared errors: where the reduced problem was compared with a better one.
    - `value`: the upper objective; `fitted`: the reduced gradient on these very samples, where `reduced` is corrected
      for the fit to them.
    """

    gradient: NoisyVector
    reduced: NoisyVector
    freedom: float
    compared: str
    trouble: str
    difference: NoisyVector | None = None
    parts: Mapping[str, Float[np.ndarray, " dx"]] = field(default_factory=dict)
    policy_error: Estimate | None = None
    adjoint_error: Estimate | None = None
    sensitivity_error: Estimate | None = None
    scale: float = 0.0
    value: Estimate | None = None
    fitted: NoisyVector | None = None


class PolicyTable(NamedTuple):
    """The policies of a reduced problem at some contexts, by their coefficients: ``phi @ W + rest``."""

    phi: Float[np.ndarray, "n N"]
    rest: Float[np.ndarray, "n dy"]

    @staticmethod
    def of(reduced: Reduced, xi: Any) -> "PolicyTable":
        raw, turned = reduced.basis.rows(xi), reduced.coordinates
        if turned is None:
            return PolicyTable(np.asarray(raw, float), np.zeros((len(xi), reduced.problem.sizes[1])))
        return PolicyTable(np.asarray(combine(raw, turned.transform), float), as_rows(combine(raw, turned.rest)))

    def __call__(self, W: Float[np.ndarray, "N dy"]) -> Float[np.ndarray, "n dy"]:
        return self.phi @ W + self.rest


# -- groups of samples left out


def split_rows(count: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """The group each row belongs to, at random and of even sizes; fewer groups where there are fewer rows."""
    return rng.permutation(count) % min(GROUPS, count)


def without(shares: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    """The shares of rows with one group left out; NaN where nothing is left."""
    kept = shares * (group != k)
    with np.errstate(invalid="ignore"):
        return kept / np.sum(kept)


def jackknife(left_out: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "d d"]:
    """The covariance of an estimate, from its values with one of `k` groups of samples left out at a time."""
    apart = left_out - left_out.mean(axis=0)
    return (len(left_out) - 1) / len(left_out) * apart.T @ apart


def without_each(at: Galerkin) -> list[Galerkin]:
    """The reduced problem with one group of samples left out at a time, solved from the solution on all of them."""
    rng, (lower,), (upper,) = np.random.default_rng(0), at.expansions.lower_pools, at.expansions.upper_pools
    below, above = (split_rows(len(pool.shares), rng) for pool in (lower, upper))
    solved = []
    for k in range(max(below.max(), above.max()) + 1):
        part = at.expansions.with_shares(without(lower.shares, below, k), without(upper.shares, above, k))
        solved.append(replace(at, expansions=part, point=solve_at(part, at.point.x, at.point.W, at.target)))
    return solved


def measure_reduced(at: Galerkin) -> Measured:
    """The gradient of the reduced problem alone, with its noise."""
    left_out = np.stack([part.point.gradient for part in without_each(at)])
    gradient = NoisyVector(at.point.gradient, jackknife(left_out))
    words = "nothing beyond this basis: the gradient is the reduced problem's"
    return Measured(gradient, gradient, len(left_out) - 1.0, words, "" if at.point.sound else f"the {UNSOLVED}")


# -- a richer basis


def measure_against_richer(study: Study, solution: Solution, poor: Galerkin, richer: Basis) -> Measured:
    """Against a richer basis, on joint samples; noise measured by leaving groups of samples out in turn."""
    rich = Galerkin.at(reduce_study(study, richer).whitened(), poor.point.x, crossed=True)
    phi, phi_rich = (np.asarray(part.expansions.lower_pools[0].features, float) for part in (poor, rich))
    embed = np.linalg.lstsq(phi_rich, phi, rcond=None)[0]  # its span holds that of the other
    rows, H = study.lower.contexts(), rich.point.hessian
    given, policies = as_rows(solution.policy(rows.xi)), PolicyTable.of(rich.reduced, rows.xi)

    def figures(low: Galerkin, high: Galerkin) -> tuple[np.ndarray, ...]:
        """Both gradients, the product of what the smaller basis misses of adjoint and sensitivity, and squares: of the
        distance to the policy of the richer one, and of what is missed."""
        v = (high.point.adjoint - embed @ low.point.adjoint).reshape(-1)
        s = (high.sensitivity - np.tensordot(embed, low.sensitivity, axes=1)).reshape(len(v), -1)
        policy = rows.shares() @ np.sum((policies(high.point.W) - given) ** 2, axis=1)
        squares = np.array([policy, v @ H @ v, np.sum(s * (H @ s))])
        return low.point.gradient, high.point.gradient, s.T @ H @ v, squares

    low, high, product, squares = figures(poor, rich)
    left_out = [figures(*pair) for pair in zip(without_each(poor), without_each(rich), strict=True)]
    low_out, high_out, _, squares_out = (np.stack(part) for part in zip(*left_out, strict=True))
    freedom = len(left_out) - 1.0
    policy_noise, adjoint_noise = _own_noise(study, rich)
    squares = squares - [policy_noise, adjoint_noise * (1 - len(poor.point.W) / len(rich.point.W)), 0.0]
    noise = np.sqrt(np.diag(jackknife(squares_out)))
    policy, adjoint, sensitivity = (Estimate.of(*each, freedom, least=0.0) for each in zip(squares, noise, strict=True))
    return Measured(
        gradient=NoisyVector(high, jackknife(high_out)),
        reduced=NoisyVector(low, jackknife(low_out)),
        freedom=freedom,
        compared=repr(richer),
        trouble="" if poor.point.sound and rich.point.sound else f"a {UNSOLVED}",
        difference=NoisyVector(high - low, jackknife(high_out - low_out)),
        parts={"policy": high - low - product, "adjoint and sensitivity": product},
        policy_error=policy,
        adjoint_error=adjoint,
        sensitivity_error=sensitivity,
    )


def _own_noise(study: Study, rich: Galerkin) -> tuple[float, float]:
    """The mean squares by which noise moves policy and adjoint of the richer fit: no errors of the solution.

    ``d2 g`` and ``d22 g v`` (less ``d2 f`` where both levels see the same rows) times the features vanish in the mean;
    their spread, through the inverse Hessian (features are orthonormal), is that noise.
    """
    at, point, shares = rich.expansions, rich.point, study.lower.contexts().shares()
    phi, lower = np.asarray(at.lower_pools[0].features, float), at.lower_rows(point.x, point.W)
    alpha = np.einsum("nab,nb->na", lower.hessian, phi @ point.adjoint)
    alpha = alpha - at.upper_rows(point.x, point.W).d2 if study.shared else alpha
    spread = lambda rows: (phi[:, :, None] * rows[:, None, :]).reshape(len(phi), -1)
    of_policy, of_adjoint = spread(lower.slope), spread(alpha)
    moved = np.linalg.solve(point.hessian, np.concatenate([of_policy, of_adjoint]).T).T
    policy, adjoint = np.sum(moved[: len(phi)] ** 2, axis=1), np.sum(of_adjoint * moved[len(phi) :], axis=1)
    return float(shares**2 @ policy), float(shares**2 @ adjoint)


# -- neighbouring samples


def measure_by_neighbours(study: Study, solution: Solution, around: Around, missed: Missed) -> Measured:
    """The gradients, what lies between them and why, at the ``x`` around which the reduced problem was solved."""
    rows, k = study.lower.contexts(), around.lengths
    shares, gradient, own = rows.shares(), around.point.gradient, around.gradient_influence()
    freedom, slopes = freedom_of(shares), [part.part(slice(1, None), 1 / k) for part in (missed.total, missed.overfit)]
    stated, reduced = (NoisyVector(gradient + part.value, part.covariance(own)) for part in slopes)
    basis, value = missed.basis.part(slice(1, None), 1 / k), missed.total.part(slice(0, 1))
    gap = NoisyVector(basis.value, basis.covariance())
    m = (around.terms.f[0] - around.terms.vr[0])[:, None]
    value_error = float(np.sqrt(value.covariance((m - shares @ m) * shares[:, None])[0, 0]))
    adjoint, sensitivity, cross = missed.slopes()
    product = cross.value / k
    phi, A = features_of(around), around.terms.curvature[0]  # pyright: ignore[reportOptionalSubscript]
    square = lambda table: float(np.mean(np.einsum("na,nab,nb->n", table, A, table)))
    moves = around.slope(around.table("W")) / k[:, None, None]
    return Measured(
        gradient=stated,
        reduced=reduced,
        freedom=freedom,
        compared=f"products of {missed.total.near.words}",
        trouble="" if around.sound else f"the {UNSOLVED}",
        difference=gap,
        parts={"policy": gap.mean - product, "adjoint and sensitivity": product},
        policy_error=_policy_error(missed, as_rows(solution.policy(rows.xi)), freedom),
        adjoint_error=_square_error(adjoint, freedom, square(phi @ around.point.adjoint)),
        sensitivity_error=_square_error(sensitivity, freedom, sum(square(phi @ s) for s in moves)),
        scale=float(np.sqrt(np.sum(shares @ sum(around.gradient_rows()) ** 2))),
        value=Estimate.of(float(shares @ m[:, 0] + value.value[0]), value_error, freedom),
        fitted=NoisyVector(gradient, around.gradient_covariance()),
    )


def _square_error(products: Products, freedom: float, size: float) -> Estimate:
    """A mean square; zero where it is rounding of what it is an error of."""
    square = Estimate.of_square(float(products.value[0]), products.variance(), products.growth, freedom)
    return square.beyond_rounding(size)


def _policy_error(missed: Missed, given: Float[np.ndarray, "n dy"], freedom: float) -> Estimate:
    W = missed.around.point.W
    size = float(np.mean(np.sum((features_of(missed.around) @ W) ** 2, axis=1)))
    best, own, same = missed.policies(given)
    if not same:
        return _square_error(own, freedom, size)
    # on the samples fitted to, the fit's error is known by its mean: one draw of a square of N d_y numbers
    drawn = 2 * max(float(own.value[0] - best.value[0]), 0.0) ** 2 / W.size
    error = float(np.sqrt(own.covariance()[0, 0] + drawn))
    return Estimate.of(float(own.value[0]), error, freedom, least=0.0).beyond_rounding(size)
