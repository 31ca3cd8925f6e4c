"""Step sizes by the paper's grid, searched by successive halving on instances that are reported nowhere."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Setting:
    """One point of the grid: the two step sizes and the number of inner steps."""

    inner: float
    outer: float
    inner_steps: int


@dataclass(frozen=True)
class SearchRung:
    """One round of the search: `keep` settings go on after runs of `steps` steps on `instances` tuning instances.

    `steps` is for ten inner steps; with more or fewer of them, as many as make the same number of oracle calls.
    """

    keep: int
    instances: int
    steps: int


@dataclass(frozen=True)
class Grid:
    """The paper's grid by default."""

    inner: tuple[float, ...] = tuple(10.0**k for k in range(-3, 2))
    outer: tuple[float, ...] = tuple(10.0**k for k in range(-5, 6))
    inner_steps: tuple[int, ...] = (1, 10, 100)

    def settings(self) -> list[Setting]:
        return [Setting(*point) for point in itertools.product(self.inner, self.outer, self.inner_steps)]


Score = Callable[[Sequence[Setting], SearchRung], np.ndarray]  # one number a setting, the smaller the better


def race(settings: Sequence[Setting], rungs: Sequence[SearchRung], score: Score) -> tuple[Setting, np.ndarray]:
    """The setting that survives, and a table with one row a setting tried and one column a rung (NaN: not run).

    Runs that diverge count as infinite. With several left after the last rung, the best there is taken.
    """
    table = np.full((len(settings), len(rungs)), np.nan)
    alive = np.arange(len(settings))
    for column, rung in enumerate(rungs):
        scores = np.asarray(score([settings[int(k)] for k in alive], rung), dtype=float)
        scores = np.where(np.isfinite(scores), scores, np.inf)
        table[alive, column] = scores
        alive = alive[np.argsort(scores, kind="stable")[: rung.keep]]
    return settings[int(alive[0])], table


def edges(tuned: Mapping[str, Any]) -> tuple[str, str]:
    """The step sizes that were chosen, in words; those at an end of the paper's grid say so."""
    words = []
    for name in ("inner", "outer"):
        values = getattr(Grid(), name)
        words.append(f"{tuned[name]:g}" + (" (end of the grid)" if tuned[name] in (values[0], values[-1]) else ""))
    return words[0], words[1]


def searched(grid: Grid) -> str:
    """How the step sizes were found, for a table's note."""
    which = "The grid of the paper" if grid == Grid() else f"{len(grid.settings())} settings of the paper's grid"
    return (
        f"{which}, by successive halving; tuning instances are not among those reported. Verdicts depend on the grid."
    )
