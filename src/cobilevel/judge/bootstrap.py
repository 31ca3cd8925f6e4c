"""``bootstrap``: how far ``x`` would move had other samples been drawn."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Shaped

from ..answer import Solution, Uncertainty, as_solved, like_x
from ..checks import entered, whole
from ..inference import infer
from ..iteration import run
from ..keys import as_key
from ..problem import Data, Precision, Problem, Study, Turned, precision_for
from ..programs import Held
from ..progress import ProgressBar
from ..reduction import Batch, Reduced, reduce_with
from ..solvers import Newton
from .evaluate import in_precision_of
from .intervals import TAILS

_FEWEST = 10  # samples, below which those drawn again are too often the same
_ROWS_SHOWN = 40  # coordinates of x that are printed


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The spread of ``x`` over resampled data.

    - `x`: one solution for each resampling, a leading axis before each leaf.
    - `error`: standard errors, shaped like ``x``, infinite where the samples do not determine a coordinate;
      `interval`: pointwise 95% ends.
    - `failed`: resamplings that did not converge, and are left out.
    - `sandwich`: the uncertainty of the solution by the sandwich formula, to compare with.
    """

    x: PyTree[Array]
    error: PyTree[Shaped[np.ndarray, "..."] | np.floating]
    interval: tuple[PyTree, PyTree]
    failed: int
    sandwich: Uncertainty

    def __repr__(self):
        count = len(jax.tree.leaves(self.x)[0])
        lost = f", {self.failed} failed" if self.failed else ""
        errors, told = np.concatenate([np.ravel(a) for a in jax.tree.leaves(self.error)]), self.sandwich
        lines = [("standard error of", "bootstrap", "sandwich", "")]
        for name, own, other, note in zip(told.names, errors, told.error, told.notes, strict=True):
            lines.append((name, f"{own:.3g}", "unknown" if np.isnan(other) else f"{other:.3g}", note))
        more = len(lines) - 1 - _ROWS_SHOWN
        lines = lines[: 1 + _ROWS_SHOWN]
        widths = [max(len(line[k]) for line in lines) for k in range(3)]
        rows = [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}  {d}" for a, b, c, d in lines]
        rows += [f"... and {more} more"] if more > 0 else []
        rows += [*told.undetermined, *([told.why_not] if told.why_not else [])]
        return f"Bootstrap({count} resamplings{lost})\n  " + "\n  ".join(row.rstrip() for row in rows)


def bootstrap(
    problem: Problem,
    solution: Solution,
    samples: Data,
    replicates: int = 100,
    key: Any = 0,
    progress: bool | None = None,
    precision: str | None = None,
) -> Bootstrap:
    """Solves again, from the solution, on samples drawn with replacement from those it was found from.

    **Arguments:**

    - `samples`: the data the solution was found from.
    - `replicates`: how many times; a hundred for standard errors, more for intervals.
    - `precision`: ``"single"`` or ``"double"``; double when left out, whatever JAX is switched to.

    The basis stays as it is: what is resampled is the data, not the choice of functions. Directions in which the
    samples do not determine ``x`` are held where they are; coordinates that belong to one have infinite errors.
    """
    entered("bootstrap", problem, samples, key)
    wanted = precision_for(problem, samples, precision)
    with wanted.context():
        problem = as_solved(problem, solution)
        study = Study.of(problem, samples, wanted)
        found = _resampled(problem, samples, wanted, study, in_precision_of(study, solution), replicates, key, progress)
    return replace(found, x=wanted.back(found.x))


def _resampled(
    problem: Problem,
    samples: Data,
    wanted: Precision,
    study: Study,
    solution: Solution,
    replicates: int,
    key: Any,
    progress: bool | None,
) -> Bootstrap:
    """The spread, in the precision of the study."""
    whole("bootstrap: replicates", replicates, 2)
    if study.endless:
        raise TypeError("bootstrap: a Stream has no samples to draw again from; pass those it was solved on.")
    if min(study.upper.count or 0, study.lower.count or 0) < _FEWEST:
        raise ValueError(f"bootstrap: with fewer than {_FEWEST} samples resampling says nothing about others.")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))
    told, spread = _sandwich(study, solution), Spread.alone(solution.x)
    if told.why_not:
        study = study.at(solution.x)
    else:
        spread = Spread.of(study, solution.x, told)
        study = Study.of(spread.problem(problem), samples, wanted)
    reduced = reduce_with(study, solution.basis, solution.W).whitened() if spread.room else None
    found, failed = [], 0
    with ProgressBar(replicates, "bootstrap", progress) as bar:
        for k in range(replicates):
            one = None if reduced is None else _once(study, reduced, rng)
            place = spread.at if one is None else spread.x(one.x)
            found += [place] if one is None or one.converged else []
            failed += one is not None and not one.converged
            bar.update(k + 1)
    if len(found) < 2:
        raise ValueError(f"bootstrap: {failed} of {replicates} resamplings did not converge; is the solution one?")
    lost, rows = np.isinf(told.error), np.stack([np.asarray(row, float) for row in found])
    ends = [np.where(lost, end, np.quantile(rows, q, axis=0)) for q, end in zip(TAILS, (-np.inf, np.inf), strict=True)]
    error = np.where(lost, np.inf, np.std(rows, axis=0, ddof=1))
    table = jax.vmap(spread.shaped)(jnp.asarray(rows, study.dtype))
    low, high = (like_x(end, solution.x) for end in ends)
    return Bootstrap(table, like_x(error, solution.x), (low, high), failed, told)


