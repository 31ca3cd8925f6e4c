"""The claims of the paper in words, and how a verdict follows from results under each reading of what it leaves open.

The test of each claim, with its threshold, is with its experiment: I in ``inverse``, H in ``cleaning``, P and T in
``theory``.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from ..judge import Estimate, runs_estimate
from .methods import BARE, EXTENDED, HELD_OUT, PER_CELL, REPORTED

CLAIMS = {
    "I1": "Three basis functions already give reasonable solutions; stocBiO[N] is unstable or needs many more.",
    "I2": "By N = 5 all three bases are within 3% of F_ref; stocBiO[N] needs N = 50.",
    "I3": "Beyond N = 5 the monomial lower-level error stops falling, while Chebyshev and Fourier go on and beat "
    "stocBiO[N] at every N.",
    "I4": "Chebyshev and Fourier reach the smallest loss from N = 10 on; stocBiO[N] needs N = 100 and still has a "
    "larger lower-level error.",
    "I5": "The same accuracy with an order of magnitude less memory, or a gap smaller by one with as much.",
    "H1": "A larger N gives stocBiO[N] a lower final validation loss, but slower convergence.",
    "H2": "For small N the training loss of stocBiO[N] is high and rising, since the weights rise on average.",
    "H3": "Chebyshev with N = 5 converges fastest and ends lowest on both losses; more functions add little.",
    "H4": "The monomial basis is worse than the others for large N.",
    "H5": "Fourier and Chebyshev perform nearly identically on this problem.",
    "H6": "stocBiO[N] fails where the policy varies sharply with the context, even for large N.",
    "P2": "The reduced lower-level solution is quasi-optimal: its squared error is at most L/mu times the best in the "
    "span (the paper has 2 L/mu).",
    "T1": "A stationary point of the reduced problem is one of the contextual problem if the basis is expressive.",
    "T2": "Sample complexity grows polynomially in 1/m_Phi, and as eps^-3 with a variance-reduced solver.",
    "T3": "Chebyshev: N grows like ln^d(1/eps) for analytic problems, and m_Phi is of order 1/N at least.",
    "C1": "DL-SGD and RT-MLMC are impractical on these problems.",
}


def verdict(
    name: str, holds: bool | None, measured: Any, threshold: str, how: str, why: str = "", corrected: bool = False
) -> dict[str, Any]:
    """One entry of ``claims.json``; ``None`` stands for a claim that was not tested, `corrected` for one that holds in
    another form than the printed one."""
    word = "not tested" if holds is None else "fails" if not holds else "holds as corrected" if corrected else "holds"
    entry = {"id": name, "claim": CLAIMS[name], "verdict": word}
    entry |= {"measured": measured, "threshold": threshold, "how": how}
    return entry | ({"why": why} if why else {})


def complete(tested: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All claims in their order; those without a verdict are not tested, and say where they would be."""
    known = {entry["id"]: entry for entry in tested}
    where = {
        name: f"Measured by `cobilevel reproduce {'cleaning' if name[0] == 'H' else 'inverse'}`." for name in CLAIMS
    }
    where["C1"] = "Needs the direct methods DL-SGD and RT-MLMC, which do not reduce."
    where["T2"] = "Measured by `cobilevel reproduce inverse` at the default and the full budget."
    return [known.get(name) or verdict(name, None, "", "", where[name]) for name in CLAIMS]


# -- readings: where the paper leaves room, a claim is judged under each way to read it


@dataclass(frozen=True)
class Reading:
    """What stocBiO[N] is, where step sizes were chosen, what is averaged; the defaults are read first."""

    cells: str | None = PER_CELL  # none where a claim does not speak of them
    tuned: str = HELD_OUT
    medians: bool = False  # over instances, rather than means
    averaged: bool = False  # answers averaged over the last tenth, rather than losses along the iterates
    bases_only: bool = False  # "the others" are the other bases, rather than all other methods

    def words(self) -> str:
        parts = [
            {PER_CELL: "each cell a problem of its own", BARE: "bare indicator functions"}.get(self.cells or ""),
            {HELD_OUT: "step sizes from held-out instances", REPORTED: "step sizes from the reported instances",
             EXTENDED: "step sizes from an extended grid"}[self.tuned],
            "medians" if self.medians else None,
            "averaged answers" if self.averaged else None,
            "against the other bases" if self.bases_only else None,
        ]  # fmt: skip
        return ", ".join(part for part in parts if part)


def every_reading(cells: Iterable[str], further: Any, flag: str) -> list[Reading]:
    """All combinations, the plainest first; `flag` is set in half of them. `further`: whether grids were extended."""
    tuned = [HELD_OUT, REPORTED] + [EXTENDED] * bool(further)
    plain = [Reading(one, where) for one, where in itertools.product(cells, tuned)]
    return [each for reading in plain for each in (reading, replace(reading, **{flag: True}))]


Judgement = tuple[bool | None, str]  # whether a claim holds (None: not tested at this budget), and what was measured


def judged(
    name: str, judge: Callable[[Any], Judgement], views: Sequence[Any], threshold: str, how: str, why: str = ""
) -> dict[str, Any]:
    """The verdict on a claim from the results under several readings: it fails where it fails under all of them."""
    results = [(view.reading.words(), *judge(view)) for view in views]
    for _, holds, measured in results:
        if holds is None:
            return verdict(name, None, "", threshold, measured)
    kept = [result for result in results if result[1]]
    words, _, measured = (kept or results)[0]
    some = f"{len(kept)} of {len(results)}, first: {words}" if kept else "none"
    return verdict(name, bool(kept), measured, threshold, how, "" if kept else why) | {
        "reading": "every reading" if len(kept) == len(results) else some,
        "readings": [
            {"reading": words, "verdict": "holds" if holds else "fails", "measured": measured}
            for words, holds, measured in results
        ],
    }


# -- sets of runs, alone and compared in pairs, with 95% intervals


def difference(ours: Any, theirs: Any) -> Estimate:
    """The mean of ``ours - theirs``, run by run."""
    return runs_estimate(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))


def ratio(ours: Any, theirs: Any) -> Estimate:
    """The geometric mean of ``ours / theirs``, run by run."""
    return difference(np.log(ours), np.log(theirs)).exp()


def geometric_mean(values: Any) -> Estimate:
    """The geometric mean of positive values, over runs."""
    return runs_estimate(np.log(values)).exp()


def median(values: Any) -> Estimate:
    """The median, between the order statistics that hold it with a chance of 95% at least, whatever the law."""
    ordered = np.sort(np.asarray(values, dtype=float))
    k = max(int(scipy.stats.binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    low, high = float(ordered[k]), float(ordered[len(ordered) - 1 - k])
    return Estimate(float(np.median(ordered)), (high - low) / 4, (low, high))


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a random positive has a higher score than a random negative, ties counting half."""
    if positive.all() or not positive.any():
        return float("nan")
    pairs = positive.sum() * (~positive).sum()
    return float(scipy.stats.mannwhitneyu(score[positive], score[~positive], method="asymptotic").statistic / pairs)


def listed(table: Mapping[Any, Estimate], digits: int = 4) -> str:
    """Estimates by name, in words; methods go by their labels."""
    return ", ".join(f"{getattr(key, 'label', key)} {value.words(digits)}" for key, value in table.items())
