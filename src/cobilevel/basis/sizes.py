"""How many functions a basis has: whether tables of them can be held, and richer bases to compare an answer with."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..ground import MEMORY_SHARE, MOST_LISTED, gibibytes, memory_limit
from ..problem import Domain, Finite, Interval
from .axes import Axes
from .base import Basis
from .components import Components, Orthonormal, Union, by_component
from .families import BSpline, Categorical, Chebyshev, ProductBasis
from .index_sets import Additive, Interactions, Listed, Tensor, TotalDegree, require_listed
from .piecewise import Piecewise

# Numbers held for each context and function, and for each coefficient; for each two functions: see benchmarks/growth.
_TABLES, _FACTORS = 4, 5


def check_sizes(
    basis: Basis, domain: Domain, rows: int, outputs: int = 1, distinct: int | None = None, functions: int | None = None
) -> None:
    """Raises if a basis has more functions than can be listed, than there are `distinct` contexts, or than fit in
    memory at `rows` rows for a ``y`` of `outputs` numbers; says what would fit. Bases whose size is not known pass,
    until it is: then it is `functions`."""
    count, most = basis.count(domain) if functions is None else functions, memory_limit()
    if count is None:
        return
    named = f"basis {basis!r}"
    if distinct is not None and count > distinct:
        raise ValueError(
            f"{named} has {count:,} functions, but samples hold only {distinct} distinct contexts. Use a smaller n, "
            f"or more contexts.{_fitting(basis, domain, lambda size: size <= distinct)}"
        )
    if count > MOST_LISTED and isinstance(_unwhitened(basis), ProductBasis | Components):
        fitting = _fitting(basis, domain, lambda size: size <= MOST_LISTED)
        require_listed(count, named, domain.dimension, fitting.strip())

    def held(functions: int) -> int:
        """What features and coefficients take in double precision, with the copies that factorising them makes; where a
        context has one function alone its place is all that is kept."""
        numbers = _TABLES * rows * functions + _FACTORS * functions * min(rows, functions)
        if type(basis).cell is not Basis.cell:
            numbers = _TABLES * (rows + functions)
        return np.dtype(float).itemsize * (_TABLES * functions * outputs + numbers)

    if held(count) > most:
        raise ValueError(
            f"{named} has {count:,} functions: features at {rows:,} contexts and coefficients for the {outputs:,} "
            f"number{'s'[: outputs != 1]} of y, with temporary copies, would take {gibibytes(held(count))}, more "
            f"than {gibibytes(most)}, which is {MEMORY_SHARE:.0%} of the available memory. Use a smaller n, or fewer "
            f"samples.{_fitting(basis, domain, lambda functions: held(functions) <= most)}"
        )


def _unwhitened(basis: Basis) -> Any:
    return basis.basis if isinstance(basis, Orthonormal) else basis


def _fitting(basis: Basis, domain: Domain, fits: Callable[[int], bool]) -> str:
    """What would fit, with its size, for a sentence; empty where that cannot be said."""
    plain, smaller = _unwhitened(basis), []
    if isinstance(plain, ProductBasis):
        sets = [plain.index]
        if isinstance(plain.index, Tensor) and not plain.local and domain.dimension > 1:
            sets += [TotalDegree(), Additive()]
        smaller = [_largest_fitting(replace(plain, index=index), domain, fits) for index in sets]
    elif isinstance(plain, Components):
        smaller = [Components(plain.parts, coupling) for coupling in (TotalDegree(), Additive())]
    counts = [(part, part.count(domain)) for part in smaller if part is not None]
    words = [f"{part!r} has {count:,}" for part, count in counts if fits(count)]
    return f" What fits: {', '.join(words)}." if words else ""


def _largest_fitting(basis: Any, domain: Domain, fits: Callable[[int], bool]) -> ProductBasis | None:
    """The family with the most functions per dimension, at most as many as asked for, that fits; by halving."""
    low, high = 0, basis.n + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(replace(basis, n=middle).count(domain)) else (low, middle)
    return replace(basis, n=low) if low else None


def richer_basis(basis: Basis, domain: Domain, size: int, most: int) -> Basis | None:
    """A basis whose span holds the given one's `size` functions and about as many more, at most `most`, if any."""
    basis = by_component(basis, domain)
    if isinstance(basis, Orthonormal):
        richer = richer_basis(basis.basis, domain, size, most)
        return None if richer is None else Orthonormal(richer)
    if isinstance(basis, Categorical):
        return None  # it holds every policy already
    if isinstance(basis, Piecewise):
        whole, m = Interval(*np.concatenate(domain.bounds)), basis.pieces
        inner = richer_basis(basis.basis, whole, -(-size // m), most // m)
        if isinstance(inner, Orthonormal):
            return Orthonormal(Piecewise(inner.basis, basis.breaks))
        return None if inner is None else Piecewise(inner, basis.breaks)
    if isinstance(basis, ProductBasis | Components):
        return next((wider for wider in _wider(basis, domain, most) if size < wider.count(domain) <= most), None)
    if isinstance(domain, Finite) and domain.shape == () and size >= len(domain.values):
        return None
    index, pieces = Tensor() if domain.dimension == 1 else TotalDegree(), Axes.of(domain).pieces
    for n in range(2 * size + 3, 1, -1):
        if pieces * index.count(n, domain.dimension) <= min(size + 3, most - size):
            return Orthonormal(Union([basis, by_component(Chebyshev(n, index=index), domain)]))
    return None


def _wider(basis: Any, domain: Any, most: int) -> Iterator[Any]:
    """Twice as many functions along each coordinate whose functions have an order, then fewer; of cells, their halves.

    Of a list, the functions one and two levels ahead.
    """
    several = isinstance(basis, Components)
    index = basis.coupling if several else basis.index
    if isinstance(index, Listed):
        members = Axes.of(domain).with_neighbours(np.array(index.members), 2)[: max(most, 0)]
        if len(members) > len(index.members):
            yield _with_members(basis, domain, members)
    elif several or not basis.local:
        counts = [part.n for _, part in basis.parts if not part.local] if several else [basis.n]
        top, grown = max(counts, default=0), []
        for k in range(max(top, 4 - top) if top else 0, 0, -1):
            more = lambda part, k=k: part if part.local else part.resized(part.n + math.ceil(k * part.n / top))
            parts = [(name, more(part)) for name, part in basis.parts] if several else []
            grown.append(Components(parts, index) if several else more(basis))
        if index.cap == 1 and index.most(1) < domain.dimension:
            members = _with_interactions(basis, grown[len(grown) // 2] if grown else basis, domain, most)
            yield _with_members(basis, domain, members)
        yield from grown
    else:
        whole = isinstance(basis, BSpline)
        yield replace(basis, n=2 * basis.n - min(basis.degree, basis.n - 1) if whole else 2 * basis.n)


def _with_interactions(basis: Any, deeper: Any, domain: Any, most: int) -> np.ndarray:
    """The products of a basis that lets only a few coordinates vary together; as many again, half of them products of
    one coordinate more, by degree, the others those of a `deeper` basis."""
    several = isinstance(basis, Components)
    index = basis.coupling if several else basis.index
    degrees = [one.degrees(domain) if several else [np.arange(one.n)] * domain.dimension for one in (basis, deeper)]
    own, more = map(index.coupled, degrees)
    room, one_more, products = min(len(own) + 3, most - len(own)), Interactions(index.most(1) + 1), own[:0]
    for degree in range(1, 1 + max(int(each.max()) for each in degrees[0])):
        few = [each[each <= degree] for each in degrees[0]]
        if one_more.size(few) > MOST_LISTED:
            break
        products = one_more.coupled(few)
        products = products[np.sum(products > 0, axis=1) == one_more.order]
        if len(products) >= room:
            break
    known = set(map(tuple, own.tolist()))
    added = np.array([k for k in more.tolist() if tuple(k) not in known], int).reshape(-1, own.shape[1])
    added = added[: max(room - len(products), room // 2)]
    return np.concatenate([own, added, products[: room - len(added)]])


def _with_members(basis: Any, domain: Any, members: np.ndarray) -> Basis:
    """The basis with these products, and as many functions along each coordinate as they need."""
    listed, needed = Listed(members.tolist()), (members.max(axis=0) + 1).tolist()
    if not isinstance(basis, Components):
        return replace(basis, n=max(basis.n, *needed), index=listed)
    wide = dict(zip(domain.names, needed, strict=True))
    enough = lambda name, part: part if isinstance(part, Categorical) else part.resized(max(part.n, wide[name]))
    return Components([(name, enough(name, part)) for name, part in basis.parts], listed)
