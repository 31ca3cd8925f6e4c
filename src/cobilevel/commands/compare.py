"""What is behind ``cobilevel compare``: the reduction and the methods without one, on the same problems, to given gaps.

The gap of ``x`` is ``(F(x) - F*) / |F*|``, with ``F`` the upper objective at exact lower-level solutions. A method runs
in a process of its own: first its settings are tuned (the same number of short runs for each that has step sizes), then
it runs with more and more steps, twice as many each time, while the wall limit lasts and until it ends by itself.
What counts is the first run from which on all end within the gap; its seconds are those of that run alone, programs
compiled before. Methods with an exact lower level count the points they pass in the same way.

All are given joint samples, and ``PerContext``, ``DLSGD`` and ``RTMLMC`` the law of ``eta`` given ``xi`` as well where
they need it: they know more than the others then, and the table says so.
"""

import hashlib
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from rich.console import Console

GAPS = (0.1, 0.01, 0.001)
_FUNCTIONS = 10  # of the basis that is given, and nodes of collocation
_RUNGS = 16
_FAR = 100.0  # times the optimum: a last gap beyond it is no answer


class Case:
    """One problem: `objective(x)` is ``F``; `best` its minimiser where it is known; `words` where both come from.

    `informed`: the problem with a sampler of ``eta`` given ``xi``; ``None`` where no method needs one.
    """

    def __init__(self, name: str, seed: int):
        from ..gallery import ENTRIES, cleaning

        small = lambda: cleaning(seed, _coarse_digits(2), 40, 40)  # so few that every method comes to an end
        self.instance = small() if name == "cleaning" else ENTRIES[name].make(seed)
        self.samples, truth = self.instance.train, self.instance.truth
        given = self.instance.problem
        with_sampler = lambda draw: eqx.tree_at(lambda p: p.conditional, given, draw, is_leaf=lambda v: v is None)
        sampler = getattr(truth, "draw", given.conditional)
        self.problem, self.informed = with_sampler(None), None if sampler is None else with_sampler(sampler)
        self.best: Any = getattr(truth, "x", None)
        if name == "two_edge_traffic":
            import jax

            self.objective: Callable[[Any], Any] = jax.jit(lambda x: truth.loss(x, self.samples))
            self.best = truth.sample_optimum(self.samples)
            self.words = "F: the sample mean with exact flows; F*: its minimum by L-BFGS-B from two starts."
        elif name == "cleaning":
            self.objective = self._validation_loss()
            self.words = "40 images, 4 x 4 pixels, of the digits 0 and 1. F: validation loss, exact classifiers at 12 "
            self.words += "temperatures; F*: the smallest value that any run found."
        else:
            self.objective = truth.objective
            self.words = "F: the population objective, in closed form or by quadrature; F*: its minimum."

    def _validation_loss(self) -> Callable[[Any], Any]:
        import jax
        import jax.numpy as jnp

        upper, truth = self.samples.upper, self.instance.truth
        xi, weights = (jnp.asarray(a, jnp.float32) for a in upper.law.quadrature(12))
        data = jax.tree.map(jnp.asarray, upper.eta)
        row = lambda y, c, e: self.problem.upper(None, y, c, e)
        at = jax.vmap(lambda y, c: jnp.mean(jax.vmap(lambda e: row(y, c, e))(data)))
        return jax.jit(lambda x: (weights / weights.sum()) @ at(truth.y(jnp.asarray(x, jnp.float32), xi), xi))

    def value(self, x: Any) -> float:
        """``F``, infinite where it is no number."""
        found = float(self.objective(np.reshape(np.asarray(x, float), np.shape(self.problem.x0))))
        return found if np.isfinite(found) else float("inf")

    @cached_property
    def least(self) -> float | None:
        """``F*`` where it is known before."""
        return None if self.best is None else self.value(self.best)


def _coarse_digits(classes: int) -> Any:
    """The first digits, four pixels averaged into one."""
    from ..gallery import images as pictures

    full = pictures.digits()

    def part(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept = labels < classes
        return images[kept].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16), labels[kept]

    seen, kept_apart = part(full.images, full.labels), part(full.test_images, full.test_labels)
    return pictures.Images(*seen, *kept_apart, "coarse digits")


