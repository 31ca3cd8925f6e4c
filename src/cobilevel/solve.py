"""``solve``: the front door."""

import difflib
import time
import warnings
from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from . import oracles
from .adapt import choose_basis, functions
from .basis import Basis
from .checks import whole
from .data import Data, Levels, Product, Stream, levels
from .lower import DENSE_LIMIT
from .problem import Problem, check, lower_depends_on_noise, working_dtype
from .reduction import Endless, Reduced, build
from .solution import Solution
from .solver import Result, Solver, run
from .solvers import Newton
from .store import as_key

_STREAM_ROWS = 10_000
_CHECKED_ROWS = 100_000  # the largest pool over which a solution's convexity is looked at
_OPTIONS = ("basis", "solver", "steps", "batch", "key", "progress", "resume")


def solve(
    problem: Problem,
    samples: Data,
    basis: Basis | None = None,
    solver: Solver | None = None,
    steps: int | None = None,
    key: Any = 0,
    progress: bool | None = None,
    resume: Solution | None = None,
    **options: Any,
) -> Solution:
    """Solves a contextual bilevel problem from samples.

    **Arguments:**

    - `problem`, `samples`: what to solve, and from what.
    - `basis`: how the policy is written; chosen from the data when left out.
    - `solver`: ``Newton()`` when left out.
    - `steps`: the most steps to take, counted from the first one also after `resume`.
    - `key`: seed of everything random, an integer or a JAX key.
    - `progress`: show a progress bar; by default on a terminal, after two seconds.
    - `resume`: an earlier solution of the same problem with the same basis and solver, to go on from.
    - further options the solver knows, such as ``batch`` for ``StocBiO``.

    **Returns:** a ``Solution``; ``solution.choices`` tells what was chosen.
    """
    began = time.perf_counter()
    check(problem, samples)
    solver, choices = _configure(solver, steps, options)
    key = as_key(key)
    if resume is not None and not isinstance(resume, Solution):
        raise TypeError(f"resume must be a Solution (cb.load reads one from a file), got {type(resume).__name__}.")
    for_stream, for_basis, for_solver = jax.random.split(key, 3)
    if isinstance(solver, Newton) and any(isinstance(level, Stream) for level in levels(samples)):
        if "solver" not in choices:
            raise ValueError(
                "Newton needs a finite pool, and samples is a Stream. Use StocBiO, or draw a sample yourself: "
                "samples = stream.draw(key, 10_000)."
            )
        samples = _draw_once(samples, for_stream)
        choices["samples"] = f"{_STREAM_ROWS} samples drawn once from the stream, and the problem solved on them."
    dtype = working_dtype(problem, samples)
    if dtype != np.float64:
        eps = float(jnp.finfo(dtype).eps)
        choices["precision"] = (
            f"{np.dtype(dtype).name}: tolerances scale with its precision of {eps:.1g}. For more, set "
            "jax.config.update('jax_enable_x64', True) before making arrays."
        )
    limit = solver.default_steps if steps is None else steps
    arguments = (solver, for_solver, limit, progress)
    if basis is None and resume is not None:
        basis = resume.basis.basis
    if basis is None:
        solution = _solve_choosing(problem, samples, choices, arguments, for_basis)
    else:
        solution = _solve_with(problem, samples, basis, choices, arguments, resume)
    return replace(solution, stats={**solution.stats, "total_seconds": time.perf_counter() - began})


def _solve_choosing(problem, samples, choices, arguments, key) -> Solution:
    """Solves with a basis chosen at ``x0``, and again from there if another one is chosen at the solution."""
    basis, reason = choose_basis(problem, samples, problem.x0, key)
    # at x0 the policy may happen not to vary with the context (x0 = 0 often does that): look beside it too
    for side in jax.random.split(jax.random.fold_in(key, 1), 2):
        nudge = lambda a, side=side: a + (1 + jnp.abs(a)) * jax.random.normal(side, a.shape, a.dtype)
        beside = jax.tree.map(jnp.clip, jax.tree.map(nudge, problem.x0), *problem.x_bounds)
        other, other_reason = choose_basis(problem, samples, beside, key)
        if functions(other) > functions(basis):
            basis, reason = other, f"{other_reason} (At a point beside x0; at x0 itself fewer would do.)"
    solution = _solve_with(problem, samples, basis, choices | {"basis": reason}, arguments, None)
    again, reason_there = choose_basis(problem, samples, solution.x, key)
    if functions(again) <= functions(basis):
        return solution
    choices = choices | {
        "basis": f"{reason_there} (Chosen again at the solution with {basis!r}, which was chosen at x0.)"
    }
    moved = eqx.tree_at(lambda p: p.x0, problem, solution.x)
    return _solve_with(moved, samples, again, choices, arguments, None)


def _configure(solver: Solver | None, steps: int | None, options: dict[str, Any]) -> tuple[Solver, dict[str, str]]:
    """The solver with its options set, and what had to be chosen; raises on options it does not know."""
    choices: dict[str, str] = {}
    if solver is None:
        solver = Newton()
        choices["solver"] = "Newton(): all samples at once, second order."
    if not isinstance(solver, Solver):
        hint = " (an instance: write cb.Newton(), with parentheses)" if isinstance(solver, type) else ""
        raise TypeError(f"solver must be a solver such as cb.Newton(), got {solver!r}{hint}.")
    name = type(solver).__name__
    for option in options:
        if option in solver.options:
            continue
        if option in _OPTIONS:
            takes = ", ".join(("steps", *solver.options))
            raise TypeError(f"{name} does not take the option {option!r}; it takes {takes}. Leave it out.")
        if option in {part.name for part in fields(solver)}:
            raise TypeError(f"solve() does not take {option!r}: give it to the solver, cb.{name}({option}=...).")
        close = difflib.get_close_matches(option, _OPTIONS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(_OPTIONS)}."
        raise TypeError(f"solve() does not know the keyword {option!r}.{hint}")
    if steps is not None:
        whole("steps", steps)
    return replace(solver, **options) if options else solver, choices


def _draw_once(samples: Data, key: Any) -> Data:
    parts = [
        level.draw(k, _STREAM_ROWS) if isinstance(level, Stream) else level
        for level, k in zip(levels(samples), jax.random.split(key), strict=True)
    ]
    return Levels(*parts) if isinstance(samples, Levels) else parts[0]


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
