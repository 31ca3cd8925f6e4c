"""Several bases together."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx

from ..host import module_of
from .base import Basis


def _parts(parts: Any) -> tuple[Any, ...]:
    return tuple(parts) if isinstance(parts, Iterable) and not hasattr(parts, "dtype") else (parts,)


class Union(Basis):
    """The functions of several bases together; whiten it (``Orthonormal``) where they overlap."""

    parts: tuple[Basis, ...] = eqx.field(converter=_parts)

    def __check_init__(self):
        if not self.parts or not all(isinstance(part, Basis) for part in self.parts):
            raise TypeError(f"Union takes bases, such as Union([Chebyshev(5), Partition(4)]), got {self.parts!r}.")

    def evaluate(self, domain, xi):
        return module_of(xi).concatenate([part.evaluate(domain, xi) for part in self.parts], axis=-1)

    def count(self, domain):
        counts = [part.count(domain) for part in self.parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def constant(self, domain):
        return None

    def with_parts(self, change):
        return Union([change(part) for part in self.parts])

    @property
    def learned(self):
        return all(part.learned for part in self.parts)

    def __repr__(self):
        return f"Union([{', '.join(map(repr, self.parts))}])"
