"""``STABLE``: single timescale, with tracked second derivatives (Chen, Sun, Xiao, Yin 2022)."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .. import trees
from ..derivatives import oracles, outer_direction, sensitivity
from ..iteration import Schedule, Stochastic, storm, traced
from ..programs import program
from .parts import Previous, check_matrices, floor_spectrum


class STABLE(Stochastic):
    r"""Estimates of both second derivatives are tracked by recursive momentum, and projected:

    $$H_k = P_{\succeq \mu}\big[\partial_{22} g_\Phi(z_k; S) +
    (1-\tau)(H_{k-1} - \partial_{22} g_\Phi(z_{k-1}; S))\big], \qquad
    J_k = \partial_{12} g_\Phi(z_k; S) + (1-\tau)(J_{k-1} - \partial_{12} g_\Phi(z_{k-1}; S)),$$
    $$x_{k+1} = P\big[x_k - \alpha (\partial_1 f_\Phi - J_k H_k^{-1} \partial_2 f_\Phi)\big], \qquad
    W_{k+1} = W_k - \beta\, \partial_2 g_\Phi - H_k^{-1} J_k^T (x_{k+1} - x_k) .$$

    The last term moves ``W`` along with ``x``, so both levels can take steps on the same scale. The matrices have size
    ``(N d_y)^2`` and ``d_x N d_y``; refused where they would not fit. (The published projection of $J_k$ onto a norm
    ball only guards its proof, and needs a constant no user knows; it is left out.)

    **Arguments**, besides those of every stochastic solver: `momentum` $\tau$; `convex` $\mu$, by default half the
    measured one.

    Reference: T. Chen, Y. Sun, Q. Xiao, W. Yin, A single-timescale method for stochastic bilevel optimization, AISTATS
    2022.
    """

    schedules = ("inner", "outer", "momentum", "convex")

    momentum: Schedule = eqx.field(converter=traced, default=None)
    convex: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        return {"inner": scales.inner, "outer": scales.outer(10), "momentum": 0.1, "convex": scales.convex / 2}

    def prepare(self, reduced):
        check_matrices(reduced, "STABLE", 3)  # the estimate, its factors, and the Hessian of the batch
        return reduced

    @program
    def begin(self, reduced, start, ledger):
        count, x = oracles.flatten(start.W)[0].size, ravel_pytree(reduced.x0)[0]
        zeros = jnp.zeros((count, count), x.dtype), jnp.zeros((x.size, count), x.dtype)
        return Previous(reduced.x0, start.W, zeros), ledger

    def update(self, reduced, s, draw, rate):
        batch, ledger = draw.lower(), s.ledger

        def second(x, W, ledger):
            (_, slope, hessian), ledger = oracles.lower_model(reduced, x, W, batch, ledger)
            cross, ledger = oracles.cross_matrix(reduced, x, W, batch, ledger)
            return slope, (hessian, cross), ledger

        slope, here, ledger = second(s.x, s.W, ledger)
        _, there, ledger = second(s.memory.x, s.memory.W, ledger)
        weight = jnp.where(s.step == 0, 1, rate.momentum)
        hessian, cross = storm(s.memory.estimates, here, there, weight)
        hessian, solve = floor_spectrum(hessian, rate.convex)
        (value, d1, d2), ledger = oracles.upper_gradients(reduced, s.x, s.W, draw.upper(), ledger)
        flat, unravel = ravel_pytree(d1)
        direction = unravel(outer_direction(flat, cross @ solve(oracles.flatten(d2)[0])))
        after = self.move(reduced, s, value, direction, rate.outer)
        moved = ravel_pytree(trees.sub(after.x, s.x))[0]
        W, unflatten = oracles.flatten(s.W)
        W = unflatten(W - rate.inner * slope + sensitivity(solve, cross.T @ moved))
        return replace(after, W=W, memory=Previous(s.x, s.W, (hessian, cross)), ledger=ledger)
