"""Step sizes by the paper's grid, searched by successive halving; the last round has the length of the experiment."""

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


def race(settings: Sequence[Setting], rungs: Sequence[SearchRung], score: Score) -> tuple[list[Setting], np.ndarray]:
    """The settings that survive, best first, and a table with one row a setting tried and one column a rung.

    NaN stands for not run. Runs that diverge count as infinite.
    """
    table = np.full((len(settings), len(rungs)), np.nan)
    alive = np.arange(len(settings))
    for column, rung in enumerate(rungs):
        scores = np.asarray(score([settings[int(k)] for k in alive], rung), dtype=float)
        scores = np.where(np.isfinite(scores), scores, np.inf)
        table[alive, column] = scores
        alive = alive[np.argsort(scores, kind="stable")[: rung.keep]]
    return [settings[int(k)] for k in alive], table


def at_an_end(name: str, value: float) -> bool:
    """Whether a step size is the smallest or the largest of the paper's grid."""
    return value in (getattr(Grid(), name)[0], getattr(Grid(), name)[-1])


def beyond(chosen: Setting) -> Grid:
    """The grid around a setting, two decades further where it is at an end of the paper's grid."""

    def around(name: str) -> tuple[float, ...]:
        value = getattr(chosen, name)
        ends = getattr(Grid(), name)[0], getattr(Grid(), name)[-1]
        if value == ends[0]:
            return (value / 100, value / 10, value)
        return (value, 10 * value, 100 * value) if value == ends[1] else (value / 10, value, 10 * value)

    return Grid(around("inner"), around("outer"), (chosen.inner_steps,))


def edges(tuned: Mapping[str, Any]) -> tuple[str, str]:
    """The step sizes that were chosen, in words; those at an end of the paper's grid say so."""
    words = [f"{tuned[n]:g}" + (" (end of the grid)" if at_an_end(n, tuned[n]) else "") for n in ("inner", "outer")]
    return words[0], words[1]


def searched(grid: Grid) -> str:
    """How the step sizes were found, for a table's note."""
    which = "The grid of the paper" if grid == Grid() else f"{len(grid.settings())} settings of the paper's grid"
    return f"{which}, by successive halving; the last round has the length of a run."
