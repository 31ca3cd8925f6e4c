"""``SABA``: SOBA with a table of past gradients, for finite sums (Dagréou et al. 2022)."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import trees
from ..checks import fits
from ..derivatives import oracles
from ..iteration.schedules import Schedule, traced
from ..iteration.stochastic import Stochastic
from ..reduction.batches import Batch
from ..reduction.reduced import Reduced
from ..reduction.row_order import Rows
from .parts import tabulated


class Table(eqx.Module):
    """Per-sample terms at the point where each sample was last seen, in ``y`` and ``x``, and their pool means."""

    rows: PyTree[Array]
    means: PyTree[Array]


def mean(batch: Batch, rows: PyTree) -> PyTree:
    """Batch means: of terms in ``y`` as coefficients, of terms in ``x`` as they are. Rows: ``(in y, in x)``."""
    return oracles.spread(batch, rows[0]), oracles.mean(batch, rows[1])


def refresh(table: Table, pool: Batch, batch: Batch, rows: Rows, new: PyTree) -> tuple[PyTree, Table]:
    r"""SAGA: the estimate $\frac1b\sum_{i \in B}(t_i^{new} - t_i) + \bar t$, and the table with the new terms in it."""
    change = jax.tree.map(lambda a, b: a - b[rows.index], new, table.rows)
    shift = mean(batch, change)
    place = jnp.where(rows.share > 0, rows.index, len(pool))  # rows that only fill up a batch fall outside
    kept = jax.tree.map(lambda old, fresh: old.at[place].set(fresh, mode="drop"), table.rows, new)
    part = rows.count / len(pool)
    means = jax.tree.map(lambda old, d: old + part.astype(d.dtype) * d, table.means, shift)
    return trees.add(shift, table.means), Table(kept, means)


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
    default_steps = 50_000
    schedules = ("inner", "linear", "outer")

    linear: Schedule = eqx.field(converter=traced, default=None)
    average: float = eqx.field(converter=traced, default=0.0, kw_only=True)
    tolerance: float = eqx.field(converter=traced, default=1e-8, kw_only=True)

    def __check_init__(self):
        if not self.shuffle:
            raise ValueError("SABA: its table needs batches without repeated rows; leave shuffle at True.")

    def prepare(self, reduced: Reduced) -> Reduced:
        size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
        dx, dy, item = size(reduced.x0), size(reduced.problem.y0), jax.tree.leaves(reduced.W0)[0].dtype.itemsize
        below, above = reduced.lower_source.rows or 0, reduced.upper_source.rows or 0
        fits("SABA", "its table", ((2 * dy + dx) * below + (dy + dx) * above) * item, "SPABA, SOBA or SUSTAIN")
        return tabulated(reduced, "SABA")

    def defaults(self, scales):
        loops = jnp.minimum(1, scales.condition / scales.epoch)  # what is remembered is up to an epoch old
        return {"inner": scales.inner / 2, "linear": scales.inner / 2, "outer": scales.outer(loops) / 4}

    def begin(self, reduced, start, ledger):
        above, below, x = reduced.upper_pool, reduced.lower_pool, reduced.x0
        (d2, product, cross), ledger = oracles.lower_rows(reduced, x, start.W, start.v, below, ledger)
        (_, d1, pull), ledger = oracles.upper_rows(reduced, x, start.W, above, ledger)
        lower, upper = ((d2, product), cross), (pull, d1)
        return (start.v, Table(lower, mean(below, lower)), Table(upper, mean(above, upper))), ledger

    def update(self, reduced, s, draw, rate):
        v, lower, upper = s.memory
        pools = reduced.upper_pool, reduced.lower_pool
        above, below = draw.rows()
        batches = pools[0].take(above), pools[1].take(below)
        (values, d1, pull), ledger = oracles.upper_rows(reduced, s.x, s.W, batches[0], s.ledger)
        (d2, product, cross), ledger = oracles.lower_rows(reduced, s.x, s.W, v, batches[1], ledger)
        (pull, d1), upper = refresh(upper, pools[0], batches[0], above, (pull, d1))
        ((d2, product), cross), lower = refresh(lower, pools[1], batches[1], below, ((d2, product), cross))
        s = replace(
            s,
            W=trees.step(s.W, rate.inner, d2),
            memory=(trees.step(v, rate.linear, trees.sub(product, pull)), lower, upper),
            value=oracles.mean(batches[0], values),
            ledger=ledger,
        )
        return self.move(reduced, s, trees.sub(d1, cross), rate.outer)
