"""What both experiments share: step sizes are searched, then every method is run on every instance, all of it kept.

An experiment says what its methods, its instances and its scores are; the rest is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..iteration import Result
from ..solvers import StocBiO
from ..sweep import Bundle, How, Pool, Run, Runs, Task, Trials, solve_all
from .methods import EXTENDED, HELD_OUT, REPORTED, Budget, Grid, Method, SearchRung, Setting, at_an_end, beyond, race

TUNING = 10_000  # tuning instances have seeds from here on, reported ones from 0

Tell = Callable[[float], None]


class Judged(NamedTuple):
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

    def variants(self) -> list[Method]:
        """The ablation: methods with one thing changed at a time."""
        return []

    def observe(self, method: Method, seeds: Sequence[int]) -> Any:
        """What to look at on the way."""
        return None

    def identity(self) -> dict[str, Any]:
        """What else, besides method and instance, a run depends on; `protocol` counts changes of the code."""
        common = {"scale": self.scale, "shuffle": self.shuffle, "chunk": self.budget.chunk, "protocol": 2}
        return {"experiment": self.name} | common

    # -- specifications: what a run is known by in the store

    def _search(self, tuned: str) -> dict[str, Any]:
        budget = self.budget
        rungs = {"rungs": budget.rungs} | ({"further": budget.further} if tuned == EXTENDED else {})
        search = {name: [asdict(rung) for rung in table] for name, table in rungs.items()}
        return search | {"grid": asdict(budget.grid), "reported": budget.reported}

    def tuning_spec(self, method: Method, tuned: str = HELD_OUT) -> dict[str, Any]:
        kind = "tune further" if tuned == EXTENDED else "tune"
        return self.identity() | {"kind": kind} | asdict(method) | self._search(tuned)

    def spec(self, method: Method, seed: int, tuned: str = HELD_OUT) -> dict[str, Any]:
        base = self.identity() | {"kind": "solve", **asdict(method), "instance": seed}
        if method.solver != "StocBiO":
            return base
        return base | {"steps": self.budget.steps, "tuned": tuned} | self._search(tuned)

    def choices(self, method: Method, count: int) -> list[tuple[str, int]]:
        """Where the step sizes of a method are chosen, and on how many instances it is then run."""
        if method.solver != "StocBiO" or method in self.variants():
            return [(HELD_OUT, count)]
        more = [(EXTENDED, min(count, self.budget.extended))] if self.budget.further else []
        return [(HELD_OUT, count), (REPORTED, count), *more]

    def setting(self, method: Method, tuned: str) -> Setting:
        """The step sizes that were chosen."""
        return Setting(**self.runs.get(self.tuning_spec(method, tuned)).result[tuned])

    # -- work

    def stocbio(
        self, method: Method, seeds: Sequence[int], settings: Sequence[Setting], steps: int, final: bool, tell: Any
    ) -> tuple[Bundle, Judged, np.ndarray]:
        """Every setting on every instance, settings first; what came out, and which of it is no answer."""
        (inner_steps,) = {setting.inner_steps for setting in settings}
        which = jnp.tile(jnp.arange(len(seeds)), len(settings))
        keys = jax.vmap(jax.random.key)(jnp.asarray([*seeds] * len(settings), jnp.uint32))
        pool = self.pool(method, seeds)
        dtype = jax.tree.leaves(pool.arrays.W0)[0].dtype
        spread = lambda name: jnp.repeat(jnp.asarray([getattr(s, name) for s in settings]), len(seeds)).astype(dtype)
        trials = Trials(which, keys, {name: spread(name) for name in ("inner", "outer")})
        solver = StocBiO(
            1.0, 1.0, neumann=self.scale, terms=method.terms, inner_steps=inner_steps,
            kind=method.series, batch=method.batch, shuffle=self.shuffle,  # pyright: ignore
        )  # fmt: skip
        on_cpu = jax.default_backend() == "cpu"
        how = self.budget.together or (How() if on_cpu else How(together=How.block))
        chunk, look = self.chunk(inner_steps), self.observe(method, seeds)
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

    def _race(self, method: Method, grid: Grid, rungs: Sequence[SearchRung], tell: Tell) -> tuple[Setting, np.ndarray]:
        """The best setting of a grid on tuning instances, and the table of scores."""

        def score(settings: Sequence[Setting], rung: SearchRung) -> np.ndarray:
            scores = self._score(method, range(TUNING, TUNING + rung.instances), settings, rung.steps)
            tell((rungs.index(rung) + 1) / (len(rungs) + 1))
            return scores

        (best, *_), table = race(grid.settings(), rungs, score)
        return best, table

    def tune(self, method: Method, tell: Tell) -> list[Run]:
        """The search for the step sizes of a method: the best on held-out instances, and of those that came to the
        last round the best on reported ones."""
        settings, rungs = self.budget.grid.settings(), self.budget.rungs
        best, table = self._race(method, self.budget.grid, rungs, tell)
        rows = np.flatnonzero(np.isfinite(table[:, -1]))
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
            best, table = self._race(method, beyond(chosen), self.budget.further, tell)
        result = {EXTENDED: asdict(best), "tried": len(table)}
        return [Run(self.tuning_spec(method, EXTENDED), result, {"scores": table})]

    def solve(self, method: Method, count: int, tuned: str, tell: Tell) -> list[Run]:
        """One method on all its instances, with step sizes that were found for it."""
        setting = self.setting(method, tuned)
        if tuned != HELD_OUT and setting == self.setting(method, HELD_OUT):
            specs = [(self.spec(method, k), self.spec(method, k, tuned)) for k in range(count)]
            return [replace(self.runs.get(old), spec=new, curves=self.runs.curves(old)) for old, new in specs]
        bundle, judged, bad = self.stocbio(method, range(count), [setting], self.budget.steps, True, tell)
        runs = []
        for k in range(count):
            one = jax.tree.map(lambda a, k=k: a[k], bundle.states)
            about = asdict(setting) | {
                "tuned": tuned,
                "diverged": bool(bad[k]),
                "ended": Result.of(int(one.result)).name,
                "steps": int(one.step),
                "samples": sum(kind["samples"] for kind in one.ledger.totals().values()),
            }
            curves = {name: values[k] for name, values in bundle.curves.items()}
            runs.append(self.record(method, k, judged, about, bundle.seconds, curves, tuned))
        return runs

    def record(
        self, method: Method, k: int, judged: Judged, about: Mapping[str, Any], seconds: float,
        curves: Mapping[str, np.ndarray] | None = None, tuned: str = HELD_OUT,
    ) -> Run:  # fmt: skip
        """The run on instance ``k`` as it is kept."""
        numbers = {name: float(values[k]) for name, values in judged.numbers.items()}
        result = numbers | dict(about) | {"numbers_held": self.held(method)}
        curves = {name: values[k] for name, values in judged.curves.items()} | dict(curves or {})
        return Run(self.spec(method, k, tuned), result, curves, {"seconds": seconds})

    def tasks(self) -> Iterator[Task]:
        """Everything there is to do, in an order in which later tasks find what they need."""
        for method, count in self.plan():
            if method.solver == "StocBiO":
                yield Task(f"tuning {method.label}", [self.tuning_spec(method)], partial(self.tune, method))
            yield from self._solves(method, count, (HELD_OUT, REPORTED))
        for method, count in self.plan():  # a second answer, after all the first ones
            if EXTENDED in dict(self.choices(method, count)):
                first, further = self.tuning_spec(method), self.tuning_spec(method, EXTENDED)
                yield Task(f"tuning {method.label} further", [further], partial(self.tune_further, method), [first])
                yield from self._solves(method, count, (EXTENDED,))

    def _solves(self, method: Method, count: int, wanted: Sequence[str]) -> Iterator[Task]:
        for tuned, some in self.choices(method, count):
            if tuned in wanted:
                specs = {where: [self.spec(method, seed, where) for seed in range(some)] for where in (HELD_OUT, tuned)}
                after = [self.tuning_spec(method)] if method.solver == "StocBiO" else []
                after += [self.tuning_spec(method, EXTENDED)] if tuned == EXTENDED else []
                after += [] if tuned == HELD_OUT else specs[HELD_OUT]  # taken over where step sizes are the same
                label = f"{method.solver} {method.label}, step sizes {tuned}"
                yield Task(label, specs[tuned], partial(self.solve, method, some, tuned), after)
