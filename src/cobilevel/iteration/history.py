"""The curves of a run over its steps: joined where it goes on, and bounded however long it runs."""

from collections.abc import Mapping

import numpy as np

MOST_ENTRIES = 100_000  # of a curve; of longer runs every second step is kept, then every fourth, and so on
_MANY_PARTS = 1000  # pieces that are joined into one
_STEP = "step"


class History:
    """What a run recorded: `add` what steps came to, `curves` gives all of it, with the steps it belongs to.

    Which steps are kept depends on how many were taken and on nothing else, so a run that was stopped and went on has
    the same history as one that was not.
    """

    def __init__(self, curves: Mapping[str, np.ndarray] | None = None, last: int = 0, most: int = MOST_ENTRIES):
        """Goes on from `curves` that end at step `last`; without steps of their own, they are of the steps up to it."""
        self._most, self._stride = most, 1
        self._parts: list[dict[str, np.ndarray]] = []
        self._newest: dict[str, np.ndarray] = {}
        known = {name: np.asarray(curve) for name, curve in (curves or {}).items()}
        count = min((len(curve) for curve in known.values()), default=0)
        if count:
            known.setdefault(_STEP, np.arange(last - count + 1, last + 1))
            self._take(known)

    def add(self, records: Mapping[str, np.ndarray], last: int) -> None:
        """With the records of some more steps, the last of which was `last`."""
        count = len(next(iter(records.values()), ()))
        if count:
            self._take({_STEP: np.arange(last - count + 1, last + 1), **records})

    def curves(self) -> dict[str, np.ndarray]:
        """All that is kept, and the last step, whether or not it is one of those."""
        if not self._parts:
            return {}
        self._parts = [_in_a_row(self._parts)]
        kept = self._parts[0]
        ended = kept[_STEP][-1:].tolist() == self._newest[_STEP].tolist()
        return dict(kept) if ended else _in_a_row([kept, self._newest])

    def up_to(self, step: int) -> "History":
        """The history as it was after an earlier step; the step itself may be missing in it."""
        found = History(most=self._most)
        whole = self.curves()
        if whole:
            early = whole[_STEP] <= step
            found._take({name: curve[early] for name, curve in whole.items()})
        return found

    def _take(self, more: dict[str, np.ndarray]) -> None:
        if not len(more[_STEP]):
            return
        self._newest = {name: curve[-1:] for name, curve in more.items()}
        before, last = self._stride, int(more[_STEP][-1])
        self._parts.append(more)
        self._stride = _stride(last, self._most)
        if self._stride != before:
            self._parts = [_thinned(_in_a_row(self._parts), self._stride)]
        elif self._stride > 1:
            self._parts[-1] = _thinned(more, self._stride)
        if len(self._parts) > _MANY_PARTS:
            self._parts = [_in_a_row(self._parts)]


def _stride(last: int, most: int) -> int:
    """Every how many-th step is kept where so many were taken: a power of two."""
    return 1 << max(0, ((last - 1) // most).bit_length())


def _thinned(curves: dict[str, np.ndarray], stride: int) -> dict[str, np.ndarray]:
    kept = curves[_STEP] % stride == 0
    return {name: curve[kept] for name, curve in curves.items()}


def _in_a_row(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
