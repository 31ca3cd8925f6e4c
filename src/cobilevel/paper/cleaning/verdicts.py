"""The verdicts on H1 to H6, computed from the runs of the cleaning experiment, under every reading of it."""

from dataclasses import replace
from typing import Any

import numpy as np

from ...judge import Estimate, runs_estimate
from ..lab import EXTENDED, HELD_OUT, REPORTED
from ..methods import BARE, BASES, PER_CELL, Method
from ..readings import Judgement, Reading, every_reading, judged, listed
from ..statistics import difference, geometric_mean, ratio

LOSSES = ("validation", "training")


def cleaning_verdicts(findings: Any) -> list[dict[str, Any]]:
    """H1 to H6."""
    tuned = [HELD_OUT, REPORTED] + [EXTENDED] * bool(findings.budget.further)
    readings = {cells: every_reading([cells], tuned, "averaged") for cells in (PER_CELL, BARE)}
    bare, plain = findings.budget.bare, [replace(reading, cells=None) for reading in readings[PER_CELL]]
    by_size = readings[PER_CELL] + readings[BARE] * (bare == findings.budget.cells)
    by_smallest = readings[PER_CELL] + readings[BARE] * (findings.budget.cells[0] in bare)
    every = {
        "H1": by_size,
        "H2": by_smallest,
        "H3": by_size,
        "H4": [replace(reading, bases_only=True) for reading in plain] + readings[PER_CELL],
        "H5": plain,
        "H6": readings[PER_CELL][::2],  # the lower level is solved exactly: there is nothing to average
    }
    flat = _flatness(CleaningView(findings, Reading()))
    return [
        judged(name, judge, [(one, CleaningView(findings, one)) for one in every[name]], threshold, how, flat)
        for name, judge, threshold, how in _CLEANING_CLAIMS
    ]


def _flatness(view: "CleaningView") -> str:
    """How far the curves are from flat, since a loss is final only where it has stopped moving."""
    drifts = view.drifts()
    worst = max(drifts, key=lambda name: abs(drifts[name]))
    most = f"{100 * abs(drifts[worst]):.1f}% ({worst})"
    return f"Over the last fifth of the runs mean validation losses still change by at most {most}."