@dataclass(frozen=True)
class Runner:
    """How a method is run: `make(outer, knob)` gives arguments of ``solve``; `knobs`: what is tuned next to the step.

    `first`: the fewest steps it is run with; 0 where it passes its points on the way.
    """

    make: Callable[..., dict[str, Any]]
    knobs: Sequence[Any] = ()
    first: int = 0
    ends: bool = False  # by itself
    draws: bool = False  # noise given a context

    @property
    def rungs(self) -> list[int]:
        """The numbers of steps."""
        return [self.first * 2**k for k in range(_RUNGS)]


def methods(case: Case) -> dict[str, Runner]:
    """All of them, by name."""
    from ..basis import Orthonormal
    from ..direct import DLSGD, RTMLMC, Amortized, Collocation, LocalWeights, PerContext, interpolating
    from ..solvers import SOBA, Newton, StocBiO

    basis = interpolating(case.problem.domain, _FUNCTIONS)
    reduced = lambda kind: lambda outer, batch: {
        "basis": Orthonormal(basis), "solver": kind() if outer is None else kind(outer=outer), "batch": batch
    }  # fmt: skip
    nested = lambda kind: lambda outer, epochs: {"solver": kind(outer=outer, epochs=epochs)}
    return {
        "Newton, Chebyshev": Runner(lambda: {"basis": basis, "solver": Newton()}, first=1, ends=True),
        "Newton, default": Runner(lambda: {"solver": None}, first=1, ends=True),
        "SOBA": Runner(reduced(SOBA), (64, 512), 100),
        "StocBiO": Runner(reduced(StocBiO), (64, 512), 25),
        "PerContext": Runner(lambda: {"solver": PerContext()}, draws=True),
        "Collocation": Runner(lambda: {"solver": Collocation(_FUNCTIONS)}),
        "LocalWeights": Runner(lambda: {"solver": LocalWeights()}),
        "Amortized": Runner(lambda outer, inner: {"solver": Amortized(outer, inner)}, (0.003, 0.01), 40),
        "DLSGD": Runner(nested(DLSGD), (3, 6), 10, draws=True),
        "RTMLMC": Runner(nested(RTMLMC), (4, 8), 10, draws=True),
    }


REDUCED = ("Newton, Chebyshev", "Newton, default", "SOBA", "StocBiO")
METHOD_NAMES = (*REDUCED, "PerContext", "Collocation", "LocalWeights", "Amortized", "DLSGD", "RTMLMC")
PROBLEMS = ("quadratic", "two_edge_traffic", "cleaning", "newsvendor", "instruments", "dro")


