"""What do many solves cost? Figure 1 of the paper: 50 networks of two roads, four bases, six sizes, each with Newton.

Seconds are processor seconds, all threads together, so that they hold on a machine that is shared; those of running are
halved, for two cores. Each basis is solved on one network first, which compiles, and then on all. What JAX itself
counts as tracing, lowering and compiling is on the clock, and more where other processes want the same cores. With
``--out`` the figure is drawn: medians and quartiles over the networks.
"""

import time
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
from matplotlib.figure import Figure

import cobilevel as cb
import harness
from cobilevel.sweep import solve_grid

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
GOALS = {"compile": 30.0, "run": 60.0}
STAGES = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")

events: list[tuple[str, float]] = []


def listen(name: str, seconds: float, **_: Any) -> None:
    stage = name.rsplit("/", 1)[-1]
    if stage in STAGES:
        events.append((stage, seconds))


def compiled(since: int) -> tuple[int, float]:
    """Programs compiled since an event, and what JAX counts for them."""
    later = events[since:]
    return sum(stage == STAGES[-1] for stage, _ in later), sum(seconds for _, seconds in later)


@jax.jit
def judged(truth: Any, test: cb.Samples, x: jax.Array, policy: jax.Array) -> dict[str, jax.Array]:
    """Against exact flows, on samples that were not used to solve."""
    return {
        "loss": truth.loss(x, test) / truth.loss(truth.x, test),
        "policy": ((policy - truth.y(x, test.xi)) ** 2).sum(axis=1).mean(),
        "capacity": ((x - truth.x) ** 2).sum(),
    }


def timed(rows: Any, count: int) -> Any:
    """Each row of a grid, with the processor seconds it took, and what was compiled for it."""
    for _ in range(count):
        began, first = time.process_time(), len(events)
        row = next(rows)
        yield row, time.process_time() - began, compiled(first)


def measured(instances: list[Any], bases: list[Any]) -> list[dict[str, Any]]:
    cases = [(one.problem, one.train) for one in instances]
    firsts = [(seconds, made) for _, seconds, made in timed(solve_grid(cases[:1], bases, progress=False), len(bases))]
    began = time.process_time()
    grid = solve_grid(cases, bases, progress=False)
    checking = (time.process_time() - began) / len(bases)  # problem and data against each other, once for all bases
    found = []
    for (row, seconds, more), (first, made) in zip(timed(grid, len(bases)), firsts, strict=True):
        errors = [
            judged(one.truth, one.test, s.x, s.policy(one.test.xi)) for one, s in zip(instances, row, strict=True)
        ]
        found.append(
            {
                "compile": max(0.0, first - seconds / len(row)),
                "programs": made[0] + more[0],
                "clock": made[1] + more[1],
                "run": seconds + checking,
                "converged": sum(s.converged for s in row),
                **{name: np.array([float(e[name]) for e in errors]) for name in PANELS},
            }
        )
    return found


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
    jax.monitoring.register_event_duration_secs_listener(listen)
    print(harness.circumstances())
    instances = [cb.gallery.two_edge_traffic(seed) for seed in range(arguments.instances)]
    keys = [(family, N) for N in SIZES for family in FAMILIES]
    table = dict(zip(keys, measured(instances, [FAMILIES[family](N) for family, N in keys]), strict=True))
    print(
        f"{'basis':<12}{'N':>4}{'compile s':>11}{'programs':>10}{'run s':>9}{'F/F_ref':>10}{'Delta_y':>10}  converged"
    )
    for (family, N), row in table.items():
        loss, policy = (np.median(row[name]) for name in ("loss", "policy"))
        ended = f"{row['converged']}/{len(row['loss'])}"
        print(f"{family:<12}{N:>4}{row['compile']:>11.2f}{row['programs']:>11}{row['run']:>11.2f}", end="")
        print(f"{loss:>11.4f}{policy:>11.1e}{ended:>11}")
    total = {name: sum(row[name] for row in table.values()) for name in ("compile", "programs", "clock", "run")}
    lines: list[tuple[str, float, str, float | None]] = [
        ("compiling, all programs", total["compile"], "s", GOALS["compile"]),
        ("running, on two cores", total["run"] / 2, "s", GOALS["run"]),
        ("programs", total["programs"], "", None),
        ("tracing, lowering and compiling, on the clock", total["clock"], "s", None),
    ]
    for what, value, unit, goal in lines:
        print(f"{what:<48}{value:>8.1f} {unit:<2}" + ("" if goal is None else f"  goal {goal:.0f}"))
    harness.write_measurements(arguments.json, lines)
    if arguments.out:
        draw(table, arguments.out)


if __name__ == "__main__":
    main()
