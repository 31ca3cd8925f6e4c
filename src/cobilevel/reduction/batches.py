"""Where batches come from: a table of samples, contexts crossed with data, or a stream; with features computed.

Which rows make up which batch is a pure function of a key and the number of the batch. So a sampler's whole position is
one counter: any batch can be drawn again (variance reduction does), a saved run goes on exactly where it stopped, and
nothing is stored per row. Without replacement, each epoch runs through a fresh pseudo-random permutation of the pool,
evaluated row by row rather than by sorting.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer, PyTree, Shaped

from ..basis import FeatureMap, Rows, combine
from ..ground import MOST_KEPT, below, derived, gibibytes, hashed, memory_limit, mix
from ..problem import Distribution, Samples, Stream, no_pool


class RowIndex(eqx.Module):
    """The rows of one batch: positions in the pool, the share each has in the batch mean times the batch size, and how
    many are real (a ragged last batch is filled up with rows of share 0). Where no batch is ragged, the last two are
    plain numbers, so that what follows from them is known before anything runs."""

    index: Int[Array, " b"]
    share: Float[Array | np.ndarray, " b"]
    count: Int[Array | np.ndarray, ""]

    @staticmethod
    def full(index: Int[Array, " b"], dtype: Any) -> "RowIndex":
        """A batch all of whose rows are real."""
        return RowIndex(index, np.ones(len(index), dtype), np.asarray(len(index), np.int32))


def permute(key: Array, position: Int[Array, " b"], rows: int) -> Int[Array, " b"]:
    """Where a pseudo-random permutation of ``range(rows)`` sends each position.

    For a power of two a Feistel network: in turn, each half of the bits is changed by a hash of the other half. Else
    "swap or not": in each of sixteen rounds every position has a partner, the two add up to a random number, and a bit
    that is the same for both says whether they change places: two rows that kept together so far are parted with odds
    of one half. Neither needs a loop, nor a look at other positions.
    """
    first, second = hashed(key, 0), hashed(key, 1)
    salts = [np.uint32(k * 0x9E3779B9 % 2**32) for k in range(16)]  # of the golden ratio: far apart
    value = position.astype(jnp.uint32)
    if rows & (rows - 1) == 0:
        bits = rows.bit_length() - 1
        half = np.uint32(bits // 2)
        left, right = value >> half, value & np.uint32((1 << half) - 1)
        for a, b in zip(salts[:4], salts[4:8], strict=True):
            left = left ^ (mix(right ^ (first + a)) >> np.uint32(32 - bits + half)) if bits > half else left
            right = right ^ (mix(left ^ (second + b)) & np.uint32((1 << half) - 1))
        return ((left << half) | right).astype(jnp.int32)
    totals, turns = below(mix(first + np.array(salts)), rows), second + np.array(salts)  # of all rounds at once
    for total, turn in zip(totals, turns, strict=True):
        partner = jax.lax.select(value <= total, total - value, total - value + np.uint32(rows))
        stays = mix(jax.lax.max(value, partner) ^ turn) < np.uint32(2**31)
        value = jax.lax.select(stays, value, partner)
    return value.astype(jnp.int32)


def _settled(index: Int[Array, " b"]) -> Int[Array, " b"]:
    """The same numbers behind a product of matrices, which compilers do not look through: else every use of every row
    would compute them again."""
    one = np.eye(8, dtype=np.int32)
    table = jnp.pad(index, (0, -len(index) % len(one))).reshape(-1, len(one))
    return (table @ one).reshape(-1)[: len(index)]


def batch_rows(key: Array, number: Integer[Array, ""], size: int, pool: int, shuffle: bool, dtype: Any) -> RowIndex:
    """The rows of batch `number` from a pool: independent draws, or (`shuffle`) every row once an epoch."""
    places = np.arange(size, dtype=np.uint32)
    if not shuffle:
        return RowIndex.full(_settled(below(hashed(derived(key, number), places), pool).astype(jnp.int32)), dtype)
    batches = -(-pool // size)
    number = jnp.asarray(number)
    epoch, slot = number // batches, number % batches
    position = slot.astype(jnp.int32) * size + places.astype(np.int32)
    if pool % size == 0:
        return RowIndex.full(_settled(permute(derived(key, epoch), position, pool)), dtype)
    real = position < pool
    count = jnp.minimum(pool - slot.astype(jnp.int32) * size, size)
    index = permute(derived(key, epoch), jnp.where(real, position, 0), pool)
    share = jnp.where(real, size / count.astype(dtype), 0)
    return RowIndex(_settled(index), share, count)


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


@dataclass(frozen=True)
class Batches:
    """Batches by number, from 0 on; lives while a step is traced. `counts`: the rows of each, where these differ."""

    batch: Callable[[Any], Batch]
    counts: Int[Array, " k"] | None = None

    def __call__(self, number: Any) -> Batch:
        return self.batch(number)


class Source(eqx.Module):
    """Where one level's batches come from."""

    @abstractmethod
    def pool(self) -> Batch:
        """All there is, as one batch."""

    def contexts_pool(self) -> Batch:
        """The contexts there are, each once for joint samples; its features are what matters."""
        return self.pool()

    def whole(self) -> Any:
        """All there is, for a mean over it: pairs of contexts and data are not formed."""
        return self.pool()

    @abstractmethod
    def plan(self, key: Array, number: Integer[Array, ""], size: int, shuffle: bool) -> tuple[Any, RowIndex | None]:
        """What batch `number` is made of, of those the key stands for: what is drawn, and rows of the pool, these with
        replacement, or (`shuffle`) each once an epoch."""

    @abstractmethod
    def fetch(self, drawn: Any, rows: Any) -> Batch:
        """The batch that is made of what was planned."""

    def batch(self, key: Array, number: Integer[Array, ""], size: int, shuffle: bool) -> Batch:
        """Batch `number` of those the key stands for."""
        return self.fetch(*self.plan(key, number, size, shuffle))

    def batches(self, key: Array, begin: Any, count: Any, size: int, shuffle: bool) -> Batches:
        """The `count` batches from number `begin` on; where that is a plain number, they are planned all at once."""
        if not isinstance(count, int):
            return Batches(lambda number: self.batch(key, begin + jnp.asarray(number, jnp.uint32), size, shuffle))
        plan = lambda number: eqx.partition(self.plan(key, number, size, shuffle), eqx.is_array)
        each = jax.vmap(lambda number: plan(number)[0])(begin + np.arange(count, dtype=np.uint32))
        same, rows = plan(begin)[1], each[1]  # what is no array of JAX is known before anything runs
        at = lambda place: eqx.combine(jax.tree.map(lambda a: a[place], each), same)
        return Batches(lambda place: self.fetch(*at(place)), None if rows is None else rows.count)

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

    def turned(self, transform: Any) -> Any:
        """The pool, its features in other coordinates."""
        return self.tabled(features=combine(self.pool().features, transform))


