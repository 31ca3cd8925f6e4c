"""The course of a run: its state, its curves (bounded however long it runs), and how often it went back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import equinox as eqx
import numpy as np

from ..ground import archive
from .result import Result

_SOUND = 10.0  # times the least of the gradients so far: while they are no larger, a run has not begun to diverge
MOST_ENTRIES = 100_000  # of a curve; of longer runs every second step is kept, then every fourth, and so on


class History:
    """The records of a run, with the steps they belong to. Which steps are kept depends only on how many were taken, so
    a run that was stopped and continued has the same history as one that was not."""

    def __init__(self, curves: Mapping[str, np.ndarray] | None = None, last: int = 0, most: int = MOST_ENTRIES):
        """Continues from `curves` that end at step `last`; if they hold no steps, they are of the steps up to it."""
        self._most = most
        self._kept: dict[str, np.ndarray] = {}
        self._newest: dict[str, np.ndarray] = {}
        self.add({name: np.asarray(curve) for name, curve in (curves or {}).items()}, last)

    def add(self, records: Mapping[str, np.ndarray], last: int) -> None:
        """Adds the records of some more steps, the last of which was `last`."""
        count = min(map(len, records.values()), default=0)
        if not count:
            return
        more = {"step": np.arange(last - count + 1, last + 1), **records}
        self._newest = {name: curve[-1:] for name, curve in more.items()}
        whole = _joined(self._kept, more)
        stride = 1 << ((int(more["step"][-1]) - 1) // self._most).bit_length()
        kept = whole["step"] % stride == 0
        self._kept = {name: curve[kept] for name, curve in whole.items()}

    def curves(self) -> dict[str, np.ndarray]:
        """Everything that is kept, and always the last step."""
        if not self._kept or self._kept["step"][-1:].tolist() == self._newest["step"].tolist():
            return dict(self._kept)
        return _joined(self._kept, self._newest)

    def up_to(self, step: int) -> "History":
        """The history as it was after an earlier step; the step itself may be missing in it."""
        whole = self.curves()
        return History({name: curve[whole["step"] <= step] for name, curve in whole.items()}, step, self._most)


def _joined(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([first[name], curve]) if first else curve for name, curve in second.items()}


@dataclass
class Course:
    """A run in progress; all of it is kept in a checkpoint.

    `good`: the state to go back to if the run diverges (``None`` if it may not), with `least`, the smallest of the
    largest gradients of each span so far, and `peak`, the largest of this span. `retreats`: for each retreat, the
    step at which the run failed, and the step it went back to.
    """

    state: Any
    history: History = field(default_factory=History)
    seconds: float = 0.0
    good: Any = None
    least: float = 0.0
    peak: float = 0.0
    retreats: list[tuple[int, int]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps taken."""
        return int(self.state.step)

    @property
    def result(self) -> Result:
        """How it ended, if it has."""
        return Result.of(int(self.state.result))

    @property
    def going(self) -> bool:
        """Whether it has neither ended nor used up its steps."""
        return self.result is Result.RUNNING and self.step < int(self.state.limit)

    def add(self, state: Any, records: Mapping[str, np.ndarray], span: int) -> None:
        """Adds the state and the records after some more steps; a good state is one at a multiple of `span`."""
        self.state = state
        self.history.add(records, self.step)
        if self.good is None:
            return
        sizes = records.get("gradient", np.zeros(0))
        if not self.least:
            self.least = float(sizes[0]) if len(sizes) else 0.0
        self.peak = max(self.peak, float(np.max(sizes, initial=0.0)))
        if self.result is Result.RUNNING and self.step % span == 0:
            if self.peak <= _SOUND * self.least:
                self.good, self.least = state, min(self.least, self.peak)
            self.peak = 0.0

    def retreat(self) -> None:
        """Goes back to the last good state, and continues with shorter steps; the cost is not refunded."""
        back, failed = self.good, cast(Any, self.state)
        self.retreats.append((self.step + 1, int(back.step)))
        pace = failed.outer.pace / 2
        self.state = eqx.tree_at(lambda s: (s.outer.pace, s.ledger), back, (pace, failed.ledger))
        self.history, self.peak = self.history.up_to(int(back.step)), 0.0

    def words(self) -> dict[str, str]:
        """What to report of retreats."""
        if not self.retreats:
            return {}
        steps = ", ".join(f"at step {failed} (back to {back})" for failed, back in self.retreats)
        share = 2.0 ** -len(self.retreats)
        return {"retreats": f"diverged {steps}; continued with steps {share:g} times as long. Pass smaller step sizes."}

    def kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a checkpoint holds of it: a document, and arrays."""
        arrays = archive.numbered("state", archive.to_plain(self.state))
        arrays |= archive.numbered("good", archive.to_plain(self.good))
        arrays |= {f"history/{name}": curve for name, curve in self.history.curves().items()}
        numbers = {"seconds": self.seconds, "least": self.least, "peak": self.peak, "retreats": self.retreats}
        return numbers, arrays

    @staticmethod
    def again(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], like: Any) -> "Course":
        """The inverse of ``kept``; `like` has the structure of the state."""
        state = lambda name: archive.from_plain(archive.in_order(arrays, name), like)
        now, good = state("state"), state("good") if "good/0" in arrays else None
        seconds, least, peak = (float(document[name]) for name in ("seconds", "least", "peak"))
        retreats = [(int(failed), int(back)) for failed, back in document["retreats"]]
        return Course(
            now, History(archive.group(arrays, "history/"), int(now.step)), seconds, good, least, peak, retreats
        )
