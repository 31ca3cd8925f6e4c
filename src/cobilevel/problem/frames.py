"""Columns out of a data frame, each read by what it holds; the domain they suggest; and results back into a frame.

pandas, polars and, through narwhals, others: a library is imported only where the user's own object comes from it.
"""

import datetime
import decimal
import difflib
import importlib
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .array_checks import is_missing, listed_values
from .domain import Domain, Finite, Interval
from .mixed import Mixed

_BY_DTYPE = {"b": "boolean", "i": "whole", "u": "whole", "f": "number"}
_BY_OBJECT = {  # other columns, by what all of their values are
    "text": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "whole": lambda value: isinstance(value, int | np.integer),
    "number": lambda value: isinstance(value, int | float | np.number | decimal.Decimal),
    "time": lambda value: isinstance(value, datetime.timedelta) or hasattr(value, "strftime"),
}


@dataclass(frozen=True)
class Column:
    """A column: its `kind` is boolean, whole, number, text, time or other; `missing` says where there is no value."""

    name: Any
    kind: str
    values: np.ndarray
    missing: np.ndarray
    category: bool


def is_frame(value: Any) -> bool:
    """Whether something is a data frame, of whatever library."""
    if _library_of(value) or hasattr(value, "__dataframe__") or hasattr(value, "__narwhals_dataframe__"):
        return True
    return hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns")


def _library_of(value: Any) -> str:
    """The package that an object's class, or one that it derives from, comes from, of those that are known here."""
    kinds = [kind for kind in type(value).__mro__ if kind.__name__ in ("DataFrame", "LazyFrame")]
    homes = [kind.__module__.partition(".")[0] for kind in kinds]
    return next((home for home in homes if home in ("pandas", "polars", "narwhals")), "")


class Frame:
    """A data frame, seen through the few things that are asked of one.

    `names` are its columns, `library` is pandas, polars or narwhals; `caller` begins errors.
    """

    def __init__(self, frame: Any, caller: str):
        self.caller = caller
        self.library = _library_of(frame) or "narwhals"
        if not is_frame(frame):
            raise TypeError(
                f"{caller}: needs a data frame, of pandas or polars, got {type(frame).__name__}. Arrays go to "
                "cb.Samples(xi, eta) as they are."
            )
        if type(frame).__name__ == "LazyFrame":
            raise TypeError(f"{caller}: this frame is lazy and holds no rows yet; pass frame.collect().")
        self.tool: Any = sys.modules.get(self.library)
        self.frame = frame
        if self.library == "narwhals":
            self.tool = _narwhals(frame, caller)
            self.frame = self.tool.from_native(frame, eager_only=True)
        self.names = list(self.frame.columns)
        if getattr(self.frame.columns, "nlevels", 1) > 1:
            raise ValueError(f"{caller}: the columns have names of several levels; flatten them to one name each.")
        twice = [name for name in dict.fromkeys(self.names) if self.names.count(name) > 1]
        if twice:
            raise ValueError(f"{caller}: the frame has more than one column named {twice[0]!r}; rename them.")

    def __len__(self) -> int:
        return len(self.frame)

    def require(self, names: list, argument: str) -> None:
        """Raises where a name is no column, and says which is close to it."""
        for name in names:
            if name not in self.names:
                close = difflib.get_close_matches(str(name), map(str, self.names), 2)
                meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
                raise ValueError(
                    f"{self.caller}: {argument} names {name!r}, which is no column of the frame.{meant} Its columns "
                    f"are {', '.join(map(repr, self.names))}."
                )

    def column(self, name: Any) -> Column:
        """One column, read by its dtype; columns of Python objects by what these are."""
        series = self.frame[name]
        values, category = series.to_numpy(), str(series.dtype).lower().startswith(("categor", "enum"))
        if values.dtype.kind not in _BY_DTYPE or values.ndim > 1:
            return _column_of_objects(name, series.to_list(), category)
        return Column(name, _BY_DTYPE[values.dtype.kind], values, values != values, category)

    def without_missing(self, columns: list[Column]) -> str:
        """The code that drops the rows in which one of these columns has no value."""
        names = [column.name for column in columns]
        if self.library == "pandas":
            return f"df.dropna(subset={names!r})"
        floats = [column.name for column in columns if column.kind == "number"] if self.library == "polars" else []
        return f"df.drop_nulls({names!r})" + (f".drop_nans({floats!r})" if floats else "")

    def codes(self, name: Any) -> str:
        """The code that numbers the categories of a column."""
        by_polars = f"df[{name!r}].cast(polars.Categorical).to_physical()"
        return f"df[{name!r}].astype('category').cat.codes" if self.library == "pandas" else by_polars

    def clock(self, name: Any) -> tuple[str, str]:
        """The code for the hours since the first time in a column, and for the hour of the day."""
        column, called = f"df[{name!r}]", "" if self.library == "pandas" else "()"
        return f"({column} - {column}.min()).dt.total_seconds() / 3600", f"{column}.dt.hour{called}"

    def with_results(self, names: list, results: dict[str, np.ndarray]) -> Any:
        """The columns of these names as they are, and the results after them, in a frame of the same library."""
        if self.library == "pandas":
            return self.frame[names].assign(**results)
        series = self.tool.Series if self.library == "polars" else self.tool.new_series
        where = {} if self.library == "polars" else {"backend": self.frame.implementation}
        table = self.frame.select(names).with_columns(*(series(name, v, **where) for name, v in results.items()))
        return table if self.library == "polars" else self.tool.to_native(table)


