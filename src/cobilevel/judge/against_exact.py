r"""The reduced problem against exact lower-level solutions at one ``x``: policy, adjoint, sensitivity, hypergradient.

At a policy $y(\xi)$, with $A = \partial_{22} G$ and $D = \partial_{21} G$ the conditional means at each context, the
sensitivity is $s = -A^{-1} D$, the adjoint $v = A^{-1} \partial_2 f$, and the gradient of the contextual problem
$\nabla F = h[y^\star]$ with $h[y] = E[\partial_1 f + s^T \partial_2 f]$. The reduced one has the projections $Pv$, $Ps$
on the span of the basis (in the inner product $\langle a, b\rangle = E[a^T A\, b]$) in place of $v$ and $s$, and so
$$\nabla F - \nabla F_\Phi = (h[y^\star] - h[\bar y]) + \langle v - Pv, s - Ps \rangle ,$$
the first part due to the policy's error, the second to the product of the other two. It is an identity; all three are
measured here.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ..answer import Solution
from ..basis import Basis
from ..derivatives import LowerRows, RowBlocks, RowDerivatives, Sizes
from ..derivatives import galerkin as galerkin_matrix
from ..inference import Galerkin, mean_covariance, slope_accuracy
from ..lower import Law, law_at, lower_along, solve_each, trouble_with
from ..problem import Finite
from ..programs import put
from ..study import Study
from ..trees import as_rows
from .comparison import UNSOLVED, Measured, NoisyVector, PolicyTable, jackknife, split_rows, without
from .intervals import Estimate, freedom_of, mean_estimate, measurable

Policy = Float[np.ndarray, "contexts dy"]
Sensitivity = Float[np.ndarray, "contexts dy dx"]
Square = Float[np.ndarray, "dx dx"]


class GradientRows(NamedTuple):
    """Rows whose mean is a gradient: by context (or joint sample), and by row of crossed data; with ``f``, ``d2 f``."""

    value: Float[np.ndarray, " n"]
    by_context: Float[np.ndarray, "n dx"]
    d2: Float[np.ndarray, "n dy"]
    by_data: Float[np.ndarray, "rows dx"] | None


@dataclass(frozen=True)
class Contextual:
    """The contextual problem at one ``x``: the upper level's samples by context, and the law of the noise at each.

    `xi`: each context once; `place`: of each row (of each context, where data are crossed) among them; `shares`: of the
    rows; `rows`: the samples themselves. Policies and sensitivities have a row for each of `xi`.
    """

    study: Study
    x: Float[np.ndarray, " dx"]
    xi: Shaped[np.ndarray, "contexts ..."]
    place: Int[np.ndarray, " n"]
    shares: Float[np.ndarray, " n"]
    law: Law
    rows: RowBlocks

    @staticmethod
    def of(study: Study, at: Galerkin, draws: int, key: Array) -> "Contextual":
        rows, domain, (pool,) = study.upper.contexts(), study.problem.domain, at.expansions.upper_pools
        xi: Any = np.asarray(rows.xi)
        place = np.arange(len(rows))
        if isinstance(domain, Finite):
            values, place = np.unique(np.asarray(domain.index(xi)), return_inverse=True)
            xi, place = np.asarray(domain.values)[values], place.ravel()
        return Contextual(study, at.point.x, xi, place, rows.shares(), law_at(study, xi, draws, key), pool.rows)

    @property
    def crossed(self) -> bool:
        """Whether every context meets all the data."""
        return self.study.upper.crossed

    @property
    def drawn(self) -> bool:
        """Whether contexts are a sample, not a law."""
        return self.study.upper.law is None

    def sensitivity(self, y: Policy, law: Law | None = None) -> tuple[Sensitivity, LowerRows]:
        """``s = -A^-1 D`` along a policy, and the derivatives it is made of."""
        local = lower_along(self.study.problem, self.x, y, self.law if law is None else law)
        return -np.linalg.solve(local.hessian, local.cross), local

    def gradients(self, y: Policy, s: Sensitivity) -> GradientRows:
        """The rows of the gradient, ``d1 f + s^T d2 f``, for a policy and a sensitivity."""
        problem, count = self.study.problem, (self.study.upper.count or 1) if self.crossed else 1
        sizes, derivatives = Sizes(*problem.sizes), RowDerivatives.upper(problem.upper, self.rows)  # pyright: ignore
        table, by_data = np.zeros((len(self.place), 1 + sizes.dx + sizes.dy)), np.zeros((count, sizes.dx))
        for part, xi, eta in self.rows:  # all data of a context, then those of the next
            context, datum = np.divmod(np.arange(part.start, part.stop), count)
            at, first = self.place[context], np.flatnonzero(np.diff(context, prepend=-1))
            value, d1, d2 = sizes.split_upper(derivatives.block(self.x, y[at], part, xi, eta).astype(float))
            rows = d1 + np.einsum("na,naj->nj", d2, s[at])
            both = np.concatenate([value[:, None], rows, d2], axis=1)
            table[context[first]] += np.add.reduceat(both, first, axis=0) / count
            if self.crossed:
                np.add.at(by_data, datum, self.shares[context][:, None] * rows)
        return GradientRows(*sizes.split_upper(table), by_data if self.crossed else None)

    def mean(self, rows: GradientRows) -> Float[np.ndarray, " dx"]:
        return self.shares @ rows.by_context

    def covariance(self, by_context: np.ndarray, by_data: np.ndarray | None) -> Square:
        """Of the mean of rows: over independent ones; over contexts and over data where they are crossed."""
        parts = [(by_context, self.shares)] if self.drawn else []
        parts += [] if by_data is None else [(by_data, np.full(len(by_data), 1 / len(by_data)))]
        unbiased = lambda shares: 1 + 1 / freedom_of(shares) if measurable(shares) else np.nan
        return sum((mean_covariance(*part) * unbiased(part[1]) for part in parts), np.zeros((len(self.x),) * 2))


def measure_exactly(
    study: Study, solution: Solution, sampled: Galerkin, draws: int, key: Array, richer: Basis | None
) -> Measured:
    """Against true per-context solves, at the contexts of the upper level's samples, given the `sampled` problem."""
    at = Contextual.of(study, sampled, draws, key)
    exact = solve_each(study.problem, at.x, at.law)
    y = as_rows(exact.y)
    true = at.gradients(y, at.sensitivity(y)[0])
    spread, freedom = _noise(at, y, true)
    conditional = at.law.keys is not None and not study.lower.crossed
    galerkin = _with_conditional_means(at, sampled, draws, key) if conditional else sampled
    policies = PolicyTable.of(galerkin.reduced, at.xi)
    policy = policies(galerkin.point.W)
    own, local = at.sensitivity(policy)
    within = np.tensordot(policies.phi, galerkin.sensitivity, axes=1)
    rows, rows_within = at.gradients(policy, own), at.gradients(policy, within)
    stated, reduced, own_mean = at.mean(true), galerkin.point.gradient, at.mean(rows)
    adjoint = policies.phi @ galerkin.point.adjoint
    if study.shared and not at.crossed:
        doubt = _difference_noise(at, galerkin, policies, local, true)
    else:
        by_data = None if true.by_data is None else true.by_data - rows_within.by_data  # pyright: ignore
        doubt = at.covariance(true.by_context - rows_within.by_context, by_data)
    norms = lambda s: np.einsum("naj,nab,nbj->n", s, local.hessian, s, optimize=True)[at.place]
    lost = mean_estimate(norms(own - within), at.shares).beyond_rounding(float(np.mean(norms(own))))
    off = np.sum((y - as_rows(solution.policy(at.xi))) ** 2, axis=1) - np.asarray(exact.noise, float)
    return Measured(
        gradient=NoisyVector(stated, spread),
        reduced=NoisyVector(reduced, at.covariance(rows_within.by_context, rows_within.by_data)),
        freedom=freedom,
        compared="exact lower-level solutions at each context",
        trouble=trouble_with(exact) if sampled.point.sound else f"the {UNSOLVED}",
        difference=NoisyVector(stated - reduced, doubt),
        parts={"policy": stated - own_mean, "adjoint and sensitivity": own_mean - reduced},
        policy_error=mean_estimate(off[at.place], at.shares, least=0.0),
        adjoint_error=_adjoint_error(at, solution, local.hessian, adjoint, rows.d2, richer),
        sensitivity_error=lost,
        scale=float(np.sqrt(at.shares @ np.sum(true.by_context**2, axis=1))),
        value=mean_estimate(true.value, at.shares),
    )


