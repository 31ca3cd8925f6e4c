"""What the runs of the inverse experiment say: tables, panels, policies to explore."""

import copy
from typing import Any

import numpy as np

from ...sweep.store import Run, Runs
from ..lab import Method
from ..statistics import Interval95, ratio
from ..tuning import edges, searched
from .experiment import CONTEXTS, Inverse
from .verdicts import BASES, claims

_EDGES = ["edge 1", "edge 2"]


class Findings:
    """The finished runs by method, each quantity as an array over instances."""

    def __init__(self, lab: Inverse):
        self.lab, self.budget = lab, lab.budget
        self._runs: dict[Method, list[Run]] = {}
        self._left_out: frozenset[int] = frozenset()
        for method, count in lab.plan():
            self._runs[method] = [lab.runs.get(lab.spec(method, seed)) for seed in range(count)]

    def has(self, solver: str, family: str, N: int) -> bool:
        return Method(solver, family, N) in self._runs

    def runs(self, method: Method) -> list[Run]:
        return self._runs[method]

    def values(self, method: Method, name: str) -> np.ndarray:
        """``ratio`` is the loss over F_ref, ``gap`` the loss over that of the exact-lower-level optimum, less 1."""
        told = [(k, run.result) for k, run in enumerate(self._runs[method]) if k not in self._left_out]
        if name == "ratio":
            return np.array([result["loss"] / result["loss_true"] for _, result in told])
        if name == "gap":
            best = lambda k: self.lab.runs.get(self.lab.reference_spec(method.noise, k)).result["loss_best"]
            return np.array([result["loss"] / best(k) - 1 for k, result in told])
        return np.array([result[name] for _, result in told], dtype=float)

    def without(self, seed: int) -> "Findings":
        """The same with one instance left out."""
        fewer = copy.copy(self)
        fewer._left_out = frozenset({*self._left_out, seed})
        return fewer

    def worst(self) -> int:
        """The instance on which ``StocBiO`` ends furthest above F_ref, on average over methods."""
        plain = [m for m in self._runs if m == Method("StocBiO", m.family, m.N)]
        return int(np.argmax(np.mean([self.values(method, "ratio") for method in plain], axis=0)))

    def of(self, solver: str, family: str, N: int, name: str) -> np.ndarray:
        return self.values(Method(solver, family, N), name)

    def sizes(self, family: str) -> tuple[int, ...]:
        return self.budget.partitions if family == "Partition" else self.budget.polynomials


def _series(findings: Findings, name: str, logarithmic: bool) -> list[dict[str, Any]]:
    """One line a family and solver: means over instances (of logarithms where so drawn) with 95% intervals."""
    lines = []
    for solver in ("StocBiO", "Newton"):
        for family in (*BASES, "Partition"):
            sizes = findings.sizes(family)
            values = [findings.of(solver, family, N, name) for N in sizes]
            spread = [ratio(v, np.ones_like(v)) if logarithmic else Interval95.of(v) for v in values]
            lines.append(
                {
                    "label": family,
                    "solver": solver,
                    "x": list(sizes),
                    "y": [s.mean for s in spread],
                    "low": [s.low for s in spread],
                    "high": [s.high for s in spread],
                }
            )
    return lines


def panels(findings: Findings) -> list[dict[str, Any]]:
    """The figure of the paper in its layout, and errors by context."""
    base = {"figure": "inverse", "xlabel": "N", "xscale": "log", "lines": []}
    note = "Means over instances with 95% intervals"
    loss = {"id": "loss", "title": "Loss", "ylabel": "F(x) / F_ref", "yscale": "linear"}
    loss["note"] = f"{note}; a wide band is a run or two that diverged, or nearly so."
    policy = {"id": "policy", "title": "Lower-level error", "ylabel": "Delta_y", "yscale": "log"}
    capacity = {"id": "capacity", "title": "Upper-level error", "ylabel": "Delta_x", "yscale": "log"}
    words = {"note": f"{note}, both of logarithms."}
    found = [
        base | loss | {"series": _series(findings, "ratio", False), "lines": [{"label": "F_ref", "y": 1.0}]},
        base | policy | words | {"series": _series(findings, "policy_error", True)},
        base | capacity | words | {"series": _series(findings, "x_error", True)},
    ]
    return [*found, _by_context(findings)]


def _by_context(findings: Findings) -> dict[str, Any]:
    """Where each basis errs: root mean squares over instances, at about equal and at larger memory."""
    lines = []
    wanted = [(family, 10) for family in (*BASES, "Partition")] + [("Partition", 50)]
    for solver in ("StocBiO", "Newton"):
        for family, N in wanted:
            if not findings.has(solver, family, N):
                continue
            curves = [findings.lab.runs.curves(run.spec) for run in findings.runs(Method(solver, family, N))]
            errors = np.array([np.sum((c["policy"] - c["exact"]) ** 2, axis=1) for c in curves])
            middle = np.exp(np.mean(np.log(np.maximum(errors, 1e-30)), axis=0) / 2)
            lines.append(
                {"label": f"{family}({N})", "solver": solver, "x": CONTEXTS.tolist(), "y": middle.tolist(),
                 "low": [None] * len(middle), "high": [None] * len(middle)}
            )  # fmt: skip
    return {
        "id": "by-context", "figure": "by-context", "title": "Error of the flows by demand", "xlabel": "demand",
        "ylabel": "error of the flows", "xscale": "linear", "yscale": "log", "lines": [], "series": lines,
        "note": "Geometric means over instances. Cells err most at their ends.",
    }  # fmt: skip


