"""``Finite``: contexts of which there are finitely many, numbers or strings."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float, Int, Shaped

from ..ground import Held, cast, kept_digits, module_of, on_host, plain, put
from .domain import Domain
from .input_checks import Strings, contexts_of, listed_values, plain_whole, real_numbers, slack


def _numbers_in(labels: tuple[str, ...]) -> Float[np.ndarray, " m"]:
    """What strings are as numbers, ``"True"`` and ``"False"`` as 1 and 0; NaN where they are none."""

    def number(label: str) -> float:
        word = {"true": "1", "false": "0"}.get(label.strip().lower(), label)
        try:
            return float(word.replace("_", "x"))  # Python reads "1_0" as ten
        except ValueError:
            return np.nan

    values = np.array(list(map(number, labels)), float)
    return np.where(np.isfinite(values), values, np.nan)


class Finite(Domain):
    """Finitely many contexts: `values` has shape ``(m,)`` or ``(m, d)``, one context per row, or holds strings.

    Functions see a string as its position among the values, 0, 1, 2, ...; data and ``policy`` take the strings
    themselves. Numbers in their place are read as positions too, unless a string reads as a number or a boolean, such
    as ``"7"`` or ``"True"``: then all numbers are matched by value.

    **Example:**

    >>> cb.Finite(["mon", "tue", "wed"])
    Finite(['mon', 'tue', 'wed'])
    >>> cb.Finite([1.0, 2.0, 4.0]).contains(np.array([2.0, 3.0]))
    array([ True, False])
    """

    values: Any
    labels: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, values: Any):
        if isinstance(values, str | bytes):
            raise TypeError(f"Finite takes a list of values, such as cb.Finite(['mon', 'tue']), got one: {values!r}.")
        if isinstance(values, list | tuple) and len({isinstance(value, str) for value in values}) > 1:
            raise TypeError("Finite takes strings or numbers, got both; 1 and '1' would be the same. Use strings only.")
        read = contexts_of(values, "Finite: values")
        self.labels = tuple(np.asarray(read).ravel().tolist()) if isinstance(read, Strings) else None
        listed = np.arange(len(self.labels)) if self.labels is not None else np.array(values)
        self.values = plain_whole(listed, "Finite: values")

    def __check_init__(self):
        if self.values.ndim not in (1, 2) or not self.values.size:
            raise ValueError(f"Finite takes values of shape (m,) or (m, d) with m >= 1, got shape {self.values.shape}.")
        real_numbers(self.values, "Finite: values")
        if len(np.unique(self.labels or self.values, axis=0)) < len(self.values):
            raise ValueError("Finite: values must be distinct; drop the repeated ones (see numpy.unique).")

    @property
    def shape(self):
        return self.values.shape[1:]

    @property
    def bounds(self):
        table = self.values.reshape(len(self.values), -1)
        return table.min(axis=0), table.max(axis=0)

    @plain
    def coded(self, column, where, data=False):
        if self.labels is None:
            known = super().coded(column, where, data) if isinstance(column, Strings) else column  # raises
            return self._of_one_kind(known, where, data)
        places = self._places(column, where)
        if isinstance(places, Tracer) or np.all(np.asarray(places) >= 0) or not (data and self._by_value(column)):
            return places
        unknown = np.asarray(places < 0)
        items = np.asarray(column.labels)[np.asarray(column.code)] if isinstance(column, Strings) else column
        new = np.unique(np.asarray(items)[unknown]).tolist()
        raise ValueError(
            f"{where} holds {listed_values(new)} in {np.sum(unknown)} of {unknown.size} rows, first in row "
            f"{int(np.argmax(unknown.ravel()))}; known are {listed_values(self.labels)}. Add it to the "
            "domain, cb.Finite([...]), and solve again; or drop these rows, or replace it with a known value."
        )

    def _of_one_kind(self, column: Any, where: str, data: bool) -> Any:
        """The values themselves, where a column has them up to its precision, so that functions see no difference;
        else a value outside, or, in data, what was given."""
        if isinstance(column, Tracer) or column.shape[column.ndim - len(self.shape) :] != self.shape:
            return column
        given = plain_whole(np.asarray(column), where)
        place, far = self.nearest(given)
        inside, found = self._whole(far <= slack(far.dtype)), self.values[place]
        if np.all(inside):
            return kept_digits(found)
        outside = np.subtract(2 * self.bounds[0] - self.bounds[1], 1, dtype=found.dtype)
        return kept_digits(given if data else np.where(inside, found, outside if self.shape else outside[0]))

    def _by_value(self, column: Any) -> bool:
        """Whether a column says which of the strings is meant by what they say, and not by their position."""
        return isinstance(column, Strings) or bool(np.any(np.isfinite(_numbers_in(self.labels or ()))))

    @plain
    def _places(self, column: Any, where: str) -> Any:
        """The position of each item among the strings; far below 0 if it is not among them."""
        labels, nowhere = self.labels or (), -1 - len(self.labels or ())
        if isinstance(column, Strings):
            known = {label: place for place, label in enumerate(labels)}
            return np.array([known.get(label, nowhere) for label in column.labels], np.int32)[np.asarray(column.code)]
        xp = jnp if isinstance(column, Tracer) else np
        column, whole = xp.asarray(column), not jnp.issubdtype(column.dtype, jnp.floating)
        values = _numbers_in(labels) if self._by_value(column) else np.arange(float(len(labels)))
        order = np.argsort(values)[: np.sum(np.isfinite(values))]
        table = values[order]
        if whole and np.all(table == np.round(table)):  # matched as whole numbers, all digits of which count
            column = column.astype(int)
        else:
            column = column.astype(float) if whole else column
        table = table.astype(column.dtype)
        if np.any(table[1:] == table[:-1]):
            one = int(np.argmax(table[1:] == table[:-1]))
            raise ValueError(
                f"{where} holds numbers, but {labels[order[one]]!r} and {labels[order[one + 1]]!r} of {self!r} are "
                "the same number. Pass strings."
            )
        above = xp.clip(xp.searchsorted(table, column), 0, len(table) - 1)
        return xp.where(xp.asarray(table)[above] == column, xp.asarray(order)[above], nowhere).astype(np.int32)

    @on_host
    def nearest(self, xi: Shaped[Held, "..."]) -> tuple[Int[Any, "..."], Float[Any, "..."]]:
        """The position of the value nearest to each context, and its distance.

        Searches an ordered list or a tree: a table of all distances, as compiled programs build for vectors, would
        have one entry for each pair of a context and a value.
        """
        xp = module_of(xi)
        xi = xp.asarray(xi)
        u, floats = self.reference(xi), jnp.issubdtype(xi.dtype, jnp.floating)
        table = self.reference(xp.asarray(self.values, xi.dtype if floats else None)).astype(u.dtype)
        if self.dimension == 1:
            u, table = u[..., 0], table[:, 0]
            order = xp.argsort(table)
            above = xp.searchsorted(table[order], u)
            both = order[xp.clip(xp.stack([above - 1, above]), 0, len(table) - 1)]
            far = abs(table[both] - u)
            return xp.where(far[1] < far[0], both[1], both[0]), xp.where(xp.isnan(u), u, xp.min(far, axis=0))
        if xp is jnp:
            distances = jnp.max(jnp.abs(u[..., None, :] - table), axis=-1)
            return jnp.argmin(distances, axis=-1), jnp.min(distances, axis=-1)
        from scipy.spatial import KDTree  # takes long to import, and few need it

        finite = np.all(np.isfinite(u), axis=-1)
        far, place = KDTree(table).query(np.where(finite[..., None], u, 0), p=np.inf)
        return place, np.where(finite, far, np.nan).astype(u.dtype)

    def index(self, xi: Shaped[Held, "..."]) -> Int[Any, "..."]:
        """The position of each context among the values."""
        return self.nearest(xi)[0]

    def check_distinct(self) -> None:
        """Raises if two values cannot be distinguished in the current precision."""
        cast(self.values, None, "domain: Finite")
        order = np.asarray(self.index(put(self.values)))
        if not np.array_equal(order, np.arange(len(order))):
            raise ValueError(
                "domain: some values of Finite are too close to be distinguished in this precision. Number them 0, 1, "
                "2, or set jax.config.update('jax_enable_x64', True)."
            )

    @on_host
    def contains(self, xi):
        far = self.nearest(xi)[1]
        return far <= slack(far.dtype)

    @on_host
    def snap(self, xi, dtype):
        values = module_of(xi).asarray(self.values, dtype if jnp.issubdtype(xi.dtype, jnp.floating) else None)
        return values[self.index(xi)]

    def __repr__(self):
        return f"Finite({list(self.labels or self.values.tolist())})"
