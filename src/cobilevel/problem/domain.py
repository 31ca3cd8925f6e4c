"""Where contexts live: domains, and their map to the reference cube.

Every basis is written once, on the reference cube ``[-1, 1]^d``. A domain knows how to carry a context there, and
whether a context belongs to it at all.
"""

import math
from abc import abstractmethod
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float, Int, Shaped

from ..precision import cast, kept_digits
from ..programs import Held, module_of, on_host, plain, put
from .input_checks import Strings, contexts_of, listed_values, plain_whole, real_numbers, slack

LOST_SHARE = 1e-4  # of the width of the domain: contexts rounded by more are no longer the ones observed


class Domain(eqx.Module):
    """The set of contexts. One context is a scalar or a vector, as ``shape`` says."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one context."""
        return ()

    @property
    @abstractmethod
    def bounds(self) -> tuple[Any, Any]:
        """Lower and upper corner of the smallest box that holds the domain, each of shape ``(dimension,)``."""

    @on_host
    def contains(self, xi: Shaped[Held, "..."]) -> Bool[Any, "..."]:
        """Whether each context belongs to the domain (up to rounding at the ends)."""
        u = self.reference(xi)
        return (abs(u) <= 1 + slack(u.dtype)).all(axis=-1)

    @property
    def dimension(self) -> int:
        return math.prod(self.shape)

    def check_scalars(self, first: np.ndarray, second: np.ndarray, several: str) -> None:
        """Raises if the numbers of a domain are not scalars; `several` says what to use for vectors."""
        if first.ndim or second.ndim:
            name = type(self).__name__
            raise ValueError(f"{name} takes two scalars, got shapes {first.shape} and {second.shape}. {several}")

    @plain
    def coordinates(self, xi: Shaped[Held, "..."]) -> Shaped[Held, "... d"]:
        """Contexts with one trailing axis of length ``dimension``, whatever ``shape`` is."""
        return xi if self.shape else xi[..., None]

    @on_host
    def reference(self, xi: Shaped[Held, "..."]) -> Float[Held, "... d"]:
        """Maps contexts to ``[-1, 1]^d``.

        Distances are measured from the nearer end, so that the ends map to -1 and 1 exactly and nothing is rounded
        close to them, where polynomials of degree k change k^2 times as fast as their argument.
        """
        xp, xi = module_of(xi), self.coordinates(as_floats(xi))
        lo, hi = (xp.asarray(end, xi.dtype) for end in self.bounds)
        half = xp.where(hi > lo, (hi - lo) / 2, 1).astype(xi.dtype)
        from_lo, from_hi = (xi - lo) / half, (hi - xi) / half
        return xp.where(from_lo > from_hi, 1 - from_hi, from_lo - 1)

    @on_host
    def place(self, u: Float[Held, "... d"]) -> Float[Any, "..."]:
        """The inverse of ``reference``."""
        lo, hi = (module_of(u).asarray(end, u.dtype) for end in self.bounds)
        xi = lo + (hi - lo) * (u + 1) / 2
        return xi if self.shape else xi[..., 0]

    @plain
    def coded(self, column: Any, where: str, data: bool = False) -> Any:
        """A column of contexts, or whole ones, as the library keeps them: strings as numbers, hours within their
        period, with all digits. Of `data`, what the domain does not know is refused; else it lies outside."""
        if isinstance(column, Strings):
            raise TypeError(
                f"{where} holds strings ({listed_values(column.labels)}), but contexts of {self!r} are numbers. For "
                "categories, use the domain cb.Finite([...]) with all the strings that may occur."
            )
        floats = as_floats(column)
        wrapped = self.wrap(floats)
        return column if wrapped is column else kept_digits(wrapped)

    @plain
    def wrap(self, xi: Shaped[Held, "..."]) -> Shaped[Held, "..."]:
        """Contexts in the form in which they are compared: unchanged, except in periodic domains."""
        return xi

    def columns(self, xi: Any, where: str = "") -> list[tuple["Domain", Any, str]]:
        """The parts of the domain, each with its column of the contexts and the name of that column."""
        return [(self, xi, where)]

    def unpack(self, row: Shaped[Held, "..."]) -> Any:
        """One context as the user's functions see it."""
        return row

    def embedded(self, xi: Shaped[Held, "..."]) -> Float[Held, "... k"]:
        """Coordinates in which similar contexts are near each other, and others are not."""
        return self.reference(xi)

    @on_host
    def snap(self, xi: Shaped[Held, "..."], dtype: Any) -> Shaped[Any, "..."]:
        """Contexts in a floating dtype, moved back into the domain if rounding took them out of it."""
        xp = module_of(xi)
        lo, hi = (xp.asarray(end, dtype) for end in self.bounds)
        return xp.clip(self.coordinates(xi).astype(dtype), lo, hi).reshape(xi.shape)


