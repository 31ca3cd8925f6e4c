"""The one loop that runs every solver, and how Ctrl-C ends it: between two steps, with what it has so far."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, UInt32

from .. import archive, trees
from ..answer import Result, Saved, Solution
from ..cluster import everywhere, in_step
from ..derivatives import Ledger, added
from ..programs import at_home, program_of_steps, put
from ..progress import ProgressBar
from ..reduction import Bilevel, Reduced
from .checkpoint import Checkpoint, Kept
from .course import Course
from .resume import begin, identity, with_result
from .solver import Solver, State

_LONG = 1.0  # seconds that steps may take before they are looked at
CHUNKS = 10  # in one call of a compiled program, at most: the call takes as long as some fifty small steps


class Interrupted(KeyboardInterrupt):
    """A solve that was stopped by a signal; `solution` is what it had so far, with which ``resume=`` goes on.

    `signal` is the number of the signal.
    """

    def __init__(self, words: str, solution: Solution, number: int = signal.SIGINT):
        super().__init__(words)
        self.solution, self.signal = solution, number


@contextmanager
def _signals_noted(ends: bool) -> Iterator[list[int]]:
    """Within it, Ctrl-C (and SIGTERM, where that `ends` a run) is only noted, in the list.

    A second one of the same kind does what it always did. Only the main thread can do this; in others it does nothing.
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
    """One step, traced once, from a state without ledger to the next and what it spends that is not known beforehand.

    With how many kinds of cost are not, and what adds the cost of so many steps to a ledger.
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
    """Up to `count` steps (or `most`), fewer where the run ends or reaches its limit; with records, some of them real.

    Nothing is kept on the way that a failed step could be taken back by: a run that diverges is passed through again,
    up to the step before.
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
    """Up to `count` steps of a solver whose steps are plain Python, fewer where the run ends; with records."""
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
    """So many steps, on the host or compiled, with records of those that were taken."""
    if solver.on_host:
        return steps_on_host(solver, bare, state, most)
    state, (records, real) = advance(solver, bare, state, CHUNKS * solver.chunk, put(np.int32(most)))
    real = np.asarray(real)
    return state, {name: np.asarray(curve)[real] for name, curve in records.items()}


def _statistics(reduced: Reduced, state: Any) -> dict[str, Any]:
    """What a run took, time apart: steps, oracle calls, samples and memory."""
    held = sum(leaf.size for leaf in jax.tree.leaves((reduced.x0, reduced.W0)))
    totals = state.ledger.totals()
    rank = {} if reduced.rank is None else {"rank": reduced.rank}
    return {
        "steps": int(state.step),
        "oracles": totals,
        "samples": sum(kind["samples"] for kind in totals.values()),
        "rows": {"upper": reduced.upper_source.rows, "lower": reduced.lower_source.rows},
        "functions": reduced.basis.size,
        "numbers_held": held,
        "bytes": held * reduced.dtype.itemsize,
        "state_bytes": sum(leaf.nbytes for leaf in archive.to_plain(state)),
        **rank,
    }


def run(
    solver: Solver,
    reduced: Reduced,
    key: Array,
    steps: int,
    progress: bool | None = None,
    resume: Solution | None = None,
    checkpoint: Checkpoint | None = None,
    retreats: int = 0,
    resumable: bool = True,
) -> Solution:
    """Runs a solver to its end, or a saved run on to it, and lifts what it found.

    `checkpoint`: where it is kept as it goes, and what it goes on from. `retreats`: how many times it may go back where
    it diverges. `resumable`: whether the state is kept to go on from, which takes a look at all the data.
    Raises ``Interrupted`` where a signal ends it.
    """
    clock = time.perf_counter()
    prepared = solver.prepare(reduced)
    bare = prepared.ordinary()  # programs for problems of one shape are shared, whatever their basis
    bare = solver.ready(bare) if solver.on_host else bare
    kept, course = begin(solver, prepared, bare, key, steps, resume, checkpoint)
    if retreats and course.good is None:
        course.good = course.state
    if not solver.on_host:
        bare = solver.ready(bare)
        course.state, course.good = everywhere((course.state, course.good), bare)
        if course.going:  # compiles; no step
            idle = everywhere(eqx.tree_at(lambda s: s.clock.limit, course.state, put(np.int32(0))), bare)
            _steps(solver, bare, idle, 1)
    compiled = time.perf_counter() - clock
    with ProgressBar(steps, type(solver).__name__, progress) as bar, _signals_noted(ends=kept is not None) as noted:
        _steps_to_end(solver, bare, course, kept, retreats, bar, noted)
    if course.result is Result.RUNNING and not course.going:  # a run with no steps left
        course.state = with_result(solver, bare, course.state)
    solution = _lifted(solver, prepared, reduced, course, compiled, resumable)
    if not noted:
        return solution
    if course.going:
        solution = replace(solution, result=Result.INTERRUPTED, detail=f"(At step {course.step} of {steps}.)")
    go_on = "solve(..., resume=error.solution) goes on from there." if kept is None else kept.words()
    raise Interrupted(f"Interrupted at step {course.step} of {steps}. {go_on}", solution, noted[-1])


def _steps_to_end(
    solver: Solver, bare: Any, course: Course, kept: Kept | None, retreats: int, bar: ProgressBar, noted: list[int]
) -> None:
    """Steps to the end of the run, or to an interruption.

    So many at once that a look at them, to stop or to keep them, is never far away; every multiple of `span` is seen.
    """
    span, at_once, moved = solver.chunk * (1 if retreats else CHUNKS), 1, False
    if kept is not None and course.going:
        kept.put(course, at_once=True)
    while course.going:
        began = time.perf_counter()
        most, stop = in_step(bare, min(at_once, span - course.step % span), noted[-1] if noted else None)
        if stop is not None:
            noted.append(stop)
            break
        state, records = _steps(solver, bare, course.state, most)
        course.add(state, records, solver.chunk)
        if course.result is Result.DIVERGED and len(course.retreats) < retreats:
            course.retreat()
        took, moved = time.perf_counter() - began, True
        course.seconds += took
        if took > _LONG:
            at_once = max(1, at_once // 2)
        elif took < _LONG / 4:
            at_once = min(span, 2 * at_once)
        bar.update(course.step, " ".join(f"{k} {v[-1]:.3g}" for k, v in records.items() if len(v)))
        if kept is not None and course.going and not noted:
            kept.put(course)
    if kept is not None and moved:
        kept.put(course, at_once=True)


def _lifted(
    solver: Solver, prepared: Reduced, reduced: Reduced, course: Course, compiled: float, resumable: bool
) -> Solution:
    """The solution that a run has come to."""
    state = at_home(course.state)
    x, W, choices = solver.finish(state)
    times = {"seconds": course.seconds, "compile_seconds": compiled}
    more = {"retreats": len(course.retreats)} if course.retreats else {}
    return prepared.lift(
        x,
        W,
        result=course.result,
        detail=f"It happened at step {course.step + 1}." if course.result is Result.DIVERGED else "",
        history=course.history.curves(),
        stats=_statistics(reduced, state) | times | more,
        choices=choices | course.words(),
        state=Saved(archive.to_plain(state), identity(solver, prepared, state)) if resumable else None,
    )
