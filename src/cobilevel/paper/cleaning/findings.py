"""What the runs of the cleaning experiment say: tables, panels, policies by temperature."""

from typing import Any

import numpy as np

from ...sweep.store import Run, Runs
from ..lab import Method
from ..statistics import Interval95, ratio
from ..tuning import edges, searched
from .experiment import Cleaning
from .verdicts import LOSSES, claims

_WINDOW = 0.1  # of a run: the moving average of the curves


class Findings:
    """The finished runs by method, each quantity as an array over trials; curves with them."""

    def __init__(self, lab: Cleaning):
        self.lab, self.budget = lab, lab.budget
        self.methods = [method for method, _ in lab.plan()]
        self._runs = {m: [lab.runs.get(lab.spec(m, k)) for k in range(c)] for m, c in lab.plan()}
        self._curves = {m: [lab.runs.curves(run.spec) for run in runs] for m, runs in self._runs.items()}

    def steps(self, method: Method) -> np.ndarray:
        """The steps at which curves were looked at."""
        chunk = self.lab.chunk(self._runs[method][0].result["inner_steps"])
        return (np.arange(len(self._curves[method][0]["validation"])) + 1) * chunk

    def samples(self, method: Method) -> np.ndarray:
        """The samples used until then, by all oracles."""
        return self.steps(method) * self.values(method, "samples").mean() / self.values(method, "steps").mean()

    def find(self, family: str, N: int) -> Method:
        return next(m for m in self.methods if (m.family, m.N) == (family, N))

    def sizes(self, family: str) -> list[int]:
        return [m.N for m in self.methods if m.family == family]

    def runs(self, method: Method) -> list[Run]:
        return self._runs[method]

    def values(self, method: Method, name: str) -> np.ndarray:
        return np.array([run.result[name] for run in self._runs[method]], dtype=float)

    def curve(self, method: Method, name: str) -> np.ndarray:
        """Trials by looks, a moving average over the last tenth of the run before each look."""
        table = np.array([curves[name] for curves in self._curves[method]], dtype=float)
        width = max(1, round(_WINDOW * table.shape[1]))
        sums = np.cumsum(np.pad(table, ((0, 0), (1, 0))), axis=1)
        ends = np.arange(1, table.shape[1] + 1)
        starts = np.maximum(ends - width, 0)
        return (sums[:, ends] - sums[:, starts]) / (ends - starts)

    def by_temperature(self, method: Method, name: str) -> np.ndarray:
        return np.array([curves[name] for curves in self._curves[method]], dtype=float)

    def pace(self, ours: Method, theirs: Method) -> Interval95:
        """Samples until the validation loss is down to the higher of the two last values, ours over theirs, paired."""
        curves = [self.curve(method, "validation") for method in (ours, theirs)]
        level = np.maximum(curves[0][:, -1:], curves[1][:, -1:])
        first = [np.argmax(curve <= level, axis=1) for curve in curves]  # the last look at least is down there
        return ratio(self.samples(ours)[first[0]], self.samples(theirs)[first[1]])


def _line(method: Method, x: np.ndarray, table: np.ndarray) -> dict[str, Any]:
    spread = [Interval95.of(column) for column in table.T]
    numbers = lambda name: [float(f"{getattr(s, name):.5g}") for s in spread]
    return {"label": method.label, "solver": method.solver, "x": [float(f"{v:.5g}") for v in x],
            "y": numbers("mean"), "low": numbers("low"), "high": numbers("high")}  # fmt: skip


def panels(findings: Findings) -> list[dict[str, Any]]:
    """The figure of the paper in its layout; the same against samples and seconds; weights; by temperature."""
    train = len(findings.lab.instance(0).problem.x0)
    batch = findings.methods[0].batch
    seconds = {m: np.mean([run.cost["seconds"] for run in findings.runs(m)]) for m in findings.methods}
    axes = {
        "epochs": ("epochs of the training images", lambda m: findings.steps(m) * batch / train),
        "samples": ("samples used, all oracles", findings.samples),
        "seconds": (
            "seconds a run, trials sharing the machine",
            lambda m: findings.steps(m) * seconds[m] / findings.steps(m)[-1],
        ),
    }
    note = f"Moving averages over {100 * _WINDOW:.0f}% of a run; means over trials with 95% intervals."

    def panel(name: str, axis: str, figure: str, title: str, label: str) -> dict[str, Any]:
        words, x = axes[axis]
        lines = [_line(m, x(m), findings.curve(m, name)) for m in findings.methods]
        return {"id": f"{name}-{axis}", "figure": figure, "title": title, "xlabel": words, "ylabel": label, "lines": [],
                "xscale": "linear", "yscale": "linear", "note": note, "series": lines}  # fmt: skip

    found = [panel(name, "epochs", "losses", f"{name.capitalize()} loss", "loss") for name in LOSSES]
    found += [
        panel("validation", axis, "cost", f"Validation loss by {axis}", "loss") for axis in ("samples", "seconds")
    ]
    found.append(panel("weight", "epochs", "weights", "Mean weight", "mean of sigmoid(x)"))
    xi = findings.lab.temperatures()
    lines = []
    for method in findings.methods:
        size = findings.by_temperature(method, "exact")[:, :, 2] ** 2
        lines.append(_line(method, xi, findings.by_temperature(method, "error") / size))
    found.append(
        {"id": "by-context", "figure": "by-context", "title": "Error of the policy by temperature", "series": lines,
         "xlabel": "temperature", "ylabel": "|y - y*|^2 / |y*|^2", "xscale": "linear", "yscale": "log", "lines": [],
         "note": "Against exact classifiers at the same weights; means over trials with 95% intervals."}
    )  # fmt: skip
    return found


