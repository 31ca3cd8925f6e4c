"""Fits of the lower level at one ``x`` with more and more functions, each going on from the one before; and what they
leave of the policy and the adjoint, sample by sample."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from ..basis import Axes
from ..derivatives import Expansions, RowBlocks, flattened
from ..lower import Point, solve_at
from ..problem import Samples, Study
from ..programs import put
from ..reduction import Batch, Bilevel, Table

TIERS = ((1, 2, 3, 4, 5, 6, 8), (10, 12, 16, 20, 24), (32, 40, 48, 64))  # functions on an interval, tried in turn
_BULK = 0.7  # share of what the next functions bring that is taken on at once, in several dimensions
_ROUNDS_AHEAD = 40  # the most rounds of looking at the next functions
_FIT_ACCURACY = 0.5  # exponent of the precision: the gradient, relative to that of no policy, and the last step
_FAR_MORE = 4  # times the functions of a fit, from which on it is a worse start than a constant policy
MOST_COEFFICIENTS = 1000  # the largest N d_y tried
SMALLEST_PIVOT = 1e-7  # of the largest: below, the contexts do not distinguish a function from those before it


@dataclass(frozen=True)
class Split:
    """The samples looked at: those fitted to, those held out, if any, and the upper level's."""

    train: Samples
    held: Samples | None
    upper: Samples

    @staticmethod
    def of(study: Study, key: Array, share: float) -> "Split":
        """A look at both levels, with that share of the lower level's samples to fit to."""
        rows = study.lower.look(key).samples
        cut = max(1, int(len(rows) * share))
        held = rows.rows(slice(cut, None)) if cut < len(rows) else None
        return Split(rows.rows(slice(0, cut)), held, rows if study.shared else study.upper.look(key).samples)


@dataclass(frozen=True)
class Candidate:
    """One set of functions, fitted at ``x``: the lower objective on held-out samples, and the reduced gradient."""

    members: Int[np.ndarray, "N d"]
    judged: Float[np.ndarray, " m"]
    gradient: Float[np.ndarray, " dx"]
    value: float


@dataclass(frozen=True)
class Residuals:
    """At one ``x``, with some functions fitted.

    - `r`: ``d2 g``; `alpha`: ``d22 g v - d2 f``, where both levels see the same samples; their conditional means vanish
      where the functions suffice.
    - `curvature`: the mean of ``d22 g``.
    """

    point: Point
    r: Float[np.ndarray, "n dy"]
    alpha: Float[np.ndarray, "n dy"] | None
    curvature: Float[np.ndarray, "dy dy"]

    def energy(self, W: Float[np.ndarray, "N dy"]) -> float:
        """The mean square of what a policy with these coefficients would leave, if it were not there."""
        return float(np.sum((W @ self.curvature) ** 2))