class MethodRuns:
    """One method on one problem, in this process."""

    def __init__(self, case: Case, method: Runner, seconds: float):
        self.case, self.method, self.limit = case, method, seconds
        self.sampler = method.draws and case.informed is not None
        self.problem: Any = case.informed if self.sampler else case.problem

    def solved(self, settings: dict[str, Any], steps: int | None, limit: float | None) -> tuple[Any, float]:
        """A solution, and its seconds without compiling; `limit`: none where it compiles."""
        from ..direct import Direct
        from ..front_door import solve

        began = time.perf_counter()
        if isinstance(settings["solver"], Direct):
            found = settings["solver"].solve(self.problem, self.case.samples, steps, seconds=limit)
        else:
            found = solve(self.problem, self.case.samples, steps=steps, progress=False, **settings)
        return found, time.perf_counter() - began - found.stats.get("compile_seconds", 0.0)

    def tuned(self) -> tuple[dict[str, Any], str]:
        """The settings that lead furthest in a short run, and what was tried."""
        from ..direct import rough_outer_step
        from ..ground import double
        from ..study import Study, precision_for

        with double():
            precision = precision_for(self.case.problem, self.case.samples)
            unit = rough_outer_step(Study.of(self.case.problem, self.case.samples, precision).here)
        grid = list(itertools.product((None, unit, unit / 10), self.method.knobs))
        ends = []
        for outer, knob in grid:
            settings = self.method.make(outer, knob)
            first = self.method.first
            self.solved(settings, first, None)  # compiles
            _, seconds = self.solved(settings, first, self.limit / 2)
            found, _ = self.solved(settings, first * int(np.clip(self.limit / 2 / seconds, 1, 16)), self.limit / 2)
            ends.append(self.case.value(found.x))
        outer, knob = grid[int(np.argmin(ends))]
        chosen = "its own" if outer is None else f"{outer:.3g}"
        return self.method.make(outer, knob), f"outer step {chosen}, {knob}; best of {len(grid)} settings"

    def points(self) -> dict[str, Any]:
        """``(seconds, samples, F)`` in the order of effort, and what else is to be known."""
        began = time.perf_counter()
        settings, words = self.tuned() if self.method.knobs else (self.method.make(), "nothing tuned")
        tuning, held = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        self.solved(settings, self.method.first or 3, None)
        first = time.perf_counter() - began
        points, ended = [], ""
        if not self.method.first:
            found, _ = self.solved(settings, None, self.limit)
            history, total = found.history, found.stats["samples"] / max(1, len(found.history["step"]))
            kept = np.unique(np.geomspace(1, len(history["step"]), 24).astype(int)) - 1
            best = np.minimum.accumulate(history["upper"])
            leads = [int(np.flatnonzero(history["upper"][: k + 1] == best[k])[0]) for k in kept]
            rows = zip(kept, leads, strict=True)
            points = [(history["seconds"][k], total * (k + 1), self.case.value(history["x"][at])) for k, at in rows]
            ended = str(found.result)
        for steps in self.method.rungs if self.method.first else ():
            found, seconds = self.solved(settings, steps, self.limit)
            points.append((seconds, found.stats["samples"], self.case.value(found.x)))
            ended = str(found.result)
            enough = self.case.least is not None and self.gap(points[-1][2]) <= GAPS[-1]
            fully = found.stats["steps"] < steps or (1 if self.method.ends else 2) * seconds > self.limit
            if fully or (found.converged if self.method.ends else enough):
                break
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "points": [list(map(float, point)) for point in points], "first_call": first, "settings": words,
            "tuning": tuning, "memory": 1024 * peak, "held": 1024 * held, "ended": ended, "least": self.case.least,
            "sampler": self.sampler,
            "words": self.case.words, "start": self.case.value(self.case.problem.x0),
        }  # fmt: skip

    def gap(self, value: float) -> float:
        least: Any = self.case.least
        return (value - least) / abs(least)


def compare_one() -> None:
    """One method on one problem, as the command line of this process names them; prints what it found as JSON."""
    import jax

    problem, name, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    jax.config.update("jax_enable_x64", True)
    case = Case(problem, seed)
    print(json.dumps(MethodRuns(case, methods(case)[name], seconds).points()))


