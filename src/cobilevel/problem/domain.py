"""Where contexts live: domains, and their map to the reference cube ``[-1, 1]^d``, on which bases are written."""

import math
from abc import abstractmethod
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float, Shaped

from ..ground import Held, kept_digits, module_of, on_host, plain
from .input_checks import Strings, ascending, listed_values, plain_whole, real_numbers, slack

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
        found = as_floats(column)
        if found.dtype.itemsize < 4:  # of so few digits, what is at an end of the domain is there
            ends, inside = self.snap(column, np.float32), self._whole(self.contains(column))
            found = module_of(found).where(inside, ends, found.astype(np.float32))
        found = self.wrap(found)
        return column if found is column else kept_digits(found)

    def _whole(self, inside: Any) -> Any:
        """What is known of each context, for each of its numbers."""
        return inside[..., None] if self.shape else inside

    @plain
    def wrap(self, xi: Shaped[Held, "..."]) -> Shaped[Held, "..."]:
        """Contexts in the form in which they are compared: unchanged, except in periodic domains."""
        return xi

    def columns(self, xi: Any, where: str = "") -> list[tuple[Any, Any, str]]:
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

    **Arguments:**

    - `lo`, `hi`: the ends.
    - `breaks`: where policies may jump, as at the begin and the end of the peak hours: each piece, ``[0, 7)``,
      ``[7, 10)`` and ``[10, 24]`` of ``Interval(0, 24, breaks=(7, 10))``, has a copy of the basis (``Piecewise``).

    **Example:**

    >>> domain = cb.Interval(0.0, 10.0)
    >>> domain.contains(np.array([5.0, 11.0]))
    array([ True, False])
    """

    breaks: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, lo: Any, hi: Any, breaks: Any = ()):
        super().__init__(lo, hi)
        self.breaks = ascending(breaks, "Interval: breaks")

    def __check_init__(self):
        self._check_ends("For contexts that are vectors use Box(lo, hi).")
        if self.breaks and not self.lo < self.breaks[0] <= self.breaks[-1] < self.hi:
            raise ValueError(
                f"Interval: breaks must lie between lo={self.lo} and hi={self.hi}, got {self.breaks}. The ends need no "
                "break: leave them out."
            )

    def __repr__(self):
        breaks = f", breaks={self.breaks}" if self.breaks else ""
        return f"Interval({self.lo.tolist()}, {self.hi.tolist()}{breaks})"


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
        xp, xi = module_of(xi), self.wrap(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        return xp.where(xp.isfinite(xi), (xi - lo) / (hi - lo), xp.asarray(np.nan, xi.dtype))

    @on_host
    def reference(self, xi):
        return 2 * self._turn(xi)[..., None] - 1

    @on_host
    def wrap(self, xi):
        """Into one period; NaN where the digits of a number do not say where in a period it lies."""
        xp, xi = module_of(xi), as_floats(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        inside, lost = (xi >= lo) & (xi < hi), abs(xi) * float(jnp.finfo(xi.dtype).eps) > LOST_SHARE * (hi - lo)
        wrapped = lo + xp.mod(xi - lo, hi - lo)
        wrapped = xp.where(lost, xp.asarray(np.nan, xi.dtype), xp.where(wrapped < hi, wrapped, lo))
        return xp.where(inside | ~xp.isfinite(xi), xi, wrapped)

    @plain
    def coded(self, column, where, data=False):
        exact = not isinstance(column, Strings | Tracer) and column.dtype.kind in "biu"
        if exact and self.lo == round(lo := float(self.lo)) and self.hi == round(hi := float(self.hi)):
            column = np.mod(plain_whole(np.asarray(column), where).astype(np.int64) - int(lo), int(hi - lo)) + int(lo)
        found = super().coded(np.asarray(column, float) if exact else column, where, data)
        found = kept_digits(np.asarray(found).astype(jnp.result_type(float))) if exact else found
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
        """Center and scale from data, robust to a few outliers: the median, and twice the spread estimated from the
        median distance to it."""
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
