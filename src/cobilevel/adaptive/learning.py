r"""How learned bases learn their functions from a problem, so that few of them do.

The policies $y^\star(x, \cdot)$ at the decisions $x$ a solver meets are few among all functions of the context, however
kinked each may be. ``Snapshot`` solves the lower level at some of these decisions and keeps the functions they share;
``Neural`` trains a network to provide such functions; ``KernelFeatures`` and ``Rotated`` learn along which coordinates
or directions the policy varies. All learn at ``problem.x0``; what was learned is kept in the
recipe, as arrays, and is not learned again.
"""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..basis import (
    Basis,
    BSpline,
    Categorical,
    Chebyshev,
    KernelFeatures,
    Neural,
    Rotated,
    Snapshot,
    Tensor,
    TotalDegree,
    network,
    whiten,
)
from ..covariates import (
    KernelMap,
    degrees_up_to,
    fit_directions,
    fit_kernel,
    refreshed,
    tune_kernel,
    with_directions,
    with_map,
)
from ..derivatives import Ledger, oracles
from ..lower import DENSE_LIMIT, exact_lower, lower_minimiser, lower_objective, minimise
from ..problem import LOOK_ROWS, Finite, Look, Problem, Samples, Study
from ..programs import program
from ..reduction import Bilevel, Reduced, reduce_study
from .alternatives import Beginning
from .hunt import Hunt

_MOST_BACKGROUND = 1000  # the largest N d_y of a background chosen here
_BACKGROUND_SHARE = 2  # a background takes half the functions that the samples support: it must not fit noise
_HATS, _FEWEST_HATS, _DEGREE = 200, 16, 24  # hat functions, at most and at least; polynomials, at most a dimension
_LOOK_TO_LEARN = 100  # contexts looked at where each meets noisy data
_SETTLING = 3  # steps the coefficients are given at each step of a network's training
_ADAM = {"b1": 0.9, "b2": 0.99, "eps": 1e-12}  # a shorter memory than usual: the heads move along


def learn(basis: Basis, study: Study) -> Basis:
    """The recipe with all it has to learn from the problem learned, at ``problem.x0``; most have nothing to."""
    if basis.learned:
        return basis
    if isinstance(basis, Snapshot):
        return _learn_snapshot(basis, study)
    if isinstance(basis, Neural):
        return _learn_network(basis, study)
    if isinstance(basis, KernelFeatures):
        return _learn_kernel(basis, study)
    if isinstance(basis, Rotated):
        return _learn_directions(basis, study)
    return basis.with_parts(lambda part: learn(part, study))


def _start(basis: Basis, study: Study) -> Beginning:
    """What samples ask for at ``x0``, seen from a policy that is linear in the context."""
    key = jax.random.key(0)
    hunt, d = Hunt.on(study, key, Ledger.empty()), study.problem.domain.dimension
    members = np.concatenate([np.zeros((1, d), int), np.eye(d, dtype=int)])[: hunt.most]
    found = Beginning.at(hunt, study.problem.x0, members)
    if found is None:
        raise ValueError(f"{basis!r}: the lower level could not be minimised at x0; check lower, or move x0 or y0.")
    return found


def _learn_kernel(basis: KernelFeatures, study: Study) -> KernelFeatures:
    """Tunes metric and scale on rows held out, then takes the functions from all."""
    rows = _start(basis, study).responses
    settings, count, _, _ = tune_kernel(rows, [basis.n], basis.kernel, basis.metric, basis.scale, basis.seed)
    again = settings if basis.scale is not None else refreshed(rows, settings, basis.seed)
    return with_map(basis, KernelMap.tuned(rows.u, again, count, basis.seed))


def _learn_directions(basis: Rotated, study: Study) -> Rotated:
    """Directions from gradients, refined with polynomials of growing degree, up to what the basis holds."""
    d = study.problem.domain.dimension
    if basis.k > d:
        raise ValueError(f"Rotated: k = {basis.k} directions of a context with {d} coordinates; take at most {d}.")
    start = _start(basis, study)
    outer = fit_kernel(start.responses, "gaussian", ("isotropic",), None, 0)[1]
    most = study.lower.contexts().supported(study.noisy)
    degrees = [n for n in degrees_up_to(basis.k, most) if n < max(basis.basis.n, 3)] or [2]  # pyright: ignore
    *_, found = fit_directions(start.leading(1.0), outer, basis.k, degrees)
    return with_directions(basis, found)


