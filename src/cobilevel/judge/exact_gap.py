r"""How far the reduced problem is from the contextual one at one ``x``: policy, adjoint, sensitivity, hypergradient.

At a policy $y(\xi)$, with $A = \partial_{22} G$ and $D = \partial_{21} G$ the conditional means at each context, the
sensitivity is $s = -A^{-1} D$, the adjoint $v = A^{-1} \partial_2 f$, and the gradient of the contextual problem
$\nabla F = h[y^\star]$ with $h[y] = E[\partial_1 f + s^T \partial_2 f]$. The reduced one has the projections $Pv$, $Ps$
on the span of the basis (in the inner product $\langle a, b\rangle = E[a^T A\, b]$) in place of $v$ and $s$, and so
$$\nabla F - \nabla F_\Phi = (h[y^\star] - h[\bar y]) + \langle v - Pv, s - Ps \rangle ,$$
the first part due to the policy's error, the second to the product of the other two. It is an identity; all three are
measured here.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..basis.base import Basis, FeatureMap
from ..derivatives import oracles
from ..keys import as_key
from ..lower.per_context import Law, Local, law_at, local_lower, solve_each, worst
from ..problem.data import Level, Levels, Product, Samples
from ..problem.distributions import Distribution
from ..problem.domain import Finite
from ..problem.problem import Problem
from ..problem.study import upper_depends_on_noise
from ..reduction.reduced import Reduced
from .estimates import Estimate, freedom_of, mean_estimate
from .evaluate import square_distance
from .gap import GROUPS, Galerkin, Gap, covariance, features, galerkin, jackknife, policy_at, reduced_at, rows_of

_DRAWN_ROWS = 100_000  # the most rows the reduced problem is solved on where noise is drawn


class Above(eqx.Module):
    """The upper level's samples by context: `xi` each once, `place` of each row among them, `shares` of the rows.

    `crossed`: every context meets all the data (``Product``); `drawn`: contexts are a sample, not a law.
    """

    xi: Array
    place: Array
    shares: Array
    eta: PyTree
    crossed: bool = eqx.field(static=True)
    drawn: bool = eqx.field(static=True)

    @staticmethod
    def of(problem: Problem, level: Samples | Product) -> "Above":
        rows = level.context_rule() if isinstance(level, Product) else level
        shares = rows.mean_one_weights() / len(rows)
        xi, place = rows.xi, jnp.arange(len(rows))
        if isinstance(problem.domain, Finite):
            values, found = np.unique(np.asarray(problem.domain.index(xi)), return_inverse=True)
            xi, place = jnp.asarray(problem.domain.values)[values], jnp.asarray(found.ravel())
        crossed = isinstance(level, Product)
        law = crossed and isinstance(level.contexts, Distribution)
        return Above(xi, place, shares, level.eta, crossed, not law)

    def gradients(self, problem: Problem, x: PyTree, y: PyTree, s: Array) -> "Rows":
        """``d1 f + s^T d2 f`` with ``y`` and ``s`` by context."""
        here, sensitivity = jax.tree.map(lambda a: a[self.place], (y, s))
        args = (problem, x, here, sensitivity, self.shares, self.xi[self.place], self.eta)
        return Rows(*(_crossed_rows(*args) if self.crossed else _joint_rows(*args)), self.drawn)


class Rows(eqx.Module):
    """Rows whose mean is a gradient: by context (or joint sample), and by row of crossed data; with ``d2 f``."""

    by_context: Array
    by_data: Array | None
    d2: Array
    shares: Array
    drawn: bool = eqx.field(static=True)

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.shares @ self.by_context, dtype=float)

    def __sub__(self, other: "Rows") -> "Rows":
        by_data = None if self.by_data is None or other.by_data is None else self.by_data - other.by_data
        return Rows(self.by_context - other.by_context, by_data, self.d2, self.shares, self.drawn)

    def covariance(self) -> np.ndarray:
        """Of the mean: over independent rows; over contexts and over data where they are crossed."""
        spread = np.zeros((self.by_context.shape[1],) * 2)
        if self.drawn:
            spread = spread + covariance(np.asarray(self.by_context, float), np.asarray(self.shares, float))
        if self.by_data is not None:
            count = len(self.by_data)
            spread = spread + covariance(np.asarray(self.by_data, float), np.full(count, 1 / count))
        return spread

    def mean_without(self, left_out: np.ndarray) -> np.ndarray:
        """The mean with some rows of the data left out."""
        table = self.by_context if self.by_data is None else self.by_data
        weights = (self.shares if self.by_data is None else np.ones(len(table))) * ~left_out
        return np.asarray(weights @ table / weights.sum(), dtype=float)


def _contract(d1: PyTree, d2: PyTree, s: Array) -> tuple[Array, Array]:
    flat = [jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(part) for part in (d1, d2)]
    return flat[0] + jnp.einsum("na,naj->nj", flat[1], s), flat[1]


@eqx.filter_jit
def _joint_rows(problem, x, y, s, shares, xi, eta):
    _, d1, d2 = oracles.upper_at(problem, x, y, xi, eta)
    rows, flat = _contract(d1, d2, s)
    return rows, None, flat, shares


@eqx.filter_jit
def _crossed_rows(problem, x, y, s, shares, xi, eta):
    count = len(jax.tree.leaves(eta)[0])

    def one(total, item):
        here, slope, share, context = item
        again = jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *a.shape)), (here, context, slope))
        _, d1, d2 = oracles.upper_at(problem, x, again[0], again[1], eta)
        rows, flat = _contract(d1, d2, again[2])
        return total + (share * rows).astype(total.dtype), (jnp.mean(rows, axis=0), jnp.mean(flat, axis=0))

    empty = jnp.zeros((count, s.shape[2]), s.dtype)
    by_data, (by_context, d2) = jax.lax.scan(one, empty, (y, s, shares, xi))
    return by_context, by_data, d2, shares


def exact_gap(
    problem: Problem, solution: Any, above: Samples | Product, below: Level, draws: int, key: Any, richer: Basis | None
) -> Gap:
    """Against true per-context solves, on the contexts of the upper level's samples."""
    x = ravel_pytree(solution.x)[0]
    table = Above.of(problem, above)
    law = law_at(problem, table.xi, below, draws, key)
    exact = solve_each(problem, solution.x, law)
    s = sensitivities(problem, solution.x, exact.y, law)[0]
    rows = table.gradients(problem, solution.x, exact.y, s)
    spread, freedom = rows.covariance(), np.inf if table.crossed else freedom_of(np.asarray(table.shares))
    if law.rows > 1 and law.keys is None:  # the law is itself known from data only
        spread, freedom = _lower_noise(problem, solution.x, table, law, exact.y, rows, above is below)

    reduced = reduced_at(problem, solution.basis, Levels(upper=above, lower=_known(problem, below, law)), solution.W)
    found = galerkin(reduced, x)
    if law.keys is not None and isinstance(below, Samples):
        found = _with_law(
            problem, solution.x, reduced, found, table, below, law if above is below else None, draws, key
        )
    phi, y = features(reduced, table.xi), policy_at(reduced, found, table.xi)
    s_bar, local = sensitivities(problem, solution.x, y, law)
    at_policy = table.gradients(problem, solution.x, y, s_bar)
    s_phi = jnp.einsum("pk,kaj->paj", phi, found.sensitivity)
    projected = table.gradients(problem, solution.x, y, s_phi)

    shares, place = np.asarray(table.shares, float), np.asarray(table.place)
    A, d2, v = (
        np.asarray(local.hessian, float)[place],
        np.asarray(at_policy.d2, float),
        np.asarray(phi @ found.adjoint, float)[place],
    )
    lost = np.asarray(s_bar - s_phi, float)[place]
    squares = lambda a, b: rows_of(jax.vmap(square_distance)(a, b))[:, 0]
    distance = squares(exact.y, y)[place]
    of_policy = squares(exact.y, solution.policy(table.xi))[place]
    if table.crossed or not upper_depends_on_noise(problem, above):
        residual = np.linalg.solve(A, d2[..., None])[..., 0] - v
        adjoint = mean_estimate(np.einsum("na,nab,nb->n", residual, A, residual), shares)
    else:
        adjoint = _noisy_square(problem, richer, table, A, d2 - np.einsum("nab,nb->na", A, v), solution.basis)
    if above is below and not table.crossed:
        doubt = _gap_spread(problem, solution.x, table, reduced, found, local, rows)
    else:
        doubt = (rows - projected).covariance()
    return Gap(
        gradient=(rows.mean, spread),
        reduced=(np.asarray(found.gradient, float), projected.covariance()),
        difference=(rows.mean - np.asarray(found.gradient, float), doubt),
        parts={
            "policy": rows.mean - at_policy.mean,
            "adjoint and sensitivity": at_policy.mean - np.asarray(found.gradient, float),
        },
        policy_error=mean_estimate(of_policy, shares),
        adjoint_error=adjoint,
        sensitivity_error=mean_estimate(np.einsum("naj,nab,nbj->n", lost, A, lost), shares),
        distance=float(shares @ np.sqrt(distance)),
        freedom=freedom,
        scale=float(np.sqrt(shares @ np.sum(np.asarray(rows.by_context, float) ** 2, axis=1))),
        trouble=worst(exact) if bool(found.sound) else "the reduced problem could not be solved at x",
    )


