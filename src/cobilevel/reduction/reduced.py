r"""The reduction: with $y^\star(x, \xi) \approx W \Phi(\xi)$, contextual bilevel becomes ordinary bilevel in $(x, W)$.

$f_\Phi(x, W) = E f(x, W\Phi(\xi), \xi, \eta)$ and $g_\Phi$ likewise: both are expectations over the joint law of
context and noise, so joint samples are all that is needed, and any solver for stochastic bilevel problems can take it.
"""

import warnings
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..basis import (
    Basis,
    Categorical,
    Coordinates,
    FeatureMap,
    Whitening,
    by_component,
    check_sizes,
    combine,
    dense,
    whiten,
)
from ..functions import known_parts
from ..ground import arithmetic, as_key, put, shaped_like, whole
from ..problem import Domain, Finite, PartitionedSamples, Problem
from ..study import Constrained, Study
from .batches import Batch, EveryPair, Source, Table, source_of
from .factored import values_in_factors
from .far_rows import FarRows, FarTable

DENSE_LIMIT = 2000  # the most coefficients whose Hessian is formed; beyond, only its products with vectors are
_FEW_MOVED = 20  # coordinates of x, along each of which pairs of contexts and data are formed


def is_formed(functions: int, sizes: tuple[int, int], one_hot: bool = False, crossed: bool = False) -> bool:
    """Whether the Hessian of the lower level is formed with so many functions, for ``x`` and ``y`` of given `sizes`;
    else it comes as products. Where it is formed for one function, it is for a few: else the rows' own second
    derivatives are too large. Where contexts and data are `crossed`, products need no pairs of them."""
    dx, dy = sizes
    if crossed and dx > _FEW_MOVED:
        return False
    numbers = functions * dy * (dy if one_hot else functions * dy)
    return numbers <= DENSE_LIMIT**2 and 6 * dy <= DENSE_LIMIT


def nodes_for(basis: FeatureMap) -> int:
    """How many quadrature nodes per dimension integrate products of two of its functions, for which as many would do,
    and what varies with them: twice as many, and 16 at least."""
    return max(16, 2 * round(basis.size ** (1 / max(1, basis.domain.dimension))))


class Turn(eqx.Module):
    """Coefficients in other coordinates of the same shapes: ``W = matrix @ Z``, both as vectors, function by function.

    `first`: the size of the gradient where the search for them began; `spent`: what it took, by kind of oracle.
    """

    matrix: Float[Array, "M M"]
    inverse: Float[Array, "M M"]
    first: Float[Array, ""]
    spent: tuple = eqx.field(static=True, default=())

    def of(self, matrix: Any, Z: PyTree) -> PyTree:
        """A matrix times coefficients, which have rows for functions."""
        leaves, xp = jax.tree.leaves(Z), arithmetic(matrix, Z)
        rows = xp.concatenate([xp.asarray(leaf).reshape(len(leaf), -1) for leaf in leaves], axis=1)
        image = (xp.asarray(matrix, rows.dtype) @ rows.reshape(-1)).reshape(rows.shape)
        return put(shaped_like(Z, image, lead=1))


