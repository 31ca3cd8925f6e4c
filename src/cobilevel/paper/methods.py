"""What is run: methods by the paper's names, the search for their step sizes on its grid, and the sizes of it all."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..basis import Basis, Chebyshev, FeatureMap, Fourier, Monomial, Partition
from ..reduction import Reduced, reduce_study, reduce_with
from ..study import Study

HELD_OUT, REPORTED, EXTENDED = "held-out", "reported", "extended"  # where step sizes were chosen, and from which grid
BASES = ("Chebyshev", "Fourier", "Monomial")
# stocBiO[N]: cells as problems of their own, these with batches of their own, or the bare indicator functions
PER_CELL, OWN, BARE = "stocBiO", "own-batch", "one-hot"
FAMILIES: Mapping[str, Any] = dict(zip(BASES, (Chebyshev, Fourier, Monomial), strict=True)) | {
    PER_CELL: Partition,
    OWN: Partition,
    BARE: Partition,
}


def family_name(family: str) -> str:
    """What the paper calls a family."""
    return {"Chebyshev": "R_Chebyshev", "Fourier": "R_Fourier", "Monomial": "R_monomial"}.get(family, family)


@dataclass(frozen=True)
class Method:
    """What is run on every instance. The defaults are the experiment; other values belong to its ablation."""

    solver: str
    family: str
    N: int
    noise: float = 0.05
    period: float = 2.0
    batch: int = 64
    series: str = "sum"
    terms: int = 10

    @property
    def usual(self) -> bool:
        """Whether all but solver, family and size is as in the experiment."""
        return self == Method(self.solver, self.family, self.N)

    @property
    def label(self) -> str:
        return f"{family_name(self.family)}[{self.N}]"

    @property
    def basis(self) -> Basis:
        more = {"period": self.period} if self.family == "Fourier" else {}
        return FAMILIES[self.family](self.N, **more)

    @property
    def scale(self) -> float:
        """What its functions are multiplied with.

        With indicator functions as they are, the lower gradient of a cell is its own mean times the chance of the
        cell, ``1/N``, and every step and every factor of the Neumann series is ``N`` times as short. Times
        ``sqrt(N)``, each cell takes steps on its own mean, as a problem of its own does.
        """
        return math.sqrt(self.N) if self.family in (PER_CELL, OWN) else 1.0

    @property
    def drawn(self) -> int:
        """How many samples an oracle call takes: a batch, or one for every cell."""
        return self.batch * (self.N if self.family == OWN else 1)

    def features(self, study: Study) -> FeatureMap:
        """Its functions, fitted to the contexts of a study."""
        fitted = reduce_study(study, self.basis).basis
        if self.scale == 1.0:
            return fitted
        scale = jnp.asarray(self.scale, fitted.constant.dtype)
        matrix = scale * jnp.eye(self.N, dtype=scale.dtype)
        return FeatureMap(fitted.basis, fitted.domain, matrix, fitted.constant / scale)

    def reduced(self, study: Study) -> Reduced:
        """The reduced problem."""
        return reduce_with(study, self.features(study))


# -- the search for step sizes


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


@dataclass(frozen=True)
class Budget:
    """The sizes of an experiment; the code is the same for all. `steps` and `chunk` are for ten inner steps."""

    instances: int
    steps: int
    chunk: int
    rungs: tuple[SearchRung, ...]
    grid: Grid
    bases: tuple[int, ...]
    cells: tuple[int, ...]
    bare: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    reported: int = 1  # reported instances on which finalists are compared, for the second choice of step sizes
    further: tuple[SearchRung, ...] = ()  # the search beyond the ends of the grid, if there is one
    extended: int = 0  # instances that are then run with what it found
    ablation: int = 0
    complexity: int = 0  # steps for the sample complexity of claim T2, if it is to be measured
    together: int | None = (
        None  # runs that advance as one, with nothing beside them; as the machine suggests if left out
    )

    @property
    def partitions(self) -> dict[str, tuple[int, ...]]:
        """The sizes of each kind of stocBiO[N]."""
        return {PER_CELL: self.cells, OWN: self.own, BARE: self.bare}

    def table(self) -> list[tuple[str, int]]:
        """Families and sizes, the small ones first."""
        rows = [(family, N) for N in self.bases for family in BASES]
        rows += [(kind, N) for kind, some in self.partitions.items() for N in some]
        return sorted(rows, key=lambda row: row[1])


Score = Callable[[Sequence[Setting], SearchRung], np.ndarray]  # one number a setting, the smaller the better


def race(settings: Sequence[Setting], rungs: Sequence[SearchRung], score: Score) -> tuple[list[Setting], np.ndarray]:
    """The settings that survive, best first, and a table with one row a setting tried and one column a rung.

    NaN stands for not run. Runs that diverge count as infinite.
    """
    table = np.full((len(settings), len(rungs)), np.nan)
    alive = np.arange(len(settings))
    for column, rung in enumerate(rungs):
        scores = np.asarray(score([settings[int(k)] for k in alive], rung), dtype=float)
        scores = table[alive, column] = np.where(np.isfinite(scores), scores, np.inf)
        alive = alive[np.argsort(scores, kind="stable")[: rung.keep]]
    return [settings[int(k)] for k in alive], table


def at_an_end(name: str, value: float) -> bool:
    """Whether a step size is the smallest or the largest of the paper's grid."""
    return value in (getattr(Grid(), name)[0], getattr(Grid(), name)[-1])


def beyond(chosen: Setting) -> Grid:
    """The grid around a setting, two decades further where it is at an end of the paper's grid."""

    def around(name: str) -> tuple[float, ...]:
        value, (smallest, *_, largest) = getattr(chosen, name), getattr(Grid(), name)
        if value == smallest:
            return (value / 100, value / 10, value)
        return (value, 10 * value, 100 * value) if value == largest else (value / 10, value, 10 * value)

    return Grid(around("inner"), around("outer"), (chosen.inner_steps,))


def edges(tuned: Mapping[str, Any]) -> tuple[str, str]:
    """The step sizes that were chosen, in words; those at an end of the paper's grid say so."""
    words = [f"{tuned[n]:g}" + (" (end of the grid)" if at_an_end(n, tuned[n]) else "") for n in ("inner", "outer")]
    return words[0], words[1]


def searched(grid: Grid) -> str:
    """How the step sizes were found, for a table's note."""
    which = "The grid of the paper" if grid == Grid() else f"{len(grid.settings())} settings of the paper's grid"
    return f"{which}, by successive halving; the last round has the length of a run."
