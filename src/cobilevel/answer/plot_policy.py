"""The policy over one or two contexts, the others held, drawn with its 95% interval and with the data."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..problem import joint_contexts
from .contexts import ContextAxis, axes_of, coordinates_of, from_coordinates
from .drawing import COLOURS, DOTS, shown_figure, tidy
from .table import component_names, components_at, policy_names
from .uncertainty import QUANTILE

_POINTS = 201  # on a line
_SIDE = 61  # of a map
_PANELS = 4  # components of y that have one each
_MOST_LABELS = 12  # categories that are named on an axis
_TITLE_WIDTH = 70  # characters of a line of the title


@dataclass(frozen=True)
class Slice:
    """The policy over the contexts in `over`, all others held at `held`; `said` is that in words."""

    solution: Any
    axes: list[ContextAxis]
    over: list[ContextAxis]
    held: dict[str, float]
    said: str

    def at(self, *columns: np.ndarray) -> np.ndarray:
        """Contexts with these values along `over`."""
        given = dict(zip((axis.name for axis in self.over), columns, strict=True))
        return from_coordinates(
            self.solution.basis.domain, [given.get(a.name, self.held.get(a.name)) for a in self.axes]
        )

    def values(self, *columns: np.ndarray) -> np.ndarray:
        """The components of the policy there."""
        return components_at(self.solution, self.at(*columns))

    def reach(self, *columns: np.ndarray) -> np.ndarray | None:
        """Half of the 95% interval there; ``None`` where there is none."""
        try:
            errors = self.solution.policy_standard_error(self.at(*columns))
        except ValueError:
            return None
        return QUANTILE * np.concatenate([leaf.reshape(len(columns[0]), -1) for leaf in jax.tree.leaves(errors)], 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the components of ``y``."""
        return policy_names(self.solution)


def plot_policy(solution: Any, over: Any, at: Mapping[str, Any] | None, samples: Any) -> Any:
    """A figure of the policy over one context (lines, or points of categories) or two (maps, or lines by category)."""
    observed = (
        None if samples is None else coordinates_of(solution.basis.domain, joint_contexts(samples, "plot: samples"))
    )
    cut = _slice(solution, over, dict(at or {}), observed)
    data = None if samples is None else _like_policy(solution, samples)
    finite = [axis.finite for axis in cut.over]
    shown = len(cut.names) if len(cut.over) == 1 else min(len(cut.names), _PANELS)
    figure = shown_figure(7, 4.4) if len(cut.over) == 1 else shown_figure(1.2 + 5.2 * shown, 4.4)
    place = [] if observed is None else [observed[:, cut.axes.index(axis)] for axis in cut.over]
    if len(cut.over) == 1:
        axis = figure.add_subplot()
        (_draw_categories if finite[0] else _draw_lines)(axis, cut, place, data)
        tidy(axis)
    else:
        panels = figure.subplots(1, shown, squeeze=False)[0]
        draw = _draw_by_category if any(finite) and not all(finite) else _draw_map
        for j, axis in enumerate(panels):
            draw(figure, axis, cut, place, j)
    left = len(cut.names) - (min(shown, len(COLOURS)) if len(cut.over) == 1 else shown)
    more = f" (without {left} more components)" if left > 0 else ""
    title = f"Policy over {' and '.join(axis.name for axis in cut.over)}{more}{cut.said}"
    figure.suptitle(textwrap.fill(title, _TITLE_WIDTH * max(1, shown if len(cut.over) == 2 else 1)), fontsize="medium")
    return figure


