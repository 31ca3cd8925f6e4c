"""What a user hands over, checked: arrays and contexts, which keep all their digits, and functions that draw.

What a stream or a conditional sampler draws must come from its key: such a function is traced once and compiled, and
numbers that come from elsewhere, NumPy's generators say, are then the same in every batch. Two traces show them where
they differ; else it shows that an output does not depend on the key.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Int, PyTree, Shaped

from ..functions import anew, depends_on, failure, key_of
from ..ground import Held, as_key, is_key, kept_digits, program, put, split_key

CHECK_ROWS = 64  # of a check by chance: as many draws are not in order, or alike, unless they are so made
CONTEXTS_DRAWN_AT = 8  # of a check, and the rows of a second period: as many do not agree by chance
NO_STRING = "\ue000"  # in place of a missing one: a character without a meaning
_INSTEAD = (
    "The function is traced once and compiled, so every batch would hold the same values. Draw with jax.random and the "
    "key, not with NumPy's or Python's random generators"
)


def slack(dtype: Any) -> float:
    """What counts as rounding, relative to 1."""
    return 8 * float(jnp.finfo(dtype).eps) ** 0.75


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
    """`value` as an array that keeps all its digits, and that no one else can change."""
    if isinstance(value, np.ma.MaskedArray):
        value = _unmasked(value, name)
    try:
        array = value if isinstance(value, Tracer | jax.Array) else np.array(value)
        return convert(array.astype(float) if array.dtype == np.longdouble else array)
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__} ({reason}).") from error


def _unmasked(value: np.ma.MaskedArray, name: str) -> np.ndarray:
    """A masked array of which nothing is masked; raises otherwise."""
    masked = np.ma.getmaskarray(value)
    if masked.any():
        raise ValueError(
            f"{name} is masked at {masked.sum()} of {masked.size} places, so values are missing. Drop these rows."
        )
    return value.data


def plain_whole(array: Any, name: str) -> Any:
    """Whole numbers that compute like Python's: those of few bits, or without a sign, in more; booleans as 0 and 1;
    others unchanged."""
    if array.dtype.kind not in "biu" or array.dtype in (np.int32, np.int64):
        return array
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{name}: a whole number of {int(array.max())} does not fit in 64 bits with a sign.")
    return array.astype(np.int64 if array.dtype.itemsize > 2 else np.int32)


def data_leaf(value: Any, name: str) -> Any:
    """A leaf of the data as an array; whole numbers compute like Python's."""
    array = array_of(value, name)
    if isinstance(array, Tracer) or array.dtype.kind not in "iu":
        return array
    return kept_digits(plain_whole(np.asarray(array), name))


def each_leaf(convert: Callable[[Any, str], Any], tree: PyTree, argument: str) -> PyTree:
    """Applies a function to the leaves of a pytree and their names; raises if keys of a dict cannot be sorted."""
    try:
        jax.tree.structure(tree)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{argument} has a dict whose keys cannot be sorted, such as numbers and strings together. Use strings for "
            "all keys (for a data frame: df.columns = df.columns.astype(str))."
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
                f"{name} has {len(leaf)} rows where {rows} were expected. All arrays of one data set need the same "
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
            "1.0 for 1, or convert with .astype(float). Constants belong in the functions, not here."
        )
    if array.dtype.itemsize < 4:
        raise TypeError(f"{name} has dtype {array.dtype}, too coarse to solve in: use float32 or float64.")
    if array.size == 0:
        raise ValueError(f"{name} is empty, shape {array.shape}: give a starting point with at least one number.")
    if concrete(array) and not np.isfinite(np.asarray(array)).all():
        raise ValueError(f"{name} holds NaN or infinity; give a finite starting point.")
    return array if isinstance(array, np.ndarray) else jnp.asarray(array, array.dtype)  # drops weak types


@jax.tree_util.register_static
class Fixed:
    """A function in a pytree of arrays, such as the activation of a layer: callable as before, but not a leaf."""

    def __init__(self, function: Callable):
        self.function = self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Fixed) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:  # the same in every process: files compare structures in words
        return f"<function {getattr(self.function, '__name__', type(self.function).__name__)}>"

    def __reduce__(self) -> tuple[Callable, tuple]:
        """By name where it has one: JAX's own functions cannot be pickled otherwise."""
        place = [getattr(self.function, part, "") for part in ("__module__", "__qualname__")]
        known = getattr(sys.modules.get(place[0]), place[1], None) if all(place) else None
        return (_fixed_at, tuple(place)) if known is self.function else (Fixed, (self.function,))