def as_floats(xi: Any) -> Any:
    """Contexts as an array of floats; whole numbers in the precision that JAX has here, if it holds them."""
    xi = module_of(xi).asarray(xi)
    if jnp.issubdtype(xi.dtype, jnp.floating):
        return xi
    dtype = jnp.result_type(float) if held_by_single(xi) else float
    return xi.astype(dtype) if isinstance(xi, Tracer) else np.asarray(xi).astype(dtype)


def held_by_single(xi: Any) -> bool:
    """Whether single precision holds whole numbers exactly; floats are taken as they are."""
    if isinstance(xi, Tracer) or not xi.size or jnp.issubdtype(xi.dtype, jnp.floating):
        return True
    values = np.asarray(xi)
    return max(abs(int(values.min())), abs(int(values.max()))) <= 2**24


class _Between(Domain):
    """What lies between two ends."""

    lo: Any
    hi: Any

    def __init__(self, lo: Any, hi: Any):
        name = type(self).__name__
        self.lo, self.hi = real_numbers(lo, f"{name}: lo"), real_numbers(hi, f"{name}: hi")

    @property
    def bounds(self):
        return self.lo.reshape(-1), self.hi.reshape(-1)

    def _check_ends(self, several: str) -> None:
        self.check_scalars(self.lo, self.hi, several)
        if not self.lo < self.hi:
            name = type(self).__name__
            raise ValueError(f"{name} needs lo < hi, got lo={self.lo} and hi={self.hi}. Swap or widen them.")

    def __repr__(self):
        return f"{type(self).__name__}({self.lo.tolist()}, {self.hi.tolist()})"


class Interval(_Between):
    """The interval ``[lo, hi]``, with finite `lo` and `hi`: a context is a scalar.

    **Example:**

    >>> domain = cb.Interval(0.0, 10.0)
    >>> domain.contains(np.array([5.0, 11.0]))
    array([ True, False])
    """

    def __check_init__(self):
        self._check_ends("For contexts that are vectors use Box(lo, hi).")


class Box(_Between):
    """``[lo_1, hi_1] x ... x [lo_d, hi_d]``, with corners `lo` and `hi`: a context has shape ``(d,)``.

    **Example:**

    >>> domain = cb.Box([0.0, -1.0], [1.0, 1.0])
    >>> domain.contains(np.array([[0.5, 0.0], [0.5, 2.0]]))
    array([ True, False])
    """

    def __check_init__(self):
        if self.lo.ndim != 1 or self.lo.shape != self.hi.shape or not self.lo.size:
            raise ValueError(
                f"Box takes two vectors of the same length, got shapes {self.lo.shape} and {self.hi.shape}. For scalar "
                "contexts use Interval(lo, hi)."
            )
        if not np.all(self.lo < self.hi):
            side = int(np.argmin(self.lo < self.hi))
            raise ValueError(
                f"Box needs lo < hi in every dimension; in dimension {side} lo={self.lo[side]}, hi={self.hi[side]}. "
                "Swap or widen them, or drop a dimension that does not vary."
            )

    @property
    def shape(self):
        return self.lo.shape


