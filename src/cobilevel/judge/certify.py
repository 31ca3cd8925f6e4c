"""``certify``: is this point stationary for the problem as stated, and is the basis rich enough? Measured."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from .. import trees
from ..answer import Solution, as_solved, names_of
from ..basis import Basis, Orthonormal, richer_basis
from ..checks import entered, whole
from ..derivatives import Expansions, RowDerivatives, flattened, shaped_like
from ..inference import Around, infer_flat, look_around, too_large
from ..keys import as_key
from ..lower import DENSE_LIMIT, MISSING, feasibility_of, law_is_known
from ..problem import Bounds, Data, Problem, Study, precision_for
from ..programs import put
from ..reduction import reduce_with
from .against_exact import measure_exactly
from .by_neighbours import measure_by_neighbours
from .certificate import Certificate, Constants
from .evaluate import DRAWS_WANTED, in_precision_of
from .galerkin import Galerkin, measure_against_richer, measure_reduced
from .intervals import Estimate, mean_estimate, norm_estimate
from .measured import Measured, NoisyVector, as_rows
from .regret import length_estimate, regret_of, solved_from_these

_MOST_DERIVATIVES = 2e8  # numbers held for second derivatives context by context: 1.6 GB
_WIDEST_Y = 512  # the largest y whose Hessian is taken context by context
_ROUNDING = 2 / 3  # the power of the precision, relative to single rows, that gradients are trusted to
_SAME_SAMPLES = "these are the samples it was solved from, so intervals say what noise leaves open and show no error"
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

    - `samples`: data to judge by; others than those it was solved from, or the figures are too optimistic.
    - `mode`: by default the first that is possible. ``"exact"``: true lower-level solutions at each context (no noise
      in the lower level, ``Product`` data, or ``problem.conditional``). ``"neighbours"``: joint samples only, by
      products of the residuals of neighbouring ones; it sees structure as fine as the samples lie. ``"enriched"``:
      compared with a basis of about twice the functions; it sees what that basis can express and no more.
      ``"held-out"``: the reduced problem and the lower objective on these samples, nothing else.
    - `constants`: Lipschitz constants, to evaluate the corrected theorem's bound.
    - `draws`, `key`: draws of noise at a context where ``problem.conditional`` is used, and their seed.
    - `precision`: ``"single"`` or ``"double"``; double when left out, whatever JAX is switched to.
    """
    entered("certify", problem, samples, key)
    wanted = precision_for(problem, samples, precision)
    whole("draws", draws, 2, DRAWS_WANTED)
    if constants is not None and not isinstance(constants, Constants):
        raise TypeError(f"constants must be cb.Constants(f0=..., f1=..., g1=..., g2=..., mu=...), got {constants!r}.")
    with wanted.context():
        study = Study.of(as_solved(problem, solution), samples, wanted)
        found = _certified(study, solution, mode, constants, draws, key)
    gradient, parts = put(wanted.back(jax.tree.map(np.asarray, (found.gradient, found.parts))))
    return replace(found, gradient=gradient, parts=parts)


