"""The line search of ``Newton``: along the quasi-Newton direction, each trial with the lower level solved."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..derivatives import Ledger
from ..iteration import QuasiNewtonMemory
from ..lower import Point, solve_at
from ..reduction import Bilevel
from .newton_units import Units, largest_size

_TRIALS = 30  # shortened by half or more each, the last is a billionth of the first: shorter ones drown in rounding
_SHORTEN = (0.1, 0.5)  # the least and the most that is kept of a refused step, so that interpolation cannot mislead
_BLIND = 0.25  # what is kept of it where there is nothing to interpolate
_FAIR_SHARE = 1e-4  # of the decrease that the gradient promised (Armijo), the customary constant
_VALUE_ROUNDING = 32  # the noise of the objective, in units of its own precision: it is a long sum
_DROWNED = 1e2  # roundings of the objective, below which a promised decrease cannot be seen in it
_FIRST_STEP = 0.5  # of the spread of the objective: the first step of steepest descent; the next knows curvature
_GROWTH_OF_STEPS = 4  # times the step before, where that has shown no positive curvature
_NEAR_BOUND = 0.5  # exponent of the precision: so close to a bound, relative to its size, a coordinate counts as there


class Trial(eqx.Module):
    """Where a line search ended: the last point tried, the last one refused, and whether the former is taken.

    `free` are the coordinates along which the quasi-Newton direction went, `use_memory` whether it was taken at all.
    """

    point: Point
    refused: Point
    moved: Bool[Array, ""]
    free: Bool[Array, " dx"]
    use_memory: Bool[Array, ""]


def _direction(
    reduced: Bilevel, here: Point, size: Float[Array, ""], memory: QuasiNewtonMemory, units: Units
) -> tuple[Float[Array, " dx"], Bool[Array, " dx"], Bool[Array, ""]]:
    """The direction of the search, its free coordinates, and whether the memory was of use; all in the units given."""
    x, g, eps = here.x, here.gradient, jnp.finfo(here.x.dtype).eps
    near = jnp.minimum(size * units.spread, eps**_NEAR_BOUND * (units.spread + jnp.abs(x)))
    free = units.bounds(reduced).free(x, g, near)
    direction = memory.direction(g, free)
    use_memory = memory.bends(free) & (direction @ g < 0)
    length = jnp.linalg.norm(g)
    last = jnp.where(memory.count > 0, jnp.linalg.norm(memory.steps[0]), 0)
    reach = jnp.maximum(_FIRST_STEP * units.spread, _GROWTH_OF_STEPS * last)
    reach = jnp.maximum(reach, eps**_NEAR_BOUND * largest_size(x))  # shorter ones would hardly change x
    steepest = -g * jnp.where(length > 0, reach / jnp.where(length > 0, length, 1), 0)
    along = direction @ g / jnp.where(length > 0, g @ g, 1)  # the fixed coordinates go as far as the others
    return jnp.where(use_memory, jnp.where(free, direction, along * g), steepest), free, use_memory


def line_search(
    reduced: Bilevel,
    here: Point,
    size: Float[Array, ""],
    memory: QuasiNewtonMemory,
    units: Units,
    begun: Bool[Array, ""],
    target: Float[Array, ""],
    ledger: Ledger,
) -> tuple[Trial, Ledger]:
    """The full step first, then shorter ones until the objective falls; where not `begun`, only solves at ``x``.

    `size` is that of the projected gradient, `target` that of the lower gradient at which the lower level is solved.
    Points are in units of the problem, the memory and `size` in those given.
    """
    x, g, eps = here.x, here.gradient, jnp.finfo(here.x.dtype).eps
    bounds = reduced.problem.bounds.flat()
    direction, free, use_memory = _direction(reduced, units.scaled(here), size, memory, units)
    direction = direction / units.sigma

    def enough(point):
        slope = g @ (point.x - x)
        rounding = _VALUE_ROUNDING * eps * jnp.abs(here.value)
        shorter = jnp.linalg.norm(units.projected(reduced, units.scaled(point))) < size
        drowned = (-slope <= _DROWNED * rounding) & (point.value <= here.value + rounding) & shorter
        lower = (point.value <= here.value + _FAIR_SHARE * slope) & (slope < 0) | drowned
        return point.sound & (lower | ~begun)

    def unfinished(carry):
        _, _, point, _, count = carry
        return ~enough(point) & (count < jnp.where(begun, _TRIALS, 1))

    def try_next(carry):
        length, _, point, ledger, count = carry
        slope = g @ (point.x - x)
        excess = point.value - here.value - slope
        best = jnp.where(point.sound & (excess > 0), -slope / (2 * excess), _BLIND)  # the parabola's minimum
        length = jnp.where(count == 0, 1, length * jnp.clip(best, *_SHORTEN))
        trial = bounds.project(x + length * direction)
        return length, point, *solve_at(reduced, trial, here.W, target, ledger), count + 1

    start = (jnp.ones((), x.dtype), here, here, ledger, jnp.int32(0))
    _, before, point, ledger, _ = jax.lax.while_loop(unfinished, try_next, start)
    moved = enough(point)
    refused = jax.tree.map(lambda a, b: jnp.where(moved, a, b), before, point)
    return Trial(point, refused, moved, free, use_memory), ledger
