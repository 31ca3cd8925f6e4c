"""The policy over one or two contexts, the others held, with its 95% interval and the data; and what all figures share.

Matplotlib is imported where it is used, since it takes seconds to load; no backend is chosen.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..ground import as_rows, needed
from ..inference import QUANTILE
from ..problem import Box, Mixed, enter
from ..study import joint_contexts
from .contexts import ContextAxis, axes_of, component_names, policy_names

COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#edae49", "#a0a0a0", "#5c5c5c", "#6a4c93", "#00798c")
DOTS = 400  # observations shown: more would hide the curves
DPI = 150
_LINE = 70  # characters that fit across one panel


def shown_figure(width: float | int, height: float | int) -> Any:
    """A figure by pyplot, so that notebooks and ``plt.show`` show it."""
    return _matplotlib("pyplot").figure(figsize=(width, height), layout="constrained")


def written_figure(width: float | int, height: float | int) -> Any:
    """A figure that is only written to a file: pyplot, whose backend is the user's, is not touched."""
    return _matplotlib("figure").Figure(figsize=(width, height), layout="constrained")


def _matplotlib(part: str) -> Any:
    return needed(f"matplotlib.{part}", "figures need", "plots")


def tidy(*axes: Any) -> None:
    """Without the frame on the sides where nothing is read off."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class Slice:
    """The policy over the contexts in `over`, all others held at `held`; `said` is that in words.

    `place`: where the samples lie, one array for each of `over`, if there are samples; of these the first are shown.
    """

    solution: Any
    axes: list[ContextAxis]
    over: list[ContextAxis]
    held: dict[str, float]
    said: str
    place: list[np.ndarray]

    def along(self, axis: ContextAxis, count: int = 201) -> np.ndarray:
        """Values from one end of a context to the other; if it has no ends, over most of the samples."""
        if axis.bounded or not self.place:
            return axis.along(count)
        seen = self.place[[one.name for one in self.over].index(axis.name)]
        return np.linspace(*np.quantile(seen, [0.005, 0.995]), count)

    def at(self, *columns: np.ndarray, interval: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        """The components of the policy along `over`, and half of their 95% intervals, if there are any."""
        given = self.held | dict(zip((axis.name for axis in self.over), columns, strict=True))
        xi = [given[axis.name] for axis in self.axes]
        vectors = isinstance(self.solution.basis.domain, Box | Mixed)
        xi = np.stack(np.broadcast_arrays(*xi), axis=-1) if vectors else xi[0]
        try:
            reach = QUANTILE * as_rows(self.solution.standard_error_at(xi)) if interval else None
        except ValueError:
            reach = None
        return as_rows(self.solution.at(xi)), reach

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the components of ``y``."""
        return policy_names(self.solution)


def plot_policy(solution: Any, over: Any, at: Mapping[str, Any] | None, samples: Any, most_panels: int = 4) -> Any:
    """A figure of the policy over one context (lines, or points of categories) or two (maps, or lines by category)."""
    if not isinstance(at, Mapping | None):
        raise TypeError(f"plot: at takes a dict of values by name, such as {{'hour': 8}}, got {type(at).__name__}.")
    if not isinstance(over, str | list | tuple | None):
        raise TypeError(f"plot: over takes the name of a context, or a list of two, got {over!r}.")
    cut = _slice(solution, over, dict(at or {}), samples)
    if len(cut.over) == 1:
        panels, shown, figure = 1, min(len(cut.names), len(COLOURS)), shown_figure(7, 4.4)
        axis = figure.add_subplot()
        (_draw_categories if cut.over[0].finite else _draw_lines)(axis, cut, _like_policy(solution, samples))
        axis.set(xlabel=cut.over[0].name, ylabel="policy")
        axis.legend(frameon=False)
        tidy(axis)
    else:
        panels = shown = min(len(cut.names), most_panels)
        figure = shown_figure(1.2 + 5.2 * shown, 4.4)
        draw = _draw_by_category if cut.over[0].finite != cut.over[1].finite else _draw_map
        for j, axis in enumerate(figure.subplots(1, shown, squeeze=False)[0]):
            draw(figure, axis, cut, j)
    left = len(cut.names) - shown
    more = f" (without {left} more components)" if left > 0 else ""
    title = f"Policy over {' and '.join(axis.name for axis in cut.over)}{more}{cut.said}"
    figure.suptitle(textwrap.fill(title, _LINE * panels), fontsize="medium")
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)  # names and categories are the user's: "$1 to $2" is no formula
    return figure


