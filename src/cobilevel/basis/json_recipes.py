"""Recipes of bases and domains as plain JSON, for saved solutions; a user's function is left out."""

from dataclasses import fields
from typing import Any

import jax
import numpy as np

from ..problem import Domain
from ..programs import put
from .base import Basis
from .index_sets import IndexSet


def domain_to_json(domain: Domain) -> dict[str, Any]:
    """A domain in plain words: the class and its fields, those that are not there left out."""
    named = {part.name: getattr(domain, part.name) for part in fields(domain)}
    return {
        "name": type(domain).__name__,
        **{name: _field_to_json(value) for name, value in named.items() if value is not None},
    }


def _field_to_json(value: Any) -> Any:
    if isinstance(value, Domain):
        return domain_to_json(value)
    return (
        [_field_to_json(item) for item in value]
        if isinstance(value, tuple)
        else getattr(value, "tolist", lambda: value)()
    )


def basis_to_json(basis: Any) -> dict[str, Any]:
    """A recipe in plain words: the class and its fields; a user's function is left out."""
    entry: dict[str, Any] = {"name": type(basis).__name__}
    for part in fields(basis):
        value = getattr(basis, part.name)
        if not callable(value):
            entry[part.name] = _to_json(value)
    return entry


def _to_json(value: Any) -> Any:
    if isinstance(value, Basis | IndexSet):
        return basis_to_json(value)
    if isinstance(value, jax.Array | np.ndarray):  # a learned one keeps what it learned
        return {"array": np.asarray(value).tolist(), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    return [_to_json(item) for item in value] if isinstance(value, tuple | list) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return put(np.asarray(value["array"], value["dtype"])) if "array" in value else basis_from_json(value)
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _kinds(kind: type) -> dict[str, type]:
    """A class and all that derive from it, by name."""
    return {kind.__name__: kind} | {name: part for sub in kind.__subclasses__() for name, part in _kinds(sub).items()}


def basis_from_json(entry: dict[str, Any]) -> Any:
    """The inverse of ``basis_to_json``, for the bases and index sets of this library alone."""
    known = _kinds(Basis) | _kinds(IndexSet)
    if entry["name"] == "Features":
        raise ValueError("this solution uses Features, whose function is not stored: pass load(..., basis=...).")
    if entry["name"] not in known:
        raise ValueError(f"the saved basis {entry['name']!r} is not one of this library; pass load(..., basis=...).")
    arguments = {name: _from_json(value) for name, value in entry.items() if name != "name"}
    return known[entry["name"]](**arguments)


def same_recipe(one: Basis, other: Basis) -> bool:
    """Whether two bases are the same recipe, whatever either has learned."""
    return basis_to_json(one.forgotten()) == basis_to_json(other.forgotten())
