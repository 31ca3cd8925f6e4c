"""What both experiments share: step sizes are searched, then every method is run on every instance, all of it kept.

An experiment says what its methods, its instances and its judgement are; the rest is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..answer import Result
from ..iteration import Solver
from ..solvers import StocBiO
from ..sweep import Bundle, How, Pool, Run, Runs, Task, Trials, seconds_each_way, solve_all
from .methods import BARE, BASES, PER_CELL, Method
from .tuning import Grid, SearchRung, Setting, at_an_end, beyond, race

TUNING = 10_000  # tuning instances have seeds from here on, reported ones from 0
HELD_OUT, REPORTED, EXTENDED = "held-out", "reported", "extended"  # where step sizes were chosen, and from which grid

Tell = Callable[[float], None]


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
    reported: int = 1  # reported instances on which finalists are compared, for the second choice of step sizes
    further: tuple[SearchRung, ...] = ()  # the search beyond the ends of the grid, if there is one
    extended: int = 0  # instances that are then run with what it found
    ablation: int = 0
    complexity: int = 0  # steps for the sample complexity of claim T2, if it is to be measured
    candidates: tuple[How, ...] = (How(), How(together=How.block))  # ways to share the machine; measured, if several

    @property
    def width(self) -> int:
        """The most instances any bundle has."""
        return max(self.instances, self.ablation, *(rung.instances for rung in self.rungs))

    def table(self) -> list[tuple[str, int]]:
        """Families and sizes, the small ones first."""
        rows = [(family, N) for N in self.bases for family in BASES]
        rows += [(PER_CELL, N) for N in self.cells] + [(BARE, N) for N in self.bare]
        return sorted(rows, key=lambda row: row[1])


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
        common = {"scale": self.scale, "shuffle": self.shuffle, "chunk": self.budget.chunk, "protocol": 2}
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
        how, look = self.how(solver, pool, trials), self.observe(method, seeds)
        chunk = self.chunk(inner_steps)
        bundle = solve_all(solver, pool, trials, steps // self.budget.chunk * chunk, chunk, how, look, tell)
        judged = self.judge(method, seeds, which, bundle, final)
        return bundle, judged, bundle.diverged | ~np.isfinite(judged.score)

    def chunk(self, inner_steps: int) -> int:
        """Outer steps between two looks, so that all settings make about the same number of oracle calls.

        A step with ``T`` inner ones costs ``T + K + 2`` calls; budgets are stated for ``T = 10`` and ``K = 10``.
        """
        return max(1, round(self.budget.chunk * 22 / (inner_steps + 12)))

    def _score(self, method: Method, seeds: Sequence[int], settings: Sequence[Setting], steps: int) -> np.ndarray:
        """The mean score of each setting over instances; infinite where one of them diverged."""
        scores = np.empty(len(settings))
        for inner_steps in sorted({s.inner_steps for s in settings}):
            rows = [k for k, s in enumerate(settings) if s.inner_steps == inner_steps]
            _, judged, bad = self.stocbio(method, seeds, [settings[k] for k in rows], steps, False, None)
            scores[rows] = np.where(bad, np.inf, judged.score).reshape(len(rows), len(seeds)).mean(axis=1)
        return scores

    def _race(self, method: Method, grid: Grid, rungs: Sequence[SearchRung], tell: Tell) -> Any:
        done = [0]

        def score(settings: Sequence[Setting], rung: SearchRung) -> np.ndarray:
            found = self._score(method, range(TUNING, TUNING + rung.instances), settings, rung.steps)
            done[0] += 1
            tell(done[0] / (len(rungs) + 1))
            return found

        return race(grid.settings(), rungs, score)

    def tune(self, method: Method, tell: Tell) -> list[Run]:
        """The search for the step sizes of a method: the best on held-out instances, and of those that came to the
        last round the best on reported ones."""
        grid, rungs = self.budget.grid, self.budget.rungs
        (best, *_), table = self._race(method, grid, rungs, tell)
        settings, rows = grid.settings(), np.flatnonzero(np.isfinite(table[:, -1]))
        finalists = [settings[int(k)] for k in rows] or [best]
        seen = self._score(method, range(self.budget.reported), finalists, rungs[-1].steps)
        result = {
            HELD_OUT: asdict(best),
            REPORTED: asdict(finalists[int(np.argmin(seen))]),
            "score": float(np.nanmin(table[:, -1])),
            "finalists": [asdict(one) for one in finalists],
            "scores": {HELD_OUT: table[rows, -1].tolist(), REPORTED: seen.tolist()},
            "tried": len(settings),
        }
        return [Run(self.tuning_spec(method), result, {"scores": table})]

    def tune_further(self, method: Method, tell: Tell) -> list[Run]:
        """The search beyond the ends of the paper's grid, where the setting chosen is at one of them."""
        chosen = self.setting(method, HELD_OUT)
        best, table = chosen, np.zeros((1, 1))
        if at_an_end("inner", chosen.inner) or at_an_end("outer", chosen.outer):
            (best, *_), table = self._race(method, beyond(chosen), self.budget.further, tell)
        return [Run(self.tuning_spec(method, True), {EXTENDED: asdict(best), "tried": len(table)}, {"scores": table})]

    def setting(self, method: Method, tuned: str) -> Setting:
        """The step sizes that were chosen."""
        return Setting(**self.runs.get(self.tuning_spec(method, tuned == EXTENDED)).result[tuned])

    def tuning_spec(self, method: Method, further: bool = False) -> dict[str, Any]:
        kind = {"kind": "tune further", "further": _as_dicts(self.budget.further)} if further else {"kind": "tune"}
        return self.identity() | kind | asdict(method) | self._search()

    def _search(self) -> dict[str, Any]:
        return {
            "rungs": _as_dicts(self.budget.rungs),
            "grid": asdict(self.budget.grid),
            "reported": self.budget.reported,
        }

    def choices(self, method: Method, count: int) -> list[tuple[str, int]]:
        """Where the step sizes of a method are chosen, and on how many instances it is then run."""
        if method.solver != "StocBiO" or not self.belongs(method):
            return [(HELD_OUT, count)]
        more = [(EXTENDED, min(count, self.budget.extended))] if self.budget.further else []
        return [(HELD_OUT, count), (REPORTED, count), *more]

    def belongs(self, method: Method) -> bool:
        """Whether a method belongs to the experiment, rather than to its ablation."""
        return True

    def spec(self, method: Method, seed: int, tuned: str = HELD_OUT) -> dict[str, Any]:
        base = self.identity() | {"kind": "solve", **asdict(method), "instance": seed}
        if method.solver != "StocBiO":
            return base
        more = {"further": _as_dicts(self.budget.further)} if tuned == EXTENDED else {}
        return base | {"steps": self.budget.steps, "tuned": tuned} | self._search() | more

    def solve(self, method: Method, count: int, tuned: str, tell: Tell) -> list[Run]:
        """One method on all its instances, with step sizes that were found for it."""
        setting = self.setting(method, tuned)
        if tuned != HELD_OUT and setting == self.setting(method, HELD_OUT):
            return [self._same(self.spec(method, k), self.spec(method, k, tuned)) for k in range(count)]
        bundle, judged, bad = self.stocbio(method, range(count), [setting], self.budget.steps, True, tell)
        chosen = asdict(setting) | {"tuned": tuned}
        return [self.run(method, k, k, bundle, judged, bool(bad[k]), chosen) for k in range(count)]

    def _same(self, spec: Mapping[str, Any], again: Mapping[str, Any]) -> Run:
        """A finished run under another specification."""
        return replace(self.runs.get(spec), spec=again, curves=self.runs.curves(spec))

    def run(
        self, method: Method, seed: int, k: int, bundle: Bundle, judged: Judged, bad: bool, settings: Mapping[str, Any]
    ) -> Run:
        """The record of run ``k`` of a bundle; `settings`, and where they were chosen, are kept with it."""
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
        return Run(self.spec(method, seed, settings["tuned"]), result, curves, {"seconds": bundle.seconds})

    def tasks(self) -> Iterator[Task]:
        """Everything there is to do, in an order in which later tasks find what they need."""
        yield from self.extra()
        for method, count in self.plan():
            if method.solver == "StocBiO":
                yield Task(f"tuning {method.label}", [self.tuning_spec(method)], partial(self.tune, method))
            yield from self._solves(method, count, (HELD_OUT, REPORTED))
        for method, count in self.plan():  # a second answer, after all the first ones
            if EXTENDED in dict(self.choices(method, count)):
                found, wanted = self.tuning_spec(method), self.tuning_spec(method, True)
                yield Task(f"tuning {method.label} further", [wanted], partial(self.tune_further, method), [found])
                yield from self._solves(method, count, (EXTENDED,))
        yield from self.last()

    def _solves(self, method: Method, count: int, wanted: Sequence[str]) -> Iterator[Task]:
        for tuned, some in self.choices(method, count):
            if tuned in wanted:
                specs = [self.spec(method, seed, tuned) for seed in range(some)]
                work = partial(self.solve, method, some, tuned)
                after = self._read_by(method, some, tuned)
                yield Task(f"{method.solver} {method.label}, step sizes {tuned}", specs, work, after)

    def _read_by(self, method: Method, count: int, tuned: str) -> list[dict[str, Any]]:
        """What ``solve`` looks up: step sizes, and where these were chosen in another way, the runs of the first."""
        if method.solver != "StocBiO":
            return []
        if tuned == HELD_OUT:
            return [self.tuning_spec(method)]
        further = [self.tuning_spec(method, True)] if tuned == EXTENDED else []
        return [self.tuning_spec(method), *further, *(self.spec(method, seed) for seed in range(count))]


def _as_dicts(rungs: Sequence[SearchRung]) -> list[dict[str, Any]]:
    return [asdict(rung) for rung in rungs]
