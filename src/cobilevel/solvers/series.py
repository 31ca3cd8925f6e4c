"""A Neumann series for the linear system: ``StocBiO``, ``BSA``, ``TTSA``, ``SUSTAIN``, ``MRBO``, ``VRBO``."""

from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..derivatives import Draw, Ledger, Neumann, hypergradient, oracles
from ..ground import trees
from ..iteration import Draws, PolynomialDecay, Schedule, Stochastic, StochasticState, at, check_schedule, storm, traced
from ..reduction import Batch, Bilevel
from .parts import Previous, descend, recursive_schedules

_MOST_TERMS = 1000  # of a series by default: with more, a step costs more than a hundred steps of other methods


class SeriesSolver(Stochastic):
    """A solver that solves its linear system by a new Neumann series in every step."""

    counts = (("terms", 1),)
    kind = "random"  # see ``Neumann``

    neumann: Schedule = eqx.field(converter=traced, default=None)
    terms: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_schedule(f"{type(self).__name__}: neumann", self.neumann)

    def needed(self):
        return (*self.schedules, "terms")

    def series(self, s: StochasticState) -> Neumann:
        """The Neumann sum of this step."""
        step, terms = s.outer.pace * s.scales.inner, self.terms
        if self.neumann is not None:
            step = at(self.neumann, s.step, s.dtype)
        elif self.inner is not None:
            step = jnp.where(step > 0, step, at(self.inner, jnp.int32(0), s.dtype))
        if terms is None:
            terms = jnp.clip(jnp.ceil(2 * s.scales.condition), 1, _MOST_TERMS).astype(jnp.int32)
        return Neumann(terms, step)

    def drawn_series(self, s: StochasticState, draw: Draws) -> tuple[Neumann, Draw]:
        """The series of this step, and its batches."""
        full, kind = self.series(s), cast(Any, self.kind)
        chosen = draw.choice(full.terms) if kind == "random" else None
        return Neumann(full.terms, full.step, kind, chosen), draw.independent(self.terms)

    def move_by_series(
        self, reduced: Bilevel, s: StochasticState, W: PyTree, draw: Draws, rate: Any, ledger: Ledger
    ) -> StochasticState:
        """The outer step along the hypergradient at new coefficients."""
        upper, lower, series = draw.upper(), draw.lower(), self.drawn_series(s, draw)
        value, gradient, _, ledger = hypergradient(reduced, s.x, W, upper, lower, *series, ledger)
        return self.move(reduced, s, value, gradient, rate.outer, W=W, ledger=ledger)

    def finish(self, state):
        x, W, words = super().finish(state)
        if self.terms is None:
            linear = self.series(state)
            left = jnp.maximum(1 - linear.step * state.scales.convex, 0) ** (linear.terms + 1)
            words["series"] = (
                f"{int(linear.terms)} terms of scale {float(linear.step):.3g}, which miss up to "
                f"{100 * float(left):.2g}% of the inverse Hessian; set with terms and neumann."
            )
        return x, W, words


class StocBiO(SeriesSolver):
    r"""$$W_{k}^{t+1} = W_k^t - \beta\, \partial_2 g_\Phi(x_k, W_k^t; S_t), \quad t < T, \qquad
    x_{k+1} = P\big[x_k - \alpha\, (\partial_1 f_\Phi - \partial_{12} g_\Phi\, v)\big], \qquad
    v = s \sum_{q=0}^{K} \prod_{j=1}^{q} (I - s\, \partial_{22} g_\Phi(\cdot; B_j))\, \partial_2 f_\Phi .$$

    ``W`` is kept from one outer step to the next. The answer is the average over the last part of the run.

    **Arguments**, besides those of every stochastic solver (`inner` $\beta$, `outer` $\alpha$):

    - `neumann`: the scale $s$ of the series, by default the measured $1/L$ (the first inner step if nothing is
      measured); `terms`: its length $K$, by default twice the measured condition number, and at most 1000; `kind`:
      see ``Neumann``.
    - `inner_steps`: $T$.

    Reference: K. Ji, J. Yang, Y. Liang, Bilevel optimization: convergence analysis and enhanced design, ICML 2021.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.StocBiO(), steps=20)
    >>> solution.stats["steps"]
    20
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
        W, ledger = descend(reduced, s, draw, self.inner_steps, lambda _: rate.inner)
        return self.move_by_series(reduced, s, W, draw, rate, ledger)


class BSA(SeriesSolver):
    r"""More and more inner steps, then a hypergradient whose inverse Hessian is a randomly cut product.

    $$W^{t+1} = W^t - \beta_t\, \partial_2 g_\Phi(x_k, W^t), \quad t < t_k = \lceil (k+1)^{1/2} \rceil, \qquad
    v = K s \prod_{j=1}^{p} \big(I - s\, \partial_{22} g_\Phi(\cdot; B_j)\big)\, \partial_2 f_\Phi,
    \quad p \sim U\{0, \dots, K-1\}, \qquad x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)] .$$

    **Arguments**, besides those of every stochastic solver (`inner` $\beta_t$, a function of the *inner* step $t$;
    `outer` $\alpha_k$, by default $\propto k^{-1/2}$):

    - `neumann` $s$ and `terms` $K$, as for ``StocBiO``; `growth`: the exponent of $t_k$.

    The default inner steps are $1/(L + \mu t/2)$: the tail of the published $2/(\mu(t+2))$, without its first steps,
    which are unstable if the condition number is large. ``W`` is kept between outer steps.

    Reference: S. Ghadimi, M. Wang, Approximation methods for bilevel programming, arXiv:1802.02246, 2018.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.BSA(), steps=20)
    >>> solution.stats["steps"]
    20
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
        W, ledger = descend(reduced, s, draw, count, lambda number: s.outer.pace * at(schedule, number, s.dtype))
        return self.move_by_series(reduced, s, W, draw, rate, ledger)