def tables(findings: Findings) -> list[dict[str, Any]]:
    """Every method in numbers, the step sizes that were chosen, the ablation."""
    columns = ["method", "solver", "F / F_ref", "F / best - 1", "Delta_y", "Delta_x", "diverged", "numbers held",
               "seconds a run"]  # fmt: skip
    chosen = ["method", "inner", "outer", "inner steps", "score on tuning instances"]
    rows, steps, ablation = [], [], []
    for method, _ in findings.lab.plan():
        plain = method == Method(method.solver, method.family, method.N)
        means = {name: Interval95.of(findings.values(method, name)) for name in ("ratio", "gap")}
        errors = {
            name: ratio(values, np.ones_like(values)).mean
            for name in ("policy_error", "x_error")
            for values in (findings.values(method, name),)
        }
        first = findings.runs(method)[0]
        row = [
            means["ratio"].words(4), means["gap"].words(2), f"{errors['policy_error']:.2g}",
            f"{errors['x_error']:.2g}", int(findings.values(method, "diverged").sum()),
        ]  # fmt: skip
        seconds = f"{np.mean([run.cost['seconds'] for run in findings.runs(method)]):.2g}"
        if plain:
            rows.append([method.label, method.solver, *row, first.result["numbers_held"], seconds])
        else:
            ablation.append([method.label, method.solver, _change(method), *row])
        if method.solver == "StocBiO":
            tuned = findings.lab.runs.get(findings.lab.tuning_spec(method)).result
            name = method.label if plain else f"{method.label}, {_change(method)}"
            told = (*edges(tuned), tuned["inner_steps"], f"{tuned['score']:.4g}")
            steps.append([name, *told])
    found = [
        {"id": "methods", "title": "Every method", "columns": columns, "rows": rows,
         "note": "Means over instances with 95% intervals; Delta_y and Delta_x are geometric means. Runs that diverged "
         "count as they stood last. The paper: 16 MB and 10 to 90 minutes a run."},
        {"id": "steps", "title": "Step sizes chosen on tuning instances", "columns": chosen, "rows": steps,
         "note": searched(findings.budget.grid)},
    ]  # fmt: skip
    if ablation:
        note = "One thing changed at a time; step sizes searched anew for each."
        title = "What the paper leaves open"
        found.append({"id": "ablation", "title": title, "rows": ablation, "note": note,
                      "columns": ["method", "solver", "changed", *columns[2:7]]})  # fmt: skip
    return found


def _change(method: Method) -> str:
    usual = Method(method.solver, method.family, method.N)
    names = {"noise": "noise", "period": "Fourier period", "batch": "batch", "series": "series", "terms": "factors K"}
    changed = [f"{words} {getattr(method, k)}" for k, words in names.items() if getattr(method, k) != getattr(usual, k)]
    return ", ".join(changed)


def policies(findings: Findings) -> dict[str, Any]:
    """The policies of the first instance, for looking at."""
    entries = []
    for method, _ in findings.lab.plan():
        if method != Method(method.solver, method.family, method.N):
            continue
        curves = findings.lab.runs.curves(findings.runs(method)[0].spec)
        rounded = lambda table: [[float(f"{v:.4g}") for v in column] for column in table[::2].T]
        error = np.linalg.norm(curves["policy"] - curves["exact"], axis=1)[::2]
        entries.append(
            {"basis": method.family, "N": method.N, "solver": method.solver, "policy": rounded(curves["policy"]),
             "exact": rounded(curves["exact"]), "error": [float(f"{v:.4g}") for v in error]}
        )  # fmt: skip
    context = {"label": "demand", "values": CONTEXTS[::2].tolist()}
    return {"context": context, "quantity": "flow", "components": _EDGES, "entries": entries}


def summary(runs: Runs, lab: Inverse) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the page shows of this experiment, and its verdicts."""
    findings = Findings(lab)
    budget = lab.budget
    lead = (
        f"Road capacities inferred from noisy flows in {budget.instances} random two-edge networks. Every basis is "
        "solved with StocBiO, with the constants the paper prints, and with Newton, which shows what the reduction "
        "gives once the solver's own error is out of the way. Losses are on test samples with exact flows."
    )
    about = [
        ["instances", f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning instances from seed 10000"],
        ["samples", "1000 for training, 1000 for testing"],
        ["steps", f"{budget.steps} outer steps with 10 inner ones; otherwise as many oracle calls"],
        ["StocBiO", "batches of 64, K = 10, s = 0.001, averages over the last tenth"],
        ["settings tried", f"{len(budget.grid.settings())} a method, by successive halving"],
    ]
    told = {
        "experiment": "inverse",
        "title": "Road capacities from observed flows",
        "lead": lead,
        "about": about,
        "panels": panels(findings),
        "tables": tables(findings),
        "policies": policies(findings),
    }
    return told, claims(findings)
