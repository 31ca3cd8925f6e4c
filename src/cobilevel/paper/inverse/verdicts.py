"""The verdicts on I1 to I5 and T2, computed from the runs of the inverse experiment.

Judged on ``StocBiO`` with the constants the paper prints, under every reading of what it leaves open. ``Newton`` on the
same reduced problems shows whether a failure is the solver's or the reduction's.
"""

from typing import Any

import numpy as np

from ...judge import Estimate, runs_estimate
from ..lab import EXTENDED, HELD_OUT, REPORTED
from ..methods import BARE, BASES, PER_CELL, Method
from ..readings import Judgement, Reading, every_reading, judged, listed
from ..statistics import median, ratio
from .complexity import complexity_verdict

_AS_GOOD = 0.005  # of F_ref: as good as the best


def inverse_verdicts(findings: Any) -> list[dict[str, Any]]:
    """I1 to I5, and T2 where it was measured."""
    tuned = [HELD_OUT, REPORTED] + [EXTENDED] * bool(findings.budget.further)
    cells = [PER_CELL] + [BARE] * bool(findings.budget.bare)
    views = [(reading, InverseView(findings, reading)) for reading in every_reading(cells, tuned, "medians")]
    complete = [(reading, view) for reading, view in views if reading.cells == PER_CELL or view.like_the_others()]
    exact = InverseView(findings, Reading(), "Newton")

    def one(name, judge, threshold, how):
        short = judge(exact)
        why = (
            f"With Newton on the same reduced problems it {'holds' if short.holds else 'fails too'}: {short.measured}."
        )
        entry = judged(name, judge, complete, threshold, how, why)
        words = {"newton": f"{'holds' if short.holds else 'fails'}: {short.measured}"}
        return entry if entry["verdict"] == "not tested" else entry | words

    found = [one(*claim) for claim in _INVERSE_CLAIMS]
    if findings.budget.complexity:
        found.append(complexity_verdict(dict(findings.lab.runs.get(findings.lab.complexity_spec()).result)))
    return found


class InverseView:
    """The findings under one reading, with one solver; `cells` stands for whichever stocBiO[N] that is."""

    def __init__(self, findings: Any, reading: Reading, solver: str = "StocBiO"):
        self._findings, self._reading, self._solver = findings, reading, solver

    def sizes(self, family: str) -> tuple[int, ...]:
        budget = self._findings.budget
        bare = self._reading.cells == BARE and self._solver != "Newton"
        return budget.bases if family != "cells" else budget.bare if bare else budget.cells

    def like_the_others(self) -> bool:
        """Whether cells were run in as many sizes as each is meant to be a problem of its own."""
        return self.sizes("cells") == self._findings.budget.cells

    def of(self, family: str, N: int, name: str) -> np.ndarray:
        if family == "cells":
            family = PER_CELL if self._solver == "Newton" else self._reading.cells or PER_CELL
        return self._findings.values(Method(self._solver, family, N), name, self._reading.tuned)

    def centre(self, values: Any) -> Estimate:
        """Over instances: the mean, or the median."""
        return median(values) if self._reading.medians else runs_estimate(values)

    def loss(self, family: str, N: int) -> Estimate:
        return self.centre(self.of(family, N, "ratio"))

    def policy_ratio(self, ours: tuple[str, int], theirs: tuple[str, int]) -> Estimate:
        """``Delta_y`` of ours over theirs, paired."""
        return ratio(self.of(*ours, "policy_error"), self.of(*theirs, "policy_error"))

    def from_size(self, limit: float) -> int | None:
        """The smallest N from which on every stocBiO[N] has a loss of at most the limit."""
        found = None
        for N in reversed(self.sizes("cells")):
            if self.loss("cells", N) > limit:
                return found
            found = N
        return found


def _from(N: int | None) -> str:
    return "at no N" if N is None else f"from N = {N} on"


def _few_functions(view: InverseView) -> Judgement:
    if 3 not in view.sizes("Chebyshev") or 3 not in view.sizes("cells"):
        return Judgement(None, "N = 3 is not among the sizes of this budget.")
    losses = {family: view.loss(family, 3) for family in (*BASES, "cells")}
    gains = [view.centre(view.of(family, 3, "ratio") - view.of("cells", 3, "ratio")) for family in BASES]
    holds = all(losses[family] <= 1.1 for family in BASES) and all(gain.high < 0 for gain in gains)
    return Judgement(holds, f"F/F_ref at N = 3: {listed(losses)}")


