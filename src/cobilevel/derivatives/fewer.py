r"""Few rows in place of all: where passes over all rows are dear, a search begins on a few and ends on all.

A quadrature of the contexts integrates every product of two functions of the basis as all rows do,
$\sum_k w_k\, \Phi_k \Phi_k^T$: nonnegative least squares picks nodes and weights. It serves a level that depends on the
context alone, and one whose derivatives noise enters as a factor, as in sums of squares: there a node takes the mean of
the noise, $w_k\, \eta_k = \sum_i w_i\, L_k(\xi_i)\, \eta_i$ with functions $L_k$ that are 1 at the node and 0 at the
others. Elsewhere a share of the rows is drawn at random.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from ..basis import OneHot
from ..reduction import DENSE_LIMIT, Batch
from .expansion import Expansions
from .rows import AT_ONCE, BLOCK, RowDerivatives
from .sums import RowPool, on_accelerator

_DEAR = 2**20  # numbers in the derivatives of all rows, from which on passes over these are dear
_SHARE = 16  # of so many rows one is drawn
_AMONG = 1000  # rows drawn at random, among which nodes are picked: a quarter of these at most
_MEANS = 16  # operations that the means of noise may take, for each number in the derivatives of all rows


def with_fewer(at: Expansions) -> Expansions:
    """The same, on few rows too where that pays, and on fewer than these."""
    at.fewer = None
    if not at.rows_here or at.dx > DENSE_LIMIT or _numbers(at) < _DEAR:
        return at
    few = _few(at)
    if few is None or 4 * _numbers(few) > _numbers(at):
        return at
    nodal = None
    if few.nodes and _side_by_side(few) is not None:
        few.spread_over = at  # noise is a mean there
        if (nodal := _nodal(at, few)) is not None:
            nodal.spread_over = at
    if at.curved:
        at.fewer = with_fewer(few)
        few.fewer = few.fewer or nodal
    elif nodal is not None and _convex(nodal):
        few.form_few(one_hot=False)
        at.fewer = nodal
        if few.crossed:  # whose matrices do for all rows
            at.form_few(one_hot=False)
            at.fewer, few.fewer = few, nodal
    return at


def _convex(nodal: Expansions) -> bool:
    """Whether the lower level is, at each node, where a search begins: a saddle is left by products alone."""
    W = nodal.inner(nodal.table(nodal.reduced.W0))
    return bool(np.all(np.linalg.eigvalsh(nodal.lower(nodal.start, W).hessian) > 0))


def _numbers(at: Expansions) -> int:
    """Those in the derivatives of all rows."""
    return at.rows["lower"] * at.sizes.lower + at.rows["upper"] * (1 + at.dx + at.dy)


class Nodes(NamedTuple):
    """A quadrature: the rows that are its nodes, and their weights. `lagrange`: the mean of ``L_k`` times something, by
    the means of all products of two functions times that."""

    index: Int[np.ndarray, " k"]  # pyright: ignore[reportIncompatibleMethodOverride]
    weights: Float[np.ndarray, " k"]
    lagrange: Float[np.ndarray, "k m"]

    @staticmethod
    def of(phi: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"], rng: np.random.Generator) -> "Nodes | None":
        """For products of functions with these values; ``None`` where that takes many nodes."""
        from scipy.optimize import nnls

        index, (one, other) = np.sort(rng.permutation(len(phi))[:_AMONG]), np.triu_indices(phi.shape[1])
        some = phi[index].astype(float)
        left, values, right = np.linalg.svd(some[:, one] * some[:, other], full_matrices=False)
        exact = np.finfo(phi.dtype).eps ** 0.5
        rank = int(np.sum(values > exact * values[0]))
        if rank > _AMONG // 4:
            return None
        left, of_products = left[:, :rank], right[:rank] / values[:rank, None]
        weights, _ = nnls(left.T, of_products @ _means(phi, shares))
        used = weights > exact * weights.max()
        lagrange = np.linalg.pinv(left[used]).T @ of_products
        return Nodes(index[used], weights[used] / weights[used].sum(), lagrange)

    def means(self, pool: RowPool, eta: PyTree) -> PyTree:
        """The mean of the noise at each node."""

        def mean(leaf: Any) -> np.ndarray:
            columns = np.asarray(leaf).reshape(len(leaf), -1).T
            means = np.stack([_means(pool.features, pool.shares * column) for column in columns], axis=1)
            return (self.lagrange @ means / self.weights[:, None]).reshape(-1, *leaf.shape[1:]).astype(leaf.dtype)

        return jax.tree.map(mean, eta)


def _few(at: Expansions) -> Expansions | None:
    """On few rows; ``None`` where these hardly see a function that all rows see."""
    rng, shared = np.random.default_rng(0), at.upper_pools is at.lower_pools
    below = at.lower_pools[0], at.reduced.lower_pool
    levels = {"lower": below, "upper": below if shared else (at.upper_pools[0], at.reduced.upper_pool)}
    noisy = {level: getattr(at.problem, level).uses_last_argument() for level in levels}
    nodes: dict[str, Nodes | None] = dict.fromkeys(levels)
    for level in levels:  # rows that the lower level has anyway do for the upper one too
        if not noisy[level] or _is_factor(at, level, *levels[level]):
            features, shares = levels[level][0].features, levels[level][0].shares
            if shared and level == "upper":
                nodes[level] = nodes["lower"]
            elif not isinstance(features, OneHot):
                nodes[level] = Nodes.of(features, shares, rng)
    one = shared and nodes["lower"] is nodes["upper"]

    def few(level: str) -> tuple[RowPool, Batch]:
        pool, batch = levels[level]
        if (found := nodes[level]) is None:
            count = min(len(batch), max(4 * BLOCK, -(-len(batch) // _SHARE)))
            index = np.sort(rng.choice(len(batch), count, replace=False))
            shares, eta = pool.shares[index] / pool.shares[index].sum(), _rows(batch.eta, index)
        else:
            index, shares = found[:2]
            mean = noisy[level] or (one and any(noisy.values()))
            eta = found.means(pool, batch.eta) if mean else _rows(batch.eta, index)
        features, xi = pool.taken(index), _rows(batch.xi, index)
        weight = (len(index) * shares).astype(at.dtype)
        return RowPool(features, shares, pool.rows.like(xi, eta, _side_by_side(at))), Batch(features, xi, eta, weight)

    lower = few("lower")
    if not _alike(lower[0], at):
        return None
    made = at.on_rows(lower, lower if one else few("upper"))
    made.nodes = nodes["lower"] is not None
    return made


def _side_by_side(at: Expansions) -> int | None:
    """Long rows in a block, on a processor: half as many as there are functions, so that threads share few rows, and
    the same programs do for nodes. ``None`` where rows are short."""
    if at.sizes.lower * BLOCK <= AT_ONCE:
        return None
    return BLOCK if on_accelerator() else -(-at.functions // 2)


def _nodal(at: Expansions, few: Expansions) -> Expansions | None:
    """On as many rows as there are functions, where policies may take any values: each row has coefficients and second
    derivatives of its own. ``None`` where these rows would be no quadrature of the functions.

    Rows whose features, made equally long, are the least dependent are about Gauss's nodes. The upper level may have
    the rows that it has in `few`.
    """
    from scipy.linalg import qr

    (pool,), batch = at.lower_pools, at.reduced.lower_pool
    rows = np.sort(np.random.default_rng(0).permutation(len(batch))[:_AMONG])
    phi = pool.features[rows].astype(float)
    order = qr((phi / np.linalg.norm(phi, axis=1, keepdims=True)).T, mode="r", pivoting=True)[-1]
    index = rows[np.sort(order[: phi.shape[1]])]
    phi = pool.features[index].astype(float)
    if np.linalg.matrix_rank(phi) < len(phi):
        return None
    lagrange = np.linalg.solve(phi.T, pool.features.T)  # functions that are 1 at one node and 0 at the others
    weights = lagrange @ pool.shares
    if not np.all(weights > 0):
        return None
    turn, weight = np.sqrt(weights)[:, None] * phi, (len(index) * weights).astype(at.dtype)

    def noise(leaf: np.ndarray) -> np.ndarray:
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf[index]
        return (np.tensordot(lagrange * pool.shares, leaf, axes=1).T / weights).T.astype(leaf.dtype)

    xi, eta = _rows(batch.xi, index), jax.tree.map(lambda leaf: noise(np.asarray(leaf)), batch.eta)
    features = OneHot(np.arange(len(index)), (weights**-0.5).astype(at.dtype), len(index))
    lower = upper = (
        RowPool(features, weights, pool.rows.like(xi, eta, _side_by_side(at))),
        Batch(features, xi, eta, weight),
    )
    if few.upper_pools is not few.lower_pools:
        (above,), batch = few.upper_pools, few.reduced.upper_pool
        turned = np.linalg.solve(turn.T, above.features.T.astype(float)).T.astype(at.dtype)
        upper = replace(above, features=turned), replace(batch, features=turned)
    made = at.on_rows(lower, upper)
    made.nodal = turn
    made.form_few(one_hot=True)
    return made if made.crossed else None


def _rows(tree: PyTree, index: Any) -> PyTree:
    """Some rows."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], tree)


