"""``HOAG``: approximate gradients with growing accuracy, on all samples (Pedregosa 2016)."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import trees
from ..derivatives import oracles
from ..derivatives.hypergradient import hypergradient
from ..derivatives.linear_systems import ConjugateGradient
from ..iteration.schedules import Schedule, is_optax, traced
from ..iteration.stochastic import Stochastic
from ..lower.damped_newton import minimise
from ..lower.reduced_at_x import charge, lower_objective
from ..reduction.reduced import Reduced
from ..reduction.result import Result
from .parts import tabulated


class HOAG(Stochastic):
    r"""In step $k$ the lower level is solved until its gradient is $\varepsilon_k$ of its first size, the linear system
    to a relative residual of $\varepsilon_k$ (conjugate gradients, from the last solution), and
    $$x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)],
    \qquad \textstyle\sum_k \varepsilon_k < \infty .$$

    Every step looks at all samples; the ledger shows the price. The step size adapts in the published way: 5% longer
    after a step that lowered the objective by a fair share of what the gradient promised, half as long after one that
    raised it beyond the accuracy, else unchanged (and at most ten times the first). Not with an Optax transformation.

    **Arguments**, besides those of every stochastic solver (`batch`, `shuffle` and `inner` play no part): `accuracy`
    $\varepsilon_k$, by default $0.1 \cdot 0.9^k$; `outer`, the first step size. Ends by itself where `tolerance` is
    met.

    Reference: F. Pedregosa, Hyperparameter optimization with approximate gradient, ICML 2016.
    """

    exact = True
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
        return (start.v, trees.norm(slope), one, 0 * one, one), ledger

    def update(self, reduced, s, draw, rate):
        v, first, stretch, promised, _ = s.memory
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
        begun = s.step > 0
        worse = begun & (value > s.value + accuracy * jnp.abs(s.value))
        better = begun & (value <= s.value - promised / 4)
        stretch = jnp.where(worse, stretch / 2, jnp.where(better, jnp.minimum(1.05 * stretch, 10), stretch))
        length = rate.outer if is_optax(rate.outer) else rate.outer * stretch
        s = self.move(reduced, replace(s, W=W, value=value, ledger=ledger), gradient, length)
        promised = 0 * stretch if is_optax(length) else length * trees.dot(s.direction, s.direction)
        return replace(s, memory=(v, first, stretch, promised, accuracy))

    def spent(self, state):
        return jnp.int32(Result.BUDGET)

    def terminate(self, reduced, state):
        """No noise here: the last gradient is judged, once it is computed accurately enough to be."""
        if self.tolerance is None:
            return state.result
        eps, size = jnp.finfo(state.value.dtype).eps, trees.norm(state.direction)
        goal = jnp.maximum(self.tolerance, 30 * eps)
        still = size <= 8 * eps * (1 + trees.norm(state.x)) * state.scales.bend
        accurate = (state.memory[-1] <= jnp.maximum(goal, eps**0.75)) & (state.step > 0)
        done = accurate & ((size <= goal * state.first) | still) & (state.result == Result.RUNNING)
        return jnp.where(done, Result.CONVERGED, state.result)