def _fixed_at(module: str, name: str) -> Fixed:
    return Fixed(getattr(importlib.import_module(module), name))


def with_fixed(tree: PyTree) -> PyTree:
    """The same pytree with its functions in place, but not as leaves."""
    return jax.tree.map(lambda leaf: Fixed(leaf) if callable(leaf) else leaf, tree)


def float_tree(tree: PyTree, argument: str, functions: bool = False) -> PyTree:
    """A starting point as a pytree of finite float arrays, at least one; `functions` says if it may hold functions."""
    leaf = lambda leaf, name: Fixed(leaf) if functions and callable(leaf) else _float_leaf(leaf, name)
    point = each_leaf(leaf, tree, argument)
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
            f"{argument} holds an integer beyond {2**53} that no float represents exactly, {given}. Subtract an offset."
        )
    if not np.all(np.isfinite(array)):
        of_domain = argument.startswith(("Interval", "Box", "Finite", "Periodic"))
        bounded = " The basis needs a bounded domain: choose bounds that hold every context you will ask for."
        raise ValueError(f"{argument} must be finite, got {array}." + bounded * of_domain)
    return array


def ascending(values: Any, argument: str) -> tuple[float, ...]:
    """`values` as a tuple of finite numbers, each larger than the one before."""
    given = real_numbers(values, argument) if np.size(values) else np.zeros(0)
    if given.ndim != 1:
        raise TypeError(f"{argument} must be a tuple of numbers, such as (7, 10), got {values!r}.")
    if np.any(np.diff(given) <= 0):
        raise ValueError(f"{argument} must be ascending, without repeats, got {values!r}. Sort them.")
    return tuple(given.tolist())


def decision_like(value: Any, x: PyTree, argument: str, dtype: Any) -> PyTree:
    """A decision other than `x`, in a floating dtype; raises if its shape differs or it is not finite."""
    value, shapes = with_fixed(value), lambda tree: jax.tree.map(np.shape, tree)
    if jax.tree.structure(value) != jax.tree.structure(x) or shapes(value) != shapes(x):
        raise ValueError(f"{argument} must have the shapes of x, {shapes(x)}, got {shapes(value)}.")
    return each_leaf(lambda leaf, name: put(real_numbers(leaf, name).astype(dtype)), value, argument)


class Strings(eqx.Module):
    """Strings stored as numbers: `code` holds positions in `labels`. NumPy sees the strings."""

    code: Int[Held, "..."]
    labels: tuple[str, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.code)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Shaped[np.ndarray, "..."]:
        return np.asarray(np.asarray(self.labels)[np.asarray(self.code)], dtype or object)


def contexts_of(value: Any, name: str, data: bool = True) -> Any:
    """Contexts with every column as an array: strings as ``Strings``, a dict of columns as a dict. Missing values are
    refused in `data`; else they are NaN, or a string that no one knows."""
    if isinstance(value, Mapping):
        return {str(key): contexts_of(column, f"{name}[{key!r}]", data) for key, column in value.items()}
    if isinstance(value, jax.Array) and is_key(value):
        raise TypeError(f"{name} must hold numbers or strings, got random keys.")
    if isinstance(value, Strings | Tracer) or (isinstance(value, jax.Array) and value.dtype.kind != "c"):
        return value
    if isinstance(value, np.ma.MaskedArray) and not data:
        value = np.where(np.ma.getmaskarray(value), None, value.data.astype(object))
    if isinstance(value, list | tuple) and any(isinstance(item, str) for item in value):
        value = np.array([item.value if isinstance(item, Enum) else item for item in value], object)
    table = array_of(value, name, np.asarray)
    if table.dtype.kind in "cMm":
        what = "complex numbers" if table.dtype.kind == "c" else "dates or times"
        raise TypeError(f"{name} holds {what}. Contexts are real numbers, such as hours since the first; or strings.")
    if table.dtype.kind == "S":
        table = array_of(table, name, np.char.decode)
    return _encoded(table, name, data) if table.dtype.kind in "OUT" else array_of(value, name)


def is_missing(item: Any) -> bool:
    """Whether an object marks a missing value: ``None``, NaN, or their pandas equivalents."""
    return type(item).__name__ in ("NoneType", "NAType", "NaTType") or (isinstance(item, float) and item != item)


