"""The claims of the paper in words, and how a verdict follows from comparisons under the primary reading and others.

The test of each claim, with its threshold, is with its experiment: I in ``inverse_claims``, H in ``cleaning_claims``,
P and T in ``theory``. Comparisons are kept in numbers, so that verdicts can be had again without the runs.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import scipy.stats
from scipy import special

from ..judge import Estimate, runs_estimate
from .methods import BARE, EXTENDED, HELD_OUT, OWN, PER_CELL, REPORTED

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


# -- readings: where the paper leaves room, one is primary by its words, and a claim is judged by that


@dataclass(frozen=True)
class Reading:
    """What stocBiO[N] is, where step sizes were chosen, what is averaged.

    The defaults are the primary reading: docs/paper.md has the sentences of the paper that decide.
    """

    cells: str | None = PER_CELL  # none where a claim does not speak of them
    tuned: str = REPORTED
    medians: bool = False  # over instances, rather than means
    averaged: bool = False  # answers averaged over the last tenth, rather than losses along the iterates
    bases_only: bool = False  # "other methods" are the other bases alone

    @property
    def primary(self) -> bool:
        return replace(self, cells=PER_CELL if self.cells is None else self.cells) == Reading()

    def words(self) -> str:
        parts = [
            {PER_CELL: "each cell a problem of its own", BARE: "bare indicator functions",
             OWN: "each cell a problem of its own with batches of its own"}.get(self.cells or ""),
            {HELD_OUT: "step sizes from held-out instances", REPORTED: "step sizes from the reported instances",
             EXTENDED: "step sizes from an extended grid"}[self.tuned],
            "medians" if self.medians else None,
            "averaged answers" if self.averaged else None,
            "against the other bases" if self.bases_only else None,
        ]  # fmt: skip
        return ", ".join(part for part in parts if part)


def every_reading(cells: Iterable[str], further: Any, flag: str) -> list[Reading]:
    """All combinations, the primary one first if it is among them; `flag` is set in half of them. `further`: whether
    grids were extended."""
    tuned = [REPORTED, HELD_OUT] + [EXTENDED] * bool(further)
    plain = [Reading(one, where) for one, where in itertools.product(cells, tuned)]
    return [each for reading in plain for each in (reading, replace(reading, **{flag: True}))]


# -- comparisons: numbers over runs, held against limits


class Spread(Estimate):
    """A number over runs with its 95% interval: a mean, a geometric mean or a median; paired where runs are."""

    kind: str
    runs: int
    values: Any  # by run; none where only the number and its interval were kept

    @staticmethod
    def kept(value: float, low: float, high: float, kind: str, runs: int, values: Any = None) -> "Spread":
        self = Spread(value, (high - low) / 4, (low, high))
        self.kind, self.runs, self.values = kind, runs, values
        return self

    @staticmethod
    def point(value: float) -> "Spread":
        """A number that is judged by itself."""
        return Spread.kept(value, value, value, "mean", 1)

    @staticmethod
    def over(values: Any, kind: str = "mean") -> "Spread":
        table = np.asarray(values, dtype=float)
        if kind == "median":
            one = _median(table, 1)
        else:
            one = runs_estimate(np.log(table)).exp() if kind == "geometric mean" else runs_estimate(table)
        return Spread.kept(float(one), one.low, one.high, kind, len(table), table)

    def among(self, count: int) -> Estimate:
        """The same number with wider ends: `count` such intervals hold all truths at once 95% of the time
        (Bonferroni). Exact for means; a median of which no runs were kept moves its ends out as normal ones move."""
        if count <= 1 or not np.isfinite([self.low, self.high]).all():
            return self
        if self.kind == "median" and self.values is not None:
            return _median(self.values, count)
        further = _further(None if self.kind == "median" else self.runs - 1, count)
        there, back = (np.log, np.exp) if self.kind == "geometric mean" else (float, float)
        low, high = (float(back(there(self) + further * (there(end) - there(self)))) for end in self.interval)
        return Estimate(float(self), further * self.error, (low, high))

    def __reduce__(self) -> Any:
        return Spread.kept, (float(self), *self.interval, self.kind, self.runs, self.values)


def _tail(count: int) -> float:
    """The chance beyond each end of an interval, one of `count`."""
    return 0.025 / count


@cache
def _further(freedom: int | None, count: int) -> float:
    """How much further the ends of one of `count` intervals are: by Student's law, or the normal one."""
    one, many = (
        special.ndtri(tail) if freedom is None else special.stdtrit(freedom, tail) for tail in (_tail(1), _tail(count))
    )
    return float(many / one)


