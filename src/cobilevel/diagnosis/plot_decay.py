"""Coefficients by degree, drawn."""

from pathlib import Path
from typing import Any

import numpy as np

from ..answer import COLOURS, DPI, shown_figure, tidy
from .decay import Decay

_FIGURE_SIZE = (7, 4.4)  # inches


def plot_decay(decay: Decay, functions: int, path: str | Path | None) -> Any:
    """Coefficients with the law they follow and the size of the basis; written to `path`, or the figure itself.

    A figure that is only written never touches ``pyplot``, whose backend is the user's.
    """
    if path is None:
        figure = shown_figure(*_FIGURE_SIZE)
        _draw_decay(figure.add_subplot(), decay, functions)
        return figure
    from matplotlib.figure import Figure

    figure, path = Figure(figsize=_FIGURE_SIZE, layout="constrained"), Path(path)
    _draw_decay(figure.add_subplot(), decay, functions)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def _draw_decay(axis: Any, decay: Decay, functions: int) -> None:
    from matplotlib.ticker import MaxNLocator

    degrees, tiny = np.arange(len(decay.coefficients)), 0.03 * decay.plateau
    last = min(len(degrees), max(decay.length * 5 // 4 + 6, min(functions, 64) + 4))
    shown = np.maximum(decay.coefficients[:last], tiny if tiny > 0 else 1e-300)
    axis.semilogy(degrees[:last], shown, "o", ms=4, color=COLOURS[0], label="coefficients of the policy")
    if decay.scale:
        k = np.arange(1, last)
        label = f"{decay.rho:.3g}$^{{-k}}$" if decay.kind == "geometric" else f"$k^{{-{decay.order:.2g}}}$"
        seen = decay.law(k) > tiny
        axis.semilogy(k[seen], decay.law(k)[seen], color=COLOURS[1], lw=1.3, label=f"the law they follow, {label}")
    if decay.resolved:
        axis.semilogy(degrees[:last], decay.errors[:last], color=COLOURS[4], lw=1, ls="--", label="noise or rounding")
    words, right = "total degree", last
    if decay.dimension == 1:
        words, right = "degree", max(last, functions)
        axis.axvline(functions - 0.5, color=COLOURS[2], lw=1, label=f"the basis, N = {functions}")
    axis.set(xlabel=words, ylabel="size", title=f"Coefficients by {words}", xlim=(-0.5, right))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if decay.kind == "algebraic":
        axis.set(xscale="log", xlim=(0.9, right))
    axis.legend(frameon=False)
    tidy(axis)
