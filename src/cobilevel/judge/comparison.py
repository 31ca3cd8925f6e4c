r"""The reduced problem at one ``x`` against a better one: exact lower-level solutions, a richer basis, or what products
of neighbouring samples show. Noise is measured over rows, or by leaving groups of samples out in turn.

At a policy $y(\xi)$, with $A = \partial_{22} G$ and $D = \partial_{21} G$ the conditional means at each context, the
sensitivity is $s = -A^{-1} D$, the adjoint $v = A^{-1} \partial_2 f$, and the gradient of the contextual problem
$\nabla F = h[y^\star]$ with $h[y] = E[\partial_1 f + s^T \partial_2 f]$. The reduced one has the projections $Pv$, $Ps$
on the span of the basis (in the inner product $\langle a, b\rangle = E[a^T A\, b]$) in place of $v$ and $s$, and so
$$\nabla F - \nabla F_\Phi = (h[y^\star] - h[\bar y]) + \langle v - Pv, s - Ps \rangle ,$$
the first part due to the policy's error, the second to the product of the other two. It is an identity; all three are
measured here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ..answer import Solution
from ..basis import Basis, combine
from ..derivatives import LowerRows, RowBlocks, RowDerivatives, Sizes, galerkin as galerkin_matrix
from ..ground import as_rows, put
from ..inference import (
    FOR_NOISE,
    Around,
    Galerkin,
    Missed,
    Products,
    covariance_in_parts,
    features_of,
    fitting_bias,
    influence,
    jackknife,
    scores,
    slope_accuracy,
    split_rows,
    value_error_at,
    without,
    without_each,
)
from ..lower import Law, law_at, lower_along, solve_along, solve_each, trouble_with
from ..problem import Finite
from ..reduction import Reduced, reduce_study
from ..study import Study
from .intervals import Estimate, freedom_of, mean_estimate, measurable, unbiased

Policy = Float[np.ndarray, "contexts dy"]
Sensitivity = Float[np.ndarray, "contexts dy dx"]
Square = Float[np.ndarray, "dx dx"]
UNSOLVED = "reduced problem could not be solved at x"


class NoisyVector(NamedTuple):
    """An estimated vector, after the flattened ``x``, and the covariance of the estimate; where that is known from few
    groups of samples, of its coordinates along some `axes`, orthonormal, beyond which neither has a part."""

    mean: Float[np.ndarray, " dx"]
    covariance: Float[np.ndarray, "k k"]
    axes: Float[np.ndarray, "k dx"] | None = None

    @staticmethod
    def left_out(mean: Float[np.ndarray, " dx"], values: Float[np.ndarray, "g dx"]) -> "NoisyVector":
        """From the values with one group of samples left out at a time."""
        if len(mean) <= 1 + len(values):
            return NoisyVector(mean, jackknife(values))
        axes = np.linalg.qr(np.concatenate([mean[None], values]).T)[0].T
        return NoisyVector(mean, jackknife(values @ axes.T), axes)

    def on(self, free: Bool[np.ndarray, " dx"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k k"]]:
        """The vector and its covariance without some coordinates."""
        if self.axes is None:
            return self.mean[free], self.covariance[np.ix_(free, free)]
        left, triangle = np.linalg.qr((self.axes * free).T)
        return left.T @ (self.mean * free), triangle @ self.covariance @ triangle.T

    def through(self, turn: Float[np.ndarray, "m dx"]) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m m"]]:
        """The same through a linear map."""
        turned = turn if self.axes is None else turn @ self.axes.T
        return turn @ self.mean, turned @ self.covariance @ turned.T


@dataclass(frozen=True)
class Measured:
    """The gradients of the contextual and of the reduced problem, and why they differ.

    - `freedom`: of the estimated covariances; `scale`: the size of single rows, whose rounding gradients inherit.
    - `compared`: with what, in words; `trouble`: what went wrong.
    - `difference`, `parts` and the squared errors: where the reduced problem was compared with a better one.
    - `unknown`: why what lies between the two is not known, in words; there is then neither gradient nor value.
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
    unknown: str = ""


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


# -- the reduced problem alone


