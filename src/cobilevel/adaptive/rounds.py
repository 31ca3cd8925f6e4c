"""Solves in rounds: a basis chosen at ``x0`` and again at the solution, grown to a tolerance, or learned anew; and from
other starting points: does the answer depend on where the search began?"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Array

from ..answer import Job, Solution
from ..basis import Axes, Basis, basis_of, combine
from ..covariates import FEW_SAMPLES, ROUNDS, SETTLED
from ..derivatives import Expansions, flattened, shaped_like, totals_of
from ..ground import generator
from ..inference import natural_step
from ..iteration import Result
from ..lower import solve_at
from ..problem import Finite
from ..reduction import reduce_study
from ..solvers import Newton
from .choose import choose_basis
from .growth import Search, loss_around
from .learning import learn


def solve_choosing(job: Job, key: Array) -> Solution:
    """Solves with a basis chosen around ``x0``, and again from there while another one is chosen at the solution."""
    study, precisely = job.chosen_on()
    with precisely:
        choice = choose_basis(study, study.problem.x0, key)
    running, before = job.choosing(basis=choice.words), None
    solution = running.scouted(choice.basis)  # not to the end, where another basis may be chosen
    for _ in range(ROUNDS):
        if solution.result is Result.UNBOUNDED:
            break
        with job.chosen_on()[1]:
            # what the lower level was solved for: the policy, before constraints act on it
            policy = lambda xi, solution=solution: combine(solution.basis.at(xi), solution.W)
            again = choose_basis(study, solution.x, key, before=choice, policy=policy)
        if not again.replaces(choice):
            break
        words = f"{again.words} (Chosen again at the solution with {choice.basis!r}.)"
        running, before = job.choosing(basis=words).at(solution.x), _after(before, running, solution)
        solution, choice = running.scouted(again.basis), again
    if running.unfinished(solution):
        solution = running.run(choice.basis, resume=solution)
    return _add_costs(_after(before, running, solution), totals_of(choice.spent))


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
        words = f"not used, since {grown}; held-out samples chose the basis."
        return solve_choosing(job.choosing(tolerance=words), key)
    solution, words, spent = grown
    if isinstance(job.solver, Newton):
        solution = replace(solution, choices={**solution.choices, "basis": words})
    else:  # Newton only stood in for the solver asked for
        solution = _add_costs(job.choosing(basis=words).run(solution.basis.basis), solution.stats["oracles"])
    return _add_costs(solution, totals_of(spent))


def _grow(newton: Job, key: Array, tolerance: float) -> tuple[Solution, str, Counter] | str:
    """The solution with a basis grown, its story and its cost; or why none could be grown."""
    domain = newton.study.problem.domain
    if isinstance(domain, Finite):
        return "there are finitely many contexts"
    part, axes = newton.study.thinned(key, FEW_SAMPLES), Axes.of(domain)
    members = axes.up_to(3 if axes.nested else 2)
    scout = replace(newton, study=part, steps=min(ROUNDS, newton.steps), progress=False)
    solution = scout.run(basis_of(members, domain))
    story, spent, start = [], Counter(), members[:1]
    search = Search(part, key, spent)
    loss = loss_around(part, flattened(solution.x), members, key, spent)
    if loss is None:
        return "the objective shows no curvature in x, or could not be evaluated"
    for _ in range(ROUNDS):
        excess = tolerance * abs(float(solution.history["upper"][-1]))
        found = search.grown(flattened(solution.x), start, 2 * len(members), loss, excess)
        if found is None:
            return "the lower level could not be fitted"
        grown, words = found
        if story and len(grown) <= len(members):
            story.append(f"at the x this led to, {words}")
            break
        members = start = grown
        solution = _run_from(newton, basis_of(members, domain), solution)
        lost, judge = search.lost_at(flattened(solution.x), members, loss)
        story.append(f"{words}; at the x this led to, it loses {lost:.2g}, judged by N = {judge}")
        if lost <= excess:
            break
    words = f"grown for a tolerance of {tolerance:g}: " + ". Then: ".join(story) + "."
    return solution, words, spent


def solve_learning(job: Job, basis: Basis) -> Solution:
    """Solves with a basis learned at ``x0``, then learns it again at the solution, until ``x`` no longer moves."""
    solution = job.run(learn(basis, job.study))
    x = flattened(solution.x)
    first = float(np.linalg.norm(x - flattened(job.study.problem.x0)))
    size = max(float(np.linalg.norm(x)), first) or 1.0  # of x, or of the way it has come where that is to zero
    moves = [first / size]
    while moves[-1] > SETTLED and len(moves) < ROUNDS:
        solution = _run_from(job, learn(basis, job.study.at(solution.x)), solution)
        before, x = x, flattened(solution.x)
        moves.append(float(np.linalg.norm(x - before)) / size)
    words = (
        f"{basis!r}: learned at x0, and again in {len(moves) - 1} rounds at the x reached by then; in the last round "
        f"x moved by {moves[-1]:.1g} of its size"
    )
    words += ", so it has not settled. Use more functions." if moves[-1] > SETTLED else "."
    return replace(solution, choices={**solution.choices, "basis": f"{words} The history is that of the last round."})


def _run_from(job: Job, basis: Basis, before: Solution) -> Solution:
    """Solves with another basis from where an earlier solution ended."""
    job = job.at(before.x)
    return _after(before, job, job.run(basis))


def _after(before: Solution | None, job: Job, found: Solution) -> Solution:
    """What was found from where an earlier solution ended; what that one cost is added.

    Where that was the solution already, there is nothing left to find, and the run may stall at once: what counts as
    small is taken from the way that led there.
    """
    if before is None:
        return found
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
    expansions, x = Expansions(reduced), flattened(found.x)
    here = solve_at(expansions, x, expansions.table(reduced.W0), 0.0)
    promised = float(np.sum(np.abs(here.gradient * (x - expansions.start))))
    return promised <= job.study.eps**0.5 * (first - here.value)


def _add_costs(solution: Solution, more: Mapping[str, Mapping[str, int]]) -> Solution:
    """The solution with oracle calls made before it, or to choose its basis, counted too."""
    spent = {kind: dict(count) for kind, count in solution.stats["oracles"].items()}
    for kind, count in more.items():
        have = spent.setdefault(kind, {"calls": 0, "samples": 0})
        spent[kind] = {unit: have[unit] + count[unit] for unit in have}
    samples = sum(count["samples"] for count in spent.values())
    return replace(solution, stats={**solution.stats, "oracles": spent, "samples": samples})


def solve_again(job: Job, first: Solution, restarts: int, key: Array, spread: float = 3.0) -> Solution:
    """The best of a solution and of `restarts` others, found with the same basis from other starting points: `spread`
    times as far away as ``f`` changes by its spread, or as ``x`` has moved."""
    study, basis = job.study, first.basis.basis
    x0, x = flattened(study.problem.x0), flattened(first.x)
    step = natural_step(reduce_study(study, basis).whitened(), study.problem.x0)
    step = spread * np.maximum(step, np.maximum(np.abs(x - x0), np.abs(x0)))
    rng = generator(key)
    found = [first]
    for _ in range(restarts):
        start = shaped_like(study.problem.x0, (x0 + step * rng.standard_normal(len(x0)))[None], study.dtype, 0)
        found.append(job.at(study.problem.bounds.project(start)).run(basis))
    ended = [one for one in found if one.converged] or [first]
    curves = [one.history.get("upper", []) for one in ended]
    values = np.array([float(curve[-1]) if len(curve) else np.nan for curve in curves])
    best = ended[int(np.nanargmin(values))] if np.isfinite(values).any() else first
    where, alike = np.array([flattened(one.x) for one in ended]), study.eps**0.25
    apart = np.max(np.abs(where - where[0]), axis=0) > alike * np.maximum(np.abs(where).max(axis=0), step * alike)
    words = f"{len(ended)} of {len(found)} runs from different starting points converged"
    if np.ptp(values) > alike * np.abs(values).max():
        ends = f"{values.min():.6g} to {values.max():.6g}"
        words += f", to objectives from {ends}: the answer depends on x0, and the best is returned."
    elif apart.any():
        words += ", to equal objectives at different x: x is not determined."
    else:
        words += ", all to the same answer."
    return replace(best, choices={**first.choices, "restarts": words})
