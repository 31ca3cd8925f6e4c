r"""Products of the residuals of neighbouring samples: what a basis misses, seen without a richer one.

The product of two conditional means at one context is the mean of the product of two samples there, since their noises
are independent. No context is met twice on a continuum, but neighbours are near. ``pairs.Neighbours`` sums a table over
the neighbours of each sample, the sample itself left out; a mean of products over pairs is then one such sum. It comes
in several widths, from the nearest neighbours to wide windows: wide ones see less and have less noise. A mean over
neighbours differs from what is at the sample itself by a multiple of the square of their distance, to leading order.
Means over a near ring and over a wide one are combined so that this cancels.

With $\ell = A^{-1}(\alpha + \tfrac12 M A^{-1} r)$ the expansion of ``SampleTerms`` reads
$F = E[m] + E[\bar\ell^T \bar r]$, and the last term is a mean over pairs of neighbours. Its derivative along ``x`` is
the gap between the gradients. On the samples that policy and adjoint were fitted to, both residuals are smaller than on
fresh ones; the mean over pairs then is smaller by what the fit made the mean of $m$ larger, so that the sum of both is
right either way. The part due to the basis alone is the mean over pairs with that loss added back.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..basis import NUMBERS_AT_ONCE, OneHot, piece_of
from ..derivatives import galerkin
from .around import Around
from .galerkin import AGREE, NEGLIGIBLE, NOTICED
from .noise import mean_error
from .pairs import Neighbours, Summand, neighbours_of
from .uncertainty import QUANTILE

_LEAP = 0.3  # of the estimate: what second neighbours may differ from the nearest by
_ALIKE = 0.9  # the least correlation between what neighbours are known to be
_FEWEST_ROWS = 50  # samples below which neighbours say nothing


# -- means over pairs


@dataclass(frozen=True)
class Products:
    """A mean over pairs: its value, what each sample moves it by, and products of some pairs, for its noise.

    Samples are in the order of the neighbours (``Neighbours.arranged``), rows that are added in their own.
    `growth`: for a mean of squares, by how much its variance is larger where its true value is larger by one.
    `points`: the first value at each of the points around ``x``.
    """

    value: Float[np.ndarray, " k"]
    single: Float[np.ndarray, "n k"]
    pairs: Float[np.ndarray, "p k"]
    near: Neighbours
    growth: float = 0.0
    points: Float[np.ndarray, " q"] | None = None

    @staticmethod
    def around(around: Around, near: Neighbours, left: list[Summand], right: list[Summand]) -> "Products":
        """The mean of ``left . right`` over pairs at ``x``, and its slopes along the directions."""
        sides = list(zip(left, right, strict=True))
        single = np.stack([near.shares(a, b) for a, b in sides])
        pairs = np.stack([near.pair_products(a.table, b.table) for a, b in sides])
        moved = _with_slopes(around, single)
        return Products(moved.sum(axis=0), 2 * moved, _with_slopes(around, pairs), near, points=single.sum(axis=1))

    def __sub__(self, other: "Products") -> "Products":
        points = None if self.points is None or other.points is None else self.points - other.points
        parts = self.value - other.value, self.single - other.single, self.pairs - other.pairs
        return Products(*parts, self.near, points=points)

    def part(self, columns: slice, scale: Any = 1.0) -> "Products":
        """Some of the values, each times a number."""
        value, single, pairs = self.value[columns], self.single[:, columns], self.pairs[:, columns]
        return replace(self, value=value * scale, single=single * scale, pairs=pairs * scale)

    def covariance(self, also: Float[np.ndarray, "n k"] | None = None) -> Float[np.ndarray, "k k"]:
        """Of the value, or of its sum with the means of independent rows, given as what each sample moves them by.

        With a floor, a quarter of what single samples show.
        """
        single = self.single + (0 if also is None else self.near.arranged(also))
        apart, spread = single - single.mean(axis=0), self.near.noise(single, self.pairs)
        values, vectors = np.linalg.eigh((spread + spread.T) / 2)
        least = np.diag(vectors.T @ (apart.T @ apart) @ vectors) / 4
        return (vectors * np.maximum(values, least)) @ vectors.T

    def variance(self) -> float:
        """Of a single value, unbiased: where that is too small by chance so is this, and it may be negative."""
        return float(self.near.noise(self.single, self.pairs)[0, 0])


def _with_slopes(around: Around, table: Float[np.ndarray, "p n"]) -> Float[np.ndarray, "n k"]:
    """What is at ``x``, and the slopes along the directions, as columns."""
    return np.concatenate([table[:1], around.slope(table)]).T


def _joined(parts: list[Products], how: Callable) -> Products:
    """Means over the same pairs, added up or side by side."""
    tables = (how(getattr(part, name) for part in parts) for name in ("value", "single", "pairs"))
    return Products(*tables, parts[0].near, max(part.growth for part in parts))


def _pick(widths: list[Neighbours], at: Callable[[Neighbours], Products]) -> tuple[Products, bool]:
    """The widest windows that agree with all narrower ones within their noise, or one step narrower where the next ones
    do not; the nearest neighbours where the second ones differ. And whether that is by much.

    One width after the other: what single samples contribute is held for the last three of them alone.
    """
    last, values, errors, agreed = [at(widths[0])], [], [], True
    bar = AGREE + np.sqrt(2 * np.log(max(1, len(last[0].value) / 2)))
    for near in widths[1:]:
        values.append(last[-1].value)
        errors.append(np.sqrt(np.maximum(np.diag(last[-1].covariance()), 0)))
        last = [*last[-2:], at(near)]
        agreed = all(bool(np.all(np.abs(v - last[-1].value) <= bar * e)) for v, e in zip(values, errors, strict=True))
        if not agreed:
            break
    if agreed or len(values) > 1:
        return last[-1 if agreed else 0], False
    one, two = last
    apart = np.abs(two.value - one.value)
    return one, bool(np.any((apart > _LEAP * np.abs(one.value)) & (apart > bar * errors[0])))


# -- what is missed


class _Residuals(NamedTuple):
    """At the points around ``x``: `left` is ``l`` of the expansion; at ``x`` alone: ``alpha``, ``A^-1`` and `own`, how
    far what is left at each sample follows that sample itself (its leverage times its curvature)."""

    left: Float[np.ndarray, "p n dy"]
    r: Float[np.ndarray, "p n dy"]
    alpha: Float[np.ndarray, "n dy"]
    inverse: Float[np.ndarray, "n dy dy"]
    own: Float[np.ndarray, "n dy dy"]

    @staticmethod
    def of(around: Around, near: Neighbours) -> "_Residuals":
        terms, phi, shares, left = around.terms, near.arranged(features_of(around)), near.row_shares, []
        r, alphas, curvatures, bends = (map(near.arranged, part) for part in terms)
        r, alphas, inverse, own = list(r), list(alphas), None, None
        for here, alpha, A, M in zip(r, alphas, curvatures, bends, strict=True):
            A, M = (_smooth(table, phi, shares, near) for table in (A, M))
            A, B = _floored(A, shares)
            if not left:
                inverse, own = B, _leverage(phi, A, shares) @ A
            left.append(_times(B, alpha + _times(M, _times(B, here)) / 2))
        return _Residuals(np.stack(left), np.stack(r), alphas[0], inverse, own)


def features_of(around: Around) -> np.ndarray | OneHot:
    """The features of the samples, for products with them."""
    phi = around.galerkin.reduced.lower_pool.features
    return phi.on_host() if isinstance(phi, OneHot) else np.asarray(phi, float)


def _times(matrices: Float[np.ndarray, "n a b"], rows: Float[np.ndarray, "n b"]) -> Float[np.ndarray, "n a"]:
    """A matrix times a row, sample by sample."""
    return np.einsum("nab,nb->na", matrices, rows)


def _smooth(table: np.ndarray, phi: np.ndarray | OneHot, shares: np.ndarray, near: Neighbours) -> np.ndarray:
    """Matrices at the samples as a function of the context: a fit, or themselves where most of what the fit misses is
    no noise. With noise alone both are the same up to chance, and inverses of single samples' matrices are wild."""
    flat = table.reshape(len(table), -1)
    i, j = near.pairs.T
    noise = float(np.mean([np.mean((column[i] - column[j]) ** 2) for column in flat.T.copy()])) / 2
    if noise == 0:
        return table
    weighted = flat * shares[:, None]
    fit = phi @ (phi.sums(weighted) if isinstance(phi, OneHot) else phi.T @ weighted)
    return table if noise <= np.sum(shares @ (flat - fit) ** 2) / flat.shape[1] / 2 else fit.reshape(table.shape)