def measure_reduced(study: Study, at: Galerkin, around: Around | None) -> Measured:
    """The gradient of the reduced problem alone, with its noise."""
    if around is not None and around.smooth is not None:
        gradient = NoisyVector(at.point.gradient, around.gradient_covariance())
        freedom = freedom_of(study.lower.contexts().shares())
    else:
        left_out = np.stack([part.point.gradient for part in without_each(at, FOR_NOISE)])
        gradient, freedom = NoisyVector.left_out(at.point.gradient, left_out), len(left_out) - 1.0
    words, trouble = "nothing beyond this basis: the gradient is the reduced problem's", f"the {UNSOLVED}"
    value = Estimate.of(at.point.value, value_error_at(study, at))
    return Measured(gradient, gradient, freedom, words, "" if at.point.sound else trouble, value=value)


# -- a richer basis


def measure_against_richer(study: Study, solution: Solution, poor: Galerkin, richer: Basis) -> Measured:
    """Against a richer basis, on joint samples; noise measured by leaving groups of samples out in turn."""
    rich = Galerkin.at(reduce_study(study, richer).whitened(), poor.point.x, crossed=True)
    phi, phi_rich = (np.asarray(part.expansions.lower_pools[0].features, float) for part in (poor, rich))
    embed = np.linalg.lstsq(phi_rich, phi, rcond=None)[0]  # its span holds that of the other
    xi = study.lower.contexts().xi
    given, policies = as_rows(solution.at(xi)), PolicyTable.of(rich.reduced, xi)

    def figures(low: Galerkin, high: Galerkin) -> tuple[np.ndarray, ...]:
        """Both gradients, the product of what is missed of adjoint and sensitivity; squared errors, the objective."""
        shares, H = high.expansions.lower_pools[0].shares, high.point.hessian
        v = (high.point.adjoint - embed @ low.point.adjoint).reshape(-1)
        s = (high.sensitivity - np.tensordot(embed, low.sensitivity, axes=1)).reshape(len(v), -1)
        policy = shares @ np.sum((policies(high.point.W) - given) ** 2, axis=1)
        squares = np.array([policy, v @ H @ v, np.sum(s * (H @ s)), high.point.value])
        return low.point.gradient, high.point.gradient, s.T @ H @ v, squares

    low, high, product, squares = figures(poor, rich)
    left_out = [figures(*pair) for pair in zip(*(without_each(one, FOR_NOISE) for one in (poor, rich)), strict=True)]
    low_out, high_out, _, squares_out = (np.stack(part) for part in zip(*left_out, strict=True))
    freedom = len(left_out) - 1.0
    policy_noise, adjoint_noise = _own_noise(study, rich)
    own = adjoint_noise * (1 - len(poor.point.W) / len(rich.point.W)), 0.0, fitting_bias(squares, squares_out)[3]
    squares, variances = squares - [policy_noise, *own], np.diag(jackknife(squares_out)).copy()
    fitted = PolicyTable.of(poor.reduced, xi)(poor.point.W)
    if np.max(np.abs(given - fitted)) <= study.eps**0.25 * np.max(np.abs(given)):
        # On the samples fitted to, both fits have the noise of the poorer one, which is not in their difference.
        itself = _own_noise(study, poor)[0]
        squares[0] += 2 * itself
        variances[0] += 2 * itself**2 / poor.point.W.size  # one draw of a square of so many numbers
    noise, least = np.sqrt(variances), (0.0, 0.0, 0.0, -np.inf)
    policy, adjoint, sensitivity, value = (
        Estimate.of(a, b, freedom, least=c) for a, b, c in zip(squares, noise, least, strict=True)
    )
    return Measured(
        gradient=NoisyVector.left_out(high, high_out),
        reduced=NoisyVector.left_out(low, low_out),
        freedom=freedom,
        compared=repr(richer),
        trouble="" if poor.point.sound and rich.point.sound else f"a {UNSOLVED}",
        difference=NoisyVector.left_out(high - low, high_out - low_out),
        parts={"policy": high - low - product, "adjoint and sensitivity": product},
        policy_error=policy,
        adjoint_error=adjoint,
        sensitivity_error=sensitivity,
        value=value,
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
    of_policy, of_adjoint = scores(phi, lower.slope), scores(phi, alpha)
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
    m = (around.f[0] - around.vr[0])[:, None]
    value_error = float(np.sqrt(value.covariance(influence(m, shares))[0, 0]))
    fitted = NoisyVector(gradient, around.gradient_covariance())
    compared, trouble = f"products of {missed.total.near.words}", "" if around.sound else f"the {UNSOLVED}"
    scale = float(np.sqrt(np.sum(shares @ sum(around.gradient_rows()) ** 2)))
    errors = np.concatenate([[value_error], np.sqrt(np.diag(stated.covariance)) * np.abs(k)])
    if unknown := missed.unknown(errors):
        none = NoisyVector(np.full_like(gradient, np.nan), np.full((len(k), len(k)), np.nan))
        return Measured(none, fitted, freedom, compared, trouble, scale=scale, fitted=fitted, unknown=unknown)
    adjoint, sensitivity, cross = missed.slopes()
    product = cross.value / k
    phi, A = features_of(around), around.terms.curvature[0]
    square = lambda table: float(np.mean(np.einsum("na,nab,nb->n", table, A, table)))
    moves = np.moveaxis(around.galerkin.sensitivity, 2, 0)
    return Measured(
        gradient=stated,
        reduced=reduced,
        freedom=freedom,
        compared=compared,
        trouble=trouble,
        difference=gap,
        parts={"policy": gap.mean - product, "adjoint and sensitivity": product},
        policy_error=_policy_error(missed, as_rows(solution.at(rows.xi)), freedom),
        adjoint_error=_square_error(adjoint, freedom, square(phi @ around.point.adjoint)),
        sensitivity_error=_square_error(sensitivity, freedom, sum(square(phi @ s) for s in moves)),
        scale=scale,
        value=Estimate.of(float(shares @ m[:, 0] + value.value[0]), value_error, freedom),
        fitted=fitted,
    )


def _square_error(products: Products, freedom: float, size: float) -> Estimate:
    """A mean square; zero where it is rounding of what it is an error of."""
    variance = max(products.variance(), 0.0) or float(products.covariance()[0, 0])  # where negative by chance, a floor
    square = Estimate.of_square(float(products.value[0]), variance, products.growth, freedom)
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


# -- exact lower-level solutions


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
        xi = np.asarray(rows.xi)
        place = np.arange(len(rows))
        if isinstance(domain, Finite):
            values, place = np.unique(np.asarray(domain.index(xi)), return_inverse=True)
            xi, place = np.asarray(domain.values)[values], place.ravel()
        return Contextual(study, at.point.x, xi, place, rows.shares(), law_at(study, xi, draws, key), pool.rows)

    def gradients(self, y: Policy, s: Sensitivity) -> GradientRows:
        """The rows of the gradient, ``d1 f + s^T d2 f``, for a policy and a sensitivity."""
        problem, count = self.study.problem, (self.study.upper.count or 1) if self.study.upper.crossed else 1
        sizes, derivatives = Sizes(*problem.sizes), RowDerivatives.upper(problem.upper, self.rows)
        table, by_data = np.zeros((len(self.place), 1 + sizes.dx + sizes.dy)), np.zeros((count, sizes.dx))
        for part, xi, eta in self.rows:  # all data of a context, then those of the next
            context, datum = np.divmod(np.arange(part.start, part.stop), count)
            at, first = self.place[context], np.flatnonzero(np.diff(context, prepend=-1))
            value, d1, d2 = sizes.split_upper(derivatives.block(self.x, y[at], part, xi, eta).astype(float))
            rows = d1 + np.einsum("na,naj->nj", d2, s[at])
            both = np.concatenate([value[:, None], rows, d2], axis=1)
            table[context[first]] += np.add.reduceat(both, first, axis=0) / count
            if self.study.upper.crossed:
                np.add.at(by_data, datum, self.shares[context][:, None] * rows)
        return GradientRows(*sizes.split_upper(table), by_data if self.study.upper.crossed else None)

    def covariance(self, by_context: np.ndarray, by_data: np.ndarray | None) -> Square:
        """Of the mean of rows: over independent ones; over contexts and over data where they are crossed."""
        return covariance_in_parts(self.study.upper, by_context, by_data, unbiased)


def measure_exactly(
    study: Study, solution: Solution, sampled: Galerkin, draws: int, key: Array, richer: Basis | None
) -> Measured:
    """Against true per-context solves, at the contexts of the upper level's samples, given the `sampled` problem."""
    at = Contextual.of(study, sampled, draws, key)
    exact, along = solve_along(study.problem, at.x, at.law)
    y = as_rows(exact.y)
    true = at.gradients(y, -_solved(along.hessian, along.cross))
    spread, freedom = _noise(at, y, true)
    conditional = at.law.keys is not None and not study.lower.crossed
    galerkin, local = _with_conditional_means(at, sampled, draws, key) if conditional else (sampled, None)
    policies = PolicyTable.of(galerkin.reduced, at.xi)
    policy = policies(galerkin.point.W)
    local = lower_along(study.problem, at.x, policy, at.law) if local is None else local
    own = -_solved(local.hessian, local.cross)
    within = np.tensordot(policies.phi, galerkin.sensitivity, axes=1)
    rows, rows_within = at.gradients(policy, own), at.gradients(policy, within)
    stated, reduced, own_mean = at.shares @ true.by_context, galerkin.point.gradient, at.shares @ rows.by_context
    adjoint = policies.phi @ galerkin.point.adjoint
    if study.shared and not at.study.upper.crossed:
        doubt = _difference_noise(at, galerkin, policies, local, true)
    else:
        by_data = None if true.by_data is None else true.by_data - rows_within.by_data
        doubt = at.covariance(true.by_context - rows_within.by_context, by_data)
    norms = lambda s: np.einsum("naj,nab,nbj->n", s, local.hessian, s, optimize=True)[at.place]
    lost = mean_estimate(norms(own - within), at.shares).beyond_rounding(float(np.mean(norms(own))))
    off = np.sum((y - as_rows(solution.at(at.xi))) ** 2, axis=1) - np.asarray(exact.noise, float)
    return Measured(
        gradient=NoisyVector(stated, spread),
        reduced=NoisyVector(reduced, at.covariance(rows_within.by_context, rows_within.by_data)),
        freedom=freedom,
        compared="exact lower-level solutions at each context",
        trouble=trouble_with(exact) if sampled.point.sound else f"the {UNSOLVED}",
        difference=NoisyVector(stated - reduced, doubt),
        parts={"policy": stated - own_mean, "adjoint and sensitivity": own_mean - reduced},
        policy_error=mean_estimate(off[at.place], at.shares, least=0.0),
        adjoint_error=_adjoint_error(at, solution, local.hessian, policies.phi, adjoint, rows.d2, richer),
        sensitivity_error=lost,
        scale=float(np.sqrt(at.shares @ np.sum(true.by_context**2, axis=1))),
        value=mean_estimate(true.value, at.shares),
    )


def _noise(at: Contextual, y: Policy, true: GradientRows) -> tuple[Square, float]:
    """The covariance of the gradient at the exact solutions ``y``, and its degrees of freedom.

    Where the law of the lower noise is itself known from data only, groups of these are left out as well.
    """
    law, shared, crossed = at.law, at.study.shared, at.study.upper.crossed
    over_rows = at.covariance(true.by_context, true.by_data)
    if law.rows == 1 or law.keys is not None:
        return over_rows, np.inf if crossed else freedom_of(at.shares)
    group, means = split_rows(law.rows, np.random.default_rng(0)), []
    shares = np.full(law.rows, 1 / law.rows) if crossed else at.shares
    for k in range(group.max() + 1):
        part = law.without(group == k)
        near = as_rows(solve_each(at.study.problem, at.x, part, start=y).y)
        along = lower_along(at.study.problem, at.x, near, part)
        rows = at.gradients(near, -_solved(along.hessian, along.cross))
        table = rows.by_context if rows.by_data is None else rows.by_data
        means.append(without(shares, group, k) @ table if shared else at.shares @ rows.by_context)
    spread = jackknife(np.stack(means))
    if shared:  # what was left out were the upper level's data too; contexts, where they are drawn apart, were not
        over_rows = at.covariance(true.by_context, None) if crossed else 0.0
    return spread + over_rows, float(group.max())


def _newton_step(
    W: np.ndarray, phi: np.ndarray, shares: np.ndarray, local: LowerRows
) -> tuple[Float[np.ndarray, "N dy"], Float[np.ndarray, "N dy dx"], Float[np.ndarray, "M M"]]:
    """A Newton step for the coefficients, the sensitivity and the Hessian there, from derivatives along the policy."""
    H = galerkin_matrix(phi, local.hessian * shares[:, None, None])
    rows = np.concatenate([local.slope[:, :, None], local.cross], axis=2) * shares[:, None, None]
    moves = _solved(H, (phi.T @ rows.reshape(len(phi), -1)).reshape(W.size, -1))
    return W - moves[:, 0].reshape(W.shape), -moves[:, 1:].reshape(*W.shape, -1), H


def _solved(H: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``H^-1 right``, of one matrix or each of many; NaN where there is no inverse, as where a group of samples holds
    all those of a cell, or the lower level has no curvature at a context."""
    try:
        return np.linalg.solve(H, right)
    except np.linalg.LinAlgError:
        return np.full_like(right, np.nan) if H.ndim == 2 else np.stack(list(map(_solved, H, right)))


def _with_conditional_means(
    at: Contextual, galerkin: Galerkin, draws: int, key: Array
) -> tuple[Galerkin, LowerRows | None]:
    """The reduced problem with conditional means in place of the samples' noise, by Newton steps from its solution; and
    derivatives along its policy, where its contexts are the upper level's.

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
    moved = replace(galerkin.point, W=W, adjoint=v, gradient=at.shares @ rows.by_context, sensitivity=s, hessian=H)
    settled = length <= np.sqrt(study.eps) * np.linalg.norm(W)  # else they are those of the policy before
    return replace(galerkin, point=moved), local if study.shared and settled else None


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
    at: Contextual, solution: Solution, A: np.ndarray, own: np.ndarray, v: Policy, d2: np.ndarray, richer: Basis | None
) -> Estimate:
    r"""$|v - Pv|^2$ in the norm of $A$, given the basis's functions, $Pv$ and rows of $\partial_2 f$.

    From single noisy rows it is as seen by a richer basis: with $\rho_i = \Phi_+ (\partial_2 f - A\, Pv)$ it is
    $E[\rho]^T H_+^{-1} E[\rho]$, and products of a row with itself, which hold the noise, are left out of the double
    sum. Rows count without what the basis itself can follow: the mean of that the fit has made zero.
    """
    A, v, domain, shares = A[at.place], v[at.place], at.study.problem.domain, at.shares
    if at.study.upper.crossed or not at.study.upper_noise:
        off = _solved(A, d2[..., None])[..., 0] - v
        return mean_estimate(np.einsum("na,nab,nb->n", off, A, off, optimize=True), shares)
    if not measurable(shares):
        return Estimate.of(np.nan, np.nan, least=0.0)
    xi = domain.snap(put(at.xi[at.place]), at.study.dtype)
    basis = solution.basis if richer is None else richer.fit(domain, xi, put(shares.astype(at.study.dtype)))
    phi, residual = np.asarray(basis.at(xi), float), d2 - np.einsum("nab,nb->na", A, v)
    spread, vectors = np.linalg.eigh(galerkin_matrix(phi, A * shares[:, None, None]))
    kept = spread > slope_accuracy(at.study.eps) * spread[-1]
    white = scores(phi, residual) @ (vectors[:, kept] / np.sqrt(spread[kept]))
    within = np.kron(np.linalg.lstsq(phi, own[at.place], rcond=None)[0], np.eye(v.shape[1]))
    followed = np.linalg.qr((vectors[:, kept] * np.sqrt(spread[kept])).T @ within)[0]
    white = white - (white @ followed) @ followed.T
    total = shares @ white
    square = (total @ total - np.sum(shares**2 * np.sum(white**2, axis=1))) / (1 - np.sum(shares**2))
    error = 2 * np.sqrt(np.sum(shares**2 * (white @ total - total @ total) ** 2))
    noise = np.sqrt(2 * np.sum((white.T * shares**2 @ white) ** 2))
    return Estimate.of(square, float(np.hypot(error, noise)), freedom_of(shares), least=0.0)
