"""What the runs of the cleaning experiment say: tables, panels, policies by temperature."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from ...judge import runs_estimate
from ..findings import Findings, rounded
from ..lab import HELD_OUT
from ..methods import Method, family_name
from .experiment import Cleaning
from .verdicts import LOSSES, cleaning_verdicts

_WINDOW = 0.1  # of a run: the moving average of the curves


class CleaningFindings(Findings):
    """Hyper-cleaning: the finished runs by method, each quantity as an array over trials; curves with them."""

    title = "Hyper-cleaning over temperatures"
    unit = "trial"

    def __init__(self, lab: Cleaning):
        super().__init__(lab)
        self._curves = {key: [lab.runs.curves(run.spec) for run in runs] for key, runs in self._runs.items()}

    def steps(self, method: Method, tuned: str = HELD_OUT) -> np.ndarray:
        """The steps at which curves were looked at."""
        chunk = self.lab.chunk(self.runs(method, tuned)[0].result["inner_steps"])
        return (np.arange(self.by_temperature(method, "validation", tuned).shape[1]) + 1) * chunk

    def samples(self, method: Method, tuned: str = HELD_OUT) -> np.ndarray:
        """Every sample drawn until then, by all oracles."""
        spent = self.values(method, "samples", tuned).mean() / self.values(method, "steps", tuned).mean()
        return self.steps(method, tuned) * spent

    def curve(self, method: Method, name: str, tuned: str = HELD_OUT) -> Float[np.ndarray, "trials looks"]:
        """A moving average over the last tenth of the run before each look."""
        table = self.by_temperature(method, name, tuned)
        width = max(1, round(_WINDOW * table.shape[1]))
        sums = np.cumsum(np.pad(table, ((0, 0), (1, 0))), axis=1)
        ends = np.arange(1, table.shape[1] + 1)
        starts = np.maximum(ends - width, 0)
        return (sums[:, ends] - sums[:, starts]) / (ends - starts)

    def by_temperature(self, method: Method, name: str, tuned: str = HELD_OUT) -> Float[np.ndarray, "trials ..."]:
        """A curve as it is, trial by trial."""
        found = self._curves.get((method, tuned)) or self._curves[method, HELD_OUT]
        return np.array([curves[name] for curves in found], dtype=float)

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
        """The paper's Figure 2; the same against seconds; weights; errors by temperature."""
        train, _ = self._counts()
        clock = lambda m: self.steps(m) * self.seconds(m) / self.steps(m)[-1]
        epochs = ("epochs", "epochs: all samples drawn, over the training images", lambda m: self.samples(m) / train)
        seconds = ("seconds", "seconds a run, trials sharing the machine", clock)
        figure = "Figure 2: hyper-cleaning"
        return [
            *(_curves(self, name, epochs, figure, f"{name.capitalize()} loss", "loss") for name in LOSSES),
            _curves(self, "weight", epochs, "Weights, and time", "Mean weight", "mean of sigmoid(x)"),
            _curves(self, "validation", seconds, "Weights, and time", "Validation loss by seconds", "loss"),
            *(_errors_by_temperature(self, name) for name in ("error", "within")),
        ]

    def tables(self):
        """Every method in numbers, and the step sizes that were chosen."""
        names = (*LOSSES, *(f"{loss}_averaged" for loss in LOSSES), "loss", "policy_error", "weight", "auc", "accuracy")
        columns = ["method", "validation loss", "training loss", "validation, averaged answer",
                   "training, averaged answer", "true F", "Delta_y", "mean weight", "AUC", "test accuracy", "diverged",
                   "numbers held", "seconds a run"]  # fmt: skip
        rows = []
        for method in self.methods:
            spread = [runs_estimate(self.values(method, name)).words(4) for name in names]
            diverged = int(self.values(method, "diverged").sum())
            seconds = f"{self.seconds(method):.2g}"
            rows.append([method.label, *spread, diverged, self.lab.held(method), seconds])
        note = (
            "Losses are moving averages along the iterates where the runs end, and those of averaged answers; means "
            "over trials with 95% intervals. Of averaged answers also true F and Delta_y (lower level solved exactly "
            "at 32 temperatures), AUC (how well small weights indicate wrong labels) and accuracy."
        )
        tuned = [(method.label, method) for method in self.methods]
        return [
            {"id": "methods", "title": "Hyper-cleaning: every method", "columns": columns, "rows": rows, "note": note},
            self.step_sizes(tuned, "validation"),
        ]

    def policies(self):
        """Losses, accuracies and sizes by temperature, of the policy and of exact classifiers; the first trial."""
        entries = []
        for method in self.methods:
            policy, exact, error = (self.by_temperature(method, name)[0] for name in ("policy", "exact", "error"))
            entries.append(
                {"basis": family_name(method.family), "N": method.N, "solver": method.solver,
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
    return {"label": method.label} | numbers


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


def _errors_by_temperature(findings: CleaningFindings, name: str) -> dict[str, Any]:
    """Where each method errs, relative to the size of the exact classifiers; or the best policy in its span."""
    xi, lines = findings.lab.temperatures(), []
    for method in findings.methods:
        size = findings.by_temperature(method, "exact")[:, :, 2] ** 2
        error = findings.by_temperature(method, name) / size
        lines.append(_line(method, xi, error[np.isfinite(error).all(axis=1)]))
    title = {"error": "Of the policies found", "within": "Of the best policy in the span"}[name]
    return {
        "id": f"by-temperature-{name}", "figure": "Error of the policy by temperature", "title": title, "series": lines,
        "xlabel": "temperature", "ylabel": "|y - y*|^2 / |y*|^2", "xscale": "log", "yscale": "log", "lines": [],
        "note": "Against exact classifiers at the same weights; means over trials with 95% intervals.",
    }  # fmt: skip
