"""Checks of the arrays a user hands over; each error names the argument and what to do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from ..programs import put
from .precision import Held, kept_digits


def path_name(argument: str, path: tuple) -> str:
    """``eta['demand'][0]`` for a leaf of a pytree, to name it in an error."""
    return argument + jax.tree_util.keystr(path)


def concrete(array: Any) -> bool:
    """Whether an array holds values now, rather than being traced."""
    return not isinstance(array, Tracer)


def array_of(value: Any, name: str) -> Held:
    """`value` as an array that keeps all its digits."""
    try:
        return kept_digits(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}.") from error


def arrays_of(tree: PyTree, argument: str) -> PyTree:
    """The leaves of a pytree as arrays."""
    require_sorted(tree, argument)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: array_of(leaf, path_name(argument, path)), tree)


def require_sorted(tree: PyTree, argument: str) -> None:
    """Raises where a dict has keys that cannot be put in an order, as pytrees have it."""
    try:
        jax.tree.structure(tree)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{argument} has a dict whose keys cannot be sorted, such as numbers and strings together: name all with "
            "strings (of a data frame: df.columns = df.columns.astype(str))."
        ) from error


def require_finite(array: Held, name: str) -> None:
    """Raises where rows hold NaN or infinity, and names the first."""
    if not concrete(array) or not jnp.issubdtype(array.dtype, jnp.inexact):
        return
    bad = np.any(~np.isfinite(np.asarray(array)).reshape(len(array), -1), axis=1)
    if bad.any():
        raise ValueError(
            f"{name} holds NaN or infinity in {bad.sum()} of {len(bad)} rows, first in row {int(np.argmax(bad))}. "
            "Drop or repair these rows before solving."
        )


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
        require_finite(leaf, name)
    if rows is None:
        raise ValueError(f"{argument} holds no array: at least one sample is needed.")
    return rows


def float_leaf(leaf: Any, name: str) -> Held:
    """A starting point as a finite float array."""
    try:
        array = kept_digits(leaf)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be a float array, got {type(leaf).__name__}.") from error
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
    if isinstance(array, np.ndarray):
        return array  # pyright: ignore[reportReturnType]
    return put(np.asarray(array)) if concrete(array) else jnp.asarray(array, array.dtype)  # drops weak types


def float_tree(tree: PyTree, argument: str) -> PyTree:
    """A starting point as a pytree of finite float arrays, with at least one."""
    require_sorted(tree, argument)
    if not jax.tree.leaves(tree):
        raise ValueError(f"{argument} holds no array: give a starting point as a float array or a pytree of them.")
    return jax.tree_util.tree_map_with_path(lambda path, leaf: float_leaf(leaf, path_name(argument, path)), tree)


_BOUNDED = " The basis lives on a bounded domain: choose bounds that hold every context you will ask for."


def real_numbers(value: Any, argument: str) -> np.ndarray:
    """`value` as a finite NumPy array in double precision: an end of a domain, a parameter of a distribution."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # random keys; rows of different lengths
        raise TypeError(f"{argument} must hold real numbers, got {type(value).__name__}: {error}") from error
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{argument} must hold real numbers, got dtype {array.dtype}.")
    given, array = array, array.astype(float)
    if given.dtype.kind in "iu" and np.any(array.astype(object) != given.astype(object)):
        raise ValueError(
            f"{argument} holds a whole number beyond {2**53} that no float equals, {given}: subtract an offset."
        )
    if not np.all(np.isfinite(array)):
        raise ValueError(
            f"{argument} must be finite, got {array}."
            + _BOUNDED * argument.startswith(("Interval", "Box", "Finite", "Periodic"))
        )
    return array


def decision_like(value: Any, x: PyTree, argument: str, dtype: Any) -> PyTree:
    """Another decision than `x`, in a floating dtype; raises where it is of another shape, or not finite."""
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    if jax.tree.structure(value) != jax.tree.structure(x) or shapes(value) != shapes(x):
        raise ValueError(f"{argument} must have the shapes of x, {shapes(x)}, got {shapes(value)}.")
    leaf = lambda path, part: put(real_numbers(part, path_name(argument, path)).astype(dtype))
    return jax.tree_util.tree_map_with_path(leaf, value)
