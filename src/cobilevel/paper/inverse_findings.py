"""What the runs of the inverse experiment say: what its page shows, and the verdicts on I1 to I5 and T2.

Claims are judged on ``StocBiO`` with the constants the paper prints, under every reading of what it leaves open.
``Newton`` on the same reduced problems shows whether a failure is the solver's or the reduction's.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ..judge import Estimate, runs_estimate
from .claims import Judgement, Reading, every_reading, geometric_mean, judged, listed, median, ratio
from .findings import Findings, rounded
from .inverse import CONTEXTS
from .methods import BARE, BASES, HELD_OUT, PER_CELL, REPORTED, Method, family_name
from .theory import complexity_verdict, theory

_AS_GOOD = 0.005  # of F_ref: as good as the best


class InverseFindings(Findings):
    """Two-edge networks: the finished runs, each quantity as an array over instances."""

    title = "Road capacities from observed flows"
    unit = "instance"

    def values(self, method, name, tuned=HELD_OUT):
        """``ratio`` is the loss over F_ref, ``gap`` the loss over that of the exact-lower-level optimum, less 1."""
        if name == "ratio":
            return self.values(method, "loss", tuned) / self.values(method, "loss_true", tuned)
        if name == "gap":
            loss = self.values(method, "loss", tuned)
            return loss / self._best[method.noise][: len(loss)] - 1
        return super().values(method, name, tuned)

    @cached_property
    def _best(self) -> dict[float, np.ndarray]:
        """The losses at the exact-lower-level optima, by noise."""
        best = {}
        for noise in {method.noise for method in self.methods}:
            most = max(count for method, count in self.lab.plan() if method.noise == noise)
            runs = [self.lab.runs.get(self.lab.reference_spec(noise, seed)) for seed in range(most)]
            best[noise] = np.array([run.result["loss_best"] for run in runs])
        return best

    def sizes(self, family: str) -> tuple[int, ...]:
        return {PER_CELL: self.budget.cells, BARE: self.budget.bare}.get(family, self.budget.bases)

    def summary(self) -> dict[str, Any]:
        """What the page shows. Panels: the paper's Figure 1, with step sizes chosen on the instances shown; with
        others', in medians, and with Newton; errors by context."""
        held_out, newton = "With step sizes from held-out instances", "The same reduced problems solved by Newton"
        panels = [
            *_three_panels(self, "Figure 1: road capacities", "StocBiO", runs_estimate, "Means", REPORTED),
            *_three_panels(self, held_out, "StocBiO", runs_estimate, "Means"),
            *_three_panels(self, f"{held_out}, in medians", "StocBiO", median, "Medians"),
            *_three_panels(self, newton, "Newton", runs_estimate, "Means"),
            *(_errors_by_demand(self, solver) for solver in ("StocBiO", "Newton")),
        ]
        lead = (
            f"Road capacities inferred from noisy flows in {self.budget.instances} random two-edge networks. Every "
            "basis is solved with StocBiO, with the constants the paper prints, and with Newton, which shows what the "
            "reduction gives once the solver's own error is out of the way. Losses are on test samples with exact "
            "flows."
        )
        data = ["samples", "1000 for training, 1000 for testing"]
        parts = {"panels": panels, "tables": self._tables(), "policies": self._policies()}
        return self.page(lead, data, "batches of 64, K = 10, s = 0.001", **parts)

    def _tables(self) -> list[dict[str, Any]]:
        """Every method in numbers, the step sizes that were chosen, the ablation."""
        columns = ["method", "solver", "F / F_ref", "median", "F / best - 1", "median", "Delta_y", "Delta_x",
                   "diverged", "numbers held", "seconds a run"]  # fmt: skip
        rows, ablation, tuned = [], [], []
        for method in self.methods:
            changed, cells = _change(method), _cells(self, method)
            if method.usual:
                held = self.runs(method)[0].result["numbers_held"]
                rows.append([method.label, method.solver, *cells, held, f"{self.seconds(method):.2g}"])
            else:
                ablation.append([method.label, method.solver, changed, *cells])
            if method.solver == "StocBiO":
                tuned.append((method.label if method.usual else f"{method.label}, {changed}", method))
        note = (
            "Means over instances with 95% intervals; Delta_y and Delta_x are geometric means. Runs that diverged "
            "count as they stood last. The paper: 16 MB and 10 to 90 minutes a run."
        )
        tables = [
            {"id": "methods", "title": "Road capacities: every method", "columns": columns, "rows": rows, "note": note},
            self.step_sizes(tuned, "ratio"),
        ]
        if ablation:
            note = "One thing changed at a time; step sizes searched anew for each."
            tables.append({"id": "ablation", "title": "What the paper leaves open", "rows": ablation, "note": note,
                           "columns": ["method", "solver", "changed", *columns[2:9]]})  # fmt: skip
        return tables

    def _policies(self) -> dict[str, Any]:
        """The policies of the first instance, at every second context of the curves: enough for the eye."""
        entries = []
        for method in (method for method in self.methods if method.usual):
            curves = self.lab.runs.curves(self.runs(method)[0].spec)
            policy, exact = curves["policy"][::2], curves["exact"][::2]
            shown = lambda table: [rounded(column) for column in table.T]
            entries.append(
                {"basis": family_name(method.family), "N": method.N, "solver": method.solver, "policy": shown(policy),
                 "exact": shown(exact), "error": rounded(np.linalg.norm(policy - exact, axis=1))}
            )  # fmt: skip
        context = {"label": "demand", "values": CONTEXTS[::2].tolist()}
        return {"context": context, "quantity": "flow", "components": ["edge 1", "edge 2"], "entries": entries}

    def verdicts(self) -> list[dict[str, Any]]:
        """I1 to I5, T2 where it was measured, and the claims of the theory that need no runs."""
        return inverse_verdicts(self) + theory()


