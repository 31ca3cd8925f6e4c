"""Contexts of several parts, each of its own kind and under its own name; and what single precision would lose."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..ground import REMEDY, arithmetic, module_of, on_host, plain
from .domain import LOST_SHARE, Domain, Interval
from .finite import Finite
from .input_checks import concrete, listed_values

_CROWDED = 0.05  # of an interval that holds half of the contexts: a polynomial there says little of these
_STILL_DISTINCT = 0.99  # of the distinct contexts, that must stay so


class Mixed(Domain):
    """Several contexts by name, such as ``Mixed(weather=Interval(0, 1), hour=Periodic(0, 24), day=Finite(["mon",
    "tue"]))``.

    Functions see one context as a dict of scalars, with strings as their positions among the values of ``Finite``.
    Data are dicts of columns. Within the library contexts are arrays of shape ``(n, d)``, one column per part. Names
    that are not valid keywords go in a dict, ``Mixed({"wind speed": Interval(0, 30)})``.

    **Arguments:**

    - `parts`: a dict of domains by name; or pass them as keywords, `components`.

    **Example:**

    >>> domain = cb.Mixed(weather=cb.Interval(0, 1), day=cb.Finite(["mon", "tue"]))
    >>> domain.names
    ('weather', 'day')
    """

    names: tuple[str, ...] = eqx.field(static=True)
    components: tuple[Domain, ...]

    def __init__(self, parts: Mapping[str, Domain] | None = None, /, **components: Domain):
        if parts is not None and not isinstance(parts, Mapping):
            raise TypeError(f"Mixed takes its parts by name, Mixed(hour=Periodic(0, 24)), got {parts!r}.")
        named = [*(parts or {}).items(), *components.items()]
        self.names, self.components = tuple(str(name) for name, _ in named), tuple(part for _, part in named)

    def __check_init__(self):
        if not self.names:
            raise ValueError("Mixed needs at least one part, such as Mixed(hour=Periodic(0, 24)).")
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise ValueError(f"Mixed: more than one part is called {twice[0]!r}; rename them.")
        for name, part in self.parts.items():
            if not isinstance(part, Domain) or part.shape:
                raise TypeError(
                    f"Mixed: {name} is {part!r}, but each part is a scalar, an Interval, a Periodic, an Unbounded or a "
                    f"Finite. List the coordinates of a vector one by one, Mixed({name}_1=..., {name}_2=...)."
                )

    @property
    def shape(self):
        return (len(self.names),)

    @property
    def bounds(self):
        lo, hi = zip(*(part.bounds for part in self.components), strict=True)
        return np.concatenate(lo), np.concatenate(hi)

    @property
    def parts(self) -> dict[str, Domain]:
        """The parts by name."""
        return dict(zip(self.names, self.components, strict=True))

    @plain
    def _each(self, how: str, apply: Callable[[Domain, Any], Any], xi: Any) -> Any:
        """What a function of a part and its column gives, put together: in NumPy, unless one of them is JAX's."""
        found = [apply(part, xi[..., j]) for j, part in enumerate(self.components)]
        xp = jnp if any(module_of(column) is jnp for column in found) else np
        return getattr(xp, how)([xp.asarray(column) for column in found], axis=-1)

    @on_host
    def contains(self, xi):
        return self._each("stack", lambda part, column: part.contains(column), xi).all(axis=-1)

    @on_host
    def reference(self, xi):
        return self._each("concatenate", lambda part, column: part.reference(column), xi)

    @on_host
    def place(self, u):
        """The inverse of ``reference``; between categories, the nearest."""

        def one(part, column):
            placed = part.place(column[..., None])
            return (part.snap(placed, placed.dtype) if isinstance(part, Finite) else placed).astype(u.dtype)

        return self._each("stack", one, u)

    @on_host
    def snap(self, xi, dtype):
        return self._each("stack", lambda part, column: part.snap(column, dtype), xi)

    @on_host
    def embedded(self, xi):
        """Circles as circles, and categories far apart, so that the neighbours of a context share its categories."""
        apart = 2 * 2 * len(self.names) ** 0.5  # twice the diameter of the reference cube

        def one(part, column):
            if not isinstance(part, Finite):
                return part.embedded(column)
            return (apart * part.index(column)[..., None]).astype(column.dtype)

        return self._each("concatenate", one, xi)

    def columns(self, xi, where=""):
        xi = np.asarray(xi) if arithmetic(xi) is np else xi
        return [(part, xi[..., j], f"{where}[{name!r}]") for j, (name, part) in enumerate(self.parts.items())]

    def unpack(self, row):
        whole = lambda part: isinstance(part, Finite) and jnp.issubdtype(part.values.dtype, jnp.integer)
        return {
            name: jnp.round(row[..., j]).astype(int) if whole(part) else row[..., j]
            for j, (name, part) in enumerate(self.parts.items())
        }

    def __repr__(self):
        return f"Mixed({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"


