"""What the runs of the inverse experiment say: tables, panels, policies to explore, and verdicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..runs import Run, Runs
from . import complexity
from .claims import verdict
from .inverse import CONTEXTS, Inverse
from .lab import Method
from .statistics import Interval95, difference, ratio

BASES = ("Chebyshev", "Fourier", "Monomial")
_EDGES = ["edge 1", "edge 2"]


class Findings:
    """The finished runs by method, each quantity as an array over instances."""

    def __init__(self, lab: Inverse):
        self.lab, self.budget = lab, lab.budget
        self._runs: dict[Method, list[Run]] = {}
        for method, count in lab.plan():
            self._runs[method] = [lab.runs.get(lab.spec(method, seed)) for seed in range(count)]

    def has(self, solver: str, family: str, N: int) -> bool:
        return Method(solver, family, N) in self._runs

    def runs(self, method: Method) -> list[Run]:
        return self._runs[method]

    def values(self, method: Method, name: str) -> np.ndarray:
        """``ratio`` is the loss over F_ref, ``gap`` the loss over that of the exact-lower-level optimum, less 1."""
        runs = self._runs[method]
        if name == "ratio":
            return np.array([run.result["loss"] / run.result["loss_true"] for run in runs])
        if name == "gap":
            best = [self.lab.runs.get(self.lab.reference_spec(method.noise, k)).result for k in range(len(runs))]
            return np.array([run.result["loss"] / b["loss_best"] - 1 for run, b in zip(runs, best, strict=True)])
        return np.array([run.result[name] for run in runs], dtype=float)

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
                 "low": middle.tolist(), "high": middle.tolist()}
            )  # fmt: skip
    return {
        "id": "by-context", "figure": "by-context", "title": "Error of the flows by demand", "xlabel": "demand",
        "ylabel": "error of the flows", "xscale": "linear", "yscale": "log", "lines": [], "series": lines,
        "note": "Geometric means over instances. Peaks: where an edge starts to carry flow, the policy has a kink.",
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
            told = (f"{tuned['inner']:g}", f"{tuned['outer']:g}", tuned["inner_steps"], f"{tuned['score']:.4g}")
            steps.append([name, *told])
    found = [
        {"id": "methods", "title": "Every method", "columns": columns, "rows": rows,
         "note": "Means over instances with 95% intervals; Delta_y and Delta_x are geometric means. Runs that diverged "
         "count as they stood last. The paper: 16 MB and 10 to 90 minutes a run."},
        {"id": "steps", "title": "Step sizes chosen on tuning instances", "columns": chosen, "rows": steps,
         "note": "The grid of the paper, by successive halving; tuning instances are not among those reported."},
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


def claims(findings: Findings) -> list[dict[str, Any]]:
    """I1 to I5, judged on ``StocBiO`` as the paper ran it; ``Newton`` beside it tells solver from reduction. And T2."""
    found = [_few_functions(findings), _three_percent(findings), _go_on(findings), _smallest(findings)]
    found.append(_memory(findings))
    if findings.budget.complexity:
        found.append(complexity.judge(dict(findings.lab.runs.get(findings.lab.complexity_spec()).result)))
    return found


def _means(findings: Findings, N: int, name: str = "ratio") -> str:
    words = []
    for solver in ("StocBiO", "Newton"):
        told = [
            f"{family} {Interval95.of(findings.of(solver, family, N, name)).words(4)}"
            for family in (*BASES, "Partition")
            if findings.has(solver, family, N)
        ]
        words.append(f"{solver}: " + ", ".join(told))
    return "; ".join(words)


def _from(N: int | None) -> str:
    return "at no N" if N is None else f"from N = {N} on"


def _few_functions(findings: Findings) -> dict[str, Any]:
    threshold = "F/F_ref at N = 3 at most 1.1 for each basis (upper end), and smaller than Partition(3)'s, paired"
    how = "Mean over instances of F(x)/F_ref, exact lower level, test samples."
    if not findings.has("StocBiO", "Chebyshev", 3):
        return verdict("I1", None, "", threshold, "N = 3 is not among the sizes of this budget.")

    def judged(solver: str) -> tuple[bool, Mapping[str, Interval95]]:
        ends = [Interval95.of(findings.of(solver, family, 3, "ratio")).high for family in BASES]
        cells = findings.of(solver, "Partition", 3, "ratio")
        gains = {family: difference(findings.of(solver, family, 3, "ratio"), cells) for family in BASES}
        return max(ends) <= 1.1 and all(gain.high < 0 for gain in gains.values()), gains

    holds, gains = judged("StocBiO")
    paired = ", ".join(f"{family} {gain.words()}" for family, gain in gains.items())
    measured = f"{_means(findings, 3)}. Less Partition(3), paired: {paired}"
    return verdict("I1", holds, measured, threshold, how, "" if holds else _beside(judged("Newton")[0]))


def _beside(newton: bool) -> str:
    """Why something fails with StocBiO, as far as Newton on the same reduced problems tells."""
    if newton:
        return (
            "With Newton on the same reduced problems it holds, so the reason is the solver, not the reduction: with "
            "K = 10 and s = 1e-3 its Neumann sum recovers 1 - (1 - s lam)^(K+1) of the inverse Hessian, 1% at "
            "curvature 1, and its steps are limited by the stiffest direction."
        )
    return (
        "With Newton on the same reduced problems it fails too: it is a matter of the bases. The policy has kinks "
        "where an edge starts to carry flow, so errors fall algebraically in N, and noise redrawn until flows are "
        "nonnegative biases F_ref."
    )


def _three_percent(findings: Findings) -> dict[str, Any]:
    threshold = "upper end of F/F_ref at most 1.03 for each basis at N = 5; Partition's mean above 1.03 for all N < 50"

    def judged(solver: str) -> tuple[bool, int | None]:
        """Whether the bases do what is claimed, and from which N on Partition is as good."""
        bases = all(Interval95.of(findings.of(solver, family, 5, "ratio")).high <= 1.03 for family in BASES)
        enough = [N for N in findings.sizes("Partition")
                  if Interval95.of(findings.of(solver, "Partition", N, "ratio")).mean <= 1.03]  # fmt: skip
        return bases, enough[0] if enough else None

    (bases, first), (newton, _) = judged("StocBiO"), judged("Newton")
    early = first is not None and first < 50
    why = "" if bases else f"The bases: {_beside(newton)} "
    why += (
        f"Partition needs fewer functions than claimed, its steps being searched as widely: {first}." if early else ""
    )
    measured = (
        f"{_means(findings, 5)}. Partition is within 3% {_from(first)} with StocBiO, {_from(judged('Newton')[1])} with "
        "Newton"
    )
    how = "Mean over instances of F(x)/F_ref, exact lower level, test samples."
    return verdict("I2", bases and not early, measured, threshold, how, why.strip())


def _go_on(findings: Findings) -> dict[str, Any]:
    last = max(N for N in findings.budget.polynomials if N <= 20)
    threshold = (
        f"Delta_y at N = {last} over N = 5: monomial above 1/2 (lower end), the others below 1 (upper end); and below "
        "Partition's at every common N (upper end of the ratio)"
    )

    def judged(solver: str):
        error = lambda family, N: findings.of(solver, family, N, "policy_error")
        fall = {family: ratio(error(family, last), error(family, 5)) for family in BASES}
        common = [N for N in findings.budget.polynomials if N in findings.budget.partitions]
        against = {(f, N): ratio(error(f, N), error("Partition", N)) for f in BASES[:2] for N in common}
        stops = fall["Monomial"].low > 0.5
        on = all(fall[family].high < 1 for family in BASES[:2])
        return stops and on and all(r.high < 1 for r in against.values()), fall, against

    holds, fall, against = judged("StocBiO")
    lost = [f"{f}({N})" for (f, N), r in against.items() if r.high >= 1]
    measured = (
        f"Delta_y({last})/Delta_y(5): " + ", ".join(f"{f} {r.words(2)}" for f, r in fall.items())
        + (f"; not below Partition: {', '.join(lost)}" if lost else "; below Partition at every N")
        + "; with Newton: " + ", ".join(f"{f} {r.words(2)}" for f, r in judged("Newton")[1].items())
    )  # fmt: skip
    how = "Geometric means over instances of ratios, paired."
    why = "" if holds else (
        "Newton's answer depends on the span alone, which monomials and Chebyshev polynomials share: there all three "
        "fall alike. What stops is the solver in ill-conditioned coordinates."
    )  # fmt: skip
    return verdict("I3", holds, measured, threshold, how, why)


def _smallest(findings: Findings) -> dict[str, Any]:
    largest = max(findings.sizes("Partition"))
    threshold = (
        "mean F/F_ref of Chebyshev and Fourier within 0.005 of the best method's at every N >= 10; Partition's not "
        "below N = 100; and Delta_y of the largest Partition above Chebyshev(10)'s (lower end of the ratio)"
    )
    if largest < 100:
        return verdict("I4", None, "", threshold, "N = 100 is not among the sizes of this budget.")

    def judged(solver: str):
        table = {
            (family, N): findings.of(solver, family, N, "ratio")
            for family in (*BASES, "Partition")
            for N in findings.sizes(family)
        }
        best = min(table, key=lambda key: np.mean(table[key]))
        behind = {key: difference(values, table[best]) for key, values in table.items()}
        reach = all(behind[key].mean <= 0.005 for key in behind if key[0] in BASES[:2] and key[1] >= 10)
        needs = [N for N in findings.sizes("Partition") if behind["Partition", N].mean <= 0.005]
        error = lambda family, N: findings.of(solver, family, N, "policy_error")
        above = ratio(error("Partition", 100), error("Chebyshev", 10))
        return reach, best, behind, needs, above

    reach, best, behind, needs, above = judged("StocBiO")
    exact = judged("Newton")
    early = bool(needs) and needs[0] < 100
    why = "" if reach else f"The bases: {_beside(exact[0])} "
    why += f"Partition comes as close already at N = {needs[0]}. " if early else ""
    why += (
        "" if above.low > 1 else "A hundred cells do have the smaller lower-level error: kinks cost polynomials more. "
    )
    measured = (
        f"StocBiO: best {best[0]}({best[1]}); behind it "
        + ", ".join(f"{f}({N}) {behind[f, N].words(2)}" for f in BASES[:2] for N in findings.sizes(f) if N >= 10)
        + f"; Partition within 0.005 {_from(needs[0] if needs else None)}; Delta_y Partition(100)/Chebyshev(10) "
        + f"{above.words(2)}; with Newton {_from(exact[3][0] if exact[3] else None)}, {exact[4].words(2)}"
    )
    how = "Paired differences of F/F_ref to the method with the smallest mean; geometric mean of Delta_y ratios."
    return verdict("I4", reach and not early and above.low > 1, measured, threshold, how, why.strip())


def _memory(findings: Findings) -> dict[str, Any]:
    threshold = "Partition needs 10 times the functions for Chebyshev's Delta_y at N = 5 or 10, or has 10 times as much"

    def judged(solver: str):
        error = lambda family, N: findings.of(solver, family, N, "policy_error")
        middle = lambda values: ratio(values, np.ones_like(values)).mean
        factors, gaps = {}, {}
        cells = {M: middle(error("Partition", M)) for M in findings.sizes("Partition")}
        for N in (5, 10):
            enough = [M for M, reached in cells.items() if reached <= middle(error("Chebyshev", N))]
            factors[N] = enough[0] / N if enough else np.inf
            if N in findings.sizes("Partition"):
                gaps[N] = ratio(error("Partition", N), error("Chebyshev", N))
        return max(factors.values()) >= 10 or any(g.low >= 10 for g in gaps.values()), factors, gaps

    holds, factors, gaps = judged("StocBiO")

    def words(factors: Mapping[int, float], gaps: Mapping[int, Interval95]) -> str:
        most = max(findings.sizes("Partition"))
        memory = ", ".join(f"{f:g} times at N = {N}" if np.isfinite(f) else f"more than {most / N:g} times at N = {N}"
                           for N, f in factors.items())  # fmt: skip
        return f"memory {memory}; Delta_y ratio " + ", ".join(f"{g.words(2)} at N = {N}" for N, g in gaps.items())

    _, exact_factors, exact_gaps = exact = judged("Newton")
    measured = f"StocBiO: {words(factors, gaps)}. Newton: {words(exact_factors, exact_gaps)}"
    how = "Functions Partition needs for Chebyshev's Delta_y (geometric means), over N; and ratios at equal N."
    return verdict("I5", holds, measured, threshold, how, "" if holds else _beside(exact[0]))


def summary(runs: Runs, lab: Inverse) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the page shows of this experiment, and its verdicts."""
    findings = Findings(lab)
    budget = lab.budget
    lead = (
        f"Road capacities inferred from noisy flows in {budget.instances} random two-edge networks. Every basis is "
        "solved with StocBiO as the paper ran it, and with Newton, which shows what the reduction gives once the "
        "solver's own error is out of the way. Losses are on test samples with exact flows."
    )
    about = [
        ["instances", f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning instances from seed 10000"],
        ["samples", "1000 for training, 1000 for testing"],
        ["steps", f"{budget.steps} outer steps of StocBiO, batches of 64, K = 10, s = 0.001"],
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