def _three_panels(
    findings: InverseFindings, name: str, solver: str, centre: Callable[[Any], Estimate], word: str,
    tuned: str = HELD_OUT,
) -> list[dict[str, Any]]:  # fmt: skip
    """Loss, lower-level and upper-level error against N, as the paper shows them."""
    note = f"{word} over instances with 95% intervals"
    middle = centre if centre is median else geometric_mean
    bare = " one-hot[N]: stocBiO[N] with indicator functions as they are." if solver == "StocBiO" else ""
    bare = f" Step sizes are the best on these instances.{bare}" if tuned == REPORTED else bare
    parts = (
        ("ratio", "Loss", "F(x) / F_ref", "linear", centre, f"{note}.{bare}"),
        ("policy_error", "Lower-level error", "Delta_y", "log", middle, f"{note}, of logarithms."),
        ("x_error", "Upper-level error", "Delta_x", "log", middle, f"{note}, of logarithms."),
    )
    return [
        {"figure": name, "xlabel": "N", "xscale": "log",
         "lines": [{"label": "F_ref", "y": 1.0}] if quantity == "ratio" else [],
         "id": f"{name}-{quantity}", "title": title, "ylabel": label, "yscale": scale, "note": words,
         "series": _series(findings, quantity, solver, over, tuned)}
        for quantity, title, label, scale, over, words in parts
    ]  # fmt: skip


def _series(
    findings: InverseFindings, name: str, solver: str, centre: Callable[[Any], Estimate], tuned: str
) -> list[dict[str, Any]]:
    """One line a family."""
    lines = []
    for family in (*BASES, PER_CELL, BARE):
        methods = [Method(solver, family, N) for N in findings.sizes(family)]
        methods = [method for method in methods if method in findings.methods]
        spread = [centre(findings.values(method, name, tuned)) for method in methods]
        ends = {end: [getattr(s, end) for s in spread] for end in ("low", "high")}
        label = family_name(family) if family in BASES else f"{family}[N]"
        if methods:
            lines.append({"label": label, "x": [m.N for m in methods], "y": [float(s) for s in spread]} | ends)
    return lines


def _errors_by_demand(findings: InverseFindings, solver: str, least: float = 1e-30) -> dict[str, Any]:
    """Where each basis errs: geometric means over instances, at equal and at larger memory. The axis is logarithmic:
    squared errors below `least` are drawn there."""
    lines = []
    wanted = [(family, 10) for family in (*BASES, PER_CELL)] + [(PER_CELL, 50)]
    for method in (Method(solver, family, N) for family, N in wanted):
        if method in findings.methods:
            curves = [findings.lab.runs.curves(run.spec) for run in findings.runs(method)]
            errors = np.array([np.sum((c["policy"] - c["exact"]) ** 2, axis=1) for c in curves])
            y = rounded(np.exp(np.mean(np.log(np.maximum(errors, least)), axis=0) / 2))
            lines.append({"label": method.label, "x": CONTEXTS.tolist(), "y": y, "low": None, "high": None})
    return {
        "id": f"by-demand-{solver}", "figure": "Error of the flows by demand", "title": f"Solved by {solver}",
        "xlabel": "demand", "ylabel": "error of the flows", "xscale": "linear", "yscale": "log", "lines": [],
        "series": lines, "note": "Geometric means over instances. Cells err most at their ends.",
    }  # fmt: skip


