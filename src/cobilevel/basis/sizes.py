"""How many functions a basis has, and whether a table of them can be held: asked before anything is computed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..checks import MEMORY_SHARE, MOST_LISTED, gibibytes, memory_limit
from ..problem import Domain
from .base import Basis
from .components import Components
from .families import ProductBasis
from .index_sets import Additive, Tensor, TotalDegree, require_listed
from .whitening import Orthonormal

TABLES, FACTORS = 4, 5  # numbers held for each context and function, and for each two functions: see benchmarks/growth
COEFFICIENTS = 4  # for each coefficient: the iterate, a direction, a gradient, an adjoint
_NUMBER = 8  # bytes: tables are factorised in double precision


def held_bytes(basis: Basis, functions: int, rows: int, outputs: int) -> int:
    """What features at so many contexts take, with the copies that factorising them makes, and the coefficients of a
    ``y`` of so many numbers; where a context has one function alone its place is all that is kept."""
    held = COEFFICIENTS * functions * outputs
    if type(basis).cell is not Basis.cell:
        return _NUMBER * (held + TABLES * (rows + functions))
    return _NUMBER * (held + TABLES * rows * functions + FACTORS * functions * min(rows, functions))


def check_sizes(basis: Basis, domain: Domain, rows: int, outputs: int = 1, distinct: int | None = None) -> None:
    """Raises where a basis has more functions than can be listed, than there are `distinct` contexts, or than fit in
    memory at so many `rows` for a ``y`` of `outputs` numbers; and says what would fit. Bases that do not know their
    size pass."""
    count, most = basis.count(domain), memory_limit()
    if count is None:
        return
    named = f"basis {basis!r}"
    if distinct is not None and count > distinct:
        raise ValueError(
            f"{named} has {count:,} functions, but samples hold only {distinct} distinct contexts. Take a smaller n, "
            f"or more contexts.{_fitting(basis, domain, lambda size: size <= distinct)}"
        )
    if count > MOST_LISTED and isinstance(_unwhitened(basis), ProductBasis | Components):
        fitting = _fitting(basis, domain, lambda size: size <= MOST_LISTED)
        require_listed(count, named, domain.dimension, fitting.strip())
    held = lambda functions: held_bytes(basis, functions, rows, outputs)
    size = held(count)
    if size > most:
        raise ValueError(
            f"{named} has {count:,} functions: features at {rows:,} contexts and coefficients for the {outputs:,} "
            f"number{'s'[: outputs != 1]} of y, with copies made on the way, would take {gibibytes(size)}, more than "
            f"{gibibytes(most)}, which is {MEMORY_SHARE:.0%} of the memory at hand. Take a smaller n, or fewer samples."
            f"{_fitting(basis, domain, lambda functions: held(functions) <= most)}"
        )


def _unwhitened(basis: Basis) -> Basis:
    return basis.basis if isinstance(basis, Orthonormal) else basis


def _fitting(basis: Basis, domain: Domain, fits: Callable[[int], bool]) -> str:
    """What would fit, with its size, for a sentence; empty where that cannot be said."""
    plain = _unwhitened(basis)
    found: list[Basis] = []
    if isinstance(plain, ProductBasis):
        sets = [plain.index]
        if isinstance(plain.index, Tensor) and not plain.local and domain.dimension > 1:
            sets += [TotalDegree(), Additive()]
        found = [
            part for index in sets if (part := _largest_fitting(replace(plain, index=index), domain, fits)) is not None
        ]
    elif isinstance(plain, Components):
        found = [Components(plain.parts, coupling) for coupling in (TotalDegree(), Additive())]
    counts = [(part, part.count(domain)) for part in found]
    words = [f"{part!r} has {count:,}" for part, count in counts if count is not None and fits(count)]
    return f" What fits: {', '.join(words)}." if words else ""


def _largest_fitting(basis: Any, domain: Domain, fits: Callable[[int], bool]) -> ProductBasis | None:
    """The family with the most functions per dimension, at most as many as asked for, that fits; by halving."""

    def small(n: int) -> bool:
        count = replace(basis, n=n).count(domain)
        return count is not None and fits(count)

    low, high = 0, basis.n + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if small(middle) else (low, middle)
    return replace(basis, n=low) if low else None
