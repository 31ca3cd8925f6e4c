"""Where batches come from: a table of samples, contexts crossed with data, or a stream; with features computed."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer, PyTree, Shaped

from ..basis import FeatureMap, Rows
from ..checks import MOST_KEPT, gibibytes, memory_limit
from ..cluster import RowLayout
from ..keys import derived
from ..problem import Product, Samples, Stream, no_pool
from .row_order import RowIndex, batch_rows, rows_ahead

_FETCHED_AHEAD = 2**16  # rows of several batches that are fetched from other devices at once


def _at(tree: PyTree, index: Int[Array, " b"]) -> PyTree:
    """Rows of arrays, none of them beyond the last."""
    return jax.tree.map(lambda a: jnp.asarray(a).at[index].get(mode="promise_in_bounds"), tree)


class Batch(eqx.Module):
    """Samples with their features: what one oracle call averages over. Index it as ``tree.map(a[idx])``.

    `count` is the number of real rows where a batch is filled up with rows of weight 0, else ``None``.
    """

    features: Rows
    xi: Shaped[Array, "b ..."]
    eta: PyTree[Shaped[Array, "b ..."]]
    weight: Float[Array, " b"]
    count: Int[Array | np.ndarray, ""] | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def take(self, rows: RowIndex) -> "Batch":
        """The given rows of a pool, weighted so that the mean over the batch is the mean over the real ones."""
        part = _at(self, rows.index)
        return replace(part, weight=part.weight * rows.share, count=rows.count)


def batch_of(basis: FeatureMap, samples: Samples) -> Batch:
    """Samples with the features of a fitted basis."""
    dtype = basis.constant.dtype
    return Batch(basis.rows(samples.xi), samples.xi, samples.eta, samples.mean_one_weights().astype(dtype))


class Batches:
    """Batches by number, from 0 on; lives while a step is traced. `counts`: the rows of each, where these differ."""

    def __init__(self, batch: Callable[[Any], Batch], counts: Int[Array | np.ndarray, " k"] | None = None):
        self._batch, self.counts = batch, counts

    def __call__(self, number: Any) -> Batch:
        return self._batch(number)


class Source(eqx.Module):
    """Where one level's batches come from."""

    @abstractmethod
    def pool(self) -> Batch:
        """All there is, as one batch."""

    def contexts_pool(self) -> Batch:
        """The contexts there are, each once for joint samples; its features are what matters."""
        return self.pool()

    @abstractmethod
    def batch(self, key: Array, number: Integer[Array, ""], size: int, shuffle: bool) -> Batch:
        """Batch `number` of those the key stands for: with replacement, or (`shuffle`) each row once an epoch."""

    def batches(self, key: Array, begin: Any, count: Any, size: int, shuffle: bool) -> "Batches":
        """The `count` batches from number `begin` on."""
        return Batches(lambda number: self.batch(key, begin + jnp.asarray(number, jnp.uint32), size, shuffle))

    def draw(self, key: Array, size: int) -> Batch:
        """A fresh random batch (with replacement from a finite pool)."""
        return self.batch(key, jnp.uint32(0), size, False)

    @property
    def rows(self) -> int | None:
        """The number of rows of the pool; ``None`` where there is no end of them."""
        return None

    def tabled(self, **parts: Any) -> "Table":
        """The pool as a table, with other `parts` where they are given."""
        return Table(replace(self.pool(), **parts))

    def at_most(self, key: Array, rows: int) -> "Table":
        """The pool where it has at most so many rows, else a random batch of that size."""
        if self.rows is not None and self.rows <= rows:
            return self.tabled()
        return Table(replace(self.draw(key, rows), count=None))


class Table(Source):
    """A finite pool of joint samples."""

    table: Batch

    def pool(self):
        return self.table

    @property
    def rows(self):
        return len(self.table)

    def batch(self, key, number, size, shuffle):
        return self.table.take(batch_rows(key, number, size, len(self.table), shuffle, self.table.weight.dtype))

    def batches(self, key, begin, count, size, shuffle):
        if not isinstance(count, int):
            return super().batches(key, begin, count, size, shuffle)
        numbers = begin + np.arange(count, dtype=np.uint32)
        rows, counts = rows_ahead(key, numbers, size, len(self.table), shuffle, self.table.weight.dtype)
        return Batches(lambda number: self.table.take(rows(number)), counts)


