"""The solver protocol, the one loop that runs every solver, and how a run ends, in words."""

import hashlib
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from .. import archive, trees
from ..derivatives.ledger import Ledger
from ..progress import ProgressBar
from ..reduction.reduced import Reduced
from ..reduction.result import Result
from ..reduction.solution import Saved, Solution


class State(eqx.Module):
    """Everything that evolves; solvers add their own fields."""

    x: PyTree[Array]
    W: PyTree[Array]
    step: Int[Array, ""]
    limit: Int[Array, ""]
    result: Int[Array, ""]
    ledger: Ledger


def fresh(reduced: Reduced, steps: Any) -> dict[str, Any]:
    """The fields every state begins with."""
    return {
        "x": reduced.project(reduced.x0),
        "W": reduced.W0,
        "step": jnp.int32(0),
        "limit": jnp.asarray(steps, jnp.int32),
        "result": jnp.int32(Result.RUNNING),
        "ledger": Ledger.empty(),
    }


class Solver(eqx.Module):
    """A solver is a frozen record of hyperparameters with ``init``, ``step`` and ``terminate``."""

    options: ClassVar[tuple[str, ...]] = ()  # what ``solve`` may set besides ``steps``
    default_steps: ClassVar[int] = 1000
    chunk: ClassVar[int] = 100  # steps between two looks at the clock

    def measure(self, reduced: Reduced, key: Array) -> Any:
        """What ``init`` needs to know of the problem; ``None`` where that is nothing."""
        return None

    def prepare(self, reduced: Reduced) -> Reduced:
        """The form of the problem this solver works on."""
        return reduced

    @abstractmethod
    def init(self, reduced: Reduced, key: Array, steps: Any, measured: Any = None) -> State:
        """The state before the first step, for a run of at most `steps`; `measured` is what ``measure`` returned."""

    @abstractmethod
    def step(self, reduced: Reduced, state: Any) -> State:
        """One step; ``state.step`` is advanced by the loop."""

    def terminate(self, reduced: Reduced, state: Any) -> Int[Array, ""]:
        """The result so far, ``Result.RUNNING`` to go on."""
        return state.result

    def spent(self, state: Any) -> Int[Array, ""]:
        """The result to report where the run has used up its steps."""
        return jnp.int32(Result.BUDGET)

    def told(self, state: Any) -> dict[str, str]:
        """What was chosen on the way, for ``solution.choices``."""
        return {}

    def answer(self, state: Any) -> tuple[PyTree, PyTree]:
        """The ``(x, W)`` to return."""
        return state.x, state.W

    @abstractmethod
    def record(self, state: Any) -> dict[str, Array]:
        """Scalars to keep in the history."""


@eqx.filter_jit
def advance(solver: Solver, reduced: Reduced, state: State, count: int) -> tuple[State, tuple]:
    """Up to `count` steps, fewer where the run ends or reaches its limit; with records and which of them are real."""

    def move(before: State) -> State:
        after = solver.step(reduced, before)
        ended = solver.terminate(reduced, after)
        after = eqx.tree_at(lambda s: (s.step, s.result), after, (before.step + 1, jnp.asarray(ended, jnp.int32)))
        failed = eqx.tree_at(lambda s: s.result, before, jnp.int32(Result.DIVERGED))
        fine = trees.finite((after.x, after.W)) & (after.result != Result.DIVERGED)
        return jax.lax.cond(fine, lambda: after, lambda: failed)

    def maybe(state: State, _: None):
        active = (state.result == Result.RUNNING) & (state.step < state.limit)
        state = jax.lax.cond(active, move, lambda s: s, state)
        return state, (solver.record(state), active & (state.result != Result.DIVERGED))

    return jax.lax.scan(maybe, state, None, length=count)


@eqx.filter_jit
def _start(solver: Solver, reduced: Reduced, key: Array, steps: Any, measured: Any) -> State:
    state = solver.init(reduced, key, steps, measured)
    return eqx.tree_at(lambda s: s.result, state, jnp.asarray(solver.terminate(reduced, state), jnp.int32))


