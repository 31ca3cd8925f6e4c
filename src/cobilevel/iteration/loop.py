"""The loop that runs every solver: from its beginning or a saved state to its end, or to a signal."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, UInt32

from ..basis import basis_to_json
from ..derivatives import Ledger, added
from ..functions import digest
from ..ground import ProgressBar, archive, program, program_of_steps, put, rows_at, trees
from ..reduction import Bilevel, Reduced, Table
from .checkpoint import Checkpoint
from .course import Course, History
from .result import Result
from .solver import Solver, State

_LONG = 0.5  # seconds after which steps are looked at, about
CHUNKS = 8  # in one call of a compiled program, at most: the call takes as long as some fifty small steps


@dataclass(frozen=True)
class Saved:
    """Everything a solver needs to continue: the leaves of its state, and their structure in words."""

    leaves: list[np.ndarray]
    structure: str


@contextmanager
def _signals_noted(ends: bool) -> Iterator[list[int]]:
    """Within it, Ctrl-C (and SIGTERM, if that `ends` a run) is only noted, in the list.

    A second signal of the same kind has its usual effect. Only the main thread can do this; in others it does nothing.
    """
    noted: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM) if ends else (signal.SIGINT,):
            # someone else's handler stays where it is: a server or a notebook has its own way to end
            if (handler := signal.getsignal(kind)) in (signal.SIG_DFL, signal.default_int_handler):
                before[kind] = handler
                signal.signal(kind, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _traced_step(solver: Solver, reduced: Bilevel, bare: State) -> tuple[Callable, int, Callable]:
    """One step, traced once, from a state without ledger to the next state and the costs not known in advance.

    Also returns how many kinds of cost are not known in advance, and a function that adds costs of steps to a ledger.
    """
    seen: dict[str, Any] = {}

    def one(state: State) -> tuple[State, UInt32[Array, "unknown 2"]]:
        after = solver.step(reduced, _with_ledger(state, Ledger.page()))
        spent, structure = jax.tree.flatten(after.ledger)
        unknown = [k for k, leaf in enumerate(spent) if not isinstance(leaf, np.ndarray)]
        known = [np.zeros(2, np.uint32) if k in unknown else leaf for k, leaf in enumerate(spent)]
        seen.update(known=jax.tree.unflatten(structure, known), unknown=unknown)
        after = eqx.tree_at(lambda s: (s.clock.step, s.ledger), after, (state.step + 1, None))
        result = solver.terminate(reduced, after)
        result = jnp.where(trees.finite((after.x, after.W)), result, jnp.int32(Result.DIVERGED.code))
        table = jnp.stack([spent[k] for k in unknown]) if unknown else jnp.zeros((0, 2), jnp.uint32)
        return eqx.tree_at(lambda s: s.clock.result, after, result), table

    program, shapes = jax.make_jaxpr(one, return_shape=True)(bare)
    structure, known, unknown = jax.tree.structure(shapes), seen["known"], seen["unknown"]

    def step(state: State) -> tuple[State, Array]:
        return jax.tree.unflatten(structure, jaxpr_as_fun(program)(*jax.tree.leaves(state)))

    def charge(ledger: Ledger, steps: Array, more: UInt32[Array, "unknown 2"]) -> Ledger:
        if not unknown:
            return ledger.plus(known, steps)
        rows = jnp.zeros((len(jax.tree.leaves(ledger)), 2), jnp.uint32).at[np.array(unknown)].set(more)
        return ledger.plus(known, steps, rows)

    return step, len(unknown), charge


def _with_ledger(state: State, ledger: Ledger | None) -> State:
    return eqx.tree_at(lambda s: s.ledger, state, ledger, is_leaf=lambda v: v is None)


@program_of_steps
def advance(
    solver: Solver, reduced: Bilevel, state: State, count: int, most: Array | None = None
) -> tuple[State, tuple[dict[str, Array], Array]]:
    """Up to `count` steps (or `most`), fewer if the run ends or reaches its limit; with records, some of them real.

    Earlier states are not kept: if a run diverges, its steps are repeated up to the one before.
    """
    first, begun, bare = state.step, state.clock.running, _with_ledger(state, None)
    step, unknown, charge = _traced_step(solver, reduced, bare)
    room = jnp.where(begun, jnp.clip(state.limit - first, 0, count), 0)
    room = room if most is None else jnp.minimum(room, most)
    zeros = lambda kind: jnp.zeros((count, *kind.shape), kind.dtype)
    records = jax.tree.map(zeros, jax.eval_shape(lambda s: s.record(), bare))
    start = (bare, jnp.zeros((unknown, 2), jnp.uint32), records)

    def one(now: tuple) -> tuple:
        before, spent, records = now
        after, more = step(before)
        enter = lambda curve, value: jax.lax.dynamic_update_index_in_dim(curve, value, before.step - first, 0)
        return after, added(spent, more), jax.tree.map(enter, records, after.record())

    def failed(now: tuple) -> Array:
        return begun & (now[0].result == Result.DIVERGED.code)

    def one_pass(carry: tuple) -> tuple:
        passes, most, _ = carry
        going = lambda now: (now[0].step - first < most) & now[0].clock.running
        end = jax.lax.while_loop(going, one, start)
        return passes + 1, jnp.where(failed(end), end[0].step - first - 1, most), end

    unfinished = lambda carry: (carry[0] == 0) | (carry[0] == 1) & failed(carry[2])
    passes, _, (end, spent, records) = jax.lax.while_loop(unfinished, one_pass, (jnp.int32(0), room, start))
    result = jnp.where(passes == 2, jnp.int32(Result.DIVERGED.code), end.result)
    steps = end.step - first
    last = eqx.tree_at(lambda s: s.clock.result, _with_ledger(end, charge(state.ledger, steps, spent)), result)
    return last, (records, jnp.arange(count, dtype=jnp.int32) < steps)


def steps_on_host(solver: Solver, reduced: Any, state: Any, count: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Up to `count` steps of a solver whose steps are plain Python, fewer if the run ends; with records."""
    reduced, records = solver.ready(reduced), []
    room = min(count, int(state.limit) - int(state.step))
    while state.clock.running and len(records) < room:
        after = solver.step(reduced, state)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after.x, after.W))):
            state = replace(state, clock=replace(state.clock, result=np.asarray(Result.DIVERGED.code, np.int32)))
            break
        after = replace(after, clock=replace(after.clock, step=np.asarray(int(state.step) + 1, np.int32)))
        state = replace(after, clock=replace(after.clock, result=solver.terminate(reduced, after)))
        records.append(state.record())
    return state, {name: np.array([record[name] for record in records]) for name in (records[0] if records else {})}


