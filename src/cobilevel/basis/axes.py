"""Coordinates of the context and the functions natural to each, in the order in which sets of products grow.

The functions of a coordinate are numbered from 0, the constant, and lie in levels. Of a continuous coordinate each
degree is a level; of a periodic one the sine and the cosine of each frequency; of a categorical one all values are of
level 1. Of a coordinate with breaks, each degree has a function on each piece, and level 1 also has the pieces
themselves. A set of products grows from one level to the next.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..problem import Domain, Finite, Interval, Mixed, Periodic
from .base import Basis
from .families import Categorical, Chebyshev, Fourier
from .piecewise import Piecewise


@dataclass(frozen=True)
class Axis:
    """One coordinate: the family natural to it, and of a categorical one how many values there are; `breaks`: those of
    an interval, `cuts`: their places on ``[-1, 1]``."""

    family: type[Basis]
    count: int = 0
    breaks: tuple[float, ...] = ()
    cuts: tuple[float, ...] = ()

    @staticmethod
    def of(part: Domain) -> "Axis":
        """Of a part of a ``Mixed`` domain."""
        if isinstance(part, Finite):
            return Axis(Categorical, len(part.values))
        if isinstance(part, Interval) and part.breaks:
            cuts = np.asarray(part.reference(np.array(part.breaks)), float).ravel()
            return Axis(Chebyshev, 0, part.breaks, tuple(cuts.tolist()))
        return Axis(Fourier if isinstance(part, Periodic) else Chebyshev)

    @property
    def categorical(self) -> bool:
        return self.family is Categorical

    def basis(self, count: int) -> Any:
        """The first `count` functions; of categories, all; of pieces, as many on each."""
        if self.categorical:
            return Categorical()
        family = self.family
        return Piecewise(family(-(-count // self.pieces)), self.breaks) if self.breaks else family(count)

    @property
    def pieces(self) -> int:
        """How many pieces there are: so many functions have the same degree."""
        return len(self.breaks) + 1

    @cached_property
    def level(self) -> Callable[[Any], Any]:
        """The level of a function, or of many, by number."""
        return self.basis(1).degree_of

    @cached_property
    def at_level(self) -> Callable[[int], list[int]]:
        """The numbers of the functions of a level; of a level that there is not, none."""

        @cache
        def at(level: int) -> list[int]:
            numbers = np.arange(self.count or 2 * self.pieces * (level + 1))
            return numbers[self.level(numbers) == level].tolist()

        return at

    def below(self, k: int) -> list[int]:
        """A function and all that lie on lower levels."""
        return [one for level in range(int(self.level(k))) for one in self.at_level(level)] + [k]

    def functions(self, u: Float[np.ndarray, " n"], count: int) -> Float[np.ndarray, "count n"]:
        """The first `count` functions; where they add up to the constant, that takes the place of the first."""
        part: Domain = Periodic(-1.0, 1.0) if self.family is Fourier else Interval(-1.0, 1.0)
        part = Finite(np.arange(self.count)) if self.categorical else part
        table = np.ascontiguousarray(replace(self, breaks=self.cuts).basis(count).evaluate(part, u).T)[:count]
        table[0] = 1.0
        return table


@dataclass(frozen=True)
class Axes:
    """The coordinates of a domain."""

    each: tuple[Axis, ...]

    @staticmethod
    def of(domain: Domain) -> "Axes":
        if isinstance(domain, Mixed):
            return Axes(tuple(map(Axis.of, domain.components)))
        if isinstance(domain, Interval):
            return Axes((Axis.of(domain),))
        return Axes((Axis(Fourier if isinstance(domain, Periodic) else Chebyshev),) * domain.dimension)

    def __len__(self) -> int:
        return len(self.each)

    @property
    def nested(self) -> bool:
        """Whether all functions are in one order: those of one coordinate."""
        return len(self) == 1 and not self.categories

    @property
    def pieces(self) -> int:
        """How many pieces there are in all."""
        return math.prod(axis.pieces for axis in self.each)

    def complete(self, count: int) -> int:
        """How many functions of one coordinate there are, if each degree is to be there on all pieces."""
        return -(-count // self.pieces) * self.pieces

    @property
    def categories(self) -> bool:
        """Whether a coordinate has categories, of which samples may not show all products."""
        return any(axis.categorical for axis in self.each)

    def places(self, domain: Domain, xi: Any) -> Float[np.ndarray, "n d"]:
        """Contexts as places on each coordinate."""
        if not isinstance(domain, Mixed):
            xi = np.asarray(xi, float) if self.pieces > 1 else xi  # as the breaks are: a context at one stays there
            return np.asarray(domain.reference(xi), float).reshape(len(xi), -1)
        columns = zip(domain.components, np.asarray(xi).T, strict=True)
        place = lambda part, column: part.index(column) if isinstance(part, Finite) else part.reference(column)[..., 0]
        return np.stack([np.asarray(place(part, column), float) for part, column in columns], axis=1)

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
        ahead = {
            (*row[:j], k, *row[j + 1 :])
            for row in members
            for j, axis in enumerate(self.each)
            for k in axis.at_level(int(axis.level(row[j])) + 1)
        }
        reached = lambda row: all(
            any((*row[:i], one, *row[i + 1 :]) in members for one in axis.at_level(int(axis.level(k)) - 1))
            for i, (axis, k) in enumerate(zip(self.each, row, strict=True))
            if k
        )
        margin = self.ordered(row for row in ahead - members if reached(row))
        return np.array(margin, dtype=int).reshape(-1, table.shape[1])

    def closed(self, members: Int[np.ndarray, "N d"], wanted: Iterable[tuple[int, ...]]) -> Int[np.ndarray, "M d"]:
        """The set with some products added, and all that come before these."""
        grown = dict.fromkeys(tuple(row) for row in members.tolist())
        for top in self.ordered(wanted):
            before = product(*[axis.below(int(k)) for axis, k in zip(self.each, top, strict=True)])
            grown |= dict.fromkeys(self.ordered(before))
        return np.array(list(grown), dtype=int)

    def singles(self, highest: int) -> list[tuple[int, ...]]:
        """The functions of single coordinates, up to a level."""
        numbers = lambda axis: (k for level in range(1, highest + 1) for k in axis.at_level(level))
        return [(0,) * j + (k,) + (0,) * (len(self) - j - 1) for j, axis in enumerate(self.each) for k in numbers(axis)]

    def pairs(self) -> list[tuple[int, ...]]:
        """The products of two coordinates, each at level 1."""
        return [
            tuple(a if k == i else b if k == j else 0 for k in range(len(self)))
            for i, j in combinations(range(len(self)), 2)
            for a, b in product(self.each[i].at_level(1), self.each[j].at_level(1))
        ]

    def with_neighbours(self, members: Int[np.ndarray, "N d"], rings: int) -> Int[np.ndarray, "M d"]:
        """The set with those one level ahead of it, so many times."""
        for _ in range(rings):
            members = np.concatenate([members, self.neighbours(members)])
        return members

    def up_to(self, total: int) -> Int[np.ndarray, "N d"]:
        """All products whose levels add up to no more."""
        return self.with_neighbours(np.zeros((1, len(self)), int), total)
