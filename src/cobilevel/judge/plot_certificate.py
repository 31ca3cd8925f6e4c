"""The figures of a certificate with their intervals, drawn."""

from typing import Any

import numpy as np

from ..answer import COLOURS, shown_figure, tidy
from .intervals import Estimate

_ROW = 0.42  # inches
_ROOM = 1.12  # beyond the largest figure
_NONE = "cannot be measured on these samples"


def plot_estimates(title: str, groups: dict[str, dict[str, Estimate]]) -> Any:
    """Intervals with the estimate as a point; one panel for each group, since these have units of their own."""
    groups = {name: rows for name, rows in groups.items() if rows}
    sizes = [len(rows) for rows in groups.values()]
    figure = shown_figure(7.6, 1.1 + _ROW * sum(sizes) + 0.62 * len(sizes))
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[size + 0.6 for size in sizes])[:, 0]
    for axis, colour, (name, rows) in zip(panels, COLOURS, groups.items(), strict=False):
        _draw_estimates(axis, rows, colour)
        axis.set_title(name, loc="left", fontsize="medium")
        tidy(axis)
    figure.suptitle(title, fontsize="medium")
    return figure


def _draw_estimates(axis: Any, rows: dict[str, Estimate], colour: str) -> None:
    ends = [end for value in rows.values() for end in (float(value), value.low, value.high) if np.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    high, low = high if high > low else low + 1, low
    for place, value in enumerate(rows.values()):
        if not np.isfinite(float(value)):
            axis.text(0, place, _NONE, va="center", fontsize="small", color="#5c5c5c")
            continue
        left = max(value.low, low) if np.isfinite(value.low) else low
        right = min(value.high, high) if np.isfinite(value.high) else _ROOM * high
        axis.plot([left, right], [place, place], color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        axis.plot([float(value)], [place], "o", ms=6, color=colour)
        axis.annotate(value.words(), (right, place), (6, 0), textcoords="offset points", va="center", fontsize="small")
    axis.axvline(0, color="#a0a0a0", lw=0.8, zorder=0)
    axis.set_yticks(range(len(rows)), list(rows))
    reach = high - low
    axis.set(ylim=(len(rows) - 0.5, -0.5), xlim=(low - 0.03 * reach, high + 0.45 * reach))
