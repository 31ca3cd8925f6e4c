"""``MRBO``: momentum-based recursive bilevel optimizer (Yang, Ji, Liang 2021)."""

from .recursive_momentum import RecursiveMomentum


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
