"""What is behind ``cobilevel solve FILE.py``: a problem stated in a file, solved into a folder."""

import runpy
from pathlib import Path
from typing import Any

from rich.console import Console

from ..answer import Solution
from ..problem import Problem

_OPTIONAL = ("basis", "solver", "options")


def solve_file(
    file: Path, out: Path, console: Console, steps: int | None = None, seed: int | None = None, judge: bool = False
) -> Solution:
    """Runs a file of Python, solves the `problem` from the `samples` it defines, and writes what came out to a folder.

    The file is code, and is run as such: with all that the user may do. It may also define `basis`, `solver` and
    `options`, a dict of further arguments of ``solve``; `steps` and `seed` of the command line come before these. The
    checkpoint of the run is in the folder too, so that the same command goes on where it was stopped.
    """
    from ..front_door import solve  # these take a while to import
    from ..judge import certify

    stated = _stated_in(file)
    given = {"steps": steps, "key": seed}
    options = {**stated.get("options", {}), **{name: value for name, value in given.items() if value is not None}}
    parts = {name: stated[name] for name in ("basis", "solver") if name in stated}
    out.mkdir(parents=True, exist_ok=True)
    solution = solve(stated["problem"], stated["samples"], **parts, **options, checkpoint=out)
    written = [solution.save(out / "solution.npz"), out / "policy.png", out / "summary.txt"]
    solution.plot().savefig(written[1])
    words = [solution.summary()]
    if judge:
        words.append(str(certify(stated["problem"], solution, stated["samples"])))
    written[2].write_text("\n\n".join(words) + "\n")
    console.print("\n\n".join(words), markup=False, highlight=False)
    console.print("\nWritten: " + ", ".join(str(path) for path in written), markup=False, highlight=False)
    return solution


def _stated_in(file: Path) -> dict[str, Any]:
    """The names that a file defines; raises where it does not state a problem and samples."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}.")
    stated = runpy.run_path(str(file), run_name="cobilevel_solve")
    missing = [name for name in ("problem", "samples") if name not in stated]
    if missing:
        raise ValueError(
            f"{file} does not define {' and '.join(missing)}. It must define problem, a cb.Problem, and samples; it "
            f"may define {', '.join(_OPTIONAL)}."
        )
    if not isinstance(stated["problem"], Problem):
        raise ValueError(f"{file}: problem must be a cb.Problem, got {type(stated['problem']).__name__}.")
    if not isinstance(stated.get("options", {}), dict):
        raise ValueError(f"{file}: options must be a dict of arguments of cb.solve.")
    return stated
