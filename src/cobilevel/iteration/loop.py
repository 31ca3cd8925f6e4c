"""The one loop that runs every solver."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, UInt32

from .. import archive, trees
from ..answer import Result, Saved, Solution
from ..derivatives import Ledger, added
from ..programs import program, program_of_steps, put
from ..progress import ProgressBar
from ..reduction import Bilevel, Reduced
from .resume import identity, resume_state
from .solver import Solver, State


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


@program_of_steps(lambda solver, *_: solver.many_steps)
def advance(solver: Solver, reduced: Bilevel, state: State, count: int) -> tuple[State, tuple[dict[str, Array], Array]]:
    """Up to `count` steps, fewer where the run ends or reaches its limit; with records and which of them are real.

    Nothing is kept on the way that a failed step could be taken back by: a run that diverges is passed through again,
    up to the step before.
    """
    turn, first = _Turn.of(solver, reduced, state), state.step
    bare = eqx.tree_at(_book, state, None)
    room = jnp.where(state.clock.running, jnp.clip(state.limit - first, 0, count), 0)
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


@program
def _judged(solver: Solver, reduced: Bilevel, state: State) -> State:
    """The state with the result as the solver sees it, outside of a step."""
    return eqx.tree_at(lambda s: s.clock.result, state, solver.terminate(reduced, state))


def _going(state: State) -> bool:
    return int(state.result) == Result.RUNNING.code and int(state.step) < int(state.limit)


def _statistics(reduced: Reduced, state: State) -> dict[str, Any]:
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
    resume: Saved | None = None,
    observe: Callable[[State], None] | None = None,
    resumable: bool = True,
    filled: bool = False,
) -> Solution:
    """Runs a solver to its end, or a saved run on to it, and lifts what it found.

    `resumable`: whether the state is kept to go on from, which takes a look at all the data. `filled`: whether problems
    of several widths share programs.
    """
    clock = time.perf_counter()
    prepared = solver.prepare(reduced)
    prepared = prepared.filled() if filled else prepared
    bare = prepared.ordinary()  # programs for problems of one shape are shared, whatever their basis
    if resume is None:
        state = _judged(solver, bare, solver.init(prepared, key, put(np.int32(steps))))
    else:
        state = resume_state(solver, prepared, key, steps, resume)
    bare = solver.ready(bare)
    idle = eqx.tree_at(lambda s: s.clock.limit, state, put(np.int32(0)))
    jax.block_until_ready(advance(solver, bare, idle, solver.chunk)[0].step)  # compiles, and does nothing
    compiled = time.perf_counter()
    records: list[dict[str, np.ndarray]] = []
    with ProgressBar(steps, type(solver).__name__, progress) as bar:
        while _going(state):
            state, (record, real) = advance(solver, bare, state, solver.chunk)
            real = np.asarray(real)
            records.append({name: np.asarray(curve)[real] for name, curve in record.items()})
            if observe is not None:
                observe(state)
            bar.update(int(state.step), " ".join(f"{k} {v[-1]:.3g}" for k, v in records[-1].items() if len(v)))
    if int(state.result) == Result.RUNNING.code:  # a run resumed with no steps left
        state = _judged(solver, bare, state)
    times = {"seconds": time.perf_counter() - compiled, "compile_seconds": compiled - clock}
    result = Result.of(int(state.result))
    x, W, choices = solver.finish(state)
    return prepared.lift(
        x,
        W,
        result=result,
        detail=f"It happened at step {int(state.step) + 1}." if result is Result.DIVERGED else "",
        history={name: np.concatenate([part[name] for part in records]) for name in (records[0] if records else ())},
        stats=_statistics(reduced, state) | times,
        choices=choices,
        state=Saved(archive.to_plain(state), identity(solver, prepared, state)) if resumable else None,
    )
