r"""Inequalities on ``y`` as a barrier: smooth, finite everywhere, and with a known price.

In place of slacks $s_i \ge 0$ the lower level gets $t \sum_i \varphi(s_i)$, with $\varphi(s) = -\log s$ down to a
floor $\delta$ and the parabola that continues it below. The minimiser is then smooth in ``x`` and the context, and
where its slacks stay above the floor its objective is within $m t$ of the constrained one ($m$ slacks). Below the floor
nothing breaks: any start is allowed, and any solver.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..problem import Problem, Samples

SHARE = 1e-4  # the weight, where none is asked for, in units of curvature times squared distance
UNIT_ROWS = 128  # samples from which units are taken
_PROBES = 64  # directions along which slopes and curvatures are taken; at random where y has more
_STRONGER = 2  # times what is typical: forces that the barrier withstands above its floor
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


class BarrierScales(eqx.Module):
    """What a barrier is measured by, at some samples: their slacks; of each slack the mean square of its slope, and of
    the objective's slope along it; the objective's mean curvature; how far ``y`` lies from its mean, coordinate by
    coordinate."""

    slack: Float[Array, "n m"]
    change: Float[Array, " m"]
    pressed: Float[Array, " m"]
    curvature: Float[Array, ""]
    spread: Float[Array, ""]


@eqx.filter_jit
def scales_at(lower: Any, slack: Any, problem: Problem, rows: Samples, y: Any) -> BarrierScales:
    """At a ``y`` for each sample, flattened; without one, where a step down the slope from ``y0`` leads, of the length
    that the mean curvature suggests."""
    flat, unravel = ravel_pytree(problem.y0)
    size = len(flat)
    directions = size**0.5 * jnp.eye(size, dtype=flat.dtype)  # means of squares along these are exact
    if size > _PROBES:
        directions = jax.random.normal(jax.random.key(0), (_PROBES, size), flat.dtype)
    objective = lambda z, xi, eta: lower(problem.x0, unravel(z), xi, eta)
    slopes = jax.vmap(jax.grad(objective))

    def bend(z, xi, eta):
        along = lambda v: jax.jvp(lambda w: jax.jvp(lambda u: objective(u, xi, eta), (w,), (v,))[1], (z,), (v,))[1]
        return jnp.mean(jax.vmap(along)(directions)) / size

    if y is None:
        start = jnp.broadcast_to(flat, (len(rows), size))
        first = jnp.mean(jax.vmap(bend)(start, rows.xi, rows.eta))
        y = start - jnp.where(first > 0, slopes(start, rows.xi, rows.eta) / jnp.where(first > 0, first, 1), 0)

    def of_slack(z, slope, xi, eta):
        h = lambda w: slack(problem.x0, unravel(w), xi, eta)
        change = jax.vmap(lambda v: jax.jvp(h, (z,), (v,))[1])(directions)
        return h(z), jnp.mean(change**2, axis=0), jax.jvp(h, (z,), (slope,))[1] ** 2

    here, change, pressed = jax.vmap(of_slack)(y, slopes(y, rows.xi, rows.eta), rows.xi, rows.eta)
    spread = jnp.sqrt(jnp.mean((y - jnp.mean(y, axis=0)) ** 2))
    mean = lambda table: jnp.mean(table, axis=0)
    return BarrierScales(here, mean(change), mean(pressed), jnp.mean(jax.vmap(bend)(y, rows.xi, rows.eta)), spread)


def smoothing_from(found: BarrierScales, names: Sequence[str], share: float, length: float | None = None) -> Smoothing:
    """The barrier in these units; `length` in place of the spread of ``y``.

    The length is how far the policy varies; where it does not, how far it is from its constraints. Forces are the
    objective's slope along each constraint, and its curvature over that length.
    """
    change, pressed = (np.asarray(part, float) for part in (found.change, found.pressed))
    units = np.sqrt(change)
    for k, name in enumerate(names):
        if not np.isfinite(units[k]) or units[k] <= 0:
            raise ValueError(
                f"constraints: {name} does not change with y around the start, or gives NaN there, so no choice of y "
                "can meet it. Check its function, or start from another y0."
            )
    curvature = max(float(found.curvature), 0.0)
    length = length_of(found, share) if length is None else length
    stiff = curvature * length**2 or length * float(np.sqrt(np.max(pressed / change))) or 1.0
    strength = _STRONGER * (np.sqrt(pressed) / units + stiff / length)
    weight, width = share * stiff, float(np.sqrt(share)) * length
    return Smoothing(np.asarray(weight), weight / strength, units, np.asarray(width), np.asarray(share))


def length_of(found: BarrierScales, share: float) -> float:
    """How far the policy varies; where it does not, how far it could move; else 1.

    That is how far it is from its constraints or, where it lies at one, how far the objective presses on: at most to
    the next constraint. Along a constraint that binds at every context a barrier makes a policy vary by its share of
    that distance: so little is no variation.
    """
    spread, change, curvature = (np.asarray(part, float) for part in (found.spread, found.change, found.curvature))
    gaps = np.sort(np.abs(np.asarray(found.slack, float) / np.sqrt(change)), axis=1)
    nearest, next_one = gaps[:, 0], gaps[:, 1] if gaps.shape[1] > 1 else np.inf
    pressed = np.sqrt(np.max(np.asarray(found.pressed, float) / change))
    room = np.maximum(nearest, np.minimum(next_one, pressed / curvature if curvature > 0 else np.inf))
    room = room[np.isfinite(room)]
    typical = float(np.median(room)) if room.size else 0.0
    return (float(spread) if spread > share * typical else typical) or 1.0
