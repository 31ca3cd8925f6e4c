"""The verdicts on H1 to H6, computed from the runs of the cleaning experiment."""

from typing import Any

import numpy as np

from ...judge import Estimate, runs_estimate
from ..claims import verdict
from ..lab import Method
from ..statistics import difference, geometric_mean, ratio

LOSSES = ("validation", "training")


def cleaning_verdicts(findings: Any) -> list[dict[str, Any]]:
    """H1 to H6."""
    judges = (_larger_partitions, _rising, _fastest, _monomials, _alike, _sharp)
    return [judge(findings) for judge in judges]


def _gap(findings: Any, ours: Method, theirs: Method, name: str = "validation") -> Estimate:
    """Ours less theirs, of averaged answers, paired over trials."""
    return difference(findings.values(ours, name), findings.values(theirs, name))


def _larger_partitions(findings: Any) -> dict[str, Any]:
    sizes = findings.sizes("Partition")
    small, large = (findings.find("Partition", N) for N in (sizes[0], sizes[-1]))
    gain, slower = _gap(findings, large, small), findings.pace(large, small)
    lower, slow = gain.high < 0, slower.low > 1
    measured = (
        f"{large.label} less {small.label}, final validation loss: {gain.words()}; samples to a common loss, ratio: "
        f"{slower.words()}"
    )
    why = []
    if not lower:
        ends = f"{large.label} ends higher than" if gain.low > 0 else f"{large.label} is indistinguishable from"
        why.append(f"{ends} {small.label} within this budget of samples.")
    if not slow:
        why.append("Whether it is slower is within chance." if slower.high > 1 else "It is not slower.")
    threshold = "difference below 0 (upper end) and ratio above 1 (lower end)"
    how = "Averaged answers; samples until the validation curve is down to the higher of the two last values; paired."
    return verdict("H1", lower and slow, measured, threshold, how, " ".join(why))


def _rising(findings: Any) -> dict[str, Any]:
    small, ours = findings.find("Partition", findings.sizes("Partition")[0]), findings.find("Chebyshev", 5)
    curve, weight = findings.curve(small, "training"), findings.curve(small, "weight")
    middle = curve.shape[1] // 2
    parts = {
        f"training loss of {small.label} less {ours.label}'s": _gap(findings, small, ours, "training"),
        "its change over the second half": runs_estimate(curve[:, -1] - curve[:, middle]),
        "change of the mean weight": runs_estimate(weight[:, -1] - weight[:, 0]),
    }
    missing = [name for name, part in parts.items() if part.low <= 0]
    measured = "; ".join(f"{name}: {part.words()}" for name, part in parts.items())
    why = f"Not above 0: {'; '.join(missing)}." if missing else ""
    how = "Weighted, regularised training loss along the policy."
    return verdict("H2", not missing, measured, "all three above 0 (lower ends)", how, why)


def _fastest(findings: Any) -> dict[str, Any]:
    ours = findings.find("Chebyshev", 5)
    others = [m for m in findings.methods if m.family in ("Partition", "Monomial")]
    gaps = {loss: {m: _gap(findings, ours, m, loss) for m in others} for loss in LOSSES}
    paces = {m: findings.pace(ours, m) for m in others}
    more = {m: _gap(findings, m, ours) for m in findings.methods if m.family == "Chebyshev" and m.N > 5}
    words = lambda table: ", ".join(f"{m.label} {interval.words(2)}" for m, interval in table.items())
    measured = [f"{loss} loss less that of {words(table)}" for loss, table in gaps.items()]
    measured.append(f"samples to a common loss, over those of {words(paces)}")
    measured += [f"more functions: {words(more)}"] if more else []
    why = _not_below(findings, ours, gaps)
    slow = [m.label for m, pace in paces.items() if pace.high >= 1]
    why += [f"Not shown to be faster than {', '.join(slow)}."] if slow else []
    level = findings.values(ours, "validation").mean()
    gains = [m.label for m, gap in more.items() if gap < -0.02 * level]
    why += [f"More functions gain over 2%: {', '.join(gains)}."] if gains else []
    threshold = "below 0 (upper ends) on both losses; fewer samples (upper ends below 1); more functions gain under 2%"
    how = "Against every partition and monomial basis, paired over trials; a common loss is the higher of the last two."
    return verdict("H3", not why, "; ".join(measured), threshold, how, " ".join(why))