def _cells(findings: InverseFindings, method: Method) -> list[Any]:
    """Losses, errors and divergences of a method, as cells of a table."""
    over, gap = (findings.values(method, name) for name in ("ratio", "gap"))
    errors = [float(geometric_mean(findings.values(method, name))) for name in ("policy_error", "x_error")]
    diverged = int(findings.values(method, "diverged").sum())
    losses = [runs_estimate(over).words(4), f"{np.median(over):.4f}", runs_estimate(gap).words(2)]
    return [*losses, f"{np.median(gap):.2g}", *(f"{error:.2g}" for error in errors), diverged]


def _change(method: Method) -> str:
    """What is changed in a method of the ablation, in words."""
    usual = Method(method.solver, method.family, method.N)
    names = {"noise": "noise", "period": "Fourier period", "batch": "batch", "series": "series", "terms": "factors K"}
    changed = [f"{words} {getattr(method, k)}" for k, words in names.items() if getattr(method, k) != getattr(usual, k)]
    return ", ".join(changed)


# -- verdicts


def inverse_verdicts(findings: Any) -> list[dict[str, Any]]:
    """I1 to I5, and T2 where it was measured."""
    budget = findings.budget
    cells = [PER_CELL] + [BARE] * (budget.bare == budget.cells)  # run in all sizes
    views = [InverseView(findings, reading) for reading in every_reading(cells, budget.further, "medians")]
    entries = []
    for name, judge, threshold, how in _INVERSE_CLAIMS:
        holds, measured = judge(InverseView(findings, Reading(), "Newton"))
        why = f"With Newton on the same reduced problems it {'holds' if holds else 'fails too'}: {measured}."
        entry = judged(name, judge, views, threshold, how, why)
        newton = {"newton": f"{'holds' if holds else 'fails'}: {measured}"}
        entries.append(entry if entry["verdict"] == "not tested" else entry | newton)
    if budget.complexity:
        entries.append(complexity_verdict(dict(findings.lab.runs.get(findings.lab.complexity_spec()).result)))
    return entries


class InverseView:
    """The findings under one reading, with one solver; `cells` stands for whichever stocBiO[N] that is."""

    def __init__(self, findings: Any, reading: Reading, solver: str = "StocBiO"):
        self.reading = reading
        self._findings, self._solver = findings, solver

    def _family(self, name: str) -> str:
        return self.reading.cells or PER_CELL if name == "cells" else name

    def sizes(self, family: str) -> tuple[int, ...]:
        return self._findings.sizes(self._family(family))

    def of(self, family: str, N: int, name: str) -> np.ndarray:
        return self._findings.values(Method(self._solver, self._family(family), N), name, self.reading.tuned)

    def centre(self, values: Any) -> Estimate:
        """Over instances: the mean, or the median."""
        return median(values) if self.reading.medians else runs_estimate(values)

    def loss(self, family: str, N: int) -> Estimate:
        return self.centre(self.of(family, N, "ratio"))

    def policy_ratio(self, ours: tuple[str, int], theirs: tuple[str, int]) -> Estimate:
        """``Delta_y`` of ours over theirs, paired."""
        return ratio(self.of(*ours, "policy_error"), self.of(*theirs, "policy_error"))

    def from_size(self, limit: float) -> int | None:
        """The smallest N from which on every stocBiO[N] has a loss of at most the limit."""
        smallest = None
        for N in reversed(self.sizes("cells")):
            if self.loss("cells", N) > limit:
                break
            smallest = N
        return smallest


def _from(N: int | None) -> str:
    return "at no N" if N is None else f"from N = {N} on"


def _few_functions(view: InverseView) -> Judgement:
    if 3 not in view.sizes("Chebyshev") or 3 not in view.sizes("cells"):
        return None, "N = 3 is not among the sizes of this budget."
    losses = {family: view.loss(family, 3) for family in (*BASES, "cells")}
    gains = [view.centre(view.of(family, 3, "ratio") - view.of("cells", 3, "ratio")) for family in BASES]
    holds = all(losses[family] <= 1.1 for family in BASES) and all(gain.high < 0 for gain in gains)
    return holds, f"F/F_ref at N = 3: {listed(losses)}"


def _three_percent(view: InverseView) -> Judgement:
    losses = {f"{family}[5]": view.loss(family, 5) for family in BASES}
    cells = {f"cells[{N}]": view.loss("cells", N) for N in view.sizes("cells")}
    within = all(loss <= 1.03 for loss in losses.values())
    holds = within and cells["cells[5]"] > 1.03 and cells.get("cells[50]", np.inf) <= 1.03
    return holds, f"F/F_ref: {listed(losses)}; {listed(cells)}: within 3% {_from(view.from_size(1.03))}"


