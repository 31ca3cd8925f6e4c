r"""What the reduced problem misses of the problem as stated, by products of neighbouring samples.

With $\ell = A^{-1}(\alpha + \tfrac12 M A^{-1} r)$ the expansion of ``derivatives.expansion_rows`` reads
$F = E[m] + E[\bar\ell^T \bar r]$, and the last term is a mean over pairs of neighbours. Its derivative along ``x`` is
the gap between the gradients. On the samples that policy and adjoint were fitted to, both residuals are smaller than on
fresh ones; the mean over pairs then is smaller by what the fit made the mean of $m$ larger, so that the sum of both is
right either way. The part due to the basis alone is the mean over pairs with that loss added back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..basis import OneHot
from .expansion import Around
from .level_noise import pool_shares
from .neighbours import Neighbours, Summand, neighbours_of

_AGREE = 2.7  # standard errors by which two widths may differ
_LEAP = 0.3  # of the estimate: what second neighbours may differ from the nearest by
_ALIKE = 0.9  # the least correlation between what neighbours are known to be
_FEWEST_ROWS = 50  # samples below which neighbours say nothing
_LEAST_CURVATURE = 1e-3  # of the typical one: the least that is divided by


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

    def covariance(self, also: Float[np.ndarray, "n k"] | float = 0.0) -> Float[np.ndarray, "k k"]:
        """Of the value, or of its sum with the means of independent rows, given as what each sample moves them by."""
        return self.near.noise(self.single + (also if np.isscalar(also) else self.near.arranged(also)), self.pairs)

    def variance(self) -> float:
        """Of the first value, unbiased: where that is too small by chance so is this, and it may be negative."""
        return float(self.near.unbiased_noise(self.single[:, :1], self.pairs[:, :1])[0, 0])


@dataclass(frozen=True)
class Tables:
    """Residuals at the points around ``x``: ``left`` and ``r`` of the expansion, and the leverage of each sample."""

    left: Float[np.ndarray, "p n dy"]
    r: Float[np.ndarray, "p n dy"]
    alpha: Float[np.ndarray, "n dy"]
    inverse: Float[np.ndarray, "n dy dy"]
    leverage: Float[np.ndarray, "n dy dy"]


def features_of(around: Around) -> np.ndarray | OneHot:
    """The features of the samples, for products with them."""
    phi = around.reduced.lower_pool.features
    return phi.on_host() if isinstance(phi, OneHot) else np.asarray(phi, float)


def _smooth(table: np.ndarray, phi: np.ndarray | OneHot, shares: np.ndarray, near: Neighbours) -> np.ndarray:
    """Matrices at the samples as a function of the context: themselves where that shows less noise than a fit does."""
    n, flat = len(table), table.reshape(len(table), -1)
    noise = near.differences(flat) / 2
    if noise == 0:
        return table
    weighted = flat * shares[:, None]
    fit = phi @ (phi.sums(weighted) if isinstance(phi, OneHot) else phi.T @ weighted)
    return table if noise <= np.sum(shares @ (flat - fit) ** 2) / flat.shape[1] else fit.reshape(n, *table.shape[1:])


def _inverse(matrices: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Inverses of matrices, with eigenvalues kept away from zero."""
    if matrices.shape[1] == 1:
        floor = _LEAST_CURVATURE * np.abs(shares @ matrices[:, 0, 0])
        return 1 / np.maximum(matrices, max(floor, 1e-300))
    values, vectors = np.linalg.eigh((matrices + np.swapaxes(matrices, 1, 2)) / 2)
    floor = _LEAST_CURVATURE * np.abs(shares @ values).max()
    return np.einsum("nab,nb,ncb->nac", vectors, 1 / np.maximum(values, max(floor, 1e-300)), vectors)