def _certified(
    study: Study, solution: Any, mode: str | None, constants: Constants | None, draws: int, key: Any
) -> Certificate:
    """The certificate, in the precision of the study."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, or None to have it chosen; got {mode!r}.")
    solution, base = in_precision_of(study, solution), as_key(key)
    if not bool(trees.finite((solution.x, solution.W))):
        raise ValueError("solution holds NaN or infinity, so there is nothing to certify; see solution.result.")
    study = study.finite(base)
    richer = _richer(study, solution)
    impossible = _impossible(study, solution, richer)
    mode = next(name for name in MODES if not impossible[name]) if mode is None else mode
    if impossible[mode]:
        raise ValueError(f'mode="{mode}" is not possible: {impossible[mode]}')
    if mode == "exact":
        study.check_conditional()
    reduced, around = reduce_with(study, solution.basis, solution.W).whitened(), None
    if not too_large(study, study.problem.sizes[0], mode == "neighbours"):
        around = look_around(study, reduced, solution.x, mode == "neighbours")
    at = Galerkin.of(around, reduced, flattened(solution.x), mode in ("exact", "enriched"))
    if mode == "exact":
        found = measure_exactly(study, solution, at, draws, base, richer)
    elif mode == "neighbours" and around is not None:
        found = measure_by_neighbours(study, solution, around)
    elif mode == "enriched" and richer is not None:
        found = measure_against_richer(study, solution, at, richer)
    else:
        found = measure_reduced(at)
    loss = _lower_loss(study, solution, at.expansions)
    return _certificate(study, solution, _with_noise_of(around, found), mode, around, constants, loss)


def _lower_loss(study: Study, solution: Solution, at: Expansions) -> Estimate:
    """The mean of ``g``, without a barrier, along the policy."""
    rows, level, constrained = study.lower.contexts(), study.lower, study.constrained
    x, count = flattened(solution.x), (level.count or 1) if level.crossed else 1
    y = np.repeat(as_rows(solution.policy(rows.xi)), count, axis=0)
    if constrained is None:
        values, _ = at.lower_slopes(x, y)
    else:
        slopes = RowDerivatives.upper(constrained.lower, at.lower_pools[0].rows)
        values = slopes.table(x, y, lambda packed, _: packed[:, 0])
    return mean_estimate(values.reshape(len(rows), count).mean(axis=1), rows.shares())


def _with_noise_of(around: Around | None, found: Measured) -> Measured:
    """The reduced gradient with the noise of policy and adjoint counted, where that was found out."""
    if around is None or found.fitted is not None or not around.sound:
        return found
    upper, lower = (rows / around.lengths for rows in around.scores())
    return replace(found, reduced=NoisyVector(found.reduced.mean, around.covariance((upper, lower))))


def _richer(study: Study, solution: Solution) -> Basis | None:
    """A richer basis that the samples support, if any."""
    most = min(study.lower.contexts().supported(study.noisy), DENSE_LIMIT // study.problem.sizes[1])
    richer = richer_basis(solution.basis.basis, study.problem.domain, solution.basis.size, most)
    return richer if richer is None or isinstance(richer, Orthonormal) else Orthonormal(richer)


def _impossible(study: Study, solution: Solution, richer: Basis | None) -> dict[str, str]:
    """For each mode why it is not possible, empty where it is."""
    d_x, d_y = study.problem.sizes
    contexts, coefficients = len(study.upper.contexts()), solution.basis.size * d_y
    large = "" if coefficients <= DENSE_LIMIT else f"N d_y = {coefficients} coefficients are more than {DENSE_LIMIT}."
    unknown = "" if law_is_known(study) else f"{MISSING[0].upper()}{MISSING[1:]}"
    many = ""
    if d_y > _WIDEST_Y or contexts * d_y * (d_y + d_x) > _MOST_DERIVATIVES:
        many = f"second derivatives of {d_y} x {d_y + d_x} at {contexts} contexts do not fit."
    estimated = ""
    if not unknown and study.noisy and study.problem.conditional is None:
        estimated = 'the lower level\'s solutions would themselves be estimates from few samples; "neighbours" knows.'
    lacking = "" if study.shared else "the two levels see different samples."
    lacking = lacking if study.noisy else "the lower level has no noise that neighbours could average out."
    wide = too_large(study, d_x, True)
    lacking = lacking or (f"{wide}." if wide else "")
    crossed = "it compares on joint samples, and these are Product data."
    crossed = crossed if study.upper.crossed or study.lower.crossed else ""
    alone = "the samples support no richer basis, or there is none." if richer is None else ""
    return {
        "exact": unknown or (estimated if study.shared else "") or many or large,
        "neighbours": ("" if solution.basis.one_hot else large) or crossed or lacking,
        "enriched": large or crossed or alone,
        "held-out": "",
    }


_COMPARED = {
    "exact": "exact lower-level solutions at each context",
    "held-out": "nothing beyond this basis: the gradient is the reduced problem's",
}


def _certificate(
    study: Study,
    solution: Solution,
    found: Measured,
    mode: str,
    around: Around | None,
    constants: Constants | None,
    lower_loss: Estimate,
) -> Certificate:
    """The figures of merit, from what was measured."""
    as_x = lambda vector: put(shaped_like(solution.x, vector[None], study.dtype, 0))
    errors, difference = found.errors, found.difference
    free = _free(study, solution, found.gradient.mean) if around is None or not around.sound else around.free()
    found = _rounded(found, study)
    same = solved_from_these(found, free)
    select = np.eye(len(free))[free]
    norm = lambda vector: length_estimate(vector, select, found.freedom, same)
    regret, value = None, found.value
    if around is not None and around.sound:
        flat = infer_flat(around)
        regret = regret_of(found, around.hessian(), flat, free, same)
        value = _value(around) if value is None else value
    gap = None if difference is None else norm_estimate(difference.mean, difference.covariance, found.freedom)
    reduced_norm = norm(found.reduced)
    bound = None
    if constants is not None and errors is not None:
        spread = float(np.sqrt(errors.adjoint.high * errors.sensitivity.high))
        bound = reduced_norm.high + constants.policy * float(np.sqrt(errors.policy.high)) + spread
    trouble = [found.trouble] if found.trouble else []
    trouble += [] if np.all(np.isfinite(found.gradient.covariance)) else [_UNSURE]
    trouble += [_SAME_SAMPLES] if same else []
    return Certificate(
        gradient_norm=norm(found.gradient),
        reduced_gradient_norm=reduced_norm,
        policy_error=None if errors is None else errors.policy,
        adjoint_error=None if errors is None else errors.adjoint,
        sensitivity_error=None if errors is None else errors.sensitivity,
        hypergradient_gap=gap,
        lower_loss=lower_loss,
        gradient=as_x(found.gradient.mean),
        parts={name: as_x(part) for name, part in found.parts.items()},
        mode=mode,
        compared=found.compared or _COMPARED[mode],
        bound=bound,
        samples=study.upper.count or 0,
        blocked=int(np.sum(~free)),
        trouble="; ".join(trouble),
        objective=value,
        regret=regret,
        typical=found.scale or float("nan"),
        unresolved=found.unresolved,
        names=names_of(study.problem.x0),
        feasibility=feasibility_of(study, solution)[0],
    )


def _free(study: Study, solution: Solution, gradient: Float[np.ndarray, " dx"]) -> np.ndarray:
    """The coordinates that no bound holds."""
    bounds = study.problem.bounds
    return Bounds(flattened(bounds.lo), flattened(bounds.hi)).free(flattened(solution.x), gradient)


def _rounded(found: Measured, study: Study) -> Measured:
    """With what rounding adds to the noise of the gradients."""
    count = len(found.gradient.mean)
    more = (study.eps**_ROUNDING * found.scale) ** 2 / max(count, 1) * np.eye(count)
    widened = lambda vector: NoisyVector(vector.mean, vector.covariance + more)
    return replace(found, gradient=widened(found.gradient), reduced=widened(found.reduced))


def _value(around: Around) -> Estimate:
    """The reduced objective, with its noise."""
    rows = around.solved.rows
    spread = around.covariance((around.at_x(rows.f)[:, None], -around.at_x(rows.vr)[:, None]))
    return Estimate.of(float(around.solved.value[0]), float(np.sqrt(spread[0, 0])))
