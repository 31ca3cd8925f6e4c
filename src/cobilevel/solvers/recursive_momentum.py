"""Recursive momentum on both levels: ``SUSTAIN`` (Khanduri et al. 2021) and ``MRBO`` (Yang, Ji, Liang 2021)."""

from typing import ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp

from .. import trees
from ..iteration import Schedule, storm, traced
from .parts import Previous, SeriesSolver, both_gradients, recursive_schedules


class RecursiveMomentum(SeriesSolver):
    """Recursive momentum on the lower gradient and on a Neumann hypergradient: ``SUSTAIN`` and ``MRBO``."""

    schedules = ("inner", "outer", "momentum")
    kind: ClassVar[Literal["sum", "random"]]
    loops: ClassVar[float] = 1  # how fast x may move against the lower level

    momentum: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        return recursive_schedules(scales, self.loops)

    def begin(self, reduced, start, ledger):
        return Previous(reduced.x0, start.W, (trees.zeros(start.W), trees.zeros(reduced.x0))), ledger

    def update(self, reduced, s, draw, rate):
        batches = (draw.lower(), draw.upper(), draw.lower())
        series = self.drawn_series(s, draw, self.kind)
        value, here, ledger = both_gradients(reduced, s.x, s.W, batches, series, s.ledger)
        _, there, ledger = both_gradients(reduced, s.memory.x, s.memory.W, batches, series, ledger)
        slope, gradient = storm(s.memory.estimates, here, there, jnp.where(s.step == 0, 1, rate.momentum))
        memory, W = Previous(s.x, s.W, (slope, gradient)), trees.step(s.W, rate.inner, slope)
        return self.move(reduced, s, value, gradient, rate.outer, W=W, memory=memory, ledger=ledger)


class SUSTAIN(RecursiveMomentum):
    r"""Recursive momentum ("STORM") on the lower gradient and on the hypergradient, each batch used at two points:

    $$p_k = \partial_2 g_\Phi(z_k; S_k) + (1 - a_k)\big(p_{k-1} - \partial_2 g_\Phi(z_{k-1}; S_k)\big), \qquad
    q_k = h(z_k; B_k) + (1 - a_k)\big(q_{k-1} - h(z_{k-1}; B_k)\big),$$
    $$W_{k+1} = W_k - \beta_k p_k, \qquad x_{k+1} = P[x_k - \alpha_k q_k], \qquad z_k = (x_k, W_k),$$
    with $h$ the hypergradient by the randomly cut product of ``BSA``, $\alpha_k, \beta_k \propto k^{-1/3}$ and
    $a_k \propto k^{-2/3}$.

    **Arguments**, besides those of every stochastic solver: `momentum` $a_k$; `neumann`, the scale of the series, by
    default the measured $1/L$; `terms`, its length, by default twice the measured condition number, at most 1000.

    Reference: P. Khanduri, S. Zeng, M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A near-optimal algorithm for stochastic
    bilevel optimization via double-momentum, NeurIPS 2021.
    """

    default_steps = 10_000
    kind = "random"


class MRBO(RecursiveMomentum):
    r"""Recursive momentum on both levels, with stocBiO's Neumann *sum* in the hypergradient $h$:

    $$p_k = \partial_2 g_\Phi(z_k; S_k) + (1 - a_k)\big(p_{k-1} - \partial_2 g_\Phi(z_{k-1}; S_k)\big), \qquad
    q_k = h(z_k; B_k) + (1 - a_k)\big(q_{k-1} - h(z_{k-1}; B_k)\big),$$
    $$W_{k+1} = W_k - \lambda \eta_k p_k, \qquad x_{k+1} = P[x_k - \gamma \eta_k q_k], \qquad
    \eta_k \propto k^{-1/3}, \quad a_k \propto \eta_k^2 .$$

    **Arguments**, besides those of every stochastic solver (`inner` $\lambda\eta_k$, `outer` $\gamma\eta_k$):
    `momentum` $a_k$; `neumann` and `terms`, scale and length of the sum, by default the measured $1/L$ and twice the
    measured condition number, at most 1000.

    Reference: J. Yang, K. Ji, Y. Liang, Provably faster algorithms for bilevel optimization, NeurIPS 2021.
    """

    default_steps = 4000
    kind = "sum"
    loops = 4