class NestedFits:
    """Fits with the leading functions of a list; features orthonormal on the samples fitted to.

    A QR factorisation of the features makes the leading new functions span the leading old ones, so that a fit with
    fewer functions takes the leading columns, and one with more goes on from it. All share the rows; what they cost is
    added to `spent`. Points are vectors.
    """

    def __init__(self, study: Study, split: Split, spent: Counter):
        self.problem, self.dtype, self.split = study.problem, study.dtype, split
        self.size, self.shares = study.problem.sizes[1], split.train.shares()
        self.axes, domain = Axes.of(study.problem.domain), study.problem.domain
        self.shared = split.upper is split.train
        place = lambda part: None if part is None else self.axes.places(domain, domain.snap(part.xi, self.dtype))
        self.places = [place(part) for part in (split.train, split.held, None if self.shared else split.upper)]
        lower = self._table(split.train)
        W0 = jax.tree.map(lambda y: put(np.zeros((1, *y.shape), self.dtype)), self.problem.y0)
        bare = Bilevel(self.problem, lower if self.shared else self._table(split.upper), lower, W0)
        self.rows = Expansions(bare)
        self.rows.spent = spent
        self.usable = 0
        self.known: dict[bytes, Point] = {}
        self.forget()

    def _table(self, rows: Samples) -> Table:
        weight = np.asarray(rows.mean_one_weights(), self.dtype)
        return Table(Batch(put(np.ones((len(rows), 1), self.dtype)), rows.xi, rows.eta, put(weight)))

    def forget(self, policy: Float[np.ndarray, "n dy"] | None = None) -> None:
        """Fits begin anew, from the constant policy ``y0``, or from one that is given at the samples."""
        self.policy, self.known = policy, {}
        self._slopes: dict[bytes, np.ndarray] = {}

    def lay(self, members: np.ndarray) -> None:
        """Takes a longer list of functions, which begins with the one before."""
        tables: list[Any] = [None if u is None else self.axes.table(u, members) for u in self.places]
        forth = orthonormalising(tables[0], self.shares)
        self.table, self.held, self.upper = (None if table is None else table @ forth for table in tables)
        self.usable, self.first = forth.shape[1], flattened(self.problem.y0) / forth[0, 0]
        self._expansions: dict[int, Expansions] = {}

    def expansions(self, count: int) -> Expansions:
        """With the first `count` functions."""
        if count not in self._expansions:
            upper = None if self.upper is None else self.upper[:, :count]
            self._expansions[count] = self.rows.with_features(self.table[:, :count], upper)
        return self._expansions[count]

    def _target(self, x: Float[np.ndarray, " dx"], count: int) -> float:
        """The size of the gradient to solve to, from that of no policy."""
        at = x.tobytes()
        if at not in self._slopes:
            _, slopes = self.rows.lower_slopes(x, np.zeros((len(self.table), self.size)))
            self._slopes[at] = np.where(np.isfinite(slopes), slopes, 0.0) * self.shares[:, None]
        return self.rows.eps**_FIT_ACCURACY * float(np.linalg.norm(self.table[:, :count].T @ self._slopes[at]))

    def _starts(self, x: Float[np.ndarray, " dx"], count: int) -> Iterator[Float[np.ndarray, "N dy"]]:
        """The fit at this ``x``; where there is none, or the last one had twice its functions, what that one predicts,
        and that one itself. First ``y0``, where there is no fit, or one with far fewer functions."""
        last, own = next(reversed(self.known.values()), None), self.known.get(x.tobytes())
        near = last if own is None or len(last.W) >= 2 * len(own.W) else own
        starts = [] if near is None else [near.W] if near is own else [near.coefficients_at(x), near.W]
        if near is None or _FAR_MORE * len(near.W) <= count:
            starts.insert(0, self.first[None])
        if near is None and self.policy is not None:
            starts.insert(0, self.table[:, :count].T @ (self.shares[:, None] * self.policy))
        for old in starts:
            yield np.concatenate([old[:count], np.zeros((max(count - len(old), 0), self.size))])

    def fit(self, x: Float[np.ndarray, " dx"], count: int) -> Point | None:
        """With the first `count` functions; ``None`` where that fails."""
        at, target = self.expansions(count), self._target(x, count)
        for start in self._starts(x, count):
            found = solve_at(at, x, start, target, at.eps**_FIT_ACCURACY)
            if found.sound:
                self.known.pop(x.tobytes(), None)
                self.known[x.tobytes()] = found
                return found
        return None

    def residuals(self, x: Float[np.ndarray, " dx"], joint: bool) -> Residuals | None:
        """What all functions of the list leave at ``x``; ``None`` where they cannot be fitted."""
        point = self.fit(x, self.usable)
        if point is None or point.hessian is None:
            return None
        r, alpha = self.expansions(self.usable).residual_rows(x, point.W, point.adjoint, joint)
        # the first function is a constant of mean square one
        return Residuals(point, r, alpha, point.hessian[: self.size, : self.size])

    def candidate(self, x: Float[np.ndarray, " dx"], members: np.ndarray) -> Candidate | None:
        """The fit with these functions, judged; ``None`` where that fails."""
        count = len(members)
        found = None if count > self.usable else self.fit(x, count)
        if found is None:
            return None
        held, weights = self._held
        values, _ = self.rows.lower_slopes(x, self.held[:, :count] @ found.W, held)
        if not np.all(np.isfinite(values)):
            return None
        return Candidate(members, values * weights, found.gradient, found.value)

    @cached_property
    def _held(self) -> tuple[RowBlocks, Float[np.ndarray, " m"]]:
        """The samples held out, and their weights."""
        rows: Any = self.split.held
        return RowBlocks(rows.xi, rows.eta, self.dtype, self.rows.sizes.lower), rows.shares() * len(rows)


def orthonormalising(table: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "N r"]:
    """What makes functions orthonormal over the samples, each against those before it: as many of the leading ones as
    the contexts distinguish."""
    triangle = np.asarray(np.linalg.qr(np.sqrt(shares)[:, None] * table, mode="r"))
    pivots = np.abs(np.diag(triangle))
    usable = int(np.argmin(np.append(pivots > SMALLEST_PIVOT * pivots[0], False)))
    forth = np.linalg.inv(triangle[:usable, :usable])
    return np.concatenate([forth, np.zeros((table.shape[1] - usable, usable))])


def by_degree(
    fits: NestedFits, x: Float[np.ndarray, " dx"], members: np.ndarray, most: int
) -> Iterator[Candidate | None]:
    """Of one coordinate: functions of growing degree, from those given on."""
    for tier in TIERS:
        tier = [n for n in tier if len(members) <= n <= most]
        if tier:
            fits.lay(np.arange(tier[-1])[:, None])
        for n in tier:
            yield fits.candidate(x, np.arange(n)[:, None])


def by_margin(
    fits: NestedFits, x: Float[np.ndarray, " dx"], members: np.ndarray, most: int
) -> Iterator[Candidate | None]:
    """In several dimensions: the next functions are tried all together, and those that bring the most are kept."""
    for _ in range(_ROUNDS_AHEAD):
        ahead = fits.axes.neighbours(members)
        further = fits.axes.neighbours(np.concatenate([members, ahead]))
        table = np.concatenate([members, ahead, further])[: max(most, len(members))]
        fits.lay(table)
        yield fits.candidate(x, members)
        if len(table) == len(members) or fits.usable <= len(members):
            return
        kept = dict(fits.known)
        found = fits.fit(x, fits.usable)
        if found is None:
            return
        brought = np.linalg.norm(found.W[len(members) :], axis=1)
        order = np.argsort(-brought)
        share = np.cumsum(brought[order] ** 2) / max(np.sum(brought**2), np.finfo(float).tiny)
        wanted = {tuple(table[len(members) + k]) for k in order[: int(np.argmax(share >= _BULK)) + 1]}
        members, fits.known = fits.axes.closed(members, wanted), kept
        if len(members) > most:
            return
