"""``SUSTAIN``: recursive momentum on both levels, in one loop (Khanduri et al. 2021)."""

from .recursive_momentum import RecursiveMomentum


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