def _steps(solver: Solver, bare: Any, state: Any, most: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Up to `most` steps, on the host or compiled, with records of those that were taken."""
    if solver.on_host:
        return steps_on_host(solver, bare, state, most)
    state, (records, real) = advance(solver, bare, state, CHUNKS * solver.chunk, put(np.int32(most)))
    real = np.asarray(real)
    return state, {name: np.asarray(curve)[real] for name, curve in records.items()}


def iterate(
    solver: Solver,
    reduced: Reduced,
    key: Array,
    steps: int,
    progress: bool | None,
    resume: tuple[Saved, Mapping[str, np.ndarray]] | None,
    checkpoint: Checkpoint | None,
    retreats: int,
    resumable: bool,
) -> tuple[dict[str, Any], int | None]:
    """Runs a solver to its end; returns the outcome, as fields of a ``Solution``, and the number of the signal that
    interrupted it, if any.

    `resume`: a saved state to continue from, and the history that led to it. `checkpoint`: keeps the run as it
    proceeds, and continues from it. `retreats`: how many times it may go back if it diverges. `resumable`: whether the
    state is kept to continue from, which takes a pass over all the data.
    """
    clock = time.perf_counter()
    prepared = solver.prepare(reduced)
    bare = prepared.ordinary()  # programs for problems of one shape are shared, whatever their basis
    bare = solver.ready(bare) if solver.on_host else bare
    course = _begun(solver, prepared, bare if solver.on_host else prepared, key, steps, resume, checkpoint)
    if retreats and course.good is None:
        course.good = course.state
    if not solver.on_host:
        bare = solver.ready(bare)
        if course.going:  # compiles; no step
            _steps(solver, bare, eqx.tree_at(lambda s: s.clock.limit, course.state, put(np.int32(0))), 1)
    compiled = time.perf_counter() - clock
    with (
        ProgressBar(steps, type(solver.lasting()).__name__, progress) as bar,
        _signals_noted(checkpoint is not None) as noted,
    ):
        _steps_to_end(solver, bare, course, checkpoint, retreats, bar, noted)
    if course.result is Result.RUNNING and not course.going:  # a run with no steps left
        course.state = (_judged if solver.on_host else _judged_in_program)(solver, bare, course.state)
    result, detail = course.result, ""
    if result is Result.DIVERGED:
        detail = f"It happened at step {course.step + 1}."
    elif noted and course.going:
        result, detail = Result.INTERRUPTED, f"(At step {course.step} of {steps}.)"
    elif course.step > steps and result.resumable and result is not Result.SETTLED:
        result, detail = Result.BEYOND, f"(It had taken {course.step} steps, and steps is {steps}.)"
    x, W, choices = solver.finish(course.state)
    curves = course.history.curves()
    detail = solver.outlook(course.state, curves) if result is Result.BUDGET else detail
    stats = _statistics(reduced, course) | {"compile_seconds": compiled}
    kept = Saved(archive.to_plain(course.state), _identity(solver, prepared, course.state)) if resumable else None
    ended = {
        "x": put(x),
        "W": prepared.restore(put(W)),
        "result": result,
        "detail": detail,
        "history": curves,
        "stats": stats,
        "choices": choices | course.words(),
        "state": kept,
    }
    return ended, noted[-1] if noted else None


def _judged(solver: Solver, reduced: Any, state: Any) -> Any:
    """The state with the result as the solver sees it, outside of a step."""
    return eqx.tree_at(lambda s: s.clock.result, state, solver.terminate(reduced, state))


_judged_in_program = program(_judged)


def _steps_to_end(
    solver: Solver,
    bare: Any,
    course: Course,
    checkpoint: Checkpoint | None,
    retreats: int,
    bar: ProgressBar,
    noted: list[int],
) -> None:
    """Steps to the end of the run, or to an interruption, in calls short enough to stop or to save soon; one ends at
    every multiple of a span."""
    at_once, moved = 1, False
    if checkpoint is not None and course.going:
        checkpoint.put(course, at_once=True)
    while course.going and not noted:
        began, span = time.perf_counter(), _span(solver, course.step) if retreats else CHUNKS * solver.chunk
        state, records = _steps(solver, bare, course.state, min(at_once, span - course.step % span))
        course.add(state, records, span)
        if course.result is Result.DIVERGED and len(course.retreats) < retreats:
            course.retreat()
        took, moved = time.perf_counter() - began, True
        course.seconds += took
        at_once = min(span, max(1, int(at_once * _LONG / max(took, _LONG / 16))))
        bar.update(course.step, " ".join(f"{k} {v[-1]:.3g}" for k, v in records.items() if len(v)))
        if checkpoint is not None and course.going and not noted:
            checkpoint.put(course)
    if checkpoint is not None and moved:
        checkpoint.put(course, at_once=True)


def _span(solver: Solver, step: int) -> int:
    """Steps between states that a run may go back to: a chunk, later more, to a quarter of the steps taken at most."""
    return solver.chunk * min(CHUNKS, 2 ** max(0, (step // (4 * solver.chunk)).bit_length() - 1))


def _statistics(reduced: Reduced, course: Course) -> dict[str, Any]:
    """What a run took: steps, oracle calls, samples, memory and seconds."""
    held = sum(leaf.size for leaf in jax.tree.leaves((reduced.x0, reduced.W0)))
    totals = course.state.ledger.totals()
    stats = {
        "steps": course.step,
        "oracles": totals,
        "samples": sum(kind["samples"] for kind in totals.values()),
        "rows": {"upper": reduced.upper_source.rows, "lower": reduced.lower_source.rows},
        "functions": reduced.basis.size,
        "numbers_held": held,
        "bytes": held * reduced.dtype.itemsize,
        "state_bytes": sum(leaf.nbytes for leaf in archive.to_plain(course.state)),
        "seconds": course.seconds,
    }
    more = {"rank": reduced.rank, "retreats": len(course.retreats) or None}
    return stats | {name: number for name, number in more.items() if number is not None}


# how a run begins, or goes on


def _begun(
    solver: Solver,
    prepared: Reduced,
    problem: Any,
    key: Array,
    steps: int,
    resume: tuple[Saved, Mapping[str, np.ndarray]] | None,
    checkpoint: Checkpoint | None,
) -> Course:
    """The course of a run: at its beginning, or where an earlier run stopped."""
    if checkpoint is not None or resume is not None:
        like = solver.like(problem, key, steps)
        own = _identity(solver, prepared, like)
        course = None if checkpoint is None else checkpoint.next_run(own, like)
        if course is not None and int(course.state.limit) != steps:
            course.state = _with_limit(course.state, steps)
        if course is not None:
            return course
    if resume is None:
        return Course(solver.init(problem, key, steps if solver.on_host else put(np.int32(steps))))
    saved, curves = resume
    if own != saved.structure:
        raise ValueError(
            "resume: the saved state belongs to a run with another solver, other solver settings, another basis, data, "
            "bounds or precision. Pass the same ones as for that run."
        )
    state = _with_limit(archive.from_plain(saved.leaves, like), steps)
    return Course(state, History(curves, int(state.step)))


def _identity(solver: Solver, reduced: Reduced, state: Any, rows: int = 64) -> str:
    """What a solver's state belongs to: its own structure, the solver, the basis, and the arrays it works on."""

    def data(source: Any) -> Any:
        """A level's data with the features of a few rows: basis and contexts determine the others."""
        if not isinstance(source, Table):
            return source
        some = jax.tree.map(lambda a: rows_at(a, slice(rows)), source.table.features)
        return replace(source.table, features=some)

    levels = [data(source) for source in (reduced.upper_source, reduced.lower_source)]
    arrays = eqx.filter((levels, reduced.problem.x_bounds, reduced.coordinates, reduced.turn), eqx.is_array)
    held = [np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(arrays)]
    # whole numbers, and which step sizes were given
    settings = jax.tree.structure(eqx.filter(solver.lasting(), eqx.is_array))
    recipe = json.dumps(basis_to_json(reduced.basis.basis), sort_keys=True)
    return f"{archive.fingerprint(state)} {settings} {recipe} {digest(held)}"


def _with_limit(state: Any, steps: int) -> Any:
    """The state with another limit, running again if it ended because steps were used up."""
    if not 0 <= int(state.result) < len(Result):
        raise ValueError("resume: the saved state is damaged: the code of its result is unknown.")
    reached = Result.of(int(state.result))
    result = Result.RUNNING if reached.resumable else reached
    numbers = put((np.int32(steps), np.int32(result.code)))
    return eqx.tree_at(lambda s: (s.clock.limit, s.clock.result), state, numbers)