class Bilevel(eqx.Module):
    """An ordinary stochastic bilevel problem in ``(x, W)``: two objectives, their batches, and a start.

    This is all that solvers see. The meaning of the coefficients (a basis, its contexts) is not part of it.
    """

    problem: Problem
    upper_source: Source
    lower_source: Source
    W0: PyTree[Float[Array, "N ..."]]
    turn: Turn | None = eqx.field(default=None, kw_only=True)

    def weights(self, W: PyTree) -> PyTree:
        """The coefficients that multiply the features of a batch: ``W``, mapped back if it is in other coordinates."""
        return W if self.turn is None else self.turn.of(self.turn.matrix, W)

    def slope(self, weights: PyTree) -> PyTree:
        """A gradient in ``W``, from one in these weights."""
        return weights if self.turn is None else self.turn.of(self.turn.matrix.T, weights)

    def values(
        self, function: Any, x: PyTree, W: PyTree, batch: Batch | EveryPair
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """A function at the policy on each row of a batch, and the rows' weights, 1 in the mean."""
        W = self.weights(W)
        if isinstance(batch, EveryPair):  # what is linear in y becomes a product of matrices: data times all y
            context = batch.contexts
            of_data = jax.vmap(function, in_axes=(None, None, None, 0))
            each = jax.vmap(of_data, in_axes=(None, 0, 0, None))
            shares = context.weight[:, None] * (1 if batch.often is None else batch.often)
            return each(x, combine(context.features, W), context.xi, batch.eta), shares
        values = values_in_factors(function, x, W, batch.features, batch.xi, batch.eta)
        if values is None:
            y = combine(batch.features, W)
            values = jax.vmap(function, in_axes=(None, 0, 0, 0))(x, y, batch.xi, batch.eta)
        return values, batch.weight

    def _mean(self, function: Any, x: PyTree, W: PyTree, batch: Batch | EveryPair) -> Float[Array, ""]:
        values, weights = self.values(function, x, W, batch)
        return jnp.mean(weights * values).astype(weights.dtype)

    def upper(self, x: PyTree, W: PyTree, batch: Batch | EveryPair) -> Float[Array, ""]:
        """The batch mean of ``f(x, W Phi(xi), xi, eta)``."""
        return self._mean(self.problem.upper, x, W, batch)

    def lower(self, x: PyTree, W: PyTree, batch: Batch | EveryPair) -> Float[Array, ""]:
        """The batch mean of ``g(x, W Phi(xi), xi, eta)``."""
        return self._mean(self.problem.lower, x, W, batch)

    @property
    def x0(self) -> PyTree[Array]:
        return self.problem.x0

    @property
    def dtype(self) -> Any:
        """The precision of the coefficients."""
        return jax.tree.leaves(self.W0)[0].dtype

    @property
    def upper_pool(self) -> Batch:
        """All the upper level's samples, with features: a pytree with a common leading axis."""
        return self.upper_source.pool()

    @property
    def lower_pool(self) -> Batch:
        """All the lower level's samples, with features: a pytree with a common leading axis."""
        return self.lower_source.pool()

    def draw(self, key: Array | int, size: int) -> tuple[Batch, Batch]:
        """Two independent random batches, one for each level."""
        whole("draw: size", size)
        for_upper, for_lower = jax.random.split(as_key(key))
        return self.upper_source.draw(for_upper, size), self.lower_source.draw(for_lower, size)

    def project(self, x: PyTree) -> PyTree:
        """The nearest point within the bounds on ``x``."""
        return self.problem.bounds.project(x)

    def looked_through(self) -> Any:
        """The same problem with everything that depends only on single samples computed in advance, if pools are
        tables; batches hold it in place of ``eta``."""

        def level(objective: Any, source: Source) -> tuple[Any, Source]:
            if not isinstance(source, Table):
                return objective, source
            pool = source.pool()
            known = known_parts(objective, pool.xi, pool.eta)
            return (objective, source) if known is None else (known[0], source.tabled(eta=known[1]))

        upper, upper_source = level(self.problem.upper, self.upper_source)
        lower, lower_source = level(self.problem.lower, self.lower_source)
        problem = eqx.tree_at(lambda p: (p.upper, p.lower), self.problem, (upper, lower))
        return replace(self, problem=problem, upper_source=upper_source, lower_source=lower_source)

    def ordinary(self) -> "Bilevel":
        """The problem without the basis it came from: problems of one shape share compiled programs."""
        turn = self.turn if self.turn is None else replace(self.turn, spent=())
        return Bilevel(self.problem, self.upper_source, self.lower_source, self.W0, turn=turn)

    def with_pools(self, upper: Batch, lower: Batch) -> Any:
        """The same problem on other finite pools."""
        return replace(self, upper_source=Table(upper), lower_source=Table(lower))


class Reduced(Bilevel):
    """A contextual problem reduced to an ordinary one by a fitted basis."""

    basis: FeatureMap
    whitening: Whitening | None
    coordinates: Coordinates | None = None
    constrained: Constrained | None = None

    @property
    def rank(self) -> int | None:
        """How many independent functions the observed contexts distinguish; ``None`` for a stream."""
        return None if self.whitening is None else self.whitening.rank

    @property
    def deficient(self) -> bool:
        """Whether the observed contexts leave some directions of the coefficients undetermined."""
        return self.rank is not None and self.rank < self.basis.size

    def restore(self, W: PyTree) -> PyTree:
        """Coefficients of the basis, from those of this problem, which may be whitened."""
        W = self.weights(W)
        return W if self.coordinates is None else self.coordinates.restore(W)

    def enter(self, W: PyTree) -> PyTree:
        """Coefficients of this problem, which may be whitened, from those of the basis."""
        W = W if self.coordinates is None else self.coordinates.enter(W)
        return W if self.turn is None else self.turn.of(self.turn.inverse, W)

    def features(self, xi: Array) -> Float[Array, "... N"]:
        """The features in the coordinates of this problem."""
        if self.coordinates is None:
            return self.basis.at(xi)
        return dense(combine(self.basis.rows(xi), self.coordinates.transform))

    def whitened(self) -> "Reduced":
        """The same problem in coordinates that make the observed features orthonormal, dependent ones cut."""
        if self.whitening is None or self.coordinates is not None:
            return self
        coordinates = Coordinates.of(self.whitening, self.W0)
        lower = self.lower_source.turned(coordinates.transform)
        shared = self.upper_source is self.lower_source
        upper = lower if shared else self.upper_source.turned(coordinates.transform)
        W0 = coordinates.enter(self.W0)
        return replace(self, upper_source=upper, lower_source=lower, W0=W0, coordinates=coordinates)


def reduce_study(study: Study, basis: Basis) -> Reduced:
    """Fits a basis to the contexts of the lower level, and reduces; the basis must have nothing left to learn."""
    domain, observed = study.problem.domain, study.lower.contexts()
    basis = by_component(basis, domain)
    distinct = None if study.lower.endless or isinstance(basis, Categorical) else study.lower.distinct()
    held = lambda level: 64 if level.endless else len(level.contexts())  # rows at one time; of a stream a usual batch
    rows = held(study.lower) + (0 if study.shared else held(study.upper))
    check_sizes(basis, domain, rows, study.problem.sizes[1], distinct)
    fitted = basis.fit(domain, domain.snap(observed.xi, study.dtype), observed.weights)
    if distinct is not None:
        functions = len(fitted.constant) if fitted.transform is None else len(fitted.transform)
        check_sizes(basis, domain, rows, study.problem.sizes[1], distinct, functions)
        _warn_of_many(basis, domain, functions, distinct)
    return reduce_with(study, fitted)


def reduce_with(study: Study, fitted: FeatureMap, W: PyTree | None = None) -> Reduced:
    """The reduced problem for a basis that is fitted already, perhaps to other samples; from ``W``, or from ``y0``.

    Where its Hessian is not formed, contexts are integrated with as many nodes as the basis needs.
    """
    if not is_formed(fitted.size, study.problem.sizes, fitted.one_hot, study.lower.crossed):
        study = study.with_nodes(nodes_for(fitted))
    problem, observed, whitening = study.problem, study.lower.contexts(), None
    lower: Any = source_of(study.lower.here, fitted)
    if isinstance(study.lower, PartitionedSamples):
        lower = FarTable(lower.table, FarRows.of(study.lower, fitted))
        whitening = lower.far.whitening(study.dtype)
    elif not study.lower.endless:
        table = type(lower) is Table
        phi = lower.table.features if table else fitted.rows(problem.domain.snap(observed.xi, study.dtype))
        whitening = whiten(phi, observed.weights)
    upper = lower if study.shared else source_of(study.upper, fitted)
    constant = fitted.constant.astype(study.dtype)
    outer = arithmetic(constant, problem.y0).multiply.outer
    W0 = put(jax.tree.map(lambda y: outer(constant, y), problem.y0)) if W is None else W
    return Reduced(problem, upper, lower, W0, fitted, whitening, constrained=study.constrained)


def _warn_of_many(basis: Basis, domain: Domain, count: int, distinct: int) -> None:
    """Nearly as many functions as distinct contexts fit noise."""
    parts = getattr(domain, "parts", {"": domain}).values()
    if all(isinstance(part, Finite) for part in parts):
        return  # there is nothing between contexts
    if count > 1 + domain.dimension and 2 * count > distinct:  # as few are linear, and do not swing
        warnings.warn(
            f"basis {basis!r} has {count} functions for {distinct} distinct contexts: expect overfitting between them. "
            "Use an n that leaves several contexts per function.",
            stacklevel=4,
        )