def _nearby(problem: Problem, count: int, spread: float, key: Array) -> list[PyTree[Array]]:
    """``x0`` and random decisions near it: `spread` of its size away, within the bounds."""
    flat, unravel = ravel_pytree(problem.x0)
    unit = jax.tree.map(lambda a: jnp.full_like(a, jnp.sqrt(jnp.mean(a**2))), problem.x0)
    least = ravel_pytree(unit)[0]
    size = jnp.where(least > 0, jnp.maximum(jnp.abs(flat), least / 2), 1)
    noise = jax.random.normal(key, (count - 1, len(flat)), flat.dtype)
    bounds = problem.bounds.flat()
    return [problem.x0, *(unravel(bounds.project(flat + spread * size * step)) for step in noise)]


def _look(study: Study, key: Array) -> Look:
    """Enough joint samples to learn functions from; many contexts with one row of the data where there is no noise."""
    return study.lower.look(key, LOOK_ROWS, _LOOK_TO_LEARN if study.lower_noise else LOOK_ROWS)


def choose_background(problem: Problem, rows: Samples, noisy: bool) -> Basis:
    """A basis about as rich as the samples support.

    Hat functions on an interval where the lower level has no noise and contexts lie close enough to fill them all:
    kinks cost them little. Polynomials elsewhere. `noisy`: whether samples have to average noise out.
    """
    domain = problem.domain
    if isinstance(domain, Finite):
        return Categorical()
    most = min(_MOST_BACKGROUND // problem.sizes[1], rows.supported(noisy) // _BACKGROUND_SHARE)
    if domain.dimension == 1 and not noisy:
        seen = np.unique(np.asarray(domain.reference(rows.xi))[:, 0])
        gaps = np.diff(np.concatenate([[-1 - (seen[0] + 1)], seen, [1 + (1 - seen[-1])]]))
        hats = min(_HATS, most, int(4 / max(gaps.max(), 1e-3)))
        if hats >= _FEWEST_HATS:
            return BSpline(hats, degree=1)
    index = Tensor() if domain.dimension == 1 else TotalDegree()
    sizes = [n for n in range(1, _DEGREE + 1) if (index.count(n, domain.dimension) or 0) <= most]
    return Chebyshev(max(sizes, default=1), index=index)


def _policies(study: Study, reduced: Reduced, decisions: list[PyTree]) -> Float[np.ndarray, "k N dy"]:
    """The coefficients of the policy at each decision: the projection of exact solutions where single samples show the
    lower level, else where the mean over all samples is least. `reduced` is whitened.
    """
    pool, W = reduced.lower_pool, reduced.W0
    tables = []
    for x in decisions:
        if study.lower_noise:
            W = lower_minimiser(reduced.ordinary(), x, W, study.eps**0.5)
        else:
            W = oracles.mean_with_features(pool, exact_lower(study, x, pool.xi).y)
        tables.append(np.asarray(oracles.flatten(W)[0], float).reshape(pool.features.shape[1], -1))
    return np.stack(tables)


def _leading(blocks: list[Float[np.ndarray, "N _"]], n: int, tolerance: float) -> Float[np.ndarray, "N n"]:
    """Up to ``n`` orthonormal directions: the leading ones of the first block, then of what it leaves of the next."""
    kept = np.zeros((len(blocks[0]), 0))
    for block in blocks:
        rest = block - kept @ (kept.T @ block)
        left, values, _ = np.linalg.svd(rest - kept @ (kept.T @ rest), full_matrices=False)
        kept = np.concatenate([kept, left[:, values > tolerance]], axis=1)
    return kept[:, :n]


def _learn_snapshot(basis: Snapshot, study: Study) -> Snapshot:
    """Keeps what the policy at ``x0`` spans, then the leading directions in which it changes, then the constant."""
    for_rows, for_decisions = jax.random.split(jax.random.key(0))
    problem, rows = study.problem, _look(study, for_rows).samples
    rich = basis.background or choose_background(problem, rows, study.noisy)
    plain = reduce_study(study.on(rows), rich)
    reduced = plain.whitened()
    assert plain.whitening is not None  # rows are finite in number
    assert reduced.coordinates is not None
    found = _policies(study, reduced, _nearby(problem, basis.decisions, basis.spread, for_decisions))
    found = found[np.isfinite(found).all(axis=(1, 2))]
    if not len(found):
        raise ValueError(f"{basis!r}: the policy at x0 came out as NaN or infinity; check lower, or move x0 or y0.")
    units = np.sqrt(np.sum(found**2, axis=(0, 1)))  # of the components of y: they may be anything
    own, *others = found / np.where(units > 0, units, 1)
    changes = np.concatenate([other - own for other in others], axis=1) if others else own[:, :0]
    one = np.asarray(plain.whitening.inverse @ plain.basis.constant, float)[:, None]
    kept = _leading([own, changes, one], basis.n, study.eps**0.5)
    table = reduced.coordinates.transform @ jnp.asarray(kept, study.dtype)
    if plain.basis.transform is not None:
        table = plain.basis.transform @ table
    return replace(basis, rich=plain.basis.basis, table=table)


@program
def _train(
    reduced: Bilevel, layers: tuple[Array, ...], heads: PyTree, decisions: PyTree, steps: int, rate: Array
) -> tuple[Array, ...]:
    """Adam on the network, with the coefficients of each decision's policy brought near their best at every step.

    At the best coefficients the derivative of the lower objective in the network is the partial one, so that no
    derivative has to go through the solve.
    """
    import optax  # here alone, as it takes a while to load

    pool = reduced.lower_pool
    inputs = reduced.problem.domain.reference(pool.xi).astype(pool.features.dtype)
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps), **_ADAM)  # pyright: ignore[reportArgumentType]

    def settle(x, W, batch):
        start, unflatten = oracles.flatten(W)
        objective = lower_objective(reduced, x, W, batch, len(start) <= DENSE_LIMIT)
        return unflatten(minimise(objective, start, 0.0, steps=_SETTLING).point)

    def step(carry, _):
        layers, heads, memory = carry
        batch = replace(pool, features=network(layers, inputs))
        heads = jax.vmap(settle, in_axes=(0, 0, None))(decisions, heads, batch)
        slopes = jax.vmap(lambda x, W: oracles.feature_gradient(reduced, network, layers, inputs, x, W, pool))
        slope = jax.tree.map(lambda a: jnp.mean(a, axis=0), slopes(decisions, heads))
        updates, memory = optimizer.update(slope, memory)
        return (optax.apply_updates(layers, updates), heads, memory), None

    (trained, _, _), _ = jax.lax.scan(step, (layers, heads, optimizer.init(layers)), None, length=steps)
    return trained  # pyright: ignore[reportReturnType]


