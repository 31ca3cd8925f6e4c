"""``spread``: samples cut into shards over the processes of a cluster, each of which holds only its own rows."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..cluster import Cluster, RowLayout, digest_of, even_counts, this_cluster
from .data import LOOK_ROWS, Level, Samples


def spread(samples: Samples, own: bool = False) -> Any:
    """Samples for ``solve`` on several processes: each keeps its share of the rows, and works on that.

    In a process alone, the samples as they are. See ``cb.cluster.join``.

    **Arguments:**

    - `samples`: ``Samples``, all of them in every process.
    - `own`: that each process hands over rows of its own instead, as many as it has. Standard errors then are not
      computed, for no process has all the rows.
    """
    if not isinstance(samples, Samples):
        raise TypeError(f"spread takes Samples, got {type(samples).__name__}: other data are not cut into rows.")
    cluster = this_cluster()
    if cluster.mesh is None:
        return samples
    if samples.weights is not None:  # rows of no weight say nothing
        samples = samples.rows(np.flatnonzero(np.asarray(samples.weights) > 0))
    if own:
        counts = even_counts(len(samples), len(cluster.own))
        each = np.concatenate(cluster.gathered([np.array([count]) for count in counts]))
        return SpreadSamples.of(samples, RowLayout(tuple(each.tolist())), cluster, None)
    layout = RowLayout(even_counts(len(samples), cluster.shards))
    begin = sum(layout.counts[: cluster.own.start])
    mine = sum(layout.counts[k] for k in cluster.own)
    part = samples.rows(slice(begin, begin + mine) if mine else slice(0, 1))  # at least one, to fill up with
    return SpreadSamples.of(part, layout, cluster, samples)


class SpreadSamples(Level):
    """This process's share of the samples of a cluster; made by ``spread``.

    - `part`: its own rows, without weights.
    - `mass`: their weights, 1 in the mean over the rows of all processes.
    - `row_layout`: how many rows each shard has, of all processes.
    - `all_rows`: makes the samples of all processes, where this one has them.
    """

    part: Samples
    mass: Float[np.ndarray, " n"]
    row_layout: RowLayout = eqx.field(static=True)
    cluster: Cluster = eqx.field(static=True)
    all_rows: Callable[[], Samples] | None = eqx.field(static=True)

    @staticmethod
    def of(part: Samples, layout: RowLayout, cluster: Cluster, whole: Samples | None) -> "SpreadSamples":
        """With the weights of all processes brought to mean one; sums are taken shard by shard."""
        given = np.ones(len(part)) if part.weights is None else np.asarray(part.weights, float)
        bare = Samples(part.xi, part.eta)
        spread = SpreadSamples(bare, given, layout, cluster, None if whole is None else lambda: whole)
        sums = cluster.gathered([np.atleast_1d(np.sum(piece[piece > 0])) for piece in spread._pieces(given, 0)])
        total = float(np.sum(np.concatenate(sums)))
        return eqx.tree_at(lambda s: s.mass, spread, given * (layout.rows / total))

    @property
    def layout(self):
        return self.row_layout

    @property
    def count(self):
        return self.row_layout.rows

    def _pieces(self, array: Any, filling: Any = None) -> list[np.ndarray]:
        """Rows of this process as its shards, each filled up to the common length: by the first row, or a number."""
        array = np.asarray(array)
        fill = array[:1] if filling is None else np.full_like(array[:1], filling)
        cut = np.split(array[: sum(self._counts)], np.cumsum(self._counts)[:-1])
        return [np.concatenate([part, np.repeat(fill, self.row_layout.length - len(part), axis=0)]) for part in cut]

    @property
    def _counts(self) -> list[int]:
        """The rows of each shard of this process."""
        return [self.row_layout.counts[k] for k in self.cluster.own]

    @cached_property
    def _placed(self) -> Samples:
        """The samples of all processes, each row where it is held; fillings have weight 0."""
        held = jax.tree.map(lambda a: self.cluster.placed(self._pieces(a)), self.part)
        dtype = self.part.xi.dtype if np.issubdtype(self.part.xi.dtype, np.floating) else float
        weights = self.cluster.placed(self._pieces(self.mass.astype(dtype), 0))
        return eqx.tree_at(lambda s: s.weights, held, weights, is_leaf=lambda v: v is None)

    def placed(self):
        return self._placed

    def contexts(self):
        return eqx.tree_at(lambda s: s.eta, self._placed, None, is_leaf=lambda v: v is self._placed.eta)

    def known_by(self):
        arrays = jax.tree.leaves((self._placed.xi, self._placed.eta, self._placed.weights))
        return [self.row_layout.counts, *[np.frombuffer(digest_of(array), np.uint8) for array in arrays]]

    def distinct(self):
        """How many contexts are different, over all processes; those of large shards are not compared."""
        cut = zip(self._pieces(self.part.xi), self._counts, strict=True)
        distinct = [np.unique(piece[:count], axis=0) for piece, count in cut]
        few = [piece if len(piece) <= LOOK_ROWS else piece[:0] for piece in distinct]
        most = max(int(size[0]) for size in self.cluster.gathered([np.array([len(piece)]) for piece in distinct]))
        return max(most, len(np.unique(np.concatenate(self.cluster.gathered(few)), axis=0)))

    def example(self, rows=1):
        return self.part.example(rows)

    def thinned(self, key, rows):
        raise _no_look()

    def with_part(self, part: Any, all_rows: Callable[[], Any] | None) -> "SpreadSamples":
        """The same rows, parsed."""
        return SpreadSamples(part, self.mass, self.row_layout, self.cluster, all_rows)

    @property
    def all_here(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.all_rows is not None

    def whole(self):
        if self.all_rows is None:
            raise _no_look()
        return self.all_rows()


def _no_look() -> ValueError:
    return ValueError(
        "samples are spread over processes, and this takes a look at all of them: call it with the Samples themselves, "
        "in one process (a solution of spread samples can be saved, and loaded there)."
    )
