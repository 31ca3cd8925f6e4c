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
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ..answer import Solution
from ..basis import Basis
from ..derivatives import LowerRows, RowBlocks, RowDerivatives, Sizes, flattened
from ..derivatives import galerkin as galerkin_matrix
from ..lower import Law, LowerSolution, law_at, lower_along, solve_each, trouble_with
from ..problem import Finite, Level, Samples, Study
from ..programs import program, put
from ..reduction import reduce_with
from .galerkin import Galerkin, PolicyTable
from .intervals import Estimate, freedom_of, mean_estimate, measurable
from .measured import GROUPS, Errors, Measured, NoisyVector, as_rows, covariance, jackknife, split_rows, without

_DRAWN_ROWS = 100_000  # the most rows the reduced problem is solved on where noise is drawn
_DRAWS_EACH = 8  # of noise at a context, for the start of those solves
_NEWTON_STEPS, _SETTLED = 4, 1e-8  # from there to conditional means, and the relative step that ends them
_SEEN = 1e-12  # eigenvalues, relative to the largest, below which a direction is not seen by the samples

Policy = Float[np.ndarray, "contexts dy"]
Sensitivity = Float[np.ndarray, "contexts dy dx"]


@dataclass(frozen=True)
class GradientRows:
    """Rows whose mean is a gradient: by context (or joint sample), and by row of crossed data; with ``f`` and ``d2 f``.

    `drawn`: whether contexts are a sample, and not a law.
    """

    value: Float[np.ndarray, " n"]
    by_context: Float[np.ndarray, "n dx"]
    d2: Float[np.ndarray, "n dy"]
    by_data: Float[np.ndarray, "rows dx"] | None
    shares: Float[np.ndarray, " n"]
    drawn: bool

    @property
    def mean(self) -> Float[np.ndarray, " dx"]:
        return self.shares @ self.by_context

    def __sub__(self, other: "GradientRows") -> "GradientRows":
        by_data = None if self.by_data is None or other.by_data is None else self.by_data - other.by_data
        return replace(self, by_context=self.by_context - other.by_context, by_data=by_data)

    def covariance(self) -> Float[np.ndarray, "dx dx"]:
        """Of the mean: over independent rows; over contexts and over data where they are crossed."""
        spread = np.zeros((self.by_context.shape[1],) * 2)
        if self.drawn:
            spread = spread + covariance(self.by_context, self.shares)
        if self.by_data is not None:
            spread = spread + covariance(self.by_data, np.full(len(self.by_data), 1 / len(self.by_data)))
        return spread

    def mean_without(self, left_out: Bool[np.ndarray, " rows"]) -> Float[np.ndarray, " dx"]:
        """The mean with some rows of the data left out."""
        table = self.by_context if self.by_data is None else self.by_data
        weights = (np.ones(len(table)) if self.by_data is not None else self.shares) * ~left_out
        return weights @ table / weights.sum()

    def size(self) -> float:
        """The root mean square of the rows."""
        return float(np.sqrt(self.shares @ np.sum(self.by_context**2, axis=1)))


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
    rows: RowBlocks | None = None

    @staticmethod
    def of(study: Study, x: Float[np.ndarray, " dx"], draws: int, key: Array) -> "Contextual":
        rows, domain = study.upper.contexts(), study.problem.domain
        xi: Any = np.asarray(rows.xi)
        place = np.arange(len(rows))
        if isinstance(domain, Finite):
            values, place = np.unique(np.asarray(domain.index(xi)), return_inverse=True)
            xi, place = np.asarray(domain.values)[values], place.ravel()
        return Contextual(study, x, xi, place, rows.shares(), law_at(study, xi, draws, key))

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
        problem, blocks = self.study.problem, self.rows
        derivatives, sizes = RowDerivatives.upper(problem.upper, blocks), Sizes(*problem.sizes)  # pyright: ignore
        if not self.crossed:
            found = sizes.split_upper(derivatives.table(self.x, y[self.place]))
            rows = found.d1 + np.einsum("na,naj->nj", found.d2, s[self.place])
            return GradientRows(found.value, rows, found.d2, None, self.shares, self.drawn)
        count: Any = self.study.upper.count
        table = np.zeros((len(self.place), 1 + sizes.dx + sizes.dy))
        by_data = np.zeros((count, sizes.dx))
        for part, xi, eta in blocks:  # pyright: ignore
            context, datum = np.divmod(np.arange(part.start, part.stop), count)
            at = self.place[context]
            found = sizes.split_upper(derivatives.block(self.x, y[at], part, xi, eta).astype(float))
            rows = found.d1 + np.einsum("na,naj->nj", found.d2, s[at])
            np.add.at(table, context, np.concatenate([found.value[:, None], rows, found.d2], axis=1) / count)
            np.add.at(by_data, datum, self.shares[context][:, None] * rows)
        return GradientRows(*sizes.split_upper(table), by_data, self.shares, self.drawn)


