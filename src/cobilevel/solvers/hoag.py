"""``HOAG``: approximate gradients with growing accuracy, on all samples (Pedregosa 2016)."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import trees
from ..derivatives import ConjugateGradient, hypergradient, oracles
from ..iteration import SOLVED, Result, Schedule, Stochastic, is_optax, traced
from ..lower import newton_steps
from ..programs import arithmetic, program
from .parts import tabulated

_LONGER = 1.05  # the published factor; the other is a half
_MOST_STRETCH = 10.0  # what they may add up to
_NEWTON_STEPS = 200  # for one lower level
_KEPT = 1 / 4  # of the decrease that the gradient promised


def _accuracy(step: Any) -> Any:
    """The published sequence, which is summable."""
    return 0.1 * 0.9 ** arithmetic(step).asarray(step, float)


class HoagMemory(eqx.Module):
    """The adjoint `v`, the `first` lower gradient, how far the step size is stretched, what decrease the last step
    `promised`, and the `accuracy` of its linear system."""

    v: PyTree[Array]
    first: Float[Array, ""]
    stretch: Float[Array, ""]
    promised: Float[Array, ""]
    accuracy: Float[Array, ""]


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

    def prepare(self, reduced):
        return tabulated(reduced, "HOAG")

    def needed(self):
        return ("outer",)

    def defaults(self, scales):
        return {"outer": 1 / scales.bend, "accuracy": _accuracy}

    @program
    def begin(self, reduced, start, ledger):
        slope, ledger = oracles.lower_gradient(reduced, reduced.x0, reduced.W0, reduced.lower_pool, ledger)
        one = jnp.ones((), reduced.dtype)
        return HoagMemory(start.v, trees.norm(slope), one, 0 * one, one), ledger

    def update(self, reduced, s, draw, rate):
        last, pool, eps = s.memory, reduced.lower_pool, jnp.finfo(s.dtype).eps
        accuracy = jnp.maximum(rate.accuracy, eps**SOLVED)
        W, ledger = newton_steps(reduced, s.x, s.W, pool, accuracy * last.first, _NEWTON_STEPS, s.ledger)
        linear = ConjugateGradient(accuracy, start=last.v)
        value, gradient, v, ledger = hypergradient(
            reduced, s.x, W, reduced.upper_pool, pool, linear, lambda _: pool, ledger
        )
        begun, before = s.step > 0, s.outer.value
        worse = begun & (value > before + accuracy * jnp.abs(before))
        better = begun & (value <= before - _KEPT * last.promised)
        longer = jnp.where(better, jnp.minimum(_LONGER * last.stretch, _MOST_STRETCH), last.stretch)
        stretch = jnp.where(worse, last.stretch / 2, longer)
        length = rate.outer if is_optax(rate.outer) else rate.outer * stretch
        s = self.move(reduced, replace(s, W=W, ledger=ledger), value, gradient, length)
        direction = s.outer.direction
        promised = 0 * stretch if is_optax(length) else length * trees.dot(direction, direction)
        return replace(s, memory=HoagMemory(v, last.first, stretch, promised, accuracy))

    def terminate(self, reduced, state):
        """No noise here: the last gradient is judged, once it is computed accurately enough to be."""
        if self.tolerance is None:
            return state.clock.outcome(state.result)
        fine = jnp.maximum(jnp.asarray(self.tolerance, state.dtype), jnp.finfo(state.dtype).eps ** SOLVED)
        accurate = (state.memory.accuracy <= fine) & (state.step > 1)
        done = accurate & self.is_small(state, trees.norm(state.outer.direction))
        return state.clock.outcome(jnp.where(done, Result.CONVERGED.code, Result.RUNNING.code))