def _narwhals(frame: Any, caller: str) -> Any:
    """narwhals, which knows frames of other libraries."""
    try:
        return importlib.import_module("narwhals")
    except ModuleNotFoundError as error:
        raise TypeError(
            f"{caller}: a {type(frame).__module__}.{type(frame).__name__} is read through narwhals, which is not "
            "installed: pip install narwhals, or convert it to a data frame of pandas or polars."
        ) from error


def _column_of_objects(name: Any, items: list, category: bool) -> Column:
    """A column by its values; where there is none stands what no number or category is."""
    missing = np.array(list(map(is_missing, items)), bool)
    present = [item for item, gone in zip(items, missing, strict=True) if not gone]
    kind = next((kind for kind, fits in _BY_OBJECT.items() if all(map(fits, present))), "other")
    dtype: Any = {"text": str, "boolean": bool, "whole": int, "number": float}.get(kind, object)
    if dtype is object:
        return Column(name, kind, np.array([*items, None], object)[:-1], missing, category)  # also of lists
    fill, dtype = ("", str) if kind == "text" else (np.nan, float if missing.any() else dtype)
    values = np.array([fill if gone else item for item, gone in zip(items, missing, strict=True)], dtype)
    return Column(name, kind, values, missing, category)


def frame_columns(frame: Any, context: Any, eta: Any, weights: Any, caller: str) -> list[Any]:
    """Contexts, noise and weights by the names of their columns: one name gives an array, a list a dict by name."""
    roles = {"context": context, "eta": eta, "weights": weights}
    tables = []
    for role, columns in _checked_columns(Frame(frame, caller), roles).items():
        table = {column.name: _numbers(column, role) for column in columns}
        tables.append(table if isinstance(roles[role], list | tuple) else next(iter(table.values()), None))
    return tables


def _numbers(column: Column, role: str) -> np.ndarray:
    """The values of a column: in contexts all numbers are floats; noise may be whole, since it may be a code."""
    kept = {"context": ("number", "text"), "eta": ("number", "whole"), "weights": ()}[role]
    return column.values if column.kind in kept else column.values.astype(float)


