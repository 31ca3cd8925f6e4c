"""reduction.batches."""

from abc import abstractmethod
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Shaped

from ..basis.base import FeatureMap
from ..problem.data import Level, Product, Samples, Stream
from ..problem.distributions import Distribution
from . import row_order as samplers

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
