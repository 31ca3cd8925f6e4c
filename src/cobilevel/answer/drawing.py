"""What figures share. Matplotlib is imported where it is used, since it takes seconds to load; no backend is chosen."""

from typing import Any

COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#edae49", "#a0a0a0", "#5c5c5c", "#6a4c93", "#00798c")
DOTS = 400  # observations shown: more would hide the curves
DPI = 150


def shown_figure(width: float | int, height: float | int) -> Any:
    """A figure by pyplot, so that notebooks and ``plt.show`` show it."""
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(width, height), layout="constrained")


def tidy(*axes: Any) -> None:
    """Without the frame on the sides where nothing is read off."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
