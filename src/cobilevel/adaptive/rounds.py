"""adaptive.rounds."""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import trees
from ..derivatives.ledger import Ledger
from ..iteration.job import _solve_with
from ..problem.domain import Finite
from ..problem.study import working_dtype
from ..reduction.result import Result
from ..reduction.solution import Solution
from ..solvers import Newton
from .choose import basis_of, choose_basis
from .growth import first_members, goal_at, grow_basis, lost_at, thinned

_SCOUT, _GROWTHS = 8, 4  # steps of the first run with few functions, and bases grown from there


_LEARNINGS, _STAYS = 6, 1e-3  # rounds of a basis that learns, and the relative move of x that calls for no other


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