class Table(Source):
    """A finite pool of joint samples."""

    table: Batch

    def pool(self):
        return self.table

    @property
    def rows(self):
        return len(self.table)

    def plan(self, key, number, size, shuffle):
        return None, batch_rows(key, number, size, self.rows, shuffle, self.table.weight.dtype)

    def fetch(self, drawn, rows):
        return self.table.take(rows)


class EveryPair(Source):
    """Contexts with their features that meet every row of the data: a source, and a batch of all pairs that are not
    formed.

    `often`: how often each row of the data counts, once in the mean. `law`: the distribution of the contexts, where
    they are its quadrature: batches then have fresh ones, with features of `basis`.
    """

    contexts: Batch
    eta: PyTree[Shaped[Array, "n ..."]]
    often: Float[Array, " n"] | None = None
    law: Distribution | None = None
    basis: FeatureMap | None = None

    count: ClassVar[None] = None

    @property
    def data_rows(self) -> int:
        """The rows of the data."""
        return len(jax.tree.leaves(self.eta)[0])

    def __len__(self) -> int:
        return len(self.contexts) * self.data_rows

    def contexts_pool(self):
        return self.contexts

    def whole(self):
        return self

    @property
    def rows(self):
        return len(self)

    def pool(self):
        first = jax.tree.map(lambda a: a[:1], (self.contexts, self.eta))
        size = len(self) * sum(leaf.nbytes for leaf in jax.tree.leaves(first))
        most = min(MOST_KEPT, memory_limit())
        if size > most:
            raise ValueError(
                f"the pool of all {len(self.contexts)} contexts x {self.data_rows} data rows would take "
                f"{gibibytes(size)}, more than {gibibytes(most)}. Use fewer contexts (Product(..., nodes=...)), or a "
                "solver that draws batches, such as SOBA."
            )
        context, row = jnp.divmod(jnp.arange(len(self)), self.data_rows)
        return self._with_data(_at(self.contexts, context), row)

    def _with_data(self, contexts: Batch, row: Int[Array, " b"]) -> Batch:
        """Contexts with rows of the data, one each."""
        batch = replace(contexts, eta=_at(self.eta, row))
        return batch if self.often is None else replace(batch, weight=batch.weight * self.often[row])

    def turned(self, transform):
        contexts = replace(self.contexts, features=combine(self.contexts.features, transform))
        return EveryPair(contexts, self.eta, self.often)

    def plan(self, key, number, size, shuffle):
        """Contexts are drawn, whatever happens to the data: they are an expectation, not a pool to go through."""
        for_context, for_data, dtype = derived(key, 0), derived(key, 1), self.contexts.weight.dtype
        data = batch_rows(for_data, number, size, self.data_rows, shuffle, dtype)
        if self.law is not None and self.basis is not None:
            xi = self.law.sample(derived(for_context, number), size).astype(dtype)
            return Batch(self.basis.rows(xi), xi, None, jnp.ones(size, dtype)), data
        index = batch_rows(for_context, number, size, len(self.contexts), False, dtype).index
        return _at(replace(self.contexts, eta=None), index), data

    def fetch(self, drawn, rows):
        batch = self._with_data(drawn, rows.index)
        return replace(batch, weight=batch.weight * rows.share, count=rows.count)


class Endless(Source):
    """A stream: features are computed as samples come."""

    stream: Stream
    basis: FeatureMap

    def pool(self):
        raise no_pool("this")

    def plan(self, key, number, size, shuffle):
        return (derived(key, number), size), None

    def fetch(self, drawn, rows):
        return batch_of(self.basis, self.stream.draw(*drawn))


def source_of(level: Any, basis: FeatureMap) -> Source:
    """Where the batches of a level come from, with the features of a fitted basis."""
    if level.endless:
        return Endless(level, basis)
    if level.crossed:
        return EveryPair(batch_of(basis, level.contexts()), level.eta, None, level.law, basis)
    return Table(batch_of(basis, level))
