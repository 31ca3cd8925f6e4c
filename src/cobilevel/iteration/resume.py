"""How a run begins or goes on: what a saved state belongs to, and the state read back."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from .. import archive
from ..answer import Result, Solution, different_functions, same_features, state_identity
from ..basis import Basis, basis_to_json
from ..programs import is_spread, program, put, rows_at
from ..reduction import Reduced, Table
from ..study import Study
from .checkpoint import Checkpoint, Kept
from .course import Course, History
from .solver import Solver

_ROWS_KNOWN_BY = 64  # rows whose features are part of what a run is known by


def identity(solver: Solver, reduced: Reduced, state: Any) -> str:
    """What a state belongs to."""
    data = [_bare(source) for source in (reduced.upper_source, reduced.lower_source)]
    return state_identity(state, solver, reduced.basis.basis, (data, reduced.problem.x_bounds, reduced.coordinates))


def _bare(source: Any) -> Any:
    """A level's data with the features of some rows: basis and contexts determine the others, which may be many."""
    if not isinstance(source, Table) or is_spread(source.table.weight):
        return source
    return replace(
        source.table, features=jax.tree.map(lambda a: rows_at(a, slice(_ROWS_KNOWN_BY)), source.table.features)
    )


def check_functions(study: Study, basis: Basis, resume: Solution | None) -> None:
    """Raises where a run is to go on with other functions than it was begun with."""
    if resume is None:
        return
    own = resume.basis.basis
    if basis_to_json(own) == basis_to_json(basis) and not same_features(own, basis, study.problem.domain):
        raise ValueError(
            "resume: the basis has other Features: its functions have other values than those of the run that is to go "
            "on. Pass the same ones, or leave the basis out."
        )
    if resume.objectives is None:
        return
    others = different_functions(resume.objectives, resume.full_parts()[0], resume.policy, study)
    if others:
        words = "; ".join(f"{name} is not what it was: {by}" for name, by in others.items())
        raise ValueError(
            f"resume: the solution is of another problem: {words}. Pass the functions of the run that is to go on, or "
            "start anew from where it ended: problem.at(solution.x)."
        )


def with_result(solver: Solver, reduced: Any, state: Any) -> Any:
    """The state with the result as the solver sees it, outside of a step."""
    return (_judged_on_host if solver.on_host else _judged)(solver, reduced, state)


def _judged_on_host(solver: Solver, reduced: Any, state: Any) -> Any:
    return eqx.tree_at(lambda s: s.clock.result, state, solver.terminate(reduced, state))


_judged = program(_judged_on_host)


def begin(
    solver: Solver,
    reduced: Reduced,
    bare: Any,
    key: Array,
    steps: int,
    resume: Solution | None,
    checkpoint: Checkpoint | None,
) -> tuple[Kept | None, Course]:
    """Where a run is kept, if anywhere, and where it stands: at its beginning, or where an earlier one has left off."""
    kept = course = None
    if checkpoint is not None:
        like = solver.like(bare if solver.on_host else reduced, key, steps)
        kept, course = checkpoint.next_run(identity(solver, reduced, like), like)
    if course is not None:
        if int(course.state.limit) != steps:
            course.state = _with_limit(course.state, steps)
    elif resume is not None:
        course = _resumed(solver, reduced, bare, key, steps, resume)
    else:
        first = solver.init(bare, key, steps) if solver.on_host else solver.init(reduced, key, put(np.int32(steps)))
        course = Course(first)
    return kept, course


def _resumed(solver: Solver, reduced: Reduced, bare: Any, key: Array, steps: int, solution: Solution) -> Course:
    """The run of an earlier solution, with a new limit; raises where it belongs to another solver or problem."""
    saved = solution.state
    if saved is None:
        raise ValueError("resume: this solution holds no solver state; solve from the beginning.")
    like = solver.like(bare if solver.on_host else reduced, key, steps)
    if identity(solver, reduced, like) != saved.structure:
        raise ValueError(
            "resume: the saved state belongs to another solver or other settings of it, another basis, data, bounds or "
            "precision. Pass the same ones as for the run that is to go on."
        )
    state = _with_limit(archive.from_plain(saved.leaves, like), steps)
    return Course(state, History(solution.history, int(state.step)))


def _with_limit(state: Any, steps: int) -> Any:
    """The state with another limit, running again where it ended for want of steps."""
    if not 0 <= int(state.result) < len(Result):
        raise ValueError("resume: the saved state is damaged: it ended in no way that is known.")
    reached = Result.of(int(state.result))
    result = Result.RUNNING if reached.resumable else reached
    numbers = put((np.int32(steps), np.int32(result.code)))
    return eqx.tree_at(lambda s: (s.clock.limit, s.clock.result), state, numbers)
