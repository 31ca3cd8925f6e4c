"""Figures as files: the panels of a reproduced experiment, one PNG and one PDF a figure, and that of the demonstration.

How a series looks is settled here once, for these files and for the page: a family has a colour and a dash pattern, and
its members a marker each, so that curves can be told apart without colours. Matplotlib is imported where it is used,
since it takes seconds to load; no backend is chosen, so the user's stays.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..answer import COLOURS, DOTS, DPI, tidy, written_figure
from ..ground import write_file
from ..problem import Samples

FAMILY_STYLES: dict[str, tuple[str, tuple[float, ...]]] = {
    "R_Chebyshev": ("#1b6ca8", ()),
    "R_Fourier": ("#d9730d", (6.0, 2.0)),
    "R_monomial": ("#a8327a", (1.5, 1.5)),
    "stocBiO": ("#3d464d", (7.0, 2.0, 1.5, 2.0)),
    "one-hot": ("#8a9299", (3.0, 3.0)),
}
_MARKERS = ("o", "s", "^", "D")
_SIZE = re.compile(r"\[(\d+)\]$")  # of a method, in its label
_OTHER_STYLES = (("#3a7d44", ()), ("#d1495b", (6.0, 2.0)), ("#00798c", (1.5, 1.5)), ("#6a4c93", (7.0, 2.0, 1.5, 2.0)))


def by_figure(summary: Mapping[str, Any]) -> dict[str, list[dict]]:
    """The panels that share a figure, in the order in which the figures first appear."""
    figures: dict[str, list[dict]] = {}
    for panel in summary.get("panels") or ():
        figures.setdefault(panel["figure"], []).append(panel)
    return figures


def label_styles(summary: Mapping[str, Any], palest: float = 0.45) -> dict[str, dict[str, Any]]:
    """Colour and dashes of every label, those of its family, and its marker; later labels of one family are paler, up
    to a share `palest` of white."""
    members: dict[str, list[str]] = {}
    for label in dict.fromkeys(s["label"] for panel in summary.get("panels") or () for s in panel["series"]):
        members.setdefault(label.split("[")[0].strip(), []).append(label)
    strangers = [name for name in members if name not in FAMILY_STYLES]
    styles = {}
    for place, (name, group) in enumerate(members.items()):
        colour, dash = FAMILY_STYLES.get(name) or _OTHER_STYLES[strangers.index(name) % len(_OTHER_STYLES)]
        sized = [label for label in group if _SIZE.search(label)]
        sizes = sorted(sized, key=lambda label: int(_SIZE.findall(label)[0])) or group
        for label in group:
            k = sizes.index(label) if label in sizes else 0
            marker = _MARKERS[(k if len(sizes) > 1 and label in sizes else place) % len(_MARKERS)]
            paler = _paler(colour, palest * k / max(len(sizes) - 1, 1))
            styles[label] = {"colour": paler, "marker": marker, "dash": list(dash)}
    return styles


def panel_figures(summary: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Writes every figure of the summary as PNG and PDF into `folder`; returns the paths, PNG before PDF.

    Panels of one figure stand side by side under one legend. Missing values are gaps, and so is what a logarithmic
    axis cannot show.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    styles = label_styles(summary)
    paths: list[Path] = []
    for name, panels in by_figure(summary).items():
        columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
        rows = -(-len(panels) // columns)
        figure = written_figure(max(4.6 * columns, 6.4), 3.7 * rows + 0.6)
        axes = figure.subplots(rows, columns, squeeze=False)
        keys: dict[str, Any] = {}
        for axis, panel in zip(axes.flat, panels, strict=False):
            _draw(axis, panel, styles, keys)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        _legend(figure, keys)
        stem = _stem(name, {path.stem for path in paths})
        for suffix in ("png", "pdf"):
            metadata = {"CreationDate": None} if suffix == "pdf" else None
            draw = partial(figure.savefig, format=suffix, dpi=DPI, metadata=metadata)
            paths.append(write_file(folder / f"{stem}.{suffix}", draw))
    return paths


def _legend(figure: Any, keys: Mapping[str, Any]) -> None:
    """One legend under all panels, filled by columns: two rows where the width allows, so that solvers pair up."""
    if keys:
        names = [_literal(textwrap.fill(key, 40)) for key in keys]
        inches = 0.6 + 0.065 * max(len(line) for name in names for line in name.splitlines())
        ncols = max(1, min(-(-len(keys) // 2), int(figure.get_figwidth() / inches)))
        look = {"ncols": ncols, "frameon": False, "fontsize": 8, "handlelength": 3.6}
        figure.legend(list(keys.values()), names, loc="outside lower center", **look)


def _draw(axis: Any, panel: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]], keys: dict[str, Any]) -> None:
    """One panel; `keys` gathers one handle for each entry of the legend."""
    log_x, log_y = panel.get("xscale") == "log", panel.get("yscale") == "log"
    foot = _frame(axis, panel, log_x, log_y)
    for series in panel["series"]:
        x, y = _floats(series["x"], log_x), _floats(series["y"], log_y)
        colour, marker, dash = (styles[series["label"]][key] for key in ("colour", "marker", "dash"))
        every = 1 if len(x) <= 30 else len(x) // 9  # of a long curve about nine points are marked
        look = {"lw": 1.4, "ls": (0, tuple(dash)) if dash else "-", "marker": marker, "markevery": every, "ms": 4.5}
        (line,) = axis.plot(x, y, color=colour, mfc="white" if dash else colour, **look)
        if series.get("low") is not None and series.get("high") is not None:
            low, high = (_floats(series[end], False) for end in ("low", "high"))
            if log_y:  # an interval that reaches zero reaches the foot of the axis
                low, high = np.where(low <= 0, foot, low), np.where(high > 0, high, np.nan)
            axis.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
        keys.setdefault(series["label"], line)
    for line in panel.get("lines") or ():
        (height,) = _floats([line["y"]], log_y)
        drawn = axis.axhline(height, color="black", lw=1.0, ls=(0, (3, 3)), zorder=1)
        keys.setdefault(line["label"], drawn)


def _frame(axis: Any, panel: Mapping[str, Any], log_x: bool, log_y: bool) -> float:
    """Scales, limits, ticks, labels and grid; returns the lower end of the vertical axis."""
    axis.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    heights = [_floats(s[k], log_y) for s in panel["series"] for k in ("y", "low", "high") if s.get(k) is not None]
    heights.append(_floats([line["y"] for line in panel.get("lines") or ()], log_y))
    seen = np.concatenate(heights)
    seen = seen[np.isfinite(seen)]
    if len(seen) and seen.min() < seen.max():
        ends = np.array([seen.min(), seen.max()])
        ends = np.log(ends) if log_y else ends
        ends = ends + 0.05 * (ends[1] - ends[0]) * np.array([-1, 1])
        axis.set_ylim(*(np.exp(ends) if log_y else ends))
    if log_y:
        _log_ticks(axis.yaxis, *axis.get_ylim())
    widths = sorted({float(x) for s in panel["series"] for x in _floats(s["x"], log_x) if np.isfinite(x)})
    if log_x and 0 < len(widths) <= 8 and all(width.is_integer() for width in widths):
        axis.set_xticks(widths, [f"{width:g}" for width in widths])
        axis.set_xticks([], minor=True)
    elif log_x and widths:
        _log_ticks(axis.xaxis, widths[0], widths[-1])
    axis.set(xlabel=_literal(panel["xlabel"]), ylabel=_literal(panel["ylabel"]))
    axis.set_title(_literal(textwrap.fill(panel["title"], 48)), fontsize=10)
    axis.grid(color="#e6e6e6", lw=0.6)
    axis.set_axisbelow(True)
    tidy(axis)
    return axis.get_ylim()[0]


def _log_ticks(axis: Any, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis of less than two decades; longer ones keep their powers of ten."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

    if high / low < 100:
        few = MaxNLocator(6, steps=(1, 2, 5, 10)) if high / low < 5 else LogLocator(subs=(1.0, 2.0, 5.0))
        axis.set_major_locator(few)
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())


def _floats(values: Sequence[float | int | None], positive: bool) -> np.ndarray:
    """The values as floats; NaN for what is missing, infinite, or not positive where it must be."""
    column = np.array([np.nan if value is None else value for value in values], dtype=float)
    return np.where(np.isfinite(column) & ((column > 0) | (not positive)), column, np.nan)


def _literal(text: str) -> str:
    """Text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def _stem(name: str, taken: set[str]) -> str:
    """A file name for a figure: letters, digits and dashes, different from those taken."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"
    return next(s for s in (stem, *(f"{stem}-{k}" for k in range(2, len(taken) + 3))) if s not in taken)


def _paler(colour: str, white: float) -> str:
    """A hexadecimal colour mixed with a share of white."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def policy_figure(
    path: str | Path,
    contexts: np.ndarray,
    policies: Mapping[str, tuple[np.ndarray, np.ndarray]],
    samples: Samples,
    shown: str,
    least: float = 1e-12,
) -> Path:
    """The flows of one policy over the exact ones, with the observations; and the error of every policy, by demand.

    `policies` maps a name to the policy and the exact lower-level solution at its ``x``, each of shape
    ``(contexts, edges)``; `shown` names the one drawn on the left. On a logarithmic axis, errors below `least` are
    drawn there.
    """
    figure = written_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    policy, exact = policies[shown]
    for k, colour in enumerate(COLOURS[: policy.shape[1]]):
        observed = np.asarray(samples.eta)[:DOTS, k]
        left.plot(np.asarray(samples.xi)[:DOTS], observed, ".", ms=3, color=colour, alpha=0.25, mew=0)
        left.plot(contexts, exact[:, k], color=colour, lw=3.5, alpha=0.35, label=f"edge {k + 1}, exact")
        left.plot(contexts, policy[:, k], color=colour, lw=1.4, ls="--", label=f"edge {k + 1}, policy")
    left.set(xlabel="demand", ylabel="flow", title=f"Policy of {shown}, exact flows, observations")
    left.legend(frameon=False)
    for k, (name, (policy, exact)) in enumerate(policies.items()):
        error = np.maximum(np.linalg.norm(policy - exact, axis=1), least)
        right.semilogy(contexts, error, color=COLOURS[k % len(COLOURS)], lw=1.2, label=name)
    right.set(xlabel="demand", ylabel="error of the flows", title="Where each basis errs")
    right.legend(frameon=False, ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    tidy(left, right)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path