class CleaningView:
    """The findings under one reading; `cells` stands for whichever stocBiO[N] that is."""

    def __init__(self, findings: Any, reading: Reading):
        self._findings, self._reading = findings, reading
        self._cells = reading.cells or PER_CELL
        self.methods = [method for method in findings.methods if method.family in (*BASES, self._cells)]

    @property
    def bases_only(self) -> bool:
        """Whether "the others" are the other bases, rather than all other methods."""
        return self._reading.bases_only

    def find(self, family: str, N: int) -> Method:
        family = self._cells if family == "cells" else family
        return next(method for method in self.methods if (method.family, method.N) == (family, N))

    def sizes(self, family: str) -> list[int]:
        family = self._cells if family == "cells" else family
        return [method.N for method in self.methods if method.family == family]

    def cells(self) -> list[Method]:
        return [self.find("cells", N) for N in self.sizes("cells")]

    def final(self, method: Method, loss: str) -> np.ndarray:
        """Of each trial: the moving average where the run ends, or the loss of its averaged answer."""
        name = f"{loss}_averaged" if self._reading.averaged else loss
        return self._findings.values(method, name, self._reading.tuned)

    def gap(self, ours: Method, theirs: Method, loss: str = "validation") -> Estimate:
        return difference(self.final(ours, loss), self.final(theirs, loss))

    def curve(self, method: Method, name: str) -> np.ndarray:
        return self._findings.curve(method, name, self._reading.tuned)

    def level(self) -> float:
        """The lowest validation loss that every method reaches, on average: one level for all."""
        return max(float(self.curve(method, "validation").mean(axis=0).min()) for method in self.methods)

    def samples_until(self, method: Method) -> np.ndarray:
        """Samples drawn until the validation loss is down to the level, by trial; the whole run where it never is."""
        curve, drawn = self.curve(method, "validation"), self._findings.samples(method, self._reading.tuned)
        below = curve <= self.level()
        return np.where(below.any(axis=1), drawn[np.argmax(below, axis=1)], drawn[-1])

    def pace(self, ours: Method, theirs: Method) -> Estimate:
        return ratio(self.samples_until(ours), self.samples_until(theirs))

    def drifts(self) -> dict[str, float]:
        """By how much the mean validation loss of each method changes over the last fifth of its run."""
        found = {}
        for method in self.methods:
            curve = self.curve(method, "validation").mean(axis=0)
            found[method.label] = float(curve[-1] / curve[-1 - max(1, len(curve) // 5)] - 1)
        return found

    def in_the_span(self, method: Method) -> np.ndarray:
        """Squared errors of the best policy in the span, over the squared size of the exact one; trial, temperature."""
        within = self._findings.by_temperature(method, "within", self._reading.tuned)
        size = self._findings.by_temperature(method, "exact", self._reading.tuned)[:, :, 2] ** 2
        return (within / size)[np.isfinite(within).all(axis=1)]


def _larger_cells(view: CleaningView) -> Judgement:
    small, large = view.cells()[0], view.cells()[-1]
    gain, slower = view.gap(large, small), view.pace(large, small)
    return Judgement(
        gain.high < 0 and slower.low > 1,
        f"{large.label} less {small.label}, final validation loss: {gain.words()}; samples until a loss of "
        f"{view.level():.3g}, ratio: {slower.words()}",
    )


def _rising(view: CleaningView) -> Judgement:
    small, ours = view.cells()[0], view.find("Chebyshev", 5)
    curve, weight = view.curve(small, "training"), view.curve(small, "weight")
    parts = {
        f"training loss of {small.label} less {ours.label}'s": view.gap(small, ours, "training"),
        "its change over the second half": runs_estimate(curve[:, -1] - curve[:, curve.shape[1] // 2]),
        "change of the mean weight": runs_estimate(weight[:, -1] - weight[:, 0]),
    }
    return Judgement(
        all(part.low > 0 for part in parts.values()),
        "; ".join(f"{name}: {part.words()}" for name, part in parts.items()),
    )


def _fastest(view: CleaningView) -> Judgement:
    ours = view.find("Chebyshev", 5)
    others = view.cells() + [view.find("Monomial", N) for N in view.sizes("Monomial")]
    gaps = {loss: {method: view.gap(ours, method, loss) for method in others} for loss in LOSSES}
    paces = {method: view.pace(ours, method) for method in others}
    more = {m: view.gap(m, ours) for m in view.methods if m.family == "Chebyshev" and m.N > 5}
    limit = -0.02 * float(np.mean(view.final(ours, "validation")))
    holds = all(gap.high < 0 for table in gaps.values() for gap in table.values())
    holds = holds and all(pace.high < 1 for pace in paces.values()) and all(gap > limit for gap in more.values())
    words = [f"{loss} loss less that of {listed(table, 2)}" for loss, table in gaps.items()]
    words.append(f"samples until a loss of {view.level():.3g}, over those of {listed(paces, 2)}")
    words += [f"more functions: {listed(more, 2)}"] if more else []
    return Judgement(holds, f"{ours.label}: {'; '.join(words)}")


def _monomials(view: CleaningView) -> Judgement:
    largest = view.sizes("Monomial")[-1]
    if largest < 10:
        return Judgement(None, "Needs N >= 10, which this budget leaves out.")
    ours = view.find("Monomial", largest)
    family = BASES if view.bases_only else (*BASES, PER_CELL)
    others = [m for m in view.methods if largest == m.N and m.family in family and m.family != "Monomial"]
    gaps = {method: view.gap(ours, method) for method in others}
    holds = bool(gaps) and all(gap.low > 0 for gap in gaps.values())
    return Judgement(holds, f"{ours.label}, validation loss less that of {listed(gaps, 2)}")


def _alike(view: CleaningView) -> Judgement:
    ratios = {}
    for N in view.sizes("Fourier"):
        ours, theirs = (view.final(view.find(family, N), "validation") for family in ("Fourier", "Chebyshev"))
        ratios[N] = ratio(ours, theirs)
    return Judgement(
        all(r.low >= 0.98 and r.high <= 1.02 for r in ratios.values()),
        "validation loss of Fourier over Chebyshev: " + "; ".join(f"N = {N}: {r.words(4)}" for N, r in ratios.items()),
    )


def _sharp(view: CleaningView) -> Judgement:
    """The policy varies most at the coldest temperatures."""
    large, ours = view.cells()[-1], view.find("Chebyshev", view.sizes("Chebyshev")[-1])
    error, theirs = view.in_the_span(large), view.in_the_span(ours)
    parts = {
        f"{large.label} at the coldest temperature, over its median": geometric_mean(error[:, 0] / np.median(error, 1)),
        f"there over {ours.label}": ratio(error[:, 0], theirs[:, 0]),
    }
    return Judgement(
        all(part.low > 1 for part in parts.values()),
        f"squared error of the best policy in the span over |y*|^2, {large.label}: {np.mean(error[:, 0]):.2g} at the "
        f"coldest of {error.shape[1]} temperatures, {np.mean(np.median(error, axis=1)):.2g} at the median; "
        + "; ".join(f"{name}: {part.words(2)}" for name, part in parts.items()),
    )


_CLEANING_CLAIMS = (
    (
        "H1",
        _larger_cells,
        "difference below 0 (upper end) and ratio above 1 (lower end)",
        "Largest against smallest number of cells, paired over trials; speed by the samples until the lowest loss that "
        "every method reaches.",
    ),
    ("H2", _rising, "all three above 0 (lower ends)", "Weighted, regularised training loss along the policy."),
    (
        "H3",
        _fastest,
        "below 0 (upper ends) on both losses; fewer samples (upper ends below 1); more functions gain under 2%",
        "Against every number of cells and every monomial basis, paired over trials; speed as in H1.",
    ),
    ("H4", _monomials, "above 0 (lower ends), N >= 10", "Against other methods of that size, paired over trials."),
    (
        "H5",
        _alike,
        "ratio of validation losses between 0.98 and 1.02 (whole interval), at each N",
        "Geometric means over trials, paired.",
    ),
    (
        "H6",
        _sharp,
        "both ratios above 1 (lower ends)",
        "The reduced lower level is solved exactly at the weights found, in the first trials, so that what is left is "
        "the basis's own error; against exact classifiers. The largest number of cells against the largest Chebyshev "
        "basis, which has no more functions.",
    ),
)  # fmt: skip
