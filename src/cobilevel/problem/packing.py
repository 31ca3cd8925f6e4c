"""Data with their contexts as one array, in the order of the domain."""

from typing import Any

import equinox as eqx
from jaxtyping import Array

from .data import Level, Product, Samples, Stream
from .distributions import Distribution
from .domain import Domain


class PackedDraw(eqx.Module):
    """What a stream draws from, with contexts packed."""

    draw: Any
    domain: Domain

    def __call__(self, key: Array, size: int) -> Any:
        drawn = self.draw(key, size)
        return packed_level(self.domain, drawn, "samples.draw(...)") if isinstance(drawn, Samples) else drawn


def contexts_field(level: Level) -> str:
    """Where a level keeps contexts."""
    return "given" if isinstance(level, Product) else "xi"


def packed_level(domain: Domain, level: Level, where: str) -> Level:
    """The same data, contexts packed (``Domain.pack``); `where` names the data in errors."""
    if isinstance(level, Stream):
        draw = PackedDraw(level.draw, domain)
        return eqx.tree_at(lambda part: part.draw, level, draw, is_leaf=lambda node: node is level.draw)
    field = contexts_field(level)
    given = getattr(level, field)
    if isinstance(given, Distribution):
        return level
    packed = domain.pack(given, f"{where}.{'contexts' if field == 'given' else field}")
    if packed is given:
        return level
    return eqx.tree_at(lambda part: getattr(part, field), level, packed, is_leaf=lambda node: node is given)
