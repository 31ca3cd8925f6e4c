"""``SOBA``: one stochastic step of lower level, linear system and decision together (Dagréou et al. 2022)."""

import equinox as eqx

from .. import trees
from ..derivatives import directions
from ..iteration import PolynomialDecay, Schedule, Stochastic, traced


class SOBA(Stochastic):
    r"""$$W_{k+1} = W_k - \beta_k\, \partial_2 g_\Phi, \qquad
    v_{k+1} = v_k - \gamma_k (\partial_{22} g_\Phi v_k - \partial_2 f_\Phi), \qquad
    x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v_k)],$$
    all at $(x_k, W_k, v_k)$, with steps $\propto k^{-1/2}$.

    **Arguments**, besides those of every stochastic solver: `linear`, the step $\gamma$ of the linear system.

    Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization that enables stochastic
    and global variance reduction algorithms, NeurIPS 2022.
    """

    schedules = ("inner", "linear", "outer")

    linear: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        inner = PolynomialDecay(scales.inner, 0.5, scales.calm)
        return {"inner": inner, "linear": inner, "outer": PolynomialDecay(scales.outer(0.5), 0.5, scales.calm)}

    def begin(self, reduced, start, ledger):
        return start.v, ledger

    def update(self, reduced, s, draw, rate):
        value, toward, ledger = directions(reduced, s.x, s.W, s.memory, draw.upper(), draw.lower(), s.ledger)
        W, v = trees.step(s.W, rate.inner, toward.lower), trees.step(s.memory, rate.linear, toward.linear)
        return self.move(reduced, s, value, toward.outer, rate.outer, W=W, memory=v, ledger=ledger)
