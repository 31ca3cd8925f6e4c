r"""The reduced problem against exact lower-level solutions at one ``x``: policy, adjoint, sensitivity, hypergradient.

At a policy $y(\xi)$, with $A = \partial_{22} G$ and $D = \partial_{21} G$ the conditional means at each context, the
sensitivity is $s = -A^{-1} D$, the adjoint $v = A^{-1} \partial_2 f$, and the gradient of the contextual problem
$\nabla F = h[y^\star]$ with $h[y] = E[\partial_1 f + s^T \partial_2 f]$. The reduced one has the projections $Pv$, $Ps$
on the span of the basis (in the inner product $\langle a, b\rangle = E[a^T A\, b]$) in place of $v$ and $s$, and so
$$\nabla F - \nabla F_\Phi = (h[y^\star] - h[\bar y]) + \langle v - Pv, s - Ps \rangle ,$$
the first part due to the policy's error, the second to the product of the other two. It is an identity; all three are
measured here.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..answer import Solution
from ..basis import Basis, combine
from ..derivatives import oracles, sensitivity
from ..lower import Law, LocalLower, LowerSolution, law_at, lower_along, solve_each, trouble_with
from ..problem import Level, Samples, Study
from ..programs import Held, program, put
from ..reduction import Reduced, reduce_with
from .evaluate import mean_loss
from .galerkin import Galerkin, galerkin, policy_of
from .gradient_rows import GradientRows, UpperContexts
from .intervals import Estimate, freedom_of, mean_estimate, measurable
from .jackknife import GROUPS, as_rows, jackknife, split_rows
from .measured import Errors, Measured, NoisyVector

_DRAWN_ROWS = 100_000  # the most rows the reduced problem is solved on where noise is drawn
_DRAWS_EACH = 8  # of noise at a context, for the start of those solves
_NEWTON_STEPS, _SETTLED = 4, 1e-8  # from there to conditional means, and the relative step that ends them
_SEEN = 1e-12  # eigenvalues, relative to the largest, below which a direction is not seen by the samples


_hessian_of = program(oracles.galerkin_hessian)


@dataclass(frozen=True)
class Contextual:
    """The contextual problem at one ``x``: the upper level's contexts, and the law of the lower noise at each."""

    study: Study
    x: PyTree[Array]
    contexts: UpperContexts
    law: Law

    def sensitivity(self, y: PyTree, law: Law | None = None) -> tuple[Float[Held, "contexts dy dx"], LocalLower]:
        """``s = -A^-1 D`` along a policy, and the derivatives it is made of."""
        local = lower_along(self.study.problem, self.x, y, self.law if law is None else law)
        solve: Any = lambda right: np.linalg.solve(np.asarray(local.hessian), np.asarray(right))
        return put(sensitivity(solve, local.cross)), local

    def gradients(self, y: PyTree, s: Float[Held, "contexts dy dx"]) -> GradientRows:
        """The rows of the gradient for a policy and a sensitivity."""
        return self.contexts.gradients(self.study.problem, self.x, y, s)


@dataclass(frozen=True)
class ReducedPolicy:
    """The reduced problem's policy at the contexts: its features, derivatives along it, and two sensitivities.

    `own` is that of the contextual problem at this policy, with gradient `rows`; `within` its projection, with
    gradient `rows_within`.
    """

    phi: Float[Held, "contexts N"]
    y: PyTree[Array]
    local: LocalLower
    own: Float[Held, "contexts dy dx"]
    within: Float[Held, "contexts dy dx"]
    rows: GradientRows
    rows_within: GradientRows

    @staticmethod
    def of(at: Contextual, reduced: Reduced, found: Galerkin) -> "ReducedPolicy":
        phi, y = reduced.features(at.contexts.xi), policy_of(reduced, found.W, at.contexts.xi)
        own, local = at.sensitivity(y)
        within = combine(phi, found.sensitivity)
        return ReducedPolicy(phi, y, local, own, within, at.gradients(y, own), at.gradients(y, within))