def _slice(solution: Any, over: Any, at: dict[str, Any], observed: np.ndarray | None) -> Slice:
    axes = axes_of(solution.basis.domain)
    names = [axis.name for axis in axes]
    if over is None:
        free = [name for name in names if name not in at]
        over = free if 0 < len(free) <= 2 else free[:1] or names[:1]
    wanted = [over] if isinstance(over, str) else list(over)
    for argument, given in (("over", wanted), ("at", at)):
        for name in given:
            if name not in names:
                known = ", ".join(map(repr, names))
                raise ValueError(f"plot: {argument} names {name!r}, but the contexts are {known}.")
    both = [name for name in wanted if name in at]
    if both or not 1 <= len(set(wanted)) == len(wanted) <= 2:
        held = f"; {both[0]!r} is also held by at" if both else ""
        raise ValueError(f"plot: over takes one or two contexts out of {names}, got {over!r}{held}.")
    held, said = {}, []
    for j, axis in enumerate(axes):
        if axis.name in wanted:
            continue
        if axis.name in at:
            value, why = _held_value(axis, at[axis.name]), ""
        else:
            value, why = _usual(axis, None if observed is None else observed[:, j])
        held[axis.name] = value
        said.append(f"{axis.name} = {axis.label(value)}{why}")
    words = f", at {', '.join(said)}" if said else ""
    return Slice(solution, axes, [axes[names.index(name)] for name in wanted], held, words)


def _held_value(axis: ContextAxis, given: Any) -> float:
    value = axis.codes(np.asarray(given)).astype(float)
    if value.ndim or not axis.has(value):
        raise ValueError(f"plot: at holds {axis.name} at {given!r}, which is not in {axis.part!r}.")
    return float(value)


def _usual(axis: ContextAxis, observed: np.ndarray | None) -> tuple[float, str]:
    """The median, or the most frequent category; without samples the middle of the domain, or its first value."""
    if observed is None:
        return float(axis.values[0] if axis.finite else axis.along(3)[1]), " (first)" if axis.finite else " (middle)"
    if not axis.finite:
        return float(np.median(observed)), " (median)"
    values, counts = np.unique(observed, return_counts=True)
    return float(values[np.argmax(counts)]), " (most frequent)"


def _like_policy(solution: Any, samples: Any) -> dict[str, np.ndarray] | None:
    """The noise as observations of ``y``, component by component, where it has the shapes of ``y``."""
    eta, W = jax.tree.leaves(getattr(samples, "eta", None)), jax.tree.leaves(solution.W)
    if [np.shape(leaf)[1:] for leaf in eta] != [np.shape(leaf)[1:] for leaf in W] or getattr(samples, "crossed", True):
        return None
    table = np.concatenate([np.asarray(leaf, float).reshape(len(leaf), -1) for leaf in eta], axis=1)
    return dict(zip(component_names(samples.eta, "eta"), table[:DOTS].T, strict=True))


def _draw_lines(axis: Any, cut: Slice, place: list[np.ndarray], data: dict[str, np.ndarray] | None) -> None:
    grid = cut.over[0].along(_POINTS)
    values, reach = cut.values(grid), cut.reach(grid)
    for j, (name, colour) in enumerate(zip(cut.names, COLOURS, strict=False)):
        if data is not None:
            _dots(axis, place[0][:DOTS], data, j, colour)
        if reach is not None:
            label = "95% interval, given x" if not j else None
            low, high = values[:, j] - reach[:, j], values[:, j] + reach[:, j]
            axis.fill_between(grid, low, high, color=colour, alpha=0.2, lw=0, label=label)
        axis.plot(grid, values[:, j], color=colour, lw=1.6, label=name)
    axis.set(xlabel=cut.over[0].name, ylabel="policy", xlim=(grid[0], grid[-1]))
    axis.legend(frameon=False)


def _dots(axis: Any, x: np.ndarray, data: dict[str, np.ndarray], j: int, colour: str) -> None:
    """The observations of one component."""
    name = list(data)[j]
    label, y = f"samples of {name}", data[name]
    axis.plot(x, y, ".", ms=4, color=colour, alpha=0.3, mew=0, label=label, zorder=1)


