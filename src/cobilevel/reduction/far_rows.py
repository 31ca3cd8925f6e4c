"""Rows that are elsewhere: partitions with the features of a basis, read where they are."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..basis import FeatureMap, OneHot, Whitening, combine, upper_triangle, whitening_of
from ..ground import Common, Precision
from ..problem import Finite, PartitionedSamples, Problem, Roles, Samples, samples_in
from ..study import parsed_level
from .batches import Batch, Table, batch_of


@dataclass(frozen=True, eq=False)
class RowsRecipe:
    """What a process needs to know to add up rows: the problem as it was stated, with its barrier; the precision,
    the columns, the total weight of all rows; and the basis, turned by `transform`."""

    problem: Problem
    precision: Precision
    roles: Roles
    mass: float
    basis: FeatureMap
    transform: Any = None


class FarRows:
    """The rows of ``PartitionedSamples`` with the features of a fitted basis, and what exact methods ask of them."""

    def __init__(self, level: PartitionedSamples, recipe: RowsRecipe):
        self.level, self.common = level, Common(recipe)

    @staticmethod
    def of(level: PartitionedSamples, basis: FeatureMap) -> "FarRows":
        """Those of a level that knows the problem it is used for."""
        problem, precision = level.stated()
        return FarRows(level, RowsRecipe(problem, precision, level.roles, level.mass, basis))

    def turned(self, transform: Any) -> "FarRows":
        """The same rows, with features in other coordinates."""
        return FarRows(self.level, replace(self.common.value, transform=jax.tree.map(np.asarray, transform)))

    def whitening(self, dtype: Any) -> Whitening:
        """What makes the features of all rows orthonormal: the same digits wherever partitions are, so that a run can
        be told again by its features."""
        return whitening_of(self.level.parts.each(_triangle, self.common), self.level.rows, dtype)

    def contexts(self) -> Samples:
        """Those of the rows here, and one for each category that occurs elsewhere alone, with its weight."""
        here, missing = self.level.contexts(), {}
        for j, (part, column, _) in enumerate(self.common.value.problem.domain.columns(np.asarray(here.xi))):
            if isinstance(part, Finite):
                unseen = np.setdiff1d(np.arange(len(part.values)), np.asarray(part.index(column)))
                missing |= {(j, int(place)): (None, 0.0) for place in unseen}
        if not missing or self.level.share == 1:
            return here
        for found in self.level.parts.each(_rare, self.common, set(missing)):
            for key, xi, share in found:
                first, before = missing[key]
                missing[key] = (xi if first is None else first, before + share)
        rows = [(xi, share) for xi, share in missing.values() if xi is not None]
        shares = np.array([share for _, share in rows])
        xi = np.concatenate([np.asarray(here.xi), *(xi[None] for xi, _ in rows)])
        return Samples(xi, None, np.concatenate([here.shares() * (1 - shares.sum()), shares]))


class FarTable(Table):
    """A pool of which a sample is here, and all rows in partitions (`far`)."""

    far: FarRows = eqx.field(static=True)

    @property
    def rows(self):
        return self.far.level.rows

    def turned(self, transform):
        return FarTable(super().turned(transform).table, self.far.turned(transform))


# -- where the rows are


def _read(load: Any, recipe: RowsRecipe) -> tuple[Any, np.ndarray] | None:
    """A partition: its parsed rows, and the share of each among all."""
    samples, mass = samples_in(load(), recipe.roles)
    if samples is None:
        return None
    level: Any = parsed_level(recipe.problem.domain, samples, recipe.precision.dtype, "samples")
    return level, level.shares() * (mass / recipe.mass)


def read_partition(load: Any, recipe: RowsRecipe) -> tuple[Any, Batch, np.ndarray] | None:
    """The same with the features."""
    read = _read(load, recipe)
    if read is None:
        return None
    batch = batch_of(recipe.basis, read[0])
    if recipe.transform is not None:
        batch = replace(batch, features=combine(batch.features, recipe.transform))
    return read[0], batch, read[1]


def _rare(parts: list, common: Common, wanted: set[tuple[int, int]]) -> list[tuple[int, list[tuple]]]:
    """Of each wanted category, by its part of the domain and its place: a context that has it, and its share."""
    recipe, found = common.value, []
    with recipe.precision.context():
        for number, load in parts:
            read = _read(load, recipe)
            if read is None:
                continue
            (level, shares), kept = read, []
            for j, (part, column, _) in enumerate(recipe.problem.domain.columns(np.asarray(level.xi))):
                if isinstance(part, Finite):
                    places = np.asarray(part.index(column)).ravel()
                    mass, (seen, rows) = np.bincount(places, shares), np.unique(places, return_index=True)
                    here = [(k, row) for k, row in zip(seen, rows, strict=True) if (j, k) in wanted]
                    kept += [((j, int(k)), np.asarray(level.xi)[row], float(mass[k])) for k, row in here]
            found.append((number, kept))
    return found


def _triangle(parts: list, common: Common) -> list[tuple[int, np.ndarray]]:
    """Of each partition that has rows, the triangular factor of the weighted features; where each row has one function
    alone, their mean squares."""
    recipe, found = common.value, []
    with recipe.precision.context():
        for number, load in parts:
            read = read_partition(load, recipe)
            if read is not None:
                _, batch, shares = read
                phi = jax.tree.map(np.asarray, batch.features)
                one_each = isinstance(phi, OneHot)
                factor = phi.blocks(shares) if one_each else upper_triangle(phi.astype(float), np.sqrt(shares))
                found.append((number, factor))
    return found
