"""Several steps on both inner problems for each one of ``x``: ``AmIGO``, ``F2SA``, ``HOAG``."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..derivatives import ConjugateGradient, Ledger, hypergradient, linear_direction, oracles, outer_direction
from ..ground import arithmetic, program, trees
from ..iteration import SOLVED, PolynomialDecay, Result, Schedule, Stochastic, at, is_optax, traced
from ..lower import newton_steps
from .parts import descend, tabulated

_MOST_STRETCH = 10.0  # of the step size of HOAG
_NEWTON_STEPS = 200  # for one lower level
_KEPT = 1 / 4  # of the decrease that the gradient promised


class AmIGO(Stochastic):
    r"""$$W \leftarrow W - \beta\, \partial_2 g_\Phi(x_k, W) \;\; (T \text{ times}), \qquad
    v \leftarrow v - \gamma (\partial_{22} g_\Phi v - \partial_2 f_\Phi) \;\; (M \text{ times}), \qquad
    x_{k+1} = P[x_k - \alpha (\partial_1 f_\Phi - \partial_{12} g_\Phi v)],$$
    each step on a fresh batch (one upper batch per outer step), ``W`` and ``v`` kept from one outer step to the next.

    **Arguments**, besides those of every stochastic solver: `linear`, the step $\gamma$; `inner_steps` $T$;
    `linear_steps` $M$.

    Reference: M. Arbel, J. Mairal, Amortized implicit differentiation for stochastic bilevel optimization, ICLR 2022.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.AmIGO(), steps=20)
    >>> solution.stats["steps"]
    20
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
        W, ledger = descend(reduced, s, draw, self.inner_steps, lambda _: rate.inner)
        (value, d1, d2), ledger = oracles.upper_gradients(reduced, s.x, W, draw.upper(), ledger)
        batches = draw.lowers(self.linear_steps)

        def solve(number, v):
            product, _ = oracles.hessian_vector(reduced, s.x, W, v, batches(number), Ledger.page())
            return trees.step(v, rate.linear, linear_direction(product, d2))

        v = jax.lax.fori_loop(0, self.linear_steps, solve, s.memory)
        ledger = ledger.add_each("hessian_vector", batches, self.linear_steps)
        cross, ledger = oracles.cross_product(reduced, s.x, W, v, draw.lower(), ledger)
        return self.move(reduced, s, value, outer_direction(d1, cross), rate.outer, W=W, memory=v, ledger=ledger)


class F2SA(Stochastic):
    r"""No second derivatives: ``y`` follows the minimiser of $f/\lambda + g$, ``z`` that of $g$, and their difference
    carries the adjoint, $\lambda (y - z) \to -v$.

    $$z \leftarrow z - \beta\, \partial_2 g_\Phi(x, z), \qquad
    y \leftarrow y - \beta\, (\partial_2 f_\Phi/\lambda + \partial_2 g_\Phi)(x, y)
    \qquad (T \text{ times, same batches}),$$
    $$x_{k+1} = P\big[x_k - \alpha \big(\partial_1 f_\Phi(x, y) + \lambda_k (\partial_1 g_\Phi(x, y) -
    \partial_1 g_\Phi(x, z))\big)\big], \qquad
    \lambda_k \propto k^{1/7}, \; \alpha_k \propto k^{-5/7}, \; \beta_k \propto k^{-4/7} .$$

    The bias is of order $1/\lambda$: of all the solvers here the cheapest per step and the least accurate. Using the
    same batches for ``y`` and ``z`` keeps the factor $\lambda$ from multiplying their noise.

    **Arguments**, besides those of every stochastic solver: `penalty` $\lambda_k$, by default from ten times the ratio
    of the curvatures of ``f`` and ``g`` in ``y``; `inner_steps` $T$.

    Reference: J. Kwon, D. Kwon, S. Wright, R. Nowak, A fully first-order method for stochastic bilevel optimization,
    ICML 2023.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.F2SA(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    default_steps = 10_000
    schedules = ("inner", "outer", "penalty")
    counts = (("inner_steps", 1),)

    penalty: Schedule = eqx.field(converter=traced, default=None)
    inner_steps: int = eqx.field(static=True, default=10)

    def defaults(self, scales):
        penalty = 10 * scales.steep / scales.convex
        first = penalty if self.penalty is None else at(self.penalty, jnp.int32(0), penalty.dtype)
        return {
            "inner": PolynomialDecay(0.5 / (scales.smooth + scales.steep / first), 4 / 7, scales.calm),
            "outer": PolynomialDecay(scales.outer(self.inner_steps), 5 / 7, scales.calm),
            "penalty": PolynomialDecay(penalty, -1 / 7, scales.calm),
        }

    def begin(self, reduced, start, ledger):
        return start.W, ledger

    def update(self, reduced, s, draw, rate):
        lowers, uppers = draw.lowers(self.inner_steps), draw.uppers(self.inner_steps)

        def follow(number, carry):
            (y, z), page, batch = carry, Ledger.page(), lowers(number)
            (_, _, pull), _ = oracles.upper_gradients(reduced, s.x, y, uppers(number), page)
            at_y, _ = oracles.lower_gradient(reduced, s.x, y, batch, page)
            at_z, _ = oracles.lower_gradient(reduced, s.x, z, batch, page)
            y = trees.step(y, rate.inner, trees.add(at_y, trees.scale(1 / rate.penalty, pull)))
            return y, trees.step(z, rate.inner, at_z)

        y, z = jax.lax.fori_loop(0, self.inner_steps, follow, (s.memory, s.W))
        ledger = s.ledger.add_each("upper_gradient", uppers, self.inner_steps)
        for _ in (y, z):
            ledger = ledger.add_each("lower_gradient", lowers, self.inner_steps)
        (value, d1, _), ledger = oracles.upper_gradients(reduced, s.x, y, draw.upper(), ledger)
        batch = draw.lower()
        (at_y, _), ledger = oracles.lower_gradients(reduced, s.x, y, batch, ledger)
        (at_z, _), ledger = oracles.lower_gradients(reduced, s.x, z, batch, ledger)
        direction = trees.add(d1, trees.scale(rate.penalty, trees.sub(at_y, at_z)))
        return self.move(reduced, s, value, direction, rate.outer, W=z, memory=y, ledger=ledger)


def _published_accuracy(step: Any) -> Any:
    """A sequence that is summable."""
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
    r"""In step $k$ the lower level is solved until its gradient is $\varepsilon_k$ times its initial size, the linear
    system to a relative residual of $\varepsilon_k$ (conjugate gradients, from the last solution), and
    $$x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)],
    \qquad \textstyle\sum_k \varepsilon_k < \infty .$$

    Every step uses all samples; the ledger counts them. The step size adapts as published: 5% longer after a step that
    lowered the objective by a fair share of what the gradient predicted, half as long after a step that raised it
    beyond the accuracy, else unchanged (and at most ten times the first). It cannot be combined with an Optax
    transformation.

    **Arguments**, besides those of every stochastic solver (`batch`, `shuffle` and `inner` have no effect): `accuracy`
    $\varepsilon_k$, by default $0.1 \cdot 0.9^k$; `outer`, the first step size. Stops when `tolerance` is met.

    Reference: F. Pedregosa, Hyperparameter optimization with approximate gradient, ICML 2016.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.HOAG(), steps=20)
    >>> solution.stats["steps"]
    20
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
        return {"outer": 1 / scales.bend, "accuracy": _published_accuracy}

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
        longer = jnp.where(better, jnp.minimum(1.05 * last.stretch, _MOST_STRETCH), last.stretch)
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
