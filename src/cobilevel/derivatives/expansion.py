r"""Expansions: what a basis makes of row derivatives. Each is a sum over rows: blocks and pools add up.

With features $\Phi$ and shares $w$ of the rows,
$$g_\Phi,\quad \partial_2 g_\Phi = \sum w\, \partial_2 g\, \Phi^T,\quad
\partial_{22} g_\Phi = \sum w\, \partial_{22} g \otimes \Phi\Phi^T,\quad
\partial_{21} g_\Phi = \sum w\, \partial_{21} g \otimes \Phi,\quad f_\Phi,\ \partial_1 f_\Phi,\ \partial_2 f_\Phi .$$
Nothing else of the data is needed to solve the reduced problem. Coefficients are tables with a row for each function,
and Hessians are over these tables row by row; where each sample has one function alone, they are one block a function.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..basis import OneHot
from ..ground import as_rows, flattened, put, shaped_like
from ..reduction import DENSE_LIMIT, Batch, Bilevel, EveryPair, FarTable, is_formed
from . import oracles
from .far_sums import far_sums
from .ledger import Ledger
from .rows import AT_ONCE, BLOCK, LowerRows, RowBlocks, RowDerivatives, Sizes, UpperRows, flat_size
from .sums import (
    LowerSums,
    RowPool,
    RowScales,
    Turned,
    lower_sums,
    on_accelerator,
    plus,
    pools_of,
    slope_sums,
    squares,
    total,
    turned_sums,
    upper_sums,
)

_HELD = 2 * AT_ONCE  # numbers: the derivatives of all rows, while a search may ask for their products


@eqx.filter_jit
def _asked(oracle: Callable, reduced: Bilevel, upper: bool, *point: PyTree) -> Any:
    """What an oracle says of all rows of a level."""
    source = reduced.upper_source if upper else reduced.lower_source
    return oracle(reduced, *point, source.whole(), Ledger.page())[0]


@eqx.filter_jit
def _spread_around(reduced: Bilevel, x: PyTree, W: PyTree, centre: Any) -> Any:
    """The mean square of ``f`` over the rows about a centre."""
    values, weights = reduced.values(reduced.problem.upper, x, W, reduced.upper_source.whole())
    return jnp.mean(weights * (values - centre) ** 2)


class Expansions:
    """All that exact methods ask of a reduced problem, and how often they did (`spent`, by kind of oracle).

    `formed`: whether the Hessian of the lower level is; else it comes as products with vectors. `crossed`: whether
    ``d21 g_Phi`` is. Points are vectors, coefficients tables with a row for each function.
    """

    def __init__(self, reduced: Bilevel):
        self.reduced, self.problem = reduced, reduced.problem
        self._x0, self._W0 = jax.tree.map(np.asarray, (reduced.x0, reduced.W0))
        self.start, bounds = flattened(self._x0), reduced.problem.bounds
        self.bounds = (flattened(bounds.lo), flattened(bounds.hi))
        self.dx, self.dy = flat_size(self._x0), flat_size(jax.tree.map(lambda a: a[0], self._W0))
        self.dtype, self.eps = np.dtype(reduced.dtype), float(np.finfo(reduced.dtype).eps)
        self._form(len(jax.tree.leaves(self._W0)[0]), isinstance(reduced.lower_source.contexts_pool().features, OneHot))
        self._far = reduced.lower_source.far if isinstance(reduced.lower_source, FarTable) else None
        if self._far is not None and not self.crossed:
            raise ValueError(
                f"samples in partitions: {self.dx} coordinates of x, {self.dy} of y and {self.functions} functions are "
                "more than one message can hold. Use a smaller basis, or cb.SOBA() on the rows in this process."
            )
        self.spent: Counter[tuple[str, str]] = Counter()
        self._programs: dict[tuple[str, bool, int], RowDerivatives] = {}
        self._prepared: dict[Callable, tuple[tuple[np.ndarray, np.ndarray], Any]] = {}
        self._last: tuple[Any, LowerSums] | None = None  # asked for twice where one method goes on from another
        self.fewer: Expansions | None = None  # on few of the rows, to begin a search with
        self.nodes = False  # whether the rows of the lower level are a quadrature of others
        self.nodal: np.ndarray | None = None  # coefficients here are this times those of whose fewer rows these are
        self.spread_over: Expansions | None = None  # whose objective varies as that of single samples does, else these

    def _form(self, functions: int, one_hot: bool) -> None:
        """Settles what is formed with so many functions."""
        count, most = functions * self.dy, DENSE_LIMIT**2
        every = isinstance(self.reduced.lower_source, EveryPair)
        self.functions, self.formed = functions, is_formed(functions, (self.dx, self.dy), one_hot, every)
        # no more numbers than second derivatives in y have; or so few that blocks of rows are halved once at most
        short = self.dx <= self.dy or self.dx * self.dy * BLOCK <= 2 * AT_ONCE
        crossed = self.formed and short and self.dx * count <= most
        self.sizes = Sizes(self.dx, self.dy, crossed)

    def form_few(self, one_hot: bool) -> None:
        """Forms all, of twice as many coefficients as where rows are many."""
        count, most = self.functions * self.dy, 4 * DENSE_LIMIT**2
        self.formed = count * (self.dy if one_hot else count) <= most
        self.sizes = Sizes(self.dx, self.dy, self.formed and self.dx * count <= most)

    @property
    def crossed(self) -> bool:
        return self.sizes.crossed

    @property
    def curved(self) -> bool:
        """Whether the curvature of the reduced objective can be formed, by products along each coordinate: of the rows
        in this process, where others are in partitions."""
        return self.crossed and self.dx <= DENSE_LIMIT

    @property
    def rows_here(self) -> bool:
        """Whether all rows are in this process."""
        return self._far is None

    @property
    def close(self) -> "Expansions | None":
        """On few rows, whose matrices are taken for those of all, where rows are long."""
        few = self.fewer
        return few if self.long_rows and few is not None and few.nodes and few.nodal is None else None

    @property
    def long_rows(self) -> bool:
        """Whether a row has so many second derivatives that slopes alone are worth a program of their own."""
        return self.formed and self.rows_here and self.sizes.lower * BLOCK > AT_ONCE

    def inner(self, W: Float[np.ndarray, "N dy *k"]) -> Float[np.ndarray, "N dy *k"]:
        """Coefficients of all rows, or how they move, as those of these rows."""
        return W if self.nodal is None else np.tensordot(self.nodal, W, axes=1)

    def outer(self, W: Float[np.ndarray, "N dy *k"]) -> Float[np.ndarray, "N dy *k"]:
        """The other way round."""
        if self.nodal is None:
            return W
        return np.linalg.solve(self.nodal, W.reshape(len(W), -1)).reshape(W.shape)

    # -- the rows of both levels

    @cached_property
    def lower_pools(self) -> list[RowPool]:
        """Those of the lower level."""
        return pools_of(self.reduced.lower_pool, self.dtype, self.sizes.lower)

    @cached_property
    def upper_pools(self) -> list[RowPool]:
        """Those of the upper level; the same objects where both see the same."""
        if self.reduced.upper_source is self.reduced.lower_source:
            return self.lower_pools
        return pools_of(self.reduced.upper_pool, self.dtype, 1 + self.dx + self.dy)

    @cached_property
    def rows(self) -> dict[str, int]:
        """How many rows each level has."""
        return {"lower": self.reduced.lower_source.rows or 0, "upper": self.reduced.upper_source.rows or 0}

    @cached_property
    def idle(self) -> Bool[np.ndarray, " N"]:
        """Which functions are zero at every row that counts."""
        if self._far is not None:  # those have been cut
            return np.zeros(self.functions, bool)

        def seen(pool: RowPool) -> np.ndarray:
            if isinstance(pool.features, OneHot):
                return pool.features.blocks(pool.shares)
            first = slice(0, pool.rows.size)  # most are not zero there
            counts = np.any(pool.features[first] * pool.shares[first, None], axis=0)
            rest = np.flatnonzero(~counts)
            counts[rest] = np.any(pool.features[:, rest] * pool.shares[:, None], axis=0)
            return counts.astype(float)

        return sum(seen(pool) for pool in self.lower_pools) == 0

    def _on(self, lower: list[RowPool], upper: list[RowPool]) -> "Expansions":
        """The same with other pools, which share their rows with these."""
        other = copy(self)
        other.lower_pools, other.upper_pools, other._last, other._prepared, other.fewer = lower, upper, None, {}, None
        other.nodes, other.nodal, other.spread_over = False, None, None
        other.__dict__.pop("idle", None)
        return other

    def on_rows(self, lower: tuple[RowPool, Batch], upper: tuple[RowPool, Batch]) -> "Expansions":
        """The same problem on other rows, as a pool and as a batch of it, with a cost of its own."""
        below = [lower[0]]
        other = self._on(below, below if upper is lower else [upper[0]])
        other.reduced = self.reduced.with_pools(upper[1], lower[1])
        other.rows, other.spent = {"lower": len(lower[1]), "upper": len(upper[1])}, Counter()
        return other

    def with_features(
        self, lower: Float[np.ndarray, "n N"], upper: Float[np.ndarray, "m N"] | None = None
    ) -> "Expansions":
        """The same rows, in one pool, with other features: `upper` where that level has rows of its own. Row
        blocks and what was `spent` are shared."""
        below, above = (None if phi is None else np.asarray(phi, self.dtype) for phi in (lower, upper))
        turned = lambda pools, phi: [replace(pool, features=phi) for pool in pools]
        pools = turned(self.lower_pools, below)
        other = self._on(pools, pools if above is None else turned(self.upper_pools, above))
        other._W0 = self.coefficients(np.zeros((lower.shape[1], self.dy)))
        other._form(lower.shape[1], False)
        if not other.crossed:  # products are taken of the reduced problem itself
            source = self.reduced.lower_source.tabled(features=put(below))
            both = source if above is None else self.reduced.upper_source.tabled(features=put(above))
            other.reduced = replace(self.reduced, upper_source=both, lower_source=source, W0=put(other._W0))
        return other

    def with_shares(self, lower: Float[np.ndarray, " n"], upper: Float[np.ndarray, " m"] | None = None) -> "Expansions":
        """The same rows with other shares, which add up to 1; those of the lower level for both where they are one."""
        shared = lambda pools, shares: [replace(pool, shares=shares) for pool in pools]
        below = shared(self.lower_pools, lower)
        above = self.upper_pools if upper is None else shared(self.upper_pools, upper)
        other = self._on(below, below if self.upper_pools is self.lower_pools else above)
        other._prepared = self._prepared
        if not self.crossed:  # products are taken of the reduced problem itself
            weighted = lambda batch, pool: replace(batch, weight=put((len(batch) * pool.shares).astype(self.dtype)))
            upper_batch = weighted(self.reduced.upper_pool, other.upper_pools[0])
            other.reduced = self.reduced.with_pools(upper_batch, weighted(self.reduced.lower_pool, below[0]))
        other.spent = Counter()
        return other

    def charge(self, *kinds: str) -> None:
        for kind in kinds:
            rows = self.rows["upper" if kind.startswith("upper") else "lower"]
            self.spent.update({(kind, "calls"): 1, (kind, "samples"): rows})

    def _charge_lower(self) -> None:
        self.charge("hessian", *(["cross_matrix"] if self.crossed else []))

    # -- sums over rows

    def point(self, x: Float[np.ndarray, " k"]) -> Float[np.ndarray, " dx"]:
        """The decision at these coordinates."""
        return x

    def _along_x(self, rows: Any) -> Any:
        """Derivatives in ``x``, along the last axis, in these coordinates."""
        return rows

    def steps(self, directions: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "k dx"]:
        """How the decision moves along directions of these coordinates."""
        return directions

    def lower(self, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> LowerSums:
        """The lower level at ``(x, W)``.

        The coefficients of a function that is zero at every row get the largest curvature there is, so that a Newton
        step leaves them where they are.
        """
        at = (x.tobytes(), W.tobytes())
        if self._last is not None and self._last[0] == at:
            return self._last[1]
        self._charge_lower()
        value, slope, diagonal, matrices = self._lower_sums(x, W)
        stiff = np.where(self.idle[:, None], diagonal.max(initial=0.0), np.zeros_like(diagonal))

        def formed() -> tuple[Any, Any]:
            hessian, cross = matrices()
            if self.idle.any():
                view = np.einsum("...ii->...i", hessian)
                view += stiff.reshape(view.shape)
            return hessian, self._along_x(cross) if self.crossed else cross

        sums = LowerSums(value, slope, diagonal + stiff, formed)
        self._last = (at, sums)
        return sums

    def upper(self, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> UpperRows:
        """The upper level at ``(x, W)``."""
        self.charge("upper_gradient")
        if self.crossed:
            sums = self._summed("upper", upper_sums, x, W)
        else:
            value, d1, d2 = _asked(oracles.upper_gradients, self.reduced, True, *self._trees(x, W))
            sums = UpperRows(float(value), flattened(d1), self.table(d2))
        return sums._replace(d1=self._along_x(sums.d1))

    def _lower_sums(self, x: np.ndarray, W: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, Callable]:
        """``g_Phi``, its gradient, the diagonal of its Hessian, and what forms its matrices; these are formed at once
        where the derivatives of all rows cannot be held."""
        (pool, *more), sizes = self.lower_pools, self.sizes
        if self._far is None and not (more or on_accelerator()) and pool.rows.count * sizes.lower <= _HELD:
            return pool.lower_sums(self._derivatives("lower", pool.rows), self.point(x), W, sizes)
        sums = self._summed("lower", lower_sums, x, W)
        diagonal = np.einsum("...ii->...i", sums.hessian).reshape(W.shape)
        return sums.value, sums.slope, diagonal, lambda: (sums.hessian, sums.cross)

    def _summed(self, level: str, of: Callable, x: np.ndarray, W: np.ndarray) -> Any:
        pools, x = self.upper_pools if level == "upper" else self.lower_pools, self.point(x)
        whole = of in (lower_sums, upper_sums, slope_sums, turned_sums)
        if self._far is not None and whole:
            return far_sums(self._far, level == "upper", x, W, self.sizes)
        summed = RowPool.summed_on_device if on_accelerator() and whole else RowPool.summed
        return total(summed(pool, self._derivatives(level, pool.rows), x, W, of, self.sizes) for pool in pools)

    def _derivatives(self, level: str, rows: RowBlocks) -> RowDerivatives:
        key = (level, self.crossed, id(rows))
        if key not in self._programs:  # what is kept holds the rows, so that no others get their id
            problem = self.problem
            made = {
                "lower": lambda: RowDerivatives.lower(problem.lower, rows, self.crossed),
                "slope": lambda: RowDerivatives.slope(problem.lower, rows),
                "turned": lambda: RowDerivatives.turned(problem.lower, rows),
                "upper": lambda: RowDerivatives.upper(problem.upper, rows),
            }
            self._programs[key] = made[level]()
        return self._programs[key]

    def row_scales(self, x: np.ndarray, W: np.ndarray, V: np.ndarray | None = None, centre: float = 0.0) -> RowScales:
        """The sizes of single rows at ``(x, W)`` with the adjoint ``V``; of ``f`` alone without one, about a centre."""
        if not self.crossed:
            return self._row_scales_by_products(x, W, V, centre)
        zero, none, turn = np.zeros(()), np.zeros(self.dx), self._along_x

        def upper(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> RowScales:
            rows = sizes.split_upper(packed)
            return RowScales(squares(shares, rows.value - centre), squares(shares, turn(rows.d1)), none, zero, none)

        def lower(phi: Any, shares: np.ndarray, packed: np.ndarray, sizes: Sizes) -> RowScales:
            rows = sizes.split_lower(packed)
            along = lambda y: squares(shares, turn(np.einsum("naj,na->nj", rows.cross, y)))
            slopes = squares(shares, np.sum(rows.slope**2, axis=1))
            return RowScales(zero, none, along(phi @ V), slopes, along(rows.slope))

        self.charge("upper_gradient")
        scales = self._summed("upper", upper, x, W)
        if V is None:
            return scales
        self._charge_lower()
        return plus(scales, self._summed("lower", lower, x, W))

    def _row_scales_by_products(self, x: np.ndarray, W: np.ndarray, V: np.ndarray | None, centre: float) -> RowScales:
        """The same where rows are large, by products."""
        zero, none = np.zeros(()), np.zeros(self.dx)
        self.charge("upper_value")
        values = _spread_around(self.reduced, *self._trees(x, W), np.asarray(centre, self.dtype))
        return RowScales(np.asarray(values, np.longdouble), none, none, zero, none)

    # -- sample by sample

    def lower_rows(self, x: np.ndarray, W: np.ndarray, off: Any = 0.0) -> LowerRows:
        """Sample by sample, at the policy, or so far `off` it."""
        self._charge_lower()
        tables = [self._derivatives("lower", pool.rows).table(x, pool.y(W) + off) for pool in self.lower_pools]
        return self.sizes.split_lower(np.concatenate(tables) if len(tables) > 1 else tables[0])

    def upper_rows(self, x: np.ndarray, W: np.ndarray) -> UpperRows:
        """Sample by sample, at the policy."""
        self.charge("upper_gradient")
        (pool,) = self.upper_pools
        return self.sizes.split_upper(self._derivatives("upper", pool.rows).table(x, pool.y(W)))

    def tables(self, x: np.ndarray, W: np.ndarray, upper: Callable | None, lower: Callable) -> tuple[Any, Any]:
        """What functions of packed derivatives and the rows they are of keep of both levels, at the policy."""
        made = []
        for level, (pool,), kept in (("upper", self.upper_pools, upper), ("lower", self.lower_pools, lower)):
            if kept is not None:
                self.charge("upper_gradient") if level == "upper" else self._charge_lower()
            made.append(None if kept is None else self._derivatives(level, pool.rows).table(x, pool.y(W), kept))
        return made[0], made[1]

    def upper_values(self, x: np.ndarray, W: np.ndarray, off: Any = 0.0) -> Float[np.ndarray, " n"]:
        """Of these ``f`` alone, at the policy, or so far `off` it."""
        self.charge("upper_gradient")
        (pool,) = self.upper_pools
        return self._derivatives("upper", pool.rows).table(x, pool.y(W) + off, lambda packed, _: packed[:, 0])

    def seen_above(self, x: np.ndarray, W: np.ndarray) -> int:
        """How many directions of ``x`` single samples' ``f`` tells apart with the policy held."""
        (pool,), stride = self.upper_pools, max(1, self.rows["upper"] // (4 * self.dx))
        d1 = lambda packed, _: packed[::stride, 1 : 1 + self.dx]
        self.charge("upper_gradient")
        rows = self._derivatives("upper", pool.rows).table(x, pool.y(W), d1)
        gram = np.cov(rows, rowvar=False).reshape(self.dx, self.dx)
        unit = np.sqrt(np.diag(gram))
        unit = np.divide(1, unit, out=np.zeros_like(unit), where=unit > np.sqrt(self.eps) * np.abs(rows).max(axis=0))
        values = np.linalg.eigvalsh(gram * np.outer(unit, unit))
        return int(np.sum(values > np.sqrt(self.eps) * max(values[-1], 0)))

    def lower_slopes(
        self, x: np.ndarray, y: Float[np.ndarray, "n dy"], rows: RowBlocks | None = None
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dy"]]:
        """``g`` and ``d2 g`` at a ``y`` for each of the leading rows; of other rows, where these are given."""
        (pool,) = self.lower_pools
        self.spent.update({("lower_gradient", "calls"): 1, ("lower_gradient", "samples"): len(y)})
        derivatives = self._derivatives("lower", pool.rows if rows is None else rows)
        table = derivatives.table(x, y, lambda packed, _: packed[:, : 1 + self.dy])
        return table[:, 0], table[:, 1:]

    def residual_rows(
        self, x: np.ndarray, W: np.ndarray, V: np.ndarray, joint: bool
    ) -> tuple[Float[np.ndarray, "n dy"], Float[np.ndarray, "n dy"] | None]:
        r"""Sample by sample: $r = \partial_2 g$ and, where both levels see the same (`joint`),
        $\alpha = \partial_{22} g\, v - \partial_2 f$; tables of second derivatives are not kept."""
        (pool,), sizes, v = self.lower_pools, self.sizes, self.lower_pools[0].y(V)
        self._charge_lower()

        def below(packed: np.ndarray, part: slice) -> np.ndarray:
            rows = sizes.split_lower(packed)
            return np.concatenate([rows.slope, np.einsum("nab,nb->na", rows.hessian, v[part])], axis=1)

        table = self._derivatives("lower", pool.rows).table(x, pool.y(W), below)
        if not joint:
            return table[:, : self.dy], None
        self.charge("upper_gradient")
        pull = self._derivatives("upper", pool.rows).table(x, pool.y(W), lambda packed, _: packed[:, 1 + self.dx :])
        return table[:, : self.dy], table[:, self.dy :] - pull

    def bend_rows(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> Float[np.ndarray, "n dy dy"]:
        r"""$\partial_{22} f - \partial_{222} g\, v$ sample by sample, where both levels see the same."""
        (pool,), problem = self.lower_pools, self.problem
        bend = RowDerivatives.bend(problem.upper, problem.lower, pool.rows)
        table = bend.table(x, np.concatenate([pool.y(W), pool.y(V)], axis=1))
        return table.reshape(len(table), self.dy, self.dy)

    # -- products, where matrices do not fit

    def lower_slope(self, x: np.ndarray, W: np.ndarray) -> tuple[float, np.ndarray]:
        """``g_Phi`` and its gradient."""
        self.charge("lower_value", "lower_gradient")
        if self.formed:
            return self._summed("slope", slope_sums, x, W)[:2]
        value, slope = _asked(oracles.lower_slope, self.reduced, False, *self._trees(x, W))
        return float(value), self.table(slope)

    def turned(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> Turned:
        """``d22 g_Phi V`` and ``d12 g_Phi V``, row by row, where Hessians are formed but take longer."""
        self.charge("hessian_vector", "cross_product")
        sums = self._summed("turned", turned_sums, x, np.concatenate([W, V], axis=1))
        return sums._replace(upper=self._along_x(sums.upper))

    def hessian_product(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``d22 g_Phi V``."""
        self.charge("hessian_vector")
        return self.table(_asked(oracles.hessian_vector, self.reduced, False, *self._trees(x, W, V)))

    def cross_product(self, x: np.ndarray, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``d12 g_Phi V``, after ``x``."""
        self.charge("cross_product")
        return self.gradient(_asked(oracles.cross_product, self.reduced, False, *self._trees(x, W, V)))

    def asked(
        self, program: Callable, x: np.ndarray, *tables: np.ndarray, more: tuple = (), on: Bilevel | None = None
    ) -> Any:
        """What a compiled program gives for the reduced problem, or that `on` other rows, at ``x`` and tables of
        coefficients."""
        return program(self.reduced if on is None else on, *self._trees(x, *tables), *more)

    def prepared(self, program: Callable, cost: Sequence[str], at: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        """What a compiled program gives `at` some ``x`` and coefficients, kept until it is asked for elsewhere; without
        a place, wherever that was last, or at the start. `cost`: the oracles that it calls."""
        place, kept = self._prepared.get(program, (None, None))
        if place is None or (at is not None and not all(map(np.array_equal, place, at))):
            place = (self.start, self.table(self.reduced.W0)) if at is None else at
            kept = self.asked(program, *place)
            self._prepared[program] = place, kept
            self.charge(*cost)
        return kept

    def moved(self, along: Float[np.ndarray, " dx"]) -> PyTree:
        """A direction of these coordinates, in the shape of ``x``."""
        return Expansions.decision(self, self.steps(along))

    def gradient(self, tree: PyTree) -> Float[np.ndarray, " dx"]:
        """A derivative in ``x``, in these coordinates."""
        return self._along_x(flattened(tree))

    # -- vectors and tables, and the pytrees they stand for

    def _trees(self, x: np.ndarray, *tables: np.ndarray) -> tuple[PyTree, ...]:
        return (Expansions.decision(self, self.point(x)), *map(self.coefficients, tables))

    def decision(self, x: Float[np.ndarray, " dx"]) -> PyTree:
        """A vector in the shape of ``x``."""
        return shaped_like(self._x0, x[None], self.dtype, 0)

    def coefficients(self, W: Float[np.ndarray, "N dy"]) -> PyTree:
        """A table in the shape of the coefficients."""
        return shaped_like(self._W0, W, self.dtype, 1)

    def table(self, W: PyTree) -> Float[np.ndarray, "N dy"]:
        """Coefficients as a table."""
        return as_rows(W)