@dataclass(frozen=True)
class ReducedPolicy:
    """The reduced problem's policy at the contexts: its features, derivatives along it, and two sensitivities.

    `own` is that of the contextual problem at this policy, with gradient `rows`; `within` its projection, with
    gradient `rows_within`.
    """

    policies: PolicyTable
    y: Policy
    local: LowerRows
    own: Sensitivity
    within: Sensitivity
    rows: GradientRows
    rows_within: GradientRows

    @staticmethod
    def of(at: Contextual, found: Galerkin) -> "ReducedPolicy":
        policies = PolicyTable.of(found.reduced, at.xi)
        y, within = policies(found.point.W), np.tensordot(policies.phi, found.sensitivity, axes=1)
        own, local = at.sensitivity(y)
        return ReducedPolicy(policies, y, local, own, within, at.gradients(y, own), at.gradients(y, within))


def measure_exactly(
    study: Study, solution: Solution, known: Galerkin, draws: int, key: Array, richer: Basis | None
) -> Measured:
    """Against true per-context solves, on the contexts of the upper level's samples; `known`: the reduced problem."""
    x = flattened(solution.x)
    at = Contextual.of(study, x, draws, key)
    lower = _few_draws(at)
    if lower is not study.lower:
        reduced = reduce_with(study.on(lower, study.upper), solution.basis, solution.W).whitened()
        known = Galerkin.at(reduced, x, crossed=True)
    (pool,) = known.expansions.upper_pools
    at = replace(at, rows=pool.rows)
    exact = solve_each(study.problem, x, at.law)
    y = as_rows(exact.y)
    true = at.gradients(y, at.sensitivity(y)[0])
    spread, freedom = _noise(at, y, true)
    found = known if lower is study.lower else _with_conditional_means(at, known, draws, key)
    policy = ReducedPolicy.of(at, found)
    gradient = found.point.gradient
    if study.shared and not at.crossed:
        doubt = _difference_noise(at, found, policy, true)
    else:
        doubt = (true - policy.rows_within).covariance()
    return Measured(
        gradient=NoisyVector(true.mean, spread),
        reduced=NoisyVector(gradient, policy.rows_within.covariance()),
        difference=NoisyVector(true.mean - gradient, doubt),
        parts={"policy": true.mean - policy.rows.mean, "adjoint and sensitivity": policy.rows.mean - gradient},
        errors=_errors(at, solution, exact, policy, found, richer),
        freedom=freedom,
        scale=true.size(),
        value=mean_estimate(true.value, at.shares),
        trouble=known.trouble or trouble_with(exact),
    )


def _noise(at: Contextual, y: Policy, true: GradientRows) -> tuple[Float[np.ndarray, "dx dx"], float]:
    """The covariance of the gradient at the exact solutions ``y``, and its degrees of freedom.

    Where the law of the lower noise is itself known from data only, groups of these are left out as well.
    """
    law, shared = at.law, at.study.shared
    if law.rows == 1 or law.keys is not None:
        return true.covariance(), np.inf if at.crossed else freedom_of(at.shares)
    group = split_rows(law.rows, np.random.default_rng(0))
    means = []
    for k in range(group.max() + 1):
        part = law.without(group == k)
        near = as_rows(solve_each(at.study.problem, at.x, part, start=y).y)
        rows = at.gradients(near, at.sensitivity(near, part)[0])
        means.append(rows.mean_without(group == k) if shared else rows.mean)
    spread = jackknife(np.stack(means))
    complete = shared and not (at.crossed and at.drawn)  # each row of data stands for its context too
    return spread if complete else spread + true.covariance(), float(group.max())


