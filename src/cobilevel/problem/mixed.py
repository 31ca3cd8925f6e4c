"""Contexts of several parts, each of its own kind and under its own name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from ..host import module_of, on_host, plain
from ..programs import arithmetic
from .columns import NAMED, Strings, contexts_of, listed_values, one_length
from .domain import Box, Domain, Finite
from .precision import kept_digits

_APART = 4.0  # distance of categories, in units of the root of the dimension: more than any two within one


class Mixed(Domain):
    """Several contexts by name, such as ``Mixed(weather=Interval(0, 1), hour=Periodic(0, 24), day=Finite(["mon",
    "tue"]))``.

    Functions see one context as a dict of scalars, strings as their position among the values of ``Finite``. Data are
    dicts of columns. Within the library contexts are arrays of shape ``(n, d)``, one column a part. Names that Python
    does not take as keywords go in a dict, ``Mixed({"wind speed": Interval(0, 30)})``.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    components: tuple[Domain, ...]

    def __init__(self, parts: Mapping[str, Domain] | None = None, /, **components: Domain):
        if parts is not None and not isinstance(parts, Mapping):
            raise TypeError(f"Mixed takes its parts by name, Mixed(hour=Periodic(0, 24)), got {parts!r}.")
        named = {**(parts or {}), **components}
        self.names, self.components = tuple(map(str, named)), tuple(named.values())

    def __check_init__(self):
        if not self.names:
            raise ValueError("Mixed needs at least one part, such as Mixed(hour=Periodic(0, 24)).")
        for name, part in zip(self.names, self.components, strict=True):
            if isinstance(part, Mixed | Box):
                raise TypeError(
                    f"Mixed: {name} is {part!r}, but each part is a scalar. State its coordinates one by one, "
                    f"Mixed({name}_1=..., {name}_2=...)."
                )
            if not isinstance(part, Domain) or part.shape:
                raise TypeError(
                    f"Mixed: {name} must be an Interval, a Periodic, an Unbounded or a Finite of scalars, got {part!r}."
                )

    @property
    def shape(self):
        return (len(self.names),)

    @property
    def bounds(self):
        ends = zip(*(part.bounds for part in self.components), strict=True)
        return tuple(_together("concatenate", end, 0) for end in ends)

    @property
    def parts(self) -> dict[str, Domain]:
        """The parts by name."""
        return dict(zip(self.names, self.components, strict=True))

    @plain
    def _each(self, apply: Callable[[Domain, Any], Any], xi: Any) -> list[Any]:
        """What a function of a part and its column gives, part by part."""
        return [apply(part, xi[..., j]) for j, part in enumerate(self.components)]

    @on_host
    def contains(self, xi):
        return _together("stack", self._each(lambda part, column: part.contains(column), xi)).all(axis=-1)

    @on_host
    def reference(self, xi):
        return _together("concatenate", self._each(lambda part, column: part.reference(column), xi))

    @on_host
    def place(self, u):
        """The inverse of ``reference``; between categories, the nearest."""

        def one(part, column):
            found = part.place(column[..., None])
            return part.snap(found, found.dtype) if isinstance(part, Finite) else found

        return _together("stack", [column.astype(u.dtype) for column in self._each(one, u)])

    @on_host
    def snap(self, xi, dtype):
        return _together("stack", self._each(lambda part, column: part.snap(column, dtype), xi))

    @plain
    def wrap(self, xi):
        return kept_digits(self.wrapped(xi))

    @on_host
    def wrapped(self, xi):
        return _together("stack", self._each(lambda part, column: part.wrapped(column), xi))

    @on_host
    def embedded(self, xi):
        """Circles as circles, and categories far apart, so that those near a context have its categories."""
        apart = _APART * len(self.names) ** 0.5

        def one(part, column):
            if not isinstance(part, Finite):
                return part.embedded(column)
            return (apart * part.index(column)[..., None]).astype(column.dtype)

        return _together("concatenate", self._each(one, xi))

    @plain
    def pack(self, xi, where="xi"):
        if not isinstance(xi, Mapping):
            found = contexts_of(xi, where)
            if isinstance(found, Strings) or found.ndim == 0 or found.shape[-1] != len(self.names):
                raise ValueError(
                    f"{where} must be a dict of the columns {listed_values(self.names)}, or an array of these in that "
                    f"order, with strings as numbers; got {getattr(found, 'shape', 'strings')}."
                )
            return self.wrap(found) if jnp.issubdtype(found.dtype, jnp.floating) else found
        for missing in (name for name in self.names if name not in xi):
            raise ValueError(
                f"{where} has no column {missing!r}: it has {listed_values(list(xi))}, and the domain has "
                f"{listed_values(self.names)}."
            )
        for unknown in (name for name in xi if name not in self.names):
            raise ValueError(
                f"{where} has a column {unknown!r} that the domain does not know. Drop it, or state where it lives: "
                f"cb.Mixed({unknown}=cb.Interval(lo, hi), ...)."
            )
        columns = [part.pack_column(xi[name], f"{where}[{name!r}]") for name, part in self.parts.items()]
        one_length(dict(zip(self.names, columns, strict=True)), where)
        columns = [part.wrap(c) for part, c in zip(self.parts.values(), columns, strict=True)]  # with all their digits
        floats = [np.dtype(c.dtype) for c in columns if np.ndim(c) and jnp.issubdtype(c.dtype, jnp.floating)]
        dtype = np.result_type(*floats) if floats else jnp.result_type(float)
        if any(isinstance(column, Tracer) for column in columns):
            table = jnp.stack(jnp.broadcast_arrays(*[jnp.asarray(c, dtype) for c in columns]), axis=-1)
        else:
            table = np.stack(np.broadcast_arrays(*[np.asarray(c, dtype) for c in columns]), axis=-1)
        return self.wrap(table)

    def unpack(self, row):
        return {
            name: jnp.round(row[..., j]).astype(int) if isinstance(part, Finite) and _whole(part) else row[..., j]
            for j, (name, part) in enumerate(self.parts.items())
        }

    def __repr__(self):
        return f"Mixed({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"


