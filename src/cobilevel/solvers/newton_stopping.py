r"""The stopping rule of ``Newton``: converged, at a kink, or stalled.

Lengths are relative to the extent of ``x``, gradients to the first one. With $\epsilon$ the precision, a run has
converged where the projected gradient is below the tolerance and the next quasi-Newton step would be shorter than
$\epsilon^{1/2}$, twice in a row, so that curvature from before does not mislead; where a refused step as short brackets
a zero of the gradient; or where the next step is mere rounding. Where no curvature was seen, the length of the next
step is not known, and none of this is said. A run that comes from far begins anew on arrival (``Units.left_behind``):
the first gradient, and the curvature along the way, say nothing of where it is.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ..answer import Result
from ..lower import Point
from .newton_units import FlatBounds, Units

# exponents of the precision
_NEAR = 0.5  # of a step: half the digits of x, all that an objective computed to full precision determines
_NEXT_TO = 0.55  # of a refused step that shows a jump: somewhat shorter, so that smooth curvature cannot pass for one
_AT_KINK = 0.5  # of the combined gradient at a kink: it lies between two computed ones, and is less accurate than each
TOLERANCE = 2 / 3  # of the gradient, relative to its first value: what quasi-Newton steps reach, with digits to spare

_JUMP = 30  # times the least curvature in memory: no smooth function seen so far changes its gradient as fast
_CLEARLY_LESS = 1 / 2  # a kink must halve the gradient at least, or combining the two sides explains nothing
_ROUNDED = 64  # roundings of x: a next step as short cannot be taken
_HITS = 2  # small gradients in a row
_FAILED, _LAST_FAILED = 1, 2  # no progress along the quasi-Newton direction; along the steepest descent, nothing left


def kink_size(units: Units, bounds: FlatBounds, here: Point, other: Point) -> float:
    """The shortest projected combination of the gradients here and at a refused point, in the units of the run.

    Where ``g`` has kinks in its second derivative (penalties such as ``max(y, 0)^2`` do), the gradient of the reduced
    objective jumps as a sample crosses one, and a minimum can lie right there: the gradients on its two sides do not
    vanish, but a combination of them does, which is what stationary means for such functions.
    """
    if not other.sound or np.array_equal(other.x, here.x):
        return np.inf
    gradient = here.gradient / units.sigma
    jump = other.gradient / units.sigma - gradient
    share = np.clip(-(gradient @ jump) / max(jump @ jump, np.finfo(float).tiny), 0, 1)
    both = replace(here, gradient=here.gradient + share * (other.gradient - here.gradient))
    return float(np.linalg.norm(units.projected(bounds, both)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stopping:
    """What the rule remembers.

    - `begun`: whether the lower level was solved at ``x0``; `lower_target`: the size of its gradient to solve it to.
    - `scale`: the first projected gradient.
    - `hits`: small gradients in a row; `failures`: 1 after a failed quasi-Newton step, 2 after one without memory.
    - `done`, `kink`: converged, or at a kink.
    """

    begun: Any
    lower_target: Any
    scale: Any
    hits: Any
    failures: Any
    done: Any
    kink: Any

    @staticmethod
    def of(begun: bool, lower_target: Any, scale: Any, hits: int, failures: int, done: bool, kink: bool) -> "Stopping":
        """From plain numbers: arrays are what is kept of a run."""
        counts, sizes = (np.asarray(n, np.int32) for n in (hits, failures)), (lower_target, scale)
        return Stopping(
            np.asarray(begun), *(np.asarray(a, float) for a in sizes), *counts, np.asarray(done), np.asarray(kink)
        )

    @staticmethod
    def start() -> "Stopping":
        """Before the first step."""
        return Stopping.of(False, 0.0, 0.0, 0, 0, False, False)

    def after(
        self,
        here: Point,
        size: float,
        point: Point,
        refused: Point,
        moved: bool,
        use_memory: bool,
        size_there: float,
        ahead: float,
        across: float,
        curvature: float,
        least: float,
        tolerance: float,
        eps: float,
    ) -> "Stopping":
        """The rule applied to one step; all in scaled units, in which an extent is `least` or more.

        From `here`, with a projected gradient of that `size`, to `point` (where it `moved`), with one of `size_there`;
        `refused` is the last trial that was not taken. `ahead`: the length of the next quasi-Newton step, infinite
        without memory; `across`: the size of the gradient across a possible kink; `curvature`: the least remembered.
        """
        begun = bool(self.begun)
        scale = float(self.scale) if begun else size_there
        extent = max(float(np.linalg.norm(point.x)), least)
        near_enough = eps**_NEAR * extent
        # a refused step nearby shows the curvature: a jump of the gradient, or a bracket around where it vanishes
        toward, rise = refused.x - here.x, float(np.linalg.norm(refused.gradient - here.gradient))
        run = float(np.linalg.norm(toward))
        jumps = run <= eps**_NEXT_TO * extent and rise > _JUMP * run * curvature
        explained = across <= eps**_AT_KINK * scale and across < size * _CLEARLY_LESS
        bracketed = here.gradient @ toward < 0 < refused.gradient @ toward and run <= near_enough
        settled = begun and not moved and refused.sound and bracketed
        small = moved and size_there <= tolerance * scale and ahead <= near_enough
        hits = int(self.hits) + 1 if small else 0
        rounded = moved and (ahead <= _ROUNDED * eps * extent or size_there == 0)
        failed = _FAILED if use_memory else _LAST_FAILED
        return Stopping.of(
            begun=True,
            lower_target=self.lower_target,
            scale=scale,
            hits=hits,
            failures=0 if moved or not begun else failed,
            done=bool(hits >= _HITS or (not moved and self.hits >= 1) or settled or rounded),
            kink=begun and bool(jumps) and bool(explained),
        )

    def found(self) -> Result:
        """The result that the last step led to."""
        if self.done:
            return Result.CONVERGED
        if self.kink:
            return Result.KINK
        return Result.STALLED if self.failures >= _LAST_FAILED else Result.RUNNING
