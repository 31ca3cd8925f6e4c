"""Many solves as one compiled program.

Instances, seeds and step sizes are traced axes; only shapes recompile. How many runs advance together (vmapped) and
how many after each other (mapped) is a matter of the machine, so it is measured.
"""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ..iteration import Result, Solver, State, advance


class Pool(eqx.Module):
    """Problems of one shape, stacked along a leading axis."""

    arrays: PyTree[Array]
    rest: Any = eqx.field(static=True)

    @staticmethod
    def of(items: Sequence[Any]) -> "Pool":
        parts = [eqx.partition(item, eqx.is_array) for item in items]
        leaves, structure = jax.tree.flatten(parts[0][1])
        return Pool(jax.tree.map(lambda *a: jnp.stack(a), *(arrays for arrays, _ in parts)), (tuple(leaves), structure))

    def __getitem__(self, i: Int[Array, ""]) -> Any:
        leaves, structure = self.rest
        return eqx.combine(jax.tree.map(lambda a: a[i], self.arrays), jax.tree.unflatten(structure, leaves))


class Trials(eqx.Module):
    """Which runs: for each its instance in the pool, its key, and the settings that replace the solver's own."""

    instance: Int[Array, " r"]
    key: Array
    settings: dict[str, Array]

    def __len__(self) -> int:
        return len(self.instance)

    def take(self, rows: Any) -> "Trials":
        """The trials at the given positions."""
        return jax.tree.map(lambda a: a[rows], self)


@dataclass(frozen=True)
class How:
    """How many runs make one program (`block`), how many of these are vmapped (`together`, the others are mapped, one
    after the other), and how many programs run at a time (`workers`)."""

    block: int = max(4, 32 // (os.cpu_count() or 1))
    together: int = 1
    workers: int = os.cpu_count() or 1

    def fitting(self, count: int) -> "How":
        """The same, in quarter blocks where there are only so few runs."""
        quarter = max(1, self.block // 4)
        return replace(self, block=quarter, together=min(self.together, quarter)) if count <= quarter else self


def _map_runs(function: Callable, items: PyTree, together: int) -> PyTree:
    count = len(jax.tree.leaves(items)[0])
    if together >= count:
        return jax.vmap(function)(items)
    return jax.lax.map(function, items, batch_size=together if together > 1 else None)


@eqx.filter_jit
def _begin(solver: Solver, pool: Pool, trials: Trials, steps: Any, together: int) -> State:
    def one(trial):
        chosen, reduced = replace(solver, **trial.settings), pool[trial.instance]
        return chosen.init(reduced, trial.key, steps)

    return _map_runs(one, trials, together)


@eqx.filter_jit
def _onward(solver: Solver, pool: Pool, trials: Trials, states: State, count: int, together: int, observe: Any):
    def one(item):
        trial, state = item
        chosen, reduced = replace(solver, **trial.settings), pool[trial.instance]
        state, _ = advance(chosen, reduced, state, count)
        return state, {} if observe is None else observe(state, trial.instance)

    return _map_runs(one, (trials, states), together)


@dataclass(frozen=True)
class Bundle:
    """What a bundle of runs came to: their last states, what was seen on the way (run by look), and seconds a run."""

    states: Any
    curves: dict[str, np.ndarray]
    seconds: float
    compile_seconds: float

    @property
    def diverged(self) -> np.ndarray:
        return np.asarray(self.states.result) == Result.DIVERGED.code


def solve_all(
    solver: Solver,
    pool: Pool,
    trials: Trials,
    steps: int,
    chunk: int = 50,
    how: How | None = None,
    observe: Any = None,
    tell: Callable[[float], None] | None = None,
) -> Bundle:
    """Runs all trials for so many steps. Compiled once for each shape, whatever the number of trials and steps.

    **Arguments:**

    - `chunk`: steps between two looks, at each of which `observe(state, instance)` is called, a module that returns
      named arrays.
    - `how`: how many runs to a program, and how many of these are vmapped.
    - `tell`: called with the share done, after each look.
    """
    how = (How() if how is None else how).fitting(len(trials))
    clock = time.perf_counter()
    blocks = [trials.take(np.arange(k, k + how.block) % len(trials)) for k in range(0, len(trials), how.block)]
    idle = _begin(solver, pool, blocks[0], jnp.int32(0), how.together)
    jax.block_until_ready(_onward(solver, pool, blocks[0], idle, chunk, how.together, observe))  # compiles; no step
    compiled = time.perf_counter()
    looks, done = -(-steps // chunk), itertools.count(1)

    def work(block):
        states, seen = _begin(solver, pool, block, jnp.int32(steps), how.together), []
        for _ in range(looks):
            states, looked = _onward(solver, pool, block, states, chunk, how.together, observe)
            seen.append(jax.tree.map(np.asarray, looked))
            if tell is not None:
                tell(next(done) / (looks * len(blocks)))
        curves = {name: np.stack([part[name] for part in seen], axis=1) for name in seen[0]}
        return jax.block_until_ready(states), curves

    with ThreadPoolExecutor(how.workers) as threads:
        parts = list(threads.map(work, blocks))
    join = lambda *leaves: jnp.concatenate(leaves)[: len(trials)]
    states = jax.tree.map(join, *(states for states, _ in parts))
    curves = {name: np.concatenate([part[name] for _, part in parts])[: len(trials)] for name in parts[0][1]}
    return Bundle(states, curves, (time.perf_counter() - compiled) / len(trials), compiled - clock)
