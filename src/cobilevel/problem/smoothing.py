r"""Inequalities on ``y`` as a barrier: smooth, finite everywhere, and with a known price.

In place of slacks $s_i \ge 0$ the lower level gets $t \sum_i \varphi(s_i)$, with $\varphi(s) = -\log s$ down to a
floor $\delta$ and the parabola that continues it below. The minimiser is then smooth in ``x`` and the context, and
where its slacks stay above the floor its objective is within $m t$ of the constrained one ($m$ slacks). Below the floor
nothing breaks: any start is allowed, and any solver.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..programs import program
from .data import Samples
from .problem import Problem

SHARE = 1e-4  # the weight, where none is asked for, in units of curvature times squared distance
_UNIT_ROWS = 256  # samples from which units are taken
_PROBES = 64  # directions along which slopes and curvatures are taken; at random where y has more
_STRONGER = 1  # times what typical samples show: forces of the objective that the barrier withstands above its floor
_BROAD = 1e100  # slacks beyond count as none


class Smoothing(eqx.Module):
    """The barrier's numbers.

    - `weight`: $t$, in units of the lower objective; `share`: the same in units of its own curvature times the squared
      distance over which ``y`` moves, so that it has no units.
    - `units`: by how much each slack changes over a unit of ``y``; `floor`: $\\delta$ of each, in units of ``y``.
    - `width`: the slack, in units of ``y``, below which a constraint counts as active: about the distance over which
      the barrier rounds off a corner of the policy.
    """

    weight: Any
    floor: Any
    units: Any
    width: Any
    share: Any

    def barrier(self, slack: Float[Array, " m"]) -> Float[Array, ""]:
        """The barrier at these slacks, zero where each is at the floor."""
        s = jnp.minimum(slack / self.units.astype(slack.dtype), _BROAD) / jnp.asarray(self.floor, slack.dtype)
        inside = s > 1
        below = jnp.where(inside, 0, s - 1)
        terms = jnp.where(inside, -jnp.log(jnp.where(inside, s, 1)), below * (below / 2 - 1))
        return jnp.asarray(self.weight, slack.dtype) * jnp.sum(terms)

    def to_json(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            name: np.asarray(getattr(self, name)).tolist() for name in ("weight", "floor", "units", "width", "share")
        }

    @staticmethod
    def from_json(entry: dict[str, Any]) -> "Smoothing":
        """The inverse of ``to_json``."""
        return Smoothing(**{name: np.asarray(value, float) for name, value in entry.items()})

    @property
    def price(self) -> float:
        """By how much the lower objective may lie above the constrained minimum, at most."""
        return float(self.weight) * len(self.units)

    def sharper(self, factor: float) -> "Smoothing":
        """The same barrier with its weight divided by a factor."""
        new = (self.weight / factor, self.floor / factor, self.width / factor**0.5)
        return replace(self, weight=new[0], floor=new[1], width=new[2], share=self.share / factor)


@program
def _slopes_at_start(lower: Any, slack: Any, problem: Problem, rows: Samples, key: Array) -> tuple[Array, ...]:
    """At the start: slacks; mean squares of their slopes; of the objective's slope; its mean curvature; mean squares of
    the objective's slope along each constraint's, times its length."""
    flat, unravel = ravel_pytree(problem.y0)
    directions = len(flat) ** 0.5 * jnp.eye(len(flat), dtype=flat.dtype)  # means of squares along these are exact
    if len(flat) > _PROBES:
        directions = jax.random.normal(key, (_PROBES, len(flat)), flat.dtype)

    def along(direction, xi, eta):
        step = unravel(direction)
        g = lambda y: lower(problem.x0, y, xi, eta)
        h = lambda y: slack(problem.x0, y, xi, eta)
        slope = lambda y: jax.jvp(g, (y,), (step,))[1]
        first, second = jax.jvp(slope, (problem.y0,), (step,))
        here, change = jax.jvp(h, (problem.y0,), (step,))
        pressed = jax.jvp(h, (problem.y0,), (jax.grad(g)(problem.y0),))[1]
        return here, change**2, first**2, second / len(flat), pressed**2

    each = jax.vmap(jax.vmap(along, in_axes=(None, 0, 0)), in_axes=(0, None, None))
    here, change, first, second, pressed = each(directions, rows.xi, rows.eta)
    both = lambda table: jnp.mean(table, axis=(0, 1))
    return here[0], both(change), jnp.mean(first), jnp.mean(second), jnp.mean(pressed[0], axis=0)


def smoothing_for(lower: Any, slack: Any, names: list[str], problem: Problem, rows: Samples, share: float) -> Smoothing:
    """The barrier in units that the problem itself shows at its start.

    Lengths are those that slacks, or a Newton step, have there; forces are the objective's slope and its curvature over
    such a length, times a few.
    """
    rows = rows.rows(slice(0, _UNIT_ROWS))
    found = _slopes_at_start(lower, slack, problem, rows, jax.random.key(0))
    here, change, slope, curvature, pressed = (np.asarray(part, float) for part in found)
    units = np.sqrt(change)
    for k, name in enumerate(names):
        if not np.isfinite(units[k]) or units[k] <= 0:
            raise ValueError(
                f"constraints: {name} does not change with y at the start, or gives NaN, so no choice of y can meet "
                "it. Check its function, or start from another y0."
            )
    force, curvature = float(np.sqrt(slope)), max(float(curvature), 0.0)
    distances = np.abs(here / units)
    distances = distances[np.isfinite(distances) & (distances < _BROAD)]
    length = float(np.median(distances)) if distances.size else 0.0
    single = force / problem.sizes[1] ** 0.5  # along one coordinate
    length = max(length, single / curvature if curvature > 0 else 0.0) or 1.0
    stiff = curvature * length**2 if curvature > 0 else force * length
    weight = share * (stiff or 1.0)
    strength = _STRONGER * (np.sqrt(pressed) / units + stiff / length)
    floor = weight / np.where(strength > 0, strength, 1.0)
    width = float(np.sqrt(share)) * length
    return Smoothing(np.asarray(weight), floor, units, np.asarray(width), np.asarray(share))
