"""How a run has gone so far: where it stands, its curves, and how often it had to go back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import equinox as eqx
import numpy as np

from .. import archive
from ..answer import Result
from .history import History

_SOUND = 10.0  # times the least of the gradients so far: while they are no larger, a run has not begun to diverge
_PACE_AFTER = 0.5  # the steps after a retreat, in units of those before


@dataclass
class Course:
    """A run as it goes on; all of it is kept in a checkpoint.

    `good`: the state to go back to where the run diverges (``None`` where it may not), with `least`, the smallest of
    the largest gradients of each chunk so far, and `peak`, the largest of this chunk. `retreats`: at which step the
    run failed, and to which it went back, for each time.
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
        """How it ended, as far as it has."""
        return Result.of(int(self.state.result))

    @property
    def going(self) -> bool:
        """Whether it has neither ended nor used up its steps."""
        return self.result is Result.RUNNING and self.step < int(self.state.limit)

    def add(self, state: Any, records: Mapping[str, np.ndarray], chunk: int) -> None:
        """With the state and the records after some more steps."""
        self.state = state
        self.history.add(records, self.step)
        if self.good is None:
            return
        sizes = records.get("gradient", np.zeros(0))
        if not self.least:
            self.least = float(sizes[0]) if len(sizes) else 0.0
        self.peak = max(self.peak, float(np.max(sizes, initial=0.0)))
        if self.result is Result.RUNNING and self.step % chunk == 0:
            if self.peak <= _SOUND * self.least:
                self.good, self.least = state, min(self.least, self.peak)
            self.peak = 0.0

    def retreat(self) -> None:
        """Back to the last good state, and on with shorter steps; what was spent is spent."""
        back, failed = self.good, cast(Any, self.state)
        self.retreats.append((self.step + 1, int(back.step)))
        pace = failed.outer.pace * _PACE_AFTER
        self.state = eqx.tree_at(lambda s: (s.outer.pace, s.ledger), back, (pace, failed.ledger))
        self.history, self.peak = self.history.up_to(int(back.step)), 0.0

    def words(self) -> dict[str, str]:
        """What to report of retreats."""
        if not self.retreats:
            return {}
        steps = ", ".join(f"at step {failed} (back to {back})" for failed, back in self.retreats)
        share = _PACE_AFTER ** len(self.retreats)
        return {"retreats": f"diverged {steps}; went on with steps {share:g} times as long as before. Give such steps."}

    def kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a checkpoint holds of it: a document, and arrays."""
        arrays = {f"state/{k}": leaf for k, leaf in enumerate(archive.to_plain(self.state))}
        if self.good is not None:
            arrays.update({f"good/{k}": leaf for k, leaf in enumerate(archive.to_plain(self.good))})
        arrays.update({f"history/{name}": curve for name, curve in self.history.curves().items()})
        numbers = {"seconds": self.seconds, "least": self.least, "peak": self.peak, "retreats": self.retreats}
        return numbers, arrays

    @staticmethod
    def again(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], like: Any) -> "Course":
        """The inverse of ``kept``; `like` has the structure of the state."""

        def group(name: str) -> list[np.ndarray]:
            return [arrays[f"{name}/{k}"] for k in range(sum(key.startswith(f"{name}/") for key in arrays))]

        state = archive.from_plain(group("state"), like)
        good = archive.from_plain(group("good"), like) if "good/0" in arrays else None
        curves = {key.removeprefix("history/"): part for key, part in arrays.items() if key.startswith("history/")}
        return Course(
            state,
            History(curves, int(state.step)),
            float(document["seconds"]),
            good,
            float(document["least"]),
            float(document["peak"]),
            [(int(failed), int(back)) for failed, back in document["retreats"]],
        )
