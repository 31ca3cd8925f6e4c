"""``solve``: the front door."""

import difflib
import time
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .adaptive.rounds import _solve_choosing, _solve_growing, _solve_learning
from .basis.base import Basis
from .checks import positive, whole
from .iteration.job import _solve_with
from .iteration.loop import Solver
from .keys import as_key
from .problem.data import Data, Levels, Stream, levels
from .problem.problem import Problem
from .problem.study import check, working_dtype
from .reduction.solution import Solution
from .solvers import Newton

_STREAM_ROWS = 10_000


_OPTIONS = ("basis", "solver", "steps", "tolerance", "batch", "key", "progress", "resume")


def solve(
    problem: Problem,
    samples: Data,
    basis: Basis | None = None,
    solver: Solver | None = None,
    steps: int | None = None,
    key: Any = 0,
    progress: bool | None = None,
    resume: Solution | None = None,
    tolerance: float | None = None,
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
    - `tolerance`: with no basis given, how much of the upper objective the basis may give away, as a share of its size
      (0.01 is one percent; mind constants in it, and objectives near zero): as few functions are taken as that asks
      for, by an estimate told in `choices`. Left out, the policy is resolved as far as the data show it.
    - further options the solver knows, such as ``batch`` for ``StocBiO``.

    **Returns:** a ``Solution``; ``solution.choices`` tells what was chosen.
    """
    began = time.perf_counter()
    check(problem, samples)
    solver, choices = _configure(solver, steps, tolerance, basis is not None or resume is not None, options)
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
    learns = isinstance(basis, Basis) and not basis.learned
    if resume is not None and (basis is None or (learns and repr(basis) == repr(resume.basis.basis))):
        basis = resume.basis.basis  # what it has learned is not learned again
    if basis is None:
        if tolerance is None:
            solution = _solve_choosing(problem, samples, choices, arguments, for_basis)
        else:
            solution = _solve_growing(problem, samples, choices, arguments, for_basis, tolerance)
    elif learns and resume is None:
        solution = _solve_learning(problem, samples, basis, choices, arguments)
    else:
        solution = _solve_with(problem, samples, basis, choices, arguments, resume)
    return replace(solution, stats={**solution.stats, "total_seconds": time.perf_counter() - began})


def _configure(
    solver: Solver | None, steps: int | None, tolerance: Any, given: bool, options: dict[str, Any]
) -> tuple[Solver, dict[str, str]]:
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
    if tolerance is not None:
        positive("tolerance", tolerance)
        if given:
            raise TypeError(
                "tolerance says how far the basis is grown, and a basis (or a solution to resume, which has one) was "
                "given. Leave one of them out; for the solver's own tolerance, cb.Newton(tolerance=...)."
            )
    return replace(solver, **options) if options else solver, choices


def _draw_once(samples: Data, key: Any) -> Data:
    parts = [
        level.draw(k, _STREAM_ROWS) if isinstance(level, Stream) else level
        for level, k in zip(levels(samples), jax.random.split(key), strict=True)
    ]
    return Levels(*parts) if isinstance(samples, Levels) else parts[0]
