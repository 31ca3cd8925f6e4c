"""The one door for contexts: whatever their form, they come in here, and inside they are ``Contexts``.

A form is a scalar, a string, a list, an array, a dict of columns, a data frame, or one row of a frame. What has names
is read by them, never by its order. Of what is asked for (a policy, a table), contexts that the domain does not know
are let in, and lie outside of it: the answer there is NaN. In data they are refused.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Shaped

from ..precision import kept_digits
from ..programs import Held
from .domain import Box, Domain, held_by_single
from .frames import Frame, is_frame
from .input_checks import Strings, contexts_of, listed_values, one_length
from .mixed import Mixed


class Contexts(eqx.Module):
    """Contexts as the library keeps them: one array, strings as their positions, hours within their period.

    Made by ``enter`` from what a user passes, and by the library from places in the domain; never from one another.
    """

    values: Shaped[Held, "..."]

    def rows(self, domain: Domain) -> Shaped[Held, "n ..."]:
        """One context a row."""
        return self.values.reshape(-1, *domain.shape)


def read_columns(given: Any, where: str, names: tuple[str, ...] | None = None, data: bool = True) -> Any:
    """What is in a form: an array, ``Strings``, or a dict of these by name.

    `names`: those wanted; a frame, or a row of one, may have others. Missing values are refused in `data`.
    """
    if is_frame(given):
        frame = Frame(given, where)
        frame.require(list(names or ()), "the domain")
        given = {name: frame.readable(name) for name in (names or frame.names)}
    elif (row := _row(given, names)) is not None:
        given = {name: row[name] for name in names} if set(names or ()) <= set(row) and names else row
    return contexts_of(given, where, data)


def _row(given: Any, names: tuple[str, ...] | None) -> dict[str, Any] | None:
    """What has names but is no dict, as one: a named tuple, a record of NumPy, a row of pandas where names are wanted
    (else it is a column)."""
    if hasattr(given, "_asdict"):
        return given._asdict()
    if isinstance(given, np.ndarray | np.void) and given.dtype.names:
        return {name: given[name] for name in given.dtype.names}
    labels = getattr(given, "index", None) if type(given).__name__ == "Series" and names else None
    return given.to_dict() if labels is not None and any(isinstance(label, str) for label in labels) else None


def enter(domain: Domain, given: Any, where: str = "xi", data: bool = False) -> Contexts:
    """Contexts of any form; `where` names them in error messages, `data` says that they are part of the data."""
    if isinstance(given, Contexts):
        return given
    named = isinstance(domain, Mixed)
    form = read_columns(given, where, domain.names if named and not data else None, data)
    if isinstance(form, Mapping):
        columns = _by_name(domain, form, where) if named else _in_order(domain, form, where, data)
    elif named:
        if isinstance(form, Strings) or form.ndim == 0 or form.shape[-1] != len(domain.names):
            raise ValueError(
                f"{where} must be a dict of the columns {listed_values(domain.names)}, or an array of them in that "
                f"order, with strings as numbers; got {getattr(form, 'shape', 'strings')}."
            )
        columns = {name: form[..., j] for j, name in enumerate(domain.names)}
    else:
        return Contexts(domain.coded(form, where, data))
    parts = domain.parts if named else dict.fromkeys(columns, domain)
    coded = {name: parts[name].coded(columns[name], f"{where}[{name!r}]", data) for name in columns}
    return Contexts(_in_one_array(coded, where) if domain.shape else next(iter(coded.values())))


def _by_name(domain: Mixed, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The columns in the order of the domain."""
    for missing in (name for name in domain.names if name not in columns):
        raise ValueError(
            f"{where} has no column {missing!r}: it has {listed_values(list(columns))}, and the domain has "
            f"{listed_values(domain.names)}."
        )
    for unknown in (name for name in columns if name not in domain.names):
        raise ValueError(
            f"{where} has a column {unknown!r} that is not in the domain. Drop it, or add it to the domain: "
            f"cb.Mixed({unknown}=cb.Interval(lo, hi), ...)."
        )
    return {name: columns[name] for name in domain.names}


def _in_order(domain: Domain, columns: Mapping[str, Any], where: str, data: bool) -> Mapping[str, Any]:
    """The columns of a domain without names: of data in the order they are given in, which is the user's word."""
    if len(columns) != domain.dimension:
        raise ValueError(
            f"{where} has the columns {listed_values(list(columns))}, but contexts of {domain!r} have "
            f"{domain.dimension}. Pass that many, or name them in the domain: cb.Mixed(weather=cb.Interval(0, 1))."
        )
    if domain.shape and not data:
        array = "df[['a', 'b']].to_numpy()"
        name = "name them in the domain, cb.Mixed(a=cb.Interval(lo, hi), ...)" if isinstance(domain, Box) else ""
        raise TypeError(
            f"{where}: contexts of {domain!r} have no names, so columns cannot be matched by name. Pass an array with "
            f"the columns in the order used for solving, such as {array}{'; or ' * bool(name)}{name}."
        )
    return columns


def _in_one_array(columns: Mapping[str, Any], where: str) -> Any:
    """Columns, or single values for all rows, in one array, in a precision that keeps their numbers apart."""
    one_length(columns, where)
    parts = list(columns.values())
    floats = [part for part in parts if jnp.issubdtype(part.dtype, jnp.floating)]
    wide = [part.dtype for part in floats if part.ndim] or [part.dtype for part in floats]  # one number does not widen
    wide += [np.dtype(float) for part in parts if not held_by_single(part)]
    traced, dtype = any(isinstance(part, Tracer) for part in parts), np.result_type(*wide) if wide else float
    xp, dtype = (jnp, jnp.result_type(dtype)) if traced else (np, dtype)
    table = xp.broadcast_arrays(*[xp.asarray(part, dtype) for part in parts])
    return kept_digits(xp.stack(table, axis=-1))
