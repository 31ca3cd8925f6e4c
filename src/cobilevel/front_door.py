"""The front door: ``solve`` a contextual bilevel problem from samples, or ``reduce`` it for an outside solver."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np

from .adaptive import learn, solve_again, solve_choosing, solve_growing, solve_learning
from .answer import Interrupted, Job, ReducedProblem, Solution, as_solved, run_digests
from .basis import Basis, check_basis, same_recipe
from .direct import Direct, DirectSolution
from .ground import Precision, as_key, entered, positive, ranks_promoted, split_key, whole
from .iteration import Checkpoint, Result, Solver, Stochastic
from .judge import rounding_error
from .lower import with_barrier
from .problem import Data, PartitionedSamples, Problem, crowded, never_seen, no_pool, path_name
from .reduction import DENSE_LIMIT, FarRows, reduce_study
from .solvers import Newton
from .study import SOFT_SHARE, Study, precision_for

_ANSWERS = (Result.CONVERGED, Result.KINK, Result.STALLED, Result.BUDGET)  # endings from which one can go on


@overload
def solve(
    problem: Problem, samples: Data, basis: Basis | None = None, solver: Solver | None = None, *args: Any, **kwargs: Any
) -> Solution: ...


@overload
def solve(
    problem: Problem, samples: Data, basis: None = None, *, solver: Direct, steps: int | None = None, key: Any = 0
) -> Solution | DirectSolution: ...


def solve(
    problem: Problem,
    samples: Data,
    basis: Basis | None = None,
    solver: Solver | Direct | None = None,
    steps: int | None = None,
    key: Any = 0,
    progress: bool | None = None,
    resume: Solution | None = None,
    tolerance: float | None = None,
    batch: int | None = None,
    precision: str | None = None,
    restarts: int = 0,
    checkpoint: str | Path | None = None,
    retreats: int | None = None,
) -> Solution | DirectSolution:
    """Solves a contextual bilevel problem from samples.

    **Arguments:**

    - `problem`, `samples`: the problem, and the data to solve it from.
    - `basis`: the functions in which the policy is written; by default chosen from the data.
    - `solver`: by default ``Newton()``; a method of ``cb.direct`` solves without a reduction, and takes only `steps`
      and `key`.
    - `steps`: the maximal number of steps, counted from the first one, also after `resume`.
    - `key`: seed of everything random, an integer or a JAX key.
    - `progress`: show a progress bar; by default on a terminal, after two seconds.
    - `resume`: an earlier solution of the same problem with the same basis and solver, to continue from.
    - `tolerance`: if no basis is given, how much of the upper objective the basis may lose, as a share of its size
      (0.01 is one percent; mind constant terms, and objectives near zero). The smallest basis that meets it is used,
      by an estimate stated in `choices`. By default the policy is resolved as far as the data show it.
    - `batch`: samples in each batch, for solvers that work on batches.
    - `precision`: ``"single"`` or ``"double"``. By default, Newton computes in double whatever JAX's setting, and
      solvers on batches in JAX's: single, unless ``jax_enable_x64`` is set. Results are in JAX's precision too;
      ``solution.precise`` keeps all digits.
    - `restarts`: how many times to solve again from random starting points around ``x0``. The best solution is
      returned, and ``solution.choices`` states whether they agree.
    - `checkpoint`: a folder in which the run is saved as it proceeds, in one file. If it holds a run of the same call,
      that run continues, to the same solution as without interruption; a run of another call is refused.
    - `retreats`: how many times a run that diverges may go back to a sound state and continue with steps half as long;
      ``solution.choices`` states whether it did. For solvers with step sizes. By default as often as keeps step sizes
      sensible if they were measured, and never if some were given.

    **Returns:** a ``Solution``; ``solution.choices`` states what was chosen. Ctrl-C raises ``cb.Interrupted``, a
    ``KeyboardInterrupt`` that carries what was found so far as ``error.solution``.

    **Raises:** ``ValueError`` or ``TypeError`` if arguments do not fit each other; the message says what to change. How
    a run ends is not an error: see ``solution.converged`` and ``solution.result``.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train)  # basis and solver chosen
    >>> solution.converged
    True
    >>> batches = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.SOBA(), steps=50, batch=16)
    >>> batches.x.shape
    (2,)
    """
    began = time.perf_counter()
    entered("solve", problem, samples, key)
    _check_settings(basis, resume, tolerance, restarts, checkpoint, retreats)
    if isinstance(solver, Direct):
        others = {"basis": basis, "resume": resume, "tolerance": tolerance, "batch": batch, "precision": precision}
        _check_direct(solver, others | {"restarts": restarts or None, "checkpoint": checkpoint, "retreats": retreats})
        return solver.solve(problem, samples, steps, key)
    if isinstance(samples, PartitionedSamples):
        settings = {"basis": basis, "solver": solver, "steps": steps, "key": key, "progress": progress}
        settings |= {"tolerance": tolerance, "batch": batch, "precision": precision, "restarts": restarts}
        return _solve_partitions(problem, samples, resume, checkpoint, settings | {"retreats": retreats})
    chosen = Newton() if solver is None else solver
    wanted = precision_for(problem, samples, precision, exact=isinstance(chosen, Newton))
    if resume is not None:
        problem = as_solved(problem, resume)
    elif problem.constraints and problem.smoothing is None and not isinstance(chosen, Newton):
        problem = problem.smoothed(SOFT_SHARE)
    with wanted.context(), _rounding_interrupted(wanted):
        study, choices = with_barrier(Study.of(problem, samples, wanted)), {}
        for_stream, for_basis, for_solver = split_key(as_key(key), 3)
        if solver is None:
            choices["solver"] = f"Newton(): all samples at once, second order.{_words_for_large(study)}"
            if study.endless:
                study = study.finite(for_stream)
                drawn = f"{study.lower.count} samples, drawn once from the stream; the problem is solved on them."
                choices["samples"] = drawn
        choices |= _about_contexts(problem, study.lower.contexts().xi) | _about_copies(study) | _about_y(study)
        chosen = _configured(chosen, batch, retreats, study)
        if retreats is None:  # halvings down to the fourth root of the precision
            retreats = int(-np.log2(study.eps) / 4) if isinstance(chosen, Stochastic) and chosen.measured else 0
        limit = chosen.default_steps if steps is None else whole("steps", steps)
        anew = basis is None and resume is None and precision is None
        in_double = _in_double(problem, samples, study) if anew else None
        job = Job(study, chosen, for_solver, limit, progress, choices, in_double, retreats=retreats)
        settings = {"tolerance": tolerance, "restarts": restarts, "retreats": retreats}
        with _kept(job, checkpoint, basis, key, settings) as job:
            solution = _run(job, basis, resume, tolerance, for_basis)
            solution = solve_again(job, solution, restarts, for_basis) if restarts else solution
        solution = _checked(study, solution)
    if study.dtype != np.float64:
        words = _rounding_words(problem, solution, samples, study, wanted.words)
        solution = replace(solution, choices={**solution.choices, "precision": words})
    solution = replace(solution, stats={**solution.stats, "total_seconds": time.perf_counter() - began})
    return solution.rounded(wanted.returned) if wanted.dtype == np.float64 else solution


def _solve_partitions(
    problem: Problem, samples: PartitionedSamples, resume: Any, checkpoint: Any, settings: dict[str, Any]
) -> Solution:
    """On the rows in this process, which choose the basis and where to start; then on all rows, by an exact solver."""
    began, solver, steps = time.perf_counter(), settings["solver"], settings["steps"]
    workers = samples.parts.workers
    counted = lambda: np.array([workers.messages, workers.sent, workers.received])
    before = counted()
    if resume is not None:
        raise TypeError("resume: a solve on partitions continues from its checkpoint: solve(..., checkpoint=folder).")
    folder = lambda stage: None if checkpoint is None else Path(checkpoint) / stage
    first = solve(problem, samples.sample, checkpoint=folder("sample"), **settings)
    words, chosen = f"{samples.words()}.", Newton() if solver is None else solver
    if not isinstance(chosen, Newton):
        words += " Batches are drawn from the rows in this process: a step is faster than a message to a worker."
    choices = {**first.choices, "samples": words}
    if not isinstance(chosen, Newton) or first.result not in _ANSWERS:
        return replace(first, choices=choices)
    if samples.share < 1 and "basis" in choices:
        choices["basis"] += " Chosen on the rows in this process."
    wanted = precision_for(problem, samples, settings["precision"])
    with wanted.context(), _rounding_interrupted(wanted):
        begin = first.in_full()
        study = Study.of(as_solved(problem, first).at(begin.x), samples, wanted)
        contexts = FarRows.of(study.lower, begin.basis).contexts()
        for words in ("contexts", "rank"):  # what the sample has not seen, other rows may have
            choices.pop(words, None)
        choices |= _about_contexts(problem, contexts.xi)
        if len(contexts) > len(study.here.lower.contexts()):  # other rows have categories that the sample lacks
            xi = problem.domain.snap(contexts.xi, study.dtype)
            begin = replace(begin, basis=begin.basis.basis.fit(problem.domain, xi, contexts.weights), W=None)
        limit = chosen.default_steps if steps is None else steps
        job = Job(study, chosen, as_key(settings["key"]), limit, settings["progress"], choices)
        recipe = first.basis.basis
        with _kept(job, folder("rows"), recipe, settings["key"], {}) as job:
            solution = _checked(study, job.run(recipe, begin=begin))
    seconds = time.perf_counter() - began
    sent = dict(zip(("messages", "bytes_sent", "bytes_received"), (counted() - before).tolist(), strict=True))
    choices, stats = {**solution.choices, "samples": f"{samples.words()}."}, {**solution.stats, **sent}
    solution = replace(solution, choices=choices, stats={**stats, "total_seconds": seconds})
    return solution.rounded(wanted.returned) if wanted.dtype == np.float64 else solution


def _checked(study: Study, solution: Solution) -> Solution:
    """The solution, whose ending says where derivatives are not those of the objectives."""
    if not (words := study.stopped()):
        return solution
    warnings.warn(f"{words[0].upper()}{words[1:]}", stacklevel=3)
    return replace(solution, detail=f"{solution.detail} But {words}".lstrip())


def _about_contexts(problem: Problem, xi: Any) -> dict[str, str]:
    """What to report if no context has some of the categories, or most crowd in a small part of their interval."""
    unseen, close, said = never_seen(problem.domain, xi), crowded(problem.domain, xi), []
    if unseen:
        said = [
            f"never seen: {unseen}. The policy there is not learned: it follows from the other categories, or is y0."
        ]
    if close:
        said += [close]
    return {"contexts": " ".join(said)} if said else {}


def _about_copies(study: Study) -> dict[str, str]:
    """What to report if rows repeat others."""
    if not study.repeated:
        return {}
    words = (
        f"{study.repeated} rows are copies of others, in context and noise: each row counts once, weighted by how "
        "often it came, since a copy tells nothing new."
    )
    return {"samples": words}


def _about_y(study: Study) -> dict[str, str]:
    """What to report if ``y0`` may have another shape than was meant: a whole column, or too few numbers."""
    problem, said = study.stated or study.problem, []
    leaves = jax.tree_util.tree_leaves_with_path(problem.y0)
    row = study.lower.here.example(1)
    columns = {(study.lower.count, *np.shape(leaf)[1:]) for leaf in jax.tree.leaves((row.xi, row.eta))}
    for path, leaf in leaves:
        if np.shape(leaf) in columns:
            warnings.warn(
                f"{path_name('y0', path)} has the shape of a whole column of the samples, {np.shape(leaf)}. y is what "
                f"the lower level decides at one context: perhaps y0 should have shape {np.shape(leaf)[1:]}.",
                stacklevel=3,
            )
    for name in ("upper", "lower"):
        for place, shape in getattr(problem, name).listing.widened():
            path, leaf = leaves[place]
            said.append(
                f"{path_name('y', path)} has shape {np.shape(leaf)}, but meets arrays of shape {shape} in {name}, and "
                "is repeated there. If it should have a number for each, give y0 that shape."
            )
    return {"y": said[0]} if said else {}


def _words_for_large(study: Study) -> str:
    """What to know of the default solver where ``x`` is large; empty where it is not."""
    dx, _ = study.problem.sizes
    if dx <= DENSE_LIMIT:
        return ""
    return (
        f" x has {dx} coordinates, but Newton forms the Hessian of at most {DENSE_LIMIT}, so it may take thousands of "
        "steps. If steps are slow, cb.HOAG() has cheaper ones, and cb.SOBA() works on batches."
    )


def _check_settings(basis: Any, resume: Any, tolerance: Any, restarts: Any, checkpoint: Any, retreats: Any) -> None:
    """Raises where arguments of ``solve`` are not what they should be, or contradict each other."""
    if basis is not None:
        check_basis(basis)
    if resume is not None and not isinstance(resume, Solution):
        raise TypeError(f"resume must be a Solution (cb.load reads one from a file), got {type(resume).__name__}.")
    whole("restarts", restarts, 0)
    if retreats is not None:
        whole("retreats", retreats, 0)
    if not isinstance(checkpoint, str | Path | None):
        raise TypeError(f"checkpoint must be the path of a folder, got {type(checkpoint).__name__}.")
    if checkpoint is not None and resume is not None:
        raise TypeError("checkpoint continues from its folder, resume from a solution: pass only one of them.")
    if tolerance is None:
        return
    positive("tolerance", tolerance)
    if basis is not None or resume is not None:
        raise TypeError(
            "tolerance says how far to grow the basis, but a basis (or a solution to resume, which has one) was given. "
            "Leave one of them out. The tolerance of the solver is set by cb.Newton(tolerance=...)."
        )


def _check_direct(solver: Direct, others: dict[str, Any]) -> None:
    """Raises where a method without a reduction is given what it does not know."""
    if unknown := [name for name, value in others.items() if value is not None]:
        raise TypeError(f"{type(solver).__name__} solves without a reduction and takes no {', '.join(unknown)}.")


@contextmanager
def _kept(
    job: Job, folder: str | Path | None, basis: Basis | None, key: Any, settings: dict[str, Any]
) -> Iterator[Job]:
    """The job with its checkpoint, where there is to be one."""
    if folder is None:
        yield job
        return
    if basis is None or not basis.learned:  # with other steps another basis would be found
        settings = settings | {"steps": job.steps}
    with Checkpoint(folder, run_digests(job.study, job.solver, as_key(key), basis, settings)) as checkpoint:
        yield replace(job, checkpoint=checkpoint)


def _run(job: Job, basis: Basis | None, resume: Solution | None, tolerance: float | None, key: jax.Array) -> Solution:
    """One run where the basis is known; rounds where it is to be chosen, grown or learned."""
    if resume is not None:
        recipe = resume.basis.basis
        if basis is None or (not basis.learned and same_recipe(basis, recipe)):
            basis = recipe  # what it has learned is not learned again
        return job.run(learn(basis, job.study), resume)
    if basis is None:
        return solve_choosing(job, key) if tolerance is None else solve_growing(job, key, tolerance)
    return job.run(basis) if basis.learned else solve_learning(job, basis)


def _in_double(problem: Problem, samples: Data, study: Study) -> Study | None:
    """The study in double precision, to choose a basis on, where the solver works in another."""
    if study.dtype == np.float64:
        return None
    wanted = precision_for(problem, samples)
    with wanted.context():
        return with_barrier(Study.of(problem, samples, wanted)) if wanted.dtype == np.float64 else None


def _rounding_words(problem: Problem, solution: Solution, samples: Data, study: Study, why: str) -> str:
    """That single precision was used, and what it costs at the answer."""
    words = f"{np.dtype(study.dtype).name}: tolerances scale with its precision of {study.eps:.1g}."
    if why:
        return f"{words} {why[0].upper()}{why[1:]}"
    lost = rounding_error(problem, solution, samples)
    if np.isfinite(lost):
        words += (
            f" At the solution, rounding changes the gradients of the upper objective by {lost:.1g} of their size, and "
            "x by that times the condition number of the problem, which is not known."
        )
    return f'{words} For more digits: precision="double".'


@contextmanager
def _rounding_interrupted(wanted: Precision) -> Iterator[None]:
    """What an interrupted solve hands over comes in the caller's precision too."""
    try:
        yield
    except Interrupted as stop:
        if wanted.dtype == np.float64:
            stop.solution = stop.solution.rounded(wanted.returned)
        raise