class TTSA(SeriesSolver):
    r"""Alternating single steps of the two levels, the outer one on the slower time scale.

    $$W_{k+1} = W_k - \beta_k\, \partial_2 g_\Phi(x_k, W_k), \qquad
    x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v)(x_k, W_{k+1})], \qquad
    \beta_k \propto k^{-2/5}, \quad \alpha_k \propto k^{-3/5},$$
    with ``v`` the randomly cut product of ``BSA``.

    **Arguments**, besides those of every stochastic solver: `neumann` and `terms`, as for ``StocBiO``.

    Reference: M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A two-timescale stochastic algorithm framework for bilevel
    optimization: complexity analysis and application to actor-critic, SIAM Journal on Optimization 33(1), 2023.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.TTSA(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    default_steps = 10_000

    def defaults(self, scales):
        return {
            "inner": PolynomialDecay(scales.inner, 0.4, scales.calm),
            "outer": PolynomialDecay(scales.outer(), 0.6, scales.calm),
        }

    def update(self, reduced, s, draw, rate):
        slope, ledger = oracles.lower_gradient(reduced, s.x, s.W, draw.lower(), s.ledger)
        W = trees.step(s.W, rate.inner, slope)
        return self.move_by_series(reduced, s, W, draw, rate, ledger)


def both_gradients(
    reduced: Bilevel, x: PyTree, W: PyTree, batches: tuple[Batch, ...], series: tuple[Neumann, Draw], ledger: Ledger
) -> tuple[Float[Array, ""], tuple[PyTree, PyTree], Ledger]:
    """The upper value, and the gradient of the lower level with the hypergradient; batches for slope, upper, cross."""
    for_slope, for_upper, for_cross = batches
    slope, ledger = oracles.lower_gradient(reduced, x, W, for_slope, ledger)
    value, gradient, _, ledger = hypergradient(reduced, x, W, for_upper, for_cross, *series, ledger)
    return value, (slope, gradient), ledger


class RecursiveMomentum(SeriesSolver):
    """Recursive momentum on the lower gradient and on the hypergradient."""

    schedules = ("inner", "outer", "momentum")
    loops: ClassVar[float] = 1  # how fast x may move against the lower level

    momentum: Schedule = eqx.field(converter=traced, default=None)

    def defaults(self, scales):
        return recursive_schedules(scales, self.loops)

    def begin(self, reduced, start, ledger):
        return Previous(reduced.x0, start.W, (trees.zeros(start.W), trees.zeros(reduced.x0))), ledger

    def update(self, reduced, s, draw, rate):
        batches = (draw.lower(), draw.upper(), draw.lower())
        series = self.drawn_series(s, draw)
        value, here, ledger = both_gradients(reduced, s.x, s.W, batches, series, s.ledger)
        _, there, ledger = both_gradients(reduced, s.memory.x, s.memory.W, batches, series, ledger)
        slope, gradient = storm(s.memory.estimates, here, there, jnp.where(s.step == 0, 1, rate.momentum))
        memory, W = Previous(s.x, s.W, (slope, gradient)), trees.step(s.W, rate.inner, slope)
        return self.move(reduced, s, value, gradient, rate.outer, W=W, memory=memory, ledger=ledger)


class SUSTAIN(RecursiveMomentum):
    r"""Recursive momentum ("STORM") on the lower gradient and on the hypergradient, each batch used at two points:

    $$p_k = \partial_2 g_\Phi(z_k; S_k) + (1 - a_k)\big(p_{k-1} - \partial_2 g_\Phi(z_{k-1}; S_k)\big), \qquad
    q_k = h(z_k; B_k) + (1 - a_k)\big(q_{k-1} - h(z_{k-1}; B_k)\big),$$
    $$W_{k+1} = W_k - \beta_k p_k, \qquad x_{k+1} = P[x_k - \alpha_k q_k], \qquad z_k = (x_k, W_k),$$
    with $h$ the hypergradient by the randomly cut product of ``BSA``, $\alpha_k, \beta_k \propto k^{-1/3}$ and
    $a_k \propto k^{-2/3}$.

    **Arguments**, besides those of every stochastic solver: `momentum` $a_k$; `neumann`, `terms` as for ``StocBiO``.

    Reference: P. Khanduri, S. Zeng, M. Hong, H.-T. Wai, Z. Wang, Z. Yang, A near-optimal algorithm for stochastic
    bilevel optimization via double-momentum, NeurIPS 2021.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.SUSTAIN(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    default_steps = 10_000


class MRBO(RecursiveMomentum):
    r"""Recursive momentum on both levels as in ``SUSTAIN``, with stocBiO's Neumann *sum* in the hypergradient $h$, and
    $$W_{k+1} = W_k - \lambda \eta_k p_k, \qquad x_{k+1} = P[x_k - \gamma \eta_k q_k], \qquad
    \eta_k \propto k^{-1/3}, \quad a_k \propto \eta_k^2 .$$

    **Arguments**, besides those of every stochastic solver (`inner` $\lambda\eta_k$, `outer` $\gamma\eta_k$):
    `momentum` $a_k$; `neumann` and `terms`, as for ``StocBiO``.

    Reference: J. Yang, K. Ji, Y. Liang, Provably faster algorithms for bilevel optimization, NeurIPS 2021.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.MRBO(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    default_steps = 4000
    kind = "sum"
    loops = 4


class VRBO(SeriesSolver):
    r"""Every $q$ outer steps both estimates are taken on a large batch; in between they are corrected by differences.

    $$p \leftarrow p + \partial_2 g_\Phi(z; S) - \partial_2 g_\Phi(z'; S), \qquad q \leftarrow q + h(z; B) - h(z'; B),$$
    with $z'$ the point before $z$, and stocBiO's Neumann sum in the hypergradient $h$. An outer step
    $x_{k+1} = P[x_k - \alpha q]$ is followed by $T$ inner steps $W \leftarrow W - \beta p$, with a correction before
    each of them and one at the end.

    **Arguments**, besides those of every stochastic solver: `period` $q$; `inner_steps` $T$; `large`, the rows of the
    large batch (by default all; for a stream, 16 batches); `neumann` and `terms`, as for ``StocBiO``.

    Reference: J. Yang, K. Ji, Y. Liang, Provably faster algorithms for bilevel optimization, NeurIPS 2021.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.VRBO(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    default_steps = 1000
    counts = (("terms", 1), ("inner_steps", 1), ("period", 1), ("large", 1))

    inner_steps: int = eqx.field(static=True, default=5)
    period: int = eqx.field(static=True, default=10)
    large: int | None = eqx.field(static=True, default=None)

    def defaults(self, scales):
        return {"inner": scales.inner, "outer": scales.outer(self.inner_steps)}

    def begin(self, reduced, start, ledger):
        return (trees.zeros(start.W), trees.zeros(reduced.x0)), ledger

    def update(self, reduced, s, draw, rate):
        linear = self.series(s)

        def anew(ledger):
            upper, lower = draw.large(self.large)
            return both_gradients(reduced, s.x, s.W, (lower, upper, lower), (linear, lambda _: lower), ledger)

        kept = lambda ledger: (s.outer.value, s.memory, ledger)
        value, estimates, ledger = jax.lax.cond(s.step % self.period == 0, anew, kept, s.ledger)
        after = self.move(reduced, s, value, estimates[1], rate.outer)
        rounds = self.inner_steps + 1
        lowers, uppers, free = draw.lowers(2 * rounds), draw.uppers(rounds), draw.independent()

        def correct(t, carry):
            before, W, estimates, ledger = carry
            batches = (lowers(2 * t), uppers(t), lowers(2 * t + 1))
            series = (linear, lambda j: free(t * linear.terms + j))
            _, here, ledger = both_gradients(reduced, after.x, W, batches, series, ledger)
            _, there, ledger = both_gradients(reduced, *before, batches, series, ledger)
            estimates = storm(estimates, here, there, 0.0)
            onward = jnp.where(t < self.inner_steps, rate.inner, 0)
            return (after.x, W), trees.step(W, onward, estimates[0]), estimates, ledger

        _, W, memory, ledger = jax.lax.fori_loop(0, rounds, correct, ((s.x, s.W), s.W, estimates, ledger))
        return replace(after, W=W, memory=memory, ledger=ledger)
