"""``Job``: one solve with one basis, and checks of its solution against the data."""

import signal
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..basis import Basis, basis_to_json
from ..derivatives import Expansions, flattened
from ..ground import as_key, as_rows, double, put
from ..inference import NEGLIGIBLE, Uncertainty, infer, policy_noise
from ..iteration import Checkpoint, Result, Solver, iterate
from ..lower import correlated, feasibility_of, gave_way, hidden_by_barrier, policy_with_corners
from ..problem import SAMPLE_ROWS
from ..reduction import Reduced, reduce_study, reduce_with
from ..solvers import Newton, Scout
from ..study import Study
from .identity import Objectives, different_functions, same_features
from .solution import Solution

_CHECKED_WORK = 4e9  # the most operations that eigenvalues at all its rows may take
_BENT = 1e-6  # curvature relative to the largest, more negative than rounding makes it


@dataclass(frozen=True)
class Job:
    """What to solve and how, all but the basis.

    `choices`: what was chosen for the user so far, in words. `careful`: the same study in double precision, if the
    solver works in another: a basis is chosen on it. `one_of_many`: programs are shared with bases of other widths, the
    run cannot be resumed, and features are computed again when the solution is asked for its standard errors.
    `checkpoint`: keeps its runs as they proceed. `retreats`: how many times each may go back if it diverges.
    """

    study: Study
    solver: Solver
    key: Array
    steps: int
    progress: bool | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    careful: Study | None = None
    one_of_many: bool = False
    checkpoint: Checkpoint | None = None
    retreats: int = 0

    def chosen_on(self) -> tuple[Study, AbstractContextManager]:
        """The study on which a basis is chosen, and the precision that takes."""
        return (self.study.softened(), nullcontext()) if self.careful is None else (self.careful.softened(), double())

    def at(self, x: PyTree) -> "Job":
        """The same job, starting from ``x``."""
        return replace(self, study=self.study.at(x))

    def choosing(self, **choices: str) -> "Job":
        """The same job, with more to report on what was chosen."""
        return replace(self, choices={**self.choices, **choices})

    def scouted(self, basis: Basis) -> Solution:
        """Where ``Newton`` comes on few rows, if rows are dear; it goes on with ``run(basis, resume=...)``, to the same
        answer as in one run. Of other runs, and where rows are not dear, the end."""
        if self.one_of_many or type(self.solver) is not Newton:
            return self.run(basis)
        scout = Scout(self.solver.tolerance, self.solver.memory)
        return replace(self, solver=scout).choosing(solver=self.choices.get("solver", "Newton().")).run(basis)

    def unfinished(self, solution: Solution) -> bool:
        """Whether there is more to its run, on all rows."""
        return solution.result is Result.BUDGET and solution.stats["steps"] < self.steps

    def run(self, basis: Basis, resume: Solution | None = None, begin: Solution | None = None) -> Solution:
        """Reduces with the basis, which must have nothing left to learn, and runs the solver to its end; starts from
        the coefficients of a solution with that basis, if `begin` is given."""
        study = self.study
        check_functions(study, basis, resume)
        functions = Objectives.of(study.here)
        reduced = reduce_study(study, basis) if begin is None else reduce_with(study, begin.basis, begin.W)
        choices = {**self.choices, **_deficiency(reduced)}
        choices.setdefault("solver", f"{type(self.solver).__name__}().")
        solution = self.on(reduced, resume, choices, functions)
        if self.unfinished(solution):
            return solution
        if not study.endless:
            far, fitted = study.here is not study, reduced.basis
            known = None if far or self.one_of_many else reduced  # partitions are not held by a solution
            again = lambda: reduce_with(study.here, fitted) if far else reduce_study(study, basis)
            seen = lambda: again() if known is None else known
            solution = _with_errors(solution, study, seen)
        return _check_constraints(study.here, _check_convexity(study.here, reduced, solution))

    def on(
        self,
        reduced: Reduced,
        resume: Solution | None = None,
        choices: Mapping[str, str] | None = None,
        objectives: Objectives | None = None,
    ) -> Solution:
        """Runs the solver on a reduced problem; raises ``Interrupted`` if a signal ends it."""
        if resume is not None and resume.state is None:
            raise ValueError("resume: this solution holds no solver state. Solve from the beginning.")
        saved = None if resume is None else (resume.state, resume.history)
        limits = self.steps, self.progress, saved, self.checkpoint, self.retreats
        ended, stopped = iterate(self.solver, reduced, self.key, *limits, resumable=not self.one_of_many)
        parts = ended | {"choices": {**(choices or {}), **ended["choices"]}} | _constraint_fields(reduced)
        solution = Solution(basis=reduced.basis, objectives=objectives, **parts)
        if stopped is None:
            return solution
        end = f"Interrupted at step {solution.stats['steps']} of {self.steps}."
        onward = "solve(..., resume=error.solution) continues from there."
        onward = onward if self.checkpoint is None else self.checkpoint.words()
        raise Interrupted(f"{end} {onward}", solution, stopped)