def _learn_network(basis: Neural, study: Study) -> Neural:
    """Trains network and policies together, then keeps the features, orthonormal over what was looked at."""
    key, for_rows, for_decisions = jax.random.split(jax.random.key(basis.seed), 3)
    problem, dtype = study.problem, study.dtype
    reduced = reduce_study(study.on(_look(study, for_rows).samples), Chebyshev(1))
    pool = reduced.lower_pool
    layers = []
    for inputs, outputs in pairwise((problem.domain.dimension, *[basis.width] * basis.depth, basis.n - 1)):
        key, of_layer = jax.random.split(key)
        scale = 2.0 if not layers else 1 / float(np.sqrt(inputs))
        layers.append(scale * jax.random.normal(of_layer, (inputs + 1, outputs), dtype))
    decisions = _nearby(problem, basis.decisions, basis.spread, for_decisions)
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *decisions)
    first = lambda y: jnp.zeros((len(decisions), basis.n, *y.shape), y.dtype).at[:, 0].set(y)
    heads = jax.tree.map(first, problem.y0)
    rate = jnp.asarray(basis.rate, dtype)
    with jax.numpy_dtype_promotion("standard"):  # Optax relies on it, whatever the user has set
        trained = _train(reduced.ordinary(), tuple(layers), heads, stacked, basis.steps, rate)
    outputs = network(trained, problem.domain.reference(pool.xi).astype(dtype))[:, 1:]
    if not bool(jnp.all(jnp.isfinite(outputs))):
        raise ValueError(f"{basis!r} came to NaN or infinity in training: make rate smaller, or give another x0.")
    middle = pool.weight @ outputs / len(pool)
    last = trained[-1].at[-1].add(-middle) @ whiten(outputs - middle, pool.weight).transform
    return replace(basis, layers=(*trained[:-1], last))
