"""``certify``: is this point stationary for the problem as stated, and is the basis rich enough? Measured."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..basis.richer import enrich
from ..basis.whitening import Orthonormal
from ..keys import as_key
from ..lower.damped_newton import DENSE_LIMIT
from ..lower.per_context import MISSING
from ..problem.data import Data, Product, Samples, Stream, levels, without_idle
from ..problem.domain import Finite
from ..problem.problem import Problem
from ..problem.study import check, lower_depends_on_noise
from ..reduction.batches import contexts_of
from ..reduction.solution import Solution, check_solution
from .certificate import Certificate, Constants
from .enriched_gap import enriched_gap, reduced_gap
from .estimates import freedom_of, mean_estimate, norm_estimate
from .evaluate import losses
from .exact_gap import exact_gap
from .gap import GROUPS, Gap

_STREAM_ROWS = 4000


_NUMBERS = 2e8  # the most numbers held for derivatives by context


_WIDEST = 512  # the largest y whose Hessian is taken context by context


_SAMPLES_EACH = 8  # for each function of the richer basis


MODES = ("exact", "enriched", "held-out")


def certify(
    problem: Problem,
    solution: Solution,
    samples: Data,
    mode: str | None = None,
    constants: Constants | None = None,
    draws: int = 256,
    key: Any = 0,
) -> Certificate:
    """Measures how good ``solution.x`` and its policy are for the contextual problem.

    **Arguments:**

    - `samples`: data to judge by; others than those it was solved from, or the figures flatter.
    - `mode`: by default the first that is possible. ``"exact"``: true lower-level solutions at each context (no noise
      in the lower level, ``Product`` data, a ``Finite`` domain, or ``problem.conditional``). ``"enriched"``: joint
      samples only, compared with a basis of about twice the functions; it sees what that basis can express and no more.
      ``"held-out"``: the reduced problem and the lower objective on these samples, nothing else.
    - `constants`: Lipschitz constants, to evaluate the corrected theorem's bound.
    - `draws`, `key`: draws of noise at a context where ``problem.conditional`` is used, and their seed.
    """
    check(problem, samples)
    check_solution(problem, solution)
    samples = without_idle(samples)
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, or None to have it chosen; got {mode!r}.")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((solution.x, solution.W))):
        raise ValueError("solution holds NaN or infinity, so there is nothing to certify; see solution.result.")
    base = as_key(key)
    above, below = levels(samples)
    drawn = [
        level.draw(jax.random.fold_in(base, k), _STREAM_ROWS) if isinstance(level, Stream) else level
        for k, level in enumerate((above, above if above is below else below))
    ]
    above, below = (drawn[0], drawn[0]) if above is below else drawn
    richer = _richer(problem, solution, above, below)
    possible = _possible(problem, solution, above, below, richer)
    mode = next(name for name in MODES if not possible[name]) if mode is None else mode
    if possible[mode]:
        raise ValueError(f'mode="{mode}" is not possible: {possible[mode]}')
    if mode == "exact":
        found = exact_gap(problem, solution, above, below, draws, base, richer)
        compared = "exact lower-level solutions at each context"
    elif mode == "enriched" and isinstance(above, Samples) and isinstance(below, Samples) and richer is not None:
        found = enriched_gap(problem, solution, above, below, richer)
        compared = f"{richer!r}"
    else:
        found = reduced_gap(problem, solution, above, below)
        compared = "nothing beyond this basis: the gradient is the reduced problem's"
    return _certificate(problem, solution, above, below, found, mode, compared, constants)


def _richer(problem, solution, above, below):
    """A richer basis that the samples bear, or None."""
    contexts = contexts_of(below)
    distinct = len(np.unique(np.asarray(contexts.xi), axis=0))
    noisy = lower_depends_on_noise(problem, below) and isinstance(below, Samples)
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    borne = int(1 + freedom_of(np.asarray(contexts.mean_one_weights()) / len(contexts)))
    most = min(distinct // 2, borne // _SAMPLES_EACH if noisy else distinct, DENSE_LIMIT // size)
    richer = enrich(solution.basis.basis, problem.domain, solution.basis.size, most)
    return richer if richer is None or isinstance(richer, Orthonormal) else Orthonormal(richer)


def _possible(problem, solution, above, below, richer) -> dict[str, str]:
    """For each mode why it is not possible, empty where it is."""
    size, width = (sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (problem.y0, problem.x0))
    contexts = len(above.context_rule() if isinstance(above, Product) else above)
    dense = solution.basis.size * size <= DENSE_LIMIT
    known = (
        not lower_depends_on_noise(problem, below)
        or isinstance(below, Product)
        or isinstance(problem.domain, Finite)
        or problem.conditional is not None
    )
    large = f"N d_y = {solution.basis.size * size} coefficients are more than {DENSE_LIMIT}."
    exact = "" if known else f"{MISSING[0].upper()}{MISSING[1:]}"
    if size > _WIDEST or contexts * size * (size + width) > _NUMBERS:
        exact = exact or f"second derivatives of {size} x {size + width} at {contexts} contexts do not fit."
    exact = exact or ("" if dense else large)
    joint = isinstance(above, Samples) and isinstance(below, Samples)
    enriched = "" if dense else large
    enriched = enriched or ("" if joint else "it compares on joint samples, and these are Product data.")
    enriched = enriched or ("" if richer is not None else "the samples bear no richer basis, or there is none.")
    return {"exact": exact, "enriched": enriched, "held-out": ""}


def _certificate(problem, solution, above, below, found: Gap, mode, compared, constants) -> Certificate:
    x, unravel = ravel_pytree(solution.x)
    lo, hi = (np.asarray(ravel_pytree(side)[0]) for side in problem.x_bounds)
    gradient, x = found.gradient[0], np.asarray(x)
    free = ~(((x <= lo) & (gradient > 0)) | ((x >= hi) & (gradient < 0)) | (lo == hi))
    rounding = (np.finfo(x.dtype).eps ** (2 / 3) * found.scale) ** 2 / max(len(x), 1) * np.eye(len(x))
    norm = lambda pair: norm_estimate(pair[0][free], (pair[1] + rounding)[np.ix_(free, free)], found.freedom)
    gap = None if found.difference is None else norm_estimate(*found.difference, GROUPS - 1, cautious=True)
    bound = None
    if constants is not None and found.adjoint_error is not None and found.sensitivity_error is not None:
        spread = float(np.sqrt(found.adjoint_error.interval[1] * found.sensitivity_error.interval[1]))
        bound = float(np.linalg.norm(found.reduced[0][free])) + constants.policy * found.distance + spread
    unsure = (
        "the gradient, or its noise, could not be measured: too few samples, or NaN in upper or lower at the policy"
    )
    rows = below.context_rule() if isinstance(below, Product) else below
    values = losses(problem.lower, solution.x, solution.policy(rows.xi), rows.xi, below.eta, isinstance(below, Product))
    return Certificate(
        gradient_norm=norm(found.gradient),
        reduced_gradient_norm=norm(found.reduced),
        policy_error=found.policy_error,
        adjoint_error=found.adjoint_error,
        sensitivity_error=found.sensitivity_error,
        hypergradient_gap=gap,
        lower_loss=mean_estimate(values, np.asarray(rows.mean_one_weights(), float) / len(rows)),
        gradient=unravel(jnp.asarray(gradient, x.dtype)),
        parts={name: unravel(jnp.asarray(part, x.dtype)) for name, part in found.parts.items()},
        mode=mode,
        compared=compared,
        bound=bound,
        samples=above.eta_rows if isinstance(above, Product) else len(above),
        blocked=int(np.sum(~free)),
        trouble=found.trouble or ("" if np.all(np.isfinite(found.gradient[1])) else unsure),
    )