def measure_exactly(study: Study, solution: Solution, draws: int, key: Array, richer: Basis | None) -> Measured:
    """Against true per-context solves, on the contexts of the upper level's samples."""
    contexts = UpperContexts.of(study)
    at = Contextual(study, solution.x, contexts, law_at(study, contexts.xi, draws, key))
    exact = solve_each(study.problem, solution.x, at.law)
    true = at.gradients(exact.y, at.sensitivity(exact.y)[0])
    spread, freedom = _noise(at, exact.y, true)

    reduced = reduce_with(study.on(_few_draws(at), study.upper), solution.basis, solution.W).whitened()
    found = galerkin(reduced.ordinary(), ravel_pytree(solution.x)[0])
    if at.law.keys is not None and not study.lower.crossed:
        found = _with_conditional_means(at, reduced, found, draws, key)
    policy = ReducedPolicy.of(at, reduced, found)
    gradient = np.asarray(found.gradient, float)
    if study.shared and not contexts.crossed:
        doubt = _difference_noise(at, reduced, found, policy, true)
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
        value=mean_loss(study.problem.upper, solution.x, put(contexts.by_row(exact.y)), study.upper),
        trouble=trouble_with(exact) if bool(found.sound) else "the reduced problem could not be solved at x",
    )


def _noise(at: Contextual, y: PyTree, true: GradientRows) -> tuple[Float[np.ndarray, "dx dx"], float]:
    """The covariance of the gradient at the exact solutions ``y``, and its degrees of freedom.

    Where the law of the lower noise is itself known from data only, groups of these are left out as well.
    """
    contexts, law, shared = at.contexts, at.law, at.study.shared
    if law.rows == 1 or law.keys is not None:
        return true.covariance(), np.inf if contexts.crossed else freedom_of(np.asarray(contexts.shares, float))
    group = split_rows(law.rows, np.random.default_rng(0))
    means = []
    for k in range(group.max() + 1):
        part = law.without(jnp.asarray(group == k))
        near = solve_each(at.study.problem, at.x, part, start=y).y
        rows = at.gradients(near, at.sensitivity(near, part)[0])
        means.append(rows.mean_without(group == k) if shared else rows.mean)
    spread = jackknife(np.stack(means))
    complete = shared and not (contexts.crossed and contexts.drawn)  # each row of data stands for its context too
    return spread if complete else spread + true.covariance(), float(group.max())


def _few_draws(at: Contextual) -> Level:
    """The lower level's data for the reduced problem; a few draws at each context where noise is drawn."""
    problem, lower = at.study.problem, at.study.lower
    if at.law.keys is None or lower.crossed:
        return lower
    rows = lower.contexts()
    count = max(1, min(_DRAWS_EACH, _DRAWN_ROWS // len(rows)))
    keys = jax.random.split(jax.random.fold_in(at.law.keys[0], 1), len(rows))
    eta = jax.vmap(lambda k, c: problem.conditional(k, c, count))(keys, rows.xi)  # pyright: ignore
    again = lambda a: None if a is None else jnp.repeat(a, count, axis=0)
    return Samples(again(rows.xi), jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), eta), again(rows.weights))


@program
def _one_step(
    W: Float[Held, "N dy"], phi: Float[Held, "n N"], shares: Float[Held, " n"], local: LocalLower
) -> tuple[Float[Held, "N dy"], Float[Held, "N dy dx"], Float[Held, "M M"]]:
    """A Newton step for the coefficients, the sensitivity and the Hessian there, from derivatives along the policy."""
    H = oracles.galerkin_hessian(phi, shares, local.hessian)
    cross = jnp.einsum("n,nk,naj->kaj", shares, phi, local.cross, optimize="optimal").reshape(W.size, -1)
    step = jnp.linalg.solve(H, jnp.einsum("n,nk,na->ka", shares, phi, local.slope).reshape(-1))
    s = sensitivity(lambda right: jnp.linalg.solve(H, right), cross)
    return W - step.reshape(W.shape), s.reshape(*W.shape, -1), H


def _with_conditional_means(at: Contextual, reduced: Reduced, found: Galerkin, draws: int, key: Array) -> Galerkin:
    """The reduced problem with conditional means in place of single draws, by a few Newton steps from its solution.

    With the same draws for it as for the exact solves, their noise is not taken for a gap between the two.
    """
    study, contexts = at.study, at.contexts
    lower = study.lower.contexts()
    law = at.law if study.shared else law_at(study, lower.xi, draws, jax.random.fold_in(key, 1))
    phi, shares = reduced.features(lower.xi), jnp.asarray(lower.shares(), study.dtype)
    W, s, H = found.W, found.sensitivity, found.hessian
    for _ in range(_NEWTON_STEPS):
        local = lower_along(study.problem, at.x, policy_of(reduced, W, lower.xi), law)
        before, (W, s, H) = W, _one_step(W, phi, shares, local)
        if float(jnp.linalg.norm(W - before)) <= _SETTLED * (1 + float(jnp.linalg.norm(W))):
            break
    here = reduced.features(contexts.xi)
    rows = at.gradients(policy_of(reduced, W, contexts.xi), combine(here, s))
    pull = jnp.einsum("n,nk,na->ka", contexts.shares, here[contexts.place], rows.d2).reshape(-1)
    v = jnp.linalg.solve(H, pull).reshape(W.shape)
    return Galerkin(W, v, jnp.asarray(rows.mean, found.gradient.dtype), found.sound, s, H)