def _in_own_process(problem: str, name: str, seed: int, seconds: float) -> dict[str, Any]:
    """What a child found, or why it found nothing."""
    given = [problem, name, str(seed), str(seconds)]
    command = [sys.executable, "-c", "from cobilevel.commands import compare_one; compare_one()", *given]
    patience = 30 + 25 * seconds
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not finished after {patience:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def reached(found: dict[str, Any], least: float) -> list[list[float] | None]:
    """For each gap, seconds and samples of the first point from which on all are within it; ``None``: not reached."""
    answers: list[list[float] | None] = []
    for target in GAPS:
        within = [(value - least) / abs(least) <= target for *_, value in found["points"]]
        good = len(within) - next((k for k, yes in enumerate(reversed(within)) if not yes), len(within))
        answers.append(found["points"][good][:2] if good < len(within) else None)
    return answers


def compare_methods(
    problems: Sequence[str], out: Path, seconds: float, seed: int, console: Console, names: Sequence[str] = METHOD_NAMES
) -> dict[str, Any]:
    """Runs all methods on the problems; writes ``compare.json``, ``compare.md`` and ``compare.png``.

    What the first of these has is kept, where source, limit and seed are the same: a second start goes on from there.
    """
    for kind, asked, known in (("problem", problems, PROBLEMS), ("method", names, METHOD_NAMES)):
        if unknown := [name for name in asked if name not in known]:
            raise ValueError(f"there is no {kind} {'; '.join(unknown)} to compare; there are {'; '.join(known)}.")
    out.mkdir(parents=True, exist_ok=True)
    same = {"seconds": seconds, "seed": seed, "processors": os.cpu_count(), "source": _source()}
    facts = {**same, "load": [], "problems": {}}
    if (out / "compare.json").exists():
        before = json.loads((out / "compare.json").read_text(encoding="utf-8"))
        facts = before if all(before.get(name) == value for name, value in same.items()) else facts
    found = facts["problems"]
    for problem, name in itertools.product(problems or PROBLEMS, names):
        rows = found.setdefault(problem, {})
        if name not in rows:
            rows[name] = _in_own_process(problem, name, seed, seconds)
            facts["load"].append(os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"))
            (out / "compare.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            console.print(f"{problem}: {name} {'failed' if 'failed' in rows[name] else 'done'}", highlight=False)
    (out / "compare.md").write_text("\n".join(_page(facts)) + "\n", encoding="utf-8")
    _draw_times(out / "compare.png", found)
    console.print("\n".join(_page(facts)), markup=False, highlight=False, soft_wrap=True)
    return facts


def _source() -> str:
    """Which source this is: what another one measured is measured anew."""
    package = Path(__file__).parents[1]
    texts = (path.read_bytes() for path in sorted(package.rglob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def least_of(rows: dict[str, Any]) -> float:
    """``F*`` of a problem, or the least value that any run found."""
    good = [row for row in rows.values() if "failed" not in row]
    known = [row["least"] for row in good if row["least"] is not None]
    return known[0] if known else min(value for row in good for *_, value in row["points"])


def _page(facts: dict[str, Any]) -> Iterator[str]:
    """The tables in Markdown, with a sentence on each winner."""
    load = f"load {min(facts['load']):.1f} to {max(facts['load']):.1f}"
    yield f"Wall-clock limit {facts['seconds']:g} s per run; {facts['processors']} processors, {load}."
    for problem, rows in facts["problems"].items():
        good = {name: row for name, row in rows.items() if "failed" not in row}
        yield f"\n## {problem}\n"
        if good:
            least = least_of(rows)
            yield next(iter(good.values()))["words"] + f" F* = {least:.6g}.\n"
            yield (
                "| method | "
                + " | ".join(f"{gap:.1%} | samples" for gap in GAPS)
                + " | last gap | first call | memory | settings |"
            )
            yield "|---" * (6 + 2 * len(GAPS) - 1) + "|"
            times = {name: reached(row, least) for name, row in good.items()}
            for name, row in good.items():
                yield f"| {name} | {_cells(times[name])} | {_rest(row, least)} |"
            for k, gap in enumerate(GAPS):
                ranked = sorted((there[0], name) for name, at in times.items() if (there := at[k]) is not None)
                yield f"\n{gap:.1%}: {_winner(ranked)}"
            if know_more := [name for name, row in good.items() if row.get("sampler")]:
                yield f"\nThese know the law of eta at every xi, which the others must infer: {', '.join(know_more)}."
            if problem in ("two_edge_traffic", "cleaning"):
                yield f"\n{nested_verdict(good, least)}"
        for name, row in rows.items():
            if "failed" in row:
                yield f"\n{name} failed: {row['failed']}"


def nested_verdict(rows: dict[str, Any], least: float) -> str:
    """Claim C1 on one problem: how far ``DLSGD`` and ``RTMLMC`` come in what the reduction needs to converge.

    The budget is what the fastest reduced solver takes to the smallest gap that one reaches. The claim holds where
    neither is within ten times that gap by then, in seconds or in samples.
    """
    nested = [name for name in ("DLSGD", "RTMLMC") if name in rows]
    times = {name: reached(rows[name], least) for name in REDUCED if name in rows}
    arrived = [k for k in range(len(GAPS)) if any(at[k] is not None for at in times.values())]
    if not arrived or not nested:
        return f"C1: no verdict, since {'the reduction is not within 10%' if nested else 'neither was run'}."
    near, last = GAPS[arrived[-1]], arrived[-1]
    seconds, samples, best = min((*there, name) for name, at in times.items() if (there := at[last]) is not None)
    gap = lambda value: (value - least) / abs(least)
    gaps = {name: [(*rest, gap(value)) for *rest, value in row["points"]] for name, row in rows.items()}
    in_time = {name: [p for p in gaps[name] if p[0] <= seconds] for name in nested}
    in_samples = {name: [p for p in gaps[name] if p[1] <= samples] for name in nested}
    ends = [points[-1][2] for part in (in_time, in_samples) for points in part.values() if points]
    verdict = "holds" if all(end > 10 * near for end in ends) else "fails"
    listed = lambda part: " and ".join(_where(name, points) for name, points in part.items())
    at_end = " and ".join(f"{_where(name, gaps[name])} after {gaps[name][-1][1]:.2g} samples" for name in nested)
    chance = [name for name in ("SOBA", "StocBiO") if name in rows]
    others = f" Of the reduction, {listed({name: gaps[name] for name in chance})}." if chance else ""
    return (
        f"C1 {verdict}: the reduction ({best}) is within {near:.1%} after {seconds:.2f} s and {samples:.2g} samples. "
        f"In the same time {listed(in_time)}; with the same samples {listed(in_samples)}. "
        f"At the wall-clock limit {at_end}.{others}"
    )


def _where(name: str, points: list[Any]) -> str:
    return f"{name} is {points[-1][2]:.2%} from the optimum" if points else f"{name} has not ended its shortest run"


def _cells(answers: list[Any]) -> str:
    return " | ".join("- | -" if at is None else f"{at[0]:.2f} s | {at[1]:.2g}" for at in answers)


def _rest(row: dict[str, Any], least: float) -> str:
    gap = (row["points"][-1][2] - least) / abs(least) if row["points"] else float("nan")
    last, memory = "diverged" if gap > _FAR else f"{gap:.2%}", max(0.0, row["memory"]) / 2**20
    tuned = f"{row['settings']}, tuned in {row['tuning']:.0f} s"
    return f"{last} | {row['first_call']:.1f} s | {memory:.0f} MB | {tuned}"


def _winner(ranked: list[tuple[float, str]]) -> str:
    if not ranked:
        return "not reached by any method."
    seconds, name = ranked[0]
    kind = "the reduction" if name in REDUCED else "without a reduction"
    next_best = f", then {ranked[1][1]} in {ranked[1][0]:.2f} s" if len(ranked) > 1 else ""
    return f"fastest is {name} ({kind}) in {seconds:.2f} s{next_best}."


def _draw_times(path: Path, found: dict[str, Any]) -> None:
    """Seconds to each gap, a panel for each problem and a line for each method."""
    from ..answer import COLOURS, DPI, shown_figure, tidy

    across = min(3, len(found))
    down = -(-len(found) // across)
    figure = shown_figure(4.2 * across, 3.4 * down)
    axes = figure.subplots(down, across, squeeze=False, sharex=True).ravel()
    for axis in axes[len(found) :]:
        axis.set_axis_off()
    for axis, (problem, rows) in zip(axes, found.items(), strict=False):
        good = [name for name, row in rows.items() if "failed" not in row]
        for place, name in enumerate(reversed(good)):
            for k, at in enumerate(reached(rows[name], least_of(rows))):
                if at is not None:
                    axis.plot(max(at[0], 1e-3), place, "os^"[k], color=COLOURS[k], ms=6)
        axis.set_yticks(range(len(good)), list(reversed(good)), fontsize="small")
        axis.set(xscale="log", xlabel="seconds, compiling apart", title=problem, ylim=(-0.5, len(good) - 0.5))
        axis.tick_params(axis="x", which="minor", labelbottom=False)
        tidy(axis)
    for k, gap in enumerate(GAPS):
        axes[0].plot([], [], "os^"[k], color=COLOURS[k], label=f"gap {gap:.1%}")
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=DPI // 2)
