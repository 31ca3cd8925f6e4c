"""Contexts coordinate by coordinate: their names and values, and the policy as a table over them."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ..inference import names_of
from ..parts import unpickled
from ..precision import double
from ..problem import Box, Domain, Finite, Frame, Interval, Mixed, is_frame, one_length
from ..programs import put
from ..trees import as_rows


@dataclass(frozen=True)
class ContextAxis:
    """One coordinate of the contexts: its name, and the domain it lies in alone."""

    name: str
    part: Any

    @property
    def finite(self) -> bool:
        """Whether it takes finitely many values."""
        return isinstance(self.part, Finite)

    @property
    def bounded(self) -> bool:
        """Whether it has ends."""
        return bool(np.all(np.isfinite(self.part.bounds)))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The strings that its values represent, if any."""
        return self.part.labels if self.finite else None

    @property
    def values(self) -> np.ndarray:
        """The values, if they are finitely many; for strings, their positions."""
        return np.asarray(self.part.values, float)

    def has(self, values: Any) -> np.ndarray:
        """Whether values belong to the domain."""
        rows = np.atleast_1d(np.asarray(values, float))
        return np.asarray(self.part.contains(put(rows)), bool).reshape(np.shape(values))

    def along(self, count: int = 201) -> np.ndarray:
        """`count` values from one end to the other; in a domain without ends, over about four times its scale."""
        end = 1.0 if self.bounded else 0.9  # on the reference interval
        return np.asarray(self.part.place(np.linspace(-end, end, count)[:, None]), float)

    def label(self, value: Any) -> str:
        """One value in words: strings as they are, numbers short."""
        if self.labels is not None:
            return self.labels[round(float(value))]
        return ", ".join(f"{number:.4g}" for number in np.atleast_1d(value))

    def codes(self, column: Any) -> np.ndarray:
        """A column as numbers; strings by their position, NaN if they are not in the domain."""
        array = np.asarray(column)
        if self.labels is not None and array.dtype.kind not in "OUT":
            places = self.part.places(array, self.name)
            return places if places is array else np.where(places < 0, np.nan, places)
        if array.dtype.kind not in "OUT":
            return array
        known = {label: place for place, label in enumerate(self.labels or ())}
        return np.array([known.get(str(item), np.nan) for item in array.ravel()]).reshape(array.shape)

    def words(self, codes: np.ndarray) -> np.ndarray:
        """The inverse of ``codes``: strings where the domain has them; empty outside."""
        if self.labels is None:
            return codes
        inside = self.has(codes)
        return np.where(inside, np.asarray(self.labels)[np.where(inside, codes, 0).astype(int)], "")


def axes_of(domain: Domain) -> list[ContextAxis]:
    """The coordinates of contexts: by name where the domain has names, else ``xi``, or ``xi[0]``, ``xi[1]``."""
    if isinstance(domain, Mixed):
        return [ContextAxis(name, part) for name, part in domain.parts.items()]
    if isinstance(domain, Box):
        ends = zip(domain.lo, domain.hi, strict=True)
        return [ContextAxis(f"xi[{j}]", Interval(lo, hi)) for j, (lo, hi) in enumerate(ends)]
    return [ContextAxis("xi", domain)]


def check_names(domain: Domain, xi: Any) -> None:
    """Raises if contexts are passed by name but the domain has no names, since their order may differ."""
    if isinstance(domain, Box) and (isinstance(xi, Mapping) or is_frame(xi)):
        raise TypeError(
            f"contexts of {domain!r} have no names, so columns cannot be matched by name. Pass an array with the "
            "columns in the order used for solving, such as df[['a', 'b']].to_numpy(); or name them in the domain, "
            "cb.Mixed(a=cb.Interval(lo, hi), ...)."
        )


def columns_of(domain: Domain, contexts: Any, caller: str) -> Any:
    """The columns of a data frame that are contexts, by name; anything but a frame is returned unchanged."""
    if not is_frame(contexts):
        return contexts
    frame = Frame(contexts, caller)
    names = domain.names if isinstance(domain, Mixed) else frame.names
    frame.require(list(names), "the domain")
    return {name: frame.column(name).values for name in names}