def _whole(part: Finite) -> bool:
    """Whether values are whole numbers, as those of strings are."""
    return jnp.issubdtype(part.values.dtype, jnp.integer)


def _together(how: str, columns: Sequence[Any], axis: int = -1) -> Any:
    """Columns in one array: in NumPy, unless one of them is JAX's."""
    xp = jnp if any(module_of(column) is jnp for column in columns) else np
    return getattr(xp, how)([xp.asarray(column) for column in columns], axis=axis)


class Unpacked(eqx.Module):
    """A user's function of ``x, y, xi, eta``, on contexts as the library keeps them."""

    function: Callable
    domain: Domain

    def __call__(self, x: PyTree, y: PyTree, xi: Array, eta: PyTree) -> Any:
        return self.function(x, y, self.domain.unpack(xi), eta)


class UnpackedDraw(eqx.Module):
    """A user's sampler of the noise at one context, on contexts as the library keeps them."""

    function: Callable
    domain: Domain

    def __call__(self, key: Array, xi: Array, size: int) -> Any:
        return self.function(key, self.domain.unpack(xi), size)


def columns_of(domain: Domain, xi: Any, where: str) -> list[tuple[Domain, Any, str]]:
    """The parts of a domain, with their columns of the contexts and how these are called."""
    if not isinstance(domain, Mixed):
        return [(domain, xi, where)]
    xi = np.asarray(xi) if arithmetic(xi) is np else xi
    return [(part, xi[..., j], f"{where}[{name!r}]") for j, (name, part) in enumerate(domain.parts.items())]


def never_seen(domain: Domain, xi: Any) -> str:
    """Which values of categories no context has, in words; empty where there are none."""
    said = []
    columns = columns_of(domain, xi, "")
    for (part, column, _), name in zip(columns, getattr(domain, "names", [""]), strict=True):
        if not isinstance(part, Finite) or (part is domain and part.labels is None):
            continue
        seen = set(np.asarray(part.index(np.asarray(column))).ravel().tolist())
        unseen = [part.named(k) for k in range(len(part.values)) if k not in seen]
        some = ", ".join(unseen[:NAMED]) + (f" and {len(unseen) - NAMED} more" if len(unseen) > NAMED else "")
        said += [f"{name} {some}".strip()] if unseen else []
    return "; ".join(said)
