"""``AmIGO``: amortized implicit gradients, both inner problems warm-started (Arbel, Mairal 2022)."""

import equinox as eqx
import jax

from .. import trees
from ..derivatives import Ledger, linear_direction, oracles, outer_direction
from ..iteration import Schedule, Stochastic, traced
from .parts import descend


class AmIGO(Stochastic):
    r"""$$W \leftarrow W - \beta\, \partial_2 g_\Phi(x_k, W) \;\; (T \text{ times}), \qquad
    v \leftarrow v - \gamma (\partial_{22} g_\Phi v - \partial_2 f_\Phi) \;\; (M \text{ times}), \qquad
    x_{k+1} = P[x_k - \alpha (\partial_1 f_\Phi - \partial_{12} g_\Phi v)],$$
    each step on a fresh batch (one upper batch per outer step), ``W`` and ``v`` kept from one outer step to the next.

    **Arguments**, besides those of every stochastic solver: `linear`, the step $\gamma$; `inner_steps` $T$;
    `linear_steps` $M$.

    Reference: M. Arbel, J. Mairal, Amortized implicit differentiation for stochastic bilevel optimization, ICLR 2022.
    """

    default_steps = 4000
    schedules = ("inner", "linear", "outer")
    counts = (("inner_steps", 1), ("linear_steps", 1))

    linear: Schedule = eqx.field(converter=traced, default=None)
    inner_steps: int = eqx.field(static=True, default=10)
    linear_steps: int = eqx.field(static=True, default=10)

    def defaults(self, scales):
        loops = min(self.inner_steps, self.linear_steps)
        return {"inner": scales.inner, "linear": scales.inner, "outer": scales.outer(loops)}

    def begin(self, reduced, start, ledger):
        return start.v, ledger

    def update(self, reduced, s, draw, rate):
        lowers, steps = draw.lowers(self.inner_steps), self.inner_steps
        W, ledger = descend(reduced, s.x, s.W, lowers, steps, lambda _: rate.inner, s.ledger)
        (value, d1, d2), ledger = oracles.upper_gradients(reduced, s.x, W, draw.upper(), ledger)
        batches = draw.lowers(self.linear_steps)

        def solve(number, v):
            product, _ = oracles.hessian_vector(reduced, s.x, W, v, batches(number), Ledger.page())
            return trees.step(v, rate.linear, linear_direction(product, d2))

        v = jax.lax.fori_loop(0, self.linear_steps, solve, s.memory)
        ledger = ledger.add_each("hessian_vector", batches, self.linear_steps)
        cross, ledger = oracles.cross_product(reduced, s.x, W, v, draw.lower(), ledger)
        return self.move(reduced, s, value, outer_direction(d1, cross), rate.outer, W=W, memory=v, ledger=ledger)
