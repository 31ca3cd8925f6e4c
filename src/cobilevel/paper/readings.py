"""Readings: where the paper leaves room, a claim is judged under each way to read it, and the verdict says which."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..judge import Estimate
from .claims import verdict
from .lab import EXTENDED, HELD_OUT, REPORTED
from .methods import BARE, PER_CELL

_CELLS = {PER_CELL: "each cell a problem of its own", BARE: "bare indicator functions"}
_TUNED = {
    HELD_OUT: "step sizes from held-out instances",
    REPORTED: "step sizes from the reported instances",
    EXTENDED: "step sizes from an extended grid",
}


@dataclass(frozen=True)
class Reading:
    """What stocBiO[N] is, where step sizes were chosen, what is averaged; the defaults are read first."""

    cells: str | None = PER_CELL  # none where a claim does not speak of them
    tuned: str = HELD_OUT
    medians: bool = False  # over instances, rather than means
    averaged: bool = False  # answers averaged over the last tenth, rather than losses along the iterates
    bases_only: bool = False  # "the others" are the other bases, rather than all other methods

    def words(self) -> str:
        about = [] if self.cells is None else [_CELLS[self.cells]]
        more = ["medians"] * self.medians + ["averaged answers"] * self.averaged
        more += ["against the other bases"] * self.bases_only
        return ", ".join([*about, _TUNED[self.tuned], *more])


def every_reading(cells: Iterable[str], tuned: Iterable[str], flag: str) -> list[Reading]:
    """All combinations, the plainest first; `flag` is set in half of them."""
    plain = [Reading(one, where) for one, where in itertools.product(cells, tuned)]
    return [each for reading in plain for each in (reading, replace(reading, **{flag: True}))]


@dataclass(frozen=True)
class Judgement:
    """Whether a claim holds under one reading (``None``: cannot be judged at this budget), and what was measured."""

    holds: bool | None
    measured: str


def listed(table: Mapping[Any, Estimate], digits: int = 4) -> str:
    """Estimates by name, in words; methods go by their labels."""
    return ", ".join(f"{getattr(key, 'label', key)} {value.words(digits)}" for key, value in table.items())


Judge = Callable[[Any], Judgement]  # of the findings under one reading


def judged(
    name: str, judge: Judge, views: Sequence[tuple[Reading, Any]], threshold: str, how: str, why: str = ""
) -> dict[str, Any]:
    """The verdict on a claim: it fails where it fails under every reading."""
    found = [(reading.words(), judge(view)) for reading, view in views]
    if any(one.holds is None for _, one in found):
        return verdict(name, None, "", threshold, next(one.measured for _, one in found if one.holds is None))
    kept = [words for words, one in found if one.holds]
    first = next((pair for pair in found if pair[1].holds), found[0])
    entry = verdict(name, bool(kept), first[1].measured, threshold, how, "" if kept else why)
    some = f"{len(kept)} of {len(found)}, first: {first[0]}" if kept else "none"
    entry["reading"] = "every reading" if len(kept) == len(found) else some
    entry["readings"] = [
        {"reading": words, "verdict": "holds" if one.holds else "fails", "measured": one.measured}
        for words, one in found
    ]
    return entry
