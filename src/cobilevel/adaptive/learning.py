r"""How learned bases learn their functions from a problem, so that few of them do.

The policies $y^\star(x, \cdot)$ at the decisions $x$ a solver meets are few among all functions of the context, however
kinked each may be. ``Snapshot`` solves the lower level at some of these decisions and keeps the functions they share;
``Neural`` trains a network to provide such functions; ``KernelFeatures`` and ``Rotated`` learn along which coordinates
or directions the policy varies. All learn at ``problem.x0``; what was learned is kept in the recipe, as arrays.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
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
    combine,
    layered,
    whiten,
)
from ..covariates import MOST_COEFFICIENTS, FirstFit, learned_directions, learned_kernel
from ..derivatives import Expansions, Ledger, flattened, oracles, shaped_like
from ..ground import as_key, generator, put, split_key, trees
from ..iteration import Adam, Cosine
from ..lower import exact_lower, lower_minimum, lower_size, newton_steps
from ..problem import LOOK_ROWS, Finite, Problem, Samples
from ..reduction import Bilevel, reduce_study
from ..study import Study
from .selection import ForwardSelection

_HATS, _FEWEST_HATS, _DEGREE = 200, 16, 24  # hat functions, at most and at least; polynomials, at most a dimension


def learn(basis: Basis, study: Study) -> Basis:
    """The recipe with all it has to learn from the problem learned, at ``problem.x0``; most have nothing to."""
    if basis.learned:
        return basis
    if isinstance(basis, Snapshot):
        return _learn_snapshot(basis, study)
    if isinstance(basis, Neural):
        return _learn_network(basis, study)
    if isinstance(basis, KernelFeatures):
        return learned_kernel(basis, _first_fit(basis, study))
    if isinstance(basis, Rotated):
        return learned_directions(basis, _first_fit(basis, study), study.lower.contexts().supported(study.noisy))
    return basis.with_parts(lambda part: learn(part, study))


def _first_fit(basis: Basis, study: Study) -> FirstFit:
    """What samples ask for at ``x0``, seen from a policy that is linear in the context."""
    selection, d = ForwardSelection(study, as_key(0), Counter()), study.problem.domain.dimension
    members = np.concatenate([np.zeros((1, d), int), np.eye(d, dtype=int)])[: selection.most]
    found = FirstFit.at(selection.fits, flattened(study.problem.x0), members)
    if found is None:
        raise ValueError(f"{basis!r}: the lower level could not be minimised at x0; check lower, or move x0 or y0.")
    return found


def _decisions_near(problem: Problem, count: int, spread: float, key: Array) -> Float[np.ndarray, "k dx"]:
    """``x0`` and random decisions near it: `spread` of its size away, within the bounds."""
    x0, lo, hi = (flattened(part) for part in (problem.x0, problem.bounds.lo, problem.bounds.hi))
    least = flattened(jax.tree.map(lambda a: np.full(np.shape(a), np.sqrt(np.mean(np.asarray(a) ** 2))), problem.x0))
    size = np.where(least > 0, np.maximum(np.abs(x0), least / 2), 1)
    noise = generator(key).standard_normal((count - 1, len(x0)))
    return np.concatenate([x0[None], np.clip(x0 + spread * size * noise, lo, hi)])


def _look(study: Study, key: Array) -> Samples:
    """Enough joint samples to learn functions from; many contexts with one row of the data where there is no noise."""
    return (study.lower.look(key) if study.lower_noise else study.lower.look(key, contexts=LOOK_ROWS)).samples


def choose_background(problem: Problem, rows: Samples, noisy: bool) -> Basis:
    """A basis about as rich as the samples support.

    Hat functions on an interval where the lower level has no noise and contexts lie close enough to fill them all:
    kinks cost them little. Polynomials elsewhere. `noisy`: whether samples have to average noise out.
    """
    domain = problem.domain
    if isinstance(domain, Finite):
        return Categorical()
    most = min(MOST_COEFFICIENTS // problem.sizes[1], rows.supported(noisy) // 2)  # half: it must not fit noise
    if domain.dimension == 1 and not noisy:
        seen = np.unique(np.asarray(domain.reference(rows.xi))[:, 0])
        gaps = np.diff(np.concatenate([[-1 - (seen[0] + 1)], seen, [1 + (1 - seen[-1])]]))
        hats = min(_HATS, most, int(4 / max(gaps.max(), 1e-3)))
        if hats >= _FEWEST_HATS:
            return BSpline(hats, degree=1)
    index = Tensor() if domain.dimension == 1 else TotalDegree()
    sizes = [n for n in range(1, _DEGREE + 1) if (index.count(n, domain.dimension) or 0) <= most]
    return Chebyshev(max(sizes, default=1), index=index)


def _policies(study: Study, reduced: Bilevel, decisions: Float[np.ndarray, "k dx"]) -> Float[np.ndarray, "k N dy"]:
    """The coefficients of the policy at each decision; of exact solutions where single samples show the lower level."""
    at = Expansions(reduced)
    if not study.lower_noise:
        (pool,) = at.lower_pools
        exact = (exact_lower(study, at.decision(x), reduced.lower_pool.xi).y for x in decisions)
        return np.stack([pool.mean(at.table(y)) for y in exact])
    tables = [at.table(reduced.W0)]
    for x in decisions:
        target = study.eps**0.5 * lower_size(at, x, tables[0])
        tables.append(lower_minimum(at, x, tables[-1], target))
    return np.stack(tables[1:])


def _learn_snapshot(basis: Snapshot, study: Study) -> Snapshot:
    """Keeps what the policy at ``x0`` spans, then the leading directions in which it changes, then the constant."""
    for_rows, for_decisions = split_key(as_key(0))
    problem, rows = study.problem, _look(study, for_rows)
    rich = basis.background or choose_background(problem, rows, study.noisy)
    plain = reduce_study(study.on(rows), rich)
    reduced = plain.whitened()
    assert plain.whitening is not None  # rows are finite in number
    assert reduced.coordinates is not None
    decisions = _decisions_near(problem, basis.decisions, basis.spread, for_decisions)
    found = _policies(study, reduced.ordinary(), decisions)
    found = found[np.isfinite(found).all(axis=(1, 2))]
    if not len(found):
        raise ValueError(f"{basis!r}: the policy at x0 came out as NaN or infinity; check lower, or move x0 or y0.")
    units = np.sqrt(np.sum(found**2, axis=(0, 1)))  # of the components of y: they may be anything
    own, *others = found / np.where(units > 0, units, 1)
    changes = np.concatenate([other - own for other in others], axis=1) if others else own[:, :0]
    one = np.asarray(combine(plain.whitening.inverse, plain.basis.constant), float)[:, None]
    kept = own[:, :0]
    for block in (own, changes, one):  # orthonormal directions: the leading ones of what those before leave of it
        rest = block - kept @ (kept.T @ block)
        left, values, _ = np.linalg.svd(rest - kept @ (kept.T @ rest), full_matrices=False)
        kept = np.concatenate([kept, left[:, values > study.eps**0.5]], axis=1)
    table = combine(reduced.coordinates.transform, kept[:, : basis.n].astype(study.dtype))
    if plain.basis.transform is not None:
        table = combine(plain.basis.transform, table)
    return replace(basis, rich=plain.basis.basis, table=put(table))


@eqx.filter_jit
def _train(
    reduced: Bilevel,
    sizes: tuple[int, ...],
    steps: int,
    key: Array,
    heads: PyTree,
    decisions: PyTree,
    rate: Array,
    settling: int = 10,
) -> tuple[tuple[Array, ...], Array]:
    """Adam on a random network with layers of these `sizes`; the network, and its outputs at the samples. Coefficients
    are brought near their best at every step, by `settling` steps of Newton, where derivatives in the network are
    partial ones."""
    pool = reduced.lower_pool
    inputs = reduced.problem.domain.reference(pool.xi).astype(pool.features.dtype)
    falling = Cosine(rate, steps)
    key, layers = jax.random.split(key, 3)[0], ()
    for height, width in pairwise(sizes):
        key, of_layer = jax.random.split(key)
        scale = 2.0 if not layers else 1 / float(np.sqrt(height))
        layers = (*layers, scale * jax.random.normal(of_layer, (height + 1, width), inputs.dtype))

    def size(x, W):
        batch = replace(pool, features=layered(layers, inputs))
        return jnp.linalg.norm(oracles.flatten(oracles.lower_gradient(reduced, x, W, batch, Ledger.page())[0])[0])

    def settle(x, W, target, batch):
        return newton_steps(reduced, x, W, batch, target, settling, Ledger.page())[0]

    targets = jnp.finfo(pool.weight.dtype).eps ** 0.5 * jax.vmap(size)(decisions, heads)

    def step(carry, number):
        layers, heads, moments = carry
        batch = replace(pool, features=layered(layers, inputs))
        heads = jax.vmap(settle, in_axes=(0, 0, 0, None))(decisions, heads, targets, batch)
        slopes = jax.vmap(lambda x, W: oracles.feature_gradient(reduced, layered, layers, inputs, x, W, pool))
        slope = jax.tree.map(lambda a: jnp.mean(a, axis=0), slopes(decisions, heads))
        direction, moments = moments.after(slope, 0.99, 1e-12)  # a shorter memory than usual: coefficients move too
        layers = trees.step(layers, falling(number), direction)
        return (layers, heads, moments), None

    (trained, _, _), _ = jax.lax.scan(step, (layers, heads, Adam.none(layers)), jnp.arange(steps))
    return trained, layered(trained, inputs)[:, 1:]


def _learn_network(basis: Neural, study: Study) -> Neural:
    """Trains network and policies together, then keeps the features, orthonormal over what was looked at."""
    for_rows, for_decisions = split_key(as_key(basis.seed))
    problem, dtype = study.problem, study.dtype
    reduced = reduce_study(study.on(_look(study, for_rows)), Chebyshev(1))
    pool = reduced.lower_pool
    sizes = (problem.domain.dimension, *[basis.width] * basis.depth, basis.n - 1)
    decisions = _decisions_near(problem, basis.decisions, basis.spread, for_decisions)
    rows = jax.tree.map(lambda a: np.empty((1, *np.shape(a))), problem.x0)
    stacked = shaped_like(rows, decisions, dtype, 1)
    constant = (np.arange(basis.n) == 0).astype(dtype)
    each = lambda y: np.broadcast_to(np.multiply.outer(constant, np.asarray(y)), (len(decisions), basis.n, *y.shape))
    start = put((jax.tree.map(each, problem.y0), stacked, np.asarray(basis.rate, dtype)))
    with jax.numpy_dtype_promotion("standard"):  # Optax relies on it, whatever the user has set
        found = _train(reduced.ordinary(), sizes, basis.steps, as_key(basis.seed), *start)
    trained, outputs = jax.tree.map(np.asarray, found)
    if not np.all(np.isfinite(outputs)):
        raise ValueError(f"{basis!r} became NaN or infinity in training; make rate smaller, or give another x0.")
    weight = np.asarray(pool.weight)
    middle = weight @ outputs / len(pool)
    last = trained[-1].copy()
    last[-1] -= middle
    transform = np.asarray(whiten(put(outputs - middle), pool.weight).transform)
    return replace(basis, layers=put((*trained[:-1], last @ transform)))
