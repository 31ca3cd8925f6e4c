"""One step of lower level, linear system and decision at a time: ``SOBA``, ``SABA``, ``SPABA``, ``FdeHBO``."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ..derivatives import Directions, directions, oracles
from ..ground import arithmetic, fits, program, trees
from ..iteration import PolynomialDecay, Schedule, Start, Stochastic, StochasticState, at, check_schedule, storm, traced
from ..reduction import Batch, Bilevel, RowIndex
from .parts import recursive_schedules, tabulated


class SingleLoop(Stochastic):
    """Steps along estimates of three directions (see ``Directions``), all at ``(x, W, v)``; `linear`: in ``v``."""

    schedules = ("inner", "linear", "outer")

    linear: Schedule = eqx.field(converter=traced, default=None)

    def follow(
        self, reduced: Bilevel, s: StochasticState, v: PyTree, rate: Any, found: tuple, *more: Any
    ) -> StochasticState:
        """The next state, from the upper value, the directions and the ledger; it remembers the adjoint, and `more`."""
        value, toward, ledger = found
        W, v = trees.step(s.W, rate.inner, toward.lower), trees.step(v, rate.linear, toward.linear)
        memory = (v, *more) if more else v
        return self.move(reduced, s, value, toward.outer, rate.outer, W=W, memory=memory, ledger=ledger)


def _no_directions(reduced: Bilevel, start: Start) -> tuple[PyTree, PyTree, Directions]:
    """Before the first step of recursive estimates: the adjoint, the point before, the estimates there."""
    nothing = Directions(trees.zeros(start.W), trees.zeros(start.W), trees.zeros(reduced.x0))
    return start.v, (reduced.x0, start.W, start.v), nothing


class SOBA(SingleLoop):
    r"""$$W_{k+1} = W_k - \beta_k\, \partial_2 g_\Phi, \qquad
    v_{k+1} = v_k - \gamma_k (\partial_{22} g_\Phi v_k - \partial_2 f_\Phi), \qquad
    x_{k+1} = P[x_k - \alpha_k (\partial_1 f_\Phi - \partial_{12} g_\Phi v_k)],$$
    all at $(x_k, W_k, v_k)$, with steps $\propto k^{-1/2}$.

    **Arguments**, besides those of every stochastic solver: `linear`, the step $\gamma$ of the linear system.

    Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization that enables stochastic
    and global variance reduction algorithms, NeurIPS 2022.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.SOBA(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    def defaults(self, scales):
        inner = PolynomialDecay(scales.inner, 0.5, scales.calm)
        return {"inner": inner, "linear": inner, "outer": PolynomialDecay(scales.outer(0.5), 0.5, scales.calm)}

    def begin(self, reduced, start, ledger):
        return start.v, ledger

    def update(self, reduced, s, draw, rate):
        found = directions(reduced, s.x, s.W, s.memory, draw.upper(), draw.lower(), s.ledger)
        return self.follow(reduced, s, s.memory, rate, found)


class VarianceReduced(SingleLoop):
    """Estimates whose noise vanishes at the solution: with constant steps, convergence on a finite sum is linear."""

    exact = True
    default_steps = 50_000

    average: float = eqx.field(converter=traced, default=0.0, kw_only=True)
    tolerance: float = eqx.field(converter=traced, default=1e-8, kw_only=True)

    def defaults(self, scales):
        loops = arithmetic(scales).minimum(1, scales.condition / scales.epoch)  # memories are up to an epoch old
        return {"inner": scales.inner / 2, "linear": scales.inner / 2, "outer": scales.outer(loops) / 4}


def _pool_means(batch: Batch, terms: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    """Batch means of terms ``(in y, in x)``: the former as coefficients, the latter as they are."""
    return oracles.mean_with_features(batch, terms[0]), oracles.mean(batch, terms[1])


class PastTerms(eqx.Module):
    """Per-sample terms ``(in y, in x)`` at the point where each sample was last seen, and their pool means."""

    rows: tuple[PyTree[Array], PyTree[Array]]
    means: tuple[PyTree[Array], PyTree[Array]]

    def refresh(
        self, pool: Batch, batch: Batch, rows: RowIndex, new: tuple[PyTree, PyTree]
    ) -> tuple[tuple[PyTree, PyTree], "PastTerms"]:
        r"""SAGA: the estimate $\frac1b\sum_{i \in B}(t_i^{new} - t_i) + \bar t$; and with the new terms in place."""
        change = jax.tree.map(lambda a, b: a - b[rows.index], new, self.rows)
        shift = _pool_means(batch, change)
        place = jnp.where(rows.share > 0, rows.index, len(pool))  # rows that only fill up a batch fall outside
        # the change is added, not the new put in its place: what is read before it is written need not be copied
        kept = jax.tree.map(lambda old, d: old.at[place].add(d, mode="drop"), self.rows, change)
        part = lambda dtype: jnp.asarray(rows.count, dtype) / len(pool)  # in full: the means are never taken anew
        means = jax.tree.map(lambda old, d: old + part(d.dtype) * d, self.means, shift)
        return trees.add(shift, self.means), PastTerms(kept, means)


class SABA(VarianceReduced):
    r"""The three steps of ``SOBA``, with each of the five terms $\partial_2 g, \partial_{22} g v, \partial_{12} g v,
    \partial_1 f, \partial_2 f$ estimated as in SAGA: fresh terms minus remembered ones, plus the mean of the table.
    Steps are constant, and convergence on a finite sum is linear.

    The table holds numbers for each sample. Terms in the coefficients are (term in $y$) $\Phi^T$, so only the terms in
    ``y`` and ``x`` are kept: ``2 d_y + d_x`` numbers for each row of the lower level and ``d_y + d_x`` for each of the
    upper level. Raises if that does not fit in memory.

    **Arguments**, besides those of every stochastic solver: `linear`, the step of the linear system. Stops when
    `tolerance` is met.

    Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization that enables stochastic
    and global variance reduction algorithms, NeurIPS 2022.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.SABA(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    def __check_init__(self):
        if not self.shuffle:
            raise ValueError("SABA: its table needs batches without repeated rows; leave shuffle at True.")

    def prepare(self, reduced):
        dx, dy = reduced.problem.sizes
        lower, upper = reduced.lower_source.rows or 0, reduced.upper_source.rows or 0
        numbers = (2 * dy + dx) * lower + (dy + dx) * upper
        fits("SABA", "its table", numbers * reduced.dtype.itemsize, "SPABA, SOBA or SUSTAIN")
        return super().prepare(tabulated(reduced, "SABA"))

    @program
    def begin(self, reduced, start, ledger):
        upper, lower, x = reduced.upper_pool, reduced.lower_pool, reduced.x0
        (d2, product, cross), ledger = oracles.lower_rows(reduced, x, start.W, start.v, lower, ledger)
        (_, d1, pull), ledger = oracles.upper_rows(reduced, x, start.W, upper, ledger)
        terms = ((lower, ((d2, product), cross)), (upper, (pull, d1)))
        return (start.v, *(PastTerms(rows, _pool_means(pool, rows)) for pool, rows in terms)), ledger

    def update(self, reduced, s, draw, rate):
        v, lower_terms, upper_terms = s.memory
        upper_pool, lower_pool = reduced.upper_pool, reduced.lower_pool
        upper_rows, lower_rows = draw.rows("upper"), draw.rows("lower")
        upper, lower = upper_pool.take(upper_rows), lower_pool.take(lower_rows)
        (values, d1, pull), ledger = oracles.upper_rows(reduced, s.x, s.W, upper, s.ledger)
        (d2, product, cross), ledger = oracles.lower_rows(reduced, s.x, s.W, v, lower, ledger)
        (pull, d1), upper_terms = upper_terms.refresh(upper_pool, upper, upper_rows, (pull, d1))
        fresh = ((d2, product), cross)
        ((d2, product), cross), lower_terms = lower_terms.refresh(lower_pool, lower, lower_rows, fresh)
        pull, d2, product = map(reduced.slope, (pull, d2, product))
        toward = Directions.of((d1, pull), (d2, product, cross))
        found = (oracles.mean(upper, values), toward, ledger)
        return self.follow(reduced, s, v, rate, found, lower_terms, upper_terms)


class SPABA(VarianceReduced):
    r"""The three steps of ``SOBA`` along estimates $D_k$ of its directions, by the PAGE rule: with probability $p$ (and
    at first) $D_k$ is taken on all samples, else
    $$D_k = D_{k-1} + D(z_k; B_k) - D(z_{k-1}; B_k), \qquad z = (x, W, v).$$

    **Arguments**, besides those of every stochastic solver: `linear`, the step of the linear system; `probability` $p$,
    by default the share of a batch in batch and large batch together; `large`, the rows of the large batch: by default
    all, which makes convergence linear; for a stream, 16 batches. Stops when `tolerance` is met.

    Reference: T. Chu, D. Xu, W. Yao, J. Zhang, SPABA: a single-loop and probabilistic stochastic bilevel algorithm
    achieving optimal sample complexity, ICML 2024.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.SPABA(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    counts = (("large", 1),)

    probability: Any = eqx.field(converter=traced, default=None)
    large: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_schedule("SPABA: probability", self.probability, 1.0)

    def begin(self, reduced, start, ledger):
        return _no_directions(reduced, start), ledger

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
        found = jax.lax.cond(full, anew, onward, s.ledger)
        return self.follow(reduced, s, v, rate, found, (s.x, s.W, v), found[1])


class FdeHBO(SingleLoop):
    r"""The three directions of ``SOBA``, with both products by central differences of first derivatives,

    $$\partial_{22} g_\Phi v \approx
    \frac{\partial_2 g_\Phi(x, W + \delta v) - \partial_2 g_\Phi(x, W - \delta v)}{2\delta},
    \qquad \partial_{12} g_\Phi v \approx \frac{\partial_1 g_\Phi(x, W + \delta v) - \partial_1 g_\Phi(x, W - \delta
    v)}{2\delta},$$
    recursive momentum on all three, and ``v`` projected onto a ball.

    **Arguments**, besides those of every stochastic solver: `linear`, the step of the linear system; `momentum`, by
    default $\propto k^{-2/3}$; `difference`, $\delta |v|$ relative to $1 + |W|$, by default the cube root of the
    precision; `radius` of the ball, by default ten times the largest adjoint the measured scales allow.

    Reference: Y. Yang, P. Xiao, K. Ji, Achieving O(eps^-1.5) complexity in Hessian/Jacobian-free stochastic bilevel
    optimization, NeurIPS 2023.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), solver=cb.FdeHBO(), steps=20)
    >>> solution.stats["steps"]
    20
    """

    schedules = ("inner", "linear", "outer", "momentum", "radius")

    momentum: Schedule = eqx.field(converter=traced, default=None)
    radius: Schedule = eqx.field(converter=traced, default=None)
    difference: Schedule = eqx.field(converter=traced, default=None)

    def __check_init__(self):
        check_schedule("FdeHBO: difference", self.difference)

    def defaults(self, scales):
        rates = recursive_schedules(scales, 0.5)
        radius = 10 * arithmetic(scales).maximum(scales.pull, scales.steep) / scales.convex
        return {**rates, "linear": rates["inner"], "radius": radius}

    def begin(self, reduced, start, ledger):
        return _no_directions(reduced, start), ledger

    def update(self, reduced, s, draw, rate):
        v, before, estimate = s.memory
        upper, lower, eps = draw.upper(), draw.lower(), jnp.finfo(s.dtype).eps
        share = eps ** (1 / 3) if self.difference is None else at(self.difference, s.step, s.dtype)

        def toward(x, W, v, ledger):
            (value, d1, d2), ledger = oracles.upper_gradients(reduced, x, W, upper, ledger)
            slope, ledger = oracles.lower_gradient(reduced, x, W, lower, ledger)
            delta = share * (1 + trees.norm(W)) / jnp.maximum(trees.norm(v), eps)
            ahead, ledger = oracles.lower_gradients(reduced, x, trees.step(W, -delta, v), lower, ledger)
            behind, ledger = oracles.lower_gradients(reduced, x, trees.step(W, delta, v), lower, ledger)
            cross, product = trees.scale(1 / (2 * delta), trees.sub(ahead, behind))
            return value, Directions.of((d1, d2), (slope, product, cross)), ledger

        value, new, ledger = toward(s.x, s.W, v, s.ledger)
        _, old, ledger = toward(*before, ledger)
        estimate = storm(estimate, new, old, jnp.where(s.step == 0, 1, rate.momentum))
        W = trees.step(s.W, rate.inner, estimate.lower)
        z = trees.clip_norm(trees.step(v, rate.linear, estimate.linear), rate.radius)
        memory = (z, (s.x, s.W, v), estimate)
        return self.move(reduced, s, value, estimate.outer, rate.outer, W=W, memory=memory, ledger=ledger)
