"""Solves again from other starting points: does the answer depend on where the search began?"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ..answer import Solution
from ..inference import natural_step
from ..iteration import Job
from ..keys import generator
from ..reduction import reduce_study

_SPREAD = 3.0  # how far starting points lie: in distances over which f changes by its spread, or that x has moved
_ALIKE_ANSWERS = 1e-4  # relative difference of two objectives, or answers, that are the same


def solve_again(job: Job, first: Solution, restarts: int, key: Array) -> Solution:
    """The best of a solution and of `restarts` others, found with the same basis from other starting points."""
    study, basis = job.study, first.basis.basis
    flat, unravel = ravel_pytree(study.problem.x0)
    step, moved = natural_step(reduce_study(study, basis).whitened(), flat), ravel_pytree(first.x)[0] - flat
    step = _SPREAD * np.maximum(step, np.maximum(np.abs(np.asarray(moved, float)), np.abs(np.asarray(flat, float))))
    rng = generator(key)
    found = [first]
    for _ in range(restarts):
        start = unravel(flat + jnp.asarray(step * rng.standard_normal(len(flat)), flat.dtype))
        found.append(job.at(study.problem.bounds.project(start)).run(basis))
    ended = [one for one in found if one.converged] or [first]
    values = np.array([_final_objective(one) for one in ended])
    best = ended[int(np.nanargmin(values))] if np.isfinite(values).any() else first
    where = np.array([np.asarray(ravel_pytree(one.x)[0], float) for one in ended])
    apart = np.max(np.abs(where - where[0]), axis=0) > _ALIKE_ANSWERS * np.maximum(
        np.abs(where).max(axis=0), step * _ALIKE_ANSWERS
    )
    words = f"{len(ended)} of {len(found)} runs from different starting points converged"
    if np.ptp(values) > _ALIKE_ANSWERS * np.abs(values).max():
        ends = f"{values.min():.6g} to {values.max():.6g}"
        words += f", to objectives from {ends}: the answer depends on x0, and the best is returned."
    elif apart.any():
        words += ", to equal objectives at different x: x is not determined."
    else:
        words += ", all to the same answer."
    return replace(best, choices={**first.choices, "restarts": words})


def _final_objective(solution: Solution) -> float:
    curve = solution.history.get("upper", np.zeros(0))
    return float(curve[-1]) if len(curve) else float("nan")
