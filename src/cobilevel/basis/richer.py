"""A richer basis around a given one: what an answer is compared with where the exact one is out of reach."""

from dataclasses import replace

import numpy as np

from ..problem import Domain, Finite
from .base import Basis
from .categorical import Categorical
from .families import BSpline, Chebyshev, ProductBasis
from .index_sets import Listed, Tensor, TotalDegree
from .union import Union
from .whitening import Orthonormal


def neighbours(table: np.ndarray) -> np.ndarray:
    """The multi-indices one step ahead of a set, all of whose own predecessors are in it: its margin."""
    members = {tuple(row) for row in table.tolist()}
    found = set()
    for row in members:
        for j in range(table.shape[1]):
            ahead = (*row[:j], row[j] + 1, *row[j + 1 :])
            behind = ((*ahead[:i], ahead[i] - 1, *ahead[i + 1 :]) for i in range(len(ahead)) if ahead[i])
            if ahead not in members and all(one in members for one in behind):
                found.add(ahead)
    return np.array(sorted(found, key=lambda k: (sum(k), k)), dtype=int).reshape(-1, table.shape[1])


def count_of(basis: ProductBasis, dimension: int) -> int:
    """How many functions a family has in so many dimensions."""
    return basis.n**dimension if isinstance(basis.index, Tensor) else len(basis.index.table(basis.n, dimension))


def richer_basis(basis: Basis, domain: Domain, size: int, most: int) -> Basis | None:
    """A basis whose span holds the given one's `size` functions and about as many more, at most `most`, if any."""
    if isinstance(basis, Orthonormal):
        found = richer_basis(basis.basis, domain, size, most)
        return None if found is None else Orthonormal(found)
    if isinstance(basis, Categorical):
        return None  # it holds every policy already
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
    return Orthonormal(Union([basis, added[0]])) if added else None
