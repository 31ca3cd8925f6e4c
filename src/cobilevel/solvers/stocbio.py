"""``StocBiO``: inner gradient steps, then a Neumann-series hypergradient on fresh batches (Ji, Yang, Liang 2021)."""

from typing import Literal

import equinox as eqx

from .parts import SeriesSolver, descend


class StocBiO(SeriesSolver):
    r"""$$W_{k}^{t+1} = W_k^t - \beta\, \partial_2 g_\Phi(x_k, W_k^t; S_t), \quad t < T, \qquad
    x_{k+1} = P\big[x_k - \alpha\, (\partial_1 f_\Phi - \partial_{12} g_\Phi\, v)\big], \qquad
    v = s \sum_{q=0}^{K} \prod_{j=1}^{q} (I - s\, \partial_{22} g_\Phi(\cdot; B_j))\, \partial_2 f_\Phi .$$

    ``W`` is kept from one outer step to the next. The answer is the average over the last part of the run.

    **Arguments**, besides those of every stochastic solver (`inner` $\beta$, `outer` $\alpha$):

    - `neumann`: $s$, by default the measured $1/L$; `terms`: $K$, by default twice the measured condition number, and
      at most 1000; `kind`: see ``Neumann``.
    - `inner_steps`: $T$.

    Reference: K. Ji, J. Yang, Y. Liang, Bilevel optimization: convergence analysis and enhanced design, ICML 2021.
    """

    default_steps = 2000
    counts = (("inner_steps", 1), ("terms", 0))

    inner_steps: int = eqx.field(static=True, default=10)
    kind: Literal["sum", "product"] = eqx.field(static=True, default="sum")

    def __check_init__(self):
        if self.kind not in ("sum", "product"):
            raise ValueError(f'StocBiO: kind must be "sum" or "product", got {self.kind!r}.')

    def defaults(self, scales):
        return {"inner": scales.inner, "outer": scales.outer(self.inner_steps)}

    def update(self, reduced, s, draw, rate):
        lowers, steps = draw.lowers(self.inner_steps), self.inner_steps
        W, ledger = descend(reduced, s.x, s.W, lowers, steps, lambda _: rate.inner, s.ledger)
        return self.move_by_series(reduced, s, W, draw, self.kind, rate, ledger)
