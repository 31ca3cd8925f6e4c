"""What the runs of the inverse experiment say: tables, panels, policies to explore."""

import copy
from typing import Any

import numpy as np

from ...judge import runs_estimate
from ..findings import Findings, rounded
from ..lab import Method
from ..statistics import geometric_mean
from ..theory import theory
from .experiment import CONTEXTS, Inverse
from .verdicts import BASES, inverse_verdicts

_EDGES = ["edge 1", "edge 2"]
_SHOWN = 2  # every second context of the curves is shown: enough for the eye
_TINIEST = 1e-30  # squared errors are drawn on a logarithmic axis


class InverseFindings(Findings):
    """Two-edge networks: the finished runs, each quantity as an array over instances."""

    title = "Road capacities from observed flows"
    unit = "instance"

    def __init__(self, lab: Inverse):
        super().__init__(lab)
        self._left_out: frozenset[int] = frozenset()

    def has(self, solver: str, family: str, N: int) -> bool:
        return Method(solver, family, N) in self._runs

    def values(self, method, name):
        """``ratio`` is the loss over F_ref, ``gap`` the loss over that of the exact-lower-level optimum, less 1."""
        kept = [(k, run.result) for k, run in enumerate(self._runs[method]) if k not in self._left_out]
        if name == "ratio":
            return np.array([result["loss"] / result["loss_true"] for _, result in kept])
        if name == "gap":
            best = lambda k: self.lab.runs.get(self.lab.reference_spec(method.noise, k)).result["loss_best"]
            return np.array([result["loss"] / best(k) - 1 for k, result in kept])
        return np.array([result[name] for _, result in kept], dtype=float)

    def without(self, seed: int) -> "InverseFindings":
        """The same with one instance left out."""
        fewer = copy.copy(self)
        fewer._left_out = frozenset({*self._left_out, seed})
        return fewer

    def worst(self) -> int:
        """The instance on which ``StocBiO`` ends furthest above F_ref, on average over methods."""
        usual = [method for method in self._runs if method.solver == "StocBiO" and method.usual]
        return int(np.argmax(np.mean([self.values(method, "ratio") for method in usual], axis=0)))

    def of(self, solver: str, family: str, N: int, name: str) -> np.ndarray:
        return self.values(Method(solver, family, N), name)

    def sizes(self, family: str) -> tuple[int, ...]:
        return self.budget.partitions if family == "Partition" else self.budget.polynomials

    # -- what the page shows

    def lead(self):
        return (
            f"Road capacities inferred from noisy flows in {self.budget.instances} random two-edge networks. Every "
            "basis is solved with StocBiO, with the constants the paper prints, and with Newton, which shows what the "
            "reduction gives once the solver's own error is out of the way. Losses are on test samples with exact "
            "flows."
        )

    def data(self):
        return ["samples", "1000 for training, 1000 for testing"]

    def constants(self):
        return "batches of 64, K = 10, s = 0.001"

    def panels(self):
        """The figure of the paper in its layout, and errors by context."""
        base = {"figure": "inverse", "xlabel": "N", "xscale": "log", "lines": []}
        note = "Means over instances with 95% intervals"
        loss = {"id": "loss", "title": "Loss", "ylabel": "F(x) / F_ref", "yscale": "linear"}
        loss["note"] = f"{note}; a wide band is a run or two that diverged, or nearly so."
        policy = {"id": "policy", "title": "Lower-level error", "ylabel": "Delta_y", "yscale": "log"}
        capacity = {"id": "capacity", "title": "Upper-level error", "ylabel": "Delta_x", "yscale": "log"}
        words = {"note": f"{note}, both of logarithms."}
        return [
            base | loss | {"series": _series(self, "ratio", False), "lines": [{"label": "F_ref", "y": 1.0}]},
            base | policy | words | {"series": _series(self, "policy_error", True)},
            base | capacity | words | {"series": _series(self, "x_error", True)},
            _errors_by_demand(self),
        ]

    def tables(self):
        """Every method in numbers, the step sizes that were chosen, the ablation."""
        columns = ["method", "solver", "F / F_ref", "F / best - 1", "Delta_y", "Delta_x", "diverged", "numbers held",
                   "seconds a run"]  # fmt: skip
        rows, ablation, tuned = [], [], []
        for method in self._runs:
            changed, cells = _change(method), _cells(self, method)
            if method.usual:
                held = self._runs[method][0].result["numbers_held"]
                rows.append([method.label, method.solver, *cells, held, f"{self.seconds(method):.2g}"])
            else:
                ablation.append([method.label, method.solver, changed, *cells])
            if method.solver == "StocBiO":
                tuned.append((method.label if method.usual else f"{method.label}, {changed}", method))
        note = (
            "Means over instances with 95% intervals; Delta_y and Delta_x are geometric means. Runs that diverged "
            "count as they stood last. The paper: 16 MB and 10 to 90 minutes a run."
        )
        found = [
            {"id": "methods", "title": "Every method", "columns": columns, "rows": rows, "note": note},
            self.step_sizes(tuned, "score"),
        ]
        if ablation:
            note = "One thing changed at a time; step sizes searched anew for each."
            found.append({"id": "ablation", "title": "What the paper leaves open", "rows": ablation, "note": note,
                          "columns": ["method", "solver", "changed", *columns[2:7]]})  # fmt: skip
        return found

    def policies(self):
        entries = []
        for method in (method for method in self._runs if method.usual):
            curves = self.lab.runs.curves(self._runs[method][0].spec)
            shown = lambda table: [rounded(column) for column in table[::_SHOWN].T]
            error = np.linalg.norm(curves["policy"] - curves["exact"], axis=1)[::_SHOWN]
            entries.append(
                {"basis": method.family, "N": method.N, "solver": method.solver, "policy": shown(curves["policy"]),
                 "exact": shown(curves["exact"]), "error": rounded(error)}
            )  # fmt: skip
        context = {"label": "demand", "values": CONTEXTS[::_SHOWN].tolist()}
        return {"context": context, "quantity": "flow", "components": _EDGES, "entries": entries}

    def verdicts(self):
        """I1 to I5, T2 where it was measured, and the claims of the theory that need no runs."""
        return inverse_verdicts(self) + theory()


