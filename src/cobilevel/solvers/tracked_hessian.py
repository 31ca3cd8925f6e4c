"""Tracked second derivatives, kept as matrices: ``STABLE`` and ``RSVRB``."""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..derivatives import Factored, hypergradient, oracles, outer_direction, sensitivity
from ..ground import fits, program, trees
from ..iteration import Schedule, Stochastic, storm, traced
from .parts import Previous, recursive_schedules


def floor_spectrum(
    matrix: Float[Array, "n n"], least: Float[Array, ""]
) -> tuple[Float[Array, "n n"], Callable[[Array], Array]]:
    """The nearest symmetric matrix with no eigenvalue below `least`, and the solve with it."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.maximum(values, least)
    return (vectors * values) @ vectors.T, lambda right: vectors @ ((vectors.T @ right) / values)


class TrackedHessian(Stochastic):
    r"""Keeps estimates of the lower Hessian as matrices, above a curvature `convex` $\mu$ (by default half the measured
    one), by recursive momentum; raises if they do not fit in memory."""

    schedules = ("inner", "outer", "momentum", "convex")
    matrices: ClassVar[int]  # how many are held at one time

    momentum: Schedule = eqx.field(converter=traced, default=None)
    convex: Schedule = eqx.field(converter=traced, default=None)

    def prepare(self, reduced):
        size, name = sum(leaf.size for leaf in jax.tree.leaves(reduced.W0)), type(self).__name__
        held = self.matrices * size**2 * reduced.dtype.itemsize
        fits(name, f"matrices of {size} x {size} coefficients", held, "SOBA or SPABA")
        return super().prepare(reduced)


class STABLE(TrackedHessian):
    r"""Estimates of both second derivatives are tracked by recursive momentum, and projected:

    $$H_k = P_{\succeq \mu}\big[\partial_{22} g_\Phi(z_k; S) +
    (1-\tau)(H_{k-1} - \partial_{22} g_\Phi(z_{k-1}; S))\big], \qquad
    J_k = \partial_{12} g_\Phi(z_k; S) + (1-\tau)(J_{k-1} - \partial_{12} g_\Phi(z_{k-1}; S)),$$
    $$x_{k+1} = P\big[x_k - \alpha (\partial_1 f_\Phi - J_k H_k^{-1} \partial_2 f_\Phi)\big], \qquad
    W_{k+1} = W_k - \beta\, \partial_2 g_\Phi - H_k^{-1} J_k^T (x_{k+1} - x_k) .$$

    The last term moves ``W`` along with ``x``, so both levels can take steps on the same scale. The matrices have size
    ``(N d_y)^2`` and ``d_x N d_y``; raises if they do not fit in memory. (The published projection of $J_k$ onto a norm
    ball serves only the proof, and needs a constant no user knows; it is left out.)

    **Arguments**, besides those of every stochastic solver: `momentum` $\tau$; `convex` $\mu$, by default half the
    measured one.

    Reference: T. Chen, Y. Sun, Q. Xiao, W. Yin, A single-timescale method for stochastic bilevel optimization, AISTATS
    2022.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.STABLE(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    matrices = 3  # the estimate, its factors, and the Hessian of the batch

    def defaults(self, scales):
        return {"inner": scales.inner, "outer": scales.outer(10), "momentum": 0.1, "convex": scales.convex / 2}

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


class RSVRB(TrackedHessian):
    r"""Recursive momentum on the lower gradient $p$, the lower Hessian $H$ (a matrix, kept above $\mu$) and $q$:

    $$H_k = P_{\succeq \mu}\big[\partial_{22} g_\Phi(z_k) + (1-a)(H_{k-1} - \partial_{22} g_\Phi(z_{k-1}))\big], \qquad
    q_k = G(z_k, H_k) + (1-a)(q_{k-1} - G(z_{k-1}, H_{k-1})),$$
    $$G(z, H) = \partial_1 f_\Phi - \partial_{12} g_\Phi H^{-1} \partial_2 f_\Phi, \qquad
    W_{k+1} = W_k - \beta p_k, \qquad x_{k+1} = P[x_k - \alpha q_k].$$

    The solver of the paper's complexity theorem; published for many lower-level blocks, one of which is drawn in each
    step, here for the one block of the reduced problem. It stores matrices of size ``(N d_y)^2``; raises if they do not
    fit in memory.

    **Arguments**, besides those of every stochastic solver: `momentum` $a$, by default $\propto k^{-2/3}$; `convex`
    $\mu$, by default half the measured one.

    Reference: Z. Guo, Q. Hu, L. Zhang, T. Yang, Randomized stochastic variance-reduced methods for multi-task
    stochastic bilevel optimization, arXiv:2105.02266, 2021.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.RSVRB(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    matrices = 5  # two estimates, their factors, and the Hessian of the batch

    def defaults(self, scales):
        return {**recursive_schedules(scales), "convex": scales.convex / 2}

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
