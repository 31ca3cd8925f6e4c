r"""Learned bases: functions of the context found from the problem itself, so that few of them do.

The policies $y^\star(x, \cdot)$ at the decisions $x$ a solver meets are few among all functions of the context, however
kinked each may be. ``Snapshot`` solves the lower level at some of these decisions and keeps the functions they share;
``Neural`` trains a network to provide such functions. Both learn at ``problem.x0``, and ``solve`` learns anew where it
arrives. What was learned is kept in the recipe, as arrays, and is not learned again.
"""

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import trees
from ..basis.base import Basis, check_count, plain_integer
from ..basis.families import BSpline, Chebyshev
from ..basis.given import Categorical
from ..basis.index_sets import Tensor, TotalDegree
from ..basis.whitening import whiten
from ..checks import positive, whole
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..lower.damped_newton import DENSE_LIMIT, minimise
from ..lower.per_context import exact_lower
from ..lower.reduced_at_x import lower_objective
from ..problem.data import Level, Product, Samples, Stream, levels
from ..problem.distributions import Distribution
from ..problem.domain import Finite
from ..problem.problem import Problem
from ..problem.study import lower_depends_on_noise
from ..reduction.reduced import Reduced, build

_ROWS, _PAIRS, _CONTEXTS = 4000, 20_000, 100  # looked at: joint samples; or pairs of context and data row, and contexts


_COEFFICIENTS = 1000  # the largest N d_y of a background chosen here


_HATS, _FEWEST_HATS, _DEGREE = 200, 16, 24


_SETTLING = 3  # steps the coefficients are given at each step of a network's training


_CONTEXTS_EACH, _SAMPLES_EACH = 4, 16  # asked for each background function, the samples only where there is noise


def _beside(problem: Problem, count: int, spread: float, key: Array) -> list[PyTree[Array]]:
    """``x0`` and random decisions beside it: `spread` of its size away, within the bounds."""
    flat, unravel = ravel_pytree(problem.x0)
    lo, hi = (ravel_pytree(side)[0] for side in problem.x_bounds)
    unit = jax.tree.map(lambda a: jnp.full_like(a, jnp.sqrt(jnp.mean(a**2))), problem.x0)
    least = ravel_pytree(unit)[0]
    size = jnp.where(least > 0, jnp.maximum(jnp.abs(flat), least / 2), 1)
    noise = jax.random.normal(key, (count - 1, len(flat)), flat.dtype)
    return [problem.x0, *(unravel(jnp.clip(flat + spread * size * step, lo, hi)) for step in noise)]