def _over_kinks(around: Around, near: Neighbours, inverse: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Inverse curvatures with which steps to the lower level's solution stop where its slope does.

    Where ``g`` is steeper beyond a kink, as a penalty is, a Newton step from before it leads far across. The slopes of
    single samples, moved so that they are the mean over neighbours at the policy, say where it should have ended.
    Samples that do not keep the curvature of the policy. So do all where curvatures differ between neighbours: kinks
    that lie elsewhere for each sample, as demand does for a seller, are none of the mean.
    """
    at, point = around.galerkin.expansions, around.point
    bend = near.arranged(around.terms.curvature[0])
    if _smooth(bend, near.arranged(features_of(around)), near.row_shares, near) is not bend:
        return inverse
    mean = near.sums(near.summand(r))
    full = step = _times(inverse, mean)
    back = np.argsort(near.order) if near.order is not None else slice(None)
    size = np.linalg.norm(mean, axis=1)
    for _ in range(8):  # a slope of straight pieces takes one for each piece
        rows = at.lower_rows(point.x, point.W, -step[back])
        left = near.arranged(rows.slope) - r + mean
        met = np.linalg.norm(left, axis=1) <= NEGLIGIBLE * size
        if met.all():
            break
        step = step + _times(_floored(near.arranged(rows.hessian), near.row_shares)[1], left)
    off = np.linalg.norm(step - full, axis=1) > np.linalg.norm(full, axis=1) / 2
    used = off & met
    turn = (step - full)[:, :, None] * mean[:, None, :] / np.where(size > 0, size, 1)[:, None, None] ** 2
    return inverse + np.where(used[:, None, None], turn, 0.0)


def _floored(matrices: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matrices with eigenvalues kept away from zero, in units of ``y`` in which the typical one is even; and their
    inverses."""
    unit = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(np.tensordot(shares, matrices, axes=1))), 1e-300))
    units = np.outer(unit, unit)
    if matrices.shape[1] == 1:  # the common case, many times as fast
        values, vectors = matrices[:, :, 0] * units[0, 0], np.ones_like(matrices)
    else:
        values, vectors = np.linalg.eigh((matrices + np.swapaxes(matrices, 1, 2)) / 2 * units)
    values = np.maximum(values, NEGLIGIBLE * max(np.abs(shares @ values).max(), 1e-300))
    turned = np.swapaxes(vectors, 1, 2)
    return (vectors * values[:, None]) @ turned / units, (vectors / values[:, None]) @ turned * units


