"""The demonstration behind ``cobilevel demo``: road capacities from observed flows, with several bases."""

from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..answer import Solution
from ..basis import Basis, Chebyshev, Fourier, Partition
from ..gallery import two_edge_traffic
from ..progress import ProgressBar

if TYPE_CHECKING:
    from ..judge import Evaluation

_BASES: tuple[Basis | None, ...] = (
    Chebyshev(3),
    Chebyshev(5),
    Chebyshev(10),
    Fourier(10),
    Partition(10),
    Partition(50),
    None,
)
_DRAWN = "Chebyshev(10)"  # the basis whose policy the figure shows


def _results_table() -> Table:
    table = Table(
        title="Newton on the reduced problem, judged with exact flows on the test samples",
        caption="loss over F_ref; mean |y - y*|^2 over demands; |x - x*|^2; oracle calls, each over all samples",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("basis", "loss/ref", "policy", "capacity", "ms", "compile", "calls"):
        table.add_column(heading, justify="left" if heading == "basis" else "right", no_wrap=True)
    return table


def _add_row(table: Table, name: str, solution: Solution, judged: "Evaluation", reference: float) -> None:
    table.add_row(
        name,
        f"{judged.loss / reference:.4f}",
        f"{judged.policy_error:.1e}",
        f"{judged.x_error:.1e}",
        f"{1e3 * solution.stats['seconds']:.0f}",
        f"{solution.stats['compile_seconds']:.1f} s",
        str(sum(kind["calls"] for kind in solution.stats["oracles"].values())),
        style=None if solution.converged and not judged.trouble else "red",
    )


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

    table, contexts = _results_table(), jnp.linspace(0.0, 1.0, 401)
    policies, solutions = {}, []
    with ProgressBar(len(_BASES), "demo") as bar:
        for k, basis in enumerate(_BASES):
            bar.update(k, repr(basis or "basis chosen from the data"))
            solution = solve(instance.problem, instance.train, basis=basis, progress=False)
            judged = evaluate(instance.problem, solution, instance.test, truth)
            name = repr(solution.basis.basis)
            _add_row(table, name if basis is not None else f"{name}*", solution, judged, reference)
            policies[name] = tuple(np.asarray(y) for y in (solution.policy(contexts), truth.y(solution.x, contexts)))
            solutions.append(solution)
            if not solution.converged:
                console.print(f"{name}: {solution.result}")
    console.print(table)
    console.print("* Nothing was set for this row; the library chose, and says so:")
    for topic, words in solutions[-1].choices.items():
        console.print(f"  [bold]{topic}[/bold]: {words}")
    figure = policy_figure(out / "policy.png", np.asarray(contexts), policies, instance.train, _DRAWN)
    saved = solutions[-1].save(out / "solution.npz")
    console.print(f"\nThe policies against exact flows: {figure}\nThe chosen solution, for cobilevel.load: {saved}")
