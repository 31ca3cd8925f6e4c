"""Finite pools laid out as tables, for solvers that go through all samples or keep something for each."""

from dataclasses import replace
from typing import TypeVar

from ..reduction import Bilevel

Kind = TypeVar("Kind", bound=Bilevel)


def tabulated(reduced: Kind, name: str) -> Kind:
    """The same problem with both pools laid out as tables; an error where there is no finite pool."""
    if reduced.upper_source.rows is None or reduced.lower_source.rows is None:
        raise ValueError(
            f"{name} needs a finite pool, and samples is a Stream. Use a solver that draws batches, such as SOBA, or "
            "draw a sample yourself: samples = stream.draw(jax.random.key(0), 10_000)."
        )
    return replace(reduced, upper_source=reduced.upper_source.tabled(), lower_source=reduced.lower_source.tabled())
