"""``RSVRB``: variance reduction on gradient, Hessian and hypergradient, for one block (Guo et al. 2021)."""

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .. import trees
from ..derivatives import Factored, hypergradient, oracles
from ..iteration import Schedule, Stochastic, storm, traced
from ..programs import program
from .parts import check_matrices, floor_spectrum, recursive_schedules


class RSVRB(Stochastic):
    r"""Recursive momentum on the lower gradient $p$, the lower Hessian $H$ (a matrix, kept above $\mu$) and $q$:

    $$H_k = P_{\succeq \mu}\big[\partial_{22} g_\Phi(z_k) + (1-a)(H_{k-1} - \partial_{22} g_\Phi(z_{k-1}))\big], \qquad
    q_k = G(z_k, H_k) + (1-a)(q_{k-1} - G(z_{k-1}, H_{k-1})),$$
    $$G(z, H) = \partial_1 f_\Phi - \partial_{12} g_\Phi H^{-1} \partial_2 f_\Phi, \qquad
    W_{k+1} = W_k - \beta p_k, \qquad x_{k+1} = P[x_k - \alpha q_k].$$

    The solver of the paper's complexity theorem; published for many lower-level blocks of which one is drawn in each
    step, here for the one block of the reduced problem. It stores matrices of size ``(N d_y)^2``; refused where they
    would not fit.

    **Arguments**, besides those of every stochastic solver: `momentum` $a$, by default $\propto k^{-2/3}$; `convex`
    $\mu$, by default half the measured one.

    Reference: Z. Guo, Q. Hu, L. Zhang, T. Yang, Randomized stochastic variance-reduced methods for multi-task
    stochastic bilevel optimization, arXiv:2105.02266, 2021.
    """

    schedules = ("inner", "outer", "momentum", "convex")

    momentum: Schedule = eqx.field(converter=traced, default=None)
    convex: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        return {**recursive_schedules(scales), "convex": scales.convex / 2}

    def prepare(self, reduced):
        check_matrices(reduced, "RSVRB", 5)  # two estimates, their factors, and the Hessian of the batch
        return reduced

    @program
    def begin(self, reduced, start, ledger):
        flat, _ = oracles.flatten(start.W)
        identity = jnp.eye(flat.size, dtype=flat.dtype)
        nothing = (trees.zeros(flat), identity, trees.zeros(ravel_pytree(reduced.x0)[0]))
        return (reduced.x0, start.W, nothing), ledger

    def update(self, reduced, s, draw, rate):
        x_old, W_old, (slope_old, hessian_old, gradient_old) = s.memory
        # one lower batch for both uses would bias their product
        for_model, for_cross, for_upper = draw.lower(), draw.lower(), draw.upper()
        weight = jnp.where(s.step == 0, 1, rate.momentum)
        (_, slope, hessian), ledger = oracles.lower_model(reduced, s.x, s.W, for_model, s.ledger)
        (_, slope_then, hessian_then), ledger = oracles.lower_model(reduced, x_old, W_old, for_model, ledger)
        slope, hessian = storm((slope_old, hessian_old), (slope, hessian), (slope_then, hessian_then), weight)
        hessian, solve = floor_spectrum(hessian, rate.convex)
        _, solve_old = floor_spectrum(hessian_old, rate.convex)
        _, unflatten = oracles.flatten(s.W)

        def estimate(x, W, solve, ledger):
            linear, unused = Factored(solve), lambda _: for_cross
            value, outer, _, ledger = hypergradient(reduced, x, W, for_upper, for_cross, linear, unused, ledger)
            return value, ravel_pytree(outer)[0], ledger

        value, here, ledger = estimate(s.x, s.W, solve, ledger)
        _, there, ledger = estimate(x_old, W_old, solve_old, ledger)
        gradient = storm(gradient_old, here, there, weight)
        W = trees.step(s.W, rate.inner, unflatten(slope))
        direction, memory = ravel_pytree(s.x)[1](gradient), (s.x, s.W, (slope, hessian, gradient))
        return self.move(reduced, s, value, direction, rate.outer, W=W, memory=memory, ledger=ledger)