def _slice(solution: Any, over: Any, at: dict[str, Any], samples: Any) -> Slice:
    domain, observed = solution.basis.domain, None
    if samples is not None:
        seen = enter(domain, joint_contexts(samples, "plot: samples"), "samples: xi", data=True)
        observed = domain.coordinates(np.asarray(seen.values, float)).T
    axes = axes_of(domain)
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
        raise ValueError(f"plot: over takes one or two of the contexts {names}, got {over!r}{held}.")
    held, said = {}, []
    for j, axis in enumerate(axes):
        if axis.name not in wanted:
            held[axis.name], why = _held_value(axis, at, None if observed is None else observed[j])
            said.append(f"{axis.name} = {axis.label(held[axis.name])}{why}")
    places = [names.index(name) for name in wanted]
    dots = [] if observed is None else [observed[j] for j in places]
    return Slice(solution, axes, [axes[j] for j in places], held, f", at {', '.join(said)}" if said else "", dots)


def _held_value(axis: ContextAxis, at: dict[str, Any], observed: np.ndarray | None) -> tuple[float, str]:
    """The value asked for; else the median, or the most frequent category; without samples the middle of the domain, or
    its first value. And why, in words."""
    if axis.name in at:
        value = np.asarray(enter(axis.part, at[axis.name], f"plot: at[{axis.name!r}]").values, float)
        if value.ndim or not axis.has(value):
            raise ValueError(f"plot: at holds {axis.name} at {at[axis.name]!r}, which is not in {axis.part!r}.")
        return float(value), ""
    if observed is None:
        return (float(axis.values[0]), " (first)") if axis.finite else (float(axis.along(3)[1]), " (middle)")
    if not axis.finite:
        return float(np.median(observed)), " (median)"
    values, counts = np.unique(observed, return_counts=True)
    return float(values[np.argmax(counts)]), " (most frequent)"


def _like_policy(solution: Any, samples: Any) -> list[tuple[str, np.ndarray]] | None:
    """The noise as observations of ``y``, component by component, where it has the shapes of ``y``."""
    eta, W = jax.tree.leaves(getattr(samples, "eta", None)), jax.tree.leaves(solution.W)
    if [np.shape(leaf)[1:] for leaf in eta] != [np.shape(leaf)[1:] for leaf in W] or getattr(samples, "crossed", True):
        return None
    return list(zip(component_names(samples.eta, "eta"), as_rows(eta)[:DOTS].T, strict=True))


def _dots(axis: Any, x: np.ndarray, data: tuple[str, np.ndarray], colour: str) -> None:
    """The observations of one component."""
    axis.plot(x, data[1], ".", ms=4, color=colour, alpha=0.3, mew=0, label=f"samples of {data[0]}", zorder=1)


def _curve(axis: Any, grid: np.ndarray, values: np.ndarray, reach: np.ndarray | None, j: int, **style: Any) -> None:
    """One component with its interval."""
    y = values[:, j]
    if reach is not None:
        axis.fill_between(grid, y - reach[:, j], y + reach[:, j], color=style["color"], alpha=0.2, lw=0)
    axis.plot(grid, y, lw=1.6, **style)


