"""``SPABA``: probabilistic full gradients on SOBA's three directions (Chu, Xu, Yao, Zhang 2024)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import trees
from ..derivatives import directions
from ..iteration import Schedule, Stochastic, check_schedule, storm, traced
from .parts import constant_schedules, no_directions


class SPABA(Stochastic):
    r"""The three steps of ``SOBA`` along estimates $D_k$ of its directions, by the PAGE rule: with probability $p$ (and
    at first) $D_k$ is taken on all samples, else
    $$D_k = D_{k-1} + D(z_k; B_k) - D(z_{k-1}; B_k), \qquad z = (x, W, v).$$

    **Arguments**, besides those of every stochastic solver: `linear`, the step of the linear system; `probability` $p$,
    by default the share of a batch in batch and large batch together; `large`, the rows of the large batch: all, by
    default, which makes convergence linear; of a stream, 16 batches. Ends by itself where `tolerance` is met.

    Reference: T. Chu, D. Xu, W. Yao, J. Zhang, SPABA: a single-loop and probabilistic stochastic bilevel algorithm
    achieving optimal sample complexity, ICML 2024.
    """

    exact = True
    default_steps = 50_000
    schedules = ("inner", "linear", "outer")
    counts = (("large", 1),)

    linear: Schedule = eqx.field(converter=traced, default=None)
    probability: Any = eqx.field(converter=traced, default=None)
    large: int | None = eqx.field(static=True, default=None)
    average: float = eqx.field(converter=traced, default=0.0, kw_only=True)
    tolerance: float = eqx.field(converter=traced, default=1e-8, kw_only=True)

    def __check_init__(self):
        check_schedule("SPABA: probability", self.probability, 1.0)

    def defaults(self, scales):
        return constant_schedules(scales)

    def begin(self, reduced, start, ledger):
        return no_directions(reduced, start), ledger

    def update(self, reduced, s, draw, rate):
        v, before, estimate = s.memory
        small = (draw.upper(), draw.lower())

        def anew(ledger):
            return directions(reduced, s.x, s.W, v, *draw.large(self.large), ledger)

        def onward(ledger):
            value, new, ledger = directions(reduced, s.x, s.W, v, *small, ledger)
            _, old, ledger = directions(reduced, *before, *small, ledger)
            return value, storm(estimate, new, old, 0.0), ledger

        rows = jax.eval_shape(lambda: draw.large(self.large))[1].weight.shape[0]
        chance = self.batch / (self.batch + rows) if self.probability is None else self.probability
        full = (s.step == 0) | (jax.random.uniform(draw.key(), ()) < jnp.asarray(chance))
        value, toward, ledger = jax.lax.cond(full, anew, onward, s.ledger)
        W, z = trees.step(s.W, rate.inner, toward.lower), trees.step(v, rate.linear, toward.linear)
        memory = (z, (s.x, s.W, v), toward)
        return self.move(reduced, s, value, toward.outer, rate.outer, W=W, memory=memory, ledger=ledger)
