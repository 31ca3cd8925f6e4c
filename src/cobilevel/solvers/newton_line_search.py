"""The line search of ``Newton``: along the quasi-Newton direction, each trial with the lower level solved."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..derivatives import Ledger
from ..iteration import QuasiNewtonMemory
from ..lower import Point, solve_at
from ..reduction import Bilevel

_TRIALS = 30  # shortened by half or more each, the last is a billionth of the first: shorter ones drown in rounding
_SHORTEN = (0.1, 0.5)  # the least and the most that is kept of a refused step, so that interpolation cannot mislead
_BLIND = 0.25  # what is kept of it where there is nothing to interpolate
_FAIR_SHARE = 1e-4  # of the decrease that the gradient promised (Armijo), the customary constant
_VALUE_ROUNDING = 32  # the noise of the objective, in units of its own precision: it is a long sum
_DROWNED = 1e2  # roundings of the objective, below which a promised decrease cannot be seen in it
_FIRST_STEP = 0.1  # of 1 + |x|: the first step of steepest descent, whose length means nothing by itself
_NEAR_BOUND = 0.5  # exponent of the precision: so close to a bound, relative to 1 + |x|, a coordinate counts as there


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
    reduced: Bilevel, here: Point, size: Float[Array, ""], memory: QuasiNewtonMemory
) -> tuple[Float[Array, " dx"], Bool[Array, " dx"], Bool[Array, ""]]:
    """The direction of the search, its free coordinates, and whether the memory was of use."""
    x, g, eps = here.x, here.gradient, jnp.finfo(here.x.dtype).eps
    near = jnp.minimum(size, eps**_NEAR_BOUND * (1 + jnp.abs(x)))
    free = reduced.problem.bounds.flat().free(x, g, near)
    direction = memory.direction(g, free)
    use_memory = (memory.count > 0) & (direction @ g < 0)
    length = jnp.linalg.norm(g)
    reach = _FIRST_STEP * (1 + jnp.linalg.norm(x)) / jnp.where(length > 0, length, 1)
    steepest = -g * jnp.where(length > 0, reach, 0)
    return jnp.where(use_memory, jnp.where(free, direction, -g), steepest), free, use_memory


def line_search(
    reduced: Bilevel,
    here: Point,
    size: Float[Array, ""],
    memory: QuasiNewtonMemory,
    begun: Bool[Array, ""],
    target: Float[Array, ""],
    ledger: Ledger,
) -> tuple[Trial, Ledger]:
    """The full step first, then shorter ones until the objective falls; where not `begun`, only solves at ``x``.

    `size` is that of the projected gradient, `target` that of the lower gradient at which the lower level is solved.
    """
    x, g, eps = here.x, here.gradient, jnp.finfo(here.x.dtype).eps
    bounds = reduced.problem.bounds.flat()
    direction, free, use_memory = _direction(reduced, here, size, memory)

    def enough(point):
        slope = g @ (point.x - x)
        rounding = _VALUE_ROUNDING * eps * jnp.abs(here.value)
        shorter = jnp.linalg.norm(bounds.projected_gradient(point.x, point.gradient)) < size
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