def tables(findings: Findings) -> list[dict[str, Any]]:
    """Every method in numbers, and the step sizes that were chosen."""
    names = (*LOSSES, "loss", "policy_error", "weight", "auc", "accuracy")
    columns = ["method", "validation loss", "training loss", "true F", "Delta_y", "mean weight", "AUC", "test accuracy",
               "diverged", "numbers held", "seconds a run"]  # fmt: skip
    rows, steps = [], []
    for method in findings.methods:
        spread = [Interval95.of(findings.values(method, name)).words(4) for name in names]
        diverged = int(findings.values(method, "diverged").sum())
        seconds = f"{np.mean([run.cost['seconds'] for run in findings.runs(method)]):.2g}"
        rows.append([method.label, *spread, diverged, findings.lab.held(method), seconds])
        tuned = findings.lab.runs.get(findings.lab.tuning_spec(method)).result
        told = (*edges(tuned), tuned["inner_steps"], f"{tuned['score']:.4g}")
        steps.append([method.label, *told])
    return [
        {"id": "methods", "title": "Every method", "columns": columns, "rows": rows,
         "note": "Averaged answers; means over trials with 95% intervals. True F and Delta_y: lower level solved "
         "exactly at a grid of temperatures. AUC: how well small weights tell wrong labels. Trials are splits and "
         "seeds of one data set."},
        {"id": "steps", "title": "Step sizes chosen on tuning trials", "rows": steps,
         "columns": ["method", "inner", "outer", "inner steps", "validation loss on tuning trials"],
         "note": searched(findings.budget.grid)},
    ]  # fmt: skip


def policies(findings: Findings) -> dict[str, Any]:
    """Losses, accuracies and sizes by temperature, of the policy and of exact classifiers; the first trial."""
    rounded = lambda values: [float(f"{v:.4g}") for v in values]
    entries = []
    for method in findings.methods:
        policy, exact, error = (findings.by_temperature(method, name)[0] for name in ("policy", "exact", "error"))
        entries.append(
            {"basis": method.family, "N": method.N, "solver": method.solver, "policy": [rounded(c) for c in policy.T],
             "exact": [rounded(c) for c in exact.T], "error": rounded(np.sqrt(error))}
        )  # fmt: skip
    context = {"label": "temperature", "values": findings.lab.temperatures().tolist()}
    components = ["validation loss", "test accuracy", "norm of y"]
    return {"context": context, "quantity": "classifier", "components": components, "entries": entries}


def summary(runs: Runs, lab: Cleaning) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the page shows of this experiment, and its verdicts."""
    findings, budget = Findings(lab), lab.budget
    one = lab.instance(0)
    train, validation = len(one.problem.x0), one.train.upper.eta_rows  # pyright: ignore
    lead = (
        f"Weights for {train:,} training images ({lab.images.name}), 30% of whose labels were redrawn at random, "
        f"learned from {validation:,} clean ones over temperatures from 0.1 to 10. {budget.instances} trials a method, "
        "StocBiO with the constants the paper prints."
    )
    about = [
        ["trials", f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning trials from seed 10000"],
        ["data", f"{lab.images.name}: {train} training, {validation} validation images"],
        ["steps", f"{budget.steps} outer steps with 10 inner ones; otherwise as many oracle calls"],
        ["StocBiO", f"batches of {findings.methods[0].batch}, K = 10, s = 0.01, averages over the last tenth"],
        ["settings tried", f"{len(budget.grid.settings())} a method, by successive halving"],
    ]
    told = {
        "experiment": "cleaning",
        "title": "Hyper-cleaning over temperatures",
        "lead": lead,
        "about": about,
        "panels": panels(findings),
        "tables": tables(findings),
        "policies": policies(findings),
    }
    return told, claims(findings)
