"""Where contexts live: domains, and their map to the reference cube.

Every basis is written once, on the reference cube ``[-1, 1]^d``. A domain knows how to carry a context there, and
whether a context belongs to it at all.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ..host import module_of, on_host, plain
from ..programs import Held, arithmetic, put
from .array_checks import real_numbers
from .columns import Strings, contexts_of, listed_values, one_length
from .precision import cast, kept_digits


class Domain(eqx.Module):
    """The set of contexts. One context is a scalar or a vector, as ``shape`` says."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one context."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[Any, Any]:
        """Lower and upper corner of the smallest box that holds the domain, each of shape ``(dimension,)``."""

    @abstractmethod
    def contains(self, xi: Shaped[Held, "..."]) -> Bool[Any, "..."]:
        """Whether each context belongs to the domain (up to rounding at the ends)."""

    @property
    def dimension(self) -> int:
        return math.prod(self.shape)

    @plain
    def coordinates(self, xi: Shaped[Held, "..."]) -> Shaped[Held, "... d"]:
        """Contexts with one trailing axis of length ``dimension``, whatever ``shape`` is."""
        return xi if self.shape else xi[..., None]

    @on_host
    def reference(self, xi: Shaped[Held, "..."]) -> Float[Held, "... d"]:
        """Maps contexts to ``[-1, 1]^d``.

        Measured from the nearer end, so that the ends land on -1 and 1 exactly and nothing is rounded close to them,
        where polynomials of degree k change k^2 times as fast as their argument.
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
    def pack(self, xi: Any, where: str = "xi") -> Any:
        """Contexts as a user hands them over, as one array; a dict of columns is taken in its order.

        `where` names them in errors.
        """
        if isinstance(xi, Mapping):
            if len(xi) != self.dimension:
                raise ValueError(
                    f"{where} has the columns {listed_values(list(xi))}, but contexts of {self!r} have "
                    f"{self.dimension}. Give as many, or state them by name: cb.Mixed(weather=cb.Interval(0, 1))."
                )
            columns = [self.pack_column(column, f"{where}[{name!r}]") for name, column in xi.items()]
            if not self.shape:
                return self.wrap(columns[0])
            one_length(dict(zip(xi, columns, strict=True)), where)
            xp = arithmetic(columns)
            return kept_digits(xp.stack(xp.broadcast_arrays(*map(xp.asarray, columns)), axis=-1))
        return self.wrap(self.pack_column(xi, where))

    @plain
    def pack_column(self, xi: Any, where: str) -> Any:
        """The same for what is no dict."""
        found = contexts_of(xi, where)
        if isinstance(found, Strings):
            raise TypeError(
                f"{where} holds strings ({listed_values(found.labels)}), but contexts of {self!r} are numbers. For "
                "categories state the domain as cb.Finite([...]), with all the strings that may occur."
            )
        return found

    @plain
    def wrap(self, xi: Any) -> Any:
        """Contexts written in the one way in which they are compared: itself, but for domains that repeat."""
        return xi

    def wrapped(self, xi: Shaped[Held, "..."]) -> Shaped[Held, "..."]:
        """The same for floats, in NumPy where they came so."""
        return xi

    def unpack(self, row: Shaped[Held, "..."]) -> Any:
        """One context as the user's functions see it."""
        return row

    def embedded(self, xi: Shaped[Held, "..."]) -> Float[Held, "... k"]:
        """Coordinates in which contexts that are alike are near, and others are not."""
        return self.reference(xi)

    @plain
    def _inside_box(self, xi: Shaped[Held, "..."]) -> Bool[Any, "..."]:
        u = self.reference(xi)
        near = abs(u) <= 1 + self._slack(u.dtype)
        return near.all(axis=-1) if u.shape[-1] > 1 else near[..., 0]

    @staticmethod
    def _slack(dtype: Any) -> float:
        """How far outside (of 1) still counts as rounding."""
        return 8 * float(jnp.finfo(dtype).eps) ** 0.75

    @on_host
    def snap(self, xi: Shaped[Held, "..."], dtype: Any) -> Shaped[Any, "..."]:
        """Contexts in a floating dtype, moved back onto the domain where lower precision had moved them off it."""
        xp = module_of(xi)
        lo, hi = (xp.asarray(end, dtype) for end in self.bounds)
        return xp.clip(self.coordinates(xi).astype(dtype), lo, hi).reshape(xi.shape)


def as_floats(xi: Any) -> Any:
    """Contexts as an array of floats; whole numbers in the precision that JAX has here."""
    xi = module_of(xi).asarray(xi)
    return xi if jnp.issubdtype(xi.dtype, jnp.floating) else xi.astype(jnp.result_type(float))


def check_ends(domain: Any, several: str) -> None:
    """Raises where a domain between two scalars has none; `several` says what to use for more."""
    name, lo, hi = type(domain).__name__, domain.lo, domain.hi
    if lo.ndim or hi.ndim:
        raise ValueError(f"{name} takes two scalars, got shapes {lo.shape} and {hi.shape}. {several}")
    if not lo < hi:
        raise ValueError(f"{name} needs lo < hi, got lo={lo} and hi={hi}. Swap or widen them.")


class Interval(Domain):
    """``[lo, hi]``: a context is a scalar."""

    lo: Any = eqx.field(converter=lambda v: real_numbers(v, "Interval: lo"))
    hi: Any = eqx.field(converter=lambda v: real_numbers(v, "Interval: hi"))

    def __check_init__(self):
        check_ends(self, "For contexts that are vectors use Box(lo, hi).")

    @property
    def shape(self):
        return ()

    @property
    def bounds(self):
        return self.lo[None], self.hi[None]

    @on_host
    def contains(self, xi):
        return self._inside_box(xi)

    def __repr__(self):
        return f"Interval({self.lo}, {self.hi})"


