"""The one loop that runs every solver."""

import time
from collections.abc import Callable
from dataclasses import replace
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
from .interruption import Interrupted, Signals
from .resume import begin, identity, with_result
from .solver import Solver, State

_LONG = 1.0  # seconds that steps may take before they are looked at
CHUNKS = 10  # in one call of a compiled program, at most: the call takes as long as some fifty small steps


class _Turn(eqx.Module):
    """One step of a solver, traced: from a state without ledger to the next, and what it spends.

    `known` is what every step spends, as far as that is known before it runs; `places` are the other entries.
    """

    step: Callable[[State], tuple[State, Array]] = eqx.field(static=True)
    known: Ledger
    places: tuple[int, ...] = eqx.field(static=True)

    @staticmethod
    def of(solver: Solver, reduced: Bilevel, state: State) -> "_Turn":
        """Traces a step, once."""
        seen: dict[str, Any] = {}

        def one(state: State) -> tuple[State, Array]:
            after = solver.step(reduced, eqx.tree_at(_book, state, Ledger.page(), is_leaf=lambda v: v is None))
            spent, seen["structure"] = jax.tree.flatten(after.ledger)
            seen["known"] = [leaf if isinstance(leaf, np.ndarray) else np.zeros(2, np.uint32) for leaf in spent]
            seen["places"] = tuple(k for k, leaf in enumerate(spent) if not isinstance(leaf, np.ndarray))
            after = eqx.tree_at(lambda s: (s.clock.step, s.ledger), after, (state.step + 1, None))
            result = solver.terminate(reduced, after)
            fine = trees.finite((after.x, after.W))
            result = jnp.where(fine, result, jnp.int32(Result.DIVERGED.code))
            unknown = [spent[k] for k in seen["places"]]
            table = jnp.stack(unknown) if unknown else jnp.zeros((0, 2), jnp.uint32)
            return eqx.tree_at(lambda s: s.clock.result, after, result), table

        bare = eqx.tree_at(_book, state, None)
        program, shapes = jax.make_jaxpr(one, return_shape=True)(bare)
        call = lambda state: jax.tree.unflatten(
            jax.tree.structure(shapes), jaxpr_as_fun(program)(*jax.tree.leaves(state))
        )
        return _Turn(call, jax.tree.unflatten(seen["structure"], seen["known"]), seen["places"])

    def spent(self, ledger: Ledger, steps: Array, more: UInt32[Array, "places 2"]) -> Ledger:
        """A ledger with what so many steps spent."""
        if not self.places:
            return ledger.plus(self.known, steps)
        rows = jnp.zeros((len(jax.tree.leaves(ledger)), 2), jnp.uint32).at[np.array(self.places)].set(more)
        return ledger.plus(self.known, steps, rows)


def _book(state: State) -> Any:
    return state.ledger


class _Passed(eqx.Module):
    """What a pass over some steps came to: the state without ledger, what is not known of its cost, and records."""

    state: State
    spent: UInt32[Any, "places 2"]
    records: dict[str, Array]


@program_of_steps
def advance(
    solver: Solver, reduced: Bilevel, state: State, count: int, most: Array | None = None
) -> tuple[State, tuple[dict[str, Array], Array]]:
    """Up to `count` steps (or `most`), fewer where the run ends or reaches its limit; with records, some of them real.

    Nothing is kept on the way that a failed step could be taken back by: a run that diverges is passed through again,
    up to the step before.
    """
    turn, first = _Turn.of(solver, reduced, state), state.step
    bare = eqx.tree_at(_book, state, None)
    room = jnp.where(state.clock.running, jnp.clip(state.limit - first, 0, count), 0)
    room = room if most is None else jnp.minimum(room, most)
    zeros = lambda kind: jnp.zeros((count, *kind.shape), kind.dtype)
    empty = _Passed(
        bare,
        jnp.zeros((len(turn.places), 2), jnp.uint32),
        jax.tree.map(zeros, jax.eval_shape(lambda s: s.record(), bare)),
    )

    def onward(most: Array) -> _Passed:
        def going(now: _Passed) -> Array:
            return (now.state.step - first < most) & now.state.clock.running

        def one(now: _Passed) -> _Passed:
            after, more = turn.step(now.state)
            place = now.state.step - first
            enter = lambda curve, value: jax.lax.dynamic_update_index_in_dim(curve, value, place, 0)
            records = jax.tree.map(enter, now.records, after.record())
            return _Passed(after, added(now.spent, more), records)

        return jax.lax.while_loop(going, one, empty)

    def failed(end: _Passed) -> Array:
        return state.clock.running & (end.state.result == Result.DIVERGED.code)

    def again(carry: tuple[Array, Array, _Passed]) -> tuple[Array, Array, _Passed]:
        passes, most, _ = carry
        end = onward(most)
        return passes + 1, jnp.where(failed(end), end.state.step - first - 1, most), end

    unfinished = lambda carry: (carry[0] == 0) | (carry[0] == 1) & failed(carry[2])
    passes, _, end = jax.lax.while_loop(unfinished, again, (jnp.int32(0), room, empty))
    result = jnp.where(passes == 2, jnp.int32(Result.DIVERGED.code), end.state.result)
    steps = end.state.step - first
    ledger = turn.spent(state.ledger, steps, end.spent)
    last = eqx.tree_at(lambda s: (s.clock.result, s.ledger), end.state, (result, ledger), is_leaf=lambda v: v is None)
    return last, (end.records, jnp.arange(count, dtype=jnp.int32) < steps)


