"""``BSA``: bilevel stochastic approximation (Ghadimi, Wang 2018)."""

import jax.numpy as jnp

from ..iteration import PolynomialDecay, at
from .parts import SeriesSolver, descend


class BSA(SeriesSolver):
    r"""More and more inner steps, then a hypergradient whose inverse Hessian is a randomly cut product.

    $$W^{t+1} = W^t - \beta_t\, \partial_2 g_\Phi(x_k, W^t), \quad t < t_k = \lceil (k+1)^{1/2} \rceil, \qquad
    v = K s \prod_{j=1}^{p} \big(I - s\, \partial_{22} g_\Phi(\cdot; B_j)\big)\, \partial_2 f_\Phi,
    \quad p \sim U\{0, \dots, K-1\}, \qquad x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)] .$$

    **Arguments**, besides those of every stochastic solver (`inner` $\beta_t$, a function of the *inner* step $t$;
    `outer` $\alpha_k$, by default $\propto k^{-1/2}$):

    - `neumann`: $s$, by default the measured $1/L$; `terms`: $K$, by default twice the measured condition number, at
      most 1000.
    - `growth`: the exponent of $t_k$.

    The default inner steps are $1/(L + \mu t/2)$: the tail of the published $2/(\mu(t+2))$, without its first steps,
    which are unstable where the condition number is large. ``W`` is kept between outer steps.

    Reference: S. Ghadimi, M. Wang, Approximation methods for bilevel programming, arXiv:1802.02246, 2018.
    """

    default_steps = 2000

    growth: float = 0.5

    def __check_init__(self):
        if not isinstance(self.growth, int | float) or not 0 <= self.growth <= 2:
            raise ValueError(f"BSA: growth must be a number between 0 and 2, got {self.growth!r}.")

    def defaults(self, scales):
        return {
            "inner": PolynomialDecay(scales.inner, 1, 2 * scales.condition),
            "outer": PolynomialDecay(scales.outer(2) / 2, 0.5, scales.calm),
        }

    def update(self, reduced, s, draw, rate):
        count = jnp.ceil(jnp.asarray(s.step + 1, float) ** self.growth).astype(jnp.int32)
        schedule = self.defaults(s.scales)["inner"] if self.inner is None else self.inner
        inner = lambda number: at(schedule, number, s.dtype)
        W, ledger = descend(reduced, s.x, s.W, draw.lowers(count), count, inner, s.ledger)
        return self.move_by_series(reduced, s, W, draw, "random", rate, ledger)