def _look(level: Level, noisy: bool, key: Array) -> Samples:
    """Enough joint samples of a level to learn functions from; where it has noise, each context of a product with the
    same rows of the data.
    """
    if isinstance(level, Stream):
        return level.draw(key, _ROWS)
    if isinstance(level, Samples):
        return level if len(level) <= _ROWS else level.rows(jax.random.permutation(key, len(level))[:_ROWS])
    for_context, for_data = jax.random.split(key)
    most = _CONTEXTS if noisy else _ROWS
    drawn = isinstance(level.contexts, Distribution)
    context = Samples(level.contexts.sample(for_context, most)) if drawn else level.context_rule()
    chosen = jax.random.permutation(for_context, len(context))[:most]
    data = jax.random.permutation(for_data, level.eta_rows)[: max(1, _PAIRS // len(chosen)) if noisy else 1]
    return level.pairs(context, jnp.repeat(chosen, len(data)), jnp.tile(data, len(chosen)))


def choose_background(problem: Problem, rows: Samples, noisy: bool) -> Basis:
    """A basis as rich as the samples bear.

    Hat functions on an interval where the lower level has no noise and contexts lie close enough to fill them all:
    kinks cost them little. Polynomials elsewhere. `noisy`: whether samples have to average noise out.
    """
    domain = problem.domain
    if isinstance(domain, Finite):
        return Categorical()
    seen = np.unique(np.asarray(domain.reference(rows.xi)), axis=0)
    most = min(
        _COEFFICIENTS // sum(leaf.size for leaf in jax.tree.leaves(problem.y0)),
        len(seen) // _CONTEXTS_EACH,
        len(rows) // _SAMPLES_EACH if noisy else len(rows),
    )
    if domain.dimension == 1 and not noisy:
        gaps = np.diff(np.concatenate([[-1 - (seen[0, 0] + 1)], seen[:, 0], [1 + (1 - seen[-1, 0])]]))
        hats = min(_HATS, most, int(4 / max(gaps.max(), 1e-3)))
        if hats >= _FEWEST_HATS:
            return BSpline(hats, degree=1)
    index = Tensor() if domain.dimension == 1 else TotalDegree()
    sizes = [n for n in range(1, _DEGREE + 1) if len(index.table(n, domain.dimension)) <= most]
    return Chebyshev(max(sizes, default=1), index=index)


def _policies(reduced: Reduced, decisions: list[PyTree], level: Level, noisy: bool) -> Float[np.ndarray, "k N dy"]:
    """The coefficients of the policy at each decision: the projection of exact solutions where single samples show the
    lower level, else where the mean over all samples is least. `reduced` is whitened.
    """
    pool, W = reduced.lower_pool, reduced.W0
    tables = []
    for x in decisions:
        if noisy:
            W = _minimiser(reduced, x, W)
        else:
            W = oracles.spread(pool, exact_lower(reduced.problem, x, pool.xi, level).y)
        tables.append(np.asarray(oracles.flatten(W)[0], float).reshape(pool.features.shape[1], -1))
    return np.stack(tables)


@eqx.filter_jit
def _minimiser(reduced: Reduced, x: PyTree, W: PyTree) -> PyTree:
    """The coefficients that minimise the reduced lower level at ``x``, from ``W``."""
    start, unflatten = oracles.flatten(W)
    objective = lower_objective(reduced, x, W, reduced.lower_pool, Ledger.empty(), len(start) <= DENSE_LIMIT)
    first = jnp.linalg.norm(objective.local(oracles.flatten(reduced.W0)[0])[1])
    return unflatten(minimise(objective, start, jnp.finfo(start.dtype).eps ** 0.5 * first).point)


def _leading(blocks: list[Float[np.ndarray, "N k"]], n: int, tolerance: float) -> Float[np.ndarray, "N n"]:
    """Up to ``n`` orthonormal directions: the leading ones of the first block, then of what it leaves of the next."""
    kept = np.zeros((len(blocks[0]), 0))
    for block in blocks:
        rest = block - kept @ (kept.T @ block)
        left, values, _ = np.linalg.svd(rest - kept @ (kept.T @ rest), full_matrices=False)
        kept = np.concatenate([kept, left[:, values > tolerance]], axis=1)
    return kept[:, :n]


_UNLEARNED = (
    "{} has to learn its functions from a problem first: pass it to cb.solve or cb.reduce, or take "
    "basis.learn(problem, samples)."
)


def _given(basis: Basis, **defaults: Any) -> str:
    """The options set otherwise than by default, in words."""
    options = {name: getattr(basis, name) for name in defaults}
    return "".join(f", {name}={value!r}" for name, value in options.items() if value is not defaults[name] != value)


class Snapshot(Basis):
    r"""The functions that policies around ``x0`` share: a reduced basis, by proper orthogonal decomposition.

    The lower level is solved at ``x0`` and at random decisions beside it in a rich `background` basis. The functions
    kept are orthonormal in $L^2$ of the observed contexts: first those that span the policy at ``x0`` (as many as ``y``
    has independent components), then the leading directions in which the policy changes with ``x``, then the constant.
    There may be fewer than ``n`` where the policies have no more to show.

    **Arguments:**

    - `n`: how many functions to keep; one for each component of ``y`` and a few more.
    - `background`: the basis to solve in; chosen when left out, hat functions for scalar contexts where the lower level
      has no noise, else polynomials.
    - `decisions`: how many decisions to look at, ``x0`` among them; `spread`: how far beside it, relative to its size.
      Near ones show best how the policy changes there; take wider ones where ``x`` is to go far without learning anew,
      as with ``reduce``.
    """

    n: int = eqx.field(static=True, converter=plain_integer)
    background: Basis | None = None
    decisions: int = eqx.field(static=True, default=8)
    spread: float = eqx.field(static=True, default=0.05)
    rich: Basis | None = None  # the background used
    table: Float[Array, "raw n"] | None = None  # what of it was kept

    def __check_init__(self):
        check_count("Snapshot", self.n)
        whole("Snapshot: decisions", self.decisions, 2, "x0 and those beside it")
        positive("Snapshot: spread", self.spread)
        if not isinstance(self.background, Basis | None):
            raise TypeError(
                f"Snapshot: background must be a basis such as BSpline(100, degree=1), got {self.background!r}; leave "
                "it out to have one chosen."
            )

    @property
    def learned(self):
        return self.table is not None

    def learn(self, problem, samples):
        if self.learned:
            return self
        for_rows, for_decisions = jax.random.split(jax.random.key(0))
        lower = levels(samples)[1]
        noisy = lower_depends_on_noise(problem, samples)
        rows = _look(lower, noisy, for_rows)
        rich = self.background or choose_background(problem, rows, noisy and not isinstance(lower, Product))
        plain = build(problem, rich, rows)
        reduced = plain.whitened()
        assert plain.whitening is not None  # rows are finite in number
        assert reduced.coordinates is not None
        beside = _beside(problem, self.decisions, self.spread, for_decisions)
        found = _policies(reduced, beside, lower, noisy)
        found = found[np.isfinite(found).all(axis=(1, 2))]
        if not len(found):
            raise ValueError(f"{self!r}: the policy at x0 came out as NaN or infinity; check lower, or move x0 or y0.")
        units = np.sqrt(np.sum(found**2, axis=(0, 1)))  # of the components of y: they may be anything
        own, *others = found / np.where(units > 0, units, 1)
        changes = np.concatenate([other - own for other in others], axis=1) if others else own[:, :0]
        one = np.asarray(plain.whitening.inverse @ plain.basis.constant, float)[:, None]
        kept = _leading([own, changes, one], self.n, float(np.sqrt(jnp.finfo(plain.basis.constant.dtype).eps)))
        table = reduced.coordinates.transform @ jnp.asarray(kept, plain.basis.constant.dtype)
        if plain.basis.transform is not None:
            table = plain.basis.transform @ table
        return replace(self, rich=plain.basis.basis, table=table)

    def evaluate(self, domain, xi):
        if self.rich is None or self.table is None:
            raise RuntimeError(_UNLEARNED.format(self))
        phi = self.rich.evaluate(domain, xi)
        return phi @ self.table.astype(phi.dtype)

    def constant(self, domain):
        return None

    def __repr__(self):
        return f"Snapshot({self.n}{_given(self, background=None, decisions=8, spread=0.05)})"


def _network(layers: tuple[Array, ...], u: Float[Array, "... d"]) -> Float[Array, "... n"]:
    """The constant 1, and the outputs of a network whose layers hold their biases as last row."""
    for depth, layer in enumerate(layers):
        u = (jnp.tanh(u) if depth else u) @ layer[:-1].astype(u.dtype) + layer[-1].astype(u.dtype)
    return jnp.concatenate([jnp.ones_like(u[..., :1]), u], axis=-1)


@eqx.filter_jit
def _train(reduced: Reduced, layers: tuple, heads: PyTree, decisions: PyTree, steps: int, rate: Array) -> tuple:
    """Adam on the network, with the coefficients of each decision's policy brought near their best at every step.

    At the best coefficients the derivative of the lower objective in the network is the partial one, so that no
    derivative has to go through the solve.
    """
    pool, ledger = reduced.lower_pool, Ledger.empty()
    inputs = reduced.problem.domain.reference(pool.xi).astype(pool.features.dtype)

    def settle(x, W, batch):
        start, unflatten = oracles.flatten(W)
        objective = lower_objective(reduced, x, W, batch, ledger, len(start) <= DENSE_LIMIT)
        return unflatten(minimise(objective, start, 0.0, steps=_SETTLING).point)

    def step(carry, k):
        layers, heads, mean, square = carry
        batch = replace(pool, features=_network(layers, inputs))
        heads = jax.vmap(settle, in_axes=(0, 0, None))(decisions, heads, batch)
        slopes = jax.vmap(lambda x, W: oracles.feature_gradient(reduced, _network, layers, inputs, x, W, pool))
        slope = jax.tree.map(lambda a: jnp.mean(a, axis=0), slopes(decisions, heads))
        mean = jax.tree.map(lambda m, s: 0.9 * m + 0.1 * s, mean, slope)
        square = jax.tree.map(lambda v, s: 0.99 * v + 0.01 * s**2, square, slope)
        length = rate * (1 + jnp.cos(jnp.pi * k / steps)) / 2
        move = lambda a, m, v: a - length * m / (1 - 0.9 ** (k + 1)) / (jnp.sqrt(v / (1 - 0.99 ** (k + 1))) + 1e-12)
        return (jax.tree.map(move, layers, mean, square), heads, mean, square), None

    carry = (layers, heads, trees.zeros(layers), trees.zeros(layers))
    return jax.lax.scan(step, carry, jnp.arange(steps, dtype=rate.dtype))[0][0]


class Neural(Basis):
    """The constant and ``n - 1`` outputs of a network, trained so that they can express policies around ``x0``.

    At a few decisions the policy is a linear map of the features; network and maps together minimise the lower
    objective over the samples. Then the maps are dropped and the features kept, orthonormal over what was looked at.
    Meant for contexts of several dimensions, where products of one-dimensional functions become many; on an interval
    it takes about as many functions as polynomials do.

    **Arguments:**

    - `n`: how many functions; `width`, `depth`: the hidden layers of the network (tanh).
    - `steps`, `rate`: of Adam, the rate falling to zero as a half cosine.
    - `decisions`, `spread`: how many decisions to train at, ``x0`` among them, and how far beside it.
    - `seed`: of the first weights.
    """

    n: int = eqx.field(static=True, converter=plain_integer)
    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)
    steps: int = eqx.field(static=True, default=1000)
    rate: float = eqx.field(static=True, default=1e-2)
    decisions: int = eqx.field(static=True, default=4)
    spread: float = eqx.field(static=True, default=0.05)
    seed: int = eqx.field(static=True, default=0)
    layers: tuple[Array, ...] = eqx.field(converter=tuple, default=())  # what was learned

    def __check_init__(self):
        whole("Neural: n", self.n, 2, "the constant, and at least one function to learn")
        for name in ("width", "depth", "steps", "decisions"):
            whole(f"Neural: {name}", getattr(self, name))
        whole("Neural: seed", self.seed, 0)
        positive("Neural: rate", self.rate)
        positive("Neural: spread", self.spread)

    @property
    def learned(self):
        return bool(self.layers)

    def learn(self, problem, samples):
        if self.learned:
            return self
        key, for_rows, for_decisions = jax.random.split(jax.random.key(self.seed), 3)
        rows = _look(levels(samples)[1], lower_depends_on_noise(problem, samples), for_rows)
        reduced = build(problem, Chebyshev(1), rows)
        pool = reduced.lower_pool
        dtype = pool.features.dtype
        sizes = (problem.domain.dimension, *[self.width] * self.depth, self.n - 1)
        layers = []
        for inputs, outputs in pairwise(sizes):
            key, of_layer = jax.random.split(key)
            scale = 2.0 if not layers else 1 / np.sqrt(inputs)
            layers.append(scale * jax.random.normal(of_layer, (inputs + 1, outputs), dtype))
        decisions = _beside(problem, self.decisions, self.spread, for_decisions)
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *decisions)
        first = lambda y: jnp.zeros((len(decisions), self.n, *y.shape), y.dtype).at[:, 0].set(y)
        trained = _train(
            reduced, tuple(layers), jax.tree.map(first, problem.y0), stacked, self.steps, jnp.asarray(self.rate, dtype)
        )
        outputs = _network(trained, problem.domain.reference(pool.xi).astype(dtype))[:, 1:]
        if not bool(jnp.all(jnp.isfinite(outputs))):
            raise ValueError(f"{self!r} came to NaN or infinity in training: make rate smaller, or give another x0.")
        middle = pool.weight @ outputs / len(pool)
        last = trained[-1].at[-1].add(-middle) @ whiten(outputs - middle, pool.weight).transform
        return replace(self, layers=(*trained[:-1], last))

    def evaluate(self, domain, xi):
        if not self.learned:
            raise RuntimeError(_UNLEARNED.format(self))
        return _network(self.layers, domain.reference(xi))

    def constant(self, domain):
        if not self.learned:
            raise RuntimeError(_UNLEARNED.format(self))
        return np.eye(1, 1 + self.layers[-1].shape[1])[0]

    def __repr__(self):
        options = {part.name: part.default for part in fields(self) if part.name not in ("n", "layers")}
        return f"Neural({self.n}{_given(self, **options)})"
