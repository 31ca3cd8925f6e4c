"""The lower level fitted at one ``x`` in given functions of the context, and what each sample asks of the policy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..basis import Axes
from ..derivatives import Expansions, Nodes, RowBlocks, flattened
from ..ground import put
from ..inference import mean_error
from ..lower import Point, solve_at
from ..problem import LOOK_ROWS, Domain, Samples
from ..reduction import Batch, Bilevel, Table
from ..study import Study

Vector = Float[np.ndarray, " dx"]

MOST_COEFFICIENTS = 2000  # the largest N d_y of a fit: its Hessian is formed
MOST_FUNCTIONS = 64  # of one coordinate, or of a policy seen without noise: smooth ones need fewer
MULTIPLICATIONS = 2**31  # the budget of one regression or orthogonalisation: some seconds
ROUNDS = 12  # of adding functions, fitting or solving anew, at most: all end sooner by themselves
SETTLED = 1e-3  # relative change from which on an iteration has settled
CLEARLY = 3.0  # standard errors
FITTED = 0.8  # share of the samples fitted to where others are held out


def orthonormalising(table: Float[np.ndarray, "n N"], shares: Float[np.ndarray, " n"]) -> Float[np.ndarray, "N r"]:
    """The matrix that makes functions, the first of them a constant, orthonormal over the samples, each against those
    before it; for as many leading functions as the contexts distinguish to half the digits."""
    triangle = np.asarray(np.linalg.qr(np.sqrt(shares)[:, None] * table, mode="r"))
    pivots = np.abs(np.diag(triangle))
    usable = int(np.argmin(np.append(pivots > np.finfo(float).eps ** 0.5 * pivots[0], False)))
    return np.eye(table.shape[1], usable) @ np.linalg.inv(triangle[:usable, :usable])


def decisions_near(x: Vector, unit: Vector, bounds: tuple, rng: np.random.Generator) -> list[Vector]:
    """Two decisions about half a unit from ``x`` along each coordinate, within the bounds."""
    steps = (unit / 2 * rng.choice([-1.0, 1.0], len(x)) * rng.uniform(0.5, 1.5, len(x)) for _ in range(2))
    return [np.clip(x + step, *bounds) for step in steps]


@dataclass(frozen=True)
class Residuals:
    """At one ``x``, with some functions fitted: `r` is ``d2 g``, `alpha` is ``d22 g v - d2 f`` where both levels see
    the same samples; their conditional means vanish where the functions suffice. `curvature`: the mean of ``d22 g``."""

    point: Point
    r: Float[np.ndarray, "n dy"]
    alpha: Float[np.ndarray, "n dy"] | None
    curvature: Float[np.ndarray, "dy dy"]

    def energy(self, W: Float[np.ndarray, "N dy"]) -> float:
        """The mean square residual that removing a policy with these coefficients would leave."""
        return float(np.sum((W @ self.curvature) ** 2))


class Fits:
    """Fits of the lower level with the leading functions of a list, orthonormal over the samples.

    The leading new functions span the leading old ones: a fit with fewer functions takes the leading columns, and one
    with more continues from it. All share the rows; their cost is added to `spent`. Points are vectors.
    `together`: rows at each context; `held`: held-out samples; `domain`: where the functions live, if not on that of
    the problem.
    """

    def __init__(
        self,
        study: Study,
        samples: Samples,
        upper: Samples | None = None,
        spent: Counter | None = None,
        together: int = 1,
        held: Samples | None = None,
        domain: Domain | None = None,
    ):
        self.study, self.dtype, self.samples, self.held, self.together = study, study.dtype, samples, held, together
        self.size, self.shares = study.problem.sizes[1], samples.shares()
        self.shared, self._upper_samples = upper is None, upper
        self.live_on(study.problem.domain if domain is None else domain)
        lower = self._table(samples)
        W0 = jax.tree.map(lambda y: put(np.zeros((1, *y.shape), self.dtype)), study.problem.y0)
        self.rows = Expansions(Bilevel(study.problem, lower if upper is None else self._table(upper), lower, W0))
        self.rows.spent = Counter() if spent is None else spent
        if held is not None:
            self._held_rows = RowBlocks(held.xi, held.eta, self.dtype, self.rows.sizes.lower)
        self.context_shares = self.shares.reshape(-1, together).sum(axis=1)

    def live_on(self, domain: Domain) -> None:
        """Switches to the functions natural to another domain, as one with breaks; lets fits start again."""
        self.domain, self.axes = domain, Axes.of(domain)
        place = lambda part: None if part is None else self.axes.places(domain, domain.snap(part.xi, self.dtype))
        self._places = [place(part) for part in (self.samples, self.held, self._upper_samples)]
        self.u: np.ndarray = self._places[0][:: self.together]  # pyright: ignore[reportOptionalSubscript]
        self.forget()

    @staticmethod
    def looking(study: Study, key: Array, spent: Counter, share: float = 1.0, rows: int = LOOK_ROWS) -> "Fits":
        """Fits to that share of a part of the samples; the others are held out."""
        look = study.lower.look(key, rows=rows)
        upper = None if study.shared else study.upper.look(key, rows=rows).samples
        samples, cut = look.samples, max(1, int(len(look.samples) * share))
        if cut == len(samples):
            return Fits(study, samples, upper, spent, look.together)
        held, upper = samples.rows(slice(cut, None)), samples if upper is None else upper
        return Fits(study, samples.rows(slice(0, cut)), upper, spent, held=held)

    def at_nodes(self, members: np.ndarray) -> "Fits | None":
        """The same at the nodes of a quadrature of the samples, for products of these functions."""
        table = self.axes.table(self.u, members)
        nodes = Nodes.of(table @ orthonormalising(table, self.shares), self.shares, np.random.default_rng(0))
        if nodes is None:
            return None
        rows = self.samples.rows(nodes.index)
        weighted = eqx.tree_at(lambda s: s.weights, rows, nodes.weights * len(rows), is_leaf=lambda leaf: leaf is None)
        return Fits(self.study, weighted, self._upper_samples, self.rows.spent)

    def _table(self, rows: Samples) -> Table:
        weight = np.asarray(rows.mean_one_weights(), self.dtype)
        return Table(Batch(put(np.ones((len(rows), 1), self.dtype)), rows.xi, rows.eta, put(weight)))

    @cached_property
    def most(self) -> int:
        """The maximal number of functions: what the contexts support and a fit can have."""
        return max(1, min(self.supported, MOST_COEFFICIENTS // self.size))

    @cached_property
    def supported(self) -> int:
        """How many functions the contexts support."""
        finite = all(axis.categorical for axis in self.axes.each)
        return self.samples.rows(slice(None, None, self.together)).supported(self.study.noisy, finite)

    def by_context(self, table: np.ndarray) -> np.ndarray:
        """The means of rows at each context."""
        return table.reshape(len(self.u), self.together, -1).mean(axis=1)

    def forget(self, policy: Float[np.ndarray, "n dy"] | None = None) -> None:
        """Lets fits start again, from the constant policy ``y0``, or from a policy given at the samples."""
        self.policy = policy
        self.known: dict[bytes, Point] = {}
        self._slopes: dict[bytes, np.ndarray] = {}

    def lay(self, members: np.ndarray) -> None:
        """Switches to another list of functions."""
        tables: list[Any] = [None if u is None else self.axes.table(u, members) for u in self._places]
        self.forth = orthonormalising(tables[0], self.shares)
        tables = [None if table is None else table @ self.forth for table in tables]
        self.table, self._held_table, self._upper = tables
        self.usable = self.forth.shape[1]
        self._expansions: dict[int, Expansions] = {}

    def expansions(self, count: int) -> Expansions:
        """With the first `count` functions."""
        if count not in self._expansions:
            upper = None if self._upper is None else self._upper[:, :count]
            self._expansions[count] = self.rows.with_features(self.table[:, :count], upper)
        return self._expansions[count]

    def target(self, x: Vector, count: int) -> float:
        """The size of the gradient to solve to, relative to that at the zero policy; where it has none, at ``y0``."""
        at = x.tobytes()
        if at not in self._slopes:
            slopes = np.zeros((len(self.table), self.size))
            for policy in (np.zeros(self.size), flattened(self.study.problem.y0)):
                _, found = self.rows.lower_slopes(x, np.tile(policy, (len(slopes), 1)))
                slopes = np.where(np.isfinite(found), found, 0.0)
                if slopes.any():
                    break
            self._slopes[at] = slopes * self.shares[:, None]
        return self.rows.eps**0.5 * float(np.linalg.norm(self.table[:, :count].T @ self._slopes[at]))

    def constant(self, count: int) -> Float[np.ndarray, "N dy"]:
        """The coefficients of the policy ``y0``."""
        return self._padded(flattened(self.study.problem.y0)[None] / self.forth[0, 0], count)

    def _padded(self, W: Float[np.ndarray, "n dy"], count: int) -> Float[np.ndarray, "N dy"]:
        return np.concatenate([W[:count], np.zeros((max(count - len(W), 0), self.size))])

    def fit(self, x: Vector, count: int) -> Point | None:
        """A fit with the first `count` functions, starting from the prediction of the fit at this ``x`` or else of the
        last fit, or from a given policy; then from ``y0``. ``None`` if that fails."""
        at, target, starts = self.expansions(count), self.target(x, count), [self.constant(count)]
        last, own = next(reversed(self.known.values()), None), self.known.get(x.tobytes())
        near = last if last is None or own is None or len(last.W) >= 2 * len(own.W) else own
        if near is not None:
            starts.insert(0, self._padded(near.coefficients_at(x), count))
        elif self.policy is not None:
            starts.insert(0, self.table[:, :count].T @ (self.shares[:, None] * self.policy))
        for start in starts:
            found = solve_at(at, x, start, target, at.eps**0.5)
            if found.sound:
                self.known.pop(x.tobytes(), None)
                self.known[x.tobytes()] = found
                return found
        return None

    def residuals(self, x: Vector) -> Residuals | None:
        """The residuals that all functions of the list leave at ``x``; ``None`` if they cannot be fitted."""
        point = self.fit(x, self.usable)
        if point is None or point.hessian is None:
            return None
        r, alpha = self.expansions(self.usable).residual_rows(x, point.W, point.adjoint, self.shared)
        # the first function is a constant of mean square one
        return Residuals(point, r, alpha, point.hessian[: self.size, : self.size])

    def held_out(self, x: Vector, W: Float[np.ndarray, "N dy"]) -> Float[np.ndarray, " m"]:
        """The lower objective of a fit at held-out samples, with their weights."""
        held: Any = self.held
        values, _ = self.rows.lower_slopes(x, self._held_table[:, : len(W)] @ W, self._held_rows)
        return values * held.shares() * len(held)


@dataclass(frozen=True)
class Responses:
    r"""Contexts `u` on the reference cube, and at each a Newton step from a policy, $t = y - A^{-1} \partial_2 g$.

    In units in which $A$, the mean of $\partial_{22} g$, is the identity: the mean square of ``t - y`` is then, about,
    twice the lower objective up to a constant, and exactly where ``g`` is quadratic with one Hessian. `shares` are the
    weights of the samples, which sum to 1.
    """

    u: Float[np.ndarray, "n d"]
    t: Float[np.ndarray, "n k"]
    shares: Float[np.ndarray, " n"]

    @staticmethod
    def of(u: Any, t: Any, curvature: Any, shares: Any) -> "Responses":
        """From responses in the units of ``y``."""
        values, vectors = np.linalg.eigh(np.asarray(curvature, float))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return Responses(np.asarray(u, float), np.asarray(t, float) @ root, np.asarray(shares, float))

    def __len__(self) -> int:
        return len(self.u)

    @property
    def root(self) -> Float[np.ndarray, "n 1"]:
        """The factors of rows that make sums of squares weighted."""
        return np.sqrt(self.shares)[:, None]

    def error_of(self, values: Float[np.ndarray, " n"]) -> float:
        """The standard error of the weighted mean of values, one per row."""
        return float(mean_error(values[:, None], self.shares)[0])

    def part(self, start: float, end: float) -> "Responses":
        """The rows between two shares of them."""
        rows = slice(round(start * len(self)), round(end * len(self)))
        shares = self.shares[rows]
        return Responses(self.u[rows], self.t[rows], shares / shares.sum())

    def to_tune(self, most: int, share: float = 0.75) -> "tuple[Responses, Responses]":
        """A share of the rows to fit to while settings are tuned, and others to tune them on; at most `most` in all."""
        rows = self.part(0.0, min(1.0, most / len(self)))
        return rows.part(0.0, share), rows.part(share, 1.0)

    def leading(self, smooth: Float[np.ndarray, "n k"], most: int = 4) -> "Responses":
        """The components that vary most in a smooth fit of them."""
        if self.t.shape[1] <= most:
            return self
        _, _, rows = np.linalg.svd(self.root * (smooth - self.shares @ smooth), full_matrices=False)
        return replace(self, t=self.t @ rows[:most].T)


def nested_errors(
    fitted: Responses, held: Responses, tables: tuple[np.ndarray, np.ndarray], counts: Sequence[int]
) -> Float[np.ndarray, "k m"]:
    """The squared errors on held-out rows of fits with the first functions of a table, for each count of them."""
    forth = orthonormalising(tables[0], fitted.shares)
    coefficients = (tables[0] @ forth).T @ (fitted.shares[:, None] * fitted.t)
    there = tables[1] @ forth
    return np.stack([np.sum((held.t - there[:, :n] @ coefficients[:n]) ** 2, axis=1) for n in counts])