def _noise(at: Contextual, y: Policy, true: GradientRows) -> tuple[Square, float]:
    """The covariance of the gradient at the exact solutions ``y``, and its degrees of freedom.

    Where the law of the lower noise is itself known from data only, groups of these are left out as well.
    """
    law, shared, over_rows = at.law, at.study.shared, at.covariance(true.by_context, true.by_data)
    if law.rows == 1 or law.keys is not None:
        return over_rows, np.inf if at.crossed else freedom_of(at.shares)
    group, means = split_rows(law.rows, np.random.default_rng(0)), []
    shares = np.full(law.rows, 1 / law.rows) if at.crossed else at.shares
    for k in range(group.max() + 1):
        part = law.without(group == k)
        near = as_rows(solve_each(at.study.problem, at.x, part, start=y).y)
        rows = at.gradients(near, at.sensitivity(near, part)[0])
        table = rows.by_context if rows.by_data is None else rows.by_data
        means.append(without(shares, group, k) @ table if shared else at.mean(rows))
    spread = jackknife(np.stack(means))
    complete = shared and not (at.crossed and at.drawn)  # each row of data stands for its context too
    return spread if complete else spread + over_rows, float(group.max())


def _newton_step(
    W: Float[np.ndarray, "N dy"], phi: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"], local: LowerRows
) -> tuple[Float[np.ndarray, "N dy"], Float[np.ndarray, "N dy dx"], Float[np.ndarray, "M M"]]:
    """A Newton step for the coefficients, the sensitivity and the Hessian there, from derivatives along the policy."""
    H = galerkin_matrix(phi, local.hessian * shares[:, None, None])
    rows = np.concatenate([local.slope[:, :, None], local.cross], axis=2) * shares[:, None, None]
    moves = _solved(H, (phi.T @ rows.reshape(len(phi), -1)).reshape(W.size, -1))
    return W - moves[:, 0].reshape(W.shape), -moves[:, 1:].reshape(*W.shape, -1), H


