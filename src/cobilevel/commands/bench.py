"""The benchmarks behind ``cobilevel bench``: each script in a process of its own, and what it measured against goals.

A script measures speed where its text holds ``"--json"``: it takes ``--json FILE`` and writes a list there, of
``{"what": ..., "value": ..., "unit": ..., "goal": ..., "better": ...}``. The goal is a number, or ``None`` where there
is none; `better` is ``"less"``, also where it is left out, or ``"more"``; a value of ``None`` was not reached. Where
its text holds ``"--quick"`` too, it has a shorter form.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_QUIET = 0.3  # the load below which a machine is quiet: less than a third of one core is at work
_TIMED_WITH = ("cobilevel", "jax", "jaxlib", "equinox", "numpy", "scipy")
_VERDICTS = {True: "met", False: "missed", None: ""}
_TAIL = 8  # lines shown of what a script said before it failed
_SHADES = {True: "#3a7d44", False: "#d1495b"}
_LONGEST_BAR = 100.0  # a bar ends there: so many times better or worse than the goal


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
        number = lambda v: isinstance(v, int | float) and not isinstance(v, bool)
        fine = (
            isinstance(entry, dict)
            and isinstance(entry.get("what"), str)
            and isinstance(entry.get("unit"), str)
            and "value" in entry
            and all(entry.get(name) is None or number(entry[name]) for name in ("value", "goal"))
            and entry.get("better", "less") in ("less", "more")
        )
        if not fine:
            raise ValueError(f"it wrote {json.dumps(entry)[:200]}, which is no measurement")
        value, goal = (None if entry.get(name) is None else float(entry[name]) for name in ("value", "goal"))
        return Measurement(script, entry["what"], value, entry["unit"], goal, entry.get("better", "less"))

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
        value = "not reached" if self.value is None else _figure(self.value)
        goal = "" if self.goal is None else f"{'≤' if self.better == 'less' else '≥'} {_figure(self.goal)}"
        return self.what, value, self.unit, goal, _VERDICTS[self.met]


def _figure(number: float) -> str:
    """Three digits, or whole where there are more."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def speed_benchmarks(folder: Path | None = None) -> dict[str, Path]:
    """The scripts that measure speed, by name: those of a folder, or of ``benchmarks`` here or in the source tree."""
    places = (Path("benchmarks"), Path(__file__).parents[3] / "benchmarks") if folder is None else (folder,)
    for place in places:
        scripts = sorted(place.glob("*.py"))
        found = {path.stem: path for path in scripts if '"--json"' in path.read_text(encoding="utf-8")}
        if found:
            return found
    raise ValueError(
        f"No benchmarks in {' or '.join(str(place) for place in places)}. They come with the source, not with the "
        "installed package: run this in a checkout of it, or name their folder with --folder."
    )


def chosen_benchmarks(found: dict[str, Path], names: Sequence[str]) -> dict[str, Path]:
    """Those that are named, in the order of the names; all where none is."""
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ValueError(f"There is no benchmark {', '.join(unknown)}. There are {', '.join(found)}.")
    return {name: found[name] for name in dict.fromkeys(names)} if names else found


def _measurements(name: str, script: Path, quick: bool, log: Path) -> list[Measurement]:
    """Runs one script, what it prints going to a file; raises with a reason where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "measured.json"
        shorter = ["--quick"] if quick and '"--quick"' in script.read_text(encoding="utf-8") else []
        with log.open("w", encoding="utf-8") as output:
            command = [sys.executable, str(script), "--json", str(written), *shorter]
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
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
    scripts = chosen_benchmarks(speed_benchmarks(folder), names)
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


def _circumstances() -> dict[str, Any]:
    """Machine, versions, date and load: what a time cannot be read without."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": _gigabytes(),
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _TIMED_WITH},
        "load": round(load, 2),
        "quiet": load < _QUIET,
    }


def _processor() -> str:
    """The processor's name, as far as the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _gigabytes() -> float | None:
    """The memory of the machine in GB, as far as the system tells."""
    if not hasattr(os, "sysconf") or not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)


def _tally(lines: Sequence[Measurement]) -> str:
    goals = [line.met for line in lines if line.met is not None]
    return f"{sum(goals)} of {len(goals)} goals met"


def _printed(lines: Sequence[Measurement]) -> Table:
    """The table for the terminal."""
    table = Table(caption=_tally(lines), box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("what", "value", "unit", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("value", "goal") else "left")
    for name, part in _by_script(lines):
        table.add_section()
        table.add_row(f"[bold]{escape(name)}[/bold]")
        for line in part:
            table.add_row(*map(escape, line.words()), style="red" if line.met is False else None)
    return table


def _by_script(lines: Sequence[Measurement]) -> Iterator[tuple[str, list[Measurement]]]:
    for name in dict.fromkeys(line.script for line in lines):
        yield name, [line for line in lines if line.script == name]


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


def _draw_bars(path: Path, lines: Sequence[Measurement]) -> None:
    """Every value against its goal: a bar from the goal to the left is met, one to the right is missed."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    groups = [(name, [line for line in part if line.share is not None]) for name, part in _by_script(lines)]
    groups = [(name, part) for name, part in groups if part]
    rows = sum(len(part) + 1.4 for _, part in groups)
    figure = Figure(figsize=(10, max(2.2, 0.25 * rows + 1.3)), layout="constrained")
    axis = figure.subplots()
    place, places, names = 0.0, [], []
    for name, part in groups:
        axis.text(0.004, place, name, transform=axis.get_yaxis_transform(), weight="bold", va="center", fontsize=9)
        place += 1
        for line in part:
            drawn = min(max(line.share or 0.0, 1 / _LONGEST_BAR), _LONGEST_BAR)
            axis.barh(place, drawn - 1, left=1, height=0.62, color=_SHADES[bool(line.met)])
            beside = {"va": "center", "fontsize": 7.5, "color": "#404040", "textcoords": "offset points"}
            ends = {"ha": "right", "xytext": (-4, 0)} if drawn <= 1 else {"ha": "left", "xytext": (4, 0)}
            axis.annotate(" ".join(line.words()[1:3]).replace("$", r"\$"), (drawn, place), **ends, **beside)
            places.append(place)
            names.append(f"{line.what} ({line.words()[3]})".replace("$", r"\$"))
            place += 1
        place += 0.4
    shares = [min(max(line.share or 0.0, 1 / _LONGEST_BAR), _LONGEST_BAR) for _, part in groups for line in part]
    axis.set(xscale="log", xlim=(min([1.0, *shares]) / 8, 8 * max([1.0, *shares])), ylim=(max(place, 1) - 0.6, -0.8))
    axis.set_yticks(places, names, fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.axvline(1, color="black", lw=1)
    axis.set_xlabel("times the goal: left of the line it is met")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.grid(axis="x", color="#e6e6e6", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    keys = [Patch(color=_SHADES[met], label=_VERDICTS[met]) for met in (True, False)]
    figure.legend(handles=keys, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(_tally(lines), fontsize=11, x=0.01, ha="left")
    figure.savefig(path, dpi=150)
