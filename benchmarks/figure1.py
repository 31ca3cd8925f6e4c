"""What do many solves cost? Figure 1 of the paper: 50 networks of two roads, four bases, six sizes, each with Newton.

A process for each core, each with networks of its own: seconds on the clock of making and solving these, with what each
process compiles; and of all, exact flows for the judgement included. With ``--out`` the figure is drawn: medians and
quartiles over the networks.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import cobilevel as cb
import harness
from cobilevel.sweep import solve_grid, tabulate

SIZES = (3, 5, 10, 20, 50, 100)
FAMILIES = {
    "Chebyshev": cb.Chebyshev,
    "Fourier": cb.Fourier,
    "monomial": lambda n: cb.Orthonormal(cb.Monomial(n)),
    "partition": cb.Partition,
}
STYLES = {
    "Chebyshev": {"color": "#0072b2", "marker": "o", "linestyle": "-"},
    "Fourier": {"color": "#d55e00", "marker": "s", "linestyle": "--"},
    "monomial": {"color": "#009e73", "marker": "^", "linestyle": "-."},
    "partition": {"color": "#555555", "marker": "D", "linestyle": ":"},
}
PANELS = {
    "loss": r"loss $F(x)\,/\,F_\mathrm{ref}$",
    "policy": r"policy error $\Delta_y$",
    "capacity": r"capacity error $\Delta_x$",
}
GOAL = 40.0  # seconds, on two cores


@jax.jit
def judged(truth: Any, test: cb.Samples, x: jax.Array, policy: jax.Array) -> dict[str, jax.Array]:
    """Against exact flows, on samples that were not used to solve."""
    return {
        "loss": truth.loss(x, test) / truth.loss(truth.x, test),
        "policy": ((policy - truth.y(x, test.xi)) ** 2).sum(axis=1).mean(),
        "capacity": ((x - truth.x) ** 2).sum(),
    }


def network(seed: int) -> dict[str, Any]:
    """One network with every basis."""
    began, one = time.perf_counter(), cb.gallery.two_edge_traffic(seed)
    bases = [make(N) for N in SIZES for make in FAMILIES.values()]
    solutions = [row[0] for row in solve_grid([(one.problem, one.train)], bases, progress=False)]
    seconds = time.perf_counter() - began
    errors = [judged(one.truth, one.test, s.x, s.policy(one.test.xi)) for s in solutions]
    numbers = {name: [float(error[name]) for error in errors] for name in PANELS}
    return {"seconds": seconds, "converged": [bool(s.converged) for s in solutions], **numbers}


def draw(table: dict[tuple[str, int], dict[str, Any]], path: Path) -> None:
    """One panel a quantity: medians, and the quartiles as bars, a little apart so that none hides another."""
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    for axes, (name, label) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
        for k, (family, style) in enumerate(STYLES.items()):
            low, middle, high = np.array([np.quantile(table[family, N][name], (0.25, 0.5, 0.75)) for N in SIZES]).T
            places = np.array(SIZES) * 1.05 ** (k - 1.5)
            bars = (middle - low, high - middle)
            axes.errorbar(places, middle, bars, label=family, capsize=2, markersize=4, linewidth=1.4, **style)
        axes.set_xscale("log")
        axes.set_xticks(SIZES, [str(N) for N in SIZES])
        axes.minorticks_off()
        axes.set_yscale("linear" if name == "loss" else "log")
        axes.set_xlabel("functions $N$")
        axes.set_title(label, fontsize=11)
        axes.grid(alpha=0.25)
    figure.axes[0].axhline(1, color="black", linewidth=0.8)
    figure.axes[0].legend(frameon=False)
    path.mkdir(parents=True, exist_ok=True)
    figure.savefig(path / "figure1.png", dpi=200)


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--instances", 50),
        ("--json", Path, "file for the figures measured"),
        ("--out", Path, "folder for the figure"),
    )
    jax.config.update("jax_enable_x64", True)
    print(harness.circumstances())
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = tabulate(network, {"seed": range(arguments.instances)}, folder)
    whole = time.perf_counter() - began
    keys = [(family, N) for N in SIZES for family in FAMILIES]
    names = (*PANELS, "converged")
    table = {key: {name: np.array([row[name][k] for row in rows]) for name in names} for k, key in enumerate(keys)}
    print(f"{'basis':<12}{'N':>4}{'F/F_ref':>11}{'Delta_y':>11}{'converged':>11}")
    for (family, N), row in table.items():
        loss, policy = (np.median(row[name]) for name in ("loss", "policy"))
        ended = f"{int(row['converged'].sum())}/{len(rows)}"
        print(f"{family:<12}{N:>4}{loss:>11.4f}{policy:>11.1e}{ended:>11}")
    solves, busy = len(keys) * len(rows), sum(row["seconds"] for row in rows)
    cores = os.cpu_count() or 1
    lines: list[tuple[str, float, str, float | None]] = [
        (f"{solves} solves, compiling included, on {cores} cores", busy / cores, "s", GOAL),
        ("one solve", busy / solves, "s", None),
        ("with processes begun and answers judged", whole, "s", None),
    ]
    for what, value, unit, goal in lines:
        print(f"{what:<48}{value:>8.2f} {unit:<2}" + ("" if goal is None else f"  goal {goal:.0f}"))
    harness.write_measurements(arguments.json, lines)
    if arguments.out:
        draw(table, arguments.out)


if __name__ == "__main__":
    main()
