"""What the paper claims of the inverse experiment, I1 to I5, held against its runs."""

from typing import Any

import numpy as np

from .claims import Comparison, Judgement, Reading, Spread, every_reading, judged, listed, ratio
from .methods import BARE, BASES, PER_CELL, Method
from .theory import complexity_verdict


def inverse_verdicts(findings: Any) -> list[dict[str, Any]]:
    """I1 to I5, and T2 where it was measured."""
    budget = findings.budget
    cells = [PER_CELL] + [BARE] * (budget.bare == budget.cells)  # run in all sizes
    views = [InverseView(findings, reading) for reading in every_reading(cells, budget.further, "medians")]
    entries = []
    for name, judge, threshold, how in _INVERSE_CLAIMS:
        exact = judge(InverseView(findings, Reading(), "Newton"))
        why = f"With Newton on the same reduced problems it {'holds' if exact.holds else 'fails too'}: {exact.words()}."
        entry = judged(name, judge, views, threshold, how, why)
        newton = {"newton": f"{'holds' if exact.holds else 'fails'}: {exact.words()}"}
        entries.append(entry if entry["verdict"] == "not tested" else entry | newton)
    if budget.complexity:
        entries.append(complexity_verdict(dict(findings.runs.get(findings.complexity_spec()).result)))
    return entries


class InverseView:
    """The findings under one reading, with one solver; the family `cells` stands for whichever stocBiO[N] that is."""

    def __init__(self, findings: Any, reading: Reading, solver: str = "StocBiO"):
        self.findings, self.reading, self._solver = findings, reading, solver
        self.cells = reading.cells or PER_CELL

    def sizes(self, family: str) -> tuple[int, ...]:
        return self.findings.sizes(self.cells if family == "cells" else family)

    def of(self, family: str, N: int, name: str) -> np.ndarray:
        method = Method(self._solver, self.cells if family == "cells" else family, N)
        return self.findings.values(method, name, self.reading.tuned)

    def centre(self, values: Any) -> Spread:
        """Over instances: the mean, or the median."""
        return Spread.over(values, "median" if self.reading.medians else "mean")

    def loss(self, family: str, N: int) -> Spread:
        return self.centre(self.of(family, N, "ratio"))

    def policy_ratio(self, ours: tuple[str, int], theirs: tuple[str, int]) -> Spread:
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
        return Judgement([], "N = 3 is not among the sizes of this budget.", untested=True)
    losses = [Comparison(f"F/F_ref of {family}[3]", view.loss(family, 3), most=1.1) for family in BASES]
    gain = lambda family: view.centre(view.of(family, 3, "ratio") - view.of("cells", 3, "ratio"))
    gains = [Comparison(f"{family}[3] less cells[3]", gain(family), most=0.0) for family in BASES]
    return Judgement([losses + gains], f"cells[3] {view.loss('cells', 3).words(4)}")


def _three_percent(view: InverseView) -> Judgement:
    if not {5, 50} <= set(view.sizes("cells")):
        return Judgement([], "N = 50 is not among the sizes of this budget.", untested=True)
    cells = {f"cells[{N}]": view.loss("cells", N) for N in view.sizes("cells")}
    parts = [Comparison(f"F/F_ref of {family}[5]", view.loss(family, 5), most=1.03) for family in BASES]
    parts.append(Comparison("of cells[5]", cells["cells[5]"], least=1.03))
    parts.append(Comparison("of cells[50]", cells["cells[50]"], most=1.03))
    return Judgement([parts], f"{listed(cells)}: within 3% {_from(view.from_size(1.03))}")


def _go_on(view: InverseView) -> Judgement:
    last = max(N for N in view.sizes("Chebyshev") if N <= 20)
    fall = lambda family: (f"Delta_y({last})/Delta_y(5) of {family}", view.policy_ratio((family, last), (family, 5)))
    parts = [Comparison(*fall(family), most=1.0) for family in BASES[:2]]
    parts.append(Comparison(*fall("Monomial"), least=0.5))
    common = [N for N in view.sizes("Chebyshev") if N in view.sizes("cells")]
    for family, N in ((family, N) for family in BASES[:2] for N in common):
        pair = view.policy_ratio((family, N), ("cells", N))
        parts.append(Comparison(f"Delta_y of {family}[{N}] over cells[{N}]", pair, most=1.0))
    return Judgement([parts])


def _smallest(view: InverseView, margin: float = 0.005) -> Judgement:
    if max(view.sizes("cells")) < 100 or max(view.sizes("Chebyshev")) < 10:
        return Judgement([], "N = 100 is not among the sizes of this budget.", untested=True)
    every = [(family, N) for family in (*BASES, "cells") for N in view.sizes(family)]
    best = min(every, key=lambda key: view.loss(*key))
    lowest, largest = float(view.loss(*best)), max(view.sizes("cells"))
    behind = lambda family, N: Spread.point(view.loss(family, N) - lowest)
    what = f"F/F_ref less that of {best[0]}[{best[1]}]"
    late = [(family, N) for family, N in every if family in BASES[:2] and N >= 10]
    parts = [Comparison(f"{what}, {f}[{N}]", behind(f, N), most=margin, certain=False) for f, N in late]
    early = max(view.sizes("cells")[-2:], key=lambda N: view.loss("cells", N))
    parts.append(Comparison(f"{what}, cells[{early}]", behind("cells", early), least=margin, certain=False))
    error = lambda N: np.mean(np.log(view.of("Chebyshev", N, "policy_error")))
    sharpest = min((N for N in view.sizes("Chebyshev") if N >= 10), key=error)
    above = view.policy_ratio(("cells", largest), ("Chebyshev", sharpest))
    parts.append(Comparison(f"Delta_y of cells[{largest}] over Chebyshev[{sharpest}]", above, least=1.0))
    return Judgement([parts], f"best F/F_ref {lowest:.4f}; cells as good {_from(view.from_size(lowest + margin))}")


def _memory(view: InverseView) -> Judgement:
    gap = lambda family, N: view.of(family, N, "gap")
    sizes = [N for N in (5, 10) if N in view.sizes("Chebyshev") and N in view.sizes("cells")]
    ways, notes = [], []
    for N in sizes:
        ours, cells = view.centre(gap("Chebyshev", N)), view.centre(gap("cells", N))
        tenfold = Spread.point(cells - 10 * ours)
        what = f"gap of cells[{N}] less ten times that of Chebyshev[{N}]"
        large = Comparison(f"gap of cells[{N}]", cells, least=0.0)
        ways.append([Comparison(what, tenfold, least=0.0, certain=False), large])
        notes.append(f"gap of Chebyshev[{N}] {ours.words(2)}")
        if 10 * N in view.sizes("cells"):
            less = Spread.point(ours - view.centre(gap("cells", 10 * N)))
            what = f"gap of Chebyshev[{N}] less that of cells[{10 * N}]"
            ways.append([Comparison(what, less, most=0.0, certain=False)])
    return Judgement(ways, "; ".join(notes))


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
     "F/F_ref of Chebyshev and Fourier within 0.005 of the best at every N >= 10; cells not before 100; and "
     "Delta_y of cells[100] above the smallest of Chebyshev's (lower end of the ratio)",
     "Over instances."),
    ("I5", _memory,
     "the optimality gap of Chebyshev[N] at most that of cells with ten times the functions, or a tenth of that of "
     "cells[N], at N = 5 or 10",
     "The gap is F over the loss at the exact-lower-level optimum of the same sample, less 1."),
)  # fmt: skip