def steps_on_host(
    solver: Solver, reduced: Any, state: Any, count: int, most: Any = None
) -> tuple[Any, tuple[dict[str, np.ndarray], np.ndarray]]:
    """The same for a solver whose steps are plain Python."""
    first, reduced = int(state.step), solver.ready(reduced)
    room = min(count, int(state.limit) - first, count if most is None else int(most))
    records: list[dict[str, Any]] = []
    while state.clock.running and len(records) < room:
        after = solver.step(reduced, state)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after.x, after.W))):
            diverged = replace(state.clock, result=np.asarray(Result.DIVERGED.code, np.int32))
            return replace(state, clock=diverged), _joined(records)
        clock = replace(after.clock, step=np.asarray(int(state.step) + 1, np.int32))
        after = replace(after, clock=clock)
        state = replace(after, clock=replace(clock, result=solver.terminate(reduced, after)))
        records.append(state.record())
    return state, _joined(records)


def _joined(records: list[dict[str, Any]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Records of single steps as curves, all of them real."""
    names = records[0] if records else {}
    return {name: np.array([record[name] for record in records]) for name in names}, np.ones(len(records), bool)


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


class _Stride:
    """How many steps to take at once: few enough that a look at them, to stop or to keep them, is never far away."""

    def __init__(self, span: int):
        self._span, self._most = span, 1

    def most(self, step: int) -> int:
        """The steps to take now; every multiple of the span is looked at."""
        return min(self._most, self._span - step % self._span)

    def took(self, seconds: float) -> None:
        """Learns how long the last ones took."""
        if seconds > _LONG:
            self._most = max(1, self._most // 2)
        elif seconds < _LONG / 4:
            self._most = min(self._span, 2 * self._most)


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
    if course.going and not solver.on_host:
        idle = everywhere(eqx.tree_at(lambda s: s.clock.limit, course.state, put(np.int32(0))), bare)
        only_compiled, _ = advance(solver, bare, idle, CHUNKS * solver.chunk, put(np.int32(1)))
        jax.block_until_ready(only_compiled.step)
    compiled = time.perf_counter() - clock
    with ProgressBar(steps, type(solver).__name__, progress) as bar, Signals(ends=kept is not None) as signals:
        _steps_to_end(solver, bare, course, kept, retreats, bar, signals)
    if course.result is Result.RUNNING and not course.going:  # a run resumed with no steps left
        course.state = with_result(solver, bare, course.state)
    found = _lifted(solver, prepared, reduced, course, compiled, resumable)
    if signals.raised is None:
        return found
    if course.going:
        found = replace(found, result=Result.INTERRUPTED, detail=f"(At step {course.step} of {steps}.)")
    go_on = "solve(..., resume=error.solution) goes on from there." if kept is None else kept.words()
    raise Interrupted(f"Interrupted at step {course.step} of {steps}. {go_on}", found, signals.raised)


def _steps_to_end(
    solver: Solver, bare: Any, course: Course, kept: Kept | None, retreats: int, bar: ProgressBar, signals: Signals
) -> None:
    """Steps to the end of the run, or to an interruption."""
    stride, moved = _Stride(solver.chunk if retreats else CHUNKS * solver.chunk), False
    if kept is not None and course.going:
        kept.put(course, at_once=True)
    while course.going:
        began = time.perf_counter()
        most, stop = in_step(bare, stride.most(course.step), signals.raised)
        if stop is not None:
            signals.raised = stop
            break
        forward = steps_on_host if solver.on_host else advance
        state, (record, real) = forward(solver, bare, course.state, CHUNKS * solver.chunk, put(np.int32(most)))
        real = np.asarray(real)
        records = {name: np.asarray(curve)[real] for name, curve in record.items()}
        course.add(state, records, solver.chunk)
        if course.result is Result.DIVERGED and len(course.retreats) < retreats:
            course.retreat()
        took = time.perf_counter() - began
        stride.took(took)
        course.seconds, moved = course.seconds + took, True
        bar.update(course.step, " ".join(f"{k} {v[-1]:.3g}" for k, v in records.items() if len(v)))
        if kept is not None and course.going and signals.raised is None:
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
