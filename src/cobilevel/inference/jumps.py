r"""Jumps of a policy in the context, seen in the residuals of neighbouring samples.

At a place between two samples, a line is fitted to the residuals of so many samples on the left, and one to those on
the right. Where the residuals jump, the lines do not meet. At every place and for windows of growing width, their
distance is compared with its standard error. The bar is Bonferroni's, for all places, widths and columns together:
where nothing jumps, noise passes it with a chance of one in 1000, by Student's law. Neither contexts nor residuals have
units in it.

A rise may be steep and no jump. A jump stays one at narrower windows; and no continuous line of three parts, such as a
ramp, fits as well. Ramps that hold 1/24 of all samples must fit worse by half the square of the bar, and
narrower ones must not fit better beyond noise. Of two lines that cross between two samples, a kink, none jumps.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from ..basis import BSpline, Fourier, Orthonormal, Piecewise, PolynomialBasis, breaks_in
from ..problem import Interval
from .around import Around
from .galerkin import AGREE
from .neighbours import features_of

# Between a place and the ends of ramps around it, in samples.
_STEPS = np.unique(np.round(np.concatenate([np.arange(12), 2 ** np.arange(3.5, 15, 0.25)])).astype(int))


@dataclass(frozen=True)
class _Column:
    """Residuals `r` at places `t`, ascending, as running sums: lines through any stretch of them are quick. `size`:
    how far the policy varies."""

    t: Float[np.ndarray, " n"]
    r: Float[np.ndarray, " n"]
    sums: Float[np.ndarray, "6 m"]
    spread: float
    size: float

    @staticmethod
    def of(t: Float[np.ndarray, " n"], r: Float[np.ndarray, " n"], size: float) -> "_Column":
        r, spread = r - r.mean(), float(r.std())
        rows = np.stack([np.ones_like(t), t, t * t, r, t * r, r * r])
        sums = np.concatenate([np.zeros((6, 1)), np.cumsum(rows, axis=1)], axis=1)
        return _Column(t, r, sums, spread, float(np.hypot(size, spread)))

    def _lines(self, a: np.ndarray, b: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lines through the rows from `a` up to `b`: their values at two places each, variances there, and squares."""
        n, t, tt, r, tr, rr = self.sums[:, b] - self.sums[:, a]
        wide, both = np.maximum(tt - t * t / n, 1e-300), tr - t * r / n
        left = np.maximum(rr - r * r / n - both**2 / wide, 0.0)
        away = at - t / n
        return r / n + both / wide * away, left / (n - 2) * (1 / n + away**2 / wide), left

    def gaps(self, a: np.ndarray, c: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The jump at `c` between lines through ``a..c`` and ``c..b``, its standard error, and the squares left. Of
        the lines' distance at the two samples next to it, the lesser; zero where they cross between."""
        at = np.stack([self.t[c - 1], self.t[c]])
        (left, noise, squares), (right, more, others) = self._lines(a, c, at), self._lines(c, b, at)
        apart, errors = right - left, np.sqrt(noise + more) + np.finfo(float).eps ** 0.5 * self.spread
        near = np.argmin(np.abs(apart), axis=0)[None]
        size, error = (np.take_along_axis(table, near, axis=0)[0] for table in (apart, errors))
        return np.where(apart[0] * apart[1] > 0, size, 0.0), error, squares + others

    def clear(self, begin: int, end: int, width: int, bar: float, most: float, tries: int = 6) -> tuple | None:
        """The clearest jump between two rows that stands out at a width, and by how much, among the places that stand
        out most; ``None`` if none does."""
        c = np.arange(begin + width, end - width + 1)
        c = c[self.t[c - 1] < self.t[np.minimum(c, len(self.t) - 1)]]
        if not len(c):
            return None
        size, error, _ = self.gaps(c - width, c, c + width)
        ratio = np.abs(size) / error if self.spread > 0 else 0 * size
        for _ in range(tries):
            k = int(np.argmax(ratio))
            if ratio[k] <= bar:
                break
            found = self._is_jump(max(begin, c[k] - width), int(c[k]), min(end, c[k] + width), bar, most)
            if found is not None:
                return float(ratio[k]), found
            ratio[max(0, k - width // 2) : k + width // 2] = 0
        return None

    def _is_jump(self, a: int, middle: int, b: int, bar: float, most: float, least: float = 3e-3) -> int | None:
        """Where within a window lines with a jump fit best, if it is one there, of at least that share of the policy's
        size; `most`: how many samples a rise may hold that is taken for one."""
        width = (b - a) // 2
        margin = max(4, width // 8)
        c = np.arange(a + margin, b - margin + 1)
        size, error, squares = self.gaps(np.full_like(c, a), c, np.full_like(c, b))
        k, kinked = int(np.argmin(squares)), squares[size == 0].min(initial=np.inf)  # lines that cross leave a kink
        c, size, error = c[k : k + 1], size[k], error[k]
        if abs(c[0] - middle) > width / 2 or abs(size) <= max(bar * error, least * self.size):
            return None
        for narrow in (width // 2, width // 4):
            less, noise, _ = self.gaps(np.maximum(a, c - narrow), c, np.minimum(b, c + narrow))
            lost = (size - less[0]) * np.sign(size)
            if lost > max(abs(size) / 2, AGREE * noise[0]):
                return None
        left, inside = self._ramps(a, int(c[0]), b)
        noise = left.min() / (b - a - 6)
        wide = inside >= min(most, width / 2)
        worse, better = min(kinked, left[wide].min(initial=np.inf)) - left[0, 0], left[0, 0] - left.min()
        return int(c[0]) if worse > noise * bar**2 / 2 and better <= noise * AGREE**2 else None

    def _ramps(self, a: int, c: int, b: int) -> tuple[Float[np.ndarray, "l r"], Int[np.ndarray, "l r"]]:
        """The squares that continuous lines of three parts leave, whose middle part spans the place `c`, and how many
        samples lie in that part; first the jump, whose middle part lies between two samples."""
        t, r = (self.t[a:b] - self.t[c - 1]) / (self.t[b - 1] - self.t[a]), self.r[a:b]
        before, after = _STEPS[c - 1 - _STEPS >= a + 3], _STEPS[c + _STEPS <= b - 4]
        line = np.linalg.qr(np.stack([np.ones_like(t), t], axis=1))[0]
        rest = lambda table: table - line @ (line.T @ table)
        one, two = (rest(np.maximum(t[:, None] - t[c - a + at], 0)) for at in (-1 - before, after))
        left, (p, q) = rest(r), (np.sum(table**2, axis=0) for table in (one, two))
        along, across, mixed = one.T @ left, two.T @ left, one.T @ two
        p, along = p[:, None], along[:, None]
        gain = along**2 * q - 2 * along * across * mixed + across**2 * p
        gain = gain / np.maximum(p * q - mixed**2, 1e-14 * p * q)
        return np.maximum(left @ left - gain, 0.0), np.add.outer(before, after)


def jumps_of(
    xi: Any,
    residuals: Float[np.ndarray, "n k"],
    sizes: Float[np.ndarray, " k"],
    breaks: tuple[float, ...] = (),
    functions: int = 0,
    *,
    fewest: int = 16,
    rows: int = 2**15,
    most: int = 12,
) -> tuple[float, ...]:
    """Where residuals jump in the context, besides the breaks known, in ascending order; each as the shortest number
    between the two samples around it. `sizes`: how far the fitted policy varies, in units of the residuals;
    `functions`: how many were fitted, if these vary within windows. Windows hold `fewest` samples on a side, or more;
    at most so many `rows` are looked at, and so many columns, principal components of more."""
    every = -(-len(residuals) // rows)
    where, group = np.unique(np.asarray(xi, float)[::every], return_inverse=True)
    if len(where) < 2 * fewest:
        return ()
    table = np.zeros((len(where), residuals.shape[1]))
    np.add.at(table, group.ravel(), residuals[::every])
    table /= np.bincount(group.ravel())[:, None]
    if table.shape[1] > most:
        turn = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)[2][:most].T
        table, sizes = table @ turn, np.sqrt(sizes**2 @ turn**2)
    t = (where - where[0]) / (where[-1] - where[0]) - 0.5
    columns = [_Column.of(t, column, size) for column, size in zip(table.T, sizes, strict=True)]
    widest = len(where) // (functions + 8 if functions else 2)  # N functions are about lines there
    widths = [width for k in range(len(where).bit_length()) if (width := fewest * 2**k) <= widest]
    ends, found = sorted({0, len(where), *np.searchsorted(where, breaks).tolist()}), []
    while (best := _clearest(columns, ends, widths)) is not None:
        ends = sorted([*ends, best])
        found.append(_between(where[best - 1], where[best]))
    return tuple(sorted(found))


def _clearest(
    columns: list[_Column], ends: list[int], widths: list[int], chance: float = 1e-3, narrow: float = 1 / 24
) -> int | None:
    """The clearest jump that is left within the pieces between `ends`. `chance`: that noise alone shows one, among all
    places; rises that hold a share of the samples less than `narrow` may be jumps, others smooth functions resolve."""
    n, found = len(columns[0].t), []
    for width in widths:
        bar = float(special.stdtrit(width - 2, 1 - chance / (2 * n * len(widths) * len(columns))))
        pieces = [(begin, end) for begin, end in pairwise(ends) if end - begin >= 2 * width]
        found += [column.clear(*piece, width, bar, narrow * n) for piece in pieces for column in columns]
    return max((one for one in found if one is not None), default=(0.0, None))[1]


def _between(low: float, high: float) -> float:
    """The shortest number above one and up to another."""
    middle = (low + high) / 2
    rounded = (round(middle, digits) for digits in range(-int(np.floor(np.log10(high - low))) + 3))
    return next((float(number) for number in rounded if low < number <= high), float(high))


def jumps_missed(around: Around) -> tuple[float, ...]:
    """Where the policy jumps and a basis of continuous functions does not, as what it leaves shows."""
    domain, basis = around.study.problem.domain, around.galerkin.reduced.basis.basis
    if not isinstance(domain, Interval) or not _continuous(basis):
        return ()
    known, policy = tuple(sorted({*domain.breaks, *breaks_in(basis)})), features_of(around) @ around.point.W
    sizes = np.abs(around.terms.curvature[0].mean(axis=0)) @ policy.std(axis=0)
    return jumps_of(around.study.lower.contexts().xi, around.terms.r[0], sizes, known, len(around.point.W))


def _continuous(basis: Any) -> bool:
    """Whether functions are known to be continuous, on each piece."""
    if isinstance(basis, Orthonormal | Piecewise):
        return _continuous(basis.basis)
    return isinstance(basis, PolynomialBasis | Fourier) or (isinstance(basis, BSpline) and basis.degree > 0)


def jumps_in_words(places: tuple[float, ...]) -> str:
    """``The policy jumps at 7.0 and 10.0``."""
    *most, last = (f"{place:.6g}" if place != round(place) else f"{place:.1f}" for place in places)
    return f"The policy jumps at {', '.join(most)}{' and ' if most else ''}{last}"


def missed_in_words(places: tuple[float, ...], domain: Interval) -> str:
    """That a basis misses jumps, and how to state them."""
    lo, hi = np.concatenate(domain.bounds)
    return (
        f"{jumps_in_words(places)}, which the basis does not. State it: cb.Interval({lo:g}, {hi:g}, breaks={places})."
    )