class Interrupted(KeyboardInterrupt):
    """A solve that was stopped by a signal; `solution` is what it had so far, which ``resume=`` continues.

    `signal` is the number of the signal.

    **Arguments:**

    - `words`: the message.
    - `solution`: what the run had so far.
    - `number`: the number of the signal, kept as `signal`.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> try:
    ...     solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    ... except cb.Interrupted as stop:  # Ctrl-C
    ...     solution = stop.solution
    ...
    >>> solution.converged
    True
    """

    def __init__(self, words: str, solution: Solution, number: int = signal.SIGINT):
        super().__init__(words)
        self.solution, self.signal = solution, number


def _constraint_fields(reduced: Reduced) -> dict[str, Any]:
    known = reduced.constrained
    return {} if known is None else {"form": known.form, "smoothing": known.smoothing, "constraints": known.statement}


class ReducedProblem(Reduced):
    """A contextual problem reduced to an ordinary one by a fitted basis; made by ``reduce``.

    An outside solver needs `upper`, `lower` (batch means, differentiable), the pools or `draw`, `problem.x0`, `W0`,
    and `lift` at the end.
    """

    def lift(self, x: PyTree, W: PyTree, result: Result = Result.LIFTED, **fields: Any) -> Solution:
        """The solution of the contextual problem given by ``(x, W)``; `fields` are further fields of ``Solution``."""
        for name, tree, like in (("x", x, self.problem.x0), ("W", W, self.W0)):
            wanted, shapes = ([np.shape(leaf) for leaf in jax.tree.leaves(one)] for one in (like, tree))
            if jax.tree.structure(tree) != jax.tree.structure(like) or shapes != wanted:
                asked = jax.tree.map(np.shape, like)
                raise ValueError(f"lift: {name} must be a pytree of the shapes {asked}, got arrays of shapes {shapes}.")
        x, W = (jax.tree.map(lambda a: a if isinstance(a, jax.Array) else put(np.asarray(a)), tree) for tree in (x, W))
        return Solution(x, self.restore(W), self.basis, result, **{**_constraint_fields(self), **fields})


def check_functions(study: Study, basis: Basis, resume: Solution | None) -> None:
    """Raises if a run would continue with other functions than it began with."""
    if resume is None:
        return
    own = resume.basis.basis
    if basis_to_json(own) == basis_to_json(basis) and not same_features(own, basis, study.problem.domain):
        raise ValueError(
            "resume: the functions of Features have other values than in the run to resume. Pass the same basis, or "
            "leave it out."
        )
    instead = "Pass the functions of that run, or start from where it ended: problem.at(solution.x)."
    check_objectives("resume", resume, study, instead)


def check_objectives(caller: str, solution: Any, study: Study, instead: str) -> None:
    """Raises if a study has other functions than a solution was found with."""
    if not isinstance(solution, Solution) or solution.objectives is None:
        return
    others = different_functions(solution.objectives, solution.full_parts()[0], solution.at, study)
    if others:
        words = "; ".join(f"{name} has changed: {by}" for name, by in others.items())
        raise ValueError(f"{caller}: the solution belongs to another problem: {words}. {instead}")