def sensitivities(problem: Problem, x: PyTree, y: PyTree, law: Law) -> tuple[Array, Local]:
    """``s = -A^-1 D`` at each context, and the derivatives it is made of."""
    local = local_lower(problem, x, y, law)
    return -jnp.linalg.solve(local.hessian, local.cross), local


def _gap_spread(problem, x, table: Above, reduced: Reduced, found: Galerkin, local: Local, rows: Rows) -> np.ndarray:
    """The covariance of the gap over contexts, groups of which are left out: one Newton step from the whole's solution.

    Both gradients see the same contexts, so that much of what either varies by is not in their difference.
    """
    group = np.random.default_rng(0).permutation(len(table.place)) % GROUPS
    A, D, slope = (jnp.asarray(part)[table.place] for part in (local.hessian, local.cross, local.slope))
    phi = features(reduced, table.xi)
    rows_phi, gaps = phi[table.place], []
    for k in range(GROUPS):
        shares = table.shares * (group != k)
        shares = shares / jnp.sum(shares)
        W, s = _one_step(found.W, rows_phi, shares, A, D, slope)
        y = policy_at(reduced, replace(found, W=W), table.xi)
        there = table.gradients(problem, x, y, jnp.einsum("pk,kaj->paj", phi, s))
        gaps.append(np.asarray(shares @ (rows.by_context - there.by_context), float))
    return jackknife(np.stack(gaps))