class Unpacked(eqx.Module):
    """A user's function on contexts as the library keeps them; `place` is that of ``xi`` among its arguments."""

    function: Callable
    domain: Domain
    place: int = eqx.field(static=True, default=2)

    def __call__(self, *args: Any) -> Any:
        before, after = args[: self.place], args[self.place + 1 :]
        return self.function(*before, self.domain.unpack(args[self.place]), *after)


def never_seen(domain: Domain, xi: Any) -> str:
    """Which values of categories no context has, in words; empty if there are none."""
    lines = []
    for (part, column, _), name in zip(domain.columns(xi), getattr(domain, "names", [""]), strict=True):
        if isinstance(part, Finite) and (part is not domain or part.labels is not None):
            seen = set(np.asarray(part.index(np.asarray(column))).ravel().tolist())
            unseen = [value for k, value in enumerate(part.labels or part.values.tolist()) if k not in seen]
            lines += [f"{name} {listed_values(unseen)}".strip()] if unseen else []
    return "; ".join(lines)


def crowded(domain: Domain, xi: Any) -> str:
    """Which numbers crowd in a small part of their interval, as skewed ones do, in words; empty if none do."""
    lines = []
    for (part, column, _), name in zip(domain.columns(xi), getattr(domain, "names", [""]), strict=True):
        values = np.unique(np.asarray(column, float)) if isinstance(part, Interval) else np.zeros(0)
        if len(values) * _CROWDED >= 1:  # of fewer, nothing is said
            share = np.subtract(*np.quantile(values, [0.75, 0.25])) / float(part.hi - part.lo)
            what = f"values of {name}" if name else "contexts"
            remedy = "Pass their logarithm, or use" if values[0] > 0 else "Use"
            said = f"half of the {what} lie within {share:.1%} of {part!r}. {remedy} cb.Unbounded.fitted(values)."
            lines += [said] if share < _CROWDED else []
    return " ".join(lines)


def check_contexts_kept(domain: Domain, xi: Any, where: str) -> None:
    """Raises if single precision rounds contexts by a considerable share of the domain, or merges different ones; of
    contexts yet to be drawn, by the spacing of its numbers on the domain."""
    known = xi is not None
    if known and (not concrete(xi) or xi.dtype != np.float64 or xi.shape[1:] != domain.shape):
        return
    ends = np.stack(np.broadcast_arrays(*domain.bounds)) if domain.shape else np.concatenate(domain.bounds)
    for part, column, name in domain.columns(np.asarray(xi) if known else ends, where):
        if isinstance(part, Finite):
            continue  # values that cannot be distinguished are refused there
        for lo, hi, side in zip(*part.bounds, column.reshape(len(column), -1).T, strict=True):
            width = float(hi - lo) if np.isfinite(hi - lo) else float(part.scale)
            if not known:
                apart = float(np.max(np.spacing(np.abs(side).astype(np.float32)))) if np.isfinite(side).all() else 0.0
                if apart / 2 > LOST_SHARE * width:
                    raise ValueError(f"{name}: single-precision numbers are {apart:g} apart on {part!r}. {REMEDY}")
                continue
            rounded = side.astype(np.float32).astype(float)
            gap = np.abs(side - rounded)
            merged = len(np.unique(rounded)) < _STILL_DISTINCT * len(np.unique(side))
            much = gap.max() > 8 * np.finfo(np.float32).eps * width  # more than contexts of the size of the domain lose
            if much and (merged or gap.max() > LOST_SHARE * width):
                row = int(np.argmax(gap))
                raise ValueError(
                    f"{name}: in single precision contexts lose digits that matter on {part!r}: {float(side[row])!r} "
                    f"in row {row} becomes {float(rounded[row])!r}. {REMEDY}"
                )
