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

from ..ground import Held, kept_digits
from .domain import Domain, held_by_single
from .finite import Finite
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


def read_columns(given: Any, where: str, domain: Domain | None = None) -> Any:
    """What is in a form: an array, ``Strings``, or a dict of these by name.

    `domain`: that of what is asked for. A frame, or a row of one, may then have other columns than are wanted, and
    values may be missing; in data, for which there is none, they are refused.
    """
    names = getattr(domain, "names", None)
    vectors = domain is not None and bool(domain.shape)
    if is_frame(given := _unnested(given)):
        frame = Frame(given, where)
        known = {str(name): name for name in frame.names}
        frame.require([name for name in names or () if name not in known], "the domain")
        given = {name: frame.readable(known[name]) for name in (names or known)}
    elif (row := _named(given, vectors)) is not None:
        written = {str(name): value for name, value in row.items()}
        if len(written) < len(row):
            raise ValueError(f"{where} has two columns of one name in {listed_values(list(row))}; rename them.")
        given = {name: written[name] for name in names} if names and set(names) <= set(written) else written
    return contexts_of(given, where, data=domain is None)


def _unnested(given: Any) -> Any:
    """A column of records, as polars has them, as a frame; anything else unchanged."""
    nested = type(given).__name__ == "Series" and str(getattr(given, "dtype", "")).startswith("Struct(")
    return given.struct.unnest() if nested else given


def _named(given: Any, row: bool) -> Mapping[str, Any] | None:
    """What has names, as a dict: one itself, a named tuple, a record of NumPy, a list of these, and, where that is what
    it must be, a `row` of pandas, which looks like a column; ``None`` for all else."""
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "_asdict"):
        return given._asdict()
    if row and type(given).__name__ == "Series" and hasattr(given, "to_dict"):
        return None if list(given.index) == list(range(len(given))) else given.to_dict()  # numbered, not named
    if isinstance(given, np.ndarray | np.void) and given.dtype.names:
        return {name: given[name] for name in given.dtype.names}
    if not isinstance(given, list | tuple) or not given or (first := _named(given[0], True)) is None:
        return None
    rows = [_named(one, True) or {} for one in given]
    return {name: [one.get(name) for one in rows] for name in first}


def enter(domain: Domain, given: Any, where: str = "xi", data: bool = False) -> Contexts:
    """Contexts of any form; `where` names them in error messages, `data` says that they are part of the data."""
    if isinstance(given, Contexts):
        return given
    form = read_columns(given, where, None if data else domain)
    if isinstance(form, Mapping):
        columns = _columns(domain, form, where, data)
    elif isinstance(domain, Mixed):
        if isinstance(form, Strings) or form.ndim == 0 or form.shape[-1] != len(domain.names):
            raise ValueError(
                f"{where} must be a dict or a frame with the columns {listed_values(domain.names)}, or an array of "
                f"numbers with these columns in this order; got "
                f"{'strings' if isinstance(form, Strings) else f'shape {form.shape}'}."
            )
        columns = {name: form[..., j] for j, name in enumerate(domain.names)}
    else:
        return Contexts(_as_given(domain.coded(form, where, data), form))
    parts = domain.parts if isinstance(domain, Mixed) else dict.fromkeys(columns, domain)
    coded = {name: parts[name].coded(column, f"{where}[{name!r}]", data) for name, column in columns.items()}
    if not domain.shape:
        return Contexts(_as_given(*(next(iter(part.values())) for part in (coded, columns))))
    free = [name for name in columns if not isinstance(parts[name], Finite)] or list(columns)
    return Contexts(_in_one_array(coded, [columns[name] for name in free], where))


def _as_given(coded: Any, column: Any) -> Any:
    """In single precision, if that is what it was given in."""
    single = getattr(column, "dtype", None) == np.float32 and coded.dtype == np.float64
    return kept_digits(np.asarray(coded).astype(np.float32)) if single else coded


def _columns(domain: Domain, columns: Mapping[str, Any], where: str, data: bool) -> Mapping[str, Any]:
    """The columns in the order of the domain; raises if there are others than it has."""
    for name in (name for name, column in columns.items() if isinstance(column, Mapping)):
        raise TypeError(f"{where}[{name!r}] must be one column, got a dict. Pass the frame itself.")
    if isinstance(domain, Mixed):
        return _by_name(domain, columns, where)
    if len(columns) != domain.dimension:
        raise ValueError(
            f"{where} has the columns {listed_values(list(columns))}, but contexts of {domain!r} have "
            f"{domain.dimension}. Pass that many, or name them in the domain: cb.Mixed(weather=cb.Interval(0, 1))."
        )
    if domain.shape and not data:  # in data the order is the user's word
        raise TypeError(
            f"{where}: contexts of {domain!r} have no names, so columns cannot be matched by name. Pass an array with "
            "the columns in the order used for solving, such as df[['a', 'b']].to_numpy(); or name them in the domain, "
            "cb.Mixed(a=cb.Interval(lo, hi), ...)."
        )
    return columns


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


def _in_one_array(columns: Mapping[str, Any], given: list[Any], where: str) -> Any:
    """Columns, or single values for all rows, in one array: in the precision of the floats that were `given`, or in one
    that keeps whole numbers apart."""
    one_length(columns, where)
    parts = list(columns.values())
    numbers = [part for part in given if not isinstance(part, Strings)]
    wide = [part.dtype for part in numbers if jnp.issubdtype(part.dtype, jnp.floating)]
    wide = [np.dtype(np.float32), *wide] if wide else [jnp.result_type(float)]
    wide += [np.dtype(float) for part in (*parts, *numbers) if not held_by_single(part)]
    traced = any(isinstance(part, Tracer) for part in parts)
    dtype = np.result_type(*wide)
    xp, dtype = (jnp, jnp.result_type(dtype)) if traced else (np, dtype)
    table = xp.broadcast_arrays(*[xp.asarray(part, dtype) for part in parts])
    return kept_digits(xp.stack(table, axis=-1))
