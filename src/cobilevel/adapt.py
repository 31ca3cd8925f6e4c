"""A basis chosen from the data: how many functions the held-out lower objective asks for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from . import oracles
from .basis import Basis, Categorical, Orthonormal, combine
from .data import Data, Level, Levels, Product, Samples, Stream, levels
from .domain import Distribution, Finite
from .families import Chebyshev
from .indices import Tensor, TotalDegree
from .lower import Dense, minimise
from .problem import Problem, lower_depends_on_noise
from .reduction import Batch, Reduced, build, contexts_of

_TIERS = ((1, 2, 3, 4, 5, 6, 8), (10, 12, 16, 20, 24), (32, 40, 48, 64))  # functions per dimension, tried in turn
_ROWS = 8000  # samples looked at
_CONTEXTS = 200  # contexts looked at, where each meets all the data
_COEFFICIENTS = 1000  # the largest N d_y tried
_SAMPLES_EACH, _CONTEXTS_EACH = 8, 2  # asked for each function: samples where there is noise, and distinct contexts
_GAIN = 1e-6  # share of the whole gain in the lower objective that is not worth more functions


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


def _recipe(dimension: int, n: int) -> Chebyshev:
    return Chebyshev(n, index=Tensor() if dimension == 1 else TotalDegree())


def functions(basis: Basis) -> int:
    """How large a chosen basis is, to compare two choices."""
    return basis.basis.n if isinstance(basis, Orthonormal) and isinstance(basis.basis, Chebyshev) else 0


def _count(dimension: int, n: int) -> int:
    return len(_recipe(dimension, n).index.table(n, dimension))


@eqx.filter_jit
def _fit_and_judge(reduced: Reduced, x: PyTree, z: Array, mask: Array, train: Batch, held: Batch):
    """Minimises the lower objective over the functions in the mask; its values on held-out samples."""
    masked = lambda batch: eqx.tree_at(lambda b: b.features, batch, batch.features * mask)
    _, unflatten = oracles.flatten(reduced.W0)
    idle = jnp.diag(jnp.repeat(1 - mask, len(z) // len(mask)))

    def model(point):
        (value, slope, hessian), _ = oracles.lower_model(
            reduced, x, unflatten(point), masked(train), oracles.Ledger.empty()
        )
        return value, slope, hessian + idle

    slope = model(jnp.zeros_like(z))[1]
    found = minimise(Dense(model), z, jnp.finfo(z.dtype).eps ** 0.5 * jnp.linalg.norm(slope))
    y = combine(masked(held).features, unflatten(found.point))
    values = jax.vmap(reduced.problem.lower, in_axes=(None, 0, 0, 0))(x, y, held.xi, held.eta)
    return found.point, values, found.converged


def choose_basis(problem: Problem, samples: Data, x: PyTree, key: Array) -> tuple[Basis, str]:
    """A basis for these data at the decision ``x``, and the reason in words.

    Chebyshev bases of growing size are fitted to four fifths of the samples, and judged by the lower objective on the
    last fifth. The smallest is taken that is within one standard error of the best (where the lower level has noise),
    or within a millionth of the whole gain (where it has none). Larger ones are tried only while that one is the
    largest so far.
    """
    lower, domain = levels(samples)[1], problem.domain
    rows = _rows(lower, key)
    seen = len(np.unique(np.asarray(contexts_of(lower).xi), axis=0))
    if isinstance(domain, Finite) and seen == len(domain.values) and 3 * seen <= len(rows):
        return Categorical(), f"Categorical(): a free policy for each of the {len(domain.values)} contexts."
    noisy = lower_depends_on_noise(problem, samples) and not isinstance(lower, Product)
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    cut = max(1, len(rows) * 4 // 5)
    train, held = rows.rows(slice(0, cut)), rows.rows(slice(cut, None))
    distinct = min(seen, len(np.unique(np.asarray(train.xi), axis=0)))
    supported = min(distinct // _CONTEXTS_EACH, len(train) // _SAMPLES_EACH if noisy else distinct)
    most = max(1, min(supported, _COEFFICIENTS // size))
    failed = False
    rungs, values, pick, best = [], [], 0, 0
    for tier in _TIERS:
        tier = [n for n in tier if _count(domain.dimension, n) <= most]
        if not tier or len(held) < 2:
            break
        judged = _climb(problem, _with_lower(samples, train), x, held, tier)
        rungs, values, failed = rungs + tier[: len(judged)], values + judged, len(judged) < len(tier)
        if not values:
            break
        pick, best = _smallest_good(np.stack(values), noisy)
        if failed or pick < len(rungs) - 1:
            break
    wrap = lambda n: Orthonormal(_recipe(domain.dimension, n))
    if len(rungs) < 2:
        reason = (
            "the lower level could not be minimised with more functions"
            if failed
            else f"{len(rows)} samples with {distinct} distinct contexts support no more"
        )
        return wrap(1), f"{wrap(1)!r}: {reason}."
    rule = "one standard error" if noisy else f"{_GAIN:g} of the gain"
    return wrap(rungs[pick]), (
        f"{wrap(rungs[pick])!r}: the smallest of n = {', '.join(map(str, rungs))} within {rule} of the best (n = "
        f"{rungs[best]}) lower objective on {len(held)} held-out samples."
    )


def _climb(problem: Problem, samples: Levels, x: PyTree, held: Samples, rungs: list[int]) -> list[np.ndarray]:
    """The lower objective on held-out samples for each rung, shape ``(samples,)``; fewer where fitting fails.

    The largest basis is orthonormalised once by a QR factorisation, whose leading columns span the smaller ones; each
    rung is a mask over them, so that one compiled program serves all, each warm-started from the one before.
    """
    domain = problem.domain
    reduced = build(problem, _recipe(domain.dimension, rungs[-1]), samples)
    pool = reduced.lower_pool
    scaled = np.sqrt(np.asarray(pool.weight) / len(pool))[:, None] * np.asarray(pool.features)
    triangle = np.asarray(np.linalg.qr(scaled, mode="r"))
    pivots = np.abs(np.diag(triangle))
    usable = int(np.argmin(np.append(pivots > 1e-7 * pivots[0], False)))  # leading functions the contexts tell apart
    forth = np.zeros_like(triangle)
    forth[:usable, :usable] = np.linalg.inv(triangle[:usable, :usable])
    turn = lambda batch: eqx.tree_at(lambda b: b.features, batch, batch.features @ jnp.asarray(forth))
    weight = held.mean_one_weights().astype(pool.weight.dtype)
    train_pool, held_pool = turn(pool), turn(Batch(reduced.basis(held.xi), held.xi, held.eta, weight))
    z = oracles.flatten(jax.tree.map(lambda w: jnp.tensordot(jnp.asarray(triangle), w, axes=1), reduced.W0))[0]
    x = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), x, reduced.x0)
    values = []
    for n in rungs:
        count = _count(domain.dimension, n)
        if count > usable:
            break
        mask = (jnp.arange(reduced.basis.size) < count).astype(pool.features.dtype)
        z, judged, fitted = _fit_and_judge(reduced, x, z, mask, train_pool, held_pool)
        if not bool(fitted) or not bool(jnp.all(jnp.isfinite(judged))):
            break
        values.append(np.asarray(judged * weight))
    return values


def _with_lower(samples: Data, lower: Samples) -> Levels:
    """The data with its lower level replaced by the given rows."""
    upper = levels(samples)[0]
    return Levels(upper=lower if upper is levels(samples)[1] else upper, lower=lower)


def _smallest_good(values: Float[np.ndarray, "k m"], noisy: bool) -> tuple[int, int]:
    """The first row good enough, and the best one."""
    means = values.mean(axis=1)
    best = int(np.argmin(means))
    slack = np.full(len(values), _GAIN * (means[0] - means[best]))
    if noisy:
        slack = np.maximum(slack, np.std(values - values[best], axis=1) / np.sqrt(values.shape[1]))
    return int(np.argmax(means - means[best] <= slack)), best
