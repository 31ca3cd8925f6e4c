"""The verdicts on I1 to I5 and T2, computed from the runs of the inverse experiment.

Judged on ``StocBiO`` with the constants the paper prints; ``Newton`` on the same reduced problems shows whether a
failure is the solver's or the reduction's, and leaving out the worst instance whether a single one decides.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...judge import runs_estimate
from ..claims import verdict
from ..lab import Method
from ..statistics import difference, ratio
from .complexity import complexity_verdict

BASES = ("Chebyshev", "Fourier", "Monomial")

Part = Callable[[Any, str], bool]  # whether part of a claim holds, given findings and a solver


def inverse_verdicts(findings: Any) -> list[dict[str, Any]]:
    """I1 to I5, and T2 where it was measured."""
    found = [judge(findings) for judge in (_few_functions, _three_percent, _go_on, _smallest, _memory)]
    if findings.budget.complexity:
        found.append(complexity_verdict(dict(findings.lab.runs.get(findings.lab.complexity_spec()).result)))
    return found


def _why(findings: Any, parts: Sequence[tuple[str, Part]]) -> str:
    """Of each part that fails: whether one instance decides it, and whether Newton fails it too."""
    words = []
    for name, part in parts:
        if part(findings, "StocBiO"):
            continue
        worst = findings.worst()
        if part(findings.without(worst), "StocBiO"):
            usual = [m for m, _ in findings.lab.plan() if m.solver == "StocBiO" and m.usual]
            highest = max(findings.values(method, "ratio")[worst] for method in usual)
            words.append(
                f"{name}: instance {worst} alone decides; without it this part holds. Methods diverge there, or end "
                f"at up to {highest:.1f} times F_ref."
            )
        elif part(findings, "Newton"):
            words.append(f"{name}: with Newton on the same reduced problems it holds. {_short_series(findings)}")
        else:
            words.append(
                f"{name}: with Newton on the same reduced problems it fails too, so the solver is not the reason."
            )
    return " ".join(word.strip() for word in words)


def _short_series(findings: Any) -> str:
    """What a longer Neumann sum does, where that was measured."""
    longer = Method("StocBiO", "Chebyshev", 5, terms=200)
    if longer not in [method for method, _ in findings.lab.plan()]:
        return ""
    count = len(findings.runs(longer))
    usual = findings.values(Method("StocBiO", "Chebyshev", 5), "gap")[:count]
    ours, theirs = (runs_estimate(values).words(2) for values in (findings.values(longer, "gap"), usual))
    return (
        f"With 200 factors in the Neumann sum in place of 10, Chebyshev(5) ends {ours} above the optimum, against "
        f"{theirs} on the same {count} instances."
    )


def _means(findings: Any, N: int) -> str:
    words = []
    for solver in ("StocBiO", "Newton"):
        known = [family for family in (*BASES, "Partition") if findings.has(solver, family, N)]
        spread = {family: findings.of(solver, family, N, "ratio") for family in known}
        means = ", ".join(f"{family} {runs_estimate(values).words(4)}" for family, values in spread.items())
        middle = ", ".join(f"{np.median(values):.4g}" for values in spread.values())
        words.append(f"{solver}: {means} (medians {middle})")
    return "; ".join(words)


def _few_functions(findings: Any) -> dict[str, Any]:
    threshold = "F/F_ref at N = 3 at most 1.1 for each basis (upper end), and smaller than Partition(3)'s, paired"
    if not findings.has("StocBiO", "Chebyshev", 3):
        return verdict("I1", None, "", threshold, "N = 3 is not among the sizes of this budget.")
    value = lambda f, solver, family: f.of(solver, family, 3, "ratio")
    gain = lambda f, solver, family: difference(value(f, solver, family), value(f, solver, "Partition"))
    parts: list[tuple[str, Part]] = [
        ("Reasonable", lambda f, s: all(runs_estimate(value(f, s, family)).high <= 1.1 for family in BASES)),
        ("Better than cells", lambda f, s: all(gain(f, s, family).high < 0 for family in BASES)),
    ]
    paired = ", ".join(f"{family} {gain(findings, 'StocBiO', family).words()}" for family in BASES)
    measured = f"{_means(findings, 3)}. Less Partition(3), paired: {paired}"
    how = "Mean over instances of F(x)/F_ref, exact lower level, test samples."
    holds = all(part(findings, "StocBiO") for _, part in parts)
    return verdict("I1", holds, measured, threshold, how, _why(findings, parts))


def _reached(findings: Any, solver: str, limit: float, best: np.ndarray | None = None) -> int | None:
    """The smallest N from which on every Partition's mean F/F_ref (less the best method's) is at most the limit."""
    found = None
    for N in reversed(findings.sizes("Partition")):
        values = findings.of(solver, "Partition", N, "ratio")
        if np.mean(values if best is None else values - best) > limit:
            return found
        found = N
    return found


def _from(N: int | None) -> str:
    return "not even at the largest N" if N is None else f"from N = {N} on"


def _three_percent(findings: Any) -> dict[str, Any]:
    threshold = "upper end of F/F_ref at most 1.03 for each basis at N = 5; Partition not within 3% from an N < 50 on"
    ends = lambda f, s: [runs_estimate(f.of(s, family, 5, "ratio")).high for family in BASES]
    late = lambda f, s: (_reached(f, s, 1.03) or np.inf) >= 50
    parts: list[tuple[str, Part]] = [("The bases", lambda f, s: max(ends(f, s)) <= 1.03), ("The cells", late)]
    first = {solver: _from(_reached(findings, solver, 1.03)) for solver in ("StocBiO", "Newton")}
    measured = (
        f"{_means(findings, 5)}. Partition is within 3% {first['StocBiO']} with StocBiO, {first['Newton']} with Newton"
    )
    how = "Mean over instances of F(x)/F_ref, exact lower level, test samples."
    holds = all(part(findings, "StocBiO") for _, part in parts)
    return verdict("I2", holds, measured, threshold, how, _why(findings, parts))


def _go_on(findings: Any) -> dict[str, Any]:
    last = max(N for N in findings.budget.polynomials if N <= 20)
    common = [N for N in findings.budget.polynomials if N in findings.budget.partitions]
    error = lambda f, solver, family, N: f.of(solver, family, N, "policy_error")
    fall = lambda f, s, family: ratio(error(f, s, family, last), error(f, s, family, 5))
    against = lambda f, s, family, N: ratio(error(f, s, family, N), error(f, s, "Partition", N))
    pairs = [(family, N) for family in BASES[:2] for N in common]
    parts: list[tuple[str, Part]] = [
        ("Monomials stop", lambda f, s: fall(f, s, "Monomial").low > 0.5),
        ("The others go on", lambda f, s: all(fall(f, s, family).high < 1 for family in BASES[:2])),
        ("Below cells", lambda f, s: all(against(f, s, *pair).high < 1 for pair in pairs)),
    ]
    lost = [f"{family}({N})" for family, N in pairs if against(findings, "StocBiO", family, N).high >= 1]
    falls = {s: ", ".join(f"{f} {fall(findings, s, f).words(2)}" for f in BASES) for s in ("StocBiO", "Newton")}
    measured = f"Delta_y({last})/Delta_y(5): {falls['StocBiO']}; with Newton: {falls['Newton']}; " + (
        f"not below Partition: {', '.join(lost)}" if lost else f"below Partition at N = {common}"
    )
    threshold = (
        f"Delta_y at N = {last} over N = 5: monomial above 1/2 (lower end), the others below 1 (upper end); and below "
        "Partition's at every common N (upper end of the ratio)"
    )
    holds = all(part(findings, "StocBiO") for _, part in parts)
    how = "Geometric means over instances of ratios, paired."
    return verdict("I3", holds, measured, threshold, how, _why(findings, parts))


def _smallest(findings: Any) -> dict[str, Any]:
    threshold = (
        "mean F/F_ref of Chebyshev and Fourier within 0.005 of the best method's at every N >= 10; Partition's not "
        "from an N < 100 on; and Delta_y of Partition(100) above Chebyshev(10)'s (lower end of the ratio)"
    )
    if max(findings.sizes("Partition")) < 100:
        return verdict("I4", None, "", threshold, "N = 100 is not among the sizes of this budget.")
    every = [(family, N) for family in (*BASES, "Partition") for N in findings.sizes(family)]
    large = [(family, N) for family, N in every if family in BASES[:2] and N >= 10]
    name = lambda f, s: min(every, key=lambda key: np.mean(f.of(s, *key, "ratio")))
    best = lambda f, s: f.of(s, *name(f, s), "ratio")
    behind = lambda f, s, key: difference(f.of(s, *key, "ratio"), best(f, s))
    needs = lambda f, s: _reached(f, s, 0.005, best(f, s))
    above = lambda f, s: ratio(f.of(s, "Partition", 100, "policy_error"), f.of(s, "Chebyshev", 10, "policy_error"))
    parts: list[tuple[str, Part]] = [
        ("The bases", lambda f, s: all(behind(f, s, key) <= 0.005 for key in large)),
        ("The cells", lambda f, s: (needs(f, s) or np.inf) >= 100),
        ("Their lower-level error", lambda f, s: above(f, s).low > 1),
    ]
    found = []
    for solver in ("StocBiO", "Newton"):
        gaps = ", ".join(f"{f}({N}) {behind(findings, solver, (f, N)).words(2)}" for f, N in large)
        family, N = name(findings, solver)
        found.append(
            f"{solver}: best {family}({N}); behind it {gaps}; Partition within "
            f"0.005 {_from(needs(findings, solver))}; Delta_y Partition(100)/Chebyshev(10) "
            f"{above(findings, solver).words(2)}"
        )
    how = "Paired differences of F/F_ref to the method with the smallest mean; geometric mean of Delta_y ratios."
    holds = all(part(findings, "StocBiO") for _, part in parts)
    return verdict("I4", holds, ". ".join(found), threshold, how, _why(findings, parts))


def _memory(findings: Any) -> dict[str, Any]:
    error = lambda f, solver, family, N: f.of(solver, family, N, "policy_error")
    sizes = [N for N in (5, 10) if N in findings.sizes("Chebyshev")]
    short = lambda f, s, M, N: ratio(error(f, s, "Partition", M), error(f, s, "Chebyshev", N))

    def factor(f: Any, solver: str, N: int) -> float:
        """The largest Partition shown to be not enough, over N: a lower bound of how much more memory it needs."""
        return max((M / N for M in f.sizes("Partition") if short(f, solver, M, N).low > 1), default=0.0)

    equal = [N for N in sizes if N in findings.sizes("Partition")]
    parts: list[tuple[str, Part]] = [
        (
            "Memory or gap",
            lambda f, s: max(factor(f, s, N) for N in sizes) >= 10 or any(short(f, s, N, N).low >= 10 for N in equal),
        )
    ]
    found = []
    for solver in ("StocBiO", "Newton"):
        memory = ", ".join(f"over {factor(findings, solver, N):g} times at N = {N}" for N in sizes)
        gaps = ", ".join(f"{short(findings, solver, N, N).words(2)} at N = {N}" for N in equal)
        found.append(f"{solver}: memory {memory}; Delta_y of Partition over Chebyshev {gaps}")
    threshold = (
        "Partition with 10 times the functions still has the larger Delta_y (lower end above 1), or at equal N 10 "
        "times as much (lower end)"
    )
    how = "Delta_y is a mean square, as in the paper; geometric means of ratios, paired over instances."
    return verdict("I5", parts[0][1](findings, "StocBiO"), ". ".join(found), threshold, how, _why(findings, parts))
