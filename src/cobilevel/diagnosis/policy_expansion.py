"""The policy at one ``x``: fitted and looked at closely, and expanded in polynomials of the context."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..basis.base import combine
from ..basis.families import Chebyshev
from ..basis.index_sets import Tensor, TotalDegree
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..iteration.curvature_scales import lanczos
from ..lower.damped_newton import DENSE_LIMIT, minimise
from ..lower.per_context import exact_lower
from ..lower.reduced_at_x import lower_objective
from ..problem.data import Product, Samples
from ..problem.domain import Box, Finite, Interval
from ..problem.problem import Problem
from ..problem.study import lower_depends_on_noise
from ..reduction.batches import Batch, Table
from ..reduction.reduced import Reduced, build
from .decay import FEW, GRIDS, Decay, from_coefficients, from_values
from .kinks import find_kinks, find_noisy_kinks

SAMPLES_EACH, CONTEXTS_EACH = 8, 2  # asked for each function: samples where g has noise, and distinct contexts


ROWS = 8192  # the most samples that are looked at


_MOST_FUNCTIONS, _MOST_COEFFICIENTS = 64, 600  # of a fit


_NUMBERS = 1_500_000  # in y at all samples together


_WORK = 2e10  # multiplications that exact solves may take, about


_MOST_NUMBERS = 40_000_000  # in the second derivatives of g at all samples together


_STEPS = 60  # of Lanczos' method, where the Hessian is too large to be formed


_DRAWS = 1024  # of noise at each context, where there is a sampler


@dataclass(frozen=True)
class Look:
    """Data few enough to look at closely: a level, and its joint samples, `together` of them at each context."""

    level: Samples | Product
    samples: Samples
    together: int = 1


def look_at(lower: Samples | Product, functions: int, size: int) -> Look:
    """At most ``ROWS`` samples of a level, fewer where ``y`` is large; `size` is that of ``y``."""
    most, keys = min(ROWS, max(1024, _NUMBERS // size)), jax.random.split(jax.random.key(1))
    if isinstance(lower, Samples):
        lower = lower if len(lower) <= most else lower.rows(jax.random.permutation(keys[0], len(lower))[:most])
        return Look(lower, lower)
    context = lower.context_rule()
    first = jax.random.permutation(keys[0], len(context))[: max(64, 4 * functions)]
    kept = jax.random.permutation(keys[1], lower.eta_rows)[: max(1, most // len(first))]
    level = Product(lower.contexts, jax.tree.map(lambda a: a[kept], lower.eta), lower.nodes)
    rows = len(kept)
    pairs = level.pairs(context, jnp.repeat(first, rows), jnp.tile(jnp.arange(rows), len(first)))
    return Look(level, pairs, rows)


def batch_of(reduced: Reduced, samples: Samples) -> Batch:
    dtype = reduced.basis.constant.dtype
    xi = reduced.problem.domain.snap(samples.xi, dtype)
    return Batch(reduced.basis(xi), samples.xi, samples.eta, samples.mean_one_weights().astype(dtype))


@eqx.filter_jit
def fitted(reduced: Reduced, x: PyTree) -> Array:
    """The coefficients that minimise the reduced lower level at ``x``, as one vector."""
    start, _ = oracles.flatten(reduced.W0)
    dense = len(start) <= DENSE_LIMIT
    objective = lower_objective(reduced, x, reduced.W0, reduced.lower_pool, Ledger.empty(), dense)
    slope, _ = oracles.lower_gradient(reduced, x, reduced.W0, reduced.lower_pool, Ledger.empty())
    target = jnp.finfo(start.dtype).eps ** (0.75 if dense else 0.5) * jnp.linalg.norm(oracles.flatten(slope)[0])
    return minimise(objective, start, target).point


def restore(white: Reduced, z: Array) -> PyTree:
    Z = oracles.flatten(white.W0)[1](z)
    if white.coordinates is None:
        return Z
    forth = white.coordinates.transform
    return jax.tree.map(lambda part, rest: jnp.tensordot(forth, part, axes=1) + rest, Z, white.coordinates.rest)


@eqx.filter_jit
def model(reduced: Reduced, x: PyTree, W: PyTree, batch: Batch) -> tuple[Array, PyTree]:
    """The Hessian of the reduced lower level, and the gradient of ``g`` in ``y`` sample by sample."""
    (_, _, hessian), _ = oracles.lower_model(reduced, x, W, batch, Ledger.empty())
    (slopes, _, _), _ = oracles.lower_rows(reduced, x, W, W, batch, Ledger.empty())
    return hessian, slopes


def orthonormal(batch: Batch) -> tuple[Batch, np.ndarray]:
    """The batch with features made orthonormal over its rows, function after function; and ``R``, the way there."""
    root = np.sqrt(np.asarray(batch.weight, dtype=float) / len(batch))[:, None]
    q, r = np.linalg.qr(np.asarray(batch.features, dtype=float) * root)
    features = np.divide(q, root, out=np.zeros_like(q), where=root > 0)
    return replace(batch, features=jnp.asarray(features, batch.features.dtype)), r


@eqx.filter_jit
def _ritz(reduced: Reduced, x: PyTree, W: PyTree, batch: Batch) -> Array:
    flat, unflatten = oracles.flatten(W)

    def product(vector):
        return oracles.flatten(oracles.hessian_vector(reduced, x, W, unflatten(vector), batch, Ledger.empty())[0])[0]

    return lanczos(product, jax.random.normal(jax.random.key(0), flat.shape, flat.dtype), _STEPS)


def curvatures(reduced: Reduced, x: PyTree, W: PyTree, samples: Samples) -> tuple[float, float]:
    r"""The extreme eigenvalues of the Hessian of the reduced lower level.

    With features $\Phi = Q R$ it is $R^T H_Q R$, and $H_Q = C^T C$ is as well conditioned as ``g`` itself: the singular
    values of $C R$ give eigenvalues far below the rounding of the largest one.
    """
    batch = batch_of(reduced, samples)
    size = len(oracles.flatten(W)[0])
    components = size // reduced.basis.size
    if size > DENSE_LIMIT or len(batch) * components**2 > _MOST_NUMBERS:
        ritz = np.asarray(_ritz(reduced, x, W, batch), dtype=float)
        return float(ritz[0]), float(ritz[-1])
    turned, r = orthonormal(batch)
    rotated = jax.tree.map(lambda w: jnp.tensordot(jnp.asarray(r, w.dtype), w, axes=1), W)
    hessian = np.asarray(model(reduced, x, rotated, turned)[0], dtype=float)
    values, vectors = np.linalg.eigh(hessian)
    spread = np.kron(r, np.eye(components))
    if values[0] <= 0:
        ends = np.linalg.eigvalsh(spread.T @ hessian @ spread)
        return float(ends[0]), float(ends[-1])
    singular = np.linalg.svd(np.sqrt(values)[:, None] * (vectors.T @ spread), compute_uv=False)
    return float(singular[-1]) ** 2 if len(singular) == size else 0.0, float(singular[0]) ** 2


@dataclass(frozen=True)
class Expansion:
    """The policy by degree.

    `decay` and where it comes from, in words; `spread`: the share that varies with each coordinate of the context, and
    the error of that, in several dimensions; `u`, `values`: reference points and exact policies, where there are any.
    """

    decay: Decay | None
    source: str
    spread: tuple[tuple[float, float], ...] = ()
    u: Float[np.ndarray, " n"] | None = None
    values: Float[np.ndarray, "n d"] | None = None

    def misfit(self, reduced: Reduced, W: PyTree, ends: tuple[float, float]) -> float | None:
        """The relative root mean square error of the policy ``W Phi`` between two (reference) ends."""
        if self.u is None or self.values is None or not self.decay:
            return None
        inside = (self.u >= ends[0]) & (self.u <= ends[1])
        u, values = self.u[inside], self.values[inside]
        place = reduced.problem.domain.place(jnp.asarray(u[:, None], reduced.basis.constant.dtype))
        gap = values - _table(combine(reduced.basis(place), W))
        weight = np.sqrt(np.maximum(1 - u**2, 0))  # Chebyshev points crowd at the ends
        size = weight @ np.sum(values**2, axis=1)
        return float(np.sqrt(weight @ np.sum(gap**2, axis=1) / size)) if size > 0 else None


def _table(y: PyTree) -> Float[np.ndarray, "n d"]:
    """Policies at many contexts as rows."""
    return np.asarray(jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(y), dtype=float)


def expand(problem: Problem, x: PyTree, look: Look) -> Expansion:
    """The policy at ``x`` by degree.

    From exact lower-level solutions at Chebyshev points where they can be had: on an ``Interval``, without noise in
    ``g``, with ``Product`` data or with a conditional sampler. From a fit to the samples elsewhere.
    """
    if isinstance(problem.domain, Finite):
        return Expansion(None, "contexts are finite: there is no degree to go by")
    noisy = lower_depends_on_noise(problem, look.level)
    known = not noisy or isinstance(look.level, Product) or problem.conditional is not None
    exact = _exact(problem, x, look.level, noisy) if known and isinstance(problem.domain, Interval) else None
    return _from_fit(problem, x, look) if exact is None else exact


class _Shared(eqx.Module):
    """A conditional sampler that draws from one key, whichever it is given: noise as smooth in the context as it."""

    draw: Callable
    key: Array

    def __call__(self, _, xi, size):
        return self.draw(self.key, xi, size)


def _exact(problem: Problem, x: PyTree, lower: Samples | Product, noisy: bool) -> Expansion | None:
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    source, rows = "exact lower-level solutions", 1
    if noisy and isinstance(lower, Product):
        rows = lower.eta_rows
        source += f" over {rows} rows of data"
    elif noisy and problem.conditional is not None:
        rows, draw, key = _DRAWS, problem.conditional, jax.random.key(2)
        source = f"lower-level solutions over {rows} draws of noise, the same at each context"
        problem = eqx.tree_at(lambda p: p.conditional, problem, _Shared(draw, key), is_leaf=lambda v: v is draw)
    work = 100 * rows * size * min(size, 64)  # multiplications at one context, about
    grids = tuple(n for n in GRIDS if n * work <= _WORK) or FEW
    dtype = jax.tree.leaves(problem.y0)[0].dtype
    eps, many, failed = float(jnp.finfo(dtype).eps), grids[0], []

    def evaluate(u):
        """In pieces of one size, so that one compiled program serves all."""
        parts = []
        for begin in range(0, len(u), many):
            piece = np.resize(u[begin : begin + many], many)
            xi = problem.domain.place(jnp.asarray(piece[:, None], dtype))
            found = exact_lower(problem, x, xi, lower, draws=rows, tolerance=4 * eps)
            failed.append(not bool(jnp.all(found.gradient <= eps**0.25)))
            parts.append(_table(found.y)[: len(u) - begin])
        return np.concatenate(parts)

    decay, u, values = from_values(evaluate, eps, grids)
    if any(failed) or not np.isfinite(values).all():
        return None
    if decay.kind == "algebraic":
        decay = _placed(decay, find_kinks(u, values), problem)
    return Expansion(decay, source, u=u, values=values)


def _placed(decay: Decay, kinks: tuple, problem: Problem) -> Decay:
    """The decay with kinks found on the reference interval, in the units of the context."""
    place = lambda u: float(problem.domain.place(jnp.array([u]))) if not problem.domain.shape else u
    return replace(decay, kinks=tuple(replace(kink, location=place(kink.location)) for kink in kinks))


def _covered(problem: Problem, xi: Array) -> Problem:
    """The problem on the box that the contexts fill: polynomials mean little where there are none."""
    table = np.asarray(problem.domain.coordinates(xi), dtype=float)
    lo, hi = table.min(axis=0), table.max(axis=0)
    if not np.all(lo < hi):
        return problem
    box = Box(lo, hi) if problem.domain.shape else Interval(lo[0], hi[0])
    return eqx.tree_at(lambda p: p.domain, problem, box)


def _from_fit(problem: Problem, x: PyTree, look: Look) -> Expansion:
    r"""The reduced lower level minimised over as many polynomials as the samples support, with standard errors.

    The polynomials are orthonormal over the observed contexts, degree by degree, so that each coefficient has its own
    noise: those of Chebyshev polynomials share theirs, and rise and fall together. Errors by the sandwich formula
    $H^{-1} \mathrm{cov}(\partial_2 g\, \Phi) H^{-1} / n$.
    """
    problem = _covered(problem, look.samples.xi)
    d, size = problem.domain.dimension, sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    contexts = np.unique(np.asarray(look.samples.xi), axis=0)
    groups = len(look.samples) // look.together
    most = max(1, min(groups // SAMPLES_EACH, len(contexts) // CONTEXTS_EACH, _MOST_COEFFICIENTS // size))
    most = min(most, _MOST_FUNCTIONS) if d == 1 else most
    index = Tensor() if d == 1 else TotalDegree()
    n = next(n for n in range(1, most + 2) if n > most or len(index.table(n + 1, d)) > most)
    table = index.table(n, d)
    reduced = build(problem, Chebyshev(n, index=index), look.samples)
    batch, r = orthonormal(batch_of(reduced, look.samples))
    turned = replace(
        reduced,
        lower_source=Table(batch),
        whitening=None,
        W0=jax.tree.map(lambda w: jnp.tensordot(jnp.asarray(r, w.dtype), w, axes=1), reduced.W0),
    )
    z = fitted(turned, x)
    hessian, slopes = (part for part in model(turned, x, oracles.flatten(turned.W0)[1](z), batch))
    hessian, rows = np.asarray(hessian, dtype=float), _table(slopes)
    phi, weight = (np.asarray(part, dtype=float) for part in (batch.features, batch.weight))
    scores = weight[:, None, None] * phi[:, :, None] * rows[:, None, :]
    scores = scores.reshape(groups, look.together, -1).mean(axis=1)
    sway = np.linalg.lstsq(hessian, scores.T, rcond=None)[0].T / np.sqrt(groups * max(groups - len(table), 1))
    a, errors = np.asarray(z, dtype=float).reshape(-1, size), np.sqrt(np.sum(sway**2, axis=0)).reshape(-1, size)
    values = phi @ a
    rms = float(np.sqrt(weight @ np.sum(values**2, axis=1) / len(weight)))
    degree = table.sum(axis=1)
    by_degree = lambda part: np.sqrt([np.sum(part[degree == k] ** 2) * (2 if k else 1) for k in range(n)])
    kinks, source = (), f"a fit of {len(table)} functions to {groups} {'contexts' if look.together > 1 else 'samples'}"
    if d == 1 and look.together == 1:
        response = values - np.linalg.lstsq(hessian[:size, :size], rows.T, rcond=None)[0].T  # H[0, 0] is E[d22 g]
        noise = np.sqrt(weight @ (response - values) ** 2 / max(groups - n, 1))
        u = np.asarray(problem.domain.reference(look.samples.xi), dtype=float)[:, 0]
        if np.all(noise > 0):
            kinks = find_noisy_kinks(u, response / noise, weight, n)
    decay = from_coefficients(by_degree(a), by_degree(errors), rms, kinks, d, size * np.bincount(degree))
    if d == 1:
        return Expansion(_placed(decay, kinks, problem), source)
    low = degree < decay.length  # the rest is noise; Chebyshev coefficients of these tell coordinates apart
    back = np.linalg.pinv(r[np.ix_(low, low)])
    sway = np.einsum("kl,nla->nka", back, sway.reshape(groups, -1, size)[:, low])
    return Expansion(decay, source, tuple(_share(back @ a[low], sway, table[low, j] > 0, rms) for j in range(d)))


def _share(raw: np.ndarray, sway: np.ndarray, along: np.ndarray, rms: float) -> tuple[float, float]:
    """How much the functions picked contribute, and an error such that the ratio is that of signal to noise."""
    part, moves = raw[along].ravel(), sway[:, along].reshape(len(sway), -1)
    if not len(part) or not rms > 0:
        return 0.0, 0.0
    ratio = np.sqrt(part @ np.linalg.lstsq(moves.T @ moves, part, rcond=None)[0] / len(part))
    size = float(np.sqrt(part @ part / 2)) / rms
    return size, size / max(float(ratio), 1e-300)
