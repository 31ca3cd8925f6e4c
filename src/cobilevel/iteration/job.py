"""iteration.job."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from ..derivatives import oracles
from ..lower.damped_newton import DENSE_LIMIT
from ..problem.data import Data, Product, Stream, levels
from ..problem.study import lower_depends_on_noise
from ..reduction.batches import Endless
from ..reduction.reduced import Reduced, build
from ..reduction.result import Result
from ..reduction.solution import Solution
from .loop import run

_CHECKED_ROWS = 100_000  # the largest pool over which a solution's convexity is looked at


def _solve_with(problem, samples, basis, choices, arguments, resume) -> Solution:
    solver, key, limit, progress = arguments
    reduced = build(problem, basis, samples)
    rank = None if reduced.whitening is None else reduced.whitening.rank
    if rank is not None and rank < reduced.basis.size:
        choices = choices | {
            "rank": f"the observed contexts tell apart {rank} of the {reduced.basis.size} functions; the other "
            "directions keep their start (where a cell holds no context, the policy is y0)."
        }
        choices = choices | _unseen(reduced)
    if resume is not None and resume.state is None:
        raise ValueError("resume: this solution holds no solver state; solve from the beginning.")
    found = run(solver, reduced, key, limit, progress, None if resume is None else resume.state)
    found = replace(found, choices=choices | dict(found.choices))
    return _check_convexity(reduced, samples, found)


def _unseen(reduced: Reduced) -> dict[str, str]:
    """Warns where the upper level needs the policy at contexts of which the lower level has no sample."""
    if reduced.upper_source is reduced.lower_source or isinstance(reduced.upper_source, Endless):
        return {}
    assert reduced.whitening is not None
    phi = reduced.upper_source.contexts_pool().features
    seen = (phi @ reduced.whitening.transform) @ reduced.whitening.inverse
    size = jnp.linalg.norm(phi, axis=1)
    lost = int(jnp.sum(jnp.linalg.norm(phi - seen, axis=1) > 1e-3 * size))
    if not lost:
        return {}
    words = (
        f"{lost} of {len(phi)} upper-level contexts lie where the lower level has no samples to tell the policy, which "
        "keeps y0 there in part. Give the lower level contexts there, or take a smaller basis."
    )
    warnings.warn(words, stacklevel=4)
    return {"unseen": words}


def _check_convexity(reduced: Reduced, samples: Data, solution: Solution) -> Solution:
    """Looks at ``d22 g`` at every observed context along the policy: where it is not convex, the solution says so.

    Only where single samples show the conditional mean, that is, without lower-level noise; with noise the solver's own
    test, that the mean Hessian is positive definite, is all that data can show.
    """
    problem, lower = reduced.problem, levels(samples)[1]
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    if size > 64 or isinstance(lower, Stream | Product) or lower_depends_on_noise(problem, samples):
        return solution
    pool = reduced.lower_pool
    if len(pool) > _CHECKED_ROWS or len(pool) * size > DENSE_LIMIT * 1000:
        return solution
    least = np.asarray(oracles.lower_curvatures(reduced, solution.x, solution.W, pool))
    bent, flat = least < -1e-6, np.abs(least) < 1e-10
    if not bent.any() and flat.mean() < 0.5:
        return solution
    kind, count = ("Negative", bent.sum()) if bent.any() else ("No", flat.sum())
    words = f"{Result.NOT_CONVEX.words()} ({kind} curvature in some direction at {count} of {len(least)} contexts.)"
    warnings.warn(words, stacklevel=3)
    return replace(solution, converged=False, result=words)