def _with_errors(solution: Solution, study: Study, seen: Callable[[], Reduced]) -> Solution:
    """With standard errors of ``x`` and of the policy, computed when asked for, in the precision of the study.

    They are computed from the rows in this process, and from some of these at random where they are many; they hold for
    all rows, and so does the objective, which the solver has computed from all.
    """
    here, share, words = study.here, study.lower.share, ""
    precision = lambda: double() if here.dtype == np.float64 else nullcontext()
    last = {name: curve[-1] for name, curve in solution.history.items() if len(curve)}
    whole = last.get("rows") == solution.stats["rows"]["lower"]  # what it says of the objective is from all rows
    rows = 0 if here.lower.crossed or not here.shared else here.lower.count or 0
    if rows > SAMPLE_ROWS:
        share = share * (enough := SAMPLE_ROWS // 2) / rows  # known to about half a percent
        words = f"standard errors are those that {enough} of the rows show, drawn at random."

    @cache
    def looked() -> tuple[Study, Reduced]:
        if not words:
            return here, seen().whitened()
        some = here.on(here.lower.thinned(as_key(0), SAMPLE_ROWS // 2))
        return some, reduce_with(some, solution.in_full().basis).whitened()

    def of_x() -> Uncertainty:
        with precision():
            known = infer(*looked(), solution.x, here.problem.x0, minimised=share == 1)
            if share == 1:
                return known
            known = known.among(share)
            if whole:
                known = replace(known, value=float(last["upper"]))
            else:
                known = replace(known, value_error=known.value_error / share**0.5)
            return replace(known, remarks=(*known.remarks, words)) if words and not known.why_not else known

    @cache
    def noise() -> Any:
        study, reduced = looked()
        return policy_noise(study, reduced, solution.x, reduced.enter(solution.W))

    cornered = cache(lambda: policy_with_corners(looked()[0], solution))

    def of_policy(xi: np.ndarray) -> Any:
        with precision():
            if isinstance(noise(), str):
                return noise()
            errors = share**0.5 * noise()(xi)
            if (corners := cornered()) is None:
                return errors
            return np.hypot(errors, as_rows(solution.at(xi)) - corners(xi))

    return replace(solution, inference=of_x, policy_noise=of_policy)


def _deficiency(reduced: Reduced) -> dict[str, str]:
    """What to report if the observed contexts do not distinguish all functions.

    Warns if the upper level needs the policy at contexts where the lower level has no samples.
    """
    if not reduced.deficient:
        return {}
    words = {
        "rank": f"the observed contexts distinguish {reduced.rank} of the {reduced.basis.size} functions; the other "
        "directions keep their initial values (in a cell without contexts, the policy is y0)."
    }
    upper = reduced.upper_source
    if upper is reduced.lower_source or upper.rows is None or reduced.whitening is None:
        return words
    phi = upper.contexts_pool().features
    lost = int(jnp.sum(reduced.whitening.unseen(phi) > NEGLIGIBLE))
    if lost:
        words["unseen"] = (
            f"{lost} of {len(phi)} upper-level contexts lie where the lower level has no samples to learn the policy "
            "from; it partly stays at y0 there. Give the lower level contexts there, or use a smaller basis."
        )
        warnings.warn(words["unseen"], stacklevel=4)
    return words


def _check_constraints(study: Study, solution: Solution) -> Solution:
    """The solution with how far the constraints on ``y`` are met; if they cannot be, its result says so."""
    met, impossible = feasibility_of(study, solution)
    if met is None:
        return solution
    solution = replace(solution, feasibility=met)
    result, detail = Result.INFEASIBLE, impossible
    if not impossible and solution.result is not Result.DIVERGED:  # which says more
        result, detail = Result.GAVE_WAY, gave_way(study, solution, met)
    if not detail:
        return solution
    warnings.warn(f"{result} {detail}", stacklevel=4)
    return replace(solution, result=result, detail=detail)


def _check_convexity(study: Study, reduced: Reduced, solution: Solution) -> Solution:
    """Checks ``d22 g`` at every observed context along the policy; if it is not convex, the result says so.

    Only if single samples show the conditional mean, that is, without lower-level noise; with noise the solver's own
    test, that the mean Hessian is positive definite, is all that data can show.
    """
    size, rows, hidden = study.problem.sizes[1], study.lower.count, hidden_by_barrier(study, solution)
    if hidden:
        warnings.warn(f"{Result.NOT_CONVEX} {hidden}", stacklevel=4)
        return replace(solution, result=Result.NOT_CONVEX, detail=hidden)
    if rows is None or study.lower.crossed or study.lower_noise:
        return solution
    if rows > SAMPLE_ROWS or rows * size**3 > _CHECKED_WORK:
        return solution
    expansions = Expansions(reduced.ordinary())
    hessians = expansions.lower_rows(flattened(solution.x), expansions.table(solution.W)).hessian
    values = np.linalg.eigvalsh(correlated(hessians)) if size > 1 else hessians[:, :, 0]
    least = values[:, 0] / np.maximum(np.abs(values).max(axis=1), np.finfo(float).tiny)
    least = least[np.concatenate([pool.shares for pool in expansions.lower_pools]) > 0]
    bent, flat = least < -_BENT, np.abs(least) < size * expansions.eps
    if not bent.any() and flat.mean() < 0.5:
        return solution
    kind, count = ("Negative", bent.sum()) if bent.any() else ("No", flat.sum())
    detail = f"({kind} curvature in some direction at {count} of {len(least)} contexts.)"
    warnings.warn(f"{Result.NOT_CONVEX} {detail}", stacklevel=4)
    return replace(solution, result=Result.NOT_CONVEX, detail=detail)