class SpreadTable(Table):
    """A pool whose rows are spread over the devices of a cluster; those of weight 0 that fill up shards do not count.

    A batch is fetched from where its rows are, and worked on everywhere.
    """

    layout: RowLayout = eqx.field(static=True)

    def pool(self):
        return replace(self.table, count=np.asarray(self.layout.rows, np.int32))

    @property
    def rows(self):
        return self.layout.rows

    def tabled(self, **parts):
        return replace(self, table=replace(self.table, **parts))

    def _fetched(self, rows: RowIndex) -> Batch:
        """Rows by number; weights are those of a pool that has no others."""
        part = self.table.take(replace(rows, index=self.layout.place(rows.index)))
        return replace(part, weight=part.weight * (self.layout.rows / self.layout.filled))

    def batch(self, key, number, size, shuffle):
        return self._fetched(batch_rows(key, number, size, self.rows, shuffle, self.table.weight.dtype))

    def batches(self, key, begin, count, size, shuffle):
        if not isinstance(count, int):
            return Source.batches(self, key, begin, count, size, shuffle)
        numbers = begin + np.arange(count, dtype=np.uint32)
        rows, counts = rows_ahead(key, numbers, size, self.rows, shuffle, self.table.weight.dtype)
        if not 0 < count * size <= _FETCHED_AHEAD:
            return Batches(lambda number: self._fetched(rows(number)), counts)
        index = jnp.concatenate([rows(place).index for place in range(count)])  # one message for all of them
        part = self._fetched(RowIndex.full(index, self.table.weight.dtype))
        ahead = jax.tree.map(lambda a: a.reshape(count, size, *a.shape[1:]), replace(part, count=None))

        def batch(number: Any) -> Batch:
            found, own = jax.tree.map(lambda a: a[number], ahead), rows(number)
            return replace(found, weight=found.weight * own.share, count=own.count)

        return Batches(batch, counts)


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
        m, n = len(self.contexts), self.product.count
        row = jax.tree.map(lambda a: a[:1], (self.contexts, self.product.eta))
        size = m * n * sum(leaf.nbytes for leaf in jax.tree.leaves(row))
        most = min(MOST_KEPT, memory_limit())
        if size > most:
            raise ValueError(
                f"the pool of all {m} contexts x {n} data rows would take {gibibytes(size)}, more than "
                f"{gibibytes(most)}. Use fewer contexts (Product(..., nodes=...)), or a solver that draws batches, "
                "such as SOBA."
            )
        return self._pair(jnp.repeat(jnp.arange(m), n), jnp.tile(jnp.arange(n), m))

    @property
    def rows(self):
        return len(self.contexts) * self.product.count

    def batch(self, key, number, size, shuffle):
        """Fresh contexts, whatever happens to the data: they are an expectation to sample, not a pool to go through."""
        for_context, for_data = derived(key, 0), derived(key, 1)
        data = batch_rows(for_data, number, size, self.product.count, shuffle, self.basis.constant.dtype)
        return self._met(self._drawn(for_context, number, size), data)

    def batches(self, key, begin, count, size, shuffle):
        """Contexts and features of all of them are computed at once, rows of the data taken when they are asked for."""
        if not isinstance(count, int):
            return super().batches(key, begin, count, size, shuffle)
        for_context, for_data = derived(key, 0), derived(key, 1)
        numbers = begin + np.arange(count, dtype=np.uint32)
        contexts = jax.vmap(lambda number: self._drawn(for_context, number, size))(numbers)
        rows, counts = rows_ahead(for_data, numbers, size, self.product.count, shuffle, self.basis.constant.dtype)
        drawn = lambda number: jax.tree.map(lambda a: a[number], contexts)
        return Batches(lambda number: self._met(drawn(number), rows(number)), counts)

    def _drawn(self, key: Array, number: Integer[Array, ""], size: int) -> Batch:
        """The contexts of a batch, without data."""
        dtype = self.basis.constant.dtype
        if self.product.law is not None:
            xi = self.product.law.sample(derived(key, number), size).astype(dtype)
            return Batch(self.basis.rows(xi), xi, None, jnp.ones(size, dtype))
        index = batch_rows(key, number, size, len(self.contexts), False, dtype).index
        return _at(replace(self.contexts, eta=None), index)

    def _met(self, contexts: Batch, data: RowIndex) -> Batch:
        """Contexts with rows of the data, one each."""
        return replace(
            contexts, eta=_at(self.product.eta, data.index), weight=contexts.weight * data.share, count=data.count
        )


class Endless(Source):
    """A stream: features are computed as samples come."""

    stream: Stream
    basis: FeatureMap

    def pool(self):
        raise no_pool("this")

    def batch(self, key, number, size, shuffle):
        return batch_of(self.basis, self.stream.draw(derived(key, number), size))


def source_of(level: Any, basis: FeatureMap) -> Source:
    """Where the batches of a level come from, with the features of a fitted basis."""
    if level.endless:
        return Endless(level, basis)
    if level.crossed:
        return Pairs(batch_of(basis, level.contexts()), level, basis)
    if level.layout is not None:
        return SpreadTable(batch_of(basis, level.placed()), level.layout)
    return Table(batch_of(basis, level))
