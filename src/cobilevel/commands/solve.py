"""What is behind ``cobilevel demo`` and ``cobilevel solve FILE.py``: problems solved and written to a folder."""

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..answer import Solution
from ..basis import Basis, Chebyshev, Fourier, Partition
from ..gallery import two_edge_traffic
from ..ground import ProgressBar
from ..problem import Problem

_LIBRARY = Path(__file__).parents[1]
_SIZES = ((Chebyshev, 3), (Chebyshev, 5), (Chebyshev, 10), (Fourier, 10), (Partition, 10), (Partition, 50))


def demo(seed: int, out: Path, console: Console) -> None:
    """Solves one two-edge instance with a few bases, prints a table, writes a figure and the solutions."""
    instance = two_edge_traffic(seed)
    truth = instance.truth
    console.print(
        f"Two parallel roads, instance {seed}: infer their capacities, {np.round(np.asarray(truth.x), 4)}, from "
        f"{len(instance.train)} noisy flows under random demand."
    )
    reference = float(truth.loss(truth.x, instance.test))
    console.print(f"Their loss on {len(instance.test)} test samples, with exact flows: F_ref = {reference:.5f}\n")
    from ..front_door import solve  # these take a while to import: after something is shown
    from ..judge import evaluate
    from ..report import policy_figure

    table = Table(
        title="Newton on the reduced problem, judged with exact flows on the test samples",
        caption="loss over F_ref; mean |y - y*|^2 over demands; |x - x*|^2; oracle calls, each over all samples",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("basis", "loss/ref", "policy", "capacity", "ms", "compile", "calls"):
        table.add_column(heading, justify="left" if heading == "basis" else "right", no_wrap=True)
    contexts, policies, solutions = jnp.linspace(0.0, 1.0, 401), {}, []
    bases: list[Basis | None] = [*(kind(n) for kind, n in _SIZES), None]
    with ProgressBar(len(bases), "demo") as bar:
        for k, basis in enumerate(bases):
            bar.update(k, repr(basis or "basis chosen from the data"))
            solution = solve(instance.problem, instance.train, basis=basis, progress=False)
            judged = evaluate(instance.problem, solution, instance.test, truth)
            name = repr(solution.basis.basis)
            table.add_row(
                name if basis is not None else f"{name}*",
                f"{judged.loss / reference:.4f}",
                f"{judged.policy_error:.1e}",
                f"{judged.x_error:.1e}",
                f"{1e3 * solution.stats['seconds']:.0f}",
                f"{solution.stats['compile_seconds']:.1f} s",
                str(sum(kind["calls"] for kind in solution.stats["oracles"].values())),
                style=None if solution.converged and not judged.trouble else "red",
            )
            policies[name] = tuple(np.asarray(y) for y in (solution.policy(contexts), truth.y(solution.x, contexts)))
            solutions.append(solution)
            if not solution.converged:
                console.print(f"{name}: {solution.result}")
    console.print(table)
    console.print("* For this row nothing was set; the library chose:")
    for topic, words in solutions[-1].choices.items():
        console.print(f"  [bold]{topic}[/bold]: {words}")
    figure = policy_figure(out / "policy.png", np.asarray(contexts), policies, instance.train, "Chebyshev(10)")
    saved = solutions[-1].save(out / "solution.npz")
    console.print(f"\nThe policies against exact flows: {figure}\nThe chosen solution, for cobilevel.load: {saved}")


def solve_file(
    file: Path, out: Path, console: Console, steps: int | None = None, seed: int | None = None, judge: bool = False
) -> Solution:
    """Runs a file of Python, solves the `problem` from the `samples` it defines, and writes what came out to a folder.

    The file is code, and is run as such: with all that the user may do. It may also define `basis`, `solver` and
    `options`, a dict of further arguments of ``solve``; `steps` and `seed` of the command line come before these. The
    checkpoint of the run is in the folder too, so that the same command goes on where it was stopped. What the file
    raises, and what is refused of it, names the line.
    """
    with _next_to(file), _line_named(file):
        return _solved(_stated_in(file), out, console, steps, seed, judge)


def _solved(
    stated: dict[str, Any], out: Path, console: Console, steps: int | None, seed: int | None, judge: bool
) -> Solution:
    from ..front_door import solve  # these take a while to import
    from ..judge import certify

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


@contextmanager
def _next_to(file: Path) -> Iterator[None]:
    """Where modules in the folder of a file are found, as when Python runs it."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _line_named(file: Path) -> Iterator[None]:
    """Errors that a user can mend as a ``ValueError`` that begins with the line of the file that led to them."""
    try:
        yield
    except (ValueError, TypeError, SystemExit) as error:
        line, cause, words = 0, error, str(error)
        if isinstance(error, SystemExit):
            words = f"the file calls sys.exit({error.code!r}) before its problem is solved."
        while cause is not None:  # the last of the causes is closest to what went wrong
            frames = [
                frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == str(file)
            ]
            line, cause = (frames or [line])[-1] or 0, cause.__cause__
        if not line:
            raise
        raise ValueError(f"{file}, line {line}: {words}") from error


def _stated_in(file: Path) -> dict[str, Any]:
    """The names that a file defines; raises where it does not state a problem and samples."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}.")
    try:
        stated = runpy.run_path(str(file), run_name="cobilevel_solve")
    except Exception as error:
        words, last = str(error), traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, ValueError | TypeError) and Path(last.filename).is_relative_to(_LIBRARY):
            raise ValueError(words) from error  # refused, in words that are enough
        if isinstance(error, SyntaxError) and error.filename in (str(file), None):  # it has not begun to run
            line = f", line {error.lineno}" if error.lineno else ""
            raise ValueError(f"{file}{line}: {type(error).__name__}: {error.msg}") from error
        elsewhere = "" if last.filename == str(file) else f" ({last.filename}, line {last.lineno})"
        raise ValueError(f"{type(error).__name__}: {words}{elsewhere}") from error
    missing = [name for name in ("problem", "samples") if name not in stated]
    if missing:
        raise ValueError(
            f"{file} does not define {' and '.join(missing)}. It must define problem, a cb.Problem, and samples; it "
            f"may define basis, solver, options."
        )
    if not isinstance(stated["problem"], Problem):
        raise ValueError(f"{file}: problem must be a cb.Problem, got {type(stated['problem']).__name__}.")
    if not isinstance(stated.get("options", {}), dict):
        raise ValueError(f"{file}: options must be a dict of arguments of cb.solve.")
    return stated
