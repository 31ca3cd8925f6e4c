"""Coordinates of the context and the functions natural to each, in the order in which sets of products grow.

The functions of a coordinate are numbered from 0, the constant, and lie in levels. Of a continuous coordinate each
degree is a level; of a periodic one the sine and the cosine of each frequency; of a categorical one all values are of
level 1. A set of products grows from one level to the next.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..problem import Domain, Finite, Mixed, Periodic


@dataclass(frozen=True)
class Axis:
    """One coordinate, and its functions by number."""

    @abstractmethod
    def at_level(self, level: int) -> range:
        """The numbers of the functions of a level; of a level that there is not, none."""

    @abstractmethod
    def level(self, k: Any) -> Any:
        """The level of a function, or of many."""

    @abstractmethod
    def functions(self, u: Float[np.ndarray, " n"], count: int) -> Float[np.ndarray, "count n"]:
        """The first `count` functions at places on the coordinate."""

    def places(self, part: Domain, xi: Any) -> np.ndarray:
        """Contexts as places on the coordinate."""
        return np.asarray(part.reference(xi), float)[..., 0]

    def below(self, k: int) -> list[int]:
        """A function and all that lie on lower levels."""
        return [one for level in range(int(self.level(k))) for one in self.at_level(level)] + [k]


class Degrees(Axis):
    """Chebyshev polynomials by degree."""

    def at_level(self, level):
        return range(level, level + 1)

    def level(self, k):
        return k

    def functions(self, u, count):
        return np.polynomial.chebyshev.chebvander(u, count - 1).T


class Frequencies(Axis):
    """``1, sin, cos, sin, cos, ...``, two to a level."""

    def at_level(self, level):
        return range(max(2 * level - 1, 0), 2 * level + 1)

    def level(self, k):
        return (k + 1) // 2

    def functions(self, u, count):
        k = np.arange(count)[:, None]
        angle = np.pi * self.level(k) * u
        return np.where(k % 2 == 1, np.sin(angle), np.cos(angle))


@dataclass(frozen=True)
class Values(Axis):
    """The constant, and for each value but the first whether it is that one."""

    count: int

    def at_level(self, level):
        return range(0, 1) if level == 0 else range(1, self.count) if level == 1 else range(0)

    def level(self, k):
        return np.minimum(k, 1)

    def functions(self, u, count):
        return np.concatenate([np.ones((1, len(u))), (np.arange(1, count)[:, None] == u).astype(float)])

    def places(self, part: Any, xi):
        return np.asarray(part.index(xi), float)


@dataclass(frozen=True)
class Axes:
    """The coordinates of a domain."""

    each: tuple[Axis, ...]

    @staticmethod
    def of(domain: Domain) -> "Axes":
        if not isinstance(domain, Mixed):
            return Axes((Frequencies(),) if isinstance(domain, Periodic) else (Degrees(),) * domain.dimension)
        kinds = [
            Values(len(part.values)) if isinstance(part, Finite) else Axes.of(part).each[0]
            for part in domain.components
        ]
        return Axes(tuple(kinds))

    def __len__(self) -> int:
        return len(self.each)

    @property
    def nested(self) -> bool:
        """Whether all functions are in one order: those of one coordinate."""
        return len(self) == 1 and not isinstance(self.each[0], Values)

    @property
    def categories(self) -> bool:
        """Whether a coordinate has categories, of which samples may not show all products."""
        return any(isinstance(axis, Values) for axis in self.each)

    def places(self, domain: Domain, xi: Any) -> Float[np.ndarray, "n d"]:
        """Contexts as places on each coordinate."""
        if not isinstance(domain, Mixed):
            return np.asarray(domain.reference(xi), float).reshape(len(xi), -1)
        columns = zip(self.each, domain.components, np.asarray(xi).T, strict=True)
        return np.stack([axis.places(part, column) for axis, part, column in columns], axis=1)

    def table(self, u: Float[np.ndarray, "n d"], members: Int[np.ndarray, "N d"]) -> Float[np.ndarray, "n N"]:
        """Products of functions; in NumPy, as lists of functions change too often to be compiled."""
        phi = np.ones((len(members), len(u)))
        for j, axis in enumerate(self.each):
            used = np.flatnonzero(members[:, j])  # few: most products are of one or two coordinates
            if len(used):
                values = axis.functions(u[:, j], int(members[:, j].max()) + 1)
                phi[used] *= values[members[used, j]]
        return phi.T

    def total(self, row: Iterable[int]) -> int:
        """The levels of a product added up."""
        return int(sum(axis.level(k) for axis, k in zip(self.each, row, strict=True)))

    def groups(self, table: Int[np.ndarray, "N d"]) -> list[np.ndarray]:
        """Where products lie that belong together: those of the same levels, as all values of a category are."""
        levels = np.stack([axis.level(column) for axis, column in zip(self.each, table.T, strict=True)], axis=1)
        _, group = np.unique(levels, axis=0, return_inverse=True)
        return [np.flatnonzero(group.ravel() == k) for k in range(group.max(initial=-1) + 1)]

    def ordered(self, rows: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """From low levels to high ones."""
        return sorted(rows, key=lambda row: (self.total(row), row))

    def neighbours(self, table: Int[np.ndarray, "N d"]) -> Int[np.ndarray, "M d"]:
        """The products one level ahead of a set, for which each coordinate has a predecessor in it: its margin."""
        members = {tuple(row) for row in table.tolist()}
        found = set()
        for row in members:
            for j, axis in enumerate(self.each):
                for k in axis.at_level(int(axis.level(row[j])) + 1):
                    ahead = (*row[:j], k, *row[j + 1 :])
                    if ahead not in members and ahead not in found and self._reached(ahead, members):
                        found.add(ahead)
        return np.array(self.ordered(found), dtype=int).reshape(-1, table.shape[1])

    def _reached(self, row: tuple[int, ...], members: set) -> bool:
        for i, (axis, k) in enumerate(zip(self.each, row, strict=True)):
            behind = axis.at_level(int(axis.level(k)) - 1) if k else ()
            if k and not any((*row[:i], one, *row[i + 1 :]) in members for one in behind):
                return False
        return True

    def closed(self, members: Int[np.ndarray, "N d"], wanted: Iterable[tuple[int, ...]]) -> Int[np.ndarray, "M d"]:
        """The set with some products added, and all that come before these."""
        have, grown = {tuple(row) for row in members.tolist()}, list(members.tolist())
        for top in self.ordered(wanted):
            before = product(*[axis.below(int(k)) for axis, k in zip(self.each, top, strict=True)])
            for row in self.ordered(before):
                if row not in have:
                    have.add(row)
                    grown.append(list(row))
        return np.array(grown, dtype=int)

    def singles(self, highest: int) -> list[tuple[int, ...]]:
        """The functions of single coordinates, up to a level."""
        return [
            tuple(k if i == j else 0 for i in range(len(self)))
            for j, axis in enumerate(self.each)
            for level in range(1, highest + 1)
            for k in axis.at_level(level)
        ]

    def pairs(self) -> list[tuple[int, ...]]:
        """The products of two coordinates, each at level 1."""
        found = []
        for i, j in combinations(range(len(self)), 2):
            for a, b in product(self.each[i].at_level(1), self.each[j].at_level(1)):
                found.append(tuple(a if k == i else b if k == j else 0 for k in range(len(self))))
        return found

    def up_to(self, total: int) -> Int[np.ndarray, "N d"]:
        """All products whose levels add up to no more."""
        rows = [[]]
        for axis in self.each:
            choices = [k for level in range(total + 1) for k in axis.at_level(level)]
            rows = [[*row, k] for row in rows for k in choices]
        return np.array(self.ordered(tuple(row) for row in rows if self.total(row) <= total), dtype=int)
