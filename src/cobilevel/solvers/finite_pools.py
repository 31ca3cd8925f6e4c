"""Finite pools laid out as tables, for solvers that go through all samples or keep something for each."""

from dataclasses import replace
from typing import TypeVar

from ..problem import no_pool
from ..reduction import Bilevel

Kind = TypeVar("Kind", bound=Bilevel)


def tabulated(reduced: Kind, name: str) -> Kind:
    """The same problem with both pools laid out as tables; an error where there is no finite pool."""
    if reduced.upper_source.rows is None or reduced.lower_source.rows is None:
        raise no_pool(name)
    return replace(reduced, upper_source=reduced.upper_source.tabled(), lower_source=reduced.lower_source.tabled())