def _solved(H: Float[np.ndarray, "M M"], right: Float[np.ndarray, "M ..."]) -> Float[np.ndarray, "M ..."]:
    """``H^-1 right``; NaN where there is no inverse, as where a group of samples holds all those of a cell."""
    try:
        return np.linalg.solve(H, right)
    except np.linalg.LinAlgError:
        return np.full_like(right, np.nan)


def _with_conditional_means(at: Contextual, galerkin: Galerkin, draws: int, key: Array) -> Galerkin:
    """The reduced problem with conditional means in place of the samples' noise, by Newton steps from its solution.

    With the same draws for it as for the exact solves, their noise is not taken for a gap between the two.
    """
    study, here, W = at.study, PolicyTable.of(galerkin.reduced, at.xi), galerkin.point.W
    policies, law, shares = here, at.law, np.bincount(at.place, at.shares, len(at.xi))
    if not study.shared:
        lower = study.lower.contexts()
        policies, shares = PolicyTable.of(galerkin.reduced, lower.xi), lower.shares()
        law = law_at(study, lower.xi, draws, jax.random.fold_in(key, 1))
    length, before = np.inf, np.inf
    while True:  # each step at most half as long as the last
        local = lower_along(study.problem, at.x, policies(W), law)
        last, (W, s, H) = W, _newton_step(W, policies.phi, shares, local)
        length, before = float(np.linalg.norm(W - last)), length
        if not length < before / 2 or length <= np.sqrt(study.eps) * np.linalg.norm(W):
            break
    rows = at.gradients(here(W), np.tensordot(here.phi, s, axes=1))
    pull = here.phi[at.place].T @ (rows.d2 * at.shares[:, None])
    v = _solved(H, pull.reshape(-1)).reshape(W.shape)
    return replace(
        galerkin, point=replace(galerkin.point, W=W, adjoint=v, gradient=at.mean(rows), sensitivity=s, hessian=H)
    )


