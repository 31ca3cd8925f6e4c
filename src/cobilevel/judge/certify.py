"""``certify``: is this point stationary for the problem as stated, and is the basis rich enough? Measured."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool
from scipy import special

from ..answer import Solution, as_solved, check_levels, share_seen
from ..basis import Basis, Orthonormal, richer_basis
from ..derivatives import RowDerivatives, flattened, shaped_like
from ..ground import as_key, as_rows, entered, put, whole
from ..inference import (
    MOST_NUMBERS,
    TOO_MANY,
    Around,
    Galerkin,
    Missed,
    determined,
    flat_directions,
    look_around,
    names_of,
    rows_of,
    slope_accuracy,
    too_large,
    too_large_for_products,
    what_is_missed,
)
from ..lower import MISSING, feasibility_of, law_is_known
from ..problem import Bounds, Data, Finite, Problem
from ..reduction import DENSE_LIMIT, is_formed, nodes_for, reduce_with
from ..study import Study, precision_for
from .by_products import mean_values, measure_by_products
from .certificate import Certificate, Constants, Regret
from .comparison import (
    Measured,
    NoisyVector,
    measure_against_richer,
    measure_by_neighbours,
    measure_exactly,
    measure_reduced,
)
from .evaluate import DRAWS_WANTED, to_judge
from .intervals import Estimate, length_around, mean_estimate, norm_estimate

_CHANCE = 1e-6  # probability of a gradient as small on fresh samples: below, these are the ones it was solved from
_SAME_SAMPLES = "these are the samples it was solved from, so intervals show what noise leaves open, not the error"
_UNSURE = "the gradient, or its noise, could not be measured: too few samples, or NaN in upper or lower at the policy"

MODES = ("exact", "neighbours", "enriched", "held-out")


def certify(
    problem: Problem,
    solution: Solution,
    samples: Data,
    mode: str | None = None,
    constants: Constants | None = None,
    draws: int = 256,
    key: Any = 0,
    precision: str | None = None,
) -> Certificate:
    """Measures how good ``solution.x`` and its policy are for the contextual problem.

    **Arguments:**

    - `problem`, `solution`: the problem, and its solution.
    - `samples`: data to judge by. Use fresh samples: on those it was solved from, the figures are too optimistic.
    - `mode`: by default the first that is possible. ``"exact"``: true lower-level solutions at each context (no noise
      in the lower level, ``Product`` data, or ``problem.conditional``). ``"neighbours"``: joint samples only, by
      products of the residuals of neighbouring samples; it sees structure as fine as the spacing of the samples.
      ``"enriched"``: compared with a basis of about twice the functions; it sees only what that basis can express.
      ``"held-out"``: the reduced problem and the lower objective on these samples, nothing else.
    - `constants`: Lipschitz constants, to evaluate the corrected theorem's bound.
    - `draws`, `key`: draws of noise per context if ``problem.conditional`` is used, and their seed.
    - `precision`: ``"single"`` or ``"double"``; by default double, whatever JAX's setting.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> certificate = cb.certify(case.problem, solution, case.test)
    >>> certificate.mode, certificate.samples
    ('exact', 300)
    >>> certificate.regret is not None
    True
    """
    entered("certify", problem, samples, key)
    wanted = precision_for(problem, samples, precision)
    whole("draws", draws, 2, DRAWS_WANTED)
    if constants is not None and not isinstance(constants, Constants):
        raise TypeError(f"constants must be cb.Constants(f0=..., f1=..., g1=..., g2=..., mu=...), got {constants!r}.")
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, or None (chosen automatically); got {mode!r}.")
    with wanted.context():
        study = Study.of(as_solved(problem, solution), samples, wanted)
        check_levels("certify", solution, study)
        certificate = _certified(study, to_judge("certify", study, solution), mode, constants, draws, as_key(key))
        seen = share_seen(solution.objectives, study)
    gradient, parts = put(wanted.back(jax.tree.map(np.asarray, (certificate.gradient, certificate.parts))))
    trouble = certificate.trouble
    if seen and _SAME_SAMPLES not in trouble:
        overlap = f"{seen:.0%} of these samples are among those it was solved from, so it looks better than it is"
        trouble = "; ".join(filter(None, (trouble, overlap)))
    return replace(certificate, gradient=gradient, parts=parts, trouble=trouble)


@np.errstate(over="ignore", invalid="ignore")  # of a lower level without minimum; what is not finite is not sound
def _certified(
    study: Study, solution: Solution, mode: str | None, constants: Constants | None, draws: int, key: Any
) -> Certificate:
    """The certificate, in the precision of the study."""
    study, basis, (_, dy) = study.finite(key), solution.basis, study.problem.sizes
    formed = is_formed(basis.size, study.problem.sizes, basis.one_hot, study.lower.crossed)
    most = study.lower.contexts().supported(study.noisy)
    if formed:
        most = min(most, DENSE_LIMIT // dy)
    else:
        study = study.with_nodes(2 * nodes_for(basis))
    richer = richer_basis(solution.basis.basis, study.problem.domain, solution.basis.size, most)
    richer = richer if richer is None or isinstance(richer, Orthonormal) else Orthonormal(richer)
    impossible = _impossible(study, solution, richer, formed)
    mode = next(name for name in MODES if not impossible[name]) if mode is None else mode
    if impossible[mode]:
        raise ValueError(f'mode="{mode}" is not possible: {impossible[mode]}')
    reduced = reduce_with(study, solution.basis, solution.W).whitened()
    wide = too_large(study, mode == "neighbours")
    crossed = formed and (mode in ("exact", "enriched") or not too_large_for_products(study))
    at, missed, left_out = Galerkin.at(reduced, flattened(solution.x), crossed=crossed), None, []
    around = (too_large_for_products(study) if wide else "") if formed else TOO_MANY
    around = around or look_around(study, at, wide, pairs=mode == "neighbours")
    if isinstance(around, str):
        around, left_out = None, [f"the regret, since {around}"]
    if mode == "exact" or (mode == "enriched" and not formed):
        study.check_conditional()
    if mode == "neighbours" and around is not None:
        missed = what_is_missed(around)
        measured = measure_by_neighbours(study, solution, around, missed)
    elif mode not in ("exact", "enriched"):
        measured = measure_reduced(study, at, around)
    elif not formed:
        measured = measure_by_products(study, solution, at, draws, key, None if mode == "exact" else richer)
    elif mode == "enriched" and richer is not None:
        measured = measure_against_richer(study, solution, at, richer)
    else:
        measured = measure_exactly(study, solution, at, draws, key, richer)
    if around is not None and not around.sound:
        around, left_out = None, ["the regret, since near x the reduced problem cannot be solved on these samples"]
    if around is not None and measured.fitted is None:  # the noise of policy and adjoint counted
        measured = replace(measured, reduced=NoisyVector(measured.reduced.mean, around.gradient_covariance()))
    joint = too_large(study, True)
    if joint and impossible["neighbours"] == f"{joint}.":
        left_out.append(f"products of neighbouring samples, since {joint}")
    lower_loss = _lower_loss(study, solution, at, formed)
    found = _certificate(study, solution, measured, mode, around, missed, constants, lower_loss)
    if around is not None and found.regret is None and not found.unresolved:
        left_out.append("the regret, since on these samples the curvature of F is not clear of its noise")
    return replace(found, left_out="; ".join(left_out))


def _lower_loss(study: Study, solution: Solution, at: Galerkin, formed: bool) -> Estimate:
    """The mean of ``g``, without a barrier, along the policy."""
    rows, level, constrained = study.lower.contexts(), study.lower, study.constrained
    if not formed:
        values = mean_values(at.reduced.ordinary(), put(solution.x), at.reduced.W0, False)
        return mean_estimate(values, rows.shares())
    x, count = flattened(solution.x), (level.count or 1) if level.crossed else 1
    y = np.repeat(as_rows(solution.at(rows.xi)), count, axis=0)
    if constrained is None:
        values, _ = at.expansions.lower_slopes(x, y)
    else:
        slopes = RowDerivatives.upper(constrained.lower, at.expansions.lower_pools[0].rows)
        values = slopes.table(x, y, lambda packed, _: packed[:, 0])
    return mean_estimate(values.reshape(len(rows), count).mean(axis=1), rows.shares())


def _impossible(study: Study, solution: Solution, richer: Basis | None, formed: bool) -> dict[str, str]:
    """For each mode why it is not possible, empty where it is; `formed`: whether there are matrices."""
    d_x, d_y = study.problem.sizes
    contexts, coefficients = len(study.upper.contexts()), solution.basis.size * d_y
    large = "" if coefficients <= DENSE_LIMIT else f"N d_y = {coefficients} coefficients are more than {DENSE_LIMIT}."
    unknown = "" if law_is_known(study) else f"{MISSING[0].upper()}{MISSING[1:]}"
    many = f"second derivatives of {d_y} x {d_y + d_x} at {contexts} contexts do not fit in memory."
    many = many if contexts * d_y * (d_y + d_x) > MOST_NUMBERS else ""
    crossing = rows_of(study)[1] * d_y * d_x > MOST_NUMBERS or d_x > DENSE_LIMIT
    slow = f"derivatives of {d_y} x {d_x} numbers at each sample do not fit in memory." if crossing else ""
    estimated = ""
    if not unknown and study.shared and study.noisy and study.problem.conditional is None:
        estimated = 'the lower level\'s solutions would be estimates from few samples; "neighbours" allows for that.'
    lacking = "" if study.shared else "the two levels see different samples."
    lacking = lacking if study.noisy else "the lower level has no noise that neighbours could average out."
    if study.barred:
        lacking = lacking or "a barrier bends too sharply for products of noisy samples to show it."
    wide = too_large(study, True)
    crossed = "it needs joint samples, but these are Product data."
    crossed = crossed if study.upper.crossed or study.lower.crossed else ""
    alone = "the samples support no richer basis, or there is none." if richer is None else ""
    if not formed:
        many = slow = ""
        large = f"N d_y = {coefficients} coefficients are too many for matrices."
        if isinstance(study.problem.domain, Finite) and not study.lower.crossed:
            unknown = unknown or "a function for each sample would have too many coefficients."
    return {
        "exact": unknown or estimated or many,
        "neighbours": ("" if formed else large) or crossed or lacking or (f"{wide}." if wide else ""),
        "enriched": crossed or alone or slow,
        "held-out": "",
    }


def _certificate(
    study: Study,
    solution: Solution,
    measured: Measured,
    mode: str,
    around: Around | None,
    missed: Missed | None,
    constants: Constants | None,
    lower_loss: Estimate,
) -> Certificate:
    """The figures of merit, from what was measured."""
    as_x = lambda vector: put(shaped_like(solution.x, vector[None], study.dtype, 0))
    bounds, difference = study.problem.bounds, measured.difference
    limits = Bounds(flattened(bounds.lo), flattened(bounds.hi))
    free = limits.free(flattened(solution.x), measured.gradient.mean) if around is None else around.free()
    rounding = (slope_accuracy(study.eps) * measured.scale) ** 2 / max(len(free), 1)
    widened = lambda g: g._replace(covariance=g.covariance + rounding * np.eye(len(g.covariance)))
    measured = replace(measured, gradient=widened(measured.gradient), reduced=widened(measured.reduced))
    same = _solved_from_these(measured, free)
    norm = lambda vector: _length(*vector.on(free), measured.freedom, same)
    value, reduced_norm, bound, unknown = measured.value, norm(measured.reduced), None, measured.unknown
    plain = None if around is None else Estimate.of(around.point.value, around.value_error())
    value = None if unknown else plain if value is None else value
    gap = None if difference is None else norm_estimate(*difference.on(np.ones_like(free)), measured.freedom)
    if constants is not None and measured.policy_error is not None:
        known: Any = measured  # all three errors or none
        spread = float(np.sqrt(known.adjoint_error.high * known.sensitivity_error.high))
        bound = reduced_norm.high + constants.policy * float(np.sqrt(measured.policy_error.high)) + spread
    unsure = "" if unknown or np.all(np.isfinite(measured.gradient.covariance)) else _UNSURE
    return Certificate(
        gradient_norm=norm(measured.gradient),
        reduced_gradient_norm=reduced_norm,
        policy_error=measured.policy_error,
        adjoint_error=measured.adjoint_error,
        sensitivity_error=measured.sensitivity_error,
        hypergradient_gap=gap,
        lower_loss=lower_loss,
        gradient=as_x(measured.gradient.mean),
        parts={name: as_x(part) for name, part in measured.parts.items()},
        mode=mode,
        compared=measured.compared,
        bound=bound,
        samples=study.upper.count or 0,
        blocked=int(np.sum(~free)),
        trouble="; ".join(filter(None, (measured.trouble, unsure, _SAME_SAMPLES if same else ""))),
        objective=value,
        reduced_objective=plain if unknown else None,
        regret=None if unknown or around is None else _regret(measured, around, missed, free, same),
        typical=measured.scale or float("nan"),
        unresolved=unknown,
        names=names_of(study.problem.x0),
        feasibility=feasibility_of(study, solution)[0],
    )


def _solved_from_these(measured: Measured, free: Bool[np.ndarray, " dx"]) -> bool:
    """Whether the gradient on these samples is smaller than chance allows: they are those ``x`` was found from."""
    part = measured.reduced if measured.fitted is None else measured.fitted
    g, noise = part.on(free)
    if not len(g) or not np.all(np.isfinite(noise)) or not np.trace(noise) > 0:
        return False
    unit = 1 / np.sqrt(np.maximum(np.diag(noise), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(noise * np.outer(unit, unit))
    kept = values > 1e-9 * values[-1]  # beyond rounding
    size = np.sum((vectors[:, kept].T @ (g * unit)) ** 2 / values[kept])
    return bool(size < special.chdtri(kept.sum(), 1 - _CHANCE))


def _length(mean: np.ndarray, covariance: np.ndarray, freedom: float, same: bool) -> Estimate:
    """The length of a noisy vector; `same`: ``x`` was found from the same samples, on which the gradient is zero
    whatever it is elsewhere, and so lies around its estimate as the noise says."""
    return (length_around if same else norm_estimate)(mean, covariance, freedom)


def _regret(measured: Measured, around: Around, missed: Missed | None, free: np.ndarray, same: bool) -> Regret | None:
    r"""How much lower the objective could be at a decision nearby.

    With the gradient $g$ of $F$ at ``x`` and its curvature $H$ on the directions that are determined, a Newton step
    $-H^{-1} g$ leads to the minimum of the quadratic there, which lies $\tfrac12 g^T H^{-1} g$ lower.
    """
    if not free.any():
        return None
    lost, unit, hessian = np.concatenate(flat_directions(around, free, missed)[:2]), around.unit[free], around.hessian()
    basis = unit[:, None] * determined(lost[:, free], unit)
    inside = np.ix_(free, free)
    curves = lambda matrix: np.linalg.eigh(basis.T @ matrix[inside] @ basis)
    values, vectors = curves(hessian)
    if missed is not None:  # what the basis and the fit hide of the curvature along each coordinate
        stated = hessian + np.diag(around.bend(missed.total.points) / around.lengths / around.lengths)
        if np.all(np.isfinite(stated[inside])) and np.all(curves(stated)[0] > 0):
            values, vectors = curves(stated)
    kept = values > 1e-9 * np.max(np.abs(values), initial=0)
    if not kept.any():
        return None
    turn = np.zeros((int(kept.sum()), len(free)))
    turn[:, free] = (basis @ (vectors[:, kept] / np.sqrt(values[kept]))).T
    gained = lambda vector, same: _length(*vector.through(turn), measured.freedom, same).half_square()
    inverse = turn.T @ turn
    moved, covariance = measured.gradient.through(inverse)
    return Regret(
        total=gained(measured.gradient, same),
        sampling=gained(measured.reduced, same),
        basis=None if measured.difference is None else gained(measured.difference, False),
        step=-moved,
        step_error=np.sqrt(np.maximum(np.diag(covariance), 0)),
    )