def _leverage(phi: np.ndarray | OneHot, curvature: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """How far the policy at each sample follows that sample's own slope: ``share Phi H^-1 Phi^T``, a matrix each."""
    weighted, dy = curvature * shares[:, None, None], curvature.shape[1]
    if isinstance(phi, OneHot):
        inverse = np.linalg.pinv(phi.blocks(weighted), hermitian=True)
        return (shares * phi.value**2)[:, None, None] * inverse[phi.place]
    step = max(1, NUMBERS_AT_ONCE // (phi.shape[1] * dy**2))
    parts = [slice(k, k + step) for k in range(0, len(phi), step)]
    inverse = np.linalg.pinv(sum(galerkin(phi[part], weighted[part]) for part in parts), hermitian=True)
    inverse, levered = inverse.reshape(phi.shape[1], -1), np.empty((len(phi), dy, dy))
    for part in parts:
        turned = (phi[part] @ inverse).reshape(-1, dy, phi.shape[1], dy)
        levered[part] = np.einsum("nalb,nl->nab", turned, phi[part], optimize=True)
    return shares[:, None, None] * levered


@dataclass(frozen=True)
class Missed:
    """What the basis and the fit miss at ``x``, along the directions of `around`.

    - `total`: the mean over pairs, to be added to the value of the reduced problem (first entry) and to its slopes;
      `basis`: the part due to the basis, `overfit`: that due to the fit.
    - `unresolved`: why neighbours cannot decide, in words; empty where they can.
    - `widths`: the neighbours at all widths; `torn`: whether nearest and second neighbours differ by much.
    """

    around: Around
    widths: list[Neighbours]
    torn: bool
    residuals: _Residuals
    total: Products
    basis: Products
    overfit: Products
    unresolved: str

    @cached_property
    def curves(self) -> bool:
        """Whether the fit could curve the objective noticeably along any direction, as far as coordinates show."""
        around = self.around
        free = around.free()
        unit = around.unit[free]
        over = np.abs(around.bend(self.overfit.points))[free] * (unit / around.lengths[free]) ** 2
        values = np.linalg.eigvalsh(around.hessian()[np.ix_(free, free)] * np.outer(unit, unit))
        return not free.any() or bool(len(unit) * over.max() > NOTICED * values[0])

    def _mean(self, left: np.ndarray, right: np.ndarray, own: np.ndarray) -> Callable[[Neighbours], Products]:
        """The mean over pairs of ``left . right``, with what the fit took from it added back, at every width."""
        levered, shares = _times(own, left), self.widths[0].row_shares
        back = shares * np.sum(levered * right, axis=1)
        noise = (left * shares[:, None] ** 2).T @ right
        growth = 4 * float(np.sum(noise * noise.T)) / max(float(np.trace(noise)), 1e-300)
        rest, other = (self.widths[0].summand(table) for table in (left - levered, right))

        def at(near: Neighbours) -> Products:
            single, pairs = near.shares(rest, other), near.pair_products(rest.table, right)
            value = np.array([single.sum() + back.sum()])
            return Products(value, (2 * single + back)[:, None], pairs[:, None], near, growth)

        return at

    def unknown(self, errors: Float[np.ndarray, " k"]) -> str:
        """Why nothing is known of what is missed, in words, where the value and its slopes have these standard errors;
        empty where it is."""
        large = np.abs(self.total.value) > QUANTILE * errors  # small corrections have no large terms of third order
        if self.unresolved or not large.any() or not np.any(self.beyond > errors):
            return self.unresolved
        return (
            "the policy is so far from the lower level's solutions that second order does not tell what it costs: "
            "terms of third order exceed the standard errors. Give a richer basis"
        )

    @cached_property
    def beyond(self) -> Float[np.ndarray, " k"]:
        r"""What the expansion leaves out of the value and of its slopes, about: sizes of terms of third order.

        The step $s$ to the lower level's solution at each sample, from the mean over its neighbours. Along it
        $m$ should change by $\alpha^T s + \tfrac12 s^T M s$ and $r$ by $-\partial_{22} g\, s$. What $r$ misses moves
        the policy once more, which counts by what is left of the adjoint's residual there: at most by the root of the
        product of their mean squares, over pairs. As far as it is clear of its noise; of the value, as
        far as it exceeds that.
        """
        around, near, at = self.around, self.total.near, self.around.galerkin.expansions
        (pool,), back = at.lower_pools, slice(None) if near.order is None else np.argsort(near.order)
        inverse, once, tables = self.residuals.inverse, [], []
        for k, point in enumerate(around.points):
            r, alpha, curvature, bend = (part[k] for part in around.terms)
            s = _times(inverse, near.sums(near.summand(self.residuals.r[k])))[back]
            v, moved = pool.y(point.adjoint), at.lower_slopes(point.x, pool.y(point.W) - s)[1]
            change = at.upper_values(point.x, point.W, -s) - around.f[k] - np.sum(v * (moved - r), axis=1)
            once.append(change - np.sum((alpha + _times(bend, s) / 2) * s, axis=1))
            tables.append((moved - r + _times(curvature, s), alpha + _times(bend, s)))

        def size(table: Float[np.ndarray, "n dy"], clear: float = AGREE) -> float:
            table = near.arranged(table)
            each = near.shares(near.summand(_times(inverse, table)), near.summand(table))
            return float(np.sqrt(max(each.sum() - clear * np.linalg.norm(each), 0.0)))

        other, turned = (np.stack(part) for part in zip(*tables, strict=True))
        (miss, left), along = (size(other[0]), size(turned[0])), [around.slope(part) for part in (other, turned)]
        again = [
            size(other[0], 1.0) * size(turned[0], 1.0),
            *(size(a) * left + miss * size(b) for a, b in zip(*along, strict=True)),
        ]
        shares = around.study.lower.contexts().shares()
        rows = _with_slopes(around, np.stack(once))
        noise = mean_error(rows, shares)
        least = np.where(np.arange(len(noise)) == 0, noise, 0.0)  # a term of the value that noise hides may be as large
        return np.maximum(np.abs(shares @ rows) - AGREE * noise, least) + again

    def policies(self, given: Float[np.ndarray, "n dy"]) -> tuple[Products, Products, bool]:
        """The mean square error of the basis's best policy, that of the one given, and whether this is the one fitted
        to these samples."""
        near, own, r = self.widths[0], self.residuals.own, self.residuals.r[0]
        step = _times(_over_kinks(self.around, self.total.near, self.residuals.inverse, r), r)
        ahead = near.arranged(given - features_of(self.around) @ self.around.point.W)
        same = bool(np.abs(ahead).max() <= 1e-5 * np.sqrt(np.mean(step**2) + 1e-300))
        off = step + ahead
        best = _pick(self.widths, self._mean(step, step, own))[0]
        return best, _pick(self.widths, self._mean(off, off, (2 if same else 0) * own))[0], same

    def slopes(self) -> tuple[Products, Products, Products]:
        """Squared errors of adjoint and sensitivity (over all coordinates of ``x``) in the norm of ``d22 g``; their
        product along each direction."""
        parts, around = self.residuals, self.around
        mean = lambda left, right: self._mean(_times(parts.inverse, left), right, parts.own)
        rho = around.slope(parts.r)
        squares = [mean(row, row) for row in rho / around.lengths[:, None, None]]
        adjoint, _ = _pick(self.widths, mean(parts.alpha, parts.alpha))
        sensitivity, _ = _pick(self.widths, lambda near: _joined([square(near) for square in squares], sum))
        crossed = [mean(parts.alpha, row)(self.total.near) for row in rho]
        return adjoint, sensitivity, _joined(crossed, lambda tables: np.concatenate(list(tables), axis=-1))


def what_is_missed(around: Around, earlier: Missed | None = None) -> Missed:
    """By products of neighbours, at the widest windows that agree with narrower ones; at those of an `earlier` look
    from the same ``x``, where there was one."""
    if earlier is not None and earlier.around is around:
        return earlier
    study, functions = around.study, len(around.point.W)
    domain, xi = study.problem.domain, study.lower.contexts().xi
    u = np.asarray(domain.embedded(domain.snap(xi, study.dtype)), float).reshape(len(xi), -1)
    own = study.lower.contexts().shares() * len(xi)
    piece = piece_of(around.galerkin.reduced.basis.basis, domain, domain.snap(xi, study.dtype))
    widths = neighbours_of(domain, u, own, functions, piece) if earlier is None else earlier.widths
    first, summands = widths[0], lambda tables: [widths[0].summand(table) for table in tables]
    parts = _Residuals.of(around, first)
    left, right = summands(parts.left), summands(parts.r)
    over = lambda near: Products.around(around, near, left, right)
    total, torn = _pick(widths, over) if earlier is None else (over(earlier.total.near), earlier.torn)
    near, levered = total.near, [_times(parts.own, table) for table in parts.left]
    taken = first.row_shares * np.stack([np.sum(a * b, axis=1) for a, b in zip(levered, parts.r, strict=True)])
    back, lost = _with_slopes(around, taken), Products.around(around, near, summands(levered), right)
    overfit = lost - Products(back.sum(axis=0), back, 0 * lost.pairs, near, points=taken.sum(axis=1))
    reason = _unresolved(around, near, first.arranged(u), torn)
    return Missed(around, widths, torn, parts, total, total - overfit, overfit, reason)


def _unresolved(around: Around, near: Neighbours, u: np.ndarray, torn: bool) -> str:
    """Why neighbours cannot decide, in words."""
    if len(u) < _FEWEST_ROWS:
        return f"{len(u)} samples are too few"
    if near.alone:
        return f"{near.alone} samples are the only ones at their context"
    if torn:
        return "nearest and second-nearest neighbours disagree, so there is structure as fine as the samples"
    if near.width == 0:
        return ""
    known = near.arranged(features_of(around) @ around.point.W)
    table = known if np.any(known.std(axis=0) > 1e-9 * np.abs(known).max()) else u
    (i, j), centred = near.pairs.T, table - table.mean(axis=0)
    alike = np.sum(centred[i] * centred[j]) / len(i)  # of what the policy is known to do at neighbours
    if alike < _ALIKE * np.mean(np.sum(centred**2, axis=1)):
        few = "too few samples, " if u.shape[1] == 1 else "too few samples for the dimension of the context, "
        return f"neighbours are too far apart: {few}or contexts too unevenly spread"
    return ""
