"""The benchmarks behind ``cobilevel bench``: each script in a process of its own, and what it measured against goals.

A script measures speed where its text holds ``"--json"``: it takes ``--json FILE`` and writes a list there, of
``{"what": ..., "value": ..., "unit": ..., "goal": ..., "better": ...}``. The goal is a number, or ``None`` where there
is none; `better` is ``"less"``, also where it is left out, or ``"more"``; a value of ``None`` was not reached. Where
its text holds ``"--quick"`` too, it has a shorter form.
"""

import itertools
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_TIMED_WITH = ("cobilevel", "jax", "jaxlib", "equinox", "numpy", "scipy")
_VERDICTS = {True: "met", False: "missed", None: ""}
_SHADES = {True: "#3a7d44", False: "#d1495b"}


@dataclass(frozen=True)
class Measurement:
    """One line: what a script measured, and its goal."""

    script: str
    what: str
    value: float | None
    unit: str
    goal: float | None = None
    better: str = "less"

    @staticmethod
    def read(script: str, entry: Any) -> "Measurement":
        """From what a script wrote; raises where that is not a measurement."""
        match entry:
            case {"what": str(what), "value": int() | float() | None as value, "unit": str(unit), **rest}:
                goal, better = rest.get("goal"), rest.get("better", "less")
                numbers = isinstance(goal, int | float | None) and not any(isinstance(v, bool) for v in (value, goal))
                if numbers and better in ("less", "more"):
                    as_float = lambda v: None if v is None else float(v)
                    return Measurement(script, what, as_float(value), unit, as_float(goal), better)
        raise ValueError(f"it wrote {json.dumps(entry)[:200]}, which is not a measurement")

    @property
    def share(self) -> float | None:
        """Value over goal, or goal over value where more is better: at most 1 where the goal is met."""
        if self.goal is None:
            return None
        if self.value is None:
            return float("inf")
        over, under = (self.value, self.goal) if self.better == "less" else (self.goal, self.value)
        return over / under if under > 0 else float("inf") if over > 0 else 1.0

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` where there is none."""
        return None if self.share is None else self.share <= 1

    def words(self) -> tuple[str, ...]:
        """The line in words: what, value, unit, goal, met or missed."""
        figure = lambda number: f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
        value = "not reached" if self.value is None else figure(self.value)
        goal = "" if self.goal is None else f"{'≤' if self.better == 'less' else '≥'} {figure(self.goal)}"
        return self.what, value, self.unit, goal, _VERDICTS[self.met]


def speed_benchmarks(folder: Path | None = None, names: Sequence[str] = ()) -> dict[str, Path]:
    """The scripts that measure speed, by name: those of a folder, or of ``benchmarks`` here or in the source tree; if
    any are named, these alone and in that order."""
    places = (Path("benchmarks"), Path(__file__).parents[3] / "benchmarks") if folder is None else (folder,)
    for place in places:
        scripts = sorted(place.glob("*.py"))
        found = {path.stem: path for path in scripts if '"--json"' in path.read_text(encoding="utf-8")}
        if unknown := [name for name in names if found and name not in found]:
            raise ValueError(f"There is no benchmark {', '.join(unknown)}. There are {', '.join(found)}.")
        if found:
            return {name: found[name] for name in names or found}
    raise ValueError(
        f"No benchmarks in {' or '.join(str(place) for place in places)}. They come with the source, not with the "
        "installed package: run this in a checkout, or pass their folder with --folder."
    )


def _measurements(name: str, script: Path, quick: bool, log: Path, tail: int = 8) -> list[Measurement]:
    """Runs one script, what it prints going to a file; raises with a reason where it fails, and with the `tail` of
    what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "measured.json"
        shorter = ["--quick"] if quick and '"--quick"' in script.read_text(encoding="utf-8") else []
        with log.open("w", encoding="utf-8") as output:
            command = [sys.executable, str(script), "--json", str(written), *shorter]
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-tail:]
            raise ValueError("\n".join([f"it ended with exit code {code}", *said]))
        if not written.exists():
            raise ValueError("it wrote no measurements")
        try:
            entries = json.loads(written.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"what it wrote is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError("it wrote no list of measurements")
    return [Measurement.read(name, entry) for entry in entries]


def run_benchmarks(names: Sequence[str], out: Path, folder: Path | None, quick: bool, console: Console) -> bool:
    """Runs the benchmarks, writes ``bench.json``, ``bench.md`` and ``bench.png``; whether every script succeeded."""
    scripts = speed_benchmarks(folder, names)
    out.mkdir(parents=True, exist_ok=True)
    facts = _circumstances()
    if not facts["quiet"]:
        console.print(f"The machine is not quiet (load {facts['load']:.2f}): times will be too long.", style="yellow")
    lines: list[Measurement] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for number, (name, script) in enumerate(scripts.items(), 1):
        console.print(f"[{number}/{len(scripts)}] {name} ...", end="", markup=False)
        began = time.perf_counter()
        try:
            lines += _measurements(name, script, quick, out / f"{name}.log")
        except ValueError as error:
            failed[name] = str(error)
        seconds[name] = round(time.perf_counter() - began, 1)
        console.print(f" {seconds[name]:.0f} s{', failed' if name in failed else ''}")
        _write(out, facts | {"quick": quick, "seconds": seconds, "failed": failed}, lines)
    console.print(_printed(lines))
    for name, why in failed.items():
        console.print(f"{name} failed: {why}", style="red", markup=False)
    return not failed


def _write(out: Path, facts: dict[str, Any], lines: Sequence[Measurement]) -> None:
    """All three files; after every script, so that a run that is stopped leaves what it has."""
    entries = [asdict(line) | {"met": line.met} for line in lines]
    (out / "bench.json").write_text(json.dumps(facts | {"measurements": entries}, indent=1) + "\n", encoding="utf-8")
    (out / "bench.md").write_text(_page(facts, lines), encoding="utf-8")
    _draw_bars(out / "bench.png", lines)


def _circumstances(quiet: float = 0.3) -> dict[str, Any]:
    """Machine, versions, date and load: what a time cannot be read without, as far as the system tells.

    A machine is `quiet` below that load: less than a third of one core is at work.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cpuinfo, sizes = Path("/proc/cpuinfo"), ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    models = re.findall(r"^model name\s*: *(.*)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    known = set(sizes) <= set(getattr(os, "sysconf_names", ()))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": models[0] if models else platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "memory_gb": round(math.prod(os.sysconf(size) for size in sizes) / 1e9, 1) if known else None,
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _TIMED_WITH},
        "load": round(load, 2),
        "quiet": load < quiet,
    }


def _tally(lines: Sequence[Measurement]) -> str:
    goals = [line.met for line in lines if line.met is not None]
    return f"{sum(goals)} of {len(goals)} goals met"


def _printed(lines: Sequence[Measurement]) -> Table:
    """The table for the terminal."""
    table = Table(caption=_tally(lines), box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("what", "value", "unit", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("value", "goal") else "left")
    for name, part in itertools.groupby(lines, lambda line: line.script):
        table.add_section()
        table.add_row(f"[bold]{escape(name)}[/bold]")
        for line in part:
            table.add_row(*map(escape, line.words()), style="red" if line.met is False else None)
    return table


def _page(facts: dict[str, Any], lines: Sequence[Measurement]) -> str:
    """The table as Markdown, with what it was measured on."""
    machine, versions = facts["machine"], facts["versions"]
    cell = lambda text: text.replace("|", r"\|")
    load = f"load {facts['load']} at the start{'' if facts['quiet'] else ': not quiet, times are too long'}"
    words = [
        "# Benchmarks",
        "",
        f"{facts['date']}, {machine['cores']} cores ({machine['processor']}), {load}; "
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}"
        f"{'; the quick form of each script' if facts['quick'] else ''}. {_tally(lines)}.",
        "",
        "| script | what | value | unit | goal | |",
        "|---|---|--:|---|--:|---|",
    ]
    words += [f"| {line.script} | {' | '.join(map(cell, line.words()))} |" for line in lines]
    words += [f"\n{name} failed: {why.splitlines()[0]}." for name, why in facts["failed"].items()]
    return "\n".join(words) + "\n"


def _draw_bars(path: Path, lines: Sequence[Measurement], longest: float = 100.0) -> None:
    """Every value against its goal: a bar from the goal to the left is met, one to the right is missed.

    Bars end where a value is `longest` times better or worse than its goal.
    """
    from matplotlib.patches import Patch

    from ..answer import written_figure

    aimed = [line for line in lines if line.share is not None]
    rows = len(aimed) + 1.4 * len({line.script for line in aimed})
    figure = written_figure(10, max(2.2, 0.25 * rows + 1.3))
    axis = figure.subplots()
    literal = lambda text: text.replace("$", r"\$")
    place, names, ends = 0.0, {}, [1.0]
    for name, part in itertools.groupby(aimed, lambda line: line.script):
        axis.text(0.004, place, name, transform=axis.get_yaxis_transform(), weight="bold", va="center", fontsize=9)
        for line in part:
            place += 1
            end = min(max(line.share or 0.0, 1 / longest), longest)
            axis.barh(place, end - 1, left=1, height=0.62, color=_SHADES[bool(line.met)])
            look = {"va": "center", "fontsize": 7.5, "color": "#404040", "textcoords": "offset points"}
            look |= {"ha": "right", "xytext": (-4, 0)} if end <= 1 else {"ha": "left", "xytext": (4, 0)}
            axis.annotate(literal(" ".join(line.words()[1:3])), (end, place), **look)
            names[place] = literal(f"{line.what} ({line.words()[3]})")
            ends.append(end)
        place += 1.4
    axis.set(xscale="log", xlim=(min(ends) / 8, 8 * max(ends)), ylim=(max(place, 1) - 0.6, -0.8))
    axis.set_yticks(list(names), list(names.values()), fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.axvline(1, color="black", lw=1)
    axis.set_xlabel("value over goal: met left of the line")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.grid(axis="x", color="#e6e6e6", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    keys = [Patch(color=_SHADES[met], label=_VERDICTS[met]) for met in (True, False)]
    figure.legend(handles=keys, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(_tally(lines), fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=150)