def identity(solver: Solver, reduced: Reduced, state: Any) -> str:
    """What a state belongs to: its own structure, the solver, the basis, and a digest of data and bounds."""
    digest = hashlib.sha256()
    parts = (reduced.upper_source, reduced.lower_source, reduced.problem.x_bounds, reduced.coordinates)
    for leaf in jax.tree.leaves(eqx.filter(parts, eqx.is_array)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    bare = replace(solver, tolerance=None) if hasattr(solver, "tolerance") else solver  # that one may be changed
    settings = jax.tree.structure(eqx.filter(bare, eqx.is_array))  # whole numbers, and which step sizes were given
    words = f"{archive.fingerprint(state)} {settings} {reduced.basis.basis!r}"
    return f"{words} {digest.hexdigest()}"


def resume_state(solver: Solver, reduced: Reduced, key: Array, steps: int, saved: Saved) -> State:
    """The state a snapshot holds, with a new limit; raises where it belongs to another solver or problem."""
    like = eqx.filter_eval_shape(_start, solver, reduced, key, jnp.int32(steps), None)
    if identity(solver, reduced, like) != saved.structure:
        raise ValueError(
            "resume: the saved state belongs to another solver or other settings of it, another basis, data, bounds or "
            "precision. Pass the same ones as for the run that is to go on."
        )
    state = archive.from_plain(saved.leaves, like)
    result = Result.RUNNING if Result(int(state.result)).resumable else int(state.result)
    return eqx.tree_at(lambda s: (s.limit, s.result), state, (jnp.asarray(steps, jnp.int32), jnp.int32(result)))


def run(
    solver: Solver,
    reduced: Reduced,
    key: Array,
    steps: int,
    progress: bool | None = None,
    resume: Saved | None = None,
    observe: Callable[[State], None] | None = None,
) -> Solution:
    """Runs a solver to its end and lifts what it found."""
    clock = time.perf_counter()
    prepared = solver.prepare(reduced)
    if resume is None:
        for_measure, for_run = jax.random.split(key)
        state = _start(solver, prepared, for_run, jnp.int32(steps), solver.measure(prepared, for_measure))
    else:
        state = resume_state(solver, prepared, key, steps, resume)
    idle = eqx.tree_at(lambda s: s.limit, state, jnp.int32(0))
    jax.block_until_ready(advance(solver, prepared, idle, solver.chunk)[0].step)  # compiles, and does nothing
    compiled = time.perf_counter()
    records: list[dict[str, np.ndarray]] = []
    with ProgressBar(steps, type(solver).__name__, progress) as bar:
        while int(state.result) == Result.RUNNING and int(state.step) < steps:
            state, (record, real) = advance(solver, prepared, state, solver.chunk)
            real = np.asarray(real)
            records.append({name: np.asarray(curve)[real] for name, curve in record.items()})
            if observe is not None:
                observe(state)
            bar.update(int(state.step), " ".join(f"{k} {v[-1]:.3g}" for k, v in records[-1].items() if len(v)))
    if int(state.result) == Result.RUNNING:
        state = eqx.tree_at(lambda s: s.result, state, jnp.asarray(solver.spent(state), jnp.int32))
    finished = time.perf_counter()
    names = records[0] if records else {}
    result = Result(int(state.result))
    words = result.words() + (f" It happened at step {int(state.step) + 1}." if result == Result.DIVERGED else "")
    x, W = solver.answer(state)
    held = sum(leaf.size for leaf in jax.tree.leaves((reduced.x0, reduced.W0)))
    item = jax.tree.leaves(reduced.W0)[0].dtype.itemsize
    stats = {
        "steps": int(state.step),
        "seconds": finished - compiled,
        "compile_seconds": compiled - clock,
        "oracles": state.ledger.totals(),
        "samples": sum(kind["samples"] for kind in state.ledger.totals().values()),
        "functions": reduced.basis.size,
        "numbers_held": held,
        "bytes": held * item,
        "state_bytes": sum(leaf.nbytes for leaf in archive.to_plain(state)),
    }
    if reduced.whitening is not None:
        stats["rank"] = reduced.whitening.rank
    return prepared.lift(
        x,
        W,
        converged=result.good,
        result=words,
        history={name: np.concatenate([part[name] for part in records]) for name in names},
        stats=stats,
        choices=solver.told(state),
        state=Saved(archive.to_plain(state), identity(solver, prepared, state)),
    )
