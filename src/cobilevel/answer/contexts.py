"""Contexts coordinate by coordinate: their names and values, and the policy as a table over them."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ..ground import as_rows, double, put, unpickled
from ..inference import names_of
from ..problem import NO_STRING, Box, Domain, Finite, Frame, Interval, Mixed, Strings, enter, is_frame, read_columns


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

    def along(self, count: int) -> np.ndarray:
        """`count` values from one end to the other; in a domain without ends, over about four times its scale."""
        end = 1.0 if self.bounded else 0.9  # on the reference interval
        return np.asarray(self.part.place(np.linspace(-end, end, count)[:, None]), float)

    def label(self, value: Any) -> str:
        """One value in words: strings as they are, numbers short."""
        if self.labels is not None:
            return self.labels[round(float(value))]
        return ", ".join(f"{number:.4g}" for number in np.atleast_1d(value))

    def words(self, codes: np.ndarray) -> np.ndarray:
        """Values as a user writes them: strings where the domain has them; empty outside."""
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


def _shown(domain: Domain, form: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of contexts, one context a row, as they were given."""
    if isinstance(form, Mapping):
        shape = np.broadcast_shapes(*(np.shape(_written(column)) for column in form.values()))
        return {name: np.broadcast_to(_written(column), shape).ravel() for name, column in form.items()}
    if isinstance(form, Strings):
        return {"xi": _written(form).ravel()}
    axes = axes_of(domain)
    if len(axes) < domain.dimension:  # vectors of which there are finitely many
        axes = [ContextAxis(f"xi[{j}]", domain) for j in range(domain.dimension)]
    given, kept = (domain.coordinates(np.asarray(part).reshape(rows.shape)) for part in (form, rows))
    return {axis.name: given[:, j] if axis.labels is None else axis.words(kept[:, j]) for j, axis in enumerate(axes)}


def _written(column: Any) -> np.ndarray:
    """A column as it was given, a missing string as none."""
    if not isinstance(column, Strings):
        return np.asarray(column)
    words = np.asarray(column.labels)[np.asarray(column.code)]
    return np.where(words == NO_STRING, "", words)


def component_names(rows: Any, letter: str = "y") -> tuple[str, ...]:
    """The components of ``y``, from arrays with one more leading axis: ``y``, ``y[0]``; or by the names in ``y``,
    ``stock``, ``stock[0]``."""
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0], rows)
    if not isinstance(one, dict):
        return names_of(one, letter)
    keys = [key for (key,), _ in jax.tree_util.tree_leaves_with_path(one, is_leaf=lambda node: node is not one)]
    return tuple(name for key in keys for name in names_of(one[key.key], str(key.key)))


def policy_names(solution: Any) -> tuple[str, ...]:
    """The components of ``y``: of the policy, since coefficients have fewer under equalities."""
    domain = solution.basis.domain
    return component_names(solution.at(domain.place(np.zeros((1, domain.dimension)))))


def policy_table(solution: Any, contexts: Any) -> Any:
    """A data frame of the library that the contexts came in, or a dict of NumPy columns."""
    if hasattr(contexts, "map_partitions"):  # a data frame of dask: partition by partition, where they are
        return contexts.map_partitions(_PolicyThere(solution), meta=solution.table(contexts._meta))
    domain, frame = solution.basis.domain, Frame(contexts, "solution.table") if is_frame(contexts) else None
    form = read_columns(contexts, "solution.table: contexts", domain)
    xi = np.asarray(enter(domain, form, "solution.table: contexts").rows(domain))
    columns = _shown(domain, form, xi)
    free = lambda name: f"policy {name}" if name in columns else name
    names = policy_names(solution)
    y = as_rows(solution.at(xi)).astype(solution.basis.constant.dtype) if len(xi) else np.zeros((0, len(names)))
    results = {free(name): column for name, column in zip(names, y.T, strict=True)}
    results[free("in_domain")] = np.asarray(domain.contains(put(xi)), bool)
    if frame is not None:
        return frame.with_results(list(columns), results)
    return {**columns, **results}


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
