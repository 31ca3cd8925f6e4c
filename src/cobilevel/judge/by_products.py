"""The reduced problem at one ``x`` against a better one, by products alone: for a ``y`` whose matrices are not formed.

The better one is the lower level solved at each context, a reduced problem with a function for each; or that of a
richer basis. Errors are in the norm of its Hessian, the sensitivity's by random directions of ``x``; noise is measured
by leaving groups of samples out in turn.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..answer import Solution
from ..basis import Basis, OneHot
from ..derivatives import Expansions
from ..ground import as_rows, put, shaped_like
from ..inference import FOR_NOISE, NOTICED, Galerkin, fitting_bias, jackknife, split_rows, without
from ..lower import Point, curved_along, each_context, law_at, preconditioned, solve_at
from ..reduction import Batch, Bilevel, EveryPair, Source, Table, reduce_study
from ..study import Study
from .comparison import Measured, NoisyVector, PolicyTable
from .intervals import Estimate, mean_estimate


def _rows(source: Any) -> int:
    """Rows of data; where contexts meet all of them, these."""
    return len(jax.tree.leaves(source.eta)[0]) if isinstance(source, EveryPair) else len(source.table)


def _left_out(source: Any, group: np.ndarray, k: int) -> Source:
    """A level without a group of its rows; where these are not as many, as without noise, as it is."""
    if len(group) != _rows(source):
        return source
    often = put(without(np.full(len(group), 1 / len(group)), group, k) * len(group))
    if isinstance(source, EveryPair):
        return replace(source, often=often.astype(source.contexts.weight.dtype))
    return source.tabled(weight=source.table.weight * often.astype(source.table.weight.dtype))


def upper_at(study: Study, xi: Any, shares: Float[np.ndarray, " m"]) -> Source:
    """The upper level with a function for each of its contexts."""
    level: Any = study.upper
    m, dtype = len(xi), study.dtype
    features = OneHot(put(np.arange(m)), put(np.ones(m, dtype)), m)
    batch = Batch(features, put(xi), None if level.crossed else put(level.eta), put((shares * m).astype(dtype)))
    return EveryPair(batch, put(level.eta)) if level.crossed else Table(batch)


@dataclass(frozen=True)
class Compared:
    """A reduced problem and a better one: `embed` maps coefficients of the first to the second's; `policies` gives
    policies of the first in coefficients of the second; `at_contexts` those of the second at contexts.
    """

    few: Expansions
    many: Expansions
    embed: Float[np.ndarray, "M N"]
    policies: Callable[[np.ndarray], np.ndarray]
    at_contexts: Callable[[np.ndarray], np.ndarray]
    words: str

    @staticmethod
    def exactly(study: Study, sampled: Galerkin, draws: int, key: Array) -> "Compared":
        """With the lower level solved at each context."""
        contexts, reduced = study.upper.contexts(), sampled.reduced
        xi, shares = np.asarray(contexts.xi), contexts.shares()
        each = each_context(study.problem, law_at(study, xi, draws, key), shares)
        many = Expansions(replace(each, upper_source=upper_at(study, xi, shares)))
        many.formed, many.sizes = False, many.sizes._replace(crossed=False)  # whose pairs are many, if its y is short
        embed, policies = np.asarray(reduced.features(xi), float), PolicyTable.of(reduced, xi)
        words = "exact lower-level solutions at each context"
        return Compared(sampled.expansions, many, embed, policies, lambda W: W, words)

    @staticmethod
    def richer(study: Study, sampled: Galerkin, basis: Basis) -> "Compared":
        """With a richer basis."""
        rich, poor = reduce_study(study, basis).whitened(), sampled.reduced
        xi = study.problem.domain.snap(study.lower.contexts().xi, study.dtype)
        embed = np.linalg.lstsq(np.asarray(rich.features(xi), float), poor.features(xi), rcond=None)[0]
        many, at_contexts = Expansions(rich.ordinary()), PolicyTable.of(rich, study.upper.contexts().xi)
        return Compared(sampled.expansions, many, embed, lambda W: embed @ W, at_contexts, repr(basis))

    def square(self, many: Point, table: Float[np.ndarray, "M dy"]) -> float:
        """Of coefficients of the second, in the norm of its Hessian."""
        return float(np.sum(table * self.many.hessian_product(many.x, many.W, table)))

    def sensitivity_squares(self, few: Point, many: Point, probes: int = 8) -> Float[np.ndarray, " k"]:
        """Of how both move along random directions of ``x``: the mean is the sum over the coordinates."""
        directions = np.random.default_rng(0).choice((-1.0, 1.0), (probes, len(few.x)))
        moved = lambda at, point: curved_along(at, point, directions, NOTICED**2)[1]
        off = moved(self.many, many) - np.tensordot(self.embed, moved(self.few, few), axes=1)
        return np.array([self.square(many, off[:, :, k]) for k in range(probes)])

    def left_out(self, few: Point, many: Point, shared: bool) -> list[tuple[Point, Point]]:
        """Both without one group of samples at a time."""
        rng, problem = np.random.default_rng(0), self.few.reduced
        below, above = (split_rows(_rows(source), rng) for source in (problem.lower_source, problem.upper_source))
        above = below if shared else above

        def near(at: Expansions, point: Point, k: int) -> Point:
            part, whole = copy(at), at.reduced
            lower, upper = _left_out(whole.lower_source, below, k), _left_out(whole.upper_source, above, k)
            part.reduced = replace(whole, lower_source=lower, upper_source=upper)
            return solve_at(part, point.x, point.W, 0.0, NOTICED, FOR_NOISE, point.adjoint)

        return [(near(self.few, few, k), near(self.many, many, k)) for k in range(max(below.max(), above.max()) + 1)]


def measure_by_products(
    study: Study, solution: Solution, sampled: Galerkin, draws: int, key: Array, richer: Basis | None
) -> Measured:
    """Against true per-context solves; or a `richer` basis, where one is given."""
    exactly, few = richer is None, sampled.point
    of = Compared.exactly(study, sampled, draws, key) if richer is None else Compared.richer(study, sampled, richer)
    contexts = study.upper.contexts()
    shares, given = contexts.shares(), as_rows(solution.at(contexts.xi))
    W, V = of.policies(few.W), of.embed @ few.adjoint
    for at, near in ((of.few, few.W), (of.many, W)):
        preconditioned(at, (few.x, near))
    many, own = (solve_at(of.many, few.x, W, 0.0, study.eps**0.4, steps, V) for steps in (100, 0))
    off = lambda many: np.sum((of.at_contexts(many.W) - given) ** 2, axis=1)
    adjoint_square = lambda few, many: of.square(many, many.adjoint - of.embed @ few.adjoint)
    figures = lambda few, many: np.array([shares @ off(many), adjoint_square(few, many), many.value])
    ends = of.left_out(few, many, study.shared)
    low_out, high_out = (np.stack([part.gradient for part in parts]) for parts in zip(*ends, strict=True))
    squares, squares_out = figures(few, many), np.stack([figures(*pair) for pair in ends])
    if study.noisy:  # what the richer one has fitted to few samples
        squares = squares - fitting_bias(squares, squares_out)
    freedom, noise = len(ends) - 1.0, np.sqrt(np.diag(jackknife(squares_out)))
    policy, adjoint, value = (
        Estimate.of(a, b, freedom, least=c) for a, b, c in zip(squares, noise, (0.0, 0.0, -np.inf), strict=True)
    )
    low, high, lost = few.gradient, many.gradient, of.sensitivity_squares(few, many)
    return Measured(
        gradient=NoisyVector.left_out(high, high_out),
        reduced=NoisyVector.left_out(low, low_out),
        freedom=freedom,
        compared=of.words,
        trouble="" if few.sound and many.solved else "a lower level could not be solved",
        difference=NoisyVector.left_out(high - low, high_out - low_out),
        parts={"policy": high - own.gradient, "adjoint and sensitivity": own.gradient - low},
        # of the policy as it is: with other samples it would be another
        policy_error=mean_estimate(off(many), shares, least=0.0) if exactly else policy,
        adjoint_error=adjoint,
        sensitivity_error=Estimate.of(float(lost.mean()), float(lost.std() / np.sqrt(len(lost) - 1)), least=0.0),
        value=value,
    )


@eqx.filter_jit
def mean_values(problem: Bilevel, x: PyTree, W: PyTree, upper: bool) -> Float[Array, " n"]:
    """An objective along a policy row by row; where contexts meet all data, its mean over these at each context."""
    objective = problem.problem.upper if upper else problem.problem.lower
    source = problem.upper_source if upper else problem.lower_source
    values, _ = problem.values(objective, x, W, source.whole())
    return jnp.mean(values, axis=1) if values.ndim == 2 else values


def upper_values(study: Study, x: Float[np.ndarray, " dx"], y: Float[np.ndarray, "m dy"]) -> Float[np.ndarray, " m"]:
    """``f`` at a ``y`` for each of the upper level's contexts."""
    contexts, tile = study.upper.contexts(), lambda tree: jax.tree.map(lambda a: np.asarray(a)[None], tree)
    source = upper_at(study, np.asarray(contexts.xi), contexts.shares())
    W = put(shaped_like(tile(study.problem.y0), y, study.dtype, 1))
    at_x = put(shaped_like(study.problem.x0, x[None], study.dtype, 0))
    return np.asarray(mean_values(Bilevel(study.problem, source, source, W), at_x, W, True), float)