@cache
def _rank(runs: int, count: int) -> int:
    """The order statistic, from either end, at which an interval of the median ends."""
    below = special.bdtr(np.arange(runs + 1), runs, 0.5)
    return max(int(np.argmax(below >= _tail(count))) - 1, 0)


def _median(values: np.ndarray, count: int) -> Estimate:
    """The median, between the order statistics that hold it, whatever the law; one of `count` such intervals."""
    ordered = np.sort(values)
    k = _rank(len(ordered), count)
    low, high = float(ordered[k]), float(ordered[len(ordered) - 1 - k])
    return Estimate(float(np.median(ordered)), (high - low) / 4, (low, high))


@dataclass(frozen=True)
class Comparison:
    """A number that must lie between two limits: with its whole interval, or (not `certain`) by itself."""

    what: str
    spread: Spread
    least: float = -np.inf
    most: float = np.inf
    certain: bool = True

    def seen(self, count: int) -> Estimate:
        return self.spread.among(count) if self.certain else Estimate(float(self.spread))

    def holds(self, count: int) -> bool:
        return self.least < self.seen(count).low and self.seen(count).high < self.most

    def miss(self, count: int) -> str:
        """By how much it fails, and which limit would have passed; nothing where it holds."""
        if self.holds(count):
            return ""
        seen = self.seen(count)
        ends = [(self.least, seen.low)] * (not seen.low > self.least)
        ends += [(self.most, seen.high)] * (not seen.high < self.most)
        beyond = [f"misses {limit:.4g} by {abs(end - limit):.2g}, {end:.4g} would have passed" for limit, end in ends]
        return f"{self.what} {seen.words(4)}: {' and '.join(beyond)}"

    def stored(self) -> dict[str, Any]:
        """In numbers that JSON has; a limit that there is not is left out."""
        spread = {"value": float(self.spread), "low": self.spread.low, "high": self.spread.high}
        limits = {"least": self.least, "most": self.most}
        short = lambda v: float(f"{v:.6g}")
        numbers = {name: short(v) for name, v in (spread | limits).items() if np.isfinite(v)}
        if (
            self.spread.kind == "median" and self.spread.values is not None
        ):  # its interval is not a matter of two numbers
            numbers["values"] = [short(v) for v in self.spread.values]
        known = {"what": self.what, "kind": self.spread.kind, "runs": self.spread.runs, "certain": self.certain}
        return known | numbers

    @staticmethod
    def read(stored: Mapping[str, Any]) -> "Comparison":
        number = lambda name, other: float(stored.get(name, other))
        ends, values = (number("low", -np.inf), number("high", np.inf)), stored.get("values")
        values = None if values is None else np.array(values)
        spread = Spread.kept(number("value", np.nan), *ends, stored["kind"], stored["runs"], values)
        limits = number("least", -np.inf), number("most", np.inf)
        return Comparison(stored["what"], spread, *limits, stored["certain"])