def _difference_noise(
    at: Contextual, galerkin: Galerkin, policies: PolicyTable, local: LowerRows, true: GradientRows
) -> Square:
    """The covariance over contexts of the difference of the gradients, groups of contexts left out in turn.

    One Newton step from the solution on all of them. Both gradients see the same contexts, so that much of what either
    varies by is not in their difference.
    """
    group, differences = split_rows(len(at.place), np.random.default_rng(0)), []
    for k in range(group.max() + 1):
        shares = without(at.shares, group, k)
        by_context = np.bincount(at.place, shares, len(at.xi))
        W, s, _ = _newton_step(galerkin.point.W, policies.phi, by_context, local)
        rows = at.gradients(policies(W), np.tensordot(policies.phi, s, axes=1))
        differences.append(shares @ (true.by_context - rows.by_context))
    return jackknife(np.stack(differences))


def _adjoint_error(
    at: Contextual,
    solution: Solution,
    A: Float[np.ndarray, "contexts dy dy"],
    v: Policy,
    d2: Float[np.ndarray, "n dy"],
    richer: Basis | None,
) -> Estimate:
    r"""$|v - Pv|^2$ in the norm of $A$, given $Pv$ and rows of $\partial_2 f$.

    From single noisy rows it is as seen by a richer basis: with $\rho_i = \Phi_+ (\partial_2 f - A\, Pv)$ it is
    $E[\rho]^T H_+^{-1} E[\rho]$, and products of a row with itself, which hold the noise, are left out of the double
    sum.
    """
    A, v, domain, shares = A[at.place], v[at.place], at.study.problem.domain, at.shares
    if at.crossed or not at.study.upper_noise:
        off = np.linalg.solve(A, d2[..., None])[..., 0] - v
        return mean_estimate(np.einsum("na,nab,nb->n", off, A, off, optimize=True), shares)
    if not measurable(shares):
        return Estimate.of(np.nan, np.nan, least=0.0)
    xi: Any = domain.snap(put(at.xi[at.place]), at.study.dtype)
    basis = solution.basis if richer is None else richer.fit(domain, xi, put(shares.astype(at.study.dtype)))
    phi, residual = np.asarray(basis(xi), float), d2 - np.einsum("nab,nb->na", A, v)
    spread, vectors = np.linalg.eigh(galerkin_matrix(phi, A * shares[:, None, None]))
    kept = spread > slope_accuracy(at.study.eps) * spread[-1]
    rho = (phi[:, :, None] * residual[:, None, :]).reshape(len(phi), -1)
    white = rho @ (vectors[:, kept] / np.sqrt(spread[kept]))
    total = shares @ white
    square = (total @ total - np.sum(shares**2 * np.sum(white**2, axis=1))) / (1 - np.sum(shares**2))
    error = 2 * np.sqrt(np.sum(shares**2 * (white @ total - total @ total) ** 2))
    noise = np.sqrt(2 * np.sum((white.T * shares**2 @ white) ** 2))
    return Estimate.of(square, float(np.hypot(error, noise)), freedom_of(shares), least=0.0)