def _not_below(findings: Any, ours: Method, gaps: dict[str, dict[Method, Estimate]]) -> list[str]:
    """Where ours is not shown to end lower, with the mean weights: the training loss is weighted by them."""
    weight = lambda method: f"mean weight {np.mean(findings.values(method, 'weight')):.2g}"
    found = []
    for loss, table in gaps.items():
        lost = [m for m, gap in table.items() if gap.high >= 0]
        if lost and loss == "training":
            named = ", ".join(f"{m.label} ({weight(m)})" for m in lost)
            found.append(f"Not below on training loss, which is weighted: {named}, ours {weight(ours)}.")
        elif lost:
            found.append(f"Not below on {loss} loss: {', '.join(m.label for m in lost)}.")
    return found


def _monomials(findings: Any) -> dict[str, Any]:
    largest = findings.sizes("Monomial")[-1]
    ours = findings.find("Monomial", largest)
    others = [m for m in findings.methods if largest == m.N and m.family != "Monomial"]
    gaps = {m: _gap(findings, ours, m) for m in others}
    measured = f"{ours.label} less, validation loss: " + ", ".join(f"{m.label} {g.words()}" for m, g in gaps.items())
    threshold = f"above 0 (lower ends), against {', '.join(m.label for m in others)}"
    if largest < 10:
        return verdict("H4", None, measured, threshold, "Needs N >= 10, which this budget leaves out.")
    equal = [m.label for m, gap in gaps.items() if gap.low <= 0]
    why = f"Not worse than {', '.join(equal)}." if equal else ""
    how = "Averaged answers, paired over trials, against every other basis of that size that was run."
    return verdict("H4", not equal, measured, threshold, how, why)


def _alike(findings: Any) -> dict[str, Any]:
    ratios = {}
    for N in findings.sizes("Fourier"):
        ours, theirs = findings.find("Fourier", N), findings.find("Chebyshev", N)
        ratios[N] = ratio(findings.values(ours, "validation"), findings.values(theirs, "validation"))
    apart = [f"N = {N}" for N, r in ratios.items() if r.low < 0.98 or r.high > 1.02]
    measured = "; ".join(f"N = {N}: {r.words(4)}" for N, r in ratios.items())
    threshold = "ratio of validation losses between 0.98 and 1.02 (whole interval), at each N"
    how = "Averaged answers, geometric mean over trials, paired."
    return verdict("H5", not apart, measured, threshold, how, f"Further apart at {', '.join(apart)}." if apart else "")


def _sharp(findings: Any) -> dict[str, Any]:
    """The policy varies most at the coldest temperatures."""
    cells, ours = findings.find("Partition", findings.sizes("Partition")[-1]), findings.find("Chebyshev", 5)

    def share(method: Method) -> np.ndarray:
        """The relative squared error at the coldest node over the median of the others, in each trial."""
        error = findings.by_temperature(method, "error") / findings.by_temperature(method, "exact")[:, :, 2] ** 2
        return error[:, 0] / np.median(error[:, 1:], axis=1)

    cold = lambda method: findings.by_temperature(method, "error")[:, 0]
    concentrated = share(cells)
    parts = {
        f"squared error of {cells.label} at the coldest node over the median of the others": geometric_mean(
            concentrated
        ),
        f"that, over the same of {ours.label}": ratio(concentrated, share(ours)),
        f"error at the coldest node, over {ours.label}'s": ratio(cold(cells), cold(ours)),
    }
    missing = [name for name, part in parts.items() if part.low <= 1]
    measured = "; ".join(f"{name}: {part.words(2)}" for name, part in parts.items())
    why = f"Not above 1: {'; '.join(missing)}." if missing else ""
    how = "Against exact classifiers at the same weights, by temperature; geometric means over trials."
    return verdict("H6", not missing, measured, "all three above 1 (lower ends)", how, why)
