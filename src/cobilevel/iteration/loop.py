"""The one loop that runs every solver."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import archive, trees
from ..answer import Result, Saved, Solution
from ..programs import program, program_of_steps, put
from ..progress import ProgressBar
from ..reduction import Bilevel, Reduced
from .resume import identity, resume_state
from .solver import Solver, State


@program_of_steps(lambda solver, *_: solver.many_steps)
def advance(solver: Solver, reduced: Bilevel, state: State, count: int) -> tuple[State, tuple[dict[str, Array], Array]]:
    """Up to `count` steps, fewer where the run ends or reaches its limit; with records and which of them are real."""

    def move(before: State) -> State:
        after = eqx.tree_at(lambda s: s.clock.step, solver.step(reduced, before), before.step + 1)
        after = eqx.tree_at(lambda s: s.clock.result, after, solver.terminate(reduced, after))
        failed = eqx.tree_at(lambda s: s.clock.result, before, jnp.int32(Result.DIVERGED.code))
        fine = trees.finite((after.x, after.W)) & (after.result != Result.DIVERGED.code)
        return jax.lax.cond(fine, lambda: after, lambda: failed)

    def maybe(state: State, _: None) -> tuple[State, tuple[dict[str, Array], Array]]:
        active = state.clock.running & (state.step < state.limit)
        state = jax.lax.cond(active, move, lambda s: s, state)
        return state, (state.record(), active & (state.result != Result.DIVERGED.code))

    return jax.lax.scan(maybe, state, None, length=count)


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
) -> Solution:
    """Runs a solver to its end, or a saved run on to it, and lifts what it found.

    `resumable`: whether the state is kept to go on from, which takes a look at all the data.
    """
    clock = time.perf_counter()
    prepared = solver.prepare(reduced)
    bare = prepared.ordinary()  # programs for problems of one shape are shared, whatever their basis
    if resume is None:
        state = _judged(solver, bare, solver.init(prepared, key, put(np.int32(steps))))
    else:
        state = resume_state(solver, prepared, key, steps, resume)
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
