"""A function at every case of a table, kept on disk: what a study of solvers, seeds and step sizes mostly is."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..answer import Solution
from .run_files import Run
from .store import Runs
from .tasks import Task, sweep


def tabulate(
    function: Callable[..., Any],
    cases: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    folder: str | Path | Runs,
    executor: Any = "processes",
    workers: int | None = None,
    progress: bool | None = None,
    retries: int = 3,
) -> list[dict[str, Any]]:
    """Calls a function with the arguments of each case, those that are in the folder already left out.

    **Arguments:**

    - `function`: called with the entries of a case as keyword arguments. It returns a dict, of which numbers, strings
      and lists make the row of the table and arrays are kept as curves; or a ``Solution``.
    - `cases`: a list of dicts; or a dict of lists, for every combination. A case is known by its entries and the name
      of the function: give another name, or another folder, when the function has changed.
    - `folder`: where runs are kept.
    - `executor`, `workers`, `progress`, `retries`: as for ``sweep``.

    **Returns:** a row for each case, in their order: its entries and what the function returned.
    """
    table = _combinations(cases) if isinstance(cases, Mapping) else [dict(case) for case in cases]
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"function must have a name, by which its runs are known; got {function!r}.")
    runs = folder if isinstance(folder, Runs) else Runs(folder)
    specs = [{"function": name, **case} for case in table]
    tasks = [
        Task(
            ", ".join(f"{key} {value}" for key, value in case.items()), [spec], partial(_one_case, function, spec, case)
        )
        for spec, case in zip(specs, table, strict=True)
    ]
    sweep(tasks, runs, len(tasks), name, progress, None, executor, workers, retries)
    return [{**case, **runs.get(spec).result} for spec, case in zip(specs, table, strict=True)]


def _combinations(cases: Mapping[Any, Any]) -> list[dict[str, Any]]:
    return [dict(zip(cases, values, strict=True)) for values in itertools.product(*cases.values())]


def _one_case(function: Callable[..., Any], spec: Mapping[str, Any], case: Mapping[str, Any], tell: Any) -> list[Run]:
    found = function(**case)
    if isinstance(found, Solution):
        return [_run_of_solution(spec, found)]
    if not isinstance(found, Mapping):
        raise TypeError(f"{spec['function']} must return a dict or a Solution, got {type(found).__name__}")
    arrays = {key: np.asarray(value) for key, value in found.items() if getattr(value, "ndim", 0)}
    return [Run(spec, {key: value for key, value in found.items() if key not in arrays}, arrays)]


def _run_of_solution(spec: Mapping[str, Any], found: Solution) -> Run:
    result = {
        "x": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), found.x),
        "converged": bool(found.converged),
        "ended": found.result.name,
        "steps": int(found.stats["steps"]),
    }
    curves = {name: np.asarray(curve) for name, curve in found.history.items()}
    return Run(spec, result, curves, {"seconds": float(found.stats["seconds"])})