def _context_rows(domain: Domain, contexts: Any, caller: str) -> tuple[np.ndarray, dict[str, np.ndarray], Frame | None]:
    """Contexts from an array, a dict of columns or a data frame, one per row; unknown categories are NaN.

    Returned as one array, as columns to show, and with the frame, if they came in one.
    """
    check_names(domain, contexts)
    axes = axes_of(domain)
    if len(axes) < domain.dimension:  # vectors of which there are finitely many
        axes = [ContextAxis(f"xi[{j}]", domain) for j in range(domain.dimension)]
    named, frame = isinstance(domain, Mixed), Frame(contexts, caller) if is_frame(contexts) else None
    if frame is not None:
        columns = columns_of(domain, contexts, caller)
    elif isinstance(contexts, Mapping):
        columns = {name: np.atleast_1d(_table(column, caller)) for name, column in contexts.items()}
    else:
        array = axes[0].codes(_table(contexts, caller))
        if array.shape[array.ndim - len(domain.shape) :] != domain.shape:
            raise ValueError(f"{caller}: contexts of {domain!r} must end in shape {domain.shape}, got {array.shape}.")
        rows = array.reshape(-1, *domain.shape)
        parts: Any = domain.coordinates(rows)  # pyright: ignore[reportArgumentType]
        return rows, {axis.name: axis.words(parts[:, j]) for j, axis in enumerate(axes)}, None
    chosen = {axis.name: columns[axis.name] for axis in axes if axis.name in columns} if named else columns
    if len(chosen) != len(axes):
        wanted = ", ".join(repr(axis.name) for axis in axes)
        raise ValueError(
            f"{caller}: contexts of {domain!r} have {len(axes)} column{'s'[: len(axes) != 1]} ({wanted}), got "
            f"{len(chosen)}: {', '.join(map(repr, chosen))}. Pass only the contexts."
        )
    one_length(chosen, f"{caller}: contexts")
    coded = [axis.codes(column).astype(float) for axis, column in zip(axes, chosen.values(), strict=True)]
    table = np.stack(np.broadcast_arrays(*coded), axis=-1)
    return table if domain.shape else table[:, 0], columns, frame


def _table(values: Any, caller: str) -> np.ndarray:
    """Contexts, or one column of them, as an array of NumPy."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{caller}: contexts must be an array, a dict of columns or a data frame: {error}") from error


def component_names(rows: Any, letter: str = "y") -> tuple[str, ...]:
    """The components of ``y``, from arrays with one more leading axis: ``y``, ``y[0]``; or by the names in ``y``,
    ``stock``, ``stock[0]``."""
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0], rows)
    if not isinstance(one, dict):
        return names_of(one, letter)
    return tuple(name for key in sorted(one) for name in names_of(one[key], str(key)))


def policy_names(solution: Any) -> tuple[str, ...]:
    """The components of ``y``: of the policy, since coefficients have fewer under equalities."""
    domain = solution.basis.domain
    return component_names(solution.at(domain.place(np.zeros((1, domain.dimension)))))


def policy_table(solution: Any, contexts: Any) -> Any:
    """A data frame of the library that the contexts came in, or a dict of NumPy columns."""
    if hasattr(contexts, "map_partitions"):  # a data frame of dask: partition by partition, where they are
        return contexts.map_partitions(_PolicyThere(solution), meta=solution.table(contexts._meta))
    domain = solution.basis.domain
    xi, columns, frame = _context_rows(domain, contexts, "solution.table")
    free = lambda name: f"policy {name}" if name in columns else name
    names = policy_names(solution)
    y = as_rows(solution.at(xi)).astype(solution.basis.constant.dtype) if len(xi) else np.zeros((0, len(names)))
    results = {free(name): column for name, column in zip(names, y.T, strict=True)}
    results[free("in_domain")] = np.asarray(domain.contains(put(xi)), bool)
    if frame is not None:
        return frame.with_results(list(columns), results)
    whole = {
        name: np.broadcast_to(column, len(xi)) if np.size(column) == 1 else column for name, column in columns.items()
    }
    return {**whole, **results}


class _PolicyThere:
    """``solution.table`` on a worker of dask, in the precision it has here."""

    def __init__(self, solution: Any):
        import cloudpickle

        bare = {"inference": None, "policy_noise": None, "objectives": None, "state": None}
        self.content, self.wide = cloudpickle.dumps(replace(solution, **bare)), solution.basis.constant.dtype == float

    def __call__(self, frame: Any) -> Any:
        solution = unpickled(self.content)
        with double() if self.wide else nullcontext():
            return solution.table(frame)
