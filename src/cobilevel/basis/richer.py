"""A richer basis around a given one: what an answer is compared with where the exact one is out of reach."""

import math
from dataclasses import replace

import numpy as np

from ..problem import Domain, Finite
from .axes import Axes, Degrees
from .base import Basis
from .categorical import Categorical
from .components import Components, by_component
from .families import BSpline, Chebyshev, ProductBasis
from .index_sets import Listed, Tensor, TotalDegree
from .union import Union
from .whitening import Orthonormal

_TIMES_WIDER = (2.0, 1.5, 1.2)  # times as many functions of each part, the first that the samples support


def neighbours(table: np.ndarray) -> np.ndarray:
    """The multi-indices one degree ahead of a set, all of whose own predecessors are in it: its margin."""
    return Axes((Degrees(),) * table.shape[1]).neighbours(table)


def count_of(basis: ProductBasis, dimension: int) -> int:
    """How many functions a family has in so many dimensions."""
    known = basis.index.count(basis.n, dimension)
    return len(basis.index.table(basis.n, dimension)) if known is None else known


def richer_basis(basis: Basis, domain: Domain, size: int, most: int) -> Basis | None:
    """A basis whose span holds the given one's `size` functions and about as many more, at most `most`, if any."""
    basis = by_component(basis, domain)
    if isinstance(basis, Orthonormal):
        found = richer_basis(basis.basis, domain, size, most)
        return None if found is None else Orthonormal(found)
    if isinstance(basis, Categorical):
        return None  # it holds every policy already
    if isinstance(basis, Components):
        return _richer_components(basis, domain, size, most)
    if isinstance(basis, ProductBasis) and isinstance(basis.index, Listed):
        members = np.array(basis.index.members)
        for _ in range(2):
            members = np.concatenate([members, neighbours(members)])
        members = members[: max(most, 0)]
        if len(members) <= max(size, len(basis.index.members)):
            return None
        return replace(basis, n=max(basis.n, int(members.max()) + 1), index=Listed(members.tolist()))
    if isinstance(basis, ProductBasis):
        n = 2 * basis.n - min(basis.degree, basis.n - 1) if isinstance(basis, BSpline) else max(2 * basis.n, 4)
        sizes = [n] if basis.local else range(n, basis.n, -1)
        fitting = [replace(basis, n=k) for k in sizes if count_of(replace(basis, n=k), domain.dimension) <= most]
        return fitting[0] if fitting else None
    if isinstance(domain, Finite) and domain.shape == () and size >= len(domain.values):
        return None
    index = Tensor() if domain.dimension == 1 else TotalDegree()
    added = [
        Chebyshev(n, index=index) for n in range(2 * size + 3, 1, -1)
        if count_of(Chebyshev(n, index=index), domain.dimension) <= min(size + 3, most - size)
    ]  # fmt: skip
    return Orthonormal(Union([basis, by_component(added[0], domain)])) if added else None


def _richer_components(basis: Components, domain: Domain, size: int, most: int) -> Basis | None:
    """More functions of each part that has an order; of a list, those one and two levels ahead."""
    if isinstance(basis.coupling, Listed):
        members, axes = np.array(basis.coupling.members), Axes.of(domain)
        for _ in range(2):
            members = np.concatenate([members, axes.neighbours(members)])
        members = members[: max(most, 0)]
        if len(members) <= max(size, len(basis.coupling.members)):
            return None
        tops = dict(zip(domain.names, members.max(axis=0) + 1, strict=True))  # pyright: ignore
        wider = lambda name, part: replace(part, n=max(part.n, int(tops[name])))
        parts = {n: wider(n, part) if isinstance(part, ProductBasis) else part for n, part in basis.parts}
        return Components(parts, Listed(members.tolist()))
    for times in _TIMES_WIDER:
        parts = [
            (name, replace(part, n=math.ceil(times * part.n)) if _has_order(part) else part)
            for name, part in basis.parts
        ]
        grown = Components(parts, basis.coupling)
        degrees = grown.degrees(domain)
        known = basis.coupling.count_coupled(degrees)
        count = len(basis.coupling.coupled(degrees)) if known is None else known
        if size < count <= most:
            return grown
    return None


def _has_order(part: Basis) -> bool:
    return isinstance(part, ProductBasis) and not part.local
