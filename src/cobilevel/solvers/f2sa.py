"""``F2SA``: fully first-order, by a growing penalty (Kwon, Kwon, Wright, Nowak 2023)."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import trees
from ..derivatives import Ledger, oracles
from ..iteration import PolynomialDecay, Schedule, Stochastic, at, traced


class F2SA(Stochastic):
    r"""No second derivatives: ``y`` follows the minimiser of $f/\lambda + g$, ``z`` that of $g$, and their difference
    carries the adjoint, $\lambda (y - z) \to -v$.

    $$z \leftarrow z - \beta\, \partial_2 g_\Phi(x, z), \qquad
    y \leftarrow y - \beta\, (\partial_2 f_\Phi/\lambda + \partial_2 g_\Phi)(x, y)
    \qquad (T \text{ times, same batches}),$$
    $$x_{k+1} = P\big[x_k - \alpha \big(\partial_1 f_\Phi(x, y) + \lambda_k (\partial_1 g_\Phi(x, y) -
    \partial_1 g_\Phi(x, z))\big)\big], \qquad
    \lambda_k \propto k^{1/7}, \; \alpha_k \propto k^{-5/7}, \; \beta_k \propto k^{-4/7} .$$

    The bias is of order $1/\lambda$: of all the solvers here the cheapest per step and the least accurate. Using the
    same batches for ``y`` and ``z`` keeps the factor $\lambda$ from multiplying their noise.

    **Arguments**, besides those of every stochastic solver: `penalty` $\lambda_k$, by default from ten times the ratio
    of the curvatures of ``f`` and ``g`` in ``y``; `inner_steps` $T$.

    Reference: J. Kwon, D. Kwon, S. Wright, R. Nowak, A fully first-order method for stochastic bilevel optimization,
    ICML 2023.
    """

    default_steps = 10_000
    schedules = ("inner", "outer", "penalty")
    counts = (("inner_steps", 1),)

    penalty: Schedule = eqx.field(converter=traced, default=None)
    inner_steps: int = eqx.field(static=True, default=10)

    def defaults(self, scales):
        penalty = 10 * scales.steep / scales.convex
        first = penalty if self.penalty is None else at(self.penalty, jnp.int32(0), penalty.dtype)
        return {
            "inner": PolynomialDecay(0.5 / (scales.smooth + scales.steep / first), 4 / 7, scales.calm),
            "outer": PolynomialDecay(scales.outer(self.inner_steps), 5 / 7, scales.calm),
            "penalty": PolynomialDecay(penalty, -1 / 7, scales.calm),
        }

    def begin(self, reduced, start, ledger):
        return start.W, ledger

    def update(self, reduced, s, draw, rate):
        lowers, uppers = draw.lowers(self.inner_steps), draw.uppers(self.inner_steps)

        def follow(number, carry):
            (y, z), page, batch = carry, Ledger.page(), lowers(number)
            (_, _, pull), _ = oracles.upper_gradients(reduced, s.x, y, uppers(number), page)
            at_y, _ = oracles.lower_gradient(reduced, s.x, y, batch, page)
            at_z, _ = oracles.lower_gradient(reduced, s.x, z, batch, page)
            y = trees.step(y, rate.inner, trees.add(at_y, trees.scale(1 / rate.penalty, pull)))
            return y, trees.step(z, rate.inner, at_z)

        y, z = jax.lax.fori_loop(0, self.inner_steps, follow, (s.memory, s.W))
        ledger = s.ledger.add_each("upper_gradient", uppers, self.inner_steps)
        for _ in (y, z):
            ledger = ledger.add_each("lower_gradient", lowers, self.inner_steps)
        (value, d1, _), ledger = oracles.upper_gradients(reduced, s.x, y, draw.upper(), ledger)
        batch = draw.lower()
        (at_y, _), ledger = oracles.lower_gradients(reduced, s.x, y, batch, ledger)
        (at_z, _), ledger = oracles.lower_gradients(reduced, s.x, z, batch, ledger)
        direction = trees.add(d1, trees.scale(rate.penalty, trees.sub(at_y, at_z)))
        return self.move(reduced, s, value, direction, rate.outer, W=z, memory=y, ledger=ledger)
