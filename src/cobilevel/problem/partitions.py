"""``PartitionedSamples``: joint samples in partitions that stay where they are, and a sample of their rows here.

Sums over rows go over all partitions. What takes a closer look, such as the choice of a basis or neighbours, looks at
the sample, which is all rows where these are few.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from ..ground import Common, Parts, whole
from .frames import Frame, frame_columns, is_frame
from .level import Level

CALLER = "Samples.from_frame"


def is_partitioned(frame: Any) -> bool:
    """Whether something is a table in partitions: a data frame of dask, or a list."""
    return isinstance(frame, list | tuple) or hasattr(frame, "to_delayed")


def parts_of(frame: Any, columns: list, caller: str) -> Parts:
    """The partitions of such a table, restricted to these columns."""
    if hasattr(frame, "to_delayed"):
        missing = [name for name in columns if name not in list(frame.columns)]
        if missing:
            Frame(frame._meta, caller).require(missing, "context, eta or weights")  # raises, naming what is close
        return Parts(frame[columns].to_delayed(), columns)
    if not frame:
        raise ValueError(f"{caller}: the list of partitions is empty.")
    for one in frame:
        delayed, path = hasattr(one, "__dask_graph__"), isinstance(one, str) or hasattr(one, "__fspath__")
        if not (delayed or path or callable(one) or is_frame(one)):
            raise TypeError(
                f"{caller}: partitions must be data frames, delayed ones, paths of Parquet files, or functions that "
                f"return a data frame; got {type(one).__name__}."
            )
    return Parts(frame, columns)


def named_columns(*roles: Any) -> list:
    """The names that arguments hold, each a name, a list, or ``None``."""
    lists = (list(names) if isinstance(names, list | tuple) else [names] for names in roles if names is not None)
    return [name for names in lists for name in names]


# -- what is asked of partitions; on their workers


class Roles(NamedTuple):
    """How to read a partition: a `kind` of data, from the columns of these names."""

    kind: Any
    context: Any
    eta: Any
    weights: Any


def samples_in(frame: Any, roles: Roles) -> tuple[Any, float]:
    """The samples of one partition, or ``None`` if no row has a positive weight; and their total weight."""
    if not len(frame):
        return None, 0.0
    xi, eta, weights = frame_columns(frame, *roles[1:], CALLER)
    if weights is not None and not np.any(weights):
        return None, 0.0
    return roles.kind(xi, eta, weights), float(len(frame) if weights is None else np.sum(weights))


def _counted(parts: list, common: Common) -> list[tuple[int, tuple[int, float]]]:
    """Rows of each partition, and their total weight."""
    found = [(number, samples_in(load(), common.value)) for number, load in parts]
    return [(number, (0 if samples is None else len(samples), mass)) for number, (samples, mass) in found]


def _drawn(parts: list, common: Common, wanted: dict[int, np.ndarray | None]) -> list[tuple[int, Any]]:
    """The wanted rows of each partition, all of them where none are named."""
    found = []
    for number, load in parts:
        index = wanted[number]
        if index is None or len(index):
            samples = samples_in(load(), common.value)[0]
            rows = samples if index is None else samples.rows(index)
            found.append((number, jax.tree.map(np.asarray, (rows.xi, rows.eta, rows.weights))))
    return found


# -- the data


class PartitionedSamples(Level):
    """Joint samples in partitions; made by ``Samples.from_frame`` from a data frame of dask, or a list of partitions.

    - `sample`: the rows held in this process, drawn at random; all rows if there are no more.
    - `parts`: the partitions; `roles`: what their columns are.
    - `rows`: how many there are; `mass`: the sum of their weights.
    - `stated`: a function that returns the problem they are used for and its precision; workers need both.
    """

    sample: Any
    parts: Parts = eqx.field(static=True)
    roles: Roles = eqx.field(static=True)
    rows: int
    mass: float
    stated: Any = eqx.field(static=True, default=None)

    @staticmethod
    def of(frame: Any, roles: Roles, sample: int) -> "PartitionedSamples":
        """Counts the rows, and draws the sample: two passes over the partitions."""
        most, parts, common = whole("sample", sample), parts_of(frame, named_columns(*roles[1:]), CALLER), Common(roles)
        found = parts.each(_counted, common)
        counts = np.array([count for count, _ in found])
        rows, mass = int(counts.sum()), float(sum(mass for _, mass in found))
        if not rows:
            raise ValueError(f"{CALLER}: no partition has any rows: at least one sample is needed.")
        chosen = None if rows <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        begins = np.concatenate([[0], np.cumsum(counts)])
        wanted = {
            k: (None if count else np.zeros(0, int)) if chosen is None
            else chosen[(chosen >= begins[k]) & (chosen < begins[k + 1])] - begins[k]
            for k, count in enumerate(counts)
        }  # fmt: skip
        drawn = parts.each(_drawn, common, wanted)
        return PartitionedSamples(roles.kind(*map(_joined, zip(*drawn, strict=True))), parts, roles, rows, mass)

    def __len__(self) -> int:
        return self.rows

    @property
    def count(self):
        return self.rows

    @property
    def here(self):
        return self.sample

    @property
    def share(self):
        return len(self.sample) / self.rows

    def contexts(self):
        return self.sample.contexts()

    def example(self, rows=1):
        return self.sample.example(rows)

    def thinned(self, key, rows):
        return self.sample.thinned(key, rows)

    def resample(self, rng):
        return self.sample.resample(rng)

    def words(self) -> str:
        """A description in words."""
        some = "all of them" if self.share == 1 else f"{len(self.sample)} of them, at random,"
        return f"{self.rows} rows: {self.parts.words()}; {some} in this process too"


def _joined(values: tuple) -> Any:
    """Columns of several partitions, one after the other."""
    if isinstance(values[0], Mapping):
        return {name: _joined(tuple(value[name] for value in values)) for name in values[0]}
    return None if values[0] is None else np.concatenate(values)
