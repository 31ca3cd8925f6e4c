"""A basis grown from the data: how many functions, and in several dimensions which ones.

At one decision ``x`` the lower level is fitted with more and more Chebyshev functions, each fit going on from the one
before, and judged twice: by the lower objective on samples held out (do more functions buy anything?), and, where a
goal is given, by how much the upper objective would still fall if its gradient were that of the largest fit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from . import oracles
from .basis import Basis, Categorical, Orthonormal, combine
from .data import Data, Level, Product, Samples, Stream, levels
from .domain import Distribution, Finite
from .enrich import neighbours
from .families import Chebyshev
from .hypergradient import positive_solve
from .indices import Listed, TotalDegree
from .lower import Dense, minimise
from .oracles import Ledger
from .problem import Problem, lower_depends_on_noise, working_dtype
from .reduction import Batch, Reduced, Table, contexts_of

_TIERS = ((1, 2, 3, 4, 5, 6, 8), (10, 12, 16, 20, 24), (32, 40, 48, 64))  # functions on an interval, tried in turn
_WIDTHS = (8, 24, 64, 128, 256, 1000)  # tables are filled up to one of these, so that few programs are compiled
_ROWS = 8000  # samples looked at
_CONTEXTS = 200  # contexts looked at, where each meets all the data
_COEFFICIENTS = 1000  # the largest N d_y tried
_SAMPLES_EACH, _CONTEXTS_EACH = 8, 2  # asked for each function: samples where there is noise, and distinct contexts
_GAIN = 1e-6  # share of the whole gain in the lower objective that is not worth more functions
_BULK = 0.7  # share of what the next functions bring that is taken on at once, in several dimensions
_ROUNDS = 40
_DIRECTIONS, _REACH = 16, 3e-3  # of x along which the curvature of F is measured, and how far


@dataclass(frozen=True)
class Goal:
    """What is left to gain in the upper objective: at most `excess` is to be given away.

    `hessian` of the objective on the coordinates that are `free`, about.
    """

    excess: float
    hessian: np.ndarray
    free: np.ndarray

    def given_away(self, gradient: np.ndarray) -> float:
        """How far the objective lies above its minimum where its gradient is this."""
        g, H = gradient[self.free], self.hessian[np.ix_(self.free, self.free)]
        return float(g @ np.linalg.solve(H, g)) / 2 if len(g) else 0.0


@dataclass(frozen=True)
class Rung:
    """One size of basis, fitted at ``x``: the lower objective on held-out samples, and the reduced gradient."""

    members: np.ndarray
    judged: np.ndarray
    gradient: np.ndarray
    value: float


def basis_of(members: np.ndarray) -> Basis:
    """The Chebyshev functions with these multi-indices, whitened."""
    top = int(members.max()) + 1
    return Orthonormal(Chebyshev(top) if members.shape[1] == 1 else Chebyshev(top, index=Listed(members.tolist())))


def first_members(dimension: int) -> np.ndarray:
    """A few functions to begin with: polynomials of degree 2."""
    return TotalDegree().table(3, dimension)


@dataclass(frozen=True)
class Choice:
    """The basis chosen at one ``x``, and why; `rungs` are all that were tried, `pick` the one chosen."""

    basis: Basis
    words: str
    rungs: tuple[Rung, ...]
    pick: int
    ledger: Ledger

    @property
    def functions(self) -> int:
        """How large it is, to compare two choices."""
        return len(self.rungs[self.pick].members) if self.rungs else 0


class Rows(eqx.Module):
    """The samples looked at: those fitted to, those held out, and the upper level's."""

    train: Samples
    held: Samples
    above: Samples