class Periodic(_Between):
    """``[lo, hi]`` with `lo` and `hi` identified: a context is a scalar, and ``lo + t`` is the same as ``hi + t``.

    Every finite number is inside: in ``Periodic(0, 24)``, 24.5 and -23.5 mean 0.5, and functions see 0.5.

    **Example:**

    >>> domain = cb.Periodic(0.0, 24.0)
    >>> domain.contains(np.array([3.0, 27.0]))
    array([ True,  True])
    >>> domain.wrap(np.array([27.0, -1.0]))
    array([ 3., 23.])
    """

    def __check_init__(self):
        self._check_ends("For several contexts use Mixed(hour=Periodic(0, 24), ...).")

    @plain
    def _turn(self, xi: Any) -> Any:
        """Contexts as shares of a turn, from 0 up to 1."""
        xp, xi = module_of(xi), as_floats(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        turns = (xi - lo) / (hi - lo)
        return turns - xp.floor(turns)

    @on_host
    def reference(self, xi):
        return 2 * self._turn(xi)[..., None] - 1

    @on_host
    def wrap(self, xi):
        """Into one period; NaN where the digits of a number do not say where in a period it lies."""
        xp, xi = module_of(xi), as_floats(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        inside, lost = (xi >= lo) & (xi < hi), abs(xi) * float(jnp.finfo(xi.dtype).eps) > LOST_SHARE * (hi - lo)
        wrapped = xp.where(lost, xp.asarray(np.nan, xi.dtype), lo + (hi - lo) * self._turn(xi))
        return xp.where(inside | ~xp.isfinite(xi), xi, wrapped)

    @plain
    def coded(self, column, where, data=False):
        found = super().coded(column, where, data)
        if data and not isinstance(found, Tracer) and np.any(lost := np.isnan(np.asarray(found))):
            raise ValueError(
                f"{where} holds {np.asarray(column).ravel()[np.argmax(lost)]:g}, whose digits do not say where in "
                f"{self!r} it lies. Subtract whole periods first."
            )
        return found

    @on_host
    def snap(self, xi, dtype):
        return self.wrap(xi.astype(dtype))

    @on_host
    def embedded(self, xi):
        """On a circle as long as the reference interval."""
        xp, angle = module_of(xi), 2 * np.pi * self._turn(xi)
        return xp.stack([xp.cos(angle), xp.sin(angle)], axis=-1) / np.pi


class Unbounded(Domain):
    r"""All real numbers: a context is a scalar, carried to ``(-1, 1)`` by $u = t / \sqrt{1 + t^2}$ with
    $t = (\xi - \text{center}) / \text{scale}$.

    The map is linear near the center and flattens only algebraically: polynomials in ``u`` resolve contexts within a
    few times `scale` well, and level off beyond. ``Unbounded.fitted(values)`` estimates both numbers from data.

    **Arguments:**

    - `center`: the middle of the contexts.
    - `scale`: how far contexts spread around it.

    **Example:**

    >>> domain = cb.Unbounded(center=10.0, scale=2.0)
    >>> domain.contains(np.array([-1e6, 10.0]))
    array([ True,  True])
    >>> float(cb.Unbounded.fitted(np.linspace(-1.0, 1.0, 101)).center)
    0.0
    """

    center: Any = eqx.field(converter=lambda v: real_numbers(v, "Unbounded: center"), default=0.0)
    scale: Any = eqx.field(converter=lambda v: real_numbers(v, "Unbounded: scale"), default=1.0)

    def __check_init__(self):
        several = "For several contexts use Mixed(income=Unbounded(3e4, 2e4), ...)."
        self.check_scalars(self.center, self.scale, several)
        if not self.scale > 0:
            raise ValueError(
                f"Unbounded: scale must be positive, got {self.scale}. Unbounded.fitted(values) estimates it."
            )

    @staticmethod
    def fitted(values: Any) -> "Unbounded":
        """Center and scale from data: the median, and twice the spread estimated from the median distance to it.

        Both are robust to a few outliers.
        """
        table = real_numbers(values, "Unbounded.fitted: values").ravel()
        center = np.median(table)
        spread = np.median(np.abs(table - center)) / NormalDist().inv_cdf(3 / 4) or np.std(table)
        if not spread > 0:
            raise ValueError(f"Unbounded.fitted: all {table.size} values are {center}; use Unbounded(center, scale).")
        return Unbounded(center, 2 * spread)

    @property
    def bounds(self):
        return np.array([-np.inf]), np.array([np.inf])

    @on_host
    def reference(self, xi):
        xp, xi = module_of(xi), as_floats(xi)
        t = (xi - xp.asarray(self.center, xi.dtype)) / xp.asarray(self.scale, xi.dtype)
        return (t / xp.hypot(xp.ones_like(t), t))[..., None]

    @on_host
    def place(self, u):
        xp, end = module_of(u), 1 - slack(u.dtype)
        u = xp.clip(u[..., 0], -end, end)
        t = u / xp.sqrt((1 - u) * (1 + u))
        return xp.asarray(self.center, t.dtype) + xp.asarray(self.scale, t.dtype) * t

    def __repr__(self):
        return f"Unbounded({self.center}, {self.scale})"


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
        self.values = plain_whole(np.array(values)) if self.labels is None else np.arange(len(self.labels))

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
            return self._of_one_kind(super().coded(column, where, data) if isinstance(column, Strings) else column)
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

    def _of_one_kind(self, column: Any) -> Any:
        """Numbers of the kind of the values: floats, or whole ones if all are; so that functions see no difference."""
        if not jnp.issubdtype(self.values.dtype, jnp.integer):
            return kept_digits(as_floats(column)) if not jnp.issubdtype(column.dtype, jnp.floating) else column
        if isinstance(column, Tracer) or not jnp.issubdtype(column.dtype, jnp.floating):
            return column if isinstance(column, Tracer) else kept_digits(plain_whole(np.asarray(column)))
        given = np.asarray(column)
        all_whole = np.all(np.isfinite(given)) and np.all(given == np.round(given)) and np.all(np.abs(given) < 2**53)
        return kept_digits(given.astype(np.int64)) if all_whole else column

    def _by_value(self, column: Any) -> bool:
        """Whether a column says which of the strings is meant by what they say, and not by their position."""
        return isinstance(column, Strings) or bool(np.any(np.isfinite(_numbers_in(self.labels or ()))))

    @plain
    def _places(self, column: Any, where: str) -> Any:
        """The position of each item among the strings, -1 if it is not among them."""
        labels: Any = self.labels
        if isinstance(column, Strings):
            known = {label: place for place, label in enumerate(labels)}
            return np.array([known.get(label, -1) for label in column.labels], np.int32)[np.asarray(column.code)]
        if not self._by_value(column):
            return column
        xp = jnp if isinstance(column, Tracer) else np
        column = xp.asarray(column) if jnp.issubdtype(column.dtype, jnp.floating) else xp.asarray(column, float)
        values = _numbers_in(labels)
        order = np.argsort(values)[: np.sum(np.isfinite(values))]
        table = values[order].astype(column.dtype)
        if np.any(table[1:] == table[:-1]):
            one = int(np.argmax(table[1:] == table[:-1]))
            raise ValueError(
                f"{where} holds numbers, but {labels[order[one]]!r} and {labels[order[one + 1]]!r} of {self!r} are "
                "the same number. Pass strings."
            )
        above = xp.clip(xp.searchsorted(table, column), 0, len(table) - 1)
        return xp.where(xp.asarray(table)[above] == column, xp.asarray(order)[above], -1).astype(np.int32)

    @on_host
    def nearest(self, xi: Shaped[Held, "..."]) -> tuple[Int[Any, "..."], Float[Any, "..."]]:
        """The position of the value nearest to each context, and its distance.

        Searches an ordered list or a tree: a table of all distances, as compiled programs build for vectors, would
        have one entry for each pair of a context and a value.
        """
        xp = module_of(xi)
        xi = xp.asarray(xi)
        both_floats = jnp.issubdtype(xi.dtype, jnp.floating) and jnp.issubdtype(self.values.dtype, jnp.floating)
        u = self.reference(xi)
        table = self.reference(xp.asarray(self.values, xi.dtype if both_floats else None)).astype(u.dtype)
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

        finite: Any = np.all(np.isfinite(u), axis=-1)
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
