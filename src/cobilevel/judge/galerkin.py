"""The reduced problem solved at one ``x``, on all samples and with groups of them left out; alone, or against that of a
richer basis (for joint samples, each context seen about once)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ..answer import Solution
from ..basis import Basis, OneHot, combine
from ..derivatives import Expansions
from ..inference import Around
from ..lower import Point, lower_size, solve_at
from ..problem import Study
from ..reduction import Reduced, reduce_study
from .measured import (
    GROUPS,
    Errors,
    Measured,
    NoisyVector,
    as_rows,
    jackknife,
    jackknife_estimate,
    split_rows,
    without,
)

_TARGET = 0.9  # the power of the precision that the lower gradient is brought to

Matrix = Float[np.ndarray, "N dy dx"]


@dataclass(frozen=True)
class Galerkin:
    """A reduced problem (whitened), solved at one ``x``; `target`: the size of the lower gradient to solve to."""

    reduced: Reduced
    expansions: Expansions
    point: Point
    target: float

    @staticmethod
    def at(reduced: Reduced, x: Float[np.ndarray, " dx"], crossed: bool = False) -> "Galerkin":
        """Solved from the problem's own start; `crossed`: with the sensitivity, however large it is."""
        expansions = Expansions(reduced.ordinary())
        if crossed:
            expansions.sizes = expansions.sizes._replace(crossed=True)
        start = expansions.table(reduced.W0)
        target = expansions.eps**_TARGET * lower_size(expansions, x, start)
        return Galerkin(reduced, expansions, solve_at(expansions, x, start, target), target)

    @staticmethod
    def of(around: Around | None, reduced: Reduced, x: Float[np.ndarray, " dx"], crossed: bool) -> "Galerkin":
        """The same; taken from where the problem was solved already, if it was."""
        if around is None or (crossed and not around.centre.expansions.crossed):
            return Galerkin.at(reduced, x, crossed)
        return Galerkin(around.reduced, around.centre.expansions, around.centre.point, around.centre.target)

    @property
    def sensitivity(self) -> Matrix:
        """How the coefficients move with ``x``; NaN where that is not known."""
        found = self.point.sensitivity
        return np.full((*self.point.W.shape, len(self.point.x)), np.nan) if found is None else found

    @property
    def trouble(self) -> str:
        """In words; empty where there is none."""
        return "" if self.point.sound else "the reduced problem could not be solved at x"

    def without_each(self) -> list["Galerkin"]:
        """With one group of samples left out at a time, each solved from the solution on all of them."""
        rng, at = np.random.default_rng(0), self.expansions
        (lower,), (upper,) = at.lower_pools, at.upper_pools
        groups = [split_rows(len(pool.shares), rng) for pool in (lower, upper)]
        found = []
        for k in range(GROUPS):
            part = at.with_shares(without(lower.shares, groups[0], k), without(upper.shares, groups[1], k))
            point = solve_at(part, self.point.x, self.point.W, self.target)
            found.append(replace(self, expansions=part, point=point))
        return found


def features_in_full(phi: Any) -> Float[np.ndarray, "n N"]:
    """Features as a matrix in double precision, whatever they are kept as."""
    return phi.on_host() @ np.eye(phi.size) if isinstance(phi, OneHot) else np.asarray(phi, float)


@dataclass(frozen=True)
class PolicyTable:
    """The policies of a reduced problem at some contexts, by their coefficients: ``phi @ W + rest``."""

    phi: Float[np.ndarray, "n N"]
    rest: Float[np.ndarray, "n dy"]

    @staticmethod
    def of(reduced: Reduced, xi: Any) -> "PolicyTable":
        raw, turned = reduced.basis.rows(xi), reduced.coordinates
        if turned is None:
            return PolicyTable(features_in_full(raw), np.zeros((len(xi), reduced.problem.sizes[1])))
        return PolicyTable(features_in_full(combine(raw, turned.transform)), as_rows(combine(raw, turned.rest)))

    def __call__(self, W: Float[np.ndarray, "N dy"]) -> Float[np.ndarray, "n dy"]:
        return self.phi @ W + self.rest


def measure_reduced(at: Galerkin) -> Measured:
    """The gradient of the reduced problem alone, with its noise."""
    left_out = np.stack([part.point.gradient for part in at.without_each()])
    gradient = NoisyVector(at.point.gradient, jackknife(left_out))
    return Measured(gradient, gradient, len(left_out) - 1.0, at.trouble)


