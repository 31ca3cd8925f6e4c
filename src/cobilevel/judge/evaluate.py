"""``evaluate``: how good a solution is, judged with exact lower-level solutions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .. import trees
from ..answer import Feasibility, Solution, as_solved, check_solution
from ..checks import entered, whole
from ..keys import as_key
from ..lower import LowerSolution, exact_lower, feasibility_of, trouble_with
from ..problem import Data, Level, Problem, Study, decision_like, precision_for
from ..programs import Held, program
from .intervals import Estimate, mean_estimate

DRAWS_WANTED = "conditional means, and their noise, are taken over so many draws at each context"
_SHARPER = (10.0, 100.0, 1e3, 1e4)  # times the solution's barrier, one after the other: the constrained lower level


@dataclass(frozen=True)
class Evaluation:
    """Figures of merit over a data set. Means are numbers that carry ``.error`` and ``.interval``.

    - `loss`: ``F(x)``, the mean of ``f`` at the *exact* lower-level solutions.
    - `policy_error`: the mean of ``|y*(x, xi) - policy(xi)|^2``.
    - `x_error`: ``|x - x*|^2`` where the truth is known, else ``None``.
    - `trouble`: what went wrong with the exact solves, empty where nothing did.
    - `feasibility`: how far the policy meets constraints on ``y`` on these data, where there are any. Exact solutions
      are then those of the constrained lower level, by a barrier far sharper than the solution's.
    """

    loss: Estimate
    policy_error: Estimate
    x_error: float | None
    trouble: str
    feasibility: Feasibility | None = None

    def __repr__(self):
        x_error = "" if self.x_error is None else f", x_error={self.x_error:.3g}"
        trouble = f", trouble={self.trouble!r}" if self.trouble else ""
        violation = "" if self.feasibility is None else f", largest violation={self.feasibility.largest:.3g}"
        return f"Evaluation(loss={self.loss.words(6)}, policy_error={self.policy_error!r}{x_error}{violation}{trouble})"


def square_distance(a: PyTree, b: PyTree) -> Float[Held, ""]:
    """``|a - b|^2`` over all leaves."""
    gap = trees.sub(a, b)
    return trees.dot(gap, gap)


def in_precision_of(study: Study, solution: Any) -> Solution:
    """The solution in the precision of a study; raises where it belongs to another problem."""
    check_solution(study.problem, solution)
    x, W, transform, constant = jax.tree.map(lambda a: jnp.asarray(a, study.dtype), solution.full_parts())
    basis = replace(solution.basis, transform=transform, constant=constant)
    return replace(solution, x=x, W=W, basis=basis, precise=None, form=None)  # its policy is then the unknown


@program
def _at_each(objective: Callable, x: PyTree, y: PyTree, xi: Array, eta: PyTree, crossed: bool) -> Float[Held, " n"]:
    if not crossed:
        return jax.vmap(objective, in_axes=(None, 0, 0, 0))(x, y, xi, eta)
    over_data = lambda pair: jnp.mean(jax.vmap(lambda e: objective(x, pair[0], pair[1], e))(eta))
    return jax.lax.map(over_data, (y, xi))


def mean_loss(objective: Callable, x: PyTree, y: PyTree, level: Level) -> Estimate:
    """The mean of ``f`` or ``g`` over a level, given a ``y`` for each of its contexts."""
    rows, eta = level.contexts(), level.eta  # pyright: ignore[reportAttributeAccessIssue]
    return mean_estimate(_at_each(objective, x, y, rows.xi, eta, level.crossed), rows.shares())


def evaluate(
    problem: Problem,
    solution: Solution,
    samples: Data,
    truth: Any = None,
    draws: int = 1024,
    key: Any = 0,
    precision: str | None = None,
) -> Evaluation:
    """Judges ``solution.x`` and ``solution.policy`` on a data set, with the lower level solved exactly at each context.

    **Arguments:**

    - `samples`: data to judge by; not those it was solved from, if the figures are to say anything about new ones.
    - `truth`: the true ``x``, or an object that has it as ``.x``.
    - `draws`, `key`: how many draws of noise a context gets, where the exact lower level rests on
      ``problem.conditional``.
    - `precision`: ``"single"`` or ``"double"``; double when left out, whatever JAX is switched to.

    Needs the conditional law of the noise: a lower level without noise, ``Product`` data, a ``Finite`` domain, or
    ``conditional``; raises otherwise, and says so.
    """
    entered("evaluate", problem, samples, key)
    wanted = precision_for(problem, samples, precision)
    whole("draws", draws, 2, DRAWS_WANTED)
    with wanted.context():
        base = as_key(key)
        stated = as_solved(problem, solution)
        study = Study.of(stated, samples, wanted).finite(jax.random.fold_in(base, 1))
        known = in_precision_of(study, solution)
        if not bool(trees.finite((known.x, known.W))):
            raise ValueError("solution holds NaN or infinity, so there is nothing to evaluate; see solution.result.")
        study.check_conditional()
        exact = exact_lower(study, known.x, study.upper.contexts().xi, draws, base)
        for factor in _SHARPER if known.smoothing is not None else ():
            study = study.smoothed(known.smoothing.sharper(factor))  # pyright: ignore
            exact = exact_lower(study, known.x, study.upper.contexts().xi, draws, base, start=exact.y)
        return _evaluation(study, known, exact, truth)


def _evaluation(study: Study, solution: Solution, exact: LowerSolution, truth: Any) -> Evaluation:
    """The figures of merit, in the precision of the study, given exact solutions at the upper level's contexts."""
    rows = study.upper.contexts()
    trouble = trouble_with(exact)
    if study.noisy and study.problem.conditional is None:
        seen = study.lower.contexts()
        trouble += "; " if trouble else ""
        trouble += (
            f"the exact policy is itself estimated, from about {len(seen) // seen.distinct()} samples a context: both "
            "figures hold its noise. Judge with cb.certify"
        )
    gaps = jax.vmap(square_distance)(exact.y, solution.policy(rows.xi))
    x_error = None
    if truth is not None:
        true_x = decision_like(getattr(truth, "x", truth), solution.x, "truth", study.dtype)
        x_error = float(square_distance(solution.x, true_x))
    return Evaluation(
        loss=mean_loss(study.problem.upper, solution.x, exact.y, study.upper),
        policy_error=mean_estimate(np.asarray(gaps) - np.asarray(exact.noise), rows.shares(), least=0.0),
        x_error=x_error,
        trouble=trouble,
        feasibility=feasibility_of(study, solution)[0],
    )
