r"""The reduction: with $y^\star(x, \xi) \approx W \Phi(\xi)$, contextual bilevel becomes ordinary bilevel in $(x, W)$.

$f_\Phi(x, W) = E f(x, W\Phi(\xi), \xi, \eta)$ and $g_\Phi$ likewise: both are expectations over the joint law of
context and noise, so joint samples are all that is needed, and any solver for stochastic bilevel problems can take it.
"""

import warnings
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Shaped

from . import samplers
from .basis import Basis, Categorical, FeatureMap, Whitening, combine, whiten
from .data import Data, Level, Product, Samples, Stream, levels
from .domain import Distribution
from .problem import Problem, check, working_dtype
from .solution import Solution
from .store import as_key

_STREAM_LOOK = 4096  # contexts drawn from a stream to fit a basis to it
_POOL_BYTES = 8 * 2**30


class Batch(eqx.Module):
    """Samples with their features: what one oracle call averages over. Index it as ``tree.map(a[idx])``.

    `count` is the number of real rows where a batch is filled up with rows of weight 0, else ``None``.
    """

    features: Float[Array, "b N"]
    xi: Shaped[Array, "b ..."]
    eta: PyTree[Shaped[Array, "b ..."]]
    weight: Float[Array, " b"]
    count: Int[Array, ""] | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, rows: samplers.Rows) -> "Batch":
        """The given rows of a pool, weighted so that the mean over the batch is the mean over the real ones."""
        part = jax.tree.map(lambda a: a[rows.index], self)
        return replace(part, weight=part.weight * rows.share, count=rows.count)


def _batch(basis: FeatureMap, samples: Samples) -> Batch:
    dtype = basis.constant.dtype
    return Batch(basis(samples.xi), samples.xi, samples.eta, samples.mean_one_weights().astype(dtype))


class Source(eqx.Module):
    """Where one level's batches come from."""

    @abstractmethod
    def pool(self) -> Batch:
        """All there is, as one batch."""

    def contexts_pool(self) -> Batch:
        """The contexts there are, each once for joint samples; its features are what matters."""
        return self.pool()

    @abstractmethod
    def batch(self, key: Array, number: Int[Array, ""], size: int, shuffle: bool) -> Batch:
        """Batch `number` of those the key stands for: with replacement, or (`shuffle`) each row once an epoch."""

    def draw(self, key: Array, size: int) -> Batch:
        """A fresh random batch (with replacement from a finite pool)."""
        return self.batch(key, jnp.uint32(0), size, False)

    @property
    def rows(self) -> int | None:
        """The number of rows of the pool; ``None`` where there is no end of them."""
        return None


class Table(Source):
    """A finite pool of joint samples."""

    table: Batch

    def pool(self):
        return self.table

    @property
    def rows(self):
        return len(self.table)

    def batch(self, key, number, size, shuffle):
        return self.table.take(samplers.rows_of(key, number, size, len(self.table), shuffle, self.table.weight.dtype))


class Pairs(Source):
    """Contexts (with features computed once) that meet every row of the data."""

    contexts: Batch
    product: Product
    basis: FeatureMap

    def contexts_pool(self):
        return self.contexts

    def _pair(self, i, j):
        context = jax.tree.map(lambda a: a[i], self.contexts)
        eta = jax.tree.map(lambda a: a[j], self.product.eta)
        return Batch(context.features, context.xi, eta, context.weight)

    def pool(self):
        m, n = len(self.contexts), self.product.eta_rows
        row = jax.tree.map(lambda a: a[:1], (self.contexts, self.product.eta))
        size = m * n * sum(leaf.nbytes for leaf in jax.tree.leaves(row))
        if size > _POOL_BYTES:
            raise ValueError(
                f"the pool of all {m} contexts x {n} data rows would take {size / 2**30:.1f} GiB. Use fewer contexts "
                "(Product(..., nodes=...)), or a solver that draws batches, such as StocBiO."
            )
        return self._pair(jnp.repeat(jnp.arange(m), n), jnp.tile(jnp.arange(n), m))

    @property
    def rows(self):
        return len(self.contexts) * self.product.eta_rows

    def batch(self, key, number, size, shuffle):
        """Fresh contexts, whatever happens to the data: they are an expectation to sample, not a pool to go through."""
        for_context, for_data = jax.random.split(key)
        dtype = self.basis.constant.dtype
        data = samplers.rows_of(for_data, number, size, self.product.eta_rows, shuffle, dtype)
        if isinstance(self.product.contexts, Distribution):
            xi = self.product.contexts.sample(jax.random.fold_in(for_context, number), size).astype(dtype)
            batch = _batch(self.basis, Samples(xi, jax.tree.map(lambda a: a[data.index], self.product.eta)))
        else:
            i = samplers.rows_of(for_context, number, size, len(self.contexts), False, dtype).index
            batch = self._pair(i, data.index)
        return replace(batch, weight=batch.weight * data.share, count=data.count)