def _difference_noise(
    at: Contextual, reduced: Reduced, found: Galerkin, policy: ReducedPolicy, true: GradientRows
) -> Float[np.ndarray, "dx dx"]:
    """The covariance over contexts of the difference of the gradients, groups of contexts left out in turn.

    One Newton step from the solution on all of them. Both gradients see the same contexts, so that much of what either
    varies by is not in their difference.
    """
    contexts = at.contexts
    group = split_rows(len(contexts.place), np.random.default_rng(0))
    local, phi = put(jax.tree.map(lambda a: np.asarray(a)[contexts.place], (policy.local, policy.phi)))
    differences = []
    for k in range(GROUPS):
        shares = contexts.shares * (group != k)
        with np.errstate(invalid="ignore"):  # of a single sample nothing is left, and nothing known
            shares = (shares / np.sum(shares)).astype(contexts.shares.dtype)
        W, s, _ = _one_step(found.W, phi, shares, local)
        rows = at.gradients(policy_of(reduced, W, contexts.xi), combine(policy.phi, s))
        differences.append(shares @ (np.asarray(true.by_context, float) - np.asarray(rows.by_context, float)))
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
    contexts = at.contexts
    shares, place = np.asarray(contexts.shares, float), np.asarray(contexts.place)
    by_row = lambda table: np.asarray(table, float)[place]
    A, v = by_row(policy.local.hessian), by_row(combine(policy.phi, found.adjoint))
    lost = by_row(policy.own) - by_row(policy.within)
    d2, whole = np.asarray(policy.rows.d2, float), by_row(policy.own)
    squares = lambda a, b: by_row(np.sum((as_rows(a) - as_rows(b)) ** 2, axis=1))
    if contexts.crossed or not at.study.upper_noise:
        residual = np.linalg.solve(A, d2[..., None])[..., 0] - v
        adjoint = mean_estimate(np.einsum("na,nab,nb->n", residual, A, residual), shares)
    else:
        adjoint = _noisy_square(at, solution, richer, policy.local, d2 - np.einsum("nab,nb->na", A, v))
    return Errors(
        policy=mean_estimate(squares(exact.y, solution.policy(contexts.xi)) - by_row(exact.noise), shares, least=0.0),
        adjoint=adjoint,
        sensitivity=mean_estimate(np.einsum("naj,nab,nbj->n", lost, A, lost), shares).beyond_rounding(
            float(np.mean(np.einsum("naj,nab,nbj->n", whole, A, whole)))
        ),
        distance=float(shares @ np.sqrt(squares(exact.y, policy.y))),
    )


def _noisy_square(
    at: Contextual, solution: Solution, richer: Basis | None, local: LocalLower, residual: Float[np.ndarray, "n dy"]
) -> Estimate:
    r"""$|v - Pv|^2$ from single noisy values of $\partial_2 f$: as seen by a richer basis, noise left out.

    With $\rho_i = \Phi_+ (\partial_2 f - A\, Pv)$ it is $E[\rho]^T H_+^{-1} E[\rho]$; products of a row with itself,
    which hold the noise, are left out of the double sum.
    """
    contexts, domain = at.contexts, at.study.problem.domain
    xi = domain.snap(contexts.by_row(contexts.xi), at.study.dtype)
    basis = solution.basis if richer is None else richer.fit(domain, xi, contexts.shares)
    phi = basis(xi)
    hessian = _hessian_of(phi, contexts.shares, np.asarray(local.hessian)[contexts.place])
    rho = np.einsum("nk,na->nka", np.asarray(phi, float), residual).reshape(len(phi), -1)
    return _square_without_diagonal(rho, np.asarray(hessian, float), np.asarray(contexts.shares, float), at.study.eps)


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
