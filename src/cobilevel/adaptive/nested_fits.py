"""Fits of the lower level at one ``x`` with more and more functions, each going on from the one before."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..basis.base import combine
from ..basis.richer import neighbours
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..derivatives.linear_systems import positive_solve
from ..lower.damped_newton import Dense, minimise
from ..problem.data import Level, Product, Samples, Stream
from ..problem.distributions import Distribution
from ..problem.problem import Problem
from ..problem.study import working_dtype
from ..reduction.batches import Batch, Table
from ..reduction.reduced import Reduced

TIERS = ((1, 2, 3, 4, 5, 6, 8), (10, 12, 16, 20, 24), (32, 40, 48, 64))  # functions on an interval, tried in turn


_WIDTHS = (8, 24, 64, 128, 256, 1000)  # tables are filled up to one of these, so that few programs are compiled


_ROWS = 8000  # samples looked at


_CONTEXTS = 200  # contexts looked at, where each meets all the data


_BULK = 0.7  # share of what the next functions bring that is taken on at once, in several dimensions


_ROUNDS = 40


@dataclass(frozen=True)
class Rung:
    """One size of basis, fitted at ``x``: the lower objective on held-out samples, and the reduced gradient."""

    members: np.ndarray
    judged: np.ndarray
    gradient: np.ndarray
    value: float


class Rows(eqx.Module):
    """The samples looked at: those fitted to, those held out, and the upper level's."""

    train: Samples
    held: Samples
    above: Samples


def rows_of(level: Level, key: Array) -> Samples:
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


def _chebyshev(u: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Products of Chebyshev polynomials; in NumPy, as lists of functions change too often to be compiled."""
    phi = np.ones((len(u), len(members)))
    for j in range(members.shape[1]):
        phi *= np.polynomial.chebyshev.chebvander(u[:, j], int(members[:, j].max()))[:, members[:, j]]
    return phi


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
        domain = self.problem.domain
        self.places = [
            np.asarray(domain.reference(domain.snap(part.xi, self.dtype)), float)
            for part in (rows.train, rows.held, rows.above)
        ]
        self.z = np.zeros(0)
        self.usable = 0

    def lay(self, members: np.ndarray) -> None:
        """Takes a longer list of functions, which begins with the one before."""
        width = next(w for w in _WIDTHS if w >= len(members))
        phi = [_chebyshev(u, members) for u in self.places]
        weight = np.asarray(self.rows.train.mean_one_weights(), float)
        triangle = np.asarray(np.linalg.qr(np.sqrt(weight / len(weight))[:, None] * phi[0], mode="r"))
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
        train, held, above = self.batches
        found = _fit(self.bare, x, z, mask, train, held, above, self.ledger)
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


def ladder(bench: Bench, x: PyTree, members: np.ndarray, most: int) -> Iterator[Rung | None]:
    """On an interval: polynomials of growing degree, from those given on."""
    for tier in TIERS:
        tier = [n for n in tier if len(members) <= n <= most]
        if tier:
            bench.lay(np.arange(tier[-1])[:, None])
        for n in tier:
            yield bench.rung(x, np.arange(n)[:, None])


def frontier(bench: Bench, x: PyTree, members: np.ndarray, most: int) -> Iterator[Rung | None]:
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