class Endless(Source):
    """A stream: features are computed as samples come."""

    stream: Stream
    basis: FeatureMap

    def pool(self):
        raise ValueError(
            "a Stream has no finite pool. Use a solver that draws batches, such as StocBiO, or draw a sample yourself: "
            "samples = stream.draw(key, 10_000)."
        )

    def batch(self, key, number, size, shuffle):
        return _batch(self.basis, self.stream.draw(jax.random.fold_in(key, number), size))


class Coordinates(eqx.Module):
    """The way back from whitened coefficients: ``W = transform @ Z + rest``.

    ``rest`` is the part of the start that the observed contexts do not see; it stays as it is, so that a cell without
    contexts keeps ``y0``.
    """

    transform: Float[Array, "N r"]
    rest: PyTree[Float[Array, "N ..."]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Reduced:
    """An ordinary stochastic bilevel problem in ``(x, W)``; made by ``reduce``.

    An outside solver needs `upper`, `lower` (batch means, differentiable), the pools or `draw`, `problem.x0`, `W0`,
    and `lift` at the end.
    """

    problem: Problem
    basis: FeatureMap
    upper_source: Source
    lower_source: Source
    W0: PyTree[Float[Array, "N ..."]]
    whitening: Whitening | None
    coordinates: Coordinates | None = None

    def _mean(self, function: Any, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, ""]:
        y = combine(batch.features, W)
        values = jax.vmap(function, in_axes=(None, 0, 0, 0))(x, y, batch.xi, batch.eta)
        return jnp.mean(batch.weight * values).astype(batch.weight.dtype)

    def upper(self, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, ""]:
        """The batch mean of ``f(x, W Phi(xi), xi, eta)``."""
        return self._mean(self.problem.upper, x, W, batch)

    def lower(self, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, ""]:
        """The batch mean of ``g(x, W Phi(xi), xi, eta)``."""
        return self._mean(self.problem.lower, x, W, batch)

    @property
    def x0(self) -> PyTree[Array]:
        return self.problem.x0

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
        key = as_key(key)
        above, below = jax.random.split(key)
        return self.upper_source.draw(above, size), self.lower_source.draw(below, size)

    def project(self, x: PyTree) -> PyTree:
        """The nearest point within the bounds on ``x``."""
        return jax.tree.map(jnp.clip, x, *self.problem.x_bounds)

    def lift(self, x: PyTree, W: PyTree, **told: Any) -> Solution:
        """The solution of the contextual problem that ``(x, W)`` stands for."""
        for name, tree, like in (("x", x, self.problem.x0), ("W", W, self.W0)):
            shapes = jax.tree.map(jnp.shape, tree)
            if shapes != jax.tree.map(jnp.shape, like):
                raise ValueError(f"lift: {name} must have the shapes {jax.tree.map(jnp.shape, like)}, got {shapes}.")
        if self.coordinates is not None:
            forth = self.coordinates.transform
            restore = lambda z, rest: jnp.tensordot(forth, z, axes=1) + rest
            W = jax.tree.map(restore, W, self.coordinates.rest)
        told = {"converged": False, "result": "Lifted from coefficients given by the caller; not checked.", **told}
        return Solution(x, W, self.basis, **told)

    def whitened(self) -> "Reduced":
        """The same problem in coordinates that make the observed features orthonormal, dependent ones cut."""
        if self.whitening is None or self.coordinates is not None:
            return self
        forth, back = self.whitening.transform, self.whitening.inverse
        Z0 = jax.tree.map(lambda w: jnp.tensordot(back, w, axes=1), self.W0)
        rest = jax.tree.map(lambda w, z: w - jnp.tensordot(forth, z, axes=1), self.W0, Z0)

        def rotate(source):
            pool = source.pool()
            return Table(eqx.tree_at(lambda b: b.features, pool, pool.features @ forth))

        lower = rotate(self.lower_source)
        upper = lower if self.upper_source is self.lower_source else rotate(self.upper_source)
        coordinates = Coordinates(forth, rest)
        return replace(self, upper_source=upper, lower_source=lower, W0=Z0, coordinates=coordinates)


def reduce(problem: Problem, basis: Basis, samples: Data) -> Reduced:
    """Reduces a contextual bilevel problem to an ordinary one, with features computed once.

    **Arguments:**

    - `problem`: what is to be solved.
    - `basis`: a basis such as ``Chebyshev(5)``.
    - `samples`: ``Samples``, ``Product``, ``Levels`` or ``Stream``.
    """
    check(problem, samples)
    return build(problem, basis, samples)


def build(problem: Problem, basis: Basis, samples: Data) -> Reduced:
    """``reduce``, for problem and samples that have been checked against each other already."""
    if not isinstance(basis, Basis):
        hint = " (a class: write the number of functions too)" if isinstance(basis, type) else ""
        raise TypeError(f"basis must be a basis such as cb.Chebyshev(5), got {basis!r}{hint}.")
    dtype = working_dtype(problem, samples)
    problem = problem.astype(dtype)
    basis = basis.learn(problem, samples)
    lower = levels(samples)[1]
    observed = contexts_of(lower)
    fitted = basis.fit(problem.domain, problem.domain.snap(observed.xi, dtype), observed.weights)
    if not isinstance(lower, Stream):
        _check_size(basis, fitted, np.asarray(observed.xi), "samples")
    return assemble(problem, fitted, samples)


def assemble(problem: Problem, fitted: FeatureMap, samples: Data) -> Reduced:
    """The reduced problem for a basis that is fitted already, perhaps to other samples."""
    dtype = working_dtype(problem, samples)
    problem = problem.astype(dtype)
    upper, lower = levels(samples)
    observed, whitening = contexts_of(lower), None
    if not isinstance(lower, Stream):
        whitening = whiten(fitted(problem.domain.snap(observed.xi, dtype)), observed.weights)
    source = _source(lower, fitted)
    W0 = jax.tree.map(lambda y: jnp.tensordot(fitted.constant.astype(dtype), y, axes=0), problem.y0)
    return Reduced(problem, fitted, source if upper is lower else _source(upper, fitted), source, W0, whitening)


def contexts_of(level: Level) -> Samples:
    """The contexts a level observes, with weights; a look at them for a stream."""
    if isinstance(level, Stream):
        drawn = level.draw(jax.random.key(0), _STREAM_LOOK)
        return Samples(drawn.xi, None, drawn.weights)
    if isinstance(level, Product):
        return level.context_rule()
    return Samples(level.xi, None, level.weights)


def _source(level: Level, basis: FeatureMap) -> Source:
    if isinstance(level, Stream):
        return Endless(level, basis)
    if isinstance(level, Product):
        return Pairs(_batch(basis, level.context_rule()), level, basis)
    return Table(_batch(basis, level))


def _check_size(basis: Basis, fitted: FeatureMap, contexts: np.ndarray, where: str) -> None:
    """More functions than distinct contexts cannot be told apart; near that, they fit noise."""
    distinct = len(np.unique(contexts, axis=0))
    if isinstance(basis, Categorical):
        return  # its size is the domain's; values never seen keep y0
    count = len(fitted.constant) if fitted.transform is None else len(fitted.transform)
    if count > distinct:
        raise ValueError(
            f"basis {basis!r} has {count} functions, but {where} hold only {distinct} distinct contexts. Take a "
            f"smaller n, or more contexts."
        )
    if count > 1 and 2 * count > distinct:
        warnings.warn(
            f"basis {basis!r} has {count} functions for {distinct} distinct contexts: expect overfitting between them. "
            "Take n so that there are several contexts a function.",
            stacklevel=4,
        )
