"""``TTSA``: two-timescale stochastic approximation (Hong, Wai, Wang, Yang 2020)."""

from .. import trees
from ..derivatives import oracles
from ..iteration import PolynomialDecay
from .parts import SeriesSolver


class TTSA(SeriesSolver):
    r"""One step of each level at a time, the outer one on the slower scale.

    $$W_{k+1} = W_k - \beta_k\, \partial_2 g_\Phi(x_k, W_k), \qquad
    x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)(x_k, W_{k+1})], \qquad
    \beta_k \propto k^{-2/5}, \quad \alpha_k \propto k^{-3/5},$$
    with ``v`` the randomly cut product of ``BSA``.

    **Arguments**, besides those of every stochastic solver: `neumann`, the scale of the series, by default the measured
    $1/L$; `terms`, its length $K$, by default twice the measured condition number, and at most 1000.

    Reference: M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A two-timescale stochastic algorithm framework for bilevel
    optimization: complexity analysis and application to actor-critic, SIAM Journal on Optimization 33(1), 2023.
    """

    default_steps = 10_000

    def defaults(self, scales):
        return {
            "inner": PolynomialDecay(scales.inner, 0.4, scales.calm),
            "outer": PolynomialDecay(scales.outer(), 0.6, scales.calm),
        }

    def update(self, reduced, s, draw, rate):
        slope, ledger = oracles.lower_gradient(reduced, s.x, s.W, draw.lower(), s.ledger)
        W = trees.step(s.W, rate.inner, slope)
        return self.move_by_series(reduced, s, W, draw, "random", rate, ledger)