@jax.jit
def _one_step(W, phi, shares, A, D, slope):
    """A Newton step for the coefficients, and the sensitivity there, from derivatives along the policy."""
    H = jnp.einsum("n,nk,nab,nl->kalb", shares, phi, A, phi, optimize="optimal").reshape(W.size, -1)
    cross = jnp.einsum("n,nk,naj->kaj", shares, phi, D, optimize="optimal").reshape(W.size, -1)
    step = jnp.linalg.solve(H, jnp.einsum("n,nk,na->ka", shares, phi, slope).reshape(-1))
    return W - step.reshape(W.shape), -jnp.linalg.solve(H, cross).reshape(*W.shape, -1)


def _with_law(problem, x, reduced: Reduced, found: Galerkin, table: Above, below: Samples, law, draws, key) -> Galerkin:
    """The reduced problem with conditional means in place of single draws, by a few Newton steps from its solution.

    With the same draws for it as for the exact solves, their noise is not taken for a gap between the two.
    """
    law = law_at(problem, below.xi, below, draws, jax.random.fold_in(as_key(key), 1)) if law is None else law
    phi, shares = features(reduced, below.xi), below.mean_one_weights() / len(below)
    moved, s, local = np.inf, found.sensitivity, None
    for _ in range(4):
        if local is not None and moved <= 1e-8 * (1 + float(jnp.linalg.norm(found.W))):
            break
        local = local_lower(problem, x, policy_at(reduced, found, below.xi), law)
        W, s = _one_step(found.W, phi, shares, local.hessian, local.cross, local.slope)
        moved, found = float(jnp.linalg.norm(W - found.W)), replace(found, W=W)
    assert local is not None
    here = features(reduced, table.xi)
    y, s_phi = policy_at(reduced, found, table.xi), jnp.einsum("pk,kaj->paj", here, s)
    rows = table.gradients(problem, x, y, s_phi)
    pull = jnp.einsum("n,nk,na->ka", table.shares, here[table.place], rows.d2).reshape(-1)
    H = jnp.einsum("n,nk,nab,nl->kalb", shares, phi, local.hessian, phi, optimize="optimal").reshape(len(pull), -1)
    v = jnp.linalg.solve(H, pull).reshape(found.W.shape)
    return Galerkin(found.W, v, s, jnp.asarray(rows.mean, found.gradient.dtype), H, found.sound)


