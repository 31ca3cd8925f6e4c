"""Contexts as a user hands them over: an array, strings, or a dict of columns; checked, and kept as numbers."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Int, Shaped

from ..keys import is_key
from .array_checks import array_of, require_rows
from .precision import Held

NAMED = 8  # values that an error lists, at most


class Strings(eqx.Module):
    """Strings kept as numbers: `code` counts within `labels`. NumPy sees the strings."""

    code: Int[Held, "..."]
    labels: tuple[str, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.code)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Shaped[np.ndarray, "..."]:
        return np.asarray(self.labels)[np.asarray(self.code)].astype(dtype or object)


def listed_values(values: Any) -> str:
    """A few values, for an error."""
    some = [repr(value) for value in list(values)[:NAMED]]
    return ", ".join(some) + (f" and {len(values) - NAMED} more" if len(values) > NAMED else "")


def contexts_of(value: Any, name: str) -> Any:
    """Contexts with every column as an array: strings as ``Strings``, a dict of columns as a dict."""
    if isinstance(value, Mapping):
        return {str(key): contexts_of(column, f"{name}[{key!r}]") for key, column in value.items()}
    if is_key(value):
        raise TypeError(f"{name} must hold numbers or strings, got random keys.")
    if isinstance(value, Strings | Tracer | jax.Array):
        return value
    try:
        table = np.asarray(value)
    except ValueError:  # rows of different lengths, which the check of numbers names
        return array_of(value, name)
    return _encoded(table, name) if table.dtype.kind in "OUT" else array_of(value, name)


def _encoded(table: np.ndarray, name: str) -> Any:
    """An array of objects as ``Strings``; or as numbers, where it holds these."""
    flat: Any = table.ravel().tolist()
    missing = [_is_missing(item) for item in flat]
    if any(missing):
        raise ValueError(
            f"{name} has no value in {sum(missing)} of {len(flat)} rows, first in row {missing.index(True)}. Drop "
            "these rows, or give them a value of their own, such as 'unknown'."
        )
    strings = [isinstance(item, str) for item in flat]
    if not any(strings):
        if all(isinstance(item, int | float | np.number) for item in flat):
            return array_of(np.array(flat).reshape(table.shape), name)
        return array_of(table, name)  # raises, and says what is wrong
    if not all(strings):
        odd = flat[strings.index(False)]
        raise TypeError(f"{name} holds strings and other things, such as {odd!r}: write all its values as strings.")
    labels, code = np.unique(np.asarray(flat, str), return_inverse=True)
    known: Any = labels.tolist()
    places: Any = code.reshape(table.shape).astype(np.int32)
    return Strings(places, tuple(known))


def _is_missing(item: Any) -> bool:
    return item is None or type(item).__name__ in ("NAType", "NaTType") or (isinstance(item, float) and item != item)


def require_contexts(xi: Any, name: str) -> int:
    """Checks that contexts have rows, that columns are of one length and finite; returns the number of rows."""
    if not isinstance(xi, Mapping):
        return require_rows(xi.code if isinstance(xi, Strings) else xi, name, None)
    rows = None
    for key, column in xi.items():
        values, where = column.code if isinstance(column, Strings) else column, f"{name}[{key!r}]"
        if isinstance(column, Mapping) or values.ndim > 1:
            raise ValueError(f"{where} must be one column, with one number or string a row.")
        rows = require_rows(values, where, rows)
    if rows is None:
        raise ValueError(f"{name} holds no column: give at least one, such as {{'weather': weather}}.")
    return rows


def one_length(columns: Mapping[Any, Any], name: str) -> None:
    """Raises where columns are of different shapes; single values may stand for many."""
    shapes = {key: np.shape(column) for key, column in columns.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError as error:
        said = ", ".join(f"{key!r} {list(shape)}" for key, shape in shapes.items())
        raise ValueError(
            f"{name}: columns must be of one length, or single values; their shapes are {said}."
        ) from error


def context_count(xi: Any) -> int:
    """The number of rows."""
    return len(next(iter(xi.values()))) if isinstance(xi, Mapping) else len(xi)
