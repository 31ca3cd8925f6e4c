"""``domain_of``: the domain that the columns of a data frame suggest."""

from typing import Any

import numpy as np

from .domain import Domain, Finite, Interval
from .frames import Column, frame_contexts
from .mixed import Mixed


def domain_of(frame: Any, context: Any) -> Domain:
    """A domain for the context columns of a data frame, to be read before it is used: print it.

    Numbers get the ``Interval`` from their least to their largest value, so that the policy is NaN beyond; text,
    categories and booleans the ``Finite`` of the values that occur. A list of names gives a ``Mixed``. What no
    table shows is for you to say: that hours repeat (``Periodic``), or how far contexts may go.
    """
    caller = "domain_of"
    parts = {str(name): _part(column, caller) for name, column in frame_contexts(frame, context, caller).items()}
    return Mixed(parts) if isinstance(context, list | tuple) else next(iter(parts.values()))


def _part(column: Column, caller: str) -> Domain:
    if column.kind in ("text", "boolean") or column.category:
        values = np.unique(column.values)
        return Finite(values.astype(float) if values.dtype.kind == "b" else values.tolist())
    lo, hi = float(np.min(column.values)), float(np.max(column.values))
    if not lo < hi:
        raise ValueError(f"{caller}: the column {column.name!r} is {lo:g} in every row; leave it out of context.")
    return Interval(lo, hi)
