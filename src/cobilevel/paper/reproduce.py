"""``reproduce``: an experiment from its first run to its page; ``write_report``: the page again, from what is there."""

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from ..gallery import images
from ..report.page import page
from ..report.panels import panel_figures
from ..sweep.store import Runs
from ..sweep.tasks import sweep
from .claims import complete
from .cleaning import experiment as cleaning
from .cleaning import findings as cleaning_report
from .inverse import experiment as inverse
from .inverse import findings as inverse_report
from .lab import Lab
from .theory import theory

EXPERIMENTS = ("inverse", "cleaning")


BUDGETS = ("quick", "default", "full")


_ORDER = "experiment.json"  # what was asked for, so that the page can be made again


def _lab(order: dict[str, Any], runs: Runs, known: images.Images | None = None) -> Lab:
    if order["experiment"] == "inverse":
        return inverse.Inverse(inverse.BUDGETS[order["budget"]], runs)
    return cleaning.Cleaning(cleaning.BUDGETS[order["budget"]], runs, known or images.load(order["data"]))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Delete it, and run cobilevel reproduce again.") from error


def reproduce(
    experiment: str,
    budget: str,
    out: Path,
    data: str = "digits",
    progress: bool | None = None,
    limit: float | None = None,
) -> bool:
    """Runs what is not finished yet, and writes ``claims.json``, ``summary.json``, figures and ``report.html``.

    `limit`: seconds after which no further bundle is begun. Returns whether all is done.
    """
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r}.")
    if budget not in BUDGETS:
        raise ValueError(f"budget must be one of {', '.join(BUDGETS)}, got {budget!r}.")
    out = Path(out)
    order = {"experiment": experiment, "budget": budget} | ({"data": str(data)} if experiment == "cleaning" else {})
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give a folder with --out.")
    known = images.load(data) if experiment == "cleaning" else None  # before anything is written
    _remember(out, order)
    runs = Runs(out)
    lab = _lab(order, runs, known)
    total = sum(1 for _ in lab.tasks())
    if not sweep(lab.tasks(), runs, total, f"{experiment}, {budget}", progress, limit):
        return False
    write_report(out)
    return True


def _remember(out: Path, order: dict[str, Any]) -> None:
    """Keeps what was asked for; a folder holds one experiment."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / _ORDER
    if path.exists():
        before = _read(path)
        if before != order:
            raise ValueError(
                f"{out} holds another experiment ({', '.join(f'{k} {v}' for k, v in before.items())}). Give another "
                "folder with --out, or the same settings to go on with it."
            )
    _write(path, order)


def _write(path: Path, content: Any) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text(json.dumps(content, indent=1))
    os.replace(draft, path)


def write_report(out: Path) -> Path:
    """Writes claims, figures and the page from the runs in a folder; or, where those are gone, from its summary."""
    out = Path(out)
    if not (out / _ORDER).exists():
        if not (out / "summary.json").exists():
            raise FileNotFoundError(
                f"{out} holds no experiment: neither {_ORDER} nor summary.json. Make one with cobilevel reproduce."
            )
        summary, claims = (_read(out / name) for name in ("summary.json", "claims.json"))
    else:
        summary, claims = _summarise(out, _read(out / _ORDER))
        _write(out / "summary.json", summary)
        _write(out / "claims.json", claims)
    panel_figures(summary, out / "figures")
    return page(summary, claims, out / "report.html")


def _summarise(out: Path, order: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    runs = Runs(out)
    lab = _lab(order, runs)
    unfinished = [task.label for task in lab.tasks() if runs.missing(task.specs)]
    if unfinished:
        raise ValueError(
            f"{out}: {len(unfinished)} of its tasks are not finished, first {unfinished[0]!r}. Run cobilevel reproduce "
            f"{order['experiment']} again with the same settings: it goes on where it stopped."
        )
    if isinstance(lab, inverse.Inverse):
        told, found = inverse_report.summary(runs, lab)
        found += theory()
    else:
        assert isinstance(lab, cleaning.Cleaning)
        told, found = cleaning_report.summary(runs, lab)
    seconds = runs.noted("seconds") or 0.0
    about = [
        *told["about"],
        ["wall time", f"{seconds / 60:.1f} minutes, all starts together"],
        ["computed on", "; ".join(f"{words}: {count} runs" for words, count in runs.origins().most_common())],
    ]
    return told | {"budget": order["budget"], "about": about}, complete(found)


def tell(out: Path, console: Console) -> None:
    """The verdicts, in the terminal."""
    claims = json.loads((Path(out) / "claims.json").read_text())
    colours = {"holds": "green", "fails": "red", "not tested": "dim"}
    for entry in claims:
        word = entry["verdict"]
        console.print(f"{entry['id']} {word}", style=colours[word], highlight=False)
        console.print(f"   {entry['claim']}", markup=False, highlight=False)
        if word != "not tested":
            console.print(f"   {entry['measured']}", style="dim", markup=False, highlight=False)
    console.print(f"\nThe page: {Path(out) / 'report.html'}")
