"""Columns out of a data frame, each read by what it holds, and results back into a frame.

pandas, polars and, through narwhals, others: a library is imported only where the user's own object comes from it.
"""

import datetime
import decimal
import difflib
import importlib
import sys
from typing import Any, NamedTuple

import numpy as np

from .input_checks import is_missing, listed_values

_BY_DTYPE = {"b": "boolean", "i": "whole", "u": "whole", "f": "number"}
_BY_OBJECT = {  # other columns, by what all of their values are
    "text": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "whole": lambda value: isinstance(value, int | np.integer),
    "number": lambda value: isinstance(value, int | float | np.number | decimal.Decimal),
    "time": lambda value: isinstance(value, datetime.timedelta) or hasattr(value, "strftime"),
}


class Column(NamedTuple):
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
    """A data frame with columns `names`, of pandas, polars or narwhals (`library`); messages begin with `caller`."""

    def __init__(self, frame: Any, caller: str):
        if not is_frame(frame):
            raise TypeError(
                f"{caller}: needs a pandas or polars data frame, got {type(frame).__name__}. Pass arrays directly to "
                "cb.Samples(xi, eta)."
            )
        if type(frame).__name__ == "LazyFrame":
            raise TypeError(f"{caller}: this frame is lazy and holds no rows yet; pass frame.collect().")
        self.caller, self.library, self.frame = caller, _library_of(frame) or "narwhals", frame
        if self.library == "narwhals":
            try:
                self.frame = importlib.import_module("narwhals").from_native(frame, eager_only=True)
            except ModuleNotFoundError as error:
                raise TypeError(
                    f"{caller}: a {type(frame).__module__}.{type(frame).__name__} is read through narwhals, which is "
                    "not installed. Run pip install narwhals, or convert it to a pandas or polars data frame."
                ) from error
        self.names = list(self.frame.columns)
        if getattr(self.frame.columns, "nlevels", 1) > 1:
            raise ValueError(f"{caller}: the column names have several levels; flatten them to one.")
        written = list(map(str, self.names))  # by which functions and policies know them
        twice = [name for name in written if written.count(name) > 1]
        if twice:
            raise ValueError(f"{caller}: the frame has more than one column named {twice[0]!r}; rename them.")

    def __len__(self) -> int:
        return len(self.frame)

    def require(self, names: list, argument: str) -> None:
        """Raises if a name is not a column, and suggests similar names."""
        for name in names:
            if name not in self.names:
                close = difflib.get_close_matches(str(name), map(str, self.names), 2)
                meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
                raise ValueError(
                    f"{self.caller}: {argument} names {name!r}, which is not a column of the frame.{meant} Its "
                    f"columns are {', '.join(map(repr, self.names))}."
                )

    def column(self, name: Any) -> Column:
        """One column, read by its dtype, or by its values if they are objects; missing values become NaN or ""."""
        series = self.frame[name]
        if str(series.dtype) in ("Int128", "UInt128"):  # which NumPy does not have
            series = series.cast(sys.modules[self.library].Int64)
        values, category = series.to_numpy(), str(series.dtype).lower().startswith(("categor", "enum"))
        if values.dtype.kind in _BY_DTYPE and values.ndim == 1:
            return Column(name, _BY_DTYPE[values.dtype.kind], values, values != values, category)
        items = series.to_list()
        missing = np.array(list(map(is_missing, items)), bool)
        present = [item for item, gone in zip(items, missing, strict=True) if not gone]
        kind = next((kind for kind, fits in _BY_OBJECT.items() if all(map(fits, present))), "other")
        dtype = {"text": str, "boolean": bool, "whole": int, "number": float}.get(kind, object)
        if dtype is object:
            return Column(name, kind, np.array([*items, None], object)[:-1], missing, category)  # also of lists
        fill, dtype = ("", str) if kind == "text" else (np.nan, float if missing.any() else dtype)
        values = np.array([fill if gone else item for item, gone in zip(items, missing, strict=True)], dtype)
        return Column(name, kind, values, missing, category)

    def readable(self, name: Any) -> np.ndarray:
        """The values of a column of contexts; raises if it holds neither numbers nor text."""
        column = self.column(name)
        self._refuse_kind(column, "context")
        return column.values

    def columns(self, roles: dict[str, Any]) -> dict[str, list[Column]]:
        """The columns that each argument names; raises if one does not exist, is named twice, or cannot be used."""
        as_list = lambda names: [] if names is None else list(names) if isinstance(names, list | tuple) else [names]
        uses: dict[Any, list[str]] = {}
        for role, names in roles.items():
            self.require(as_list(names), role)
            for name in as_list(names):
                uses.setdefault(name, []).append(role)
        for name, named in uses.items():
            if len(named) > 1:
                both = len(set(named)) > 1
                where = f"in {' and in '.join(dict.fromkeys(named))}" if both else f"twice in {named[0]}"
                remedy = " The functions get contexts as xi in any case." if "context" in named and both else ""
                raise ValueError(f"{self.caller}: the column {name!r} is named {where}; name it only once.{remedy}")
        if not as_list(roles["context"]):
            raise ValueError(f"{self.caller}: context must name at least one column, got {roles['context']!r}.")
        if isinstance(roles.get("weights"), list | tuple):
            raise TypeError(f"{self.caller}: weights must name one column, got {roles['weights']!r}.")
        if not len(self):
            raise ValueError(f"{self.caller}: the frame has no rows: at least one sample is needed.")
        columns = {role: [self.column(name) for name in as_list(names)] for role, names in roles.items()}
        self._refuse_missing([(column, role) for role, group in columns.items() for column in group])
        for role, group in columns.items():
            for column in group:
                self._refuse_kind(column, role)
        return columns

    def _refuse_missing(self, columns: list[tuple[Column, str]]) -> None:
        """Raises where a column lacks values, with the code that drops these rows."""
        lacking = [(column, role) for column, role in columns if column.missing.any()]
        if not lacking:
            return
        names = [column.name for column, _ in lacking]
        floats = [column.name for column, _ in lacking if column.kind == "number" and self.library == "polars"]
        drop = f"df.drop_nulls({names!r})" + (f".drop_nans({floats!r})" if floats else "")
        drop = f"df.dropna(subset={names!r})" if self.library == "pandas" else drop
        counts = ", ".join(f"{column.missing.sum()} in {column.name!r} ({role})" for column, role in lacking)
        rows = int(np.sum(np.any([column.missing for column, _ in lacking], axis=0)))
        raise ValueError(
            f"{self.caller}: missing values, {counts}; {rows} of {len(self)} rows have one. Drop these rows, {drop}, "
            "or fill the values in."
        )

    def _refuse_kind(self, column: Column, role: str) -> None:
        """Raises where a column holds neither numbers nor, as a context, text; says what to make of it."""
        if column.kind not in ("time", "other") and (column.kind != "text" or role == "context"):
            return
        begin, given = f"{self.caller}: the {role} column {column.name!r} holds", f"df[{column.name!r}]"
        some, pandas = listed_values(list(dict.fromkeys(map(str, column.values)))), self.library == "pandas"
        if column.kind == "text":
            codes = given + (".astype('category').cat.codes" if pandas else ".cast(polars.Categorical).to_physical()")
            raise TypeError(
                f"{begin} text ({some}) where numbers are needed. Make it a context, context=[..., {column.name!r}] "
                f"with cb.Finite as its domain, or encode it as numbers, {codes}; convert text that reads as numbers "
                "first."
            )
        if column.kind == "time":
            raise TypeError(
                f"{begin} dates or times ({some}). Encode them as numbers: the hours since the first, "
                f"({given} - {given}.min()).dt.total_seconds() / 3600; or the hour of the day, "
                f"{given}.dt.hour{'' if pandas else '()'}, with cb.Periodic(0, 24) as its domain."
            )
        raise TypeError(
            f"{begin} values that are neither numbers nor text of one kind ({some}). Convert it, or split it into "
            "columns of numbers."
        )

    def with_results(self, names: list, results: dict[str, np.ndarray]) -> Any:
        """The columns of these names, as they are written, unchanged, followed by the results, in a frame of the same
        library."""
        written = {str(name): name for name in self.names}
        names = [written[str(name)] for name in names]
        if self.library == "pandas":
            return self.frame[names].assign(**results)
        tool, table = sys.modules[self.library], self.frame.select(names)
        if self.library == "polars":
            return table.with_columns(*(tool.Series(name, values) for name, values in results.items()))
        series = [tool.new_series(name, v, backend=self.frame.implementation) for name, v in results.items()]
        return tool.to_native(table.with_columns(*series))


def frame_columns(frame: Any, context: Any, eta: Any, weights: Any, caller: str) -> list[Any]:
    """Contexts, noise and weights from the named columns: one name gives an array, a list of names a dict. Only noise
    keeps whole numbers, which may be codes."""
    roles = {"context": context, "eta": eta, "weights": weights}
    kept = {"context": ("number", "text"), "eta": ("number", "whole"), "weights": ()}
    tables = []
    for role, columns in Frame(frame, caller).columns(roles).items():
        table = {c.name: c.values if c.kind in kept[role] else c.values.astype(float) for c in columns}
        tables.append(table if isinstance(roles[role], list | tuple) else next(iter(table.values()), None))
    return tables
