"""What both experiments share: step sizes are searched, then every method is run on every instance, all of it kept.

An experiment says what its methods, its instances and its judgement are; the rest is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..answer import Result
from ..basis import Basis, Chebyshev, Fourier, Monomial, Partition
from ..iteration import Solver
from ..solvers import StocBiO
from ..sweep import Bundle, How, Pool, Run, Runs, Task, Trials, seconds_each_way, solve_all
from .tuning import Grid, SearchRung, Setting, race

FAMILIES: Mapping[str, Any] = {
    "Chebyshev": Chebyshev,
    "Fourier": Fourier,
    "Monomial": Monomial,
    "Partition": Partition,
}
TUNING = 10_000  # tuning instances have seeds from here on, reported ones from 0

Tell = Callable[[float], None]


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
        """Whether it belongs to the experiment, rather than to its ablation."""
        return self == Method(self.solver, self.family, self.N)

    @property
    def label(self) -> str:
        return f"{self.family}({self.N})"

    @property
    def basis(self) -> Basis:
        if self.family == "Fourier":
            return Fourier(self.N, period=self.period)
        return FAMILIES[self.family](self.N)


@dataclass(frozen=True)
class Budget:
    """The sizes of an experiment; the code is the same for all. `steps` and `chunk` are for ten inner steps."""

    instances: int
    steps: int
    chunk: int
    rungs: tuple[SearchRung, ...]
    grid: Grid
    polynomials: tuple[int, ...]
    partitions: tuple[int, ...]
    ablation: int = 0
    complexity: int = 0  # steps for the sample complexity of claim T2, if it is to be measured
    candidates: tuple[How, ...] = (How(), How(together=How.block))  # ways to share the machine; measured, if several

    @property
    def width(self) -> int:
        """The most instances any bundle has."""
        return max(self.instances, self.ablation, *(rung.instances for rung in self.rungs))

    def table(self) -> list[tuple[str, int]]:
        """Families and sizes, the small ones first."""
        rows = [(family, N) for N in self.polynomials for family in ("Chebyshev", "Fourier", "Monomial")]
        return sorted(rows + [("Partition", N) for N in self.partitions], key=lambda row: row[1])


@dataclass(frozen=True)
class Judged:
    """What is known of each run of a bundle: plain numbers and arrays, run first; smaller scores are better."""

    numbers: Mapping[str, np.ndarray]
    curves: Mapping[str, np.ndarray]
    score: np.ndarray


class Lab(ABC):
    """One experiment at one budget, on one store."""

    name: str
    scale: float  # s of the Neumann series
    shuffle: bool  # batches without replacement

    def __init__(self, budget: Budget, runs: Runs):
        self.budget, self.runs = budget, runs

    @abstractmethod
    def plan(self) -> list[tuple[Method, int]]:
        """The methods, and on how many instances each is run."""

    @abstractmethod
    def pool(self, method: Method, seeds: Sequence[int]) -> Pool:
        """The reduced problems of a method; equal shapes for equal ``N``, so that programs are shared."""

    @abstractmethod
    def judge(self, method: Method, seeds: Sequence[int], which: Any, bundle: Bundle, final: bool) -> Judged:
        """Judges the answers of a bundle; more closely if they are final."""

    @abstractmethod
    def held(self, method: Method) -> int:
        """How many numbers a method keeps: ``d_x + N d_y``."""

    def extra(self) -> Iterator[Task]:
        """Tasks before all others."""
        return iter(())

    def last(self) -> Iterator[Task]:
        """Tasks after all others."""
        return iter(())

    def observe(self, method: Method, seeds: Sequence[int]) -> Any:
        """What to look at on the way."""
        return None

    def identity(self) -> dict[str, Any]:
        """What else, besides method and instance, a run depends on; `protocol` counts changes of the code."""
        common = {"scale": self.scale, "shuffle": self.shuffle, "chunk": self.budget.chunk, "protocol": 1}
        return {"experiment": self.name} | common

    # -- the rest is the same for both

    def how(self, solver: Solver, pool: Pool, trials: Trials) -> How:
        """How runs of a solver share the machine: measured at its first bundle, and kept for the next start."""
        if len(self.budget.candidates) == 1:
            return self.budget.candidates[0]
        topic = f"how {type(solver).__name__} on {jax.default_backend()}"
        known = self.runs.noted(topic)
        if known is None:
            taken = seconds_each_way(solver, pool, trials, self.budget.candidates)
            best = min(taken, key=lambda how: taken[how])
            seconds = {f"{how.together} of {how.block} vmapped": value for how, value in taken.items()}
            known = {"chosen": asdict(best), "seconds": seconds}
            self.runs.note(topic, known)
        return How(**known["chosen"])

    def stocbio(
        self, method: Method, seeds: Sequence[int], settings: Sequence[Setting], steps: int, final: bool, tell: Any
    ) -> tuple[Bundle, Judged, np.ndarray]:
        """Every setting on every instance, settings first; what came out, and which of it is no answer."""
        (inner_steps,) = {setting.inner_steps for setting in settings}
        which = jnp.tile(jnp.arange(len(seeds)), len(settings))
        spread = lambda name: jnp.repeat(jnp.asarray([getattr(s, name) for s in settings]), len(seeds))
        keys = jax.vmap(jax.random.key)(jnp.asarray([*seeds] * len(settings), jnp.uint32))
        pool = self.pool(method, seeds)
        dtype = jax.tree.leaves(pool.arrays.W0)[0].dtype
        rates = {name: spread(name).astype(dtype) for name in ("inner", "outer")}
        solver = StocBiO(
            1.0, 1.0, neumann=self.scale, terms=method.terms, inner_steps=inner_steps,
            kind=method.series, batch=method.batch, shuffle=self.shuffle,  # pyright: ignore
        )  # fmt: skip
        trials = Trials(which, keys, rates)
        how, look = self.how(solver, pool, trials), self.observe(method, seeds) if final else None
        chunk = self.chunk(inner_steps)
        bundle = solve_all(solver, pool, trials, steps // self.budget.chunk * chunk, chunk, how, look, tell)
        judged = self.judge(method, seeds, which, bundle, final)
        return bundle, judged, bundle.diverged | ~np.isfinite(judged.score)

    def chunk(self, inner_steps: int) -> int:
        """Outer steps between two looks, so that all settings make about the same number of oracle calls.

        A step with ``T`` inner ones costs ``T + K + 2`` calls; budgets are stated for ``T = 10`` and ``K = 10``.
        """
        return max(1, round(self.budget.chunk * 22 / (inner_steps + 12)))

    def tune(self, method: Method, tell: Tell) -> Run:
        """The search for the step sizes of one method."""
        grid, rungs = self.budget.grid.settings(), self.budget.rungs
        parts = [0, len(rungs) * len(self.budget.grid.inner_steps)]

        def score(settings: Sequence[Setting], rung: SearchRung) -> np.ndarray:
            seeds, scores = range(TUNING, TUNING + rung.instances), np.empty(len(settings))
            for inner_steps in sorted({s.inner_steps for s in settings}):
                rows = [k for k, s in enumerate(settings) if s.inner_steps == inner_steps]
                chosen = [settings[k] for k in rows]
                _, judged, bad = self.stocbio(method, seeds, chosen, rung.steps, False, None)
                table = np.where(bad, np.inf, judged.score).reshape(len(rows), len(seeds))
                scores[rows] = table.mean(axis=1)
                parts[0] += 1
                tell(parts[0] / parts[1])
            return scores

        best, table = race(grid, rungs, score)
        result = asdict(best) | {"score": float(np.nanmin(table[:, -1])), "tried": len(grid)}
        return Run(self.tuning_spec(method), result, {"scores": table})

    def tuning_spec(self, method: Method) -> dict[str, Any]:
        rungs, grid = [asdict(rung) for rung in self.budget.rungs], asdict(self.budget.grid)
        return self.identity() | {"kind": "tune", **asdict(method), "rungs": rungs, "grid": grid}

    def spec(self, method: Method, seed: int) -> dict[str, Any]:
        base = self.identity() | {"kind": "solve", **asdict(method), "instance": seed}
        if method.solver != "StocBiO":
            return base
        rungs, grid = [asdict(rung) for rung in self.budget.rungs], asdict(self.budget.grid)
        return base | {"steps": self.budget.steps, "rungs": rungs, "grid": grid}

    def solve(self, method: Method, count: int, tell: Tell) -> list[Run]:
        """One method on all its instances, with the step sizes that were found for it."""
        tuned = self.runs.get(self.tuning_spec(method)).result
        setting = Setting(tuned["inner"], tuned["outer"], tuned["inner_steps"])
        bundle, judged, bad = self.stocbio(method, range(count), [setting], self.budget.steps, True, tell)
        return [self.run(method, k, k, bundle, judged, bool(bad[k]), asdict(setting)) for k in range(count)]

    def run(
        self, method: Method, seed: int, k: int, bundle: Bundle, judged: Judged, bad: bool, settings: Mapping[str, Any]
    ) -> Run:
        """The record of run ``k`` of a bundle; `settings` are kept with it."""
        one = jax.tree.map(lambda a: a[k], bundle.states)
        result = {name: float(values[k]) for name, values in judged.numbers.items()} | {
            **settings,
            "diverged": bad,
            "ended": Result.of(int(one.result)).name,
            "steps": int(one.step),
            "samples": sum(kind["samples"] for kind in one.ledger.totals().values()),
            "numbers_held": self.held(method),
        }
        curves = {name: values[k] for name, values in (*judged.curves.items(), *bundle.curves.items())}
        return Run(self.spec(method, seed), result, curves, {"seconds": bundle.seconds})

    def tasks(self) -> Iterator[Task]:
        """Everything there is to do, in an order in which later tasks find what they need."""
        yield from self.extra()
        for method, count in self.plan():
            if method.solver == "StocBiO":
                work = lambda tell, m=method: [self.tune(m, tell)]
                yield Task(f"tuning {method.label}", [self.tuning_spec(method)], work)
            specs = [self.spec(method, seed) for seed in range(count)]
            yield Task(f"{method.solver} {method.label}", specs, lambda tell, m=method, c=count: self.solve(m, c, tell))
        yield from self.last()
