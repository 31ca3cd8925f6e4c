"""A copy of a basis on each piece of an interval, for policies that jump, as between peak and off-peak hours."""

from itertools import pairwise
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Int

from ..ground import arithmetic, module_of, plain
from ..problem import Domain, Interval, ascending
from .base import Basis
from .families import Categorical
from .learned import LearnedBasis


class Piecewise(Basis):
    """A copy of a basis on each piece of an ``Interval``, zero on the others: policies may jump at the breaks.

    ``Interval(0, 24, breaks=(7, 10))`` makes every basis piecewise, and the default finds breaks that are not stated.
    A context at a break belongs to the piece on its right. Functions are listed by their number in the basis, each on
    all pieces.

    **Arguments:**

    - `basis`: the basis of each piece, on that piece as its interval.
    - `breaks`: where one piece ends and the next begins, in ascending order.

    **Example:**

    >>> basis = cb.Piecewise(cb.Chebyshev(2), (7, 10)).fit(cb.Interval(0.0, 24.0), np.linspace(0.0, 24.0, 50))
    >>> basis(np.array([3.5, 10.0])).round(1).tolist()
    [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0, -1.0]]
    """

    basis: Basis
    breaks: tuple[float, ...] = eqx.field(static=True, converter=lambda v: ascending(v, "Piecewise: breaks"))

    def __check_init__(self):
        if not isinstance(self.basis, Basis) or isinstance(self.basis, Categorical | LearnedBasis | Piecewise):
            raise TypeError(
                f"Piecewise takes a basis that is not learned, such as Piecewise(Chebyshev(5), (7, 10)), got "
                f"{self.basis!r}."
            )

    @property
    def pieces(self) -> int:
        return len(self.breaks) + 1

    @property
    def local(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.basis.local

    @property
    def n(self) -> int:
        """How many functions there are, if the basis is a family."""
        return self.pieces * self.basis.n  # pyright: ignore[reportAttributeAccessIssue]

    def resized(self, n: int) -> "Piecewise":
        """With a family of as many functions as are needed to have `n` in all."""
        family: Any = self.basis
        return Piecewise(family.resized(-(-n // self.pieces)), self.breaks)

    def _intervals(self, domain: Domain) -> list[Any]:
        """The pieces as intervals; the ends of the domain may be traced."""
        if not isinstance(domain, Interval):
            raise TypeError(f"{self!r} needs an Interval, got {domain!r}.")
        known = self.breaks and arithmetic(domain.lo) is np
        if known and not domain.lo < self.breaks[0] <= self.breaks[-1] < domain.hi:
            raise ValueError(f"{self!r} has breaks outside of {domain!r}; leave them out.")
        ends = [domain.lo, *map(np.asarray, self.breaks), domain.hi]
        return [eqx.tree_at(lambda piece: (piece.lo, piece.hi), domain, pair) for pair in pairwise(ends)]

    def evaluate(self, domain, xi):
        xp, parts, intervals = module_of(xi), [], self._intervals(domain)
        after = [xi >= xp.asarray(end, xi.dtype) for end in self.breaks]
        for k, piece in enumerate(intervals):
            values = self.basis.evaluate(piece, piece.snap(xi, xi.dtype))  # elsewhere, at its nearest context
            here = xp.ones(xi.shape, bool) if k == 0 else after[k - 1]
            here = here if k == len(after) else here & ~after[k]
            parts.append(xp.where(here[..., None], values, xp.zeros_like(values)))
        table = xp.stack(parts, axis=-1)
        return table.reshape(*xi.shape, table.shape[-2] * self.pieces)

    def count(self, domain):
        each = [self.basis.count(piece) for piece in self._intervals(domain)]
        return None if None in each else sum(each)

    @plain
    def degree_of(self, k: Any) -> Any:
        """That on its piece; which of the pieces it is counts as 1."""
        family: Any = self.basis
        return np.maximum(family.degree_of(k // self.pieces), np.minimum(k, 1))

    def constant(self, domain):
        each = [self.basis.constant(piece) for piece in self._intervals(domain)]
        return None if any(one is None for one in each) else np.stack(each, axis=-1).ravel()

    def with_parts(self, change):
        return Piecewise(change(self.basis), self.breaks)

    def __repr__(self):
        return f"Piecewise({self.basis!r}, {self.breaks})"


def breaks_in(basis: Any, name: str = "") -> set[float]:
    """The breaks of all bases that a basis is made of; of those by name, of the one asked for."""
    if isinstance(basis, Piecewise):
        return set(basis.breaks)
    named = [pair if isinstance(pair, tuple) else (name, pair) for pair in getattr(basis, "parts", ())]
    parts = [getattr(basis, "basis", None), getattr(basis, "rich", None), *(part for of, part in named if of == name)]
    return set().union(*(breaks_in(part, name) for part in parts if part is not None))


def piece_of(basis: Basis, domain: Domain, xi: Any) -> Int[np.ndarray, " n"] | None:
    """The number of the piece that each context lies in, between the breaks of the domain and of the basis; ``None``
    where there are none."""
    found = []
    for (part, column, _), name in zip(domain.columns(xi), getattr(domain, "names", [""]), strict=True):
        breaks = sorted({*getattr(part, "breaks", ()), *breaks_in(basis, name)})
        if breaks:
            column = np.asarray(column)
            found.append(np.searchsorted(np.asarray(breaks, column.dtype), column, side="right"))
    return np.unique(np.stack(found, axis=1), axis=0, return_inverse=True)[1].ravel() if found else None