def _three_percent(view: InverseView) -> Judgement:
    losses = {f"{family}[5]": view.loss(family, 5) for family in BASES}
    cells = {f"cells[{N}]": view.loss("cells", N) for N in view.sizes("cells")}
    within = all(loss <= 1.03 for loss in losses.values())
    holds = within and cells["cells[5]"] > 1.03 and cells.get("cells[50]", np.inf) <= 1.03
    return Judgement(holds, f"F/F_ref: {listed(losses)}; {listed(cells)}: within 3% {_from(view.from_size(1.03))}")


def _go_on(view: InverseView) -> Judgement:
    last = max(N for N in view.sizes("Chebyshev") if N <= 20)
    falls = {family: view.policy_ratio((family, last), (family, 5)) for family in BASES}
    common = [N for N in view.sizes("Chebyshev") if N in view.sizes("cells")]
    pairs = {f"{family}[{N}]": view.policy_ratio((family, N), ("cells", N)) for family in BASES[:2] for N in common}
    lost = [name for name, pair in pairs.items() if pair.high >= 1]
    holds = falls["Monomial"].low > 0.5 and all(falls[f].high < 1 for f in BASES[:2]) and not lost
    against = f"not below cells: {', '.join(lost)}" if lost else f"below cells at N = {common}"
    return Judgement(holds, f"Delta_y({last})/Delta_y(5): {listed(falls, 2)}; {against}")


def _smallest(view: InverseView) -> Judgement:
    if max(view.sizes("cells")) < 100 or max(view.sizes("Chebyshev")) < 10:
        return Judgement(None, "N = 100 is not among the sizes of this budget.")
    every = [(family, N) for family in (*BASES, "cells") for N in view.sizes(family)]
    best = min(every, key=lambda key: view.loss(*key))
    lowest, largest = float(view.loss(*best)), max(view.sizes("cells"))
    behind = {f"{f}[{N}]": view.loss(f, N) - lowest for f, N in every if f in BASES[:2] and N >= 10}
    late = [name for name, gap in behind.items() if gap > _AS_GOOD]
    needs = view.from_size(lowest + _AS_GOOD)
    sharpest = min(
        (N for N in view.sizes("Chebyshev") if N >= 10),
        key=lambda N: np.mean(np.log(view.of("Chebyshev", N, "policy_error"))),
    )
    above = view.policy_ratio(("cells", largest), ("Chebyshev", sharpest))
    holds = not late and (needs or np.inf) >= 100 and above.low > 1
    return Judgement(
        holds,
        f"best {best[0]}[{best[1]}], F/F_ref {lowest:.4f}; "
        + (
            f"more than {_AS_GOOD} behind: {', '.join(late)}"
            if late
            else "Chebyshev and Fourier as good at every N >= 10"
        )
        + f"; cells as good {_from(needs)}; Delta_y of cells[{largest}] over Chebyshev[{sharpest}]: {above.words(2)}",
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
    return Judgement(larger or smaller, f"F over the best possible, less 1, Chebyshev at {'; '.join(words)}")


_INVERSE_CLAIMS = (
    (
        "I1",
        _few_functions,
        "F/F_ref at N = 3 at most 1.1 for each basis, and below that of cells[3], paired (upper end of the interval)",
        "Over instances, exact lower level, test samples.",
    ),
    (
        "I2",
        _three_percent,
        "F/F_ref at N = 5 at most 1.03 for each basis; of cells at most 1.03 at N = 50 and above it at N = 5",
        "Over instances. The paper says that stocBiO achieves a comparable accuracy at N = 50.",
    ),
    (
        "I3",
        _go_on,
        "Delta_y at N = 20 over N = 5: monomials above 1/2 (lower end), the others below 1 (upper end); and below that "
        "of cells at every common N (upper end of the ratio)",
        "Geometric means over instances of ratios, paired.",
    ),
    (
        "I4",
        _smallest,
        f"F/F_ref of Chebyshev and Fourier within {_AS_GOOD} of the best at every N >= 10; cells not before 100; and "
        "Delta_y of cells[100] above the smallest of Chebyshev's (lower end of the ratio)",
        "Over instances.",
    ),
    (
        "I5",
        _memory,
        "the optimality gap of Chebyshev[N] at most that of cells with ten times the functions, or a tenth of that of "
        "cells[N], at N = 5 or 10",
        "The gap is F over the loss at the exact-lower-level optimum of the same sample, less 1.",
    ),
)  # fmt: skip