def _encoded(table: np.ndarray, name: str, data: bool) -> Any:
    """An array of objects as ``Strings``; or as numbers, where it holds these."""
    flat = table.ravel().tolist()
    missing = list(map(is_missing, flat))
    if any(missing) and not data:
        fill = NO_STRING if any(isinstance(item, str) for item in flat) else np.nan
        flat, missing = [fill if gone else item for item, gone in zip(flat, missing, strict=True)], [False]
    if any(missing):
        raise ValueError(
            f"{name} has no value in {sum(missing)} of {len(flat)} rows, first in row {missing.index(True)}. Drop "
            "these rows, or give them a separate value, such as 'unknown'."
        )
    strings = [isinstance(item, str) for item in flat]
    if not any(strings):
        exact = [float(item) if isinstance(item, Decimal | Fraction) else item for item in flat]
        return array_of(exact, name, lambda items: kept_digits(items.reshape(table.shape)))
    if not all(strings):
        odd = flat[strings.index(False)]
        raise TypeError(f"{name} holds strings and other values, such as {odd!r}. Write all its values as strings.")
    labels, code = np.unique(np.asarray(flat, str), return_inverse=True)
    return Strings(code.reshape(table.shape).astype(np.int32), tuple(labels.tolist()))


def require_contexts(xi: Any, name: str) -> int:
    """Checks that contexts have rows and that columns have equal lengths and are finite; returns the row count."""
    if not isinstance(xi, Mapping):
        return require_rows(xi.code if isinstance(xi, Strings) else xi, name, None)
    rows = None
    for key, column in xi.items():
        values, where = column.code if isinstance(column, Strings) else column, f"{name}[{key!r}]"
        if isinstance(column, Mapping) or values.ndim > 1:
            raise ValueError(f"{where} must be one column, with one number or string per row.")
        rows = require_rows(values, where, rows)
    if rows is None:
        raise ValueError(f"{name} holds no column: give at least one, such as {{'weather': weather}}.")
    return rows