def _sandwich(study: Study, solution: Solution) -> Uncertainty:
    """What the solution knows of its uncertainty, or what these samples say of it."""
    told, x = solution.uncertainty, np.asarray(ravel_pytree(solution.x)[0], float)
    if not told.why_not and told.hessian is not None and np.allclose(told.x, x, rtol=1e-6, atol=0):
        return told
    return infer(study, reduce_with(study.at(solution.x), solution.basis, solution.W).whitened(), solution.x)


@dataclass(frozen=True)
class Spread:
    """Where resampled solutions are looked for: at ``at + scales @ u``, flattened.

    In these coordinates the objective curves alike in all directions, whatever units ``x`` is in, and they leave out
    the directions that are not determined. Where there are bounds, each coordinate keeps to itself, and all are there.
    """

    at: Float[Held, " dx"]
    scales: Float[Held, "dx k"]
    shaped: Callable[[Array], PyTree]
    bounds: tuple[Array, Array] | None = None

    @property
    def room(self) -> bool:
        """Whether anything is left to look for."""
        return self.scales.shape[1] > 0

    @staticmethod
    def alone(x: PyTree) -> "Spread":
        """Each coordinate as it is."""
        at, shaped = ravel_pytree(x)
        return Spread(jnp.zeros_like(at), jnp.eye(len(at), dtype=at.dtype), shaped)

    @staticmethod
    def of(study: Study, x: PyTree, told: Uncertainty) -> "Spread":
        """From the curvature of the objective, as wide as the standard errors are."""
        at, shaped = ravel_pytree(x)
        H, C = np.asarray(told.hessian), np.asarray(told.covariance)
        own = np.diag(H)
        fallback = np.maximum(np.abs(np.asarray(at, float)), 1e-3)
        unit = np.where(own > 0, 1 / np.sqrt(np.where(own > 0, own, 1)), fallback)
        bounds = study.problem.bounds.flat()
        lo, hi = np.asarray(bounds.lo, float), np.asarray(bounds.hi, float)
        if np.isfinite(lo).any() or np.isfinite(hi).any():
            width = np.where(np.isfinite(told.error) & (told.error > 0), told.error, unit)
            ends = np.minimum((lo - np.asarray(at)) / width, 0), np.maximum((hi - np.asarray(at)) / width, 0)
            low, high = (jnp.asarray(end, study.dtype) for end in ends)
            return Spread(at, jnp.asarray(np.diag(width), study.dtype), shaped, (low, high))
        flat = np.zeros((0, len(unit))) if told.directions is None else told.directions / unit
        sizes = np.linalg.norm(flat, axis=1, keepdims=True)
        rank = np.linalg.matrix_rank(flat / np.where(sizes > 0, sizes, 1), tol=1e-6) if len(flat) else 0
        kept = np.linalg.svd(flat)[2][rank:].T if rank else np.eye(len(unit))
        values, vectors = np.linalg.eigh(kept.T @ (H * np.outer(unit, unit)) @ kept)
        values = np.maximum(values, 1e-9 * np.max(np.abs(values), initial=0) + np.finfo(float).tiny)
        scales = unit[:, None] * (kept @ vectors / np.sqrt(values))
        typical = np.sqrt(max(np.sum(H * C), 0) / max(scales.shape[1], 1))
        return Spread(at, jnp.asarray(scales * (typical if typical > 0 else 1), study.dtype), shaped)

    def x(self, u: Float[Held, " k"]) -> Float[Held, " dx"]:
        """The flattened decision at these coordinates."""
        return self.at + self.scales @ ravel_pytree(u)[0]

    def problem(self, stated: Problem) -> Problem:
        """The problem stated in these coordinates, starting from the solution."""
        start = jnp.zeros(self.scales.shape[1], self.scales.dtype)
        turned = lambda function: lambda u, y, xi, eta: function(self.shaped(self.x(u)), y, xi, eta)
        return Problem(
            turned(stated.upper),
            turned(stated.lower),
            start,
            stated.y0,
            stated.domain,
            self.bounds,
            lower_noise=stated.lower_noise,
            constraints=tuple(Turned(one, lambda u: self.shaped(self.x(u))) for one in stated.constraints),
            smoothing=stated.smoothing,
        )


def _once(study: Study, reduced: Reduced, rng: np.random.Generator) -> Solution:
    """The solution on samples drawn again."""
    upper_often, lower_often = (level.resample(rng) for level in (study.upper, study.lower))
    upper_often = lower_often if study.shared else upper_often
    lower = _counted(reduced.lower_pool, lower_often)
    upper = lower if study.shared else _counted(reduced.upper_pool, upper_often)
    resampled = reduced.with_pools(upper, lower)
    return run(Newton(), resampled, jax.random.key(0), Newton.default_steps, False, resumable=False)


def _counted(pool: Batch, often: Float[np.ndarray, " n"]) -> Batch:
    """A pool whose rows count so often."""
    weight = pool.weight * jnp.asarray(often, pool.weight.dtype)
    return replace(pool, weight=weight / jnp.mean(weight))
