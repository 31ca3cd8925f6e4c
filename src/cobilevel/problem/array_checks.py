"""Arrays, and contexts, as a user hands them over: checked, and kept with all their digits."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Int, PyTree, Shaped

from ..keys import is_key
from ..precision import Held, kept_digits
from ..programs import put


def path_name(argument: str, path: tuple) -> str:
    """``eta['demand'][0]`` for a leaf of a pytree, to name it in an error."""
    return argument + jax.tree_util.keystr(path)


def concrete(array: Any) -> bool:
    """Whether an array holds values now, rather than being traced."""
    return not isinstance(array, Tracer)


def listed_values(values: Any, most: int = 8) -> str:
    """A few values, for an error."""
    return ", ".join(map(repr, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")


def array_of(value: Any, name: str, convert: Callable = kept_digits) -> Any:
    """`value` as an array that keeps all its digits."""
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}.") from error


def each_leaf(convert: Callable[[Any, str], Any], tree: PyTree, argument: str) -> PyTree:
    """A function of the leaves of a pytree and their names; raises where keys of a dict cannot be sorted."""
    try:
        jax.tree.structure(tree)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{argument} has a dict whose keys cannot be sorted, such as numbers and strings together: name all with "
            "strings (of a data frame: df.columns = df.columns.astype(str))."
        ) from error
    return jax.tree_util.tree_map_with_path(lambda path, leaf: convert(leaf, path_name(argument, path)), tree)


def require_rows(tree: PyTree, argument: str, rows: int | None) -> int:
    """Checks that every leaf has the same, nonzero number of rows and finite values; returns that number."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = path_name(argument, path)
        if leaf.ndim == 0:
            raise ValueError(
                f"{name} is a scalar, but needs a leading axis over samples. A list of numbers is read as a pytree of "
                "scalars: wrap it in numpy.asarray."
            )
        if rows is not None and len(leaf) != rows:
            raise ValueError(
                f"{name} has {len(leaf)} rows where {rows} were expected. All arrays of one data set share their "
                "leading axis: one row per sample."
            )
        rows = len(leaf)
        if rows == 0:
            raise ValueError(f"{name} has no rows: at least one sample is needed.")
        if not concrete(leaf) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        bad = np.any(~np.isfinite(np.asarray(leaf)).reshape(rows, -1), axis=1)
        if bad.any():
            raise ValueError(
                f"{name} holds NaN or infinity in {bad.sum()} of {rows} rows, first in row {int(np.argmax(bad))}. "
                "Drop or repair these rows before solving."
            )
    if rows is None:
        raise ValueError(f"{argument} holds no array: at least one sample is needed.")
    return rows


def _float_leaf(leaf: Any, name: str) -> Held:
    array = array_of(leaf, name)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{name} must be a float array, got dtype {array.dtype}. Derivatives are taken with respect to it: write "
            "1.0 for 1, or convert with .astype(float)."
        )
    if array.dtype.itemsize < 4:
        raise TypeError(f"{name} has dtype {array.dtype}, too coarse to solve in: use float32 or float64.")
    if array.size == 0:
        raise ValueError(f"{name} is empty, shape {array.shape}: give a starting point with at least one number.")
    if concrete(array) and not np.isfinite(np.asarray(array)).all():
        raise ValueError(f"{name} holds NaN or infinity; give a finite starting point.")
    return array if isinstance(array, np.ndarray) else jnp.asarray(array, array.dtype)  # drops weak types


def float_tree(tree: PyTree, argument: str) -> PyTree:
    """A starting point as a pytree of finite float arrays, with at least one."""
    point = each_leaf(_float_leaf, tree, argument)
    if not jax.tree.leaves(point):
        raise ValueError(f"{argument} holds no array: give a starting point as a float array or a pytree of them.")
    return point


