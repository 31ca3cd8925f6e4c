"""``SABA``: SOBA with a table of past gradients, for finite sums (Dagréou et al. 2022)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import trees
from ..checks import fits
from ..derivatives import Directions, oracles
from ..iteration import Schedule, Stochastic, traced
from ..programs import program
from ..reduction import Batch, RowIndex
from .parts import constant_schedules, tabulated


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
        part = jnp.asarray(rows.count / len(pool))
        means = jax.tree.map(lambda old, d: old + part.astype(d.dtype) * d, self.means, shift)
        return trees.add(shift, self.means), PastTerms(kept, means)


class SABA(Stochastic):
    r"""The three steps of ``SOBA``, with each of the five terms $\partial_2 g, \partial_{22} g v, \partial_{12} g v,
    \partial_1 f, \partial_2 f$ estimated as in SAGA: fresh terms minus remembered ones, plus the mean of the table.
    Steps are constant, and convergence on a finite sum is linear.

    The table holds numbers for each sample. Terms in the coefficients are (term in $y$) $\Phi^T$, so only the terms in
    ``y`` and ``x`` are kept: ``2 d_y + d_x`` numbers for each row of the lower level and ``d_y + d_x`` for each of the
    upper. Refused where that would not fit.

    **Arguments**, besides those of every stochastic solver: `linear`, the step of the linear system. Ends by itself
    where `tolerance` is met.

    Reference: M. Dagréou, P. Ablin, S. Vaiter, T. Moreau, A framework for bilevel optimization that enables stochastic
    and global variance reduction algorithms, NeurIPS 2022.
    """

    exact = True
    keeps_rows = True
    default_steps = 50_000
    schedules = ("inner", "linear", "outer")

    linear: Schedule = eqx.field(converter=traced, default=None)
    average: float = eqx.field(converter=traced, default=0.0, kw_only=True)
    tolerance: float = eqx.field(converter=traced, default=1e-8, kw_only=True)

    def __check_init__(self):
        if not self.shuffle:
            raise ValueError("SABA: its table needs batches without repeated rows; leave shuffle at True.")

    def prepare(self, reduced):
        dx, dy = reduced.problem.sizes
        lower, upper = reduced.lower_source.rows or 0, reduced.upper_source.rows or 0
        numbers = (2 * dy + dx) * lower + (dy + dx) * upper
        fits("SABA", "its table", numbers * reduced.dtype.itemsize, "SPABA, SOBA or SUSTAIN")
        return tabulated(reduced, "SABA")

    def defaults(self, scales):
        return constant_schedules(scales)

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
        toward = Directions.of((d1, pull), (d2, product, cross))
        W, v = trees.step(s.W, rate.inner, toward.lower), trees.step(v, rate.linear, toward.linear)
        value, memory = oracles.mean(upper, values), (v, lower_terms, upper_terms)
        return self.move(reduced, s, value, toward.outer, rate.outer, W=W, memory=memory, ledger=ledger)