def _checked_columns(held: Frame, roles: dict[str, Any]) -> dict[str, list[Column]]:
    """The columns that each argument names; raises where one is not there, is named twice, or is of no use."""
    as_list = lambda names: [] if names is None else list(names) if isinstance(names, list | tuple) else [names]
    named = {role: as_list(names) for role, names in roles.items()}
    for role, names in named.items():
        held.require(names, role)
    _one_role_each(named, held.caller)
    if not named["context"]:
        raise ValueError(f"{held.caller}: context must name at least one column, got {roles['context']!r}.")
    if isinstance(roles.get("weights"), list | tuple):
        raise TypeError(f"{held.caller}: weights must name one column, got {roles['weights']!r}.")
    if not len(held):
        raise ValueError(f"{held.caller}: the frame has no rows: at least one sample is needed.")
    columns = {role: [held.column(name) for name in names] for role, names in named.items()}
    _none_missing(held, columns)
    for role, group in columns.items():
        for column in group:
            _refuse_kinds(held, column, role)
    return columns


def _one_role_each(named: dict[str, list], caller: str) -> None:
    uses = [(name, role) for role, names in named.items() for name in names]
    for name, role in uses:
        roles = [other for used, other in uses if used == name]
        if len(roles) > 1:
            both = len(set(roles)) > 1
            where = f"in {' and in '.join(dict.fromkeys(roles))}" if both else f"twice in {role}"
            remedy = " The functions get contexts as xi anyhow." if "context" in roles and both else ""
            raise ValueError(f"{caller}: the column {name!r} is named {where}, and may be named once.{remedy}")


def _none_missing(held: Frame, columns: dict[str, list[Column]]) -> None:
    roles = [(column, role) for role, group in columns.items() for column in group if column.missing.any()]
    if not roles:
        return
    lacking = [column for column, _ in roles]
    counts = ", ".join(f"{column.missing.sum()} in {column.name!r} ({role})" for column, role in roles)
    rows = int(np.sum(np.any([column.missing for column in lacking], axis=0)))
    raise ValueError(
        f"{held.caller}: missing values, {counts}; {rows} of {len(held)} rows have one. Drop these rows, "
        f"{held.without_missing(lacking)}, or fill the values in."
    )


def _refuse_kinds(held: Frame, column: Column, role: str) -> None:
    """Raises where a column holds neither numbers nor, as a context, text; says what to make of it."""
    if column.kind not in ("time", "other") and (column.kind != "text" or role == "context"):
        return
    name, some = column.name, listed_values(list(dict.fromkeys(map(str, column.values))))
    if column.kind == "text":
        raise TypeError(
            f"{held.caller}: the {role} column {name!r} holds text ({some}) where numbers are needed. Make it a "
            f"context, context=[..., {name!r}] with cb.Finite as its domain, or number it, {held.codes(name)}; text "
            "that reads as numbers must be converted first."
        )
    if column.kind == "time":
        since, hour = held.clock(name)
        raise TypeError(
            f"{held.caller}: the {role} column {name!r} holds dates or times ({some}), which must be encoded as "
            f"numbers: the hours since the first, {since}; or the hour of the day, {hour}, with cb.Periodic(0, 24) as "
            "its domain."
        )
    raise TypeError(
        f"{held.caller}: the {role} column {name!r} holds values that are neither numbers nor text of one kind "
        f"({some}). Convert it, or split it into columns of numbers."
    )


def domain_of(frame: Any, context: Any) -> Domain:
    """A domain for the context columns of a data frame, to be read before it is used: print it.

    Numbers get the ``Interval`` from their least to their largest value, so that the policy is NaN beyond; text,
    categories and booleans the ``Finite`` of the values that occur. A list of names gives a ``Mixed``. What no
    table shows is for you to say: that hours repeat (``Periodic``), or how far contexts may go.
    """
    columns = _checked_columns(Frame(frame, "domain_of"), {"context": context})["context"]
    parts = {str(column.name): _proposed(column) for column in columns}
    return Mixed(parts) if isinstance(context, list | tuple) else next(iter(parts.values()))


def _proposed(column: Column) -> Domain:
    if column.kind in ("text", "boolean") or column.category:
        values = np.unique(column.values)
        return Finite(values.astype(float) if values.dtype.kind == "b" else values.tolist())
    lo, hi = float(np.min(column.values)), float(np.max(column.values))
    if not lo < hi:
        raise ValueError(f"domain_of: the column {column.name!r} is {lo:g} in every row; leave it out of context.")
    return Interval(lo, hi)
