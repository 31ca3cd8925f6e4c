"""``evaluate``: how good a solution is, judged with exact lower-level solutions; and what single precision costs it."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ..answer import Solution, as_solved, check_solution
from ..derivatives import Expansions, RowBlocks, RowDerivatives, Sizes, flattened
from ..ground import as_key, as_rows, double, entered, put, trees, whole
from ..inference import MOST_NUMBERS
from ..lower import Feasibility, exact_lower, feasibility_of, trouble_with
from ..problem import Data, Problem, decision_like
from ..reduction import Bilevel, Table, batch_of, is_formed, nodes_for
from ..study import Study, precision_for
from .by_products import upper_values
from .intervals import Estimate, mean_estimate

DRAWS_WANTED = "the number of draws at each context that conditional means and their noise are computed from"
_SHARPEST = 1e4  # times the solution's barrier, decade by decade: the constrained lower level


@dataclass(frozen=True)
class Evaluation:
    """Figures of merit over a data set. Means are numbers that carry ``.error`` and ``.interval``.

    - `loss`: ``F(x)``, the mean of ``f`` at the *exact* lower-level solutions.
    - `policy_error`: the mean of ``|y*(x, xi) - policy(xi)|^2``.
    - `x_error`: ``|x - x*|^2`` if the truth is known, else ``None``.
    - `trouble`: what went wrong with the exact solves, empty if nothing did.
    - `feasibility`: how far the policy meets constraints on ``y`` on these data, if there are any. Exact solutions
      then solve the constrained lower level, with a barrier far sharper than the solution's.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> evaluation = cb.evaluate(case.problem, solution, case.test, case.truth)
    >>> float(evaluation.policy_error) < 0.1, evaluation.x_error < 0.1
    (True, True)
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


def in_precision_of(study: Study, solution: Any) -> Solution:
    """The solution in the precision of a study; raises where it belongs to another problem."""
    check_solution(study.problem, solution)
    parts = put(jax.tree.map(lambda a: np.asarray(a, study.dtype), solution.full_parts()))
    return replace(solution.with_parts(parts), form=None)  # its policy is then the unknown


def to_judge(verb: str, study: Study, solution: Any) -> Solution:
    """The same, to be judged; raises where it is no solution at all."""
    known = in_precision_of(study, solution)
    if not bool(trees.finite((known.x, known.W))):
        raise ValueError(f"solution holds NaN or infinity, so there is nothing to {verb}; see solution.result.")
    return known


def _upper_values(study: Study, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, "n dy"]) -> Float[np.ndarray, " n"]:
    """``f`` at a ``y`` for each of the upper level's contexts; its mean over the data where these are crossed."""
    level, sizes, problem = study.upper, Sizes(*study.problem.sizes), study.problem
    if level.crossed and not is_formed(1, problem.sizes, crossed=study.lower.crossed):
        return upper_values(study, x, y)
    data = jax.tree.map(np.asarray, level.eta)  # pyright: ignore[reportAttributeAccessIssue]
    xi, count = np.asarray(level.contexts().xi), (level.count or 1) if level.crossed else 1
    means, numbers = [], len(xi) * count * sum(a[0].size for a in (xi, *jax.tree.leaves(data)))
    for some in np.array_split(np.arange(len(xi)), -(-numbers // int(MOST_NUMBERS))):
        again = lambda a, some=some: np.tile(a, (len(some), *[1] * (a.ndim - 1))) if level.crossed else a[some]
        rows = RowBlocks(np.repeat(xi[some], count, axis=0), jax.tree.map(again, data), study.dtype, sizes.lower)
        values = RowDerivatives.upper(problem.upper, rows)
        table = values.table(x, np.repeat(y[some], count, axis=0), lambda packed, _: packed[:, 0])
        means.append(table.reshape(len(some), count).mean(axis=1))
    return np.concatenate(means)


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

    - `problem`, `solution`: the problem, and its solution.
    - `samples`: data to judge by. Use fresh samples: figures on the data it was solved from say little about new data.
    - `truth`: the true ``x``, or an object that has it as ``.x``.
    - `draws`, `key`: draws of noise per context if ``problem.conditional`` is used, and their seed.
    - `precision`: ``"single"`` or ``"double"``; by default double, whatever JAX's setting.

    Needs the conditional law of the noise: a lower level without noise, ``Product`` data, a ``Finite`` domain, or
    ``conditional``; raises otherwise.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> evaluation = cb.evaluate(case.problem, solution, case.test, case.truth)
    >>> evaluation.loss.error > 0
    True
    """
    entered("evaluate", problem, samples, key)
    wanted = precision_for(problem, samples, precision)
    whole("draws", draws, 2, DRAWS_WANTED)
    with wanted.context():
        base = as_key(key)
        study = Study.of(as_solved(problem, solution), samples, wanted)
        study = study.finite(jax.random.fold_in(base, 1)) if study.endless else study
        known = to_judge("evaluate", study, solution)
        study.check_conditional()
        if not is_formed(1, study.problem.sizes, crossed=study.lower.crossed):
            study = study.with_nodes(2 * nodes_for(known.basis))
        rows = study.upper.contexts()
        exact = exact_lower(study, known.x, rows.xi, draws, base)
        for times in 10.0 ** np.arange(1, np.log10(_SHARPEST) + 1) if known.smoothing is not None else ():
            study = study.smoothed(known.smoothing.sharper(float(times)))  # pyright: ignore[reportOptionalMemberAccess]
            exact = exact_lower(study, known.x, rows.xi, draws, base, start=exact.y)
        x, y, x_error, trouble = flattened(known.x), as_rows(exact.y), None, [trouble_with(exact)]
        if study.noisy and study.problem.conditional is None:
            seen = study.lower.contexts()
            trouble.append(
                f"the exact policy is itself estimated, from about {len(seen) // seen.distinct()} samples per context, "
                "so both figures include its noise. Judge with cb.certify"
            )
        if truth is not None:
            true_x = decision_like(getattr(truth, "x", truth), known.x, "truth", study.dtype)
            x_error = float(np.sum((x - flattened(true_x)) ** 2))
        gaps = np.sum((y - as_rows(known.at(rows.xi))) ** 2, axis=1)
        return Evaluation(
            loss=mean_estimate(_upper_values(study, x, y), rows.shares()),
            policy_error=mean_estimate(gaps - exact.noise, rows.shares(), least=0.0),
            x_error=x_error,
            trouble="; ".join(filter(None, trouble)),
            feasibility=feasibility_of(study, known)[0],
        )


def rounding_error(problem: Problem, solution: Any, samples: Data) -> float:
    """How far the gradients of ``f_Phi`` at an answer are off in single precision, as a share of their size."""

    def slopes(precision: str) -> np.ndarray:
        study = Study.of(as_solved(problem, solution), samples, precision_for(problem, samples, precision))
        point = in_precision_of(study, solution)
        table = Table(batch_of(point.basis, study.upper.look(as_key(0)).samples))
        at = Expansions(Bilevel(study.problem, table, table, point.W))
        upper = at.upper(flattened(point.x), at.table(point.W))
        return np.concatenate([upper.d1, upper.d2.ravel()])

    single = slopes("single")
    with double():
        exact = slopes("double")
    return float(np.linalg.norm(single - exact) / max(np.linalg.norm(exact), np.finfo(float).tiny))
