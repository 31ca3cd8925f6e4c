"""An experiment from its first run to its page; and the page again, from what is there."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..gallery import images
from ..ground import write_file
from ..report import joined, page_data, panel_figures, write_page
from ..sweep import Runs, sweep
from .claims import ELSEWHERE, complete, concluded
from .cleaning import CLEANING_BUDGETS, Cleaning
from .cleaning_claims import with_own_batches
from .experiment import Experiment
from .inverse import INVERSE_BUDGETS, Inverse

EXPERIMENTS = {"inverse": INVERSE_BUDGETS, "cleaning": CLEANING_BUDGETS}
_REQUEST = "experiment.json"  # what was asked for, so that the page can be made again
_OWN_BATCHES = "own-batches.json"  # curves of cells with batches of their own, if some were kept: a reading of H1


def _asked_for(request: dict[str, Any], runs: Runs) -> Experiment:
    try:
        budget, data = EXPERIMENTS[request["experiment"]][request["budget"]], request.get("data")
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{_REQUEST} does not say what experiment it is of, and at which budget, so it was not written by "
            "cobilevel reproduce."
        ) from error
    if request["experiment"] == "inverse":
        return Inverse(budget, runs)
    return Cleaning(budget, runs, images.load(data))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Delete it, and run cobilevel reproduce again.") from error


def _write_json(path: Path, content: Any) -> None:
    write_file(path, json.dumps(content, indent=1))


def reproduce_experiment(
    experiment: str,
    budget: str,
    out: Path,
    data: str = "digits",
    progress: bool | None = None,
    limit: float | None = None,
    workers: int | None = None,
) -> bool:
    """Runs what is not finished yet, and writes ``claims.json``, ``summary.json``, figures and ``report.html``.

    `limit`: seconds after which no further bundle is begun. `workers`: processes that share the work; without them
    it is done in this one. Returns whether all is done.
    """
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r}.")
    if budget not in EXPERIMENTS[experiment]:
        raise ValueError(f"budget must be one of {', '.join(EXPERIMENTS[experiment])}, got {budget!r}.")
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give a folder with --out.")
    request = {"experiment": experiment, "budget": budget} | ({"data": str(data)} if experiment == "cleaning" else {})
    before = _read_json(out / _REQUEST) if (out / _REQUEST).exists() else request
    if before != request:
        raise ValueError(
            f"{out} holds another experiment ({', '.join(f'{k} {v}' for k, v in before.items())}). Give another "
            "folder with --out, or the same settings to continue it."
        )
    if experiment == "cleaning":
        images.load(data)  # before anything is written
    out.mkdir(parents=True, exist_ok=True)
    _write_json(out / _REQUEST, request)
    runs = Runs(out)
    asked = _asked_for(request, runs)
    total = sum(1 for _ in asked.tasks())
    executor = "here" if workers is None else "processes"
    if not sweep(asked.tasks(), runs, total, f"{experiment}, {budget}", progress, limit, executor, workers):
        return False
    write_report(out)
    return True


def write_report(out: Path) -> Path:
    """Writes claims, figures and the page from the runs in a folder; where those are gone, from what was written.

    Verdicts are had anew from the comparisons that were kept.
    """
    out = Path(out)
    summary, claims = _reported(out)
    panel_figures(summary, out / "figures")
    return write_page(summary, claims, out / "report.html")


def write_joint_report(folders: Sequence[Path], path: Path) -> Path:
    """One page for several experiments, with figures and the claims of all, in their order, next to it."""
    folder = Path(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    reported = [_reported(Path(one)) for one in folders]
    title, lead = "The paper's experiments, reproduced", " ".join(summary["lead"] for summary, _ in reported)
    known = [entry for _, claims in reported for entry in claims if entry["verdict"] != "not tested"]
    summary, claims = joined([summary for summary, _ in reported], title, lead), complete(known)
    panel_figures(summary, folder / "figures")
    _write_json(folder / "claims.json", claims)
    return write_page(summary, claims, path)


def _reported(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and claims of a folder, written anew where its runs are there."""
    if not (out / _REQUEST).exists():
        summary, claims = _kept(out)
    else:
        summary, claims = _from_runs(out)
        _write_json(out / "summary.json", summary)
    claims = [concluded(entry) for entry in claims]
    if (out / _OWN_BATCHES).exists():
        claims = with_own_batches(claims, _read_json(out / _OWN_BATCHES))
    _write_json(out / "claims.json", claims)
    return summary, claims


def _kept(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and claims as they were written: a summary that is gone is in the page."""
    if (out / "summary.json").exists():
        return _read_json(out / "summary.json"), _read_json(out / "claims.json")
    if (out / "report.html").exists():
        return page_data(out / "report.html")["summary"], _read_json(out / "claims.json")
    raise FileNotFoundError(
        f"{out} holds no experiment: neither {_REQUEST} nor summary.json. Make one with cobilevel reproduce."
    )


def _from_runs(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    request, runs = _read_json(out / _REQUEST), Runs(out)
    asked = _asked_for(request, runs)
    unfinished = [task.label for task in asked.tasks() if runs.missing(task.specs)]
    if unfinished:
        raise ValueError(
            f"{out}: {len(unfinished)} of its tasks are not finished, first {unfinished[0]!r}. Run cobilevel reproduce "
            f"{request['experiment']} again with the same settings to continue."
        )
    summary, claims = asked.summary() | {"budget": request["budget"]}, complete(asked.verdicts())
    summary["about"] += [
        ["wall time", f"{runs.seconds / 60:.1f} minutes, all starts together"],
        ["computed on", "; ".join(f"{words}: {count} runs" for words, count in runs.origins().most_common())],
    ]
    return summary, claims


def print_verdicts(out: Path, console: Console) -> None:
    """The verdicts, in the terminal."""
    colours = {
        "holds": "green",
        "holds as corrected": "green",
        ELSEWHERE: "yellow",
        "fails": "red",
        "not tested": "dim",
    }
    say = partial(console.print, markup=False, highlight=False)
    for entry in _read_json(Path(out) / "claims.json"):
        say(f"{entry['id']} {entry['verdict']}", style=colours[entry["verdict"]])
        say(f"   {entry['claim']}")
        if entry.get("reading"):
            say(f"   readings under which it holds: {entry['reading']}", style="dim")
        if entry["verdict"] != "not tested":
            say(f"   {entry['measured']}", style="dim")
        for miss in entry.get("misses") or ():
            say(f"   {miss}", style="dim")
    console.print(f"\nThe page: {Path(out) / 'report.html'}")
