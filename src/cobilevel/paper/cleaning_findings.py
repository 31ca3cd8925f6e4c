"""What the runs of the cleaning experiment say: what its page shows, and the verdicts on H1 to H6."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ..judge import Estimate, runs_estimate
from .claims import Judgement, Reading, difference, every_reading, geometric_mean, judged, listed, ratio
from .cleaning import WINDOW, Cleaning
from .findings import Findings, rounded
from .methods import BARE, BASES, HELD_OUT, PER_CELL, Method, family_name

LOSSES = ("validation", "training")


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
        width = max(1, round(WINDOW * table.shape[1]))
        sums = np.cumsum(np.pad(table, ((0, 0), (1, 0))), axis=1)
        ends = np.arange(1, table.shape[1] + 1)
        starts = np.maximum(ends - width, 0)
        return (sums[:, ends] - sums[:, starts]) / (ends - starts)

    def by_temperature(self, method: Method, name: str, tuned: str = HELD_OUT) -> Float[np.ndarray, "trials ..."]:
        """A curve as it is, trial by trial."""
        curves = self._curves.get((method, tuned)) or self._curves[method, HELD_OUT]
        return np.array([one[name] for one in curves], dtype=float)

    def summary(self) -> dict[str, Any]:
        """What the page shows. Panels: the paper's Figure 2; the same against seconds; weights; errors by
        temperature."""
        one, images = self.lab.instance(0), self.lab.images.name
        train, validation = len(one.problem.x0), one.train.upper.count
        lead = (
            f"Weights for {train:,} training images ({images}), 30% of whose labels were redrawn at "
            f"random, learned from {validation:,} clean ones over temperatures from 0.1 to 10. "
            f"{self.budget.instances} trials a method, StocBiO with the constants the paper prints."
        )
        clock = lambda m: self.steps(m) * self.seconds(m) / self.steps(m)[-1]
        epochs = ("epochs", "epochs: all samples drawn, over the training images", lambda m: self.samples(m) / train)
        seconds = ("seconds", "seconds a run, trials sharing the machine", clock)
        figure = "Figure 2: hyper-cleaning"
        panels = [
            *(_panel(self, name, epochs, figure, f"{name.capitalize()} loss", "loss") for name in LOSSES),
            _panel(self, "weight", epochs, "Weights, and time", "Mean weight", "mean of sigmoid(x)"),
            _panel(self, "validation", seconds, "Weights, and time", "Validation loss by seconds", "loss"),
            *(_errors_by_temperature(self, name) for name in ("error", "within")),
        ]
        data = ["data", f"{images}: {train} training, {validation} validation images"]
        parts = {"panels": panels, "tables": self._tables(), "policies": self._policies()}
        return self.page(lead, data, f"batches of {self.methods[0].batch}, K = 10, s = 0.01", **parts)

    def _tables(self) -> list[dict[str, Any]]:
        """Every method in numbers, and the step sizes that were chosen."""
        names = (*LOSSES, *(f"{loss}_averaged" for loss in LOSSES), "loss", "policy_error", "weight", "auc", "accuracy")
        columns = ["method", "validation loss", "training loss", "validation, averaged answer",
                   "training, averaged answer", "true F", "Delta_y", "mean weight", "AUC", "test accuracy", "diverged",
                   "numbers held", "seconds a run"]  # fmt: skip
        rows = []
        for method in self.methods:
            spread = [runs_estimate(self.values(method, name)).words(4) for name in names]
            diverged = int(self.values(method, "diverged").sum())
            rows.append([method.label, *spread, diverged, self.lab.held(method), f"{self.seconds(method):.2g}"])
        note = (
            "Losses are moving averages along the iterates where the runs end, and those of averaged answers; means "
            "over trials with 95% intervals. Of averaged answers also true F and Delta_y (lower level solved exactly "
            "at 32 temperatures), AUC (how well small weights indicate wrong labels) and accuracy."
        )
        return [
            {"id": "methods", "title": "Hyper-cleaning: every method", "columns": columns, "rows": rows, "note": note},
            self.step_sizes([(method.label, method) for method in self.methods], "validation"),
        ]

    def _policies(self) -> dict[str, Any]:
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

    def verdicts(self) -> list[dict[str, Any]]:
        """H1 to H6."""
        return cleaning_verdicts(self)


def _line(method: Method, x: np.ndarray, table: Float[np.ndarray, "trials x"]) -> dict[str, Any]:
    """Means over trials with their intervals, as one series of a panel."""
    spread = [runs_estimate(column) for column in table.T]
    ends = {name: rounded((getattr(s, name) for s in spread), 5) for name in ("low", "high")}
    return {"label": method.label, "x": rounded(x, 5), "y": rounded(spread, 5)} | ends


def _panel(
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
    note = f"Moving averages over {100 * WINDOW:.0f}% of a run; means over trials with 95% intervals."
    return {"id": f"{name}-{key}", "figure": figure, "title": title, "xlabel": words, "ylabel": label, "lines": [],
            "xscale": "linear", "yscale": "linear", "note": note, "series": lines}  # fmt: skip


def _errors_by_temperature(findings: CleaningFindings, name: str) -> dict[str, Any]:
    """Where each method errs, relative to the size of the exact classifiers; or the best policy in its span."""
    xi, lines = findings.lab.temperatures(), []
    for method in findings.methods:
        lines.append(_line(method, xi, _relative_errors(findings, method, name, HELD_OUT)))
    title = {"error": "Of the policies found", "within": "Of the best policy in the span"}[name]
    return {
        "id": f"by-temperature-{name}", "figure": "Error of the policy by temperature", "title": title, "series": lines,
        "xlabel": "temperature", "ylabel": "|y - y*|^2 / |y*|^2", "xscale": "log", "yscale": "log", "lines": [],
        "note": "Against exact classifiers at the same weights; means over trials with 95% intervals.",
    }  # fmt: skip


def _relative_errors(findings: Any, method: Method, name: str, tuned: str) -> Float[np.ndarray, "trials temperatures"]:
    """Squared errors over the squared size of the exact classifiers, in the trials for which they were computed."""
    size = findings.by_temperature(method, "exact", tuned)[:, :, 2] ** 2
    error = findings.by_temperature(method, name, tuned) / size
    return error[np.isfinite(error).all(axis=1)]


# -- verdicts


def cleaning_verdicts(findings: Any) -> list[dict[str, Any]]:
    """H1 to H6, each under every reading of it."""
    budget = findings.budget
    cells, bare = (every_reading([each], budget.further, "averaged") for each in (PER_CELL, BARE))
    plain = [replace(reading, cells=None) for reading in cells]
    by_size = cells + bare * (budget.bare == budget.cells)
    readings = {
        "H1": by_size,
        "H2": cells + bare * (budget.cells[0] in budget.bare),
        "H3": by_size,
        "H4": [replace(reading, bases_only=True) for reading in plain] + cells,
        "H5": plain,
        "H6": cells[::2],  # the lower level is solved exactly: there is nothing to average
    }
    drifts = CleaningView(findings, Reading()).drifts()
    worst = max(drifts, key=lambda name: abs(drifts[name]))
    most = f"{100 * abs(drifts[worst]):.1f}% ({worst})"  # a loss is final only where it has stopped moving
    flat = f"Over the last fifth of the runs mean validation losses still change by at most {most}."
    return [
        judged(name, judge, [CleaningView(findings, one) for one in readings[name]], threshold, how, flat)
        for name, judge, threshold, how in _CLEANING_CLAIMS
    ]


class CleaningView:
    """The findings under one reading; `cells` stands for whichever stocBiO[N] that is."""

    def __init__(self, findings: Any, reading: Reading):
        self._findings, self.reading = findings, reading
        self._cells = reading.cells or PER_CELL
        self.methods = [method for method in findings.methods if method.family in (*BASES, self._cells)]

    def of(self, family: str) -> list[Method]:
        """The methods of a family, by size."""
        family = self._cells if family == "cells" else family
        return [method for method in self.methods if method.family == family]

    def chebyshev(self) -> Method:
        """The five functions that claims speak of."""
        return next(method for method in self.of("Chebyshev") if method.N == 5)

    def final(self, method: Method, loss: str) -> np.ndarray:
        """Of each trial: the moving average where the run ends, or the loss of its averaged answer."""
        name = f"{loss}_averaged" if self.reading.averaged else loss
        return self._findings.values(method, name, self.reading.tuned)

    def gap(self, ours: Method, theirs: Method, loss: str = "validation") -> Estimate:
        return difference(self.final(ours, loss), self.final(theirs, loss))

    def curve(self, method: Method, name: str) -> np.ndarray:
        return self._findings.curve(method, name, self.reading.tuned)

    def level(self) -> float:
        """The lowest validation loss that every method reaches, on average: one level for all."""
        return max(float(self.curve(method, "validation").mean(axis=0).min()) for method in self.methods)

    def samples_until(self, method: Method) -> np.ndarray:
        """Samples drawn until the validation loss is down to the level, by trial; the whole run where it never is."""
        curve, drawn = self.curve(method, "validation"), self._findings.samples(method, self.reading.tuned)
        below = curve <= self.level()
        return np.where(below.any(axis=1), drawn[np.argmax(below, axis=1)], drawn[-1])

    def pace(self, ours: Method, theirs: Method) -> Estimate:
        return ratio(self.samples_until(ours), self.samples_until(theirs))

    def drifts(self) -> dict[str, float]:
        """By how much the mean validation loss of each method changes over the last fifth of its run."""
        curves = {method.label: self.curve(method, "validation").mean(axis=0) for method in self.methods}
        return {label: float(c[-1] / c[-1 - max(1, len(c) // 5)] - 1) for label, c in curves.items()}

    def in_the_span(self, method: Method) -> np.ndarray:
        """Squared errors of the best policy in the span, over the squared size of the exact one; trial, temperature."""
        return _relative_errors(self._findings, method, "within", self.reading.tuned)


def _larger_cells(view: CleaningView) -> Judgement:
    small, large = view.of("cells")[0], view.of("cells")[-1]
    gain, slower = view.gap(large, small), view.pace(large, small)
    return gain.high < 0 and slower.low > 1, (
        f"{large.label} less {small.label}, final validation loss: {gain.words()}; samples until a loss of "
        f"{view.level():.3g}, ratio: {slower.words()}"
    )


def _rising(view: CleaningView) -> Judgement:
    small, ours = view.of("cells")[0], view.chebyshev()
    curve, weight = view.curve(small, "training"), view.curve(small, "weight")
    parts = {
        f"training loss of {small.label} less {ours.label}'s": view.gap(small, ours, "training"),
        "its change over the second half": runs_estimate(curve[:, -1] - curve[:, curve.shape[1] // 2]),
        "change of the mean weight": runs_estimate(weight[:, -1] - weight[:, 0]),
    }
    holds = all(part.low > 0 for part in parts.values())
    return holds, "; ".join(f"{name}: {part.words()}" for name, part in parts.items())


def _fastest(view: CleaningView) -> Judgement:
    ours, others = view.chebyshev(), view.of("cells") + view.of("Monomial")
    gaps = {loss: {method: view.gap(ours, method, loss) for method in others} for loss in LOSSES}
    paces = {method: view.pace(ours, method) for method in others}
    more = {m: view.gap(m, ours) for m in view.of("Chebyshev") if m.N > 5}
    limit = -0.02 * float(np.mean(view.final(ours, "validation")))
    holds = all(gap.high < 0 for table in gaps.values() for gap in table.values())
    holds = holds and all(pace.high < 1 for pace in paces.values()) and all(gap > limit for gap in more.values())
    words = [f"{loss} loss less that of {listed(table, 2)}" for loss, table in gaps.items()]
    words.append(f"samples until a loss of {view.level():.3g}, over those of {listed(paces, 2)}")
    words += [f"more functions: {listed(more, 2)}"] if more else []
    return holds, f"{ours.label}: {'; '.join(words)}"


def _monomials(view: CleaningView) -> Judgement:
    ours = view.of("Monomial")[-1]
    if ours.N < 10:
        return None, "Needs N >= 10, which this budget leaves out."
    families = BASES if view.reading.bases_only else (*BASES, PER_CELL)
    others = [m for m in view.methods if ours.N == m.N and m.family in families and m.family != "Monomial"]
    gaps = {method: view.gap(ours, method) for method in others}
    holds = bool(gaps) and all(gap.low > 0 for gap in gaps.values())
    return holds, f"{ours.label}, validation loss less that of {listed(gaps, 2)}"


def _alike(view: CleaningView) -> Judgement:
    pairs = [(f, c) for f in view.of("Fourier") for c in view.of("Chebyshev") if f.N == c.N]
    ratios = {f.N: ratio(view.final(f, "validation"), view.final(c, "validation")) for f, c in pairs}
    words = "; ".join(f"N = {N}: {r.words(4)}" for N, r in ratios.items())
    holds = all(r.low >= 0.98 and r.high <= 1.02 for r in ratios.values())
    return holds, f"validation loss of Fourier over Chebyshev: {words}"


def _sharp(view: CleaningView) -> Judgement:
    """The policy varies most at the coldest temperatures."""
    large, ours = view.of("cells")[-1], view.of("Chebyshev")[-1]
    error, theirs = view.in_the_span(large), view.in_the_span(ours)
    middle = np.median(error, axis=1)
    parts = {
        f"{large.label} at the coldest temperature, over its median": geometric_mean(error[:, 0] / middle),
        f"there over {ours.label}": ratio(error[:, 0], theirs[:, 0]),
    }
    return all(part.low > 1 for part in parts.values()), (
        f"squared error of the best policy in the span over |y*|^2, {large.label}: {np.mean(error[:, 0]):.2g} at the "
        f"coldest of {error.shape[1]} temperatures, {np.mean(middle):.2g} at the median; "
        + "; ".join(f"{name}: {part.words(2)}" for name, part in parts.items())
    )


_CLEANING_CLAIMS = (
    ("H1", _larger_cells,
     "difference below 0 (upper end) and ratio above 1 (lower end)",
     "Largest against smallest number of cells, paired over trials; speed by the samples until the lowest loss that "
     "every method reaches."),
    ("H2", _rising, "all three above 0 (lower ends)", "Weighted, regularised training loss along the policy."),
    ("H3", _fastest,
     "below 0 (upper ends) on both losses; fewer samples (upper ends below 1); more functions gain under 2%",
     "Against every number of cells and every monomial basis, paired over trials; speed as in H1."),
    ("H4", _monomials, "above 0 (lower ends), N >= 10", "Against other methods of that size, paired over trials."),
    ("H5", _alike,
     "ratio of validation losses between 0.98 and 1.02 (whole interval), at each N",
     "Geometric means over trials, paired."),
    ("H6", _sharp,
     "both ratios above 1 (lower ends)",
     "The reduced lower level is solved exactly at the weights found, in the first trials, so that what is left is "
     "the basis's own error; against exact classifiers. The largest number of cells against the largest Chebyshev "
     "basis, which has no more functions."),
)  # fmt: skip
