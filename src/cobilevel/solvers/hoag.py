"""``HOAG``: approximate gradients with growing accuracy, on all samples (Pedregosa 2016)."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import oracles, trees
from ..hypergradient import ConjugateGradient, hypergradient
from ..implicit import charge, lower_objective
from ..lower import minimise
from ..reduction import Reduced
from ..schedules import Schedule, traced
from ..solver import Result
from ..stochastic import Stochastic
from .parts import tabulated


class HOAG(Stochastic):
    r"""In step $k$ the lower level is solved until its gradient is $\varepsilon_k$ of its first size, the linear system
    to a relative residual of $\varepsilon_k$ (conjugate gradients, from the last solution), and
    $$x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)],
    \qquad \textstyle\sum_k \varepsilon_k < \infty .$$

    Every step looks at all samples; the ledger shows the price. The step size adapts as published: 5% longer after a
    step that lowered the objective, half as long after one that raised it.

    **Arguments**, besides those of every stochastic solver (`batch`, `shuffle` and `inner` play no part): `accuracy`
    $\varepsilon_k$, by default $0.1 \cdot 0.9^k$; `outer`, the first step size. Ends by itself where `tolerance` is
    met.

    Reference: F. Pedregosa, Hyperparameter optimization with approximate gradient, ICML 2016.
    """

    default_steps = 1000
    chunk = 10
    schedules = ("outer", "accuracy")

    accuracy: Schedule = eqx.field(converter=traced, default=None)
    average: Any = eqx.field(converter=traced, default=0.0, kw_only=True)
    tolerance: Any = eqx.field(converter=traced, default=1e-8, kw_only=True)

    def prepare(self, reduced: Reduced) -> Reduced:
        return tabulated(reduced, "HOAG")

    def needed(self):
        return ("outer",)

    def defaults(self, scales):
        return {"outer": 1 / scales.bend, "accuracy": lambda step: 0.1 * 0.9**step}

    def begin(self, reduced, start, ledger):
        pool, x = reduced.lower_pool, reduced.x0
        slope, ledger = oracles.lower_gradient(reduced, x, reduced.W0, pool, ledger)
        one = jnp.ones((), jax.tree.leaves(start.W)[0].dtype)
        return (start.v, trees.norm(slope), one), ledger

    def update(self, reduced, s, draw, rate):
        v, first, stretch = s.memory
        pool, eps = reduced.lower_pool, jnp.finfo(first.dtype).eps
        accuracy = jnp.maximum(rate.accuracy, eps**0.75)
        objective = lower_objective(reduced, s.x, s.W, pool, s.ledger, dense=False)
        flat, unflatten = oracles.flatten(s.W)
        found = minimise(objective, flat, accuracy * first)
        ledger, W = charge(s.ledger, found, pool, dense=False), unflatten(found.point)
        linear = ConjugateGradient(accuracy, start=v)
        value, gradient, v, ledger = hypergradient(
            reduced, s.x, W, reduced.upper_pool, pool, linear, lambda _: pool, ledger
        )
        worse = (s.step > 0) & (value > s.value + accuracy * jnp.abs(s.value))
        stretch = jnp.where(s.step == 0, stretch, jnp.where(worse, stretch / 2, 1.05 * stretch))
        s = replace(s, W=W, memory=(v, first, stretch), value=value, ledger=ledger)
        return self.move(reduced, s, gradient, rate.outer * stretch)

    def spent(self, state):
        return jnp.int32(Result.BUDGET)

    def terminate(self, reduced, state):
        """No noise here: the last gradient itself is judged."""
        small = (trees.norm(state.direction) <= self.tolerance * state.first) & (state.first > 0)
        return jnp.where(small & (state.result == Result.RUNNING), Result.CONVERGED, state.result)
