"""``certify``: is this point stationary for the problem as stated, and is the basis rich enough? Measured."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .. import trees
from ..answer import Solution
from ..basis import Basis, Orthonormal, richer_basis
from ..keys import as_key
from ..lower import DENSE_LIMIT, MISSING, law_is_known
from ..problem import Data, Problem, Study, precision_for
from .against_exact import measure_exactly
from .against_richer import measure_against_richer
from .certificate import Certificate, Constants
from .evaluate import in_precision_of, mean_loss
from .galerkin import measure_reduced
from .intervals import norm_estimate
from .jackknife import GROUPS
from .measured import Measured, NoisyVector

_MOST_DERIVATIVES = 2e8  # numbers held for second derivatives context by context: 1.6 GB
_WIDEST_Y = 512  # the largest y whose Hessian is taken context by context
_ROUNDING = 2 / 3  # the power of the precision, relative to single rows, that gradients are trusted to
_UNSURE = "the gradient, or its noise, could not be measured: too few samples, or NaN in upper or lower at the policy"

MODES = ("exact", "enriched", "held-out")


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
      in the lower level, ``Product`` data, a ``Finite`` domain, or ``problem.conditional``). ``"enriched"``: joint
      samples only, compared with a basis of about twice the functions; it sees what that basis can express and no more.
      ``"held-out"``: the reduced problem and the lower objective on these samples, nothing else.
    - `constants`: Lipschitz constants, to evaluate the corrected theorem's bound.
    - `draws`, `key`: draws of noise at a context where ``problem.conditional`` is used, and their seed.
    - `precision`: ``"single"`` or ``"double"``; double when left out, whatever JAX is switched to.
    """
    wanted = precision_for(problem, samples, precision)
    with wanted.context():
        study = Study.of(problem, samples, wanted)
        found = _certified(study, solution, mode, constants, draws, key)
    gradient, parts = wanted.back((found.gradient, found.parts))
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
        found = measure_exactly(study, solution, draws, base, richer)
        compared = "exact lower-level solutions at each context"
    elif mode == "enriched" and richer is not None:
        found = measure_against_richer(study, solution, richer)
        compared = repr(richer)
    else:
        found = measure_reduced(study, solution)
        compared = "nothing beyond this basis: the gradient is the reduced problem's"
    return _certificate(study, solution, found, mode, compared, constants)


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
    crossed = "it compares on joint samples, and these are Product data."
    crossed = crossed if study.upper.crossed or study.lower.crossed else ""
    alone = "the samples support no richer basis, or there is none." if richer is None else ""
    return {"exact": unknown or many or large, "enriched": large or crossed or alone, "held-out": ""}


def _certificate(
    study: Study, solution: Solution, found: Measured, mode: str, compared: str, constants: Constants | None
) -> Certificate:
    """The figures of merit, from what was measured."""
    x, unravel = ravel_pytree(solution.x)
    as_x = lambda vector: unravel(jnp.asarray(vector, x.dtype))
    gradient, errors = found.gradient.mean, found.errors
    free = np.asarray(study.problem.bounds.flat().free(x, jnp.asarray(gradient, x.dtype)))
    rounding = (study.eps**_ROUNDING * found.scale) ** 2 / max(len(x), 1) * np.eye(len(x))

    def norm(vector: NoisyVector):
        return norm_estimate(vector.mean[free], (vector.covariance + rounding)[np.ix_(free, free)], found.freedom)

    difference = found.difference
    bound = None
    if constants is not None and errors is not None:
        spread = float(np.sqrt(errors.adjoint.high * errors.sensitivity.high))
        bound = float(np.linalg.norm(found.reduced.mean[free])) + constants.policy * errors.distance + spread
    policy = solution.policy(study.lower.contexts().xi)
    return Certificate(
        gradient_norm=norm(found.gradient),
        reduced_gradient_norm=norm(found.reduced),
        policy_error=None if errors is None else errors.policy,
        adjoint_error=None if errors is None else errors.adjoint,
        sensitivity_error=None if errors is None else errors.sensitivity,
        hypergradient_gap=None
        if difference is None
        else norm_estimate(difference.mean, difference.covariance, GROUPS - 1.0, cautious=True),
        lower_loss=mean_loss(study.problem.lower, solution.x, policy, study.lower),
        gradient=as_x(gradient),
        parts={name: as_x(part) for name, part in found.parts.items()},
        mode=mode,
        compared=compared,
        bound=bound,
        samples=study.upper.count or 0,
        blocked=int(np.sum(~free)),
        trouble=found.trouble or ("" if np.all(np.isfinite(found.gradient.covariance)) else _UNSURE),
    )
