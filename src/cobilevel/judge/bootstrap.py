"""``bootstrap``: how far ``x`` would move with other samples."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from ..answer import Solution, as_solved, check_levels, check_objectives
from ..derivatives import Affine, Expansions, flattened, shaped_like
from ..ground import ProgressBar, as_key, entered, generator, put, whole
from ..inference import Uncertainty, aligned, determined, infer
from ..iteration import Result, steps_on_host
from ..problem import Data, Problem
from ..reduction import reduce_with
from ..solvers import Newton
from ..study import Study, precision_for
from .evaluate import in_precision_of
from .intervals import TAILS

_FEWEST = 10  # samples, below which those drawn again are too often the same


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The spread of ``x`` over resampled data.

    - `x`: one solution for each resampling, along a leading axis of each leaf.
    - `error`: standard errors, shaped like ``x``, infinite where the samples do not determine a coordinate;
      `interval`: the ends of pointwise 95% intervals.
    - `failed`: the number of resamplings that did not converge; they are left out.
    - `sandwich`: the uncertainty of the solution by the sandwich formula, for comparison.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> spread = cb.bootstrap(case.problem, solution, case.train, replicates=5)
    >>> spread.x.shape, spread.failed
    ((5, 2), 0)
    """

    x: PyTree[Array]
    error: PyTree[Shaped[np.ndarray, "..."] | np.floating]
    interval: tuple[PyTree, PyTree]
    failed: int
    sandwich: Uncertainty

    def __repr__(self):
        count, known = len(jax.tree.leaves(self.x)[0]), self.sandwich
        lost = f", {self.failed} failed" if self.failed else ""
        lines = [("standard error of", "bootstrap", "sandwich", "")]
        errors = [flattened(self.error), known.error]
        if known.large:  # root mean squares, array by array
            ends = np.cumsum([int(np.prod(shape)) for _, shape, _ in known.leaves])[:-1]
            errors = [[np.sqrt(np.mean(part**2)) for part in np.split(one, ends)] for one in errors]
        for cell, own, other in zip(known.cells(), *errors, strict=True):
            figures = f"{own:.3g}", "unknown" if np.isnan(other) else f"{other:.3g}"
            lines.append((cell[0], *figures, cell[4]))
        said = [*known.undetermined, *([known.why_not] if known.why_not else [])]
        return "\n  ".join([f"Bootstrap({count} resamplings{lost})", *aligned(lines), *said])


def bootstrap(
    problem: Problem,
    solution: Solution,
    samples: Data,
    replicates: int = 100,
    key: Any = 0,
    progress: bool | None = None,
    precision: str | None = None,
) -> Bootstrap:
    """Solves again, starting from the solution, on samples drawn with replacement from its data.

    **Arguments:**

    - `samples`: the data the solution was found from.
    - `replicates`: how many times; a hundred for standard errors, more for intervals.
    - `precision`: ``"single"`` or ``"double"``; by default double, whatever JAX's setting.
    - `problem`, `solution`: the problem, and its solution.
    - `key`: the seed of the resampling.
    - `progress`: show a progress bar; by default on a terminal, after two seconds.

    The basis stays fixed: the data are resampled, not the choice of functions. ``x`` is held fixed along directions
    that the samples do not determine; coordinates with a part in one have infinite errors.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> spread = cb.bootstrap(case.problem, solution, case.train, replicates=5)
    >>> spread.error.shape
    (2,)
    """
    entered("bootstrap", problem, samples, key)
    wanted = precision_for(problem, samples, precision)
    with wanted.context():
        study = Study.of(as_solved(problem, solution), samples, wanted)
        check_levels("bootstrap", solution, study)
        check_objectives("bootstrap", solution, study, "Pass the problem and the samples it was found with.")
        spread = _resampled(study, in_precision_of(study, solution), replicates, generator(as_key(key)), progress)
    return replace(spread, x=put(wanted.back(jax.tree.map(np.asarray, spread.x))))


def _resampled(
    study: Study, solution: Solution, replicates: int, rng: np.random.Generator, progress: bool | None
) -> Bootstrap:
    """The spread, in the precision of the study."""
    whole("bootstrap: replicates", replicates, 2)
    if study.endless:
        raise TypeError("bootstrap: a Stream has no samples to resample; pass the samples it was solved on.")
    if min(study.upper.count or 0, study.lower.count or 0) < _FEWEST:
        raise ValueError(f"bootstrap: fewer than {_FEWEST} samples are too few to resample.")
    study, x = study.at(solution.x), flattened(solution.x)
    reduced, known = reduce_with(study, solution.basis, solution.W).whitened(), solution.uncertainty
    if known.why_not or known.hessian is None or not np.allclose(known.x, x, rtol=np.finfo(np.float32).eps, atol=0):
        known = infer(study, reduced, solution.x)
    given = Expansions(reduced.ordinary())
    at = _along_determined(given, known)
    solutions, solver = [], Newton(tolerance=study.eps)  # x is then known to far more digits than it varies by
    with ProgressBar(replicates, "bootstrap", progress) as bar:
        for k in range(replicates):
            solutions.append(_once(study, at, solver, rng) if at.dx else x)
            bar.update(k + 1)
    kept = [place for place in solutions if place is not None]
    failed = replicates - len(kept)
    if len(kept) < 2:
        raise ValueError(f"bootstrap: {failed} of {replicates} resamplings did not converge; did the solution?")
    lost, rows = np.isinf(known.error), np.stack(kept)
    ends = [np.where(lost, end, np.quantile(rows, q, axis=0)) for q, end in zip(TAILS, (-np.inf, np.inf), strict=True)]
    error = np.where(lost, np.inf, np.std(rows, axis=0, ddof=1))
    low, high = (shaped_like(solution.x, end) for end in ends)
    table = jax.tree.map(lambda *each: put(np.stack(each)), *(given.decision(row) for row in kept))
    return Bootstrap(table, shaped_like(solution.x, error), (low, high), failed, known)


def _along_determined(given: Expansions, known: Uncertainty) -> Expansions:
    """In coordinates of what the samples determine of ``x``; in ``x`` itself, where they determine all of it, and where
    there are bounds, since coordinates are not mixed then."""
    lost, x = known.directions, given.start
    if lost is None or not len(lost) or np.isfinite(given.bounds).any():
        return given
    own = np.diag(np.asarray(known.hessian))
    unit = np.where(own > 0, 1 / np.sqrt(np.where(own > 0, own, 1)), np.where(x != 0, np.abs(x), 1.0))
    kept = unit[:, None] * determined(lost, unit)
    free = np.full(kept.shape[1], np.inf)
    return Affine(given, x, kept, np.zeros(len(free)), (-free, free))


def _once(study: Study, at: Expansions, solver: Newton, rng: np.random.Generator) -> Float[np.ndarray, " dx"] | None:
    """The solution on resampled data; ``None`` if it was not found."""
    above, below = (level.resample(rng) for level in (study.upper, study.lower))
    counted = lambda pool, often: pool.shares * often / np.sum(pool.shares * often)
    resampled = at.with_shares(counted(at.lower_pools[0], below), counted(at.upper_pools[0], above))
    state = solver.init(resampled, as_key(0), Newton.default_steps)
    state, _ = steps_on_host(solver, resampled, state, Newton.default_steps)
    return at.point(flattened(state.x)) if Result.of(int(state.result)).good else None
