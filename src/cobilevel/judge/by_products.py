"""The reduced problem at one ``x`` against a better one, by products alone: for a ``y`` whose matrices are not formed.

The better one is the lower level solved at each context, a reduced problem with a function for each; or that of a
richer basis. Errors are in the norm of its Hessian, the sensitivity's by random directions of ``x``; noise is measured
by leaving groups of samples out in turn.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..answer import Solution
from ..basis import Basis, OneHot
from ..derivatives import Ledger, oracles
from ..ground import as_rows, flattened, put, shaped_like
from ..inference import FOR_NOISE, NOTICED, Galerkin, fitting_bias, jackknife, split_rows, without
from ..lower import each_context, law_at, moved_by_products, preconditioner, solved_by_products
from ..reduction import Batch, Bilevel, EveryPair, Source, Table, reduce_study
from ..study import Study
from .comparison import Measured, NoisyVector, PolicyTable
from .intervals import Estimate, mean_estimate


@dataclass(frozen=True)
class ByProducts:
    """A reduced problem at one ``x``, with coefficients `near` its solution, where the preconditioner is made, once."""

    problem: Bilevel
    x: PyTree
    near: Float[np.ndarray, "N dy"]

    @cached_property
    def _precondition(self) -> Any:
        return preconditioner(self.problem, self.x, self._tree(self.near))

    def table(self, W: PyTree) -> Float[np.ndarray, "N dy"]:
        return as_rows(jax.tree.map(np.asarray, W)).astype(float)

    def _tree(self, table: np.ndarray) -> PyTree:
        return put(shaped_like(self.problem.W0, table, self.problem.dtype, 1))

    def solved(self, W: np.ndarray, V: np.ndarray, accuracy: float, steps: int = 100, on: Bilevel | None = None) -> Any:
        """Coefficients, adjoint, objective and gradient, from tables nearby; `on`: with other weights of the rows."""
        accurate = np.asarray(accuracy, self.problem.dtype)
        problem = self.problem if on is None else on
        return solved_by_products(
            problem, self.x, self._tree(W), self._tree(V), self._precondition, accurate, np.int32(steps)
        )

    def moved(self, W: np.ndarray, along: PyTree) -> list[Float[np.ndarray, "N dy"]]:
        """How coefficients move along directions of ``x``, stacked."""
        accurate = np.asarray(NOTICED**2, self.problem.dtype)
        tables = moved_by_products(self.problem, self.x, self._tree(W), along, self._precondition, accurate)
        return [self.table(jax.tree.map(lambda a, k=k: a[k], tables)) for k in range(len(jax.tree.leaves(along)[0]))]

    def square(self, W: np.ndarray, table: np.ndarray) -> float:
        """The square of coefficients in the norm of the Hessian."""
        return float(_square(self.problem, self.x, self._tree(W), self._tree(table)))

    def without(self, groups: tuple[np.ndarray, np.ndarray], k: int) -> Bilevel:
        """The problem without a group of the rows of both levels."""
        lower, upper = (
            _left_out(source, group, k)
            for source, group in zip((self.problem.lower_source, self.problem.upper_source), groups, strict=True)
        )
        return replace(self.problem, lower_source=lower, upper_source=upper)


@eqx.filter_jit
def _square(problem: Bilevel, x: PyTree, W: PyTree, table: PyTree) -> Array:
    batch = problem.lower_source.whole()
    image, _ = oracles.hessian_vector(problem, x, W, table, batch, Ledger.page())
    return jnp.sum(oracles.flatten(image)[0] * oracles.flatten(table)[0])


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
    """A reduced problem and a better one at the same ``x``: `embed` maps coefficients of the first to the second's;
    `policies` gives policies of the first in coefficients of the second; `at_contexts` those of the second at contexts.
    """

    few: ByProducts
    many: ByProducts
    embed: Float[np.ndarray, "M N"]
    policies: Callable[[np.ndarray], np.ndarray]
    at_contexts: Callable[[np.ndarray], np.ndarray]
    words: str

    @staticmethod
    def exactly(study: Study, sampled: Galerkin, x: PyTree, draws: int, key: Array) -> "Compared":
        """With the lower level solved at each context."""
        contexts, reduced = study.upper.contexts(), sampled.reduced
        xi, shares = np.asarray(contexts.xi), contexts.shares()
        each = each_context(study.problem, law_at(study, xi, draws, key), shares)
        each = replace(each, upper_source=upper_at(study, xi, shares))
        embed, policies = np.asarray(reduced.features(xi), float), PolicyTable.of(reduced, xi)
        W = sampled.point.W
        few, many = ByProducts(reduced.ordinary(), x, W), ByProducts(each, x, policies(W))
        return Compared(few, many, embed, policies, lambda W: W, "exact lower-level solutions at each context")

    @staticmethod
    def richer(study: Study, sampled: Galerkin, x: PyTree, basis: Basis) -> "Compared":
        """With a richer basis."""
        rich, poor = reduce_study(study, basis).whitened(), sampled.reduced
        xi = study.problem.domain.snap(study.lower.contexts().xi, study.dtype)
        embed = np.linalg.lstsq(np.asarray(rich.features(xi), float), poor.features(xi), rcond=None)[0]
        W, asked = sampled.point.W, study.upper.contexts().xi
        few, many = ByProducts(poor.ordinary(), x, W), ByProducts(rich.ordinary(), x, embed @ W)
        return Compared(few, many, embed, lambda W: embed @ W, PolicyTable.of(rich, asked), repr(basis))

    def pull(self, few: Any) -> Float[np.ndarray, "M dy"]:
        """The adjoint of the first, in coefficients of the second."""
        return self.embed @ self.few.table(few.adjoint)

    def adjoint_square(self, few: Any, many: Any) -> float:
        W, V = self.many.table(many.W), self.many.table(many.adjoint)
        return self.many.square(W, V - self.pull(few))

    def sensitivity_squares(self, few: Any, many: Any, dx: int, probes: int = 8) -> Float[np.ndarray, " k"]:
        """Of how both move along random directions of ``x``: the mean is the sum over the coordinates."""
        directions = np.random.default_rng(0).choice((-1.0, 1.0), (probes, dx))
        lead, dtype = jax.tree.map(lambda a: np.asarray(a)[None], self.few.x), self.few.problem.dtype
        along, W = put(shaped_like(lead, directions, dtype, 1)), self.many.table(many.W)
        pairs = zip(self.many.moved(W, along), self.few.moved(self.few.table(few.W), along), strict=True)
        return np.array([self.many.square(W, own - self.embed @ within) for own, within in pairs])

    def left_out(self, few: Any, many: Any, shared: bool) -> list[tuple[Any, Any]]:
        """Both without one group of samples at a time."""
        rng, problem = np.random.default_rng(0), self.few.problem
        below, above = (split_rows(_rows(source), rng) for source in (problem.lower_source, problem.upper_source))
        groups = (below, below if shared else above)

        def near(level: ByProducts, end: Any, k: int) -> Any:
            start = level.table(end.W), level.table(end.adjoint)
            return level.solved(*start, NOTICED, FOR_NOISE, level.without(groups, k))

        return [(near(self.few, few, k), near(self.many, many, k)) for k in range(max(map(np.max, groups)) + 1)]


def measure_by_products(
    study: Study, solution: Solution, sampled: Galerkin, draws: int, key: Array, richer: Basis | None
) -> Measured:
    """Against true per-context solves; or a `richer` basis, where one is given."""
    x = put(shaped_like(study.problem.x0, sampled.point.x[None], study.dtype, 0))
    exactly = richer is None
    of = Compared.exactly(study, sampled, x, draws, key) if exactly else Compared.richer(study, sampled, x, richer)
    contexts, tight = study.upper.contexts(), study.eps**0.4
    shares, given = contexts.shares(), as_rows(solution.at(contexts.xi))
    few = of.few.solved(sampled.point.W, sampled.point.adjoint, tight)
    start = of.policies(of.few.table(few.W)), of.pull(few)
    many, own = of.many.solved(*start, tight), of.many.solved(*start, tight, steps=0)
    off = lambda many: np.sum((of.at_contexts(of.many.table(many.W)) - given) ** 2, axis=1)
    figures = lambda few, many: np.array([shares @ off(many), of.adjoint_square(few, many), float(many.value)])
    ends = of.left_out(few, many, study.shared)
    slopes = lambda parts: np.stack([flattened(part.gradient) for part in parts]).astype(float)
    low_out, high_out = (slopes(parts) for parts in zip(*ends, strict=True))
    squares, squares_out = figures(few, many), np.stack([figures(*pair) for pair in ends])
    if study.noisy:  # what the richer one has fitted to few samples
        squares = squares - fitting_bias(squares, squares_out)
    freedom, noise = len(ends) - 1.0, np.sqrt(np.diag(jackknife(squares_out)))
    policy, adjoint, value = (
        Estimate.of(a, b, freedom, least=c) for a, b, c in zip(squares, noise, (0.0, 0.0, -np.inf), strict=True)
    )
    low, high, middle = slopes((few, many, own))
    lost = of.sensitivity_squares(few, many, len(low))
    solved = sampled.point.sound and bool(np.all(many.solved))
    return Measured(
        gradient=NoisyVector.left_out(high, high_out),
        reduced=NoisyVector.left_out(low, low_out),
        freedom=freedom,
        compared=of.words,
        trouble="" if solved else "a lower level could not be solved",
        difference=NoisyVector.left_out(high - low, high_out - low_out),
        parts={"policy": high - middle, "adjoint and sensitivity": middle - low},
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