def real_numbers(value: Any, argument: str) -> np.ndarray:
    """`value` as a finite NumPy array in double precision: an end of a domain, a parameter of a distribution."""
    try:
        given = np.asarray(value)
    except (TypeError, ValueError) as error:  # random keys; rows of different lengths
        raise TypeError(f"{argument} must hold real numbers, got {type(value).__name__}: {error}") from error
    if given.dtype.kind not in "fiu":
        raise TypeError(f"{argument} must hold real numbers, got dtype {given.dtype}.")
    array = given.astype(float)
    if given.dtype.kind in "iu" and np.any(array.astype(object) != given.astype(object)):
        raise ValueError(
            f"{argument} holds a whole number beyond {2**53} that no float equals, {given}: subtract an offset."
        )
    if not np.all(np.isfinite(array)):
        of_domain = argument.startswith(("Interval", "Box", "Finite", "Periodic"))
        bounded = " The basis lives on a bounded domain: choose bounds that hold every context you will ask for."
        raise ValueError(f"{argument} must be finite, got {array}." + bounded * of_domain)
    return array


def decision_like(value: Any, x: PyTree, argument: str, dtype: Any) -> PyTree:
    """Another decision than `x`, in a floating dtype; raises where it is of another shape, or not finite."""
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    if jax.tree.structure(value) != jax.tree.structure(x) or shapes(value) != shapes(x):
        raise ValueError(f"{argument} must have the shapes of x, {shapes(x)}, got {shapes(value)}.")
    return each_leaf(lambda leaf, name: put(real_numbers(leaf, name).astype(dtype)), value, argument)


class Strings(eqx.Module):
    """Strings kept as numbers: `code` counts within `labels`. NumPy sees the strings."""

    code: Int[Held, "..."]
    labels: tuple[str, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.code)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Shaped[np.ndarray, "..."]:
        return np.asarray(self.labels)[np.asarray(self.code)].astype(dtype or object)


def contexts_of(value: Any, name: str) -> Any:
    """Contexts with every column as an array: strings as ``Strings``, a dict of columns as a dict."""
    if isinstance(value, Mapping):
        return {str(key): contexts_of(column, f"{name}[{key!r}]") for key, column in value.items()}
    if is_key(value):
        raise TypeError(f"{name} must hold numbers or strings, got random keys.")
    if isinstance(value, Strings | Tracer | jax.Array):
        return value
    table = array_of(value, name, np.asarray)
    return _encoded(table, name) if table.dtype.kind in "OUT" else array_of(value, name)


def is_missing(item: Any) -> bool:
    """Whether an object stands for no value: ``None``, NaN, or what pandas has in their place."""
    return type(item).__name__ in ("NoneType", "NAType", "NaTType") or (isinstance(item, float) and item != item)


def _encoded(table: np.ndarray, name: str) -> Any:
    """An array of objects as ``Strings``; or as numbers, where it holds these."""
    flat: Any = table.ravel().tolist()
    missing = list(map(is_missing, flat))
    if any(missing):
        raise ValueError(
            f"{name} has no value in {sum(missing)} of {len(flat)} rows, first in row {missing.index(True)}. Drop "
            "these rows, or give them a value of their own, such as 'unknown'."
        )
    strings = [isinstance(item, str) for item in flat]
    if not any(strings):
        return array_of(flat, name, lambda items: kept_digits(np.array(items).reshape(table.shape)))
    if not all(strings):
        odd = flat[strings.index(False)]
        raise TypeError(f"{name} holds strings and other things, such as {odd!r}: write all its values as strings.")
    labels, code = np.unique(np.asarray(flat, str), return_inverse=True)
    return Strings(code.reshape(table.shape).astype(np.int32), tuple(labels.tolist()))  # pyright: ignore


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
        listed = ", ".join(f"{key!r} {list(shape)}" for key, shape in shapes.items())
        raise ValueError(
            f"{name}: columns must be of one length, or single values; their shapes are {listed}."
        ) from error
