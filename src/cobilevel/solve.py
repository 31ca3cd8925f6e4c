"""``solve``: the front door."""

import difflib
import time
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from . import oracles, trees
from .adapt import basis_of, choose_basis, first_members, goal_at, grow_basis, lost_at, thinned
from .basis import Basis
from .checks import positive, whole
from .data import Data, Levels, Product, Stream, levels
from .domain import Finite
from .lower import DENSE_LIMIT
from .oracles import Ledger
from .problem import Problem, check, lower_depends_on_noise, working_dtype
from .reduction import Endless, Reduced, build
from .solution import Solution
from .solver import Result, Solver, run
from .solvers import Newton
from .store import as_key

_STREAM_ROWS = 10_000
_CHECKED_ROWS = 100_000  # the largest pool over which a solution's convexity is looked at
_SCOUT, _GROWTHS = 8, 4  # steps of the first run with few functions, and bases grown from there
_LEARNINGS, _STAYS = 6, 1e-3  # rounds of a basis that learns, and the relative move of x that calls for no other
_OPTIONS = ("basis", "solver", "steps", "tolerance", "batch", "key", "progress", "resume")


def solve(
    problem: Problem,
    samples: Data,
    basis: Basis | None = None,
    solver: Solver | None = None,
    steps: int | None = None,
    key: Any = 0,
    progress: bool | None = None,
    resume: Solution | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Solution:
    """Solves a contextual bilevel problem from samples.

    **Arguments:**

    - `problem`, `samples`: what to solve, and from what.
    - `basis`: how the policy is written; chosen from the data when left out.
    - `solver`: ``Newton()`` when left out.
    - `steps`: the most steps to take, counted from the first one also after `resume`.
    - `key`: seed of everything random, an integer or a JAX key.
    - `progress`: show a progress bar; by default on a terminal, after two seconds.
    - `resume`: an earlier solution of the same problem with the same basis and solver, to go on from.
    - `tolerance`: with no basis given, how much of the upper objective the basis may give away, as a share of its size
      (0.01 is one percent; mind constants in it, and objectives near zero): as few functions are taken as that asks
      for, by an estimate told in `choices`. Left out, the policy is resolved as far as the data show it.
    - further options the solver knows, such as ``batch`` for ``StocBiO``.

    **Returns:** a ``Solution``; ``solution.choices`` tells what was chosen.
    """
    began = time.perf_counter()
    check(problem, samples)
    solver, choices = _configure(solver, steps, tolerance, basis is not None or resume is not None, options)
    key = as_key(key)
    if resume is not None and not isinstance(resume, Solution):
        raise TypeError(f"resume must be a Solution (cb.load reads one from a file), got {type(resume).__name__}.")
    for_stream, for_basis, for_solver = jax.random.split(key, 3)
    if isinstance(solver, Newton) and any(isinstance(level, Stream) for level in levels(samples)):
        if "solver" not in choices:
            raise ValueError(
                "Newton needs a finite pool, and samples is a Stream. Use StocBiO, or draw a sample yourself: "
                "samples = stream.draw(key, 10_000)."
            )
        samples = _draw_once(samples, for_stream)
        choices["samples"] = f"{_STREAM_ROWS} samples drawn once from the stream, and the problem solved on them."
    dtype = working_dtype(problem, samples)
    if dtype != np.float64:
        eps = float(jnp.finfo(dtype).eps)
        choices["precision"] = (
            f"{np.dtype(dtype).name}: tolerances scale with its precision of {eps:.1g}. For more, set "
            "jax.config.update('jax_enable_x64', True) before making arrays."
        )
    limit = solver.default_steps if steps is None else steps
    arguments = (solver, for_solver, limit, progress)
    learns = isinstance(basis, Basis) and not basis.learned
    if resume is not None and (basis is None or (learns and repr(basis) == repr(resume.basis.basis))):
        basis = resume.basis.basis  # what it has learned is not learned again
    if basis is None:
        if tolerance is None:
            solution = _solve_choosing(problem, samples, choices, arguments, for_basis)
        else:
            solution = _solve_growing(problem, samples, choices, arguments, for_basis, tolerance)
    elif learns and resume is None:
        solution = _solve_learning(problem, samples, basis, choices, arguments)
    else:
        solution = _solve_with(problem, samples, basis, choices, arguments, resume)
    return replace(solution, stats={**solution.stats, "total_seconds": time.perf_counter() - began})


def _solve_choosing(problem, samples, choices, arguments, key) -> Solution:
    """Solves with a basis chosen at ``x0``, and again from there if another one is chosen at the solution."""
    choice = choose_basis(problem, samples, problem.x0, key)
    words = choice.words
    # at x0 the policy may happen not to vary with the context (x0 = 0 often does that): look beside it too
    for side in jax.random.split(jax.random.fold_in(key, 1), 2):
        nudge = lambda a, side=side: a + (1 + jnp.abs(a)) * jax.random.normal(side, a.shape, a.dtype)
        beside = jax.tree.map(jnp.clip, jax.tree.map(nudge, problem.x0), *problem.x_bounds)
        other = choose_basis(problem, samples, beside, key, ledger=choice.ledger)
        if other.functions > choice.functions:
            choice, words = other, f"{other.words} (At a point beside x0; at x0 itself fewer would do.)"
        choice = replace(choice, ledger=other.ledger)
    solution = _solve_with(problem, samples, choice.basis, choices | {"basis": words}, arguments, None)
    again = choose_basis(problem, samples, solution.x, key, ledger=choice.ledger)
    if again.functions > choice.functions:
        words = f"{again.words} (Chosen again at the solution with {choice.basis!r}, which was chosen at x0.)"
        solution = _solve_on(problem, samples, again.basis, choices | {"basis": words}, arguments, solution)
    return _add_costs(solution, again.ledger.totals())


def _solve_growing(problem, samples, choices, arguments, key, tolerance) -> Solution:
    """Grows the basis until the upper objective is within a share `tolerance` of what a richer one would reach.

    A short run with few functions on a part of the samples finds about where the solution lies, and how the objective
    curves there. From the gradients that larger bases see at that point follows how much each gives away; the smallest
    that gives away little enough is solved with, and judged again where that led.
    """
    newton = arguments if isinstance(arguments[0], Newton) else (Newton(), arguments[1], Newton.default_steps, False)
    otherwise = lambda why: _solve_choosing(
        problem, samples, choices | {"tolerance": f"not used, held-out samples chose the basis: {why}."}, arguments, key
    )
    if isinstance(problem.domain, Finite):
        return otherwise("the contexts are finite in number")
    part, members = thinned(samples, key), first_members(problem.domain.dimension)
    short = (*newton[:2], min(_SCOUT, newton[2]), False)
    solution = _solve_with(problem, part, basis_of(members), choices, short, None)
    story, ledger, start, goal = [], Ledger.empty(), members[:1], None
    for _ in range(_GROWTHS):
        excess = tolerance * abs(float(solution.history["upper"][-1]))
        if goal is None:
            goal, ledger = goal_at(problem, part, solution.x, members, excess, key, ledger)
        if goal is None:
            return otherwise("the objective shows no curvature in x, or could not be evaluated")
        goal = replace(goal, excess=excess)
        choice = grow_basis(problem, part, solution.x, start, 2 * len(members), goal, key, ledger)
        if choice is None:
            return otherwise("the lower level could not be fitted")
        ledger, grown = choice.ledger, choice.rungs[choice.pick].members
        if story and len(grown) <= len(members):
            story.append(f"there, after all, {choice.words}")
            break
        members = start = grown
        solution = _solve_on(problem, samples, basis_of(members), choices, newton, solution)
        lost, judge, ledger = lost_at(problem, part, solution.x, members, goal, key, ledger)
        story.append(f"{choice.words}; where that led it gives away {lost:.2g}, judged by N = {judge}")
        if lost <= excess:
            break
    told = {"basis": f"grown for a tolerance of {tolerance:g}: " + ". So: ".join(story) + "."}
    solution = replace(solution, choices={**solution.choices, **told})
    if not isinstance(arguments[0], Newton):
        basis, spent = solution.basis.basis, solution.stats["oracles"]
        solution = _add_costs(_solve_with(problem, samples, basis, choices | told, arguments, None), spent)
    return _add_costs(solution, ledger.totals())


def _solve_on(problem, samples, basis, choices, arguments, before: Solution) -> Solution:
    """Solves with another basis from where an earlier solution ended; what that one cost is added.

    Where that was the solution already, no step can make the first gradient smaller by much: what counts as small is
    taken from the earlier run's first gradient then.
    """
    moved = eqx.tree_at(lambda p: p.x0, problem, before.x)
    found = _solve_with(moved, samples, basis, choices, arguments, None)
    sizes = [run.history.get("gradient", np.zeros(0)) for run in (before, found)]
    if all(map(len, sizes)):
        first = float(before.stats.get("first_gradient", sizes[0][0]))
        eps = float(jnp.finfo(working_dtype(problem, samples)).eps)
        share = getattr(arguments[0], "tolerance", None) or eps ** (2 / 3)
        if found.result == Result.STALLED.words() and sizes[1][-1] <= share * first:
            found = replace(found, converged=True, result=Result.CONVERGED.words())
        found = replace(found, stats={**found.stats, "first_gradient": max(first, float(sizes[1][0]))})
    return _add_costs(found, before.stats["oracles"])


def _add_costs(solution: Solution, more: Mapping[str, Mapping[str, int]]) -> Solution:
    """The solution with oracle calls made before it, or to choose its basis, counted too."""
    spent = {kind: dict(count) for kind, count in solution.stats["oracles"].items()}
    for kind, count in more.items():
        have = spent.setdefault(kind, {"calls": 0, "samples": 0})
        spent[kind] = {unit: have[unit] + count[unit] for unit in have}
    samples = sum(count["samples"] for count in spent.values())
    return replace(solution, stats={**solution.stats, "oracles": spent, "samples": samples})


def _solve_learning(problem, samples, basis, choices, arguments) -> Solution:
    """Solves with a basis learned at ``x0``, then learned anew where that led, until ``x`` stays where it is."""
    far = lambda before, after: float(trees.norm(trees.sub(after, before)))
    solution = _solve_with(problem, samples, basis, choices, arguments, None)
    first = far(problem.x0, solution.x)
    size = max(float(trees.norm(solution.x)), first) or 1.0  # of x, or of the way it has come where that is to zero
    moves = [first / size]
    while moves[-1] > _STAYS and len(moves) < _LEARNINGS:
        before, solution = solution.x, _solve_on(problem, samples, basis, choices, arguments, solution)
        moves.append(far(before, solution.x) / size)
    told = (
        f"{basis!r}: learned at x0, and {len(moves) - 1} times anew where the solver had arrived; the last time x "
        f"moved by {moves[-1]:.1g} of its size"
    )
    told += ", so it has not settled: take more functions." if moves[-1] > _STAYS else "."
    return replace(solution, choices={**solution.choices, "basis": f"{told} The history is that of the last round."})


def _configure(
    solver: Solver | None, steps: int | None, tolerance: Any, given: bool, options: dict[str, Any]
) -> tuple[Solver, dict[str, str]]:
    """The solver with its options set, and what had to be chosen; raises on options it does not know."""
    choices: dict[str, str] = {}
    if solver is None:
        solver = Newton()
        choices["solver"] = "Newton(): all samples at once, second order."
    if not isinstance(solver, Solver):
        hint = " (an instance: write cb.Newton(), with parentheses)" if isinstance(solver, type) else ""
        raise TypeError(f"solver must be a solver such as cb.Newton(), got {solver!r}{hint}.")
    name = type(solver).__name__
    for option in options:
        if option in solver.options:
            continue
        if option in _OPTIONS:
            takes = ", ".join(("steps", *solver.options))
            raise TypeError(f"{name} does not take the option {option!r}; it takes {takes}. Leave it out.")
        if option in {part.name for part in fields(solver)}:
            raise TypeError(f"solve() does not take {option!r}: give it to the solver, cb.{name}({option}=...).")
        close = difflib.get_close_matches(option, _OPTIONS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(_OPTIONS)}."
        raise TypeError(f"solve() does not know the keyword {option!r}.{hint}")
    if steps is not None:
        whole("steps", steps)
    if tolerance is not None:
        positive("tolerance", tolerance)
        if given:
            raise TypeError(
                "tolerance says how far the basis is grown, and a basis (or a solution to resume, which has one) was "
                "given. Leave one of them out; for the solver's own tolerance, cb.Newton(tolerance=...)."
            )
    return replace(solver, **options) if options else solver, choices


def _draw_once(samples: Data, key: Any) -> Data:
    parts = [
        level.draw(k, _STREAM_ROWS) if isinstance(level, Stream) else level
        for level, k in zip(levels(samples), jax.random.split(key), strict=True)
    ]
    return Levels(*parts) if isinstance(samples, Levels) else parts[0]


def _solve_with(problem, samples, basis, choices, arguments, resume) -> Solution:
    solver, key, limit, progress = arguments
    reduced = build(problem, basis, samples)
    rank = None if reduced.whitening is None else reduced.whitening.rank
    if rank is not None and rank < reduced.basis.size:
        choices = choices | {
            "rank": f"the observed contexts tell apart {rank} of the {reduced.basis.size} functions; the other "
            "directions keep their start (where a cell holds no context, the policy is y0)."
        }
        choices = choices | _unseen(reduced)
    if resume is not None and resume.state is None:
        raise ValueError("resume: this solution holds no solver state; solve from the beginning.")
    found = run(solver, reduced, key, limit, progress, None if resume is None else resume.state)
    found = replace(found, choices=choices | dict(found.choices))
    return _check_convexity(reduced, samples, found)


def _unseen(reduced: Reduced) -> dict[str, str]:
    """Warns where the upper level needs the policy at contexts of which the lower level has no sample."""
    if reduced.upper_source is reduced.lower_source or isinstance(reduced.upper_source, Endless):
        return {}
    assert reduced.whitening is not None
    phi = reduced.upper_source.contexts_pool().features
    seen = (phi @ reduced.whitening.transform) @ reduced.whitening.inverse
    size = jnp.linalg.norm(phi, axis=1)
    lost = int(jnp.sum(jnp.linalg.norm(phi - seen, axis=1) > 1e-3 * size))
    if not lost:
        return {}
    words = (
        f"{lost} of {len(phi)} upper-level contexts lie where the lower level has no samples to tell the policy, which "
        "keeps y0 there in part. Give the lower level contexts there, or take a smaller basis."
    )
    warnings.warn(words, stacklevel=4)
    return {"unseen": words}


def _check_convexity(reduced: Reduced, samples: Data, solution: Solution) -> Solution:
    """Looks at ``d22 g`` at every observed context along the policy: where it is not convex, the solution says so.

    Only where single samples show the conditional mean, that is, without lower-level noise; with noise the solver's own
    test, that the mean Hessian is positive definite, is all that data can show.
    """
    problem, lower = reduced.problem, levels(samples)[1]
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    if size > 64 or isinstance(lower, Stream | Product) or lower_depends_on_noise(problem, samples):
        return solution
    pool = reduced.lower_pool
    if len(pool) > _CHECKED_ROWS or len(pool) * size > DENSE_LIMIT * 1000:
        return solution
    least = np.asarray(oracles.lower_curvatures(reduced, solution.x, solution.W, pool))
    bent, flat = least < -1e-6, np.abs(least) < 1e-10
    if not bent.any() and flat.mean() < 0.5:
        return solution
    kind, count = ("Negative", bent.sum()) if bent.any() else ("No", flat.sum())
    words = f"{Result.NOT_CONVEX.words()} ({kind} curvature in some direction at {count} of {len(least)} contexts.)"
    warnings.warn(words, stacklevel=3)
    return replace(solution, converged=False, result=words)
