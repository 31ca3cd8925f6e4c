"""How a saved run goes on: what its state belongs to, and the state read back."""

import hashlib
import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import archive
from ..answer import Result, Saved
from ..basis import basis_to_json
from ..reduction import Reduced
from .solver import Solver, State


def identity(solver: Solver, reduced: Reduced, state: State) -> str:
    """What a state belongs to: its own structure, the solver, the basis, and a digest of data and bounds."""
    digest = hashlib.sha256()
    parts = (reduced.upper_source, reduced.lower_source, reduced.problem.x_bounds, reduced.coordinates)
    for leaf in jax.tree.leaves(eqx.filter(parts, eqx.is_array)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    bare = replace(solver, tolerance=None) if hasattr(solver, "tolerance") else solver  # that one may be changed
    settings = jax.tree.structure(eqx.filter(bare, eqx.is_array))  # whole numbers, and which step sizes were given
    basis = json.dumps(basis_to_json(reduced.basis.basis), sort_keys=True)
    return f"{archive.fingerprint(state)} {settings} {basis} {digest.hexdigest()}"


def resume_state(solver: Solver, reduced: Reduced, key: Array, steps: int, saved: Saved) -> State:
    """The state a snapshot holds, with a new limit; raises where it belongs to another solver or problem."""
    like = eqx.filter_eval_shape(solver.init, reduced, key, jnp.int32(steps))
    if identity(solver, reduced, like) != saved.structure:
        raise ValueError(
            "resume: the saved state belongs to another solver or other settings of it, another basis, data, bounds or "
            "precision. Pass the same ones as for the run that is to go on."
        )
    state = archive.from_plain(saved.leaves, like)
    reached = int(state.result)
    result = Result.RUNNING.code if Result.of(reached).resumable else reached
    return eqx.tree_at(lambda s: (s.clock.limit, s.clock.result), state, (jnp.int32(steps), jnp.int32(result)))
