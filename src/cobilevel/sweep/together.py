"""Many runs of a solver as one compiled program: instances, keys and step sizes are traced, and only shapes compile."""

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ..iteration import Solver, advance


def stacked(items: Sequence[PyTree]) -> PyTree:
    """Stacks trees of one structure, their arrays along a new leading axis; everything else is taken from the first.

    **Arguments:**

    - `items`: a list of trees.

    **Example:**

    >>> together = cb.sweep.stacked([{"x": jnp.zeros(2)}, {"x": jnp.ones(2)}])
    >>> together["x"].shape
    (2, 2)
    """
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *items)


def taken(stack: PyTree, rows: Any) -> PyTree:
    """One row, or several, of a ``stacked`` tree.

    **Arguments:**

    - `stack`: the result of ``stacked``.
    - `rows`: an index, or an array of indices.

    **Example:**

    >>> together = cb.sweep.stacked([{"x": jnp.zeros(2)}, {"x": jnp.ones(2)}])
    >>> cb.sweep.taken(together, 1)["x"].tolist()
    [1.0, 1.0]
    """
    return jax.tree.map(lambda leaf: leaf[rows] if eqx.is_array(leaf) else leaf, stack)


@eqx.filter_jit
def _advanced(solver: Solver, problems: PyTree, runs: PyTree, states: Any, count: Any, vmapped: int, observe: Any):
    """Begins runs of `count` steps where there are no states yet, or else takes them so many steps further."""

    def one(item):
        (instance, key, settings), state = item
        chosen, problem = replace(solver, **settings), taken(problems, instance)
        if state is None:
            return chosen.init(problem, key, count)
        state, _ = advance(chosen, problem, state, count)
        return state, {} if observe is None else observe(state, instance)

    if vmapped >= len(runs[0]):
        return jax.vmap(one)((runs, states))
    return jax.lax.map(one, (runs, states), batch_size=vmapped if vmapped > 1 else None)


def solve_all(
    solver: Solver,
    problems: PyTree,
    instances: Int[Array, " r"],
    keys: Array,
    settings: Mapping[str, Array],
    steps: int,
    chunk: int = 50,
    block: int | None = None,
    vmapped: int | None = None,
    threads: int | None = None,
    observe: Any = None,
    tell: Callable[[float], None] | None = None,
) -> tuple[Any, dict[str, np.ndarray], float]:
    """Runs a solver for `steps` steps from each key, compiled once for each shape.

    **Arguments:**

    - `problems`: reduced problems of one shape, ``stacked``; `instances`: which of them each run solves.
    - `settings`: attributes of the solver, one value per run.
    - `chunk`: steps between two observations.
    - `observe`: a module called at each observation, ``observe(state, instance)``, which returns named arrays.
    - `block`: how many runs make one program; `vmapped`: how many of these advance together (the others follow one
      after another), by default one on a CPU and all on a GPU; `threads`: how many programs run at a time.
    - `tell`: called with the share done, after each observation.
    - `solver`: a stochastic solver; `keys`: one per run; `steps`: how many steps each run takes.

    **Returns:** the last states, the observations (run by observation), and seconds per run without compilation.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> problem = cb.sweep.stacked([cb.reduce(case.problem, cb.Chebyshev(3), case.train)])
    >>> keys, outer = jax.random.split(jax.random.key(0), 2), jnp.array([0.01, 0.1])
    >>> which, solver = jnp.zeros(2, int), cb.SOBA(0.1, 0.01, 0.1)
    >>> states, seen, seconds = cb.sweep.solve_all(solver, problem, which, keys, {"outer": outer}, 20)
    >>> states.x.shape
    (2, 2)
    """
    cores, number = os.cpu_count() or 1, len(instances)
    block = max(4, 32 // cores) if block is None else block
    block = max(1, block // 4) if number <= max(1, block // 4) else block  # a quarter, where there are only so few
    vmapped = min(block, (1 if jax.default_backend() == "cpu" else block) if vmapped is None else vmapped)
    runs = (instances, keys, dict(settings))
    blocks = [taken(runs, np.arange(k, k + block) % number) for k in range(0, number, block)]
    begin = lambda part, count: _advanced(solver, problems, part, None, jnp.int32(count), vmapped, None)
    onward = lambda part, states: _advanced(solver, problems, part, states, chunk, vmapped, observe)
    jax.block_until_ready(onward(blocks[0], begin(blocks[0], 0)))  # compiles; no step
    clock, looks, done = time.perf_counter(), -(-steps // chunk), itertools.count(1)

    def work(part):
        states, seen = begin(part, steps), []
        for _ in range(looks):
            states, looked = onward(part, states)
            seen.append(jax.tree.map(np.asarray, looked))
            if tell is not None:
                tell(next(done) / (looks * len(blocks)))
        return jax.block_until_ready(states), {name: np.stack([p[name] for p in seen], axis=1) for name in seen[0]}

    with ThreadPoolExecutor(cores if threads is None else threads) as pool:
        parts = list(pool.map(work, blocks))
    states = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[:number], *(states for states, _ in parts))
    curves = {name: np.concatenate([part[name] for _, part in parts])[:number] for name in parts[0][1]}
    return states, curves, (time.perf_counter() - clock) / number