def _draw_categories(axis: Any, cut: Slice, place: list[np.ndarray], data: dict[str, np.ndarray] | None) -> None:
    held = cut.over[0].values
    values, reach, where = cut.values(held), cut.reach(held), np.arange(len(held))
    count = min(len(cut.names), len(COLOURS))
    for j, (name, colour) in enumerate(zip(cut.names, COLOURS, strict=False)):
        shift = 0.5 * ((j + 0.5) / count - 0.5)
        if data is not None and held.ndim == 1:
            spots = np.searchsorted(np.sort(held), place[0][:DOTS])
            spots = np.argsort(held)[np.minimum(spots, len(held) - 1)] + shift + np.linspace(-0.1, 0.1, len(spots))
            _dots(axis, spots, data, j, colour)
        bars = None if reach is None else reach[:, j]
        label = f"{name}, with 95% interval given x" if reach is not None and not j else name
        axis.errorbar(where + shift, values[:, j], bars, fmt="o", ms=3.5, capsize=5, color=colour, label=label)
    _name_categories(axis.xaxis, cut.over[0])
    axis.set(xlabel=cut.over[0].name, ylabel="policy", xlim=(-0.6, len(held) - 0.4))
    axis.legend(frameon=False)


def _name_categories(side: Any, axis: ContextAxis) -> None:
    """Names at the ticks; of many, every other one or fewer."""
    held = axis.values
    step = -(-len(held) // _MOST_LABELS)
    labels = [axis.label(value) for value in held[::step]]
    turn = {"rotation": 45, "ha": "right"} if side.axis_name == "x" and sum(map(len, labels)) > _TITLE_WIDTH else {}
    side.set_ticks(np.arange(len(held))[::step], labels, **turn)


def _draw_by_category(figure: Any, axis: Any, cut: Slice, place: list[np.ndarray], j: int) -> None:
    """Lines along the context that is a number, one for each category of the other."""
    line, category = sorted(cut.over, key=lambda one: one.finite)
    grid = line.along(_POINTS)
    for value, colour in zip(category.values, COLOURS, strict=False):
        fixed = np.full(len(grid), value)
        columns = (grid, fixed) if cut.over[0] is line else (fixed, grid)
        values, reach = cut.values(*columns)[:, j], cut.reach(*columns)
        if reach is not None:
            axis.fill_between(grid, values - reach[:, j], values + reach[:, j], color=colour, alpha=0.15, lw=0)
        axis.plot(grid, values, color=colour, lw=1.6, label=category.label(value))
    more = len(category.values) - len(COLOURS)
    heading = category.name if more <= 0 else f"{category.name} (without {more} more)"
    axis.set(xlabel=line.name, ylabel=cut.names[j], xlim=(grid[0], grid[-1]))
    axis.legend(frameon=False, title=heading, fontsize="small")
    tidy(axis)


def _draw_map(figure: Any, axis: Any, cut: Slice, place: list[np.ndarray], j: int) -> None:
    """A map of one component over two contexts, both of them numbers or both categories."""
    sides = [one.values if one.finite else one.along(_SIDE) for one in cut.over]
    x, y = (table.ravel() for table in np.meshgrid(*sides, indexing="ij"))
    z = cut.values(x, y)[:, j].reshape(len(sides[0]), len(sides[1])).T
    if cut.over[0].finite:
        drawn = axis.pcolormesh(np.arange(len(sides[0])), np.arange(len(sides[1])), z, cmap="viridis")
        _name_categories(axis.xaxis, cut.over[0])
        _name_categories(axis.yaxis, cut.over[1])
    else:
        drawn = axis.contourf(sides[0], sides[1], z, levels=16, cmap="viridis")
        if place:
            axis.plot(place[0][:DOTS], place[1][:DOTS], ".", ms=2, color="white", alpha=0.4, mew=0)
    figure.colorbar(drawn, ax=axis, label=cut.names[j])
    axis.set(xlabel=cut.over[0].name, ylabel=cut.over[1].name)
