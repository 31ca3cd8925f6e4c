"""Solves in rounds: a basis chosen at ``x0`` and again at the solution, grown to a tolerance, or learned anew."""

from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from .. import trees
from ..answer import Result, Solution
from ..basis import Basis, basis_of
from ..derivatives import Ledger
from ..iteration import Job
from ..lower import solve_at
from ..problem import Finite
from ..programs import program
from ..reduction import reduce_study
from ..solvers import Newton
from .choose import choose_basis
from .growth import LOOK_AROUND, first_members, goal_at, grow_basis, lost_at
from .learning import learn

_CHOICES = 3  # how often a basis is chosen again at the solution, at most
_SCOUT, _GROWTHS = 8, 4  # steps of the first run with few functions, and bases grown from there
_ARRIVED = 0.5  # exponent of the precision: what is left to gain, as a share of what was gained
_LEARNINGS, _STAYS = 6, 1e-3  # rounds of a basis that learns, and the relative move of x that calls for no other

_solved_at = program(solve_at)


def solve_choosing(job: Job, key: Array) -> Solution:
    """Solves with a basis chosen around ``x0``, and again from there while another one is chosen at the solution."""
    study, precisely = job.chosen_on()
    with precisely:
        choice = choose_basis(study, study.problem.x0, key)
    solution = job.choosing(basis=choice.words).run(choice.basis)
    costs = choice.ledger
    for _ in range(_CHOICES):
        with job.chosen_on()[1]:
            again = choose_basis(study, study.at(solution.x).problem.x0, key, before=replace(choice, ledger=costs))
        costs = again.ledger
        if not again.replaces(choice):
            break
        words = f"{again.words} (Chosen again at the solution with {choice.basis!r}.)"
        solution = _run_from(job.choosing(basis=words), again.basis, solution)
        choice = again
    return _add_costs(solution, costs.totals())


def solve_growing(job: Job, key: Array, tolerance: float) -> Solution:
    """Grows the basis until the upper objective is within a share `tolerance` of what a richer one would reach.

    A short run with few functions on a part of the samples finds about where the solution lies, and how the objective
    curves there. From the gradients that larger bases see at that point follows how much each loses; the smallest
    that loses little enough is solved with, and judged again where that led.
    """
    study, precisely = job.chosen_on()
    newton = job if isinstance(job.solver, Newton) else replace(job, solver=Newton(), steps=Newton.default_steps)
    with precisely:
        grown = _grow(replace(newton, study=study, careful=None), key, tolerance)
    if isinstance(grown, str):
        words = f"not used, held-out samples chose the basis: {grown}."
        return solve_choosing(job.choosing(tolerance=words), key)
    solution, words, ledger = grown
    return _add_costs(_with_own_solver(job, solution, words), ledger.totals())


def _grow(newton: Job, key: Array, tolerance: float) -> tuple[Solution, str, Ledger] | str:
    """The solution with a basis grown, its story and its cost; or why none could be grown."""
    domain = newton.study.problem.domain
    if isinstance(domain, Finite):
        return "the contexts are finite in number"
    part, members = newton.study.thinned(key, LOOK_AROUND), first_members(domain)
    scout = replace(newton, study=part, steps=min(_SCOUT, newton.steps), progress=False)
    solution = scout.run(basis_of(members, domain))
    story, ledger, start, goal = [], Ledger.empty(), members[:1], None
    for _ in range(_GROWTHS):
        excess = tolerance * abs(float(solution.history["upper"][-1]))
        if goal is None:
            goal, ledger = goal_at(part, solution.x, members, excess, key, ledger)
        if goal is None:
            return "the objective shows no curvature in x, or could not be evaluated"
        goal = replace(goal, excess=excess)
        choice = grow_basis(part, solution.x, start, 2 * len(members), goal, key, ledger)
        if choice is None:
            return "the lower level could not be fitted"
        ledger, grown = choice.ledger, choice.candidates[choice.pick].members
        if story and len(grown) <= len(members):
            story.append(f"there, after all, {choice.words}")
            break
        members = start = grown
        solution = _run_from(newton, basis_of(members, domain), solution)
        lost, judge, ledger = lost_at(part, solution.x, members, goal, key, ledger)
        story.append(f"{choice.words}; where that led it loses {lost:.2g}, judged by N = {judge}")
        if lost <= excess:
            break
    words = f"grown for a tolerance of {tolerance:g}: " + ". So: ".join(story) + "."
    return solution, words, ledger


