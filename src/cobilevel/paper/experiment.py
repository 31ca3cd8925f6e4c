"""What both experiments share: step sizes are searched, every method is run on every instance, and all of it is kept.

An experiment says what its methods, its instances and its scores are; the rest is here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..iteration import Result
from ..report import table_part
from ..solvers import StocBiO
from ..sweep import Run, Runs, Task, solve_all
from . import methods as search
from .methods import EXTENDED, HELD_OUT, REPORTED, Budget, Grid, Method, SearchRung, Setting

TUNING = 10_000  # tuning instances have seeds from here on, reported ones from 0

Tell = Callable[[float], None]
Numbers = dict[str, np.ndarray]  # by name, run first


class Experiment:
    """One experiment at one budget, on one store. Each of the two defines what is declared here."""

    name: str
    title: str
    unit: str  # what the page calls an instance
    scale: float  # s of the Neumann series
    shuffle: bool  # batches without replacement
    plan: Callable[[], list[tuple[Method, int]]]  # its methods, and on how many instances each is run
    problems: Callable[..., Any]  # of a method and seeds: reduced ones, stacked, of equal shapes for equal N
    judge: Callable[..., tuple[Numbers, Numbers]]  # numbers and curves of what came out; more of them if it is final
    score: Callable[[Numbers], np.ndarray]  # what step sizes are chosen by, the smaller the better
    held: Callable[[Method], int]  # how many numbers a method keeps: d_x + N d_y
    summary: Callable[[], dict[str, Any]]  # what its page shows
    verdicts: Callable[[], list[dict[str, Any]]]

    def __init__(self, budget: Budget, runs: Runs):
        self.budget, self.runs = budget, runs

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
    ) -> tuple[Any, Numbers, Numbers, float]:
        """Every setting on every instance, settings first: last states, numbers, curves, and seconds a run."""
        (inner_steps,) = {setting.inner_steps for setting in settings}
        which = jnp.tile(jnp.arange(len(seeds)), len(settings))
        keys = jax.vmap(jax.random.key)(jnp.asarray([*seeds] * len(settings), jnp.uint32))
        problems = self.problems(method, seeds)
        dtype = jax.tree.leaves(problems.W0)[0].dtype
        spread = lambda name: jnp.repeat(jnp.asarray([getattr(s, name) for s in settings]), len(seeds)).astype(dtype)
        solver = StocBiO(
            1.0, 1.0, neumann=self.scale, terms=method.terms, inner_steps=inner_steps,
            kind=method.series, batch=method.drawn, shuffle=self.shuffle,
        )  # fmt: skip
        size, chunk = self.budget.together, self.chunk(inner_steps)
        how: dict[str, Any] = {} if size is None else {"block": size, "vmapped": size, "threads": 1}
        how |= {"observe": self.observe(method, seeds), "tell": tell}
        trials = (which, keys, {name: spread(name) for name in ("inner", "outer")})
        states, seen, seconds = solve_all(solver, problems, *trials, steps // self.budget.chunk * chunk, chunk, **how)
        numbers, curves = self.judge(method, seeds, which, states.average.x, states.average.W, seen, final)
        diverged = (np.asarray(states.result) == Result.DIVERGED.code) | ~np.isfinite(self.score(numbers))
        return states, numbers | {"diverged": diverged}, curves | seen, seconds

    def chunk(self, inner_steps: int) -> int:
        """Outer steps between two looks, so that all settings make about the same number of oracle calls.

        A step with ``T`` inner ones costs ``T + K + 2`` calls; budgets are stated for ``T = 10`` and ``K = 10``.
        """
        return max(1, round(self.budget.chunk * 22 / (inner_steps + 12)))

    def _scores(self, method: Method, seeds: Sequence[int], settings: Sequence[Setting], steps: int) -> np.ndarray:
        """The mean score of each setting over instances; infinite where one of them diverged."""
        scores = np.empty(len(settings))
        for inner_steps in sorted({s.inner_steps for s in settings}):
            rows = [k for k, s in enumerate(settings) if s.inner_steps == inner_steps]
            _, numbers, _, _ = self.stocbio(method, seeds, [settings[k] for k in rows], steps, False, None)
            each = np.where(numbers["diverged"], np.inf, self.score(numbers))
            scores[rows] = each.reshape(len(rows), len(seeds)).mean(axis=1)
        return scores

    def _race(self, method: Method, grid: Grid, rungs: Sequence[SearchRung], tell: Tell) -> tuple[Setting, np.ndarray]:
        """The best setting of a grid on tuning instances, and the table of scores."""

        def score(settings: Sequence[Setting], rung: SearchRung) -> np.ndarray:
            scores = self._scores(method, range(TUNING, TUNING + rung.instances), settings, rung.steps)
            tell((rungs.index(rung) + 1) / (len(rungs) + 1))
            return scores

        (best, *_), table = search.race(grid.settings(), rungs, score)
        return best, table

    def tune(self, method: Method, tell: Tell) -> list[Run]:
        """The search for the step sizes of a method: the best on held-out instances, and of those that came to the
        last round the best on reported ones."""
        settings, rungs = self.budget.grid.settings(), self.budget.rungs
        best, table = self._race(method, self.budget.grid, rungs, tell)
        rows = np.flatnonzero(np.isfinite(table[:, -1]))
        finalists = [settings[int(k)] for k in rows] or [best]
        seen = self._scores(method, range(self.budget.reported), finalists, rungs[-1].steps)
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
        if search.at_an_end("inner", chosen.inner) or search.at_an_end("outer", chosen.outer):
            best, table = self._race(method, search.beyond(chosen), self.budget.further, tell)
        result = {EXTENDED: asdict(best), "tried": len(table)}
        return [Run(self.tuning_spec(method, EXTENDED), result, {"scores": table})]

    def solve(self, method: Method, count: int, tuned: str, tell: Tell) -> list[Run]:
        """One method on all its instances, with step sizes that were found for it."""
        setting = self.setting(method, tuned)
        if tuned != HELD_OUT and setting == self.setting(method, HELD_OUT):
            specs = [(self.spec(method, k), self.spec(method, k, tuned)) for k in range(count)]
            kept = self.runs.whole(old for old, _ in specs)
            return [replace(run, spec=new) for run, (_, new) in zip(kept, specs, strict=True)]
        states, numbers, curves, seconds = self.stocbio(method, range(count), [setting], self.budget.steps, True, tell)
        about = []
        for k in range(count):
            one = jax.tree.map(lambda a, k=k: a[k], states)
            samples = sum(kind["samples"] for kind in one.ledger.totals().values())
            ended = {"ended": Result.of(int(one.result)).name, "steps": int(one.step), "samples": samples}
            about.append(asdict(setting) | {"tuned": tuned} | ended)
        return self.records(method, numbers, curves, about, seconds, tuned)

    def records(
        self, method: Method, numbers: Numbers, curves: Numbers, about: Sequence[Any], seconds: float, tuned: str
    ) -> list[Run]:
        """The runs of a method as they are kept; what `about` says of each is no array."""
        runs = []
        for k, words in enumerate(about):
            result = {name: values[k].item() for name, values in numbers.items()} | dict(words)
            result["numbers_held"] = self.held(method)
            ours = {name: values[k] for name, values in curves.items()}
            runs.append(Run(self.spec(method, k, tuned), result, ours, {"seconds": seconds}))
        return runs

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

    # -- what the finished runs say

    @property
    def methods(self) -> list[Method]:
        return [method for method, _ in self.plan()]

    @cached_property
    def _finished(self) -> dict[tuple[Method, str], list[Run]]:
        """The runs of each method, with their curves, by where its step sizes were chosen."""
        finished = {}
        for method, most in self.plan():
            for tuned, count in self.choices(method, most):
                specs = [self.spec(method, seed, tuned) for seed in range(count)]
                finished[method, tuned] = self.runs.whole(specs)
        return finished

    def finished(self, method: Method, tuned: str = HELD_OUT) -> list[Run]:
        """The runs of a method with step sizes chosen there; where there is no choice, its only ones."""
        return self._finished.get((method, tuned)) or self._finished[method, HELD_OUT]

    def values(self, method: Method, name: str, tuned: str = HELD_OUT) -> np.ndarray:
        """One quantity, by instance."""
        return np.array([run.result[name] for run in self.finished(method, tuned)], dtype=float)

    def seconds(self, method: Method) -> float:
        """The mean time of a run."""
        return float(np.mean([run.cost["seconds"] for run in self.finished(method)]))

    def step_sizes(self, methods: Sequence[tuple[str, Method]], score: str) -> dict[str, Any]:
        """The table of the step sizes that were chosen, one row a named method; `score` says what was minimised."""
        rows = []
        for name, method in methods:
            for tuned, _ in self.choices(method, 1):
                chosen = asdict(self.setting(method, tuned))
                ours = f"{np.mean(self.values(method, score, tuned)):.4g}"
                rows.append([name, tuned, *search.edges(chosen), chosen["inner_steps"], ours])
        columns = ["method", "chosen on", "inner", "outer", "inner steps", f"{score} with them, mean"]
        note = (
            f"{search.searched(self.budget.grid)} On held-out {self.unit}s; of those that came to the last round also "
            "on the reported ones; and beyond the ends of the grid, where one was chosen."
        )
        return table_part(f"steps-{self.name}", f"{self.title}: step sizes chosen", columns, rows, note)

    def page(self, lead: str, data: list[str], constants: str, **parts: Any) -> dict[str, Any]:
        """What the page shows: in words what was done, on what data (a label and words), with what settings of
        ``StocBiO``; and `parts`: panels, tables, policies."""
        budget = self.budget
        seeds = f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning {self.unit}s from seed 10000"
        about = [
            [f"{self.unit}s", seeds],
            data,
            ["steps", f"{budget.steps} outer steps with 10 inner ones; otherwise as many oracle calls"],
            ["StocBiO", constants],
            ["settings tried", f"{len(budget.grid.settings())} a method, by successive halving"],
        ]
        return {"experiment": self.name, "title": self.title, "lead": lead, "about": about} | parts
