"""Sums over rows that are elsewhere, each taken where its rows are, and added in their order."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ..ground import Common, room
from ..reduction import FarRows, read_partition
from ..study import Study
from .rows import RowDerivatives, Sizes
from .sums import RowPool, lower_sums, on_accelerator, pools_of, total, upper_sums


def far_sums(far: FarRows, upper: bool, x: np.ndarray, W: np.ndarray, sizes: Sizes) -> Any:
    """The sums of a level over all rows."""
    answers = far.level.parts.ask(_sums, far.common, upper, x, W, sizes)
    return total(one for one in answers if one is not None)


# -- where the rows are


class _Kept:
    """What a process keeps for the questions of one recipe: the problem, traced; and partitions with their features, as
    many as there is room for. The others are read again for each question."""

    def __init__(self):
        self.study: Any = None
        self.pools: dict[int, RowPool] = {}
        self.bytes = 0

    def keep(self, number: int, pool: RowPool) -> None:
        size = pool.rows.nbytes + sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves((pool.features, pool.shares)))
        if self.bytes + size <= room():
            self.bytes += size
            self.pools[number] = pool


def _pools(parts: list, common: Common, sizes: Sizes) -> Iterator[tuple[Study, RowPool]]:
    """The partitions that have rows, and the problem."""
    kept, recipe = common.kept or _Kept(), common.value
    common.kept = kept
    for number, load in parts:
        pool = kept.pools.get(number)
        if pool is None:
            read = read_partition(load, recipe)
            if read is None:
                continue
            level, batch, shares = read
            if kept.study is None:
                kept.study = Study.of(recipe.problem, level, recipe.precision)
            pool = replace(pools_of(batch, kept.study.dtype, sizes.lower)[0], shares=shares)
            kept.keep(number, pool)
        yield kept.study, pool


def _sums(parts: list, common: Common, upper: bool, x: np.ndarray, W: np.ndarray, sizes: Sizes) -> Any:
    """The sums of a level over these partitions."""
    with common.value.precision.context():
        found = []
        for study, pool in _pools(parts, common, sizes):
            problem = study.problem
            if upper:
                of, derivatives = upper_sums, RowDerivatives.upper(problem.upper, pool.rows)
            else:
                of, derivatives = lower_sums, RowDerivatives.lower(problem.lower, pool.rows, sizes.crossed)
            summed = pool.summed_on_device if on_accelerator() else pool.summed
            found = [total([*found, summed(derivatives, x, W, of, sizes)])]
    return found[0] if found else None
