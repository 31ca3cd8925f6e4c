"""Recipes of bases, index sets and domains in plain JSON, for saved solutions; a user's function is left out."""

from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..problem import Domain
from ..programs import put


class Recipe(eqx.Module):
    """What a user names and a file can hold: a basis, or an index set. In JSON, its class and its fields."""


def plain_number(value: Any) -> Any:
    """Numbers of NumPy as Python's: what is static in a program, and what is saved, is plain."""
    return value.item() if isinstance(value, np.generic) else value


def _to_json(value: Any, typed: bool) -> Any:
    """Arrays with their dtype where `typed`; else as lists, and fields that are ``None`` are left out."""
    if isinstance(value, Recipe | Domain):
        named = [(part.name, getattr(value, part.name)) for part in fields(value)]
        kept = {name: _to_json(v, typed) for name, v in named if not callable(v) and (typed or v is not None)}
        return {"name": type(value).__name__, **kept}
    if isinstance(value, jax.Array | np.ndarray):  # a learned basis keeps what it learned
        return {"array": np.asarray(value).tolist(), "dtype": str(value.dtype)} if typed else np.asarray(value).tolist()
    return [_to_json(item, typed) for item in value] if isinstance(value, tuple | list) else plain_number(value)


def basis_to_json(basis: Recipe) -> dict[str, Any]:
    """A recipe in plain words: the class and its fields; a user's function is left out."""
    return _to_json(basis, typed=True)


def domain_to_json(domain: Domain) -> dict[str, Any]:
    """A domain in plain words: the class and its fields, those that are not there left out."""
    return _to_json(domain, typed=False)


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return put(np.asarray(value["array"], value["dtype"])) if "array" in value else basis_from_json(value)
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _kinds(kind: type) -> dict[str, type]:
    """A class and all that derive from it, by name."""
    return {kind.__name__: kind} | {name: part for sub in kind.__subclasses__() for name, part in _kinds(sub).items()}


def basis_from_json(entry: dict[str, Any]) -> Any:
    """The inverse of ``basis_to_json``, for the bases and index sets of this library alone."""
    known = _kinds(Recipe)
    if entry["name"] == "Features":
        raise ValueError("this solution uses Features, whose function is not stored: pass load(..., basis=...).")
    if entry["name"] not in known:
        raise ValueError(f"the saved basis {entry['name']!r} is not one of this library; pass load(..., basis=...).")
    return known[entry["name"]](**{name: _from_json(value) for name, value in entry.items() if name != "name"})