def measure_against_richer(study: Study, solution: Solution, poor: Galerkin, richer: Basis) -> Measured:
    """Against a richer basis, on joint samples; noise measured by leaving groups of samples out in turn."""
    rich = Galerkin.at(reduce_study(study, richer).whitened(), poor.point.x, crossed=True)
    pairs = list(zip(poor.without_each(), rich.without_each(), strict=True))
    low, high = poor.point, rich.point
    low_out, high_out = (np.stack([pair[k].point.gradient for pair in pairs]) for k in (0, 1))
    lost, H = _lost(poor, rich), high.hessian
    lost_v, lost_s = lost(poor, rich)
    product = lost_s.T @ H @ lost_v
    again = [lost(*pair) for pair in pairs]
    policy_noise, adjoint_noise = _own_noise(study, rich)
    adjoint_noise *= 1 - len(low.W) / len(high.W)
    apart = _policy_distance(study, solution, rich.reduced)
    policy = jackknife_estimate(apart(high.W) - policy_noise, [apart(pair[1].point.W) for pair in pairs])
    difference = high.gradient - low.gradient
    return Measured(
        gradient=NoisyVector(high.gradient, jackknife(high_out)),
        reduced=NoisyVector(low.gradient, jackknife(low_out)),
        difference=NoisyVector(difference, jackknife(high_out - low_out)),
        parts={"policy": difference - product, "adjoint and sensitivity": product},
        errors=Errors(
            policy=policy,
            adjoint=jackknife_estimate(_square(H, lost_v) - adjoint_noise, [_square(H, v) for v, _ in again]),
            sensitivity=jackknife_estimate(_square(H, lost_s), [_square(H, s) for _, s in again]),
            distance=float(np.sqrt(policy)),
        ),
        freedom=GROUPS - 1.0,
        trouble="" if low.sound and high.sound else "a reduced problem could not be solved at x",
        compared=repr(richer),
    )


def _square(H: Float[np.ndarray, "M M"], vectors: Float[np.ndarray, "M ..."]) -> float:
    """The squared length in the norm of ``H``, of all columns together."""
    return float(np.sum(vectors * (H @ vectors)))


def _lost(poor: Galerkin, rich: Galerkin) -> Callable[[Galerkin, Galerkin], tuple[np.ndarray, np.ndarray]]:
    """What the smaller basis misses of adjoint and sensitivity, in the coordinates of the richer one.

    The span of the richer basis holds the other, so that every function has coefficients there.
    """
    phi, phi_rich = (features_in_full(part.expansions.lower_pools[0].features) for part in (poor, rich))
    embed = np.linalg.lstsq(phi_rich, phi, rcond=None)[0]

    def lost(low: Galerkin, high: Galerkin) -> tuple[np.ndarray, np.ndarray]:
        v = (high.point.adjoint - embed @ low.point.adjoint).reshape(-1)
        return v, (high.sensitivity - np.tensordot(embed, low.sensitivity, axes=1)).reshape(len(v), -1)

    return lost


def _policy_distance(study: Study, solution: Solution, rich: Reduced) -> Callable[[np.ndarray], float]:
    """The mean square distance of the solution's policy to one in the richer basis, given its coefficients."""
    rows = study.lower.contexts()
    shares, given, policies = rows.shares(), as_rows(solution.policy(rows.xi)), PolicyTable.of(rich, rows.xi)
    return lambda W: float(shares @ np.sum((policies(W) - given) ** 2, axis=1))


def _own_noise(study: Study, rich: Galerkin) -> tuple[float, float]:
    """The mean squares by which noise moves policy and adjoint of the richer fit: no errors of the solution.

    ``d2 g`` and ``d22 g v`` (less ``d2 f`` where both levels see the same rows) times the features vanish in the mean;
    their spread, through the inverse Hessian (features are orthonormal), is that noise.
    """
    at, point, shares = rich.expansions, rich.point, study.lower.contexts().shares()
    phi, lower = features_in_full(at.lower_pools[0].features), at.lower_rows(point.x, point.W)
    alpha = np.einsum("nab,nb->na", lower.hessian, phi @ point.adjoint)
    alpha = alpha - at.upper_rows(point.x, point.W).d2 if study.shared else alpha
    spread = lambda rows: (phi[:, :, None] * rows[:, None, :]).reshape(len(phi), -1)
    of_policy, of_adjoint = spread(lower.slope), spread(alpha)
    moved = np.linalg.solve(point.hessian, np.concatenate([of_policy, of_adjoint]).T).T
    policy, adjoint = np.sum(moved[: len(phi)] ** 2, axis=1), np.sum(of_adjoint * moved[len(phi) :], axis=1)
    return float(shares**2 @ policy), float(shares**2 @ adjoint)