def one_length(columns: Mapping[Any, Any], name: str) -> None:
    """Raises if columns have different shapes; single values are repeated."""
    shapes = {key: np.shape(column) for key, column in columns.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError as error:
        listed = ", ".join(f"{key!r} {list(shape)}" for key, shape in shapes.items())
        raise ValueError(
            f"{name}: columns must have the same length, or be single values; their shapes are {listed}."
        ) from error


def _traced_draw(draw: Callable, *example: Any) -> tuple[ClosedJaxpr, Any]:
    """A function that draws, traced afresh, and the shapes of what it returns."""
    with anew():
        return jax.make_jaxpr(lambda *args: draw(*args, CHECK_ROWS), return_shape=True)(*example)


def _in_order(values: np.ndarray) -> bool:
    """Whether rows are all the same, in order, or repeat, as zeros, grids and ``arange(size) % 7`` do; numbers drawn at
    random do not. Column by column."""
    table = values.reshape(len(values), -1).astype(float)
    steps = np.diff(table, axis=0)
    fine = np.all(steps >= 0, axis=0) | np.all(steps <= 0, axis=0)
    for period in range(2, len(table) - CONTEXTS_DRAWN_AT + 1):
        fine |= np.all(table[period:] == table[:-period], axis=0)
    return bool(np.all(fine))


def _from_key(name: str, draw: Callable, traced: ClosedJaxpr, shapes: Any, *example: Any) -> list[bool]:
    """Raises where what ``draw(key, ..., size)`` draws does not come from its key; says of each leaf whether it does.

    Leaves that do not are let pass where all rows are the same, in order, or repeat.
    """
    again, _ = _traced_draw(draw, *example)
    values = lambda closed: key_of(list(jax.jit(jaxpr_as_fun(closed))(*example)))
    if key_of(traced) != key_of(again) and values(traced) != values(again):
        raise ValueError(
            f"{name} returns different values for the same key, so it uses randomness from elsewhere. {_INSTEAD}."
        )
    from_key = depends_on(traced.jaxpr, slice(0, 1))
    names = [path_name("", path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    for place, (leaf, yes) in enumerate(zip(names, from_key, strict=True)):
        if yes:
            continue
        value = jax.jit(lambda *args, place=place: jaxpr_as_fun(traced)(*args)[place])(*example)
        if not _in_order(np.asarray(value)):
            what = leaf.lstrip(".") or "its return value"
            raise ValueError(
                f"{name} does not use its key for {what}. {_INSTEAD}. For the same values in every batch, in random "
                "order, use jax.random.permutation(key, values)."
            )
    return from_key


def check_stream(draw: Any, kind: type) -> None:
    """Raises unless `draw` is a function that returns samples of this kind, drawn with its key."""
    if not callable(draw):
        raise TypeError(f"Stream: draw must be a function draw(key, size) -> Samples, got {draw!r}.")
    try:
        traced, drawn = _traced_draw(draw, as_key(0))
    except Exception as error:
        raise failure("Stream: draw(key, size)", error, f"fails for {CHECK_ROWS} samples") from error
    if not isinstance(drawn, kind):
        raise TypeError(f"Stream: draw(key, size) must return Samples, got {type(drawn).__name__}.")
    if len(drawn) != CHECK_ROWS:
        raise ValueError(f"Stream: draw(key, {CHECK_ROWS}) returned {len(drawn)} samples instead of {CHECK_ROWS}.")
    if not any(_from_key("Stream: draw(key, size)", draw, traced, drawn, as_key(0))):
        raise ValueError(f"Stream: draw(key, size) does not use its key. {_INSTEAD}.")


def check_conditional(draw: Callable, xi: Any, eta: PyTree) -> None:
    """Raises if ``conditional(key, xi, size)`` fails, returns anything but noise like `eta`, or does not use its key;
    `xi` and `eta` are a few samples of the lower level."""
    name, key = "conditional(key, xi, size)", as_key(0)
    some = np.asarray(xi)
    try:
        traced, drawn = _traced_draw(draw, key, some[0])
    except Exception as error:
        reason = failure(name, error, f"fails for a key, xi = {some[0]} and size = {CHECK_ROWS}")
        raise ValueError(
            f"{reason} It must return `size` draws of eta given one context; leave it out of the problem if you have "
            "no such function."
        ) from error
    _check_like(name, drawn, eta)
    from_key = _from_key(name, draw, traced, drawn, key, some[0])
    values = jax.tree.map(np.asarray, _drawn_at_contexts(draw, jnp.stack(split_key(key, len(some))), some))
    leaves = zip(jax.tree_util.tree_leaves_with_path(values), jax.tree.leaves(eta), from_key, strict=True)
    for (path, value), observed, random in leaves:
        bad = ~np.isfinite(value.astype(float)).reshape(len(some), -1).all(axis=1)
        if bad.any():
            where = f"{path_name('eta', path)} at xi = {some[np.argmax(bad)]}"
            raise ValueError(f"{name} returns NaN or infinity in {where}. Fix it there.")
        if not random:
            _check_known(name, path_name("eta", path), value, np.asarray(observed), some)


def _check_like(name: str, drawn: Any, eta: PyTree) -> None:
    """Raises where what is drawn is not like the noise of the samples."""
    if jax.tree.structure(drawn) != jax.tree.structure(eta):
        raise TypeError(
            f"{name} must return noise like the eta of the samples, {jax.tree.structure(eta)} with a leading axis of "
            f"length size, got {jax.tree.structure(drawn)}."
        )
    for (path, got), like in zip(jax.tree_util.tree_leaves_with_path(drawn), jax.tree.leaves(eta), strict=True):
        wanted = (CHECK_ROWS, *like.shape[1:])
        if got.shape != wanted:
            raise ValueError(
                f"{name} with size = {CHECK_ROWS} must return {path_name('eta', path)} of shape {wanted}, one row per "
                f"draw, got {got.shape}."
            )
        kinds = [[jnp.issubdtype(a.dtype, kind) for kind in (jnp.floating, jnp.integer)] for a in (got, like)]
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"{name} returns {path_name('eta', path)} as {got.dtype}, but the samples hold it as {like.dtype}. "
                f"Convert one of them with .astype."
            )


def _check_known(name: str, leaf: str, drawn: np.ndarray, observed: np.ndarray, xi: np.ndarray) -> None:
    """Raises where noise that is said to be known, given the context, is not what was observed there."""
    here, there = drawn[:, 0].astype(float), observed.astype(float)
    gap = np.abs(here - there).reshape(len(xi), -1).max(axis=1)
    wrong = gap > slack(np.float32) * (np.abs(here).max() + np.abs(there).max())
    if wrong.any() and np.all(drawn == drawn[:, :1]):
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{name} does not use its key for {leaf}: all draws at xi = {xi[row]} are {drawn[row, 0]}, but the samples "
            f"hold {observed[row]} there. Draw eta given xi, with jax.random and the key."
        )


@program
def _drawn_at_contexts(draw: Callable, keys: Any, xi: Any) -> PyTree:
    return jax.vmap(lambda key, context: draw(key, context, CHECK_ROWS))(keys, xi)