def reduce(problem: Problem, basis: Basis, samples: Data) -> ReducedProblem:
    """Reduces a contextual bilevel problem to an ordinary one, with features computed once.

    **Arguments:**

    - `problem`: the problem to reduce.
    - `basis`: a basis such as ``Chebyshev(5)``.
    - `samples`: ``Samples``, ``Product``, ``Levels`` or ``Stream``.

    **Returns:** an ordinary bilevel problem with ``upper``, ``lower``, ``upper_pool``, ``lower_pool``, ``draw``,
    ``x0``, ``W0`` and ``lift``.

    **Raises:** ``ValueError`` if problem, basis and samples do not fit each other.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> reduced = cb.reduce(case.problem, cb.Chebyshev(4), case.train)
    >>> upper_batch, lower_batch = reduced.draw(0, 32)
    >>> slope = jax.grad(reduced.lower, argnums=1)(reduced.x0, reduced.W0, lower_batch)
    >>> solution = reduced.lift(reduced.x0, reduced.W0 - 0.1 * slope)
    >>> solution.policy(np.array(0.5)).shape
    (1,)
    """
    entered("reduce", problem, samples, basis)
    check_basis(basis)
    with ranks_promoted():
        study = with_barrier(Study.of(problem, samples, twice=False))
        reduced = reduce_study(study, learn(basis, study))
    return ReducedProblem(**{part.name: getattr(reduced, part.name) for part in fields(reduced)})


def _configured(solver: Any, batch: int | None, retreats: int | None, study: Study) -> Solver:
    """The solver with its batch size set; raises on what is none, takes no batches, or does not suit the data."""
    if not isinstance(solver, Solver):
        hint = f" (a class: write cb.{solver.__name__}(), with parentheses)" if isinstance(solver, type) else ""
        raise TypeError(f"solver must be a solver such as cb.Newton(), got {solver!r}{hint}.")
    if isinstance(solver, Newton) and study.endless:
        raise no_pool("Newton")
    if retreats and not isinstance(solver, Stochastic):
        raise TypeError(f"{type(solver).__name__} chooses its step lengths itself; leave retreats out.")
    if batch is None:
        return solver
    if "batch" not in {part.name for part in fields(solver)}:
        raise TypeError(f"{type(solver).__name__} works on all samples at once; leave batch out.")
    return replace(solver, batch=batch)
