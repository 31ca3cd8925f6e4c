r"""The stopping rule of ``Newton``: converged, at a kink, or stalled.

Lengths are relative to the extent of ``x``, gradients to the first one. With $\epsilon$ the precision, a run has
converged where the projected gradient is below the tolerance and the next quasi-Newton step would be shorter than
$\epsilon^{1/2}$, twice in a row, so that curvature from before does not mislead; where a refused step as short brackets
a zero of the gradient; or where the next step is mere rounding, of ``x`` or, twice in a row without the gradient
falling, of the objective. Where no curvature was seen, the length of the next step is not known, and none of this is
said. A run that comes from far begins anew on arrival (``Units.after``): the first gradient, and the curvature along
the way, say nothing of where it is.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from ..derivatives import Expansions
from ..iteration import ROUNDINGS, Result
from ..lower import Point, solve_at
from .newton_units import Units

_NEXT_TO = 0.55  # exponent of the precision: a step so short that smooth curvature cannot pass for a jump
_JUMP = 30  # times the least curvature in memory: no smooth function seen so far changes its gradient as fast


@dataclass(frozen=True)
class Trial:
    """Where a line search ended.

    `point`: the last one tried, which is the next iterate where the search `moved`; `refused`: the last that was not
    taken; `free`: the coordinates of the quasi-Newton direction; `use_memory`: whether the search was along it.
    """

    point: Point
    refused: Point
    moved: bool
    free: Bool[np.ndarray, " dx"]
    use_memory: bool


def kink_size(at: Expansions, units: Units, here: Point, other: Point) -> float:
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
    return units.projected(at, replace(here, gradient=here.gradient + share * (other.gradient - here.gradient)))


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
    def start() -> "Stopping":
        """Before the first step."""
        return Stopping(*map(np.asarray, (False, 0.0, 0.0, np.int32(0), np.int32(0), False, False)))

    def after(
        self,
        at: Expansions,
        units: Units,
        here: Point,
        size: float,
        trial: Trial,
        ahead: float,
        curvature: float,
        tolerance: float,
    ) -> tuple["Stopping", float]:
        """The rule applied to one step, and the size of the gradient after it.

        From `here`, with a projected gradient of that `size`. `ahead`: the length of the next quasi-Newton step,
        infinite where it is not known; `curvature`: the least remembered.
        """
        begun, moved, point, refused, eps = bool(self.begun), trial.moved, trial.point, trial.refused, at.eps
        there, across = units.projected(at, point), kink_size(at, units, here, refused)
        scale = float(self.scale) if begun else there
        extent = max(float(np.linalg.norm(point.x * units.sigma)), units.extent)
        near = np.sqrt(eps) * extent  # half the digits of x, all that an objective in full precision determines
        # a refused step nearby shows the curvature: a jump of the gradient, or a bracket around where it vanishes
        toward, rise = refused.x - here.x, np.linalg.norm((refused.gradient - here.gradient) / units.sigma)
        length = float(np.linalg.norm(toward * units.sigma))
        jumps = length <= eps**_NEXT_TO * extent and rise > _JUMP * length * curvature
        explained = across <= np.sqrt(eps) * scale and across < size / 2  # half the digits, and clearly less
        if begun and jumps and explained:  # of a jump one half of the way shows all, of smooth curvature half
            middle = solve_at(at, (here.x + refused.x) / 2, refused.W, float(self.lower_target))
            halves = [np.linalg.norm((middle.gradient - end.gradient) / units.sigma) for end in (here, refused)]
            jumps = bool(max(halves) > 0.9 * rise)
        bracketed = here.gradient @ toward < 0 < refused.gradient @ toward and length <= near
        settled = begun and not moved and refused.sound and bracketed
        # what a step promises is rounding of the objective, which does not jump, and the gradient does not fall either
        promised, jump = abs(here.gradient @ (point.x - here.x)), refused.value - here.value
        noise = ROUNDINGS * eps * abs(here.value)
        floor = begun and moved and promised <= noise and jump <= noise / np.sqrt(eps) and there > size / 2
        small = moved and (floor or (there <= tolerance * scale and ahead <= near))
        rounded = moved and (ahead <= ROUNDINGS * eps * extent or there == 0)
        kink = begun and jumps and explained
        after = replace(
            self,
            begun=True,
            scale=scale,
            hits=self.hits + 1 if small else 0,
            failures=0 if moved or not begun else 1 if trial.use_memory else 2,
            done=(self.hits > 0 and (small or not moved)) or settled or rounded,
            kink=kink,
        )
        return after, across if kink else there if moved else size

    def verdict(self) -> Result:
        """The result that the last step led to."""
        if self.done:
            return Result.CONVERGED
        if self.kink:
            return Result.KINK
        return Result.STALLED if self.failures > 1 else Result.RUNNING