@dataclass(frozen=True)
class Judgement:
    """What a claim comes down to under one reading: one of several lists of comparisons, all of which hold."""

    ways: Sequence[Sequence[Comparison]]
    note: str = ""
    untested: bool = False  # at this budget; the note says why

    @property
    def count(self) -> int:
        """Intervals that are looked at."""
        return max(1, sum(one.certain for way in self.ways for one in way))

    @property
    def holds(self) -> bool:
        return any(all(one.holds(self.count) for one in way) for way in self.ways)

    def words(self) -> str:
        """Every number, with intervals that account for how many there are."""
        every = [f"{one.what} {one.seen(self.count).words(4)}" for way in self.ways for one in way]
        return "; ".join([*dict.fromkeys(every), *([self.note] if self.note else [])])

    def misses(self) -> list[str]:
        """Where the way that comes nearest fails."""
        each = [[miss for one in way if (miss := one.miss(self.count))] for way in self.ways]
        return min(each, key=len)


ELSEWHERE = "holds under another reading"


def judged(
    name: str, judge: Callable[[Any], Judgement], views: Sequence[Any], threshold: str, how: str, why: str = ""
) -> dict[str, Any]:
    """The verdict on a claim, by the results under the primary reading; those under others are told."""
    results = [(view.reading, judge(view)) for view in views]
    for _, result in results:
        if result.untested:
            return verdict(name, None, "", threshold, result.note)
    readings = [reading_entry(*each) for each in results]
    return concluded(verdict(name, False, "", threshold, how, why) | {"readings": readings})


def reading_entry(reading: Reading, result: Judgement) -> dict[str, Any]:
    """What is kept of a claim under one reading: its comparisons, in numbers."""
    comparisons = [[one.stored() for one in way] for way in result.ways]
    return {"reading": reading.words(), "primary": reading.primary, "note": result.note, "comparisons": comparisons}


def concluded(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with the verdict that the comparisons in its readings give; one without any is as it was."""
    if not entry.get("readings"):
        return dict(entry)
    readings, results = [], []
    for one in entry["readings"]:
        ways = [[Comparison.read(each) for each in way] for way in one["comparisons"]]
        result = Judgement(ways, one["note"])
        results.append(result)
        readings.append(dict(one) | {"verdict": "holds" if result.holds else "fails", "measured": result.words()})
    primary = [k for k, one in enumerate(readings) if one["primary"]]
    if len(primary) != 1:
        raise ValueError(f"claim {entry['id']} needs one primary reading, but has {len(primary)}.")
    kept = [one["reading"] for one in readings if one["verdict"] == "holds"]
    result, others = results[primary[0]], len(readings) - 1
    if result.holds:
        word, under = "holds", "primary" + f" and {len(kept) - 1} of {others} others" * bool(others)
    elif kept:
        word, under = ELSEWHERE, f"{len(kept)} of {others} others, first: {kept[0]}"
    else:
        word, under = "fails", "none"
    said = dict(entry) | {"verdict": word, "reading": under, "measured": result.words(), "readings": readings}
    said |= {"misses": [] if result.holds else result.misses()}
    return said | {"intervals": result.count}


# -- sets of runs, alone and compared in pairs


def difference(ours: Any, theirs: Any) -> Spread:
    """The mean of ``ours - theirs``, run by run."""
    return Spread.over(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float))


def ratio(ours: Any, theirs: Any) -> Spread:
    """The geometric mean of ``ours / theirs``, run by run."""
    return geometric_mean(np.asarray(ours, dtype=float) / np.asarray(theirs, dtype=float))


def geometric_mean(values: Any) -> Spread:
    """The geometric mean of positive values, over runs."""
    return Spread.over(values, "geometric mean")


def median(values: Any) -> Spread:
    """The median over runs."""
    return Spread.over(values, "median")


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a random positive has a higher score than a random negative, ties counting half."""
    if positive.all() or not positive.any():
        return float("nan")
    pairs = positive.sum() * (~positive).sum()
    return float(scipy.stats.mannwhitneyu(score[positive], score[~positive], method="asymptotic").statistic / pairs)


def listed(table: Mapping[Any, Estimate], digits: int = 4) -> str:
    """Estimates by name, in words; methods go by their labels."""
    return ", ".join(f"{getattr(key, 'label', key)} {value.words(digits)}" for key, value in table.items())