class Box(Domain):
    """``[lo_1, hi_1] x ... x [lo_d, hi_d]``: a context has shape ``(d,)``."""

    lo: Any = eqx.field(converter=lambda v: real_numbers(v, "Box: lo"))
    hi: Any = eqx.field(converter=lambda v: real_numbers(v, "Box: hi"))

    def __check_init__(self):
        if self.lo.ndim != 1 or self.lo.shape != self.hi.shape or not self.lo.size:
            raise ValueError(
                f"Box takes two vectors of one length, got shapes {self.lo.shape} and {self.hi.shape}. For scalar "
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

    @property
    def bounds(self):
        return self.lo, self.hi

    @on_host
    def contains(self, xi):
        return self._inside_box(xi)

    def __repr__(self):
        return f"Box({self.lo.tolist()}, {self.hi.tolist()})"


class Finite(Domain):
    """Finitely many contexts: ``values`` has shape ``(m,)`` or ``(m, d)``, one context a row; or they are strings.

    Of strings, a context is the position among them, 0, 1, 2, ...; data and ``policy`` take the strings too.
    """

    values: Any
    labels: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(self, values: Any):
        if isinstance(values, str | bytes):
            raise TypeError(f"Finite takes a list of values, such as cb.Finite(['mon', 'tue']), got one: {values!r}.")
        found = contexts_of(values, "Finite: values")
        self.labels = tuple(np.asarray(found).ravel().tolist()) if isinstance(found, Strings) else None
        self.values = np.asarray(values) if self.labels is None else np.arange(len(self.labels))
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError("Finite: values must be distinct; drop the repeated ones (numpy.unique does it).")

    def __check_init__(self):
        if self.values.ndim not in (1, 2) or not self.values.size:
            raise ValueError(f"Finite takes values of shape (m,) or (m, d) with m >= 1, got shape {self.values.shape}.")
        real_numbers(self.values, "Finite: values")
        if len(np.unique(self.values, axis=0)) < len(self.values):
            raise ValueError("Finite: values must be distinct; drop the repeated ones (numpy.unique does it).")

    @property
    def shape(self):
        return self.values.shape[1:]

    @plain
    def pack_column(self, xi, where):
        found = contexts_of(xi, where)
        if not isinstance(found, Strings):
            return found
        if self.labels is None:
            raise TypeError(
                f"{where} holds strings ({listed_values(found.labels)}), but {self!r} holds numbers. State it with the "
                "strings, cb.Finite([...])."
            )
        known = {label: place for place, label in enumerate(self.labels)}
        places = np.array([known.get(label, -1) for label in found.labels])[np.asarray(found.code)]
        if np.any(places < 0):
            new = [label for label in found.labels if label not in known]
            raise ValueError(
                f"{where} holds {listed_values(new)} in {np.sum(places < 0)} of {places.size} rows, first in row "
                f"{int(np.argmax(places.ravel() < 0))}; known are {listed_values(self.labels)}. State the domain with "
                "it, cb.Finite([...]), and solve again; or drop these rows, or put a known value in its place."
            )
        return places.astype(np.int32)

    def named(self, place: int) -> str:
        """One of the values, for a sentence."""
        return repr(self.labels[place]) if self.labels is not None else str(self.values[place])

    @property
    def bounds(self):
        table = self.values.reshape(len(self.values), -1)
        return table.min(axis=0), table.max(axis=0)

    def _on_reference(self, xi: Shaped[Held, "..."]) -> tuple[Float[Any, "... d"], Float[Any, "m d"]]:
        """Contexts and values on the reference scale, in one precision."""
        xi = module_of(xi).asarray(xi)
        cut = jnp.issubdtype(xi.dtype, jnp.floating) and jnp.issubdtype(self.values.dtype, jnp.floating)
        values = module_of(xi).asarray(self.values, xi.dtype if cut else None)
        u = self.reference(xi)
        return u, self.reference(values).astype(u.dtype)

    @on_host
    def nearest(self, xi: Shaped[Held, "..."]) -> tuple[Int[Any, "..."], Float[Any, "..."]]:
        """The position among the values of the one nearest to each context, and how far that is.

        By search in an ordered list, or in a tree: a table of all distances, which compiled programs make of vectors,
        would be contexts times values large.
        """
        xp, (u, table) = module_of(xi), self._on_reference(xi)
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
        rows = u.reshape(-1, u.shape[-1])
        known: Any = np.all(np.isfinite(rows), axis=1)
        from scipy.spatial import KDTree  # takes long to import, and few need it

        far, place = KDTree(table).query(np.where(known[:, None], rows, 0), p=np.inf)
        far = np.where(known, far, np.nan).astype(u.dtype)
        return place.reshape(u.shape[:-1]), far.reshape(u.shape[:-1])

    def index(self, xi: Shaped[Held, "..."]) -> Int[Any, "..."]:
        """The position of each context among the values."""
        return self.nearest(xi)[0]

    def check_distinct(self) -> None:
        """Raises where two values cannot be distinguished in the precision at hand."""
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
        return far <= self._slack(far.dtype)

    @on_host
    def snap(self, xi, dtype):
        values = module_of(xi).asarray(self.values, dtype if jnp.issubdtype(xi.dtype, jnp.floating) else None)
        return values[self.index(xi)]

    def __repr__(self):
        return f"Finite({self.values.tolist() if self.labels is None else list(self.labels)})"