@program
def _drawn_noise(draw: Any, keys: Array, xi: Array, count: int) -> Any:
    """Draws at each context, one after the other."""
    drawn = jax.vmap(lambda key, context: draw(key, context, count))(keys, xi)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), drawn)


def _few_draws(at: Contextual) -> Level:
    """The lower level's data for the reduced problem; a few draws at each context where noise is drawn."""
    lower = at.study.lower
    if at.law.keys is None or lower.crossed:
        return lower
    rows = lower.contexts()
    count = max(1, min(_DRAWS_EACH, _DRAWN_ROWS // len(rows)))
    keys = jax.random.split(jax.random.fold_in(at.law.keys[0], 1), len(rows))
    again = lambda a: None if a is None else put(np.repeat(np.asarray(a), count, axis=0))
    eta = _drawn_noise(at.study.problem.conditional, keys, rows.xi, count)
    return Samples(again(rows.xi), eta, again(rows.weights))


def _one_step(
    W: Float[np.ndarray, "N dy"], phi: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"], local: LowerRows
) -> tuple[Float[np.ndarray, "N dy"], Float[np.ndarray, "N dy dx"], Float[np.ndarray, "M M"]]:
    """A Newton step for the coefficients, the sensitivity and the Hessian there, from derivatives along the policy."""
    H = galerkin_matrix(phi, local.hessian * shares[:, None, None])
    rows = np.concatenate([local.slope[:, :, None], local.cross], axis=2) * shares[:, None, None]
    found = _solved(H, (phi.T @ rows.reshape(len(phi), -1)).reshape(W.size, -1))
    return W - found[:, 0].reshape(W.shape), -found[:, 1:].reshape(*W.shape, -1), H


def _solved(H: Float[np.ndarray, "M M"], right: Float[np.ndarray, "M ..."]) -> Float[np.ndarray, "M ..."]:
    """``H^-1 right``; NaN where there is no inverse, as where a group of samples holds all those of a cell."""
    try:
        return np.linalg.solve(H, right)
    except np.linalg.LinAlgError:
        return np.full_like(right, np.nan)


def _with_conditional_means(at: Contextual, found: Galerkin, draws: int, key: Array) -> Galerkin:
    """The reduced problem with conditional means in place of single draws, by a few Newton steps from its solution.

    With the same draws for it as for the exact solves, their noise is not taken for a gap between the two.
    """
    study, here, W = at.study, PolicyTable.of(found.reduced, at.xi), found.point.W
    policies, law, shares = here, at.law, np.bincount(at.place, at.shares, len(at.xi))
    if not study.shared:
        lower = study.lower.contexts()
        policies, shares = PolicyTable.of(found.reduced, lower.xi), lower.shares()
        law = law_at(study, lower.xi, draws, jax.random.fold_in(key, 1))
    s, H = found.sensitivity, found.point.hessian
    for _ in range(_NEWTON_STEPS):
        local = lower_along(study.problem, at.x, policies(W), law)
        before, (W, s, H) = W, _one_step(W, policies.phi, shares, local)
        if np.linalg.norm(W - before) <= _SETTLED * (1 + np.linalg.norm(W)):
            break
    rows = at.gradients(here(W), np.tensordot(here.phi, s, axes=1))
    pull = here.phi[at.place].T @ (rows.d2 * at.shares[:, None])
    v = _solved(H, pull.reshape(-1)).reshape(W.shape)
    return replace(found, point=replace(found.point, W=W, adjoint=v, gradient=rows.mean, sensitivity=s, hessian=H))


def _difference_noise(
    at: Contextual, found: Galerkin, policy: ReducedPolicy, true: GradientRows
) -> Float[np.ndarray, "dx dx"]:
    """The covariance over contexts of the difference of the gradients, groups of contexts left out in turn.

    One Newton step from the solution on all of them. Both gradients see the same contexts, so that much of what either
    varies by is not in their difference.
    """
    group, phi = split_rows(len(at.place), np.random.default_rng(0)), policy.policies.phi
    differences = []
    for k in range(GROUPS):
        shares = without(at.shares, group, k)
        by_context = np.bincount(at.place, shares, len(at.xi))
        W, s, _ = _one_step(found.point.W, phi, by_context, policy.local)
        rows = at.gradients(policy.policies(W), np.tensordot(phi, s, axes=1))
        differences.append(shares @ (true.by_context - rows.by_context))
    return jackknife(np.stack(differences))


def _errors(
    at: Contextual,
    solution: Solution,
    exact: LowerSolution,
    policy: ReducedPolicy,
    found: Galerkin,
    richer: Basis | None,
) -> Errors:
    """How far the reduced problem's policy, adjoint and sensitivity are from the exact ones."""
    shares, place = at.shares, at.place
    A, v = policy.local.hessian, policy.policies.phi @ found.point.adjoint
    norms = lambda s: np.einsum("naj,nab,nbj->n", s, A, s, optimize=True)
    d2, y = policy.rows.d2, as_rows(exact.y)
    squares = lambda other: np.sum((y - other) ** 2, axis=1)
    if at.crossed or not at.study.upper_noise:
        residual = np.linalg.solve(A[place], d2[..., None])[..., 0] - v[place]
        adjoint = mean_estimate(np.einsum("na,nab,nb->n", residual, A[place], residual, optimize=True), shares)
    else:
        adjoint = _noisy_square(at, solution, richer, A, d2 - np.einsum("nab,nb->na", A, v)[place])
    off = squares(as_rows(solution.policy(at.xi))) - np.asarray(exact.noise, float)
    whole = float(np.mean(norms(policy.own)[place]))
    return Errors(
        policy=mean_estimate(off[place], shares, least=0.0),
        adjoint=adjoint,
        sensitivity=mean_estimate(norms(policy.own - policy.within)[place], shares).beyond_rounding(whole),
        distance=float(shares @ np.sqrt(squares(policy.y))[place]),
    )


def _noisy_square(
    at: Contextual,
    solution: Solution,
    richer: Basis | None,
    A: Float[np.ndarray, "contexts dy dy"],
    residual: Float[np.ndarray, "n dy"],
) -> Estimate:
    r"""$|v - Pv|^2$ from single noisy values of $\partial_2 f$: as seen by a richer basis, noise left out.

    With $\rho_i = \Phi_+ (\partial_2 f - A\, Pv)$ it is $E[\rho]^T H_+^{-1} E[\rho]$; products of a row with itself,
    which hold the noise, are left out of the double sum.
    """
    domain, shares = at.study.problem.domain, at.shares
    xi: Any = domain.snap(put(at.xi[at.place]), at.study.dtype)
    basis = solution.basis if richer is None else richer.fit(domain, xi, put(shares.astype(at.study.dtype)))
    phi = np.asarray(basis(xi), float)
    hessian = galerkin_matrix(phi, A[at.place] * shares[:, None, None])
    rho = (phi[:, :, None] * residual[:, None, :]).reshape(len(phi), -1)
    return _square_without_diagonal(rho, hessian, shares, at.study.eps)


def _square_without_diagonal(
    rho: Float[np.ndarray, "n M"], H: Float[np.ndarray, "M M"], shares: Float[np.ndarray, " n"], eps: float
) -> Estimate:
    """``E[rho]^T H^-1 E[rho]`` from rows, without the products of rows with themselves."""
    if not measurable(shares):
        return Estimate.of(np.nan, np.nan, least=0.0)
    spread, vectors = np.linalg.eigh(H)
    kept = spread > max(_SEEN, len(H) * eps) * spread[-1]
    white = rho @ (vectors[:, kept] / np.sqrt(spread[kept]))
    total = shares @ white
    square = (total @ total - np.sum(shares**2 * np.sum(white**2, axis=1))) / (1 - np.sum(shares**2))
    error = 2 * np.sqrt(np.sum(shares**2 * (white @ total - total @ total) ** 2))
    noise = np.sqrt(2 * np.sum((white.T * shares**2 @ white) ** 2))
    return Estimate.of(square, float(np.hypot(error, noise)), freedom_of(shares), least=0.0)