def _rows(level: Level, key: Array) -> Samples:
    """Joint samples of a level, at most ``_ROWS`` of them, in random order."""
    if isinstance(level, Stream):
        return level.draw(key, _ROWS)
    if isinstance(level, Product):  # each context with the same rows of the data, so that these bring no noise
        for_context, for_data = jax.random.split(key)
        context = level.context_rule()
        if isinstance(level.contexts, Distribution):
            context = Samples(level.contexts.sample(for_context, _CONTEXTS))
        order = jax.random.permutation(for_context, len(context))[:_CONTEXTS]
        data = jax.random.permutation(for_data, level.eta_rows)[: max(1, _ROWS // len(order))]
        return level.pairs(context, jnp.repeat(order, len(data)), jnp.tile(data, len(order)))
    return level.rows(jax.random.permutation(key, len(level))[:_ROWS])


class Fit(eqx.Module):
    """The lower level fitted with some of a table's functions, and what follows from it."""

    z: Float[Array, " n"]
    judged: Float[Array, " m"]
    gradient: Float[Array, " dx"]
    value: Float[Array, ""]
    sound: Array
    ledger: Ledger


@eqx.filter_jit
def _fit(bare: Reduced, x: PyTree, z: Array, mask: Array, train: Batch, held: Batch, above: Batch, ledger: Ledger):
    """Minimises the lower objective over the functions in the mask; its values on held-out samples; the gradient."""
    masked = lambda batch: replace(batch, features=batch.features * mask)
    _, unflatten = oracles.flatten(bare.W0)
    idle = jnp.diag(jnp.repeat(1 - mask, len(z) // len(mask)))

    def model(point):
        (value, slope, hessian), _ = oracles.lower_model(bare, x, unflatten(point), masked(train), Ledger.empty())
        return value, slope, hessian + idle

    slope, _ = oracles.lower_gradient(bare, x, unflatten(jnp.zeros_like(z)), masked(train), ledger)
    target = jnp.finfo(z.dtype).eps ** 0.5 * jnp.linalg.norm(oracles.flatten(slope)[0])
    found = minimise(Dense(model), z, target)
    ledger = ledger.add("lower_gradient", train).add("hessian", train, found.evaluations).add("lower_value", held)
    W = unflatten(found.point)
    y = combine(masked(held).features, W)
    values = jax.vmap(bare.problem.lower, in_axes=(None, 0, 0, 0))(x, y, held.xi, held.eta)
    (value, d1, d2), ledger = oracles.upper_gradients(bare, x, W, masked(above), ledger)
    v, definite = positive_solve(found.hessian, oracles.flatten(d2)[0])
    cross, ledger = oracles.cross_product(bare, x, W, unflatten(v), masked(train), ledger)
    gradient = ravel_pytree(jax.tree.map(jnp.subtract, d1, cross))[0]
    sound = found.converged & definite & jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(gradient))
    return Fit(found.point, values, gradient, value, sound, ledger)


class Bench:
    """Fits with the leading functions of a list, at one ``x``; features orthonormal on the samples fitted to.

    A QR factorisation of the features makes the leading new functions span the leading old ones, so that a fit with
    fewer functions is a mask, and one with more goes on from it. Tables are filled up with zeros to a few widths.
    """

    def __init__(self, problem: Problem, rows: Rows, ledger: Ledger):
        self.rows, self.ledger = rows, ledger
        self.dtype = working_dtype(problem, rows.train)
        self.problem = problem.astype(self.dtype)
        self.size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
        self.z = np.zeros(0)
        self.usable = 0

    def lay(self, members: np.ndarray) -> None:
        """Takes a longer list of functions, which begins with the one before."""
        domain, width = self.problem.domain, next(w for w in _WIDTHS if w >= len(members))
        recipe = Chebyshev(int(members.max()) + 1, index=Listed(members.tolist()))
        fitted = recipe.fit(domain, domain.snap(self.rows.train.xi, self.dtype))
        phi = [np.asarray(fitted(part.xi), float) for part in (self.rows.train, self.rows.held, self.rows.above)]
        weight = np.asarray(self.rows.train.mean_one_weights(), float)
        triangle = np.linalg.qr(np.sqrt(weight / len(weight))[:, None] * phi[0], mode="r")
        pivots = np.abs(np.diag(triangle))
        self.usable = int(np.argmin(np.append(pivots > 1e-7 * pivots[0], False)))  # those the contexts tell apart
        forth = np.zeros((len(members), width))
        forth[: self.usable, : self.usable] = np.linalg.inv(triangle[: self.usable, : self.usable])
        parts = (self.rows.train, self.rows.held, self.rows.above)
        self.batches = [
            Batch(jnp.asarray(table @ forth, self.dtype), p.xi, p.eta, p.mean_one_weights().astype(self.dtype))
            for table, p in zip(phi, parts, strict=True)
        ]
        flat = np.zeros((width, self.size))
        flat[0] = triangle[0, 0] * np.asarray(ravel_pytree(self.problem.y0)[0])  # y0, the constant policy
        old = self.z.reshape(-1, self.size)[: self.usable]
        flat[: len(old)] = old if len(old) else flat[: len(old)]
        self.z = flat.reshape(-1)
        unravel = ravel_pytree(self.problem.y0)[1]
        W0 = jax.vmap(unravel)(jnp.zeros((width, self.size), self.dtype))
        pool = Table(self.batches[0])
        self.bare = Reduced(self.problem, None, pool, pool, W0, None)  # pyright: ignore

    def fit(self, x: PyTree, count: int) -> Fit | None:
        """With the first `count` functions; ``None`` where that fails."""
        width = self.batches[0].features.shape[1]
        mask = (jnp.arange(width) < count).astype(self.dtype)
        x = jax.tree.map(lambda a: jnp.asarray(a, self.dtype), x)
        z = jnp.asarray(self.z, self.dtype) * jnp.repeat(mask, self.size)
        found = _fit(self.bare, x, z, mask, *self.batches, self.ledger)
        self.ledger = found.ledger
        if not bool(found.sound):
            return None
        self.z = np.asarray(found.z, float)
        return found

    def rung(self, x: PyTree, members: np.ndarray) -> Rung | None:
        if len(members) > self.usable:
            return None
        found = self.fit(x, len(members))
        if found is None:
            return None
        judged = np.asarray(found.judged * self.batches[1].weight, float)
        return Rung(members, judged, np.asarray(found.gradient, float), float(found.value))


def _ladder(bench: Bench, x: PyTree, members: np.ndarray, most: int) -> Iterator[Rung | None]:
    """On an interval: polynomials of growing degree, from those given on."""
    for tier in _TIERS:
        tier = [n for n in tier if len(members) <= n <= most]
        if tier:
            bench.lay(np.arange(tier[-1])[:, None])
        for n in tier:
            yield bench.rung(x, np.arange(n)[:, None])


def _frontier(bench: Bench, x: PyTree, members: np.ndarray, most: int) -> Iterator[Rung | None]:
    """In several dimensions: the next functions are tried all together, and those that bring the most are kept."""
    for _ in range(_ROUNDS):
        ahead = neighbours(members)
        further = neighbours(np.concatenate([members, ahead]))
        table = np.concatenate([members, ahead, further])[: max(most, len(members))]
        bench.lay(table)
        yield bench.rung(x, members)
        kept = bench.z.copy()
        if len(table) == len(members) or bench.usable <= len(members) or bench.fit(x, bench.usable) is None:
            return
        brought = np.linalg.norm(bench.z.reshape(-1, bench.size), axis=1)[len(members) : bench.usable]
        order = np.argsort(-brought)
        share = np.cumsum(brought[order] ** 2) / max(np.sum(brought**2), np.finfo(float).tiny)
        wanted = {tuple(table[len(members) + k]) for k in order[: int(np.argmax(share >= _BULK)) + 1]}
        members, bench.z = _closed(members, wanted), kept
        if len(members) > most:
            return


def _closed(members: np.ndarray, wanted: set) -> np.ndarray:
    """The set with some functions added, and all that come before these."""
    have, grown = {tuple(row) for row in members.tolist()}, list(members.tolist())
    for top in sorted(wanted, key=lambda k: (sum(k), k)):
        below = np.stack(np.meshgrid(*[np.arange(k + 1) for k in top], indexing="ij"), axis=-1).reshape(-1, len(top))
        for row in sorted(map(tuple, below.tolist()), key=lambda k: (sum(k), k)):
            if row not in have:
                have.add(row)
                grown.append(list(row))
    return np.array(grown, dtype=int)


class Hunt(eqx.Module):
    """What a search for a basis works with: samples split in three, whether the lower level is noisy, how much is borne."""

    rows: Rows
    noisy: bool = eqx.field(static=True)
    most: int = eqx.field(static=True)
    distinct: int = eqx.field(static=True)

    @staticmethod
    def on(problem: Problem, samples: Data, key: Array) -> "Hunt":
        upper, lower = levels(samples)
        rows = _rows(lower, key)
        noisy = lower_depends_on_noise(problem, samples) and not isinstance(lower, Product)
        size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
        cut = max(1, len(rows) * 4 // 5)
        train, held = rows.rows(slice(0, cut)), rows.rows(slice(cut, None))
        seen = len(np.unique(np.asarray(contexts_of(lower).xi), axis=0))
        distinct = min(seen, len(np.unique(np.asarray(train.xi), axis=0)))
        supported = min(distinct // _CONTEXTS_EACH, len(train) // _SAMPLES_EACH if noisy else distinct)
        parts = Rows(train, held, rows if upper is lower else _rows(upper, key))
        return Hunt(parts, noisy, max(1, min(supported, _COEFFICIENTS // size)), distinct)

    def climb(self, problem: Problem, x: PyTree, members: np.ndarray, ledger: Ledger, enough: Callable[[list], bool]):
        """Rungs from `members` up until there are enough, or no more; whether a fit failed; the ledger."""
        bench, rungs = Bench(problem, self.rows, ledger), []
        steps = (_ladder if members.shape[1] == 1 else _frontier)(bench, x, members, self.most)
        for rung in steps if len(self.rows.held) >= 2 else ():
            if rung is None:
                return rungs, True, bench.ledger
            rungs.append(rung)
            if enough(rungs):
                break
        return rungs, False, bench.ledger

    def pick(self, rungs: list[Rung]) -> tuple[int, int]:
        """The smallest set that held-out samples find as good as the best one, and that one."""
        return _smallest_good(np.stack([r.judged for r in rungs]), self.noisy)


def choose_basis(problem: Problem, samples: Data, x: PyTree, key: Array, ledger: Ledger | None = None) -> Choice:
    """A basis for these data at the decision ``x``, and the reason in words.

    Chebyshev functions, more and more of them, are fitted to four fifths of the samples, and judged by the lower
    objective on the last fifth. The smallest set is taken that is within one standard error of the best (where the
    lower level has noise), or within a millionth of the whole gain (where it has none); larger ones are tried only
    while that one is among the largest so far.
    """
    domain, ledger = problem.domain, Ledger.empty() if ledger is None else ledger
    if isinstance(domain, Finite):
        lower = levels(samples)[1]
        seen = len(np.unique(np.asarray(contexts_of(lower).xi), axis=0))
        if seen == len(domain.values) and 3 * seen <= len(_rows(lower, key)):
            words = f"Categorical(): a free policy for each of the {len(domain.values)} contexts."
            return Choice(Categorical(), words, (), 0, ledger)
    hunt = Hunt.on(problem, samples, key)
    least = _TIERS[0][-1] if domain.dimension == 1 else 1
    enough = lambda rungs: len(rungs[-1].members) >= least and hunt.pick(rungs)[0] < len(rungs) - 2
    rungs, failed, ledger = hunt.climb(problem, x, np.zeros((1, domain.dimension), int), ledger, enough)
    if len(rungs) < 2:
        one = Orthonormal(Chebyshev(1))
        reason = (
            "the lower level could not be minimised with more functions"
            if failed
            else f"{len(hunt.rows.train) + len(hunt.rows.held)} samples with {hunt.distinct} distinct contexts support no more"
        )
        return Choice(one, f"{one!r}: {reason}.", tuple(rungs), 0, ledger)
    pick, best = hunt.pick(rungs)
    basis, sizes = basis_of(rungs[pick].members), [len(r.members) for r in rungs]
    rule = "one standard error" if hunt.noisy else f"{_GAIN:g} of the gain"
    words = (
        f"{basis!r}: the smallest of N = {', '.join(map(str, sizes))} within {rule} of the best (N = {sizes[best]}) lower "
        f"objective on {len(hunt.rows.held)} held-out samples."
    )
    return Choice(basis, words, tuple(rungs), pick, ledger)


def grow_basis(
    problem: Problem, samples: Data, x: PyTree, members: np.ndarray, most: int, goal: Goal, key: Array, ledger: Ledger
) -> Choice | None:
    """The smallest basis, from `members` up to `most` functions, that gives away no more of the objective than asked.

    Judged by a larger one: the last of two steps up that changed the gradient by little, or the best on held-out
    samples where that comes first, as more functions would fit noise. ``None`` where the lower level cannot be fitted.
    """
    hunt = Hunt.on(problem, samples, key)

    def enough(rungs):
        if len(rungs) < 3:
            return False
        little = max(_given_away(rungs, goal)[-3:-1]) <= goal.excess / 20
        return little or hunt.pick(rungs)[0] < len(rungs) - 2

    rungs, _, ledger = hunt.climb(problem, x, members, ledger, enough)
    if not rungs:
        return None
    last = hunt.pick(rungs)[0] if len(rungs) > 1 else 0
    lost = _given_away(rungs[: last + 1], goal)
    pick = next((k for k in range(last + 1) if max(lost[k:]) <= goal.excess), last)
    while pick and len(rungs[pick].members) > most:
        pick -= 1
    basis, sizes = basis_of(rungs[pick].members), [len(r.members) for r in rungs]
    words = (
        f"{basis!r} gives away {lost[pick]:.2g} of the objective (asked {goal.excess:.2g}), judged by N = {sizes[last]}"
    )
    return Choice(basis, words, tuple(rungs), pick, ledger)


def _given_away(rungs: list[Rung], goal: Goal) -> list[float]:
    """What each set gives away, judged by the last one."""
    return [goal.given_away(r.gradient - rungs[-1].gradient) for r in rungs]


def _smallest_good(values: Float[np.ndarray, "k m"], noisy: bool) -> tuple[int, int]:
    """The first row good enough, and the best one."""
    means = values.mean(axis=1)
    best = int(np.argmin(means))
    slack = np.full(len(values), _GAIN * (means[0] - means[best]))
    if noisy:
        slack = np.maximum(slack, np.std(values - values[best], axis=1) / np.sqrt(values.shape[1]))
    return int(np.argmax(means - means[best] <= slack)), best


def goal_at(problem: Problem, samples: Data, x: PyTree, members: np.ndarray, excess: float, key: Array, ledger: Ledger):
    """The goal of giving away at most `excess`, with the curvature of the objective at ``x`` by differences.

    Coordinate by coordinate for a few, along the gradient alone for many. Bounds that hold ``x`` leave it no freedom.
    """
    point, unravel = ravel_pytree(x)
    lo, hi = (np.asarray(ravel_pytree(side)[0]) for side in problem.x_bounds)
    upper, lower = levels(samples)
    rows = _rows(lower, key)
    bench = Bench(problem, Rows(rows, rows.rows(slice(0, 1)), rows if upper is lower else _rows(upper, key)), ledger)
    bench.lay(members)
    here = bench.fit(x, min(len(members), bench.usable))
    at, count = np.asarray(point, float), point.size
    if here is None:
        return None, bench.ledger
    slope = np.asarray(here.gradient, float)
    free = (lo < hi) & ~((at <= lo) & (slope > 0)) & ~((at >= hi) & (slope < 0))
    length = np.linalg.norm(slope)
    steepest = slope / length if length > 0 else np.ones(count) / count**0.5
    H = np.zeros((count, count))
    for direction in np.eye(count) if count <= _DIRECTIONS else steepest[None]:
        reach = _REACH * (1 + np.abs(at @ direction))
        beside = at + reach * direction
        reach = reach if np.all(beside <= hi) and np.all(beside >= lo) else -reach
        there = bench.fit(
            unravel(jnp.asarray(np.clip(at + reach * direction, lo, hi))), min(len(members), bench.usable)
        )
        if there is None:
            return None, bench.ledger
        bend = (np.asarray(there.gradient, float) - slope) / reach
        H += np.outer(bend, direction) if count <= _DIRECTIONS else np.abs(direction @ bend) * np.eye(count)
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    largest = np.max(np.abs(values))
    if not largest > 0:
        return None, bench.ledger
    H = (vectors * np.maximum(np.abs(values), 1e-3 * largest)) @ vectors.T
    return Goal(excess, H, free), bench.ledger
