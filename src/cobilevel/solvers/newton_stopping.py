r"""The stopping rule of ``Newton``: converged, at a kink, or stalled.

Lengths are relative to the extent of ``x``, gradients to the first one. With $\epsilon$ the precision, a run has
converged where the projected gradient is below the tolerance and the next quasi-Newton step would be shorter than
$\epsilon^{1/2}$, twice in a row, so that curvature from before does not mislead; where a refused step as short brackets
a zero of the gradient; or where the next step is mere rounding. Where no curvature was seen, the length of the next
step is not known, and none of this is said. A run that comes from far begins anew on arrival (``Units.left_behind``):
the first gradient, and the curvature along the way, say nothing of where it is.
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..answer import Result
from ..lower import Point
from ..reduction import Bilevel
from .newton_line_search import Trial
from .newton_units import Units

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


def kink_size(reduced: Bilevel, units: Units, here: Point, other: Point) -> Float[Array, ""]:
    """The shortest projected combination of the gradients here and at a refused point.

    Where ``g`` has kinks in its second derivative (penalties such as ``max(y, 0)^2`` do), the gradient of the reduced
    objective jumps as a sample crosses one, and a minimum can lie right there: the gradients on its two sides do not
    vanish, but a combination of them does, which is what stationary means for such functions.
    """
    gradient, jump = here.gradient, other.gradient - here.gradient
    share = jnp.clip(-(gradient @ jump) / jnp.maximum(jump @ jump, jnp.finfo(jump.dtype).tiny), 0, 1)
    size = jnp.linalg.norm(units.projected(reduced, replace(here, gradient=gradient + share * jump)))
    return jnp.where(other.sound & jnp.any(other.x != here.x), size, jnp.inf)


class Outlook(eqx.Module):
    """What a step showed: the `size` of the projected gradient it led to, the length `ahead` of the next quasi-Newton
    step (infinite without memory), the size `across` a possible kink, and the least `curvature` remembered before."""

    size: Float[Array, ""]
    ahead: Float[Array, ""]
    across: Float[Array, ""]
    curvature: Float[Array, ""]


class Stopping(eqx.Module):
    """What the rule remembers.

    - `begun`: whether the lower level was solved at ``x0``; `lower_target`: the size of its gradient to solve it to.
    - `scale`: the first projected gradient.
    - `hits`: small gradients in a row; `failures`: 1 after a failed quasi-Newton step, 2 after one without memory.
    - `done`, `kink`: converged, or at a kink.
    """

    begun: Bool[Array, ""]
    lower_target: Float[Array, ""]
    scale: Float[Array, ""]
    hits: Int[Array, ""]
    failures: Int[Array, ""]
    done: Bool[Array, ""]
    kink: Bool[Array, ""]

    @staticmethod
    def start(x: Float[Array, " dx"], lower_target: Float[Array, ""]) -> "Stopping":
        """Before the first step."""
        no, none, zero = jnp.asarray(False), jnp.int32(0), jnp.zeros((), x.dtype)
        return Stopping(no, lower_target, zero, none, none, no, no)

    def after(
        self,
        here: Point,
        size: Float[Array, ""],
        trial: Trial,
        seen: Outlook,
        least: Float[Array, ""],
        tolerance: Float[Array, ""],
    ) -> "Stopping":
        """The rule applied to one step, from a point with a projected gradient of that size; all in
        scaled units, in which an extent is `least` or more."""
        point, refused, moved, eps = trial.point, trial.refused, trial.moved, jnp.finfo(here.x.dtype).eps
        scale = jnp.where(self.begun, self.scale, seen.size)
        extent = jnp.maximum(jnp.linalg.norm(point.x), least)
        near_enough = eps**_NEAR * extent
        # a refused step nearby shows the curvature: a jump of the gradient, or a bracket around where it vanishes
        toward, rise = refused.x - here.x, jnp.linalg.norm(refused.gradient - here.gradient)
        run = jnp.linalg.norm(toward)
        jumps = (run <= eps**_NEXT_TO * extent) & (rise > _JUMP * run * seen.curvature)
        explained = (seen.across <= eps**_AT_KINK * scale) & (seen.across < size * _CLEARLY_LESS)
        bracketed = (here.gradient @ toward < 0) & (refused.gradient @ toward > 0) & (run <= near_enough)
        settled = self.begun & ~moved & refused.sound & bracketed
        small = moved & (seen.size <= tolerance * scale) & (seen.ahead <= near_enough)
        hits = jnp.where(small, self.hits + 1, 0)
        rounded = moved & ((seen.ahead <= _ROUNDED * eps * extent) | (seen.size == 0))
        failed = jnp.where(trial.use_memory, _FAILED, _LAST_FAILED)
        return Stopping(
            begun=jnp.asarray(True),
            lower_target=self.lower_target,
            scale=scale,
            hits=hits,
            failures=jnp.where(moved | ~self.begun, 0, failed).astype(jnp.int32),
            done=(hits >= _HITS) | ~moved & (self.hits >= 1) | settled | rounded,
            kink=self.begun & jumps & explained,
        )

    def found(self) -> Int[Array, ""]:
        """The code of the result that the last step led to."""
        stalled = jnp.where(self.failures >= _LAST_FAILED, Result.STALLED.code, Result.RUNNING.code)
        other = jnp.where(self.kink, Result.KINK.code, stalled)
        return jnp.where(self.done, Result.CONVERGED.code, other)