def _draw_lines(axis: Any, cut: Slice, data: list[tuple[str, np.ndarray]] | None) -> None:
    grid = cut.along(cut.over[0])
    values, reach = cut.at(grid)
    for j, (name, colour) in enumerate(zip(cut.names, COLOURS, strict=False)):
        if data is not None:
            _dots(axis, cut.place[0][:DOTS], data[j], colour)
        _curve(axis, grid, values, reach, j, color=colour, label=name)
    if reach is not None:
        axis.collections[0].set_label("95% interval, given x")
    axis.set(xlim=(grid[0], grid[-1]))


def _draw_categories(axis: Any, cut: Slice, data: list[tuple[str, np.ndarray]] | None) -> None:
    held = cut.over[0].values
    (values, reach), where = cut.at(held), np.arange(len(held))
    count = min(len(cut.names), len(COLOURS))
    for j, (name, colour) in enumerate(zip(cut.names, COLOURS, strict=False)):
        shift = 0.5 * ((j + 0.5) / count - 0.5)
        if data is not None and held.ndim == 1:
            spots = np.searchsorted(np.sort(held), cut.place[0][:DOTS])
            spots = np.argsort(held)[np.minimum(spots, len(held) - 1)] + shift + np.linspace(-0.1, 0.1, len(spots))
            _dots(axis, spots, data[j], colour)
        bars = None if reach is None else reach[:, j]
        label = f"{name}, with 95% interval given x" if reach is not None and not j else name
        axis.errorbar(where + shift, values[:, j], bars, fmt="o", ms=3.5, capsize=5, color=colour, label=label)
    _name_categories(axis.xaxis, cut.over[0])
    axis.set(xlim=(-0.6, len(held) - 0.4))


def _name_categories(side: Any, axis: ContextAxis, most: int = 12) -> None:
    """Names at the ticks; of many, every other one or fewer."""
    step = -(-len(axis.values) // most)
    labels = [axis.label(value) for value in axis.values[::step]]
    turn = {"rotation": 45, "ha": "right"} if side.axis_name == "x" and sum(map(len, labels)) > _LINE else {}
    side.set_ticks(np.arange(len(axis.values))[::step], labels, **turn)


def _draw_by_category(figure: Any, axis: Any, cut: Slice, j: int) -> None:
    """Lines along the context that is a number, one for each category of the other."""
    line, category = sorted(cut.over, key=lambda one: one.finite)
    grid = cut.along(line)
    for value, colour in zip(category.values, COLOURS, strict=False):
        fixed = np.full(len(grid), value)
        values, reach = cut.at(*((grid, fixed) if cut.over[0] is line else (fixed, grid)))
        _curve(axis, grid, values, reach, j, color=colour, label=category.label(value))
    more = len(category.values) - len(COLOURS)
    heading = category.name if more <= 0 else f"{category.name} (without {more} more)"
    axis.set(xlabel=line.name, ylabel=cut.names[j], xlim=(grid[0], grid[-1]))
    axis.legend(frameon=False, title=heading, fontsize="small")
    tidy(axis)


def _draw_map(figure: Any, axis: Any, cut: Slice, j: int) -> None:
    """A map of one component over two contexts, both of them numbers or both categories."""
    sides = [one.values if one.finite else cut.along(one, 67) for one in cut.over]
    x, y = (table.ravel() for table in np.meshgrid(*sides, indexing="ij"))
    z = cut.at(x, y, interval=False)[0][:, j].reshape(len(sides[0]), len(sides[1])).T
    if cut.over[0].finite:
        drawn = axis.pcolormesh(np.arange(len(sides[0])), np.arange(len(sides[1])), z, cmap="viridis")
        _name_categories(axis.xaxis, cut.over[0])
        _name_categories(axis.yaxis, cut.over[1])
    else:
        drawn = axis.contourf(sides[0], sides[1], z, levels=16, cmap="viridis")
        if cut.place:
            axis.plot(*(seen[:DOTS] for seen in cut.place), ".", ms=2, color="white", alpha=0.4, mew=0)
    figure.colorbar(drawn, ax=axis, label=cut.names[j])
    axis.set(xlabel=cut.over[0].name, ylabel=cut.over[1].name)