def _means(phi: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, " m"]:
    """The means of all products of two functions."""
    gram = (phi.T * shares.astype(phi.dtype)) @ phi
    return gram[np.triu_indices(len(gram))].astype(float)


def _is_factor(at: Expansions, level: str, pool: RowPool, batch: Batch) -> bool:
    """Whether noise enters the derivatives of a level as a factor: those at the middle of two rows' noise are in the
    middle of theirs, wherever one looks, and do not jump."""
    objective, leaves = getattr(at.problem, level), jax.tree.leaves(batch.eta)
    numbers = sum(leaf.size for leaf in leaves)
    if pool.features.shape[1] ** 2 * numbers > _MEANS * _numbers(at) or objective.may_jump_with_last():
        return False
    if len(batch) < 8 or not all(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves):
        return False
    rng, (lo, hi) = np.random.default_rng(0), at.bounds
    index = rng.permutation(len(batch))[:8]
    eta = _rows(batch.eta, index)
    middle = jax.tree.map(lambda leaf: (leaf[::2] + leaf[1::2]) / 2, eta)
    three = jax.tree.map(lambda leaf, half: np.concatenate([leaf[::2], leaf[1::2], half]), eta, middle)
    rows = pool.rows.like(np.tile(_rows(batch.xi, index[::2]), (3, *[1] * (batch.xi.ndim - 1))), three)
    lower = level == "lower"
    made = RowDerivatives.lower(objective, rows, at.crossed) if lower else RowDerivatives.upper(objective, rows)
    start = pool.taken(index[::2]) @ at.table(at._W0)
    for reach in 0.5 * 10.0 ** -np.arange(4):  # of the way to twice the start: where derivatives are finite
        off = lambda z, reach=reach: z + reach * (1 + np.abs(z)) * rng.uniform(-1, 1, z.shape)
        x, y = np.clip(off(at.start), lo, hi), np.tile(off(start), (3, 1))
        derivatives = made.table(at.point(x), y)[:, 1:]
        if np.all(np.isfinite(derivatives)):
            one, other, between = np.split(derivatives, 3)
            size = np.max(np.abs(np.stack([one, other])), axis=(0, 1))
            rounding = at.eps**0.75 * np.max(size)
            return bool(np.all(np.abs(between - (one + other) / 2) <= at.eps**0.5 * size + rounding))
    return False


def _alike(few: RowPool, at: Expansions) -> bool:
    """Whether functions of the basis, which are orthonormal over all rows, are nearly so over few."""
    phi = few.features
    squares = phi.blocks(few.shares) if isinstance(phi, OneHot) else np.linalg.eigvalsh((phi.T * few.shares) @ phi)
    seen = np.sort(squares)[np.count_nonzero(at.idle) :]
    return bool(np.all((seen >= 0.5) & (seen <= 2)))