def _known(problem: Problem, below: Level, law: Law) -> Level:
    """The lower level's data for the reduced problem; a few draws at each context where noise is drawn."""
    if law.keys is None or not isinstance(below, Samples):
        return below
    count = max(1, min(8, _DRAWN_ROWS // len(below)))
    keys = jax.random.split(jax.random.fold_in(law.keys[0], 1), len(below))
    eta = jax.vmap(lambda k, c: problem.conditional(k, c, count))(keys, below.xi)  # pyright: ignore
    again = lambda a: None if a is None else jnp.repeat(a, count, axis=0)
    return Samples(again(below.xi), jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), eta), again(below.weights))


def _lower_noise(problem, x, table: Above, law: Law, y, rows: Rows, same: bool) -> tuple[np.ndarray, float]:
    """The covariance of the gradient where also the conditional law rests on data, groups of which are left out."""
    group = np.random.default_rng(0).permutation(law.rows) % min(GROUPS, law.rows)
    means = []
    for k in range(group.max() + 1):
        part = law.without(jnp.asarray(group == k))
        near = solve_each(problem, x, part, start=y).y
        found = table.gradients(problem, x, near, sensitivities(problem, x, near, part)[0])
        means.append(found.mean_without(group == k) if same else found.mean)
    spread = jackknife(np.stack(means))
    return (spread if same and not (table.crossed and table.drawn) else spread + rows.covariance()), float(group.max())


def _noisy_square(problem, richer, table: Above, A, residual, fitted: FeatureMap) -> Estimate:
    r"""$|v - Pv|^2$ from single noisy values of $\partial_2 f$: as seen by a richer basis, noise left out.

    With $\rho_i = \Phi_+ (\partial_2 f - A\, Pv)$ it is $E[\rho]^T H_+^{-1} E[\rho]$; products of a row with itself,
    which hold the noise, are left out of the double sum.
    """
    xi, shares = table.xi[table.place], np.asarray(table.shares, float)
    basis = fitted if richer is None else richer.fit(problem.domain, xi, table.shares)
    phi = np.asarray(basis(xi), float)
    rho = np.einsum("nk,na->nka", phi, residual).reshape(len(phi), -1)
    H = np.einsum("n,nk,nab,nl->kalb", shares, phi, A, phi, optimize=True).reshape(rho.shape[1], -1)
    return _without_diagonal(rho, H, shares)


def _without_diagonal(rho: np.ndarray, H: np.ndarray, shares: np.ndarray) -> Estimate:
    """``E[rho]^T H^-1 E[rho]`` from rows, without the products of rows with themselves; by groups its error."""
    spread, vectors = np.linalg.eigh(H)
    kept = spread > 1e-12 * spread[-1]
    white = rho @ (vectors[:, kept] / np.sqrt(spread[kept]))
    total = shares @ white
    if freedom_of(shares) < 0.5:
        return Estimate(np.nan, np.nan, (0.0, np.inf))
    square = (total @ total - np.sum(shares**2 * np.sum(white**2, axis=1))) / (1 - np.sum(shares**2))
    error = 2 * np.sqrt(np.sum(shares**2 * (white @ total - total @ total) ** 2))
    noise = np.sqrt(2 * np.sum((white.T * shares**2 @ white) ** 2))
    reach = 1.96 * float(np.hypot(error, noise))
    return Estimate(max(square, 0.0), reach / 1.96, (max(square - reach, 0.0), max(square, 0.0) + reach))
