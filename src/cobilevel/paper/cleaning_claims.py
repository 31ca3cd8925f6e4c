"""What the paper claims of the cleaning experiment, H1 to H6, held against its runs or curves kept from some."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from .claims import (
    Comparison,
    Judgement,
    Reading,
    Spread,
    concluded,
    difference,
    every_reading,
    geometric_mean,
    judged,
    ratio,
    reading_entry,
)
from .methods import BARE, BASES, HELD_OUT, OWN, PER_CELL, Method

LOSSES = ("validation", "training")


def moving_average(table: Float[np.ndarray, "trials looks"]) -> Float[np.ndarray, "trials looks"]:
    """Over the tenth of the run before each look."""
    width = max(1, round(table.shape[1] / 10))
    sums = np.cumsum(np.pad(table, ((0, 0), (1, 0))), axis=1)
    ends = np.arange(1, table.shape[1] + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[:, ends] - sums[:, starts]) / (ends - starts)


def relative_errors(findings: Any, method: Method, name: str, tuned: str) -> Float[np.ndarray, "trials temperatures"]:
    """Squared errors over the squared size of the exact classifiers, in the trials for which they were computed."""
    size = findings.by_temperature(method, "exact", tuned)[:, :, 2] ** 2
    error = findings.by_temperature(method, name, tuned) / size
    return error[np.isfinite(error).all(axis=1)]


# -- verdicts


def cleaning_verdicts(findings: Any) -> list[dict[str, Any]]:
    """H1 to H6, each under every reading of it."""
    budget = findings.budget
    cells, bare, own = (every_reading([each], budget.further, "averaged") for each in (PER_CELL, BARE, OWN))
    plain = [replace(reading, cells=None) for reading in cells]
    by_size = cells + bare * (budget.bare == budget.cells)
    readings = {
        "H1": by_size + own * (len(budget.own) > 1),
        "H2": cells + bare * (budget.cells[0] in budget.bare),
        "H3": by_size,
        "H4": cells + [replace(reading, bases_only=True) for reading in plain],
        "H5": plain,
        "H6": cells[::2],  # the lower level is solved exactly: there is nothing to average
    }
    view = CleaningView(findings, Reading())
    curves = {method.label: view.curve(method, "validation").mean(axis=0) for method in view.methods}
    drifts = {label: float(c[-1] / c[-1 - max(1, len(c) // 5)] - 1) for label, c in curves.items()}
    worst = max(drifts, key=lambda name: abs(drifts[name]))
    most = f"{100 * abs(drifts[worst]):.1f}% ({worst})"  # a loss is final only where it has stopped moving
    flat = f"Over the last fifth of the runs mean validation losses still change by at most {most}."
    return [
        judged(name, judge, [CleaningView(findings, one) for one in readings[name]], threshold, how, flat)
        for name, judge, threshold, how in _CLEANING_CLAIMS
    ]


class CleaningView:
    """The findings under one reading; the family `cells` stands for whichever stocBiO[N] that is."""

    def __init__(self, findings: Any, reading: Reading):
        self.findings, self.reading, self.cells = findings, reading, reading.cells or PER_CELL
        self.methods = [method for method in findings.methods if method.family in (*BASES, self.cells)]

    def of(self, family: str) -> list[Method]:
        """The methods of a family, by size."""
        return [method for method in self.methods if method.family == (self.cells if family == "cells" else family)]

    def chebyshev(self) -> Method:
        """The five functions that claims speak of."""
        return next(method for method in self.of("Chebyshev") if method.N == 5)

    def final(self, method: Method, loss: str) -> np.ndarray:
        """Of each trial: the moving average where the run ends, or the loss of its averaged answer."""
        name = f"{loss}_averaged" if self.reading.averaged else loss
        return self.findings.values(method, name, self.reading.tuned)

    def gap(self, ours: Method, theirs: Method, loss: str = "validation") -> Spread:
        return difference(self.final(ours, loss), self.final(theirs, loss))

    def curve(self, method: Method, name: str) -> np.ndarray:
        return self.findings.curve(method, name, self.reading.tuned)

    def level(self) -> float:
        """The lowest validation loss that every method reaches, on average: one level for all."""
        return max(float(self.curve(method, "validation").mean(axis=0).min()) for method in self.methods)

    def samples_until(self, method: Method) -> np.ndarray:
        """Samples drawn until the validation loss is down to the level, by trial; the whole run where it never is."""
        curve, drawn = self.curve(method, "validation"), self.findings.samples(method, self.reading.tuned)
        below = curve <= self.level()
        return np.where(below.any(axis=1), drawn[np.argmax(below, axis=1)], drawn[-1])

    def pace(self, ours: Method, theirs: Method) -> Spread:
        return ratio(self.samples_until(ours), self.samples_until(theirs))


def _larger_cells(view: CleaningView) -> Judgement:
    small, large = view.of("cells")[0], view.of("cells")[-1]
    until = f"samples until a loss of {view.level():.3g}, {large.label} over {small.label}"
    lower = Comparison(f"final validation loss, {large.label} less {small.label}", view.gap(large, small), most=0.0)
    return Judgement([[lower, Comparison(until, view.pace(large, small), least=1.0)]])


def _rising(view: CleaningView) -> Judgement:
    small, ours = view.of("cells")[0], view.chebyshev()
    curve, weight = view.curve(small, "training"), view.curve(small, "weight")
    parts = {
        f"training loss of {small.label} less {ours.label}'s": view.gap(small, ours, "training"),
        "its change over the second half": Spread.over(curve[:, -1] - curve[:, curve.shape[1] // 2]),
        "change of the mean weight": Spread.over(weight[:, -1] - weight[:, 0]),
    }
    return Judgement([[Comparison(what, part, least=0.0) for what, part in parts.items()]])


def _fastest(view: CleaningView) -> Judgement:
    ours, others = view.chebyshev(), view.of("cells") + view.of("Monomial")
    parts = [
        Comparison(f"{loss} loss less that of {method.label}", view.gap(ours, method, loss), most=0.0)
        for loss in LOSSES
        for method in others
    ]
    until = f"samples until a loss of {view.level():.3g}, over those of"
    parts += [Comparison(f"{until} {method.label}", view.pace(ours, method), most=1.0) for method in others]
    limit = -0.02 * float(np.mean(view.final(ours, "validation")))
    larger = [method for method in view.of("Chebyshev") if method.N > ours.N]
    parts += [Comparison(f"validation loss of {m.label} less", view.gap(m, ours), least=limit) for m in larger]
    return Judgement([parts], f"of {ours.label}")


def _monomials(view: CleaningView) -> Judgement:
    ours = view.of("Monomial")[-1]
    if ours.N < 10:
        return Judgement([], "Needs N >= 10, which this budget leaves out.", untested=True)
    families = BASES if view.reading.bases_only else (*BASES, PER_CELL)
    others = [m for m in view.methods if ours.N == m.N and m.family in families and m.family != "Monomial"]
    what = f"validation loss of {ours.label} less that of"
    return Judgement([[Comparison(f"{what} {other.label}", view.gap(ours, other), least=0.0) for other in others]])


def _alike(view: CleaningView) -> Judgement:
    pairs = [(f, c) for f in view.of("Fourier") for c in view.of("Chebyshev") if f.N == c.N]
    spread = lambda f, c: ratio(view.final(f, "validation"), view.final(c, "validation"))
    what = lambda f, c: f"validation loss of {f.label} over {c.label}"
    return Judgement([[Comparison(what(*pair), spread(*pair), 0.98, 1.02) for pair in pairs]])


def _sharp(view: CleaningView) -> Judgement:
    """The policy varies most at the coldest temperatures."""
    large, ours = view.of("cells")[-1], view.of("Chebyshev")[-1]
    error, theirs = (relative_errors(view.findings, m, "within", view.reading.tuned) for m in (large, ours))
    middle = np.median(error, axis=1)
    parts = {
        f"{large.label} at the coldest temperature, over its median": geometric_mean(error[:, 0] / middle),
        f"there over {ours.label}": ratio(error[:, 0], theirs[:, 0]),
    }
    return Judgement(
        [[Comparison(what, part, least=1.0) for what, part in parts.items()]],
        f"squared error of the best policy in the span over |y*|^2, {large.label}: {np.mean(error[:, 0]):.2g} at the "
        f"coldest of {error.shape[1]} temperatures, {np.mean(middle):.2g} at the median",
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


# -- curves kept from runs elsewhere


class KeptCurves:
    """Runs of cells with batches of their own, of which the curves were kept: what a view asks of an experiment."""

    def __init__(self, content: Mapping[str, Any]):
        self._rows = {Method("StocBiO", OWN, row["N"], batch=row["batch"]): row for row in content["methods"]}
        self.methods = sorted(self._rows, key=lambda method: method.N)
        sizes, trials = ", ".join(str(method.N) for method in self.methods), len(content["seeds"])
        self.note = (
            f"{content['data']}, {self.methods[0].batch} images a cell and batch, {trials} trials, {content['steps']} "
            f"steps of ten inner ones or as many oracle calls, N = {sizes}"
        )
        if content.get("grid"):
            self.note += f", {len(content['grid'])} settings searched"

    def curve(self, method: Method, name: str, tuned: str = HELD_OUT) -> Float[np.ndarray, "trials looks"]:
        return moving_average(np.array(self._rows[method][name], dtype=float))

    def values(self, method: Method, name: str, tuned: str = HELD_OUT) -> np.ndarray:
        return self.curve(method, name)[:, -1]

    def samples(self, method: Method, tuned: str = HELD_OUT) -> np.ndarray:
        return np.array(self._rows[method]["samples"], dtype=float)


def with_own_batches(claims: Sequence[dict[str, Any]], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims with one more reading of H1, from kept curves, in place of an earlier one of that reading."""
    kept, reading = KeptCurves(content), Reading(OWN, HELD_OUT)
    more = reading_entry(reading, replace(_larger_cells(CleaningView(kept, reading)), note=kept.note))
    changed = []
    for entry in claims:
        if entry["id"] == "H1" and entry.get("readings"):
            others = [one for one in entry["readings"] if one["reading"] != more["reading"]]
            entry = concluded(entry | {"readings": [*others, more]})
        changed.append(entry)
    return changed
