"""What the runs of the cleaning experiment say: tables, panels, policies by temperature."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from ...judge import Estimate, runs_estimate
from ..findings import Findings, rounded
from ..lab import Method
from ..statistics import ratio
from .experiment import Cleaning
from .verdicts import LOSSES, cleaning_verdicts

_WINDOW = 0.1  # of a run: the moving average of the curves


class CleaningFindings(Findings):
    """Hyper-cleaning: the finished runs by method, each quantity as an array over trials; curves with them."""

    title = "Hyper-cleaning over temperatures"
    unit = "trial"

    def __init__(self, lab: Cleaning):
        super().__init__(lab)
        self.methods = list(self._runs)
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

    def curve(self, method: Method, name: str) -> Float[np.ndarray, "trials looks"]:
        """A moving average over the last tenth of the run before each look."""
        table = self.by_temperature(method, name)
        width = max(1, round(_WINDOW * table.shape[1]))
        sums = np.cumsum(np.pad(table, ((0, 0), (1, 0))), axis=1)
        ends = np.arange(1, table.shape[1] + 1)
        starts = np.maximum(ends - width, 0)
        return (sums[:, ends] - sums[:, starts]) / (ends - starts)

    def by_temperature(self, method: Method, name: str) -> Float[np.ndarray, "trials ..."]:
        """A curve as it is, trial by trial."""
        return np.array([curves[name] for curves in self._curves[method]], dtype=float)

    def pace(self, ours: Method, theirs: Method) -> Estimate:
        """Samples until the validation loss is down to the higher of the two last values, ours over theirs, paired."""
        curves = [self.curve(method, "validation") for method in (ours, theirs)]
        level = np.maximum(curves[0][:, -1:], curves[1][:, -1:])
        first = [np.argmax(curve <= level, axis=1) for curve in curves]  # the last look at least is down there
        return ratio(self.samples(ours)[first[0]], self.samples(theirs)[first[1]])

    # -- what the page shows

    def _counts(self) -> tuple[int, int]:
        """How many images there are for training and for validation."""
        one = self.lab.instance(0)
        return len(one.problem.x0), one.train.upper.count

    def lead(self):
        train, validation = self._counts()
        return (
            f"Weights for {train:,} training images ({self.lab.images.name}), 30% of whose labels were redrawn at "
            f"random, learned from {validation:,} clean ones over temperatures from 0.1 to 10. "
            f"{self.budget.instances} trials a method, StocBiO with the constants the paper prints."
        )

    def data(self):
        train, validation = self._counts()
        return ["data", f"{self.lab.images.name}: {train} training, {validation} validation images"]

    def constants(self):
        return f"batches of {self.methods[0].batch}, K = 10, s = 0.01"

    def panels(self):
        """The figure of the paper in its layout; the same against samples and seconds; weights; by temperature."""
        train, _ = self._counts()
        batch = self.methods[0].batch
        clock = lambda m: self.steps(m) * self.seconds(m) / self.steps(m)[-1]
        epochs = ("epochs", "epochs of the training images", lambda m: self.steps(m) * batch / train)
        samples = ("samples", "samples used, all oracles", self.samples)
        seconds = ("seconds", "seconds a run, trials sharing the machine", clock)
        return [
            *(_curves(self, name, epochs, "losses", f"{name.capitalize()} loss", "loss") for name in LOSSES),
            _curves(self, "validation", samples, "cost", "Validation loss by samples", "loss"),
            _curves(self, "validation", seconds, "cost", "Validation loss by seconds", "loss"),
            _curves(self, "weight", epochs, "weights", "Mean weight", "mean of sigmoid(x)"),
            _errors_by_temperature(self),
        ]

    def tables(self):
        """Every method in numbers, and the step sizes that were chosen."""
        names = (*LOSSES, "loss", "policy_error", "weight", "auc", "accuracy")
        columns = ["method", "validation loss", "training loss", "true F", "Delta_y", "mean weight", "AUC",
                   "test accuracy", "diverged", "numbers held", "seconds a run"]  # fmt: skip
        rows = []
        for method in self.methods:
            spread = [runs_estimate(self.values(method, name)).words(4) for name in names]
            diverged = int(self.values(method, "diverged").sum())
            seconds = f"{self.seconds(method):.2g}"
            rows.append([method.label, *spread, diverged, self.lab.held(method), seconds])
        note = (
            "Averaged answers; means over trials with 95% intervals. True F and Delta_y: lower level solved exactly at "
            "a grid of temperatures. AUC: how well small weights indicate wrong labels. Trials are splits and seeds of "
            "one data set."
        )
        tuned = [(method.label, method) for method in self.methods]
        return [
            {"id": "methods", "title": "Every method", "columns": columns, "rows": rows, "note": note},
            self.step_sizes(tuned, "validation loss"),
        ]

    def policies(self):
        """Losses, accuracies and sizes by temperature, of the policy and of exact classifiers; the first trial."""
        entries = []
        for method in self.methods:
            policy, exact, error = (self.by_temperature(method, name)[0] for name in ("policy", "exact", "error"))
            entries.append(
                {"basis": method.family, "N": method.N, "solver": method.solver,
                 "policy": [rounded(c) for c in policy.T], "exact": [rounded(c) for c in exact.T],
                 "error": rounded(np.sqrt(error))}
            )  # fmt: skip
        context = {"label": "temperature", "values": self.lab.temperatures().tolist()}
        components = ["validation loss", "test accuracy", "norm of y"]
        return {"context": context, "quantity": "classifier", "components": components, "entries": entries}

    def verdicts(self):
        """H1 to H6."""
        return cleaning_verdicts(self)


def _line(method: Method, x: np.ndarray, table: Float[np.ndarray, "trials x"]) -> dict[str, Any]:
    """Means over trials with their intervals, as one series of a panel."""
    spread = [runs_estimate(column) for column in table.T]
    ends = {name: rounded((getattr(s, name) for s in spread), 5) for name in ("low", "high")}
    numbers = {"x": rounded(x, 5), "y": rounded(spread, 5)} | ends
    return {"label": method.label, "solver": method.solver} | numbers


def _curves(
    findings: CleaningFindings,
    name: str,
    axis: tuple[str, str, Callable[[Method], np.ndarray]],
    figure: str,
    title: str,
    label: str,
) -> dict[str, Any]:
    """One panel of curves over the run, against an axis given by its name, its label and its values."""
    key, words, x = axis
    lines = [_line(m, x(m), findings.curve(m, name)) for m in findings.methods]
    note = f"Moving averages over {100 * _WINDOW:.0f}% of a run; means over trials with 95% intervals."
    return {"id": f"{name}-{key}", "figure": figure, "title": title, "xlabel": words, "ylabel": label, "lines": [],
            "xscale": "linear", "yscale": "linear", "note": note, "series": lines}  # fmt: skip


def _errors_by_temperature(findings: CleaningFindings) -> dict[str, Any]:
    """Where each basis errs, relative to the size of the exact classifiers."""
    xi, lines = findings.lab.temperatures(), []
    for method in findings.methods:
        size = findings.by_temperature(method, "exact")[:, :, 2] ** 2
        lines.append(_line(method, xi, findings.by_temperature(method, "error") / size))
    return {
        "id": "by-context", "figure": "by-context", "title": "Error of the policy by temperature", "series": lines,
        "xlabel": "temperature", "ylabel": "|y - y*|^2 / |y*|^2", "xscale": "linear", "yscale": "log", "lines": [],
        "note": "Against exact classifiers at the same weights; means over trials with 95% intervals.",
    }  # fmt: skip
