"""``domain_of``: the domain that the context columns of a table suggest, in one piece or in partitions."""

from typing import Any

import numpy as np

from ..ground import Common
from .domain import Domain, Interval
from .finite import Finite
from .frames import Column, Frame
from .mixed import Mixed
from .partitions import is_partitioned, named_columns, parts_of


def domain_of(frame: Any, context: Any) -> Domain:
    """Suggests a domain for the context columns of a data frame. Print it and check it before you use it.

    Numbers get the ``Interval`` from their smallest to their largest value, so that the policy is NaN outside it;
    text, categories and booleans get the ``Finite`` of the values that occur. A list of names gives a ``Mixed``. A
    table cannot show that hours repeat (``Periodic``), or how far contexts may go: change the domain accordingly.

    **Arguments:**

    - `frame`: a pandas or polars data frame.
    - `context`: a name, or a list of names.

    **Returns:** a domain.

    **Raises:** ``ValueError`` for columns that do not exist, dates and missing values.

    **Example:**

    >>> import pandas as pd
    >>> table = pd.DataFrame({"weather": [0.1, 0.9, 0.5], "day": ["mon", "tue", "mon"]})
    >>> cb.domain_of(table, context=["weather", "day"])
    Mixed(weather=Interval(0.1, 0.9), day=Finite(['mon', 'tue']))
    """
    if is_partitioned(frame):
        columns = _merged(frame, context)
    else:
        columns = Frame(frame, "domain_of").columns({"context": context})["context"]
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


# -- of a table in partitions


def _summaries(parts: list, common: Common) -> list[tuple[int, list[Column]]]:
    """Of each partition what a domain is proposed by: the ends of numbers, the values of everything else."""
    found = []
    for number, load in parts:
        frame = load()
        if not len(frame):
            continue
        columns = Frame(frame, "domain_of").columns({"context": common.value})["context"]
        found.append((number, [_summary(column) for column in columns]))
    return found


def _summary(column: Column) -> Column:
    values = np.unique(column.values)
    if column.kind in ("number", "whole") and not column.category:
        values = values[[0, -1]]
    return column._replace(values=values, missing=np.zeros(len(values), bool))


def _merged(frame: Any, context: Any) -> list[Column]:
    """The context columns of a table in partitions, with the values that decide over a domain."""
    parts = parts_of(frame, named_columns(context), "domain_of")
    each = parts.each(_summaries, Common(context))
    if not each:
        raise ValueError("domain_of: no partition has any rows.")
    merged = []
    for columns in zip(*each, strict=True):
        kinds = {column.kind for column in columns}
        kind = columns[0].kind if len(kinds) == 1 else "number" if kinds <= {"number", "whole"} else ""
        if not kind:
            raise TypeError(
                f"domain_of: the column {columns[0].name!r} holds {' in some partitions and '.join(sorted(kinds))} "
                "in others. Convert it to one of them."
            )
        values = np.unique(np.concatenate([column.values for column in columns]))
        missing = np.zeros(len(values), bool)
        merged.append(Column(columns[0].name, kind, values, missing, any(column.category for column in columns)))
    return merged