def _go_on(view: InverseView) -> Judgement:
    last = max(N for N in view.sizes("Chebyshev") if N <= 20)
    falls = {family: view.policy_ratio((family, last), (family, 5)) for family in BASES}
    common = [N for N in view.sizes("Chebyshev") if N in view.sizes("cells")]
    pairs = {f"{family}[{N}]": view.policy_ratio((family, N), ("cells", N)) for family in BASES[:2] for N in common}
    lost = [name for name, pair in pairs.items() if pair.high >= 1]
    holds = falls["Monomial"].low > 0.5 and all(falls[f].high < 1 for f in BASES[:2]) and not lost
    against = f"not below cells: {', '.join(lost)}" if lost else f"below cells at N = {common}"
    return holds, f"Delta_y({last})/Delta_y(5): {listed(falls, 2)}; {against}"


def _smallest(view: InverseView) -> Judgement:
    if max(view.sizes("cells")) < 100 or max(view.sizes("Chebyshev")) < 10:
        return None, "N = 100 is not among the sizes of this budget."
    every = [(family, N) for family in (*BASES, "cells") for N in view.sizes(family)]
    best = min(every, key=lambda key: view.loss(*key))
    lowest, largest = float(view.loss(*best)), max(view.sizes("cells"))
    late = [f"{f}[{N}]" for f, N in every if f in BASES[:2] and N >= 10 and view.loss(f, N) - lowest > _AS_GOOD]
    needs = view.from_size(lowest + _AS_GOOD)
    error = lambda N: np.mean(np.log(view.of("Chebyshev", N, "policy_error")))
    sharpest = min((N for N in view.sizes("Chebyshev") if N >= 10), key=error)
    above = view.policy_ratio(("cells", largest), ("Chebyshev", sharpest))
    behind = f"more than {_AS_GOOD} behind: {', '.join(late)}" if late else ""
    return not late and (needs or np.inf) >= 100 and above.low > 1, (
        f"best {best[0]}[{best[1]}], F/F_ref {lowest:.4f}; "
        f"{behind or 'Chebyshev and Fourier as good at every N >= 10'}; cells as good {_from(needs)}; "
        f"Delta_y of cells[{largest}] over Chebyshev[{sharpest}]: {above.words(2)}"
    )


def _memory(view: InverseView) -> Judgement:
    gap = lambda family, N: view.centre(view.of(family, N, "gap"))
    sizes = [N for N in (5, 10) if N in view.sizes("Chebyshev") and N in view.sizes("cells")]
    equal = {N: (gap("Chebyshev", N), gap("cells", N)) for N in sizes}
    tenfold = {N: (gap("Chebyshev", N), gap("cells", 10 * N)) for N in sizes if 10 * N in view.sizes("cells")}
    larger = any(theirs >= 10 * ours and theirs.low > 0 for ours, theirs in equal.values())
    smaller = any(ours <= theirs for ours, theirs in tenfold.values())
    words = [f"N = {N}: {a.words(2)}, cells {b.words(2)}" for N, (a, b) in equal.items()]
    words += [f"N = {N} against cells[{10 * N}]: {a.words(2)}, {b.words(2)}" for N, (a, b) in tenfold.items()]
    return larger or smaller, f"F over the best possible, less 1, Chebyshev at {'; '.join(words)}"


_INVERSE_CLAIMS = (
    ("I1", _few_functions,
     "F/F_ref at N = 3 at most 1.1 for each basis, and below that of cells[3], paired (upper end of the interval)",
     "Over instances, exact lower level, test samples."),
    ("I2", _three_percent,
     "F/F_ref at N = 5 at most 1.03 for each basis; of cells at most 1.03 at N = 50 and above it at N = 5",
     "Over instances. The paper says that stocBiO achieves a comparable accuracy at N = 50."),
    ("I3", _go_on,
     "Delta_y at N = 20 over N = 5: monomials above 1/2 (lower end), the others below 1 (upper end); and below that "
     "of cells at every common N (upper end of the ratio)",
     "Geometric means over instances of ratios, paired."),
    ("I4", _smallest,
     f"F/F_ref of Chebyshev and Fourier within {_AS_GOOD} of the best at every N >= 10; cells not before 100; and "
     "Delta_y of cells[100] above the smallest of Chebyshev's (lower end of the ratio)",
     "Over instances."),
    ("I5", _memory,
     "the optimality gap of Chebyshev[N] at most that of cells with ten times the functions, or a tenth of that of "
     "cells[N], at N = 5 or 10",
     "The gap is F over the loss at the exact-lower-level optimum of the same sample, less 1."),
)  # fmt: skip