def _with_own_solver(job: Job, solution: Solution, words: str) -> Solution:
    """The grown basis solved with the solver asked for, where Newton only stood in for it."""
    if isinstance(job.solver, Newton):
        return replace(solution, choices={**solution.choices, "basis": words})
    return _add_costs(job.choosing(basis=words).run(solution.basis.basis), solution.stats["oracles"])


def solve_learning(job: Job, basis: Basis) -> Solution:
    """Solves with a basis learned at ``x0``, then learned anew where that led, until ``x`` stays where it is."""
    far = lambda before, after: float(trees.norm(trees.sub(after, before)))
    solution = job.run(learn(basis, job.study))
    first = far(job.study.problem.x0, solution.x)
    size = max(float(trees.norm(solution.x)), first) or 1.0  # of x, or of the way it has come where that is to zero
    moves = [first / size]
    while moves[-1] > _STAYS and len(moves) < _LEARNINGS:
        before = solution.x
        solution = _run_from(job, learn(basis, job.study.at(before)), solution)
        moves.append(far(before, solution.x) / size)
    words = (
        f"{basis!r}: learned at x0, and anew in {len(moves) - 1} rounds where the solver had arrived; in the last x "
        f"moved by {moves[-1]:.1g} of its size"
    )
    words += ", so it has not settled: take more functions." if moves[-1] > _STAYS else "."
    return replace(solution, choices={**solution.choices, "basis": f"{words} The history is that of the last round."})


def _run_from(job: Job, basis: Basis, before: Solution) -> Solution:
    """Solves with another basis from where an earlier solution ended; what that one cost is added.

    Where that was the solution already, there is nothing left to find, and the run may stall at once: what counts as
    small is taken from the way that led there.
    """
    found = job.at(before.x).run(basis)
    curve = before.history.get("upper", np.zeros(0))
    if len(curve):
        first = float(before.stats.get("first_upper", curve[0]))
        if found.result == Result.STALLED and _arrived(job, found, first):
            found = replace(found, result=Result.CONVERGED)
        found = replace(found, stats={**found.stats, "first_upper": first})
    return _add_costs(found, before.stats["oracles"])


def _arrived(job: Job, found: Solution, first: float) -> bool:
    """Whether what the gradient promises on a way as long as the one from ``x0`` is little against what that gained.

    `first` is the objective at ``x0``. Both are in units of the objective, whatever the units of ``x``.
    """
    reduced = reduce_study(job.study, found.basis.basis).whitened().ordinary()
    x, x0 = (ravel_pytree(at)[0] for at in (found.x, job.study.problem.x0))
    here, _ = _solved_at(reduced, x, reduced.W0, 0.0, Ledger.empty())
    promised = float(jnp.sum(jnp.abs(here.gradient * (x - x0))))
    return promised <= job.study.eps**_ARRIVED * (first - float(here.value))


def _add_costs(solution: Solution, more: Mapping[str, Mapping[str, int]]) -> Solution:
    """The solution with oracle calls made before it, or to choose its basis, counted too."""
    spent = {kind: dict(count) for kind, count in solution.stats["oracles"].items()}
    for kind, count in more.items():
        have = spent.setdefault(kind, {"calls": 0, "samples": 0})
        spent[kind] = {unit: have[unit] + count[unit] for unit in have}
    samples = sum(count["samples"] for count in spent.values())
    return replace(solution, stats={**solution.stats, "oracles": spent, "samples": samples})