def _leverage(phi: np.ndarray | OneHot, curvature: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """How far the policy at each sample follows that sample's own slope: ``share Phi H^-1 Phi^T``, a matrix each."""
    if isinstance(phi, OneHot):
        blocks = phi.blocks(curvature * shares[:, None, None])
        inverse = np.linalg.pinv((blocks + np.swapaxes(blocks, 1, 2)) / 2, hermitian=True)
        return (shares * phi.value**2)[:, None, None] * inverse[phi.place]
    size = phi.shape[1]
    dy = curvature.shape[1]
    if dy == 1:
        inverse = np.linalg.pinv((phi * (shares * curvature[:, 0, 0])[:, None]).T @ phi, hermitian=True)
        return (shares * np.sum((phi @ inverse) * phi, axis=1))[:, None, None]
    hessian = np.einsum("nk,nab,nl->kalb", phi * shares[:, None], curvature, phi, optimize=True)
    hessian = hessian.reshape(size * dy, size * dy)
    inverse = np.linalg.pinv((hessian + hessian.T) / 2, hermitian=True).reshape(size, dy, size, dy)
    turned = np.tensordot(phi, inverse, axes=1)
    return shares[:, None, None] * np.einsum("nalb,nl->nab", turned, phi, optimize=True)


def _tables(around: Around, near: Neighbours, shares: np.ndarray) -> Tables:
    rows: Any = around.solved.rows
    phi = near.arranged(features_of(around))
    table = lambda part, p: near.arranged(np.asarray(part[p], float))
    left, r = [], []
    for p in range(len(rows.f)):
        here, alpha = table(rows.r, p), table(rows.alpha, p)
        A, M = (_smooth(table(part, p), phi, shares, near) for part in (rows.curvature, rows.bend))
        B = _inverse(A, shares)
        left.append(_times(B, alpha + _times(M, _times(B, here)) / 2))
        r.append(here)
    A = _smooth(table(rows.curvature, 0), phi, shares, near)
    lever = _leverage(phi, A, shares)
    return Tables(np.stack(left), np.stack(r), table(rows.alpha, 0), _inverse(A, shares), lever)


@dataclass(frozen=True)
class Missed:
    """What the basis and the fit miss at ``x``, along the directions of an ``Around``.

    - `total`: the mean over pairs, to be added to the value of the reduced problem (first entry) and to its slopes;
      `basis`: the part due to the basis, `overfit`: that due to the fit, with its second derivatives `overfit_bend`.
    - `total_bend`: second derivatives of `total`.
    - `policies`: of a policy at the samples: the mean square error of the basis's best one, that of the one given, and
      whether this is the one fitted to these samples.
    - `slopes`: squared errors of adjoint and sensitivity in the norm of ``d22 g``; their product along each direction.
    - `unresolved`: why neighbours cannot decide, in words; empty where they can.

    The errors are worked out when they are asked for.
    """

    total: Products
    basis: Products
    overfit: Products
    overfit_bend: Float[np.ndarray, " k"]
    unresolved: str
    total_bend: Float[np.ndarray, " k"]
    policies: Callable[[Float[np.ndarray, "n dy"]], tuple[Products, Products, bool]]
    slopes: Callable[[], tuple[Products, Products, Products]]

    @property
    def width(self) -> int:
        """Of the windows that were chosen."""
        return self.total.near.width


def _over_points(around: Around, near: Neighbours, left: list[Summand], right: list[Summand]) -> Products:
    """The mean of ``left . right`` over pairs at ``x``, and its slopes along the directions."""
    sides = list(zip(left, right, strict=True))
    single = np.stack([near.shares(a, b) for a, b in sides])
    pairs = np.stack([near.pair_products(a.table, b.table) for a, b in sides])
    both = lambda table: np.concatenate([table[:1], around.slope(table)]).T
    moved = both(single)
    return Products(moved.sum(axis=0), 2 * moved, both(pairs), near, points=single.sum(axis=1))


def _one(near: Neighbours, left: Any, right: Summand, own: Any, shares: np.ndarray) -> Callable[[Neighbours], Products]:
    """The mean over pairs of ``left . right``, with what the fit took from it added back (`own`, a matrix each), at
    every width."""
    levered = _times(own, left)
    back = shares * np.sum(levered * right.table, axis=1)
    noise = (left * shares[:, None] ** 2).T @ right.table
    growth = 4 * float(np.sum(noise * noise.T)) / max(float(np.trace(noise)), 1e-300)
    rest = near.summand(left - levered)

    def at(near: Neighbours) -> Products:
        single, pairs = near.shares(rest, right), near.pair_products(rest.table, right.table)
        value = np.array([single.sum() + back.sum()])
        return Products(value, (2 * single + back)[:, None], pairs[:, None], near, growth)

    return at


def _pick(widths: list[Neighbours], at: Callable[[Neighbours], Products]) -> tuple[Products, bool]:
    """The widest windows that agree with all narrower ones within their noise, or one step narrower where the next ones
    do not; the nearest neighbours where the second ones differ. And whether that is by much.

    One width after the other: what single samples contribute is held for the last three of them alone.
    """
    last, values, errors, agreed = [at(widths[0])], [], [], True
    bar = _AGREE + np.sqrt(2 * np.log(max(1, len(last[0].value) / 2)))
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


def _too_far(around: Around, near: Neighbours, u: np.ndarray) -> bool:
    """Whether neighbours are so far apart that even what the policy is known to do between them is lost."""
    if near.group is not None:
        return False
    known = near.arranged(features_of(around) @ np.asarray(around.solved.W[0], float))
    spread = known.std(axis=0)
    table = known if np.any(spread > 1e-9 * np.abs(known).max()) else u
    i, j = near.pairs.T
    centred = table - table.mean(axis=0)
    alike = np.sum(centred[i] * centred[j], axis=0).sum() / len(i)
    return bool(alike < _ALIKE * np.mean(np.sum(centred**2, axis=1)))


def what_is_missed(around: Around) -> Missed:
    """By products of neighbours, at the widest windows that agree with narrower ones; at those of an earlier look from
    the same ``x``, where there was one."""
    at, held = (around.x.tobytes(), around.directions.tobytes()), around.held
    if held.get("missed", (None,))[0] != at:
        chosen = held["chosen"][1:] if held.get("chosen", (None,))[0] == at[0] else None
        found, torn = _look_at_pairs(around, chosen)
        held.update(missed=(at, found), chosen=(at[0], found.total.near, torn))
    return held["missed"][1]


def _look_at_pairs(around: Around, chosen: tuple[Neighbours, bool] | None) -> tuple[Missed, bool]:
    study = around.study
    domain, xi = study.problem.domain, study.lower.contexts().xi
    u = np.asarray(domain.embedded(domain.snap(xi, study.dtype)), float).reshape(len(xi), -1)
    shares = pool_shares(study.lower)
    if "widths" not in around.held:
        functions = around.solved.W.shape[1]
        around.held["widths"] = neighbours_of(domain, np.asarray(xi), u, shares * len(shares), functions)
    widths = around.held["widths"]
    first, summands = widths[0], lambda tables: [widths[0].summand(table) for table in tables]
    shares, u = first.arranged(shares), first.arranged(u)
    tables = _tables(around, first, shares)
    left, right = summands(tables.left), summands(tables.r)
    over = lambda near: _over_points(around, near, left, right)
    total, torn = _pick(widths, over) if chosen is None else (over(chosen[0]), chosen[1])
    near, own_matrix = total.near, _own_share(tables)
    levered = [_times(own_matrix, table) for table in tables.left]
    own = shares * np.stack([np.sum(a * b, axis=1) for a, b in zip(levered, tables.r, strict=True)])
    back = np.concatenate([own[:1], around.slope(own)]).T
    lost = _over_points(around, near, summands(levered), right)
    overfit = Products(lost.value - back.sum(axis=0), lost.single - back, lost.pairs, near)
    basis = Products(total.value - overfit.value, total.single - overfit.single, total.pairs - lost.pairs, near)
    reason = ""
    if len(u) < _FEWEST_ROWS:
        reason = f"{len(u)} samples are too few"
    elif near.alone:
        reason = f"{near.alone} samples are the only ones at their context"
    elif torn:
        reason = "nearest neighbours disagree with second ones, so there is structure as fine as the samples"
    elif _too_far(around, near, u):
        reason = "neighbours are too far apart: too few samples for the dimension of the context"
    found = Missed(
        total,
        basis,
        overfit,
        around.bend(lost.points - own.sum(axis=1)),
        reason,
        around.bend(total.points),
        policies=lambda given: _policy_errors(widths, tables, around, first.arranged(given), shares),
        slopes=lambda: _derivatives(widths, near, tables, around, shares),
    )
    return found, torn


def _times(matrices: Float[np.ndarray, "n a b"], rows: Float[np.ndarray, "n b"]) -> Float[np.ndarray, "n a"]:
    """A matrix times a row, sample by sample."""
    return matrices[:, :, 0] * rows if matrices.shape[1:] == (1, 1) else np.einsum("nab,nb->na", matrices, rows)


def _own_share(tables: Tables) -> Float[np.ndarray, "n dy dy"]:
    """How far what is left at each sample follows that sample itself: its leverage times its curvature."""
    if tables.inverse.shape[1] == 1:
        return tables.leverage / tables.inverse
    return np.einsum("nab,nbc->nac", tables.leverage, np.linalg.inv(tables.inverse))


def _policy_errors(
    widths: list[Neighbours], tables: Tables, around: Around, given: np.ndarray, shares: np.ndarray
) -> tuple[Products, Products, bool]:
    """Of the basis's best policy, and of the one given; and whether that is the one fitted to these samples."""
    first, step, own = widths[0], _times(tables.inverse, tables.r[0]), _own_share(tables)
    ahead = given - first.arranged(features_of(around)) @ np.asarray(around.solved.W[0], float)
    same = bool(np.abs(ahead).max() <= 1e-5 * np.sqrt(np.mean(step**2) + 1e-300))
    best = _pick(widths, _one(first, step, first.summand(step), own, shares))[0]
    both, twice = step + ahead, (2 if same else 0) * own
    return best, _pick(widths, _one(first, both, first.summand(both), twice, shares))[0], same


def _derivatives(
    widths: list[Neighbours], near: Neighbours, tables: Tables, around: Around, shares: np.ndarray
) -> tuple[Products, Products, Products]:
    """Adjoint error, sensitivity error (over all coordinates of ``x``), and their products."""
    own, first = _own_share(tables), widths[0]
    across = lambda row: _times(tables.inverse, row)
    one = lambda left, right: _one(first, across(left), first.summand(right), own, shares)
    rho = around.slope(tables.r)
    squares = [one(row, row) for row in rho / around.lengths[:, None, None]]
    adjoint, _ = _pick(widths, one(tables.alpha, tables.alpha))
    sensitivity, _ = _pick(widths, lambda at: _summed([square(at) for square in squares]))
    crossed = [one(tables.alpha, row)(near) for row in rho]
    join = lambda name: np.concatenate([getattr(part, name) for part in crossed], axis=-1)
    return adjoint, sensitivity, Products(join("value"), join("single"), join("pairs"), near)


def _summed(parts: list[Products]) -> Products:
    """Means over the same pairs, added up."""
    value, single, pairs = (sum(getattr(p, name) for p in parts) for name in ("value", "single", "pairs"))
    return Products(value, single, pairs, parts[0].near, max(p.growth for p in parts))  # pyright: ignore
