"""What the runs of the cleaning experiment say: tables, panels, policies by temperature, and verdicts."""

from typing import Any

import numpy as np

from ..runs import Run, Runs
from .claims import verdict
from .cleaning import Cleaning
from .lab import Method
from .statistics import Interval95, difference, ratio

_WINDOW = 0.1  # of a run: the moving average of the curves
_LOSSES = ("validation", "training")


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

    def speed(self, method: Method) -> np.ndarray:
        """Samples until the validation loss has made 90% of its way, in each trial."""
        curve = self.curve(method, "validation")
        first, last = np.log(self.lab.images.classes), curve[:, -1:]  # the loss of y = 0, and the last
        made = (first - curve) / np.maximum(first - last, 1e-12)
        return self.samples(method)[np.argmax(made >= 0.9, axis=1)]


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
        "seconds": ("seconds", lambda m: findings.steps(m) * seconds[m] / findings.steps(m)[-1]),
    }
    note = f"Moving averages over {100 * _WINDOW:.0f}% of a run; means over trials with 95% intervals."

    def panel(name: str, axis: str, figure: str, title: str, label: str) -> dict[str, Any]:
        words, x = axes[axis]
        lines = [_line(m, x(m), findings.curve(m, name)) for m in findings.methods]
        return {"id": f"{name}-{axis}", "figure": figure, "title": title, "xlabel": words, "ylabel": label, "lines": [],
                "xscale": "linear", "yscale": "linear", "note": note, "series": lines}  # fmt: skip

    found = [panel(name, "epochs", "losses", f"{name.capitalize()} loss", "loss") for name in _LOSSES]
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
    names = (*_LOSSES, "loss", "policy_error", "weight", "auc", "accuracy")
    columns = ["method", "validation loss", "training loss", "true F", "Delta_y", "mean weight", "AUC", "test accuracy",
               "diverged", "numbers held", "seconds a run"]  # fmt: skip
    rows, steps = [], []
    for method in findings.methods:
        spread = [Interval95.of(findings.values(method, name)).words(4) for name in names]
        diverged = int(findings.values(method, "diverged").sum())
        seconds = f"{np.mean([run.cost['seconds'] for run in findings.runs(method)]):.2g}"
        rows.append([method.label, *spread, diverged, findings.lab.held(method), seconds])
        tuned = findings.lab.runs.get(findings.lab.tuning_spec(method)).result
        steps.append([method.label, f"{tuned['inner']:g}", f"{tuned['outer']:g}", tuned["inner_steps"],
                      f"{tuned['score']:.4g}"])  # fmt: skip
    return [
        {"id": "methods", "title": "Every method", "columns": columns, "rows": rows,
         "note": "Averaged answers; means over trials with 95% intervals. True F and Delta_y: lower level solved "
         "exactly at a grid of temperatures. AUC: how well small weights tell wrong labels."},
        {"id": "steps", "title": "Step sizes chosen on tuning trials", "rows": steps,
         "columns": ["method", "inner", "outer", "inner steps", "validation loss on tuning trials"],
         "note": "Tuning trials are not among those reported."},
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


def claims(findings: Findings) -> list[dict[str, Any]]:
    """H1 to H6."""
    return [_larger_partitions(findings), _rising(findings), _fastest(findings), _monomials(findings),
            _alike(findings), _sharp(findings)]  # fmt: skip


def _larger_partitions(findings: Findings) -> dict[str, Any]:
    sizes = findings.sizes("Partition")
    small, large = (findings.find("Partition", N) for N in (sizes[0], sizes[-1]))
    gain = difference(findings.values(large, "validation"), findings.values(small, "validation"))
    slower = ratio(findings.speed(large), findings.speed(small))
    measured = (
        f"{large.label} less {small.label}, final validation loss, paired: {gain.words()}; samples to 90% of the way, "
        f"ratio: {slower.words()}"
    )
    why = ""
    if not (gain.high < 0 and slower.low > 1):
        why = (
            f"Within the budget a cell of {large.label} sees only 1 in {large.N} of the samples: "
            "slow convergence shows as a higher loss at the end."
            if gain.low > 0
            else "The intervals do not tell the two apart at this budget."
        )
    threshold = "difference below 0 (upper end) and ratio above 1 (lower end)"
    how = "Final validation loss of averaged answers; samples until the validation curve has made 90% of its way."
    return verdict("H1", gain.high < 0 and slower.low > 1, measured, threshold, how, why)


def _rising(findings: Findings) -> dict[str, Any]:
    small, ours = findings.find("Partition", findings.sizes("Partition")[0]), findings.find("Chebyshev", 5)
    curve, weight = findings.curve(small, "training"), findings.curve(small, "weight")
    middle = curve.shape[1] // 2
    above = difference(findings.values(small, "training"), findings.values(ours, "training"))
    rise, heavier = Interval95.of(curve[:, -1] - curve[:, middle]), Interval95.of(weight[:, -1] - weight[:, 0])
    measured = (
        f"training loss of {small.label} less {ours.label}'s: {above.words()}; its change over the second half: "
        f"{rise.words()}; change of the mean weight: {heavier.words()}"
    )
    holds = above.low > 0 and rise.low > 0 and heavier.low > 0
    why = (
        ""
        if holds
        else "Where the training loss rises or not depends on how far x moves: see the panel of mean weights."
    )
    threshold = "all three above 0 (lower ends)"
    return verdict("H2", holds, measured, threshold, "Weighted, regularised training loss along the policy.", why)


def _fastest(findings: Findings) -> dict[str, Any]:
    ours = findings.find("Chebyshev", 5)
    others = [m for m in findings.methods if m.family in ("Partition", "Monomial")]
    told, below = [], True
    for loss in _LOSSES:
        gaps = {m: difference(findings.values(ours, loss), findings.values(m, loss)) for m in others}
        below &= all(gap.high < 0 for gap in gaps.values())
        told.append(f"{loss} loss less that of " + ", ".join(f"{m.label} {g.words(2)}" for m, g in gaps.items()))
    speeds = {m: ratio(findings.speed(ours), findings.speed(m)) for m in others}
    fast = all(r.low <= 1 for r in speeds.values())
    more = [m for m in findings.methods if m.family == "Chebyshev" and m.N > 5]
    little = {m: difference(findings.values(m, "validation"), findings.values(ours, "validation")) for m in more}
    level = findings.values(ours, "validation").mean()
    small = all(gap.mean > -0.02 * level for gap in little.values())
    if little:
        told.append("more functions: " + ", ".join(f"{m.label} {g.words(2)}" for m, g in little.items()))
    told.append(
        "slower than (samples to 90%): " + (", ".join(m.label for m, r in speeds.items() if r.low > 1) or "none")
    )
    threshold = (
        "paired differences below 0 (upper ends) on both losses; no slower than any; more functions gain under 2%"
    )
    lost = {
        m: Interval95.of(findings.values(m, "weight")).mean
        for m in others
        if any(difference(findings.values(ours, loss), findings.values(m, loss)).high >= 0 for loss in _LOSSES)
    }
    why = ""
    if lost:
        mine = Interval95.of(findings.values(ours, "weight")).mean
        told_of = ", ".join(f"{m.label} (mean weight {weight:.2g})" for m, weight in lost.items())
        why = f"Not below on both losses: {told_of}. The training loss is weighted, and our mean weight is {mine:.2g}."
    slow = [m.label for m, r in speeds.items() if r.low > 1]
    why += f" Slower than {', '.join(slow)}." if slow else ""
    how = "Chebyshev(5) against every partition and monomial basis, paired over trials."
    return verdict("H3", below and fast and small, "; ".join(told), threshold, how, why)


def _monomials(findings: Findings) -> dict[str, Any]:
    largest = findings.sizes("Monomial")[-1]
    ours = findings.find("Monomial", largest)
    others = [m for m in findings.methods if largest == m.N and m.family != "Monomial"]
    gaps = {m: difference(findings.values(ours, "validation"), findings.values(m, "validation")) for m in others}
    measured = f"{ours.label} less, final validation loss: " + ", ".join(
        f"{m.label} {g.words()}" for m, g in gaps.items()
    )
    worse = [m.label for m, gap in gaps.items() if gap.low <= 0]
    why = "" if not worse else f"Not worse than {', '.join(worse)}."
    if largest < 10:
        return verdict("H4", None, measured, "", "Needs N >= 10, which this budget leaves out.")
    return verdict(
        "H4", not worse, measured, "above 0 (lower ends)", "Paired over trials, at the largest common N.", why
    )


def _alike(findings: Findings) -> dict[str, Any]:
    told, close = [], True
    for N in findings.sizes("Fourier"):
        ours, theirs = findings.find("Fourier", N), findings.find("Chebyshev", N)
        gap = ratio(findings.values(ours, "validation"), findings.values(theirs, "validation"))
        close &= gap.low >= 0.98 and gap.high <= 1.02
        told.append(f"N = {N}: {gap.words(4)}")
    why = (
        "" if close else "The two end within a few per cent of each other, but not within the two that were asked for."
    )
    threshold = "ratio of final validation losses between 0.98 and 1.02 (whole interval), at each N"
    return verdict("H5", close, "; ".join(told), threshold, "Geometric mean over trials, paired.", why)


def _sharp(findings: Findings) -> dict[str, Any]:
    """The policy varies most at the coldest temperatures."""
    largest = findings.find("Partition", findings.sizes("Partition")[-1])
    ours = findings.find("Chebyshev", 5)

    def against(method: Method) -> Interval95:
        exact = findings.by_temperature(method, "exact")[:, :, 2] ** 2
        share = findings.by_temperature(method, "error") / exact
        return ratio(share[:, 0], np.median(share[:, 1:], axis=1))

    cells, ratio_ours = against(largest), against(ours)
    cold = ratio(findings.by_temperature(largest, "error")[:, 0], findings.by_temperature(ours, "error")[:, 0])
    measured = (
        f"relative squared error at the coldest node over the median of the others: {largest.label} {cells.words(2)}, "
        f"{ours.label} {ratio_ours.words(2)}; error there, {largest.label} over {ours.label}: {cold.words(2)}"
    )
    why = "" if cells.low > 2 else "Its error is not concentrated where the policy varies most."
    threshold = f"above 2 for {largest.label} (lower end)"
    how = "Against exact classifiers at the same weights, by temperature; geometric means over trials."
    return verdict("H6", cells.low > 2, measured, threshold, how, why)


def summary(runs: Runs, lab: Cleaning) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the page shows of this experiment, and its verdicts."""
    findings, budget = Findings(lab), lab.budget
    one = lab.instance(0)
    train, validation = len(one.problem.x0), one.train.upper.eta_rows  # pyright: ignore
    lead = (
        f"Weights for {train:,} training images ({lab.images.name}), 30% of whose labels were redrawn at random, "
        f"learned from {validation:,} clean ones over temperatures from 0.1 to 10. {budget.instances} trials a method, "
        "StocBiO as the paper ran it."
    )
    about = [
        ["trials", f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning trials from seed 10000"],
        ["data", f"{lab.images.name}: {train} training, {validation} validation images"],
        ["steps", f"{budget.steps} outer steps of StocBiO, batches of {findings.methods[0].batch}, K = 10, s = 0.01"],
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
