r"""Expansions: what a basis makes of row derivatives. Each is a sum over rows: blocks, devices and machines add up.

With features $\Phi$ and shares $w$ of the rows,
$$g_\Phi,\quad \partial_2 g_\Phi = \sum w\, \partial_2 g\, \Phi^T,\quad
\partial_{22} g_\Phi = \sum w\, \partial_{22} g \otimes \Phi\Phi^T,\quad
\partial_{21} g_\Phi = \sum w\, \partial_{21} g \otimes \Phi,\quad f_\Phi,\ \partial_1 f_\Phi,\ \partial_2 f_\Phi .$$
Nothing else of the data is needed to solve the reduced problem. Coefficients are tables with a row for each function,
and Hessians are over these tables row by row; where each sample has one function alone, they are one block a function.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..basis import OneHot
from ..cluster import this_cluster
from ..programs import is_spread, put
from ..reduction import Bilevel, Table
from ..trees import as_rows, flattened, shaped_like
from . import oracles
from .ledger import Ledger
from .on_device import in_use
from .rows import LowerRows, RowBlocks, RowDerivatives, Sizes, UpperRows, flat_size
from .sums import LowerExpansion, RowPool, RowScales, UpperExpansion, pools_of, squares

_MOST_COEFFICIENTS = 2000  # whose Hessian is formed; beyond, only its products with vectors are
_MOST_ROW_NUMBERS = 10_000_000  # in the gradients of single rows, where rows are large
_LOOKED_AT = 1000  # rows at which functions are looked at first
_MOST_CROSS = 4_000_000  # numbers of ``d21 g_Phi`` that are formed, and 2^14 of a row's


@eqx.filter_jit
def _slope(bare: Bilevel, x: PyTree, W: PyTree) -> Any:
    value, _ = oracles.lower_value(bare, x, W, bare.lower_pool, Ledger.page())
    return value, oracles.lower_gradient(bare, x, W, bare.lower_pool, Ledger.page())[0]


@eqx.filter_jit
def _hessian_product(bare: Bilevel, x: PyTree, W: PyTree, V: PyTree) -> Any:
    return oracles.hessian_vector(bare, x, W, V, bare.lower_pool, Ledger.page())[0]


@eqx.filter_jit
def _cross_product(bare: Bilevel, x: PyTree, W: PyTree, V: PyTree) -> Any:
    return oracles.cross_product(bare, x, W, V, bare.lower_pool, Ledger.page())[0]


@eqx.filter_jit
def _upper_gradients(bare: Bilevel, x: PyTree, W: PyTree) -> Any:
    return oracles.upper_gradients(bare, x, W, bare.upper_pool, Ledger.page())[0]


@eqx.filter_jit
def _row_sizes(bare: Bilevel, x: PyTree, W: PyTree, V: PyTree, most: int) -> Any:
    """Of evenly spaced rows: ``f``, ``d1 f``, ``d12 g v``, ``d2 g``, ``d12 g d2 g``; and the weights of both levels."""
    every = lambda pool: max(1, -(-len(pool) // max(most, 1)))
    some = lambda pool: jax.tree.map(lambda a: a[:: every(pool)], replace(pool, count=None))
    upper, lower = some(bare.upper_pool), some(bare.lower_pool)
    (values, d1, _), _ = oracles.upper_rows(bare, x, W, upper, Ledger.page())
    (slope, _, cross), _ = oracles.lower_rows(bare, x, W, V, lower, Ledger.page())
    turned = oracles.cross_rows(bare, x, W, slope, lower)
    return values, d1, cross, slope, turned, (upper.weight, lower.weight)


class Expansions:
    """All that exact methods ask of a reduced problem, and how often they did (`spent`, by kind of oracle).

    `formed`: whether the Hessian of the lower level is; else it comes as products with vectors. `crossed`: whether
    ``d21 g_Phi`` is. Points are vectors, coefficients tables with a row for each function. `curvature`: of the upper
    objective along ``x``, about, where it is known beforehand.
    """

    curvature: Float[np.ndarray, "dx dx"] | None = None

    def __init__(self, reduced: Bilevel, rows: Mapping[str, RowBlocks] | None = None):
        """`rows`: those of the levels, ``"upper"`` and ``"lower"``, where they are laid out already."""
        self.reduced, self.problem, self._blocks = reduced, reduced.problem, rows or {}
        self._x0, self._W0 = jax.tree.map(np.asarray, (reduced.x0, reduced.W0))
        self.start, bounds = flattened(self._x0), reduced.problem.bounds
        self.bounds = (flattened(bounds.lo), flattened(bounds.hi))
        self.dx, self.dy = flat_size(self._x0), flat_size(jax.tree.map(lambda a: a[0], self._W0))
        self.dtype, self.eps = np.dtype(reduced.dtype), float(np.finfo(reduced.dtype).eps)
        self._form(len(jax.tree.leaves(self._W0)[0]), isinstance(reduced.lower_pool.features, OneHot))
        self._spread = (
            is_spread(reduced.lower_source.table.weight) if isinstance(reduced.lower_source, Table) else False
        )
        self.spent: Counter[tuple[str, str]] = Counter()
        self._programs: dict[tuple[str, bool, int], RowDerivatives] = {}
        self._last: tuple[Any, LowerExpansion] | None = None  # asked for twice where one method goes on from another

    def _form(self, functions: int, one_hot: bool) -> None:
        """Settles what is formed with so many functions."""
        count = functions * self.dy
        self.functions, self.formed = functions, (count * self.dy if one_hot else count**2) <= _MOST_COEFFICIENTS**2
        crossed = self.formed and self.dx * self.dy <= 2**14 and self.dx * count <= _MOST_CROSS
        self.sizes = Sizes(self.dx, self.dy, crossed)

    @property
    def crossed(self) -> bool:
        return self.sizes.crossed

    def with_features(
        self, lower: Float[np.ndarray, "n N"], upper: Float[np.ndarray, "m N"] | None = None
    ) -> "Expansions":
        """The same rows, all on this machine, with other features: `upper` where that level has rows of its own. Row
        blocks and what was `spent` are shared."""
        other, below = copy(self), np.asarray(lower, self.dtype)
        above = None if upper is None else np.asarray(upper, self.dtype)
        other.lower_pools = [replace(pool, features=below) for pool in self.lower_pools]
        other.upper_pools = other.lower_pools
        if above is not None:
            other.upper_pools = [replace(pool, features=above) for pool in self.upper_pools]
        other._W0 = self.coefficients(np.zeros((lower.shape[1], self.dy)))
        other._form(lower.shape[1], False)
        if not other.crossed:  # products are taken of the reduced problem itself
            tabled = lambda source, phi: source.tabled(features=put(phi))
            source = tabled(self.reduced.lower_source, below)
            both = source if above is None else tabled(self.reduced.upper_source, above)
            other.reduced = replace(self.reduced, upper_source=both, lower_source=source, W0=put(other._W0))
        other.__dict__.pop("idle", None)
        other._last = None
        return other

    # -- the rows of both levels

    @cached_property
    def lower_pools(self) -> list[RowPool]:
        """Those of the lower level."""
        return pools_of(self.reduced.lower_pool, self.dtype, self.sizes.lower, self._blocks.get("lower"))

    @cached_property
    def upper_pools(self) -> list[RowPool]:
        """Those of the upper level; the same objects where both see the same."""
        if self.reduced.upper_source is self.reduced.lower_source:
            return self.lower_pools
        return pools_of(self.reduced.upper_pool, self.dtype, 1 + self.dx + self.dy, self._blocks.get("upper"))

    @cached_property
    def rows(self) -> dict[str, int]:
        """How many rows each level has, of all machines."""
        levels = {"lower": self.reduced.lower_pool, "upper": self.reduced.upper_pool}
        return {name: len(pool) if pool.count is None else int(pool.count) for name, pool in levels.items()}

    @cached_property
    def idle(self) -> Bool[np.ndarray, " N"]:
        """Which functions are zero at every row that counts."""
        return self._added([_counted_functions(pool) for pool in self.lower_pools]) == 0

    def with_shares(self, lower: Float[np.ndarray, " n"], upper: Float[np.ndarray, " m"] | None = None) -> "Expansions":
        """The same rows with other shares, which add up to 1; those of the lower level for both where they are one."""
        other = copy(self)
        other.lower_pools = [replace(pool, shares=lower) for pool in self.lower_pools]
        same = self.upper_pools is self.lower_pools
        other.upper_pools = other.lower_pools
        if not same:
            shares = [pool.shares for pool in self.upper_pools] if upper is None else [upper]
            other.upper_pools = [replace(pool, shares=own) for pool, own in zip(self.upper_pools, shares, strict=True)]
        if not self.crossed:  # products are those of the problem itself
            weighted = lambda batch, pool: replace(batch, weight=put((len(batch) * pool.shares).astype(self.dtype)))
            batches = self.reduced.upper_pool, self.reduced.lower_pool
            pools = other.upper_pools[0], other.lower_pools[0]
            other.reduced = self.reduced.with_pools(*map(weighted, batches, pools))
        other.__dict__.pop("idle", None)
        other.spent, other._last = Counter(), None
        return other

    def _added(self, parts: list[Any]) -> Any:
        """What the pools of this machine came to, added up over all machines in the order of their shards."""
        parts = this_cluster().gathered([np.asarray(part, float) for part in parts]) if self._spread else parts
        return sum(parts[1:], parts[0])

    def _charge(self, *kinds: str) -> None:
        for kind in kinds:
            rows = self.rows["upper" if kind.startswith("upper") else "lower"]
            self.spent.update({(kind, "calls"): 1, (kind, "samples"): rows})

    def totals(self) -> dict[str, dict[str, int]]:
        """What was spent: ``{kind: {"calls": ..., "samples": ...}}``."""
        return totals_of(self.spent)

    # -- sums over rows

    def lower(self, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> LowerExpansion:
        """The lower level at ``(x, W)``.

        The coefficients of a function that is zero at every row get the largest curvature there is, so that a Newton
        step leaves them where they are.
        """
        at = (x.tobytes(), W.tobytes())
        if self._last is not None and self._last[0] == at:
            return self._last[1]
        self._charge("hessian", *(["cross_matrix"] if self.crossed else []))
        found = self._summed("lower", LowerExpansion.of, x, W)
        if self.idle.any():
            most = np.diagonal(found.hessian, axis1=-2, axis2=-1).max()
            more = most * np.repeat(self.idle, self.dy)
            blocks = found.hessian.ndim == 3
            more = more.reshape(-1, self.dy)[:, :, None] * np.eye(self.dy) if blocks else np.diag(more)
            found = replace(found, hessian=found.hessian + more)
        self._last = (at, found)
        return found

    def upper(self, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> UpperExpansion:
        """The upper level at ``(x, W)``."""
        self._charge("upper_gradient")
        if self.crossed:
            return self._summed("upper", UpperExpansion.of, x, W)
        value, d1, d2 = _upper_gradients(self.reduced, *self._trees(x, W))
        return UpperExpansion(float(value), flattened(d1), self.table(d2))

    def _summed(self, level: str, of: Callable, x: np.ndarray, W: np.ndarray) -> Any:
        pools = getattr(self, f"{level}_pools")
        kind = {LowerExpansion.of: LowerExpansion, UpperExpansion.of: UpperExpansion}.get(of)
        if in_use() and kind is not None and not self._spread:
            derivatives = self._derivatives(level, pools[0].rows)
            return kind.unpacked(pools[0].on_device.summed(derivatives, level, x, W, self.sizes), W, self.sizes)
        parts = [pool.summed(self._derivatives(level, pool.rows), x, W, of, self.sizes) for pool in pools]
        if len(parts) == 1 and not self._spread:
            return parts[0]
        return type(parts[0])(*(self._added([getattr(part, f.name) for part in parts]) for f in fields(parts[0])))

    def _derivatives(self, level: str, rows: RowBlocks) -> RowDerivatives:
        key = (level, self.crossed, id(rows))
        if key not in self._programs:  # what is kept holds the rows, so that no others get their id
            problem: Any = self.problem
            lower = lambda: RowDerivatives.lower(problem.lower, rows, self.crossed)
            self._programs[key] = lower() if level == "lower" else RowDerivatives.upper(problem.upper, rows)
        return self._programs[key]

    def row_scales(self, x: np.ndarray, W: np.ndarray, V: np.ndarray | None = None, centre: float = 0.0) -> RowScales:
        """The sizes of single rows at ``(x, W)`` with the adjoint ``V``; of ``f`` alone without one, about a centre."""
        if not self.crossed:
            return self._row_scales_by_products(x, W, V, centre)
        nothing = np.zeros(self.dx)

        def upper(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> RowScales:
            rows = sizes.split_upper(packed)
            return RowScales(
                squares(shares, rows.value - centre), squares(shares, rows.d1), nothing, np.zeros(()), nothing
            )

        def lower(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> RowScales:
            rows, v = sizes.split_lower(packed), phi @ V
            along = lambda y: np.einsum("naj,na->nj", rows.cross, y)
            square = np.sum(rows.slope**2, axis=1)
            slopes = squares(shares, square), squares(shares, along(rows.slope))
            return RowScales(np.zeros(()), nothing, squares(shares, along(v)), *slopes)

        self._charge("upper_gradient")
        found = self._summed("upper", upper, x, W)
        if V is None:
            return found
        self._charge("hessian", "cross_matrix")
        return found + self._summed("lower", lower, x, W)

    def _row_scales_by_products(self, x: np.ndarray, W: np.ndarray, V: np.ndarray | None, centre: float) -> RowScales:
        """The same where rows are large: at evenly spaced ones, so few that their gradients fit."""
        self._charge("upper_gradient", "cross_product")
        x, W, V = self._trees(x, W, np.zeros_like(W) if V is None else V)
        values, d1, cross, slope, turned, weights = _row_sizes(self.reduced, x, W, V, _MOST_ROW_NUMBERS // self.dx)
        upper, lower = (weight / weight.sum() for weight in (np.asarray(weight, float) for weight in weights))
        square = np.sum(as_rows(slope) ** 2, axis=1)
        return RowScales(
            squares(upper, np.asarray(values) - centre),
            squares(upper, as_rows(d1)),
            squares(lower, as_rows(cross)),
            squares(lower, square),
            squares(lower, as_rows(turned)),
        )

    # -- sample by sample, on this machine

    def lower_rows(self, x: np.ndarray, W: np.ndarray) -> LowerRows:
        """Sample by sample, at the policy."""
        self._charge("hessian", *(["cross_matrix"] if self.crossed else []))
        tables = [self._derivatives("lower", pool.rows).table(x, pool.y(W)) for pool in self.lower_pools]
        return self.sizes.split_lower(np.concatenate(tables) if len(tables) > 1 else tables[0])

    def upper_rows(self, x: np.ndarray, W: np.ndarray) -> UpperRows:
        """Sample by sample, at the policy."""
        self._charge("upper_gradient")
        (pool,) = self.upper_pools
        return self.sizes.split_upper(self._derivatives("upper", pool.rows).table(x, pool.y(W)))

    def lower_slopes(
        self, x: np.ndarray, y: Float[np.ndarray, "n dy"], rows: RowBlocks | None = None
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dy"]]:
        """``g`` and ``d2 g`` at a ``y`` for each of the leading rows; of other rows, where these are given."""
        (pool,) = self.lower_pools
        self.spent.update({("lower_gradient", "calls"): 1, ("lower_gradient", "samples"): len(y)})
        derivatives = self._derivatives("lower", pool.rows if rows is None else rows)
        found = derivatives.table(x, y, lambda packed, _: packed[:, : 1 + self.dy])
        return found[:, 0], found[:, 1:]

    def residual_rows(
        self, x: np.ndarray, W: np.ndarray, V: np.ndarray, joint: bool
    ) -> tuple[Float[np.ndarray, "n dy"], Float[np.ndarray, "n dy"] | None]:
        r"""Sample by sample: $r = \partial_2 g$ and, where both levels see the same (`joint`),
        $\alpha = \partial_{22} g\, v - \partial_2 f$; tables of second derivatives are not kept."""
        (pool,), sizes, v = self.lower_pools, self.sizes, self.lower_pools[0].y(V)
        self._charge("hessian", *(["cross_matrix"] if self.crossed else []))

        def below(packed: np.ndarray, part: slice) -> np.ndarray:
            rows = sizes.split_lower(packed)
            return np.concatenate([rows.slope, np.einsum("nab,nb->na", rows.hessian, v[part])], axis=1)

        found = self._derivatives("lower", pool.rows).table(x, pool.y(W), below)
        if not joint:
            return found[:, : self.dy], None
        self._charge("upper_gradient")
        pull = self._derivatives("upper", pool.rows).table(x, pool.y(W), lambda packed, _: packed[:, 1 + self.dx :])
        return found[:, : self.dy], found[:, self.dy :] - pull

    def bend_rows(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> Float[np.ndarray, "n dy dy"]:
        r"""$\partial_{22} f - \partial_{222} g\, v$ sample by sample, where both levels see the same."""
        (pool,), problem = self.lower_pools, self.problem
        bend = RowDerivatives.bend(problem.upper, problem.lower, pool.rows)  # pyright: ignore
        table = bend.table(x, np.concatenate([pool.y(W), pool.y(V)], axis=1))
        return table.reshape(len(table), self.dy, self.dy)

    # -- products, where matrices do not fit

    def lower_slope(self, x: np.ndarray, W: np.ndarray) -> tuple[float, np.ndarray]:
        """``g_Phi`` and its gradient."""
        self._charge("lower_value", "lower_gradient")
        value, slope = _slope(self.reduced, *self._trees(x, W))
        return float(value), self.table(slope)

    def hessian_product(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``d22 g_Phi V``."""
        self._charge("hessian_vector")
        x, W, V = self._trees(x, W, V)
        return self.table(_hessian_product(self.reduced, x, W, V))

    def cross_product(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``d12 g_Phi V``, after ``x``."""
        self._charge("cross_product")
        x, W, V = self._trees(x, W, V)
        return flattened(_cross_product(self.reduced, x, W, V))

    # -- vectors and tables, and the pytrees they stand for

    def _trees(self, x: np.ndarray, *tables: np.ndarray) -> tuple[PyTree, ...]:
        return (self.decision(x), *(self.coefficients(W) for W in tables))

    def decision(self, x: Float[np.ndarray, " dx"]) -> PyTree:
        """A vector in the shape of ``x``."""
        return shaped_like(self._x0, x[None], self.dtype, 0)

    def coefficients(self, W: Float[np.ndarray, "N dy"]) -> PyTree:
        """A table in the shape of the coefficients."""
        return shaped_like(self._W0, W, self.dtype, 1)

    def table(self, W: PyTree) -> Float[np.ndarray, "N dy"]:
        """Coefficients as a table, row after row: products with it round alike wherever it came from."""
        return as_rows(W)


def totals_of(spent: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Counts by kind of oracle and unit, as ``{kind: {"calls": ..., "samples": ...}}``."""
    found: dict[str, dict[str, int]] = {}
    for (kind, unit), count in spent.items():
        found.setdefault(kind, {})[unit] = count
    return found


def _counted_functions(pool: RowPool) -> np.ndarray:
    if isinstance(pool.features, OneHot):
        return pool.features.blocks(pool.shares)
    seen = np.any(pool.features[:_LOOKED_AT] * pool.shares[:_LOOKED_AT, None], axis=0)  # most are not zero there
    rest = np.flatnonzero(~seen)
    seen[rest] = np.any(pool.features[:, rest] * pool.shares[:, None], axis=0)
    return seen.astype(float)
