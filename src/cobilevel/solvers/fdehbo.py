"""``FdeHBO``: recursive momentum without Hessians or Jacobians (Yang, Xiao, Ji 2023)."""

import equinox as eqx
import jax.numpy as jnp

from .. import trees
from ..derivatives import Directions, oracles
from ..iteration import Schedule, Stochastic, at, check_schedule, storm, traced
from ..programs import arithmetic
from .parts import no_directions, recursive_schedules


class FdeHBO(Stochastic):
    r"""The three directions of ``SOBA`` with both products by central differences of first derivatives,

    $$\partial_{22} g_\Phi v \approx
    \frac{\partial_2 g_\Phi(x, W + \delta v) - \partial_2 g_\Phi(x, W - \delta v)}{2\delta},
    \qquad \partial_{12} g_\Phi v \approx \frac{\partial_1 g_\Phi(x, W + \delta v) - \partial_1 g_\Phi(x, W - \delta
    v)}{2\delta},$$
    recursive momentum on all three, and ``v`` projected onto a ball.

    **Arguments**, besides those of every stochastic solver: `linear`, the step of the linear system; `momentum`, by
    default $\propto k^{-2/3}$; `difference`, $\delta |v|$ relative to $1 + |W|$, by default the cube root of the
    precision; `radius` of the ball, by default ten times the largest adjoint the measured scales allow.

    Reference: Y. Yang, P. Xiao, K. Ji, Achieving O(eps^-1.5) complexity in Hessian/Jacobian-free stochastic bilevel
    optimization, NeurIPS 2023.
    """

    schedules = ("inner", "linear", "outer", "momentum", "radius")

    linear: Schedule = eqx.field(converter=traced, default=None)
    momentum: Schedule = eqx.field(converter=traced, default=None)
    radius: Schedule = eqx.field(converter=traced, default=None)
    difference: Schedule = eqx.field(converter=traced, default=None)

    def __check_init__(self):
        check_schedule("FdeHBO: difference", self.difference)

    def defaults(self, scales):
        rates = recursive_schedules(scales, 0.5)
        radius = 10 * arithmetic(scales).maximum(scales.pull, scales.steep) / scales.convex
        return {**rates, "linear": rates["inner"], "radius": radius}

    def begin(self, reduced, start, ledger):
        return no_directions(reduced, start), ledger

    def update(self, reduced, s, draw, rate):
        v, before, estimate = s.memory
        upper, lower, eps = draw.upper(), draw.lower(), jnp.finfo(s.dtype).eps
        share = eps ** (1 / 3) if self.difference is None else at(self.difference, s.step, s.dtype)

        def toward(x, W, v, ledger):
            (value, d1, d2), ledger = oracles.upper_gradients(reduced, x, W, upper, ledger)
            slope, ledger = oracles.lower_gradient(reduced, x, W, lower, ledger)
            delta = share * (1 + trees.norm(W)) / jnp.maximum(trees.norm(v), eps)
            ahead, ledger = oracles.lower_gradients(reduced, x, trees.step(W, -delta, v), lower, ledger)
            behind, ledger = oracles.lower_gradients(reduced, x, trees.step(W, delta, v), lower, ledger)
            cross, product = trees.scale(1 / (2 * delta), trees.sub(ahead, behind))
            return value, Directions.of((d1, d2), (slope, product, cross)), ledger

        value, new, ledger = toward(s.x, s.W, v, s.ledger)
        _, old, ledger = toward(*before, ledger)
        estimate = storm(estimate, new, old, jnp.where(s.step == 0, 1, rate.momentum))
        W = trees.step(s.W, rate.inner, estimate.lower)
        z = trees.clip_norm(trees.step(v, rate.linear, estimate.linear), rate.radius)
        memory = (z, (s.x, s.W, v), estimate)
        return self.move(reduced, s, value, estimate.outer, rate.outer, W=W, memory=memory, ledger=ledger)