def _series(findings: InverseFindings, name: str, logarithmic: bool) -> list[dict[str, Any]]:
    """One line a family and solver: means over instances (of logarithms where so drawn) with 95% intervals."""
    lines = []
    for solver in ("StocBiO", "Newton"):
        for family in (*BASES, "Partition"):
            sizes = findings.sizes(family)
            values = [findings.of(solver, family, N, name) for N in sizes]
            spread = [geometric_mean(v) if logarithmic else runs_estimate(v) for v in values]
            lines.append(
                {
                    "label": family,
                    "solver": solver,
                    "x": list(sizes),
                    "y": [float(s) for s in spread],
                    "low": [s.low for s in spread],
                    "high": [s.high for s in spread],
                }
            )
    return lines


def _errors_by_demand(findings: InverseFindings) -> dict[str, Any]:
    """Where each basis errs: geometric means over instances, at about equal and at larger memory."""
    lines = []
    wanted = [(family, 10) for family in (*BASES, "Partition")] + [("Partition", 50)]
    for solver in ("StocBiO", "Newton"):
        for family, N in wanted:
            if not findings.has(solver, family, N):
                continue
            curves = [findings.lab.runs.curves(run.spec) for run in findings.runs(Method(solver, family, N))]
            errors = np.array([np.sum((c["policy"] - c["exact"]) ** 2, axis=1) for c in curves])
            middle = np.exp(np.mean(np.log(np.maximum(errors, _TINIEST)), axis=0) / 2)
            lines.append(
                {"label": f"{family}({N})", "solver": solver, "x": CONTEXTS.tolist(), "y": middle.tolist(),
                 "low": [None] * len(middle), "high": [None] * len(middle)}
            )  # fmt: skip
    return {
        "id": "by-context", "figure": "by-context", "title": "Error of the flows by demand", "xlabel": "demand",
        "ylabel": "error of the flows", "xscale": "linear", "yscale": "log", "lines": [], "series": lines,
        "note": "Geometric means over instances. Cells err most at their ends.",
    }  # fmt: skip


def _cells(findings: InverseFindings, method: Method) -> list[Any]:
    """Losses, errors and divergences of a method, as cells of a table."""
    ratio, gap = (runs_estimate(findings.values(method, name)) for name in ("ratio", "gap"))
    errors = [float(geometric_mean(findings.values(method, name))) for name in ("policy_error", "x_error")]
    diverged = int(findings.values(method, "diverged").sum())
    return [ratio.words(4), gap.words(2), *(f"{error:.2g}" for error in errors), diverged]


def _change(method: Method) -> str:
    """What is changed in a method of the ablation, in words."""
    usual = Method(method.solver, method.family, method.N)
    names = {"noise": "noise", "period": "Fourier period", "batch": "batch", "series": "series", "terms": "factors K"}
    changed = [f"{words} {getattr(method, k)}" for k, words in names.items() if getattr(method, k) != getattr(usual, k)]
    return ", ".join(changed)
