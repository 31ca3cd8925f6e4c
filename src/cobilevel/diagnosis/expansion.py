"""The policy at one ``x`` expanded in polynomials of the context: from exact values, or from a fit to samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..basis import Tensor, TotalDegree, combine
from ..covariates import FEWEST_DIMENSIONS, Responses
from ..derivatives import Expansions, RowDerivatives
from ..keys import as_key
from ..lower import exact_lower, law_is_known, lower_size, solve_lower
from ..problem import Box, Domain, Finite, Interval, Look, Study
from ..programs import put
from ..reduction import Batch, Bilevel, Table
from ..trees import as_rows
from .decay import FEW, GRIDS, Decay, Kink, find_kinks, find_noisy_kinks, from_coefficients, from_values

_MULTIPLICATIONS = 2e10  # that exact solves at all points of a grid may take, about: some seconds
_SOLVE_STEPS, _HESSIAN_Y = 100, 64  # evaluations of an exact solve, about, and the largest y whose Hessian it forms
_FEWEST_RESPONSES = 200  # from which on the structure of a policy of many coordinates is looked at
_DRAWS = 1024  # of noise at each context, where there is a sampler
_MOST_FUNCTIONS = 64  # on an interval: kinks are seen with fewer, and smooth policies need fewer
_MOST_FIT_COEFFICIENTS = 600  # functions times components of y
_FITTED = 0.75  # exponent of the precision: the share of its first slope to which the lower level is minimised


@dataclass(frozen=True)
class Expansion:
    """The policy by degree.

    `decay` and where it comes from, in words; `spread`: the share that varies with each coordinate of the context, and
    the error of that, in several dimensions; `u`, `values`: reference points and exact policies, where there are any;
    `responses`: what single samples ask for, in many dimensions.
    """

    decay: Decay | None
    source: str
    spread: tuple[tuple[float, float], ...] = ()
    u: Float[np.ndarray, " n"] | None = None
    values: Float[np.ndarray, "n d"] | None = None
    responses: Responses | None = None

    length: ClassVar[int] = 0
    unbounded: ClassVar[bool] = False

    def expanded(self) -> "Expansion":
        return self


class Policies:
    """Policies at one ``x`` after the other: how many coefficients stand out (`length`), whether a kink lets none of
    them be the last (`unbounded`), and all there is to say, which takes longer (`expanded`).

    From exact lower-level solutions at Chebyshev points where they can be had: on an ``Interval``, without noise in
    ``g``, with ``Product`` data or with a conditional sampler. From a fit to the samples elsewhere.
    """

    def __init__(self, study: Study, look: Look):
        self.study, self.look = study, look

    def at(self, x: Float[np.ndarray, " dx"]) -> "Expansion | _ExactPolicy | PolynomialFit":
        domain = self.study.problem.domain
        if isinstance(domain, Finite):
            return Expansion(None, "contexts are finite: there is no degree to go by")
        if not isinstance(domain, Interval | Box):
            return Expansion(None, "how a policy falls off by degree is known on an interval or a box alone")
        exact = None
        if isinstance(domain, Interval) and law_is_known(self.study):
            exact = _exact_policy(self.study.on(self.look.level), x)
        return self._polynomials.fit(x) if exact is None else exact

    @cached_property
    def _polynomials(self) -> "FittedPolynomials":
        return FittedPolynomials(self.study, self.look)


# -- exact solutions


class _SharedDraws(eqx.Module):
    """A conditional sampler that draws from one key, whichever it is given: noise as smooth in the context as it."""

    draw: Callable
    key: Array

    def __call__(self, _: Any, xi: Array, size: int) -> PyTree[Array]:
        return self.draw(self.key, xi, size)


def _conditional_law(study: Study) -> tuple[Study, int, str]:
    """The study with the same noise at each context, its rows there, and where policies come from, in words."""
    problem = study.problem
    if not study.lower_noise:
        return study, 1, "exact lower-level solutions"
    if study.lower.crossed:
        rows = study.lower.count or 1
        return study, rows, f"exact lower-level solutions over {rows} rows of data"
    draw = problem.conditional
    shared = _SharedDraws(draw, as_key(2))  # pyright: ignore[reportArgumentType]
    problem = eqx.tree_at(lambda p: p.conditional, problem, shared, is_leaf=lambda v: v is draw)
    words = f"lower-level solutions over {_DRAWS} draws of noise, the same at each context"
    return replace(study, problem=problem), _DRAWS, words


@dataclass(frozen=True)
class _ExactPolicy:
    """Exact solutions at Chebyshev points `u`, and the decay of their coefficients, whose kinks are yet to be found."""

    decay: Decay
    source: str
    u: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "n d"]
    domain: Domain

    @property
    def length(self) -> int:
        return self.decay.length

    @property
    def unbounded(self) -> bool:
        return self.decay.kind == "algebraic" and not self.decay.resolved

    def expanded(self) -> Expansion:
        kinks = find_kinks(self.u, self.values) if self.decay.kind == "algebraic" else ()
        decay = replace(self.decay, kinks=_placed(kinks, self.domain))
        return Expansion(decay, self.source, u=self.u, values=self.values)


def _exact_policy(study: Study, x: Float[np.ndarray, " dx"]) -> _ExactPolicy | None:
    """``None`` where exact solutions could not be found."""
    study, rows, source = _conditional_law(study)
    domain, size, eps = study.problem.domain, study.problem.sizes[1], study.eps
    work = _SOLVE_STEPS * rows * size * min(size, _HESSIAN_Y)
    grids = tuple(n for n in GRIDS if n * work <= _MULTIPLICATIONS) or FEW
    failed = []

    def evaluate(u: np.ndarray) -> np.ndarray:
        xi = domain.place(u[:, None].astype(study.dtype))
        found = exact_lower(study, x, xi, draws=rows, tolerance=4 * eps)
        failed.append(not np.all(found.gradient <= eps**0.25))
        return as_rows(found.y)

    decay, u, values = from_values(evaluate, eps, grids)
    if any(failed) or not np.isfinite(values).all():
        return None
    return _ExactPolicy(decay, source, u, values, domain)


def _placed(kinks: tuple[Kink, ...], domain: Domain) -> tuple[Kink, ...]:
    """Kinks found on the reference interval, in the units of the context."""
    if domain.shape:  # a box of one dimension
        return kinks
    place = lambda u: float(domain.place(np.array([u])))
    return tuple(replace(kink, location=place(kink.location)) for kink in kinks)


# -- a fit to samples


@dataclass(frozen=True)
class PolynomialFit:
    r"""Coefficients in polynomials orthonormal over the observed contexts, degree by degree.

    So that each has its own noise: those of Chebyshev polynomials share theirs, and rise and fall together.

    - `space`: the polynomials.
    - `coefficients`, and `moves`: how each of the groups of samples moves them, scaled so that squares add up to
      the variance, by the sandwich formula $H^{-1} \mathrm{cov}(\partial_2 g\, \Phi) H^{-1} / n$.
    - `values`, `steps`: the policy at the samples, and a Newton step ``d22 g^-1 d2 g`` of each sample from there;
      `curvature`: the mean of ``d22 g``.
    """

    unbounded: ClassVar[bool] = False
    space: "FittedPolynomials"
    coefficients: Float[np.ndarray, "N dy"]
    moves: Float[np.ndarray, "groups N dy"]
    values: Float[np.ndarray, "n dy"]
    steps: Float[np.ndarray, "n dy"]
    curvature: Float[np.ndarray, "dy dy"]

    @property
    def rms(self) -> float:
        """The root mean square of the policy."""
        return float(np.sqrt(self.space.shares @ np.sum(self.values**2, axis=1)))

    @cached_property
    def _by_degree(self) -> tuple[np.ndarray, ...]:
        """The sizes of coefficients, their errors, and how many numbers each stands for; degree by degree."""
        degree, errors = self.space.degree, np.sqrt(np.sum(self.moves**2, axis=0))
        each = [degree == k for k in range(int(degree.max()) + 1)]
        sizes = lambda part: np.sqrt([np.sum(part[rows] ** 2) * (2 if k else 1) for k, rows in enumerate(each)])
        return sizes(self.coefficients), sizes(errors), (errors.shape[1] * np.bincount(degree)).astype(float)

    def _decay(self, kinks: tuple[Kink, ...]) -> Decay:
        sizes, errors, counts = self._by_degree
        return from_coefficients(sizes, errors, self.rms, kinks, self.space.table.shape[1], counts)

    @property
    def length(self) -> int:
        return self._decay(()).length

    def expanded(self) -> Expansion:
        """Coefficients by degree, kinks, and what varies with which coordinate."""
        space, response = self.space, self.values - self.steps  # what each sample alone asks for
        d, alone = space.table.shape[1], space.groups == len(space.u)
        source = f"a fit of {len(space.table)} functions to {space.groups} {'samples' if alone else 'contexts'}"
        if d == 1:
            kinks = self._kinks(response) if alone else ()
            return Expansion(replace(self._decay(kinks), kinks=_placed(kinks, space.domain)), source)
        decay = self._decay(())
        low = space.degree < decay.length  # the rest is noise; Chebyshev coefficients of these distinguish coordinates
        back = np.linalg.pinv(space.r[np.ix_(low, low)])
        raw, moves = back @ self.coefficients[low], np.tensordot(back, self.moves[:, low], axes=(1, 1)).swapaxes(0, 1)
        spread = tuple(_share(raw, moves, space.table[low, j] > 0, self.rms) for j in range(d))
        many = d >= FEWEST_DIMENSIONS and alone and len(space.u) >= _FEWEST_RESPONSES
        responses = Responses.of(space.u, response, self.curvature, space.shares) if many else None
        return Expansion(decay, source, spread, responses=responses)

    def _kinks(self, response: Float[np.ndarray, "n dy"]) -> tuple[Kink, ...]:
        """The kinks that the samples show, on the reference interval: of what each alone asks for."""
        space, degrees = self.space, int(self.space.degree.max()) + 1
        weight = space.shares * len(response)
        noise = np.sqrt(weight @ self.steps**2 / max(space.groups - degrees, 1))
        return find_noisy_kinks(space.u[:, 0], response / noise, weight, degrees) if np.all(noise > 0) else ()


def _share(
    raw: Float[np.ndarray, "K d"], moves: Float[np.ndarray, "g K d"], along: np.ndarray, rms: float
) -> tuple[float, float]:
    """How much the functions picked contribute, and an error such that the ratio is that of signal to noise."""
    part, sway = raw[along].ravel(), moves[:, along].reshape(len(moves), -1)
    if not len(part) or not rms > 0:
        return 0.0, 0.0
    ratio = np.sqrt(part @ np.linalg.lstsq(sway.T @ sway, part, rcond=None)[0] / len(part))
    size = float(np.sqrt(part @ part / 2)) / rms
    return size, size / max(float(ratio), 1e-300)


class FittedPolynomials:
    """As many polynomials as the samples support, on the box that these fill, orthonormal over them.

    - `u`: contexts on the reference cube, with `shares` that add up to 1; `groups`: how many are independent, which are
      contexts where each meets the same data.
    - `table`: the multi-index of each function, and its `degree`; `r`: the way from Chebyshev polynomials to them.
    """

    def __init__(self, study: Study, look: Look):
        problem, samples, dtype = study.problem, look.samples, study.dtype
        self.domain = _covered(problem.domain, samples.xi)
        self.u = np.asarray(self.domain.reference(samples.xi), dtype=float)
        self.table = _supported_polynomials(look, self.domain.dimension, problem.sizes[1])
        self.degree = self.table.sum(axis=1)
        self.shares, self.groups = samples.shares(), len(samples) // look.together
        features = np.ones((len(samples), len(self.table)))
        for u, degrees in zip(self.u.T, self.table.T, strict=True):
            features *= np.polynomial.chebyshev.chebvander(u, degrees.max())[:, degrees]
        first = (self.degree == 0).astype(dtype)
        W0 = put(jax.tree.map(lambda y: np.multiply.outer(first, y), problem.y0))
        batch = Batch(
            put(features.astype(dtype)), samples.xi, samples.eta, put((self.shares * len(samples)).astype(dtype))
        )
        self.level, self.r = orthonormal(Bilevel(problem, Table(batch), Table(batch), W0))

    def fit(self, x: Float[np.ndarray, " dx"]) -> PolynomialFit:
        """The lower level at ``x`` minimised over the polynomials, with standard errors."""
        level = self.level
        (pool,), d_y = level.lower_pools, level.dy
        W = minimised(level, x)
        hessian, slopes, phi = level.lower(x, W).hessian, _slopes(level, x, W), np.asarray(pool.features, float)
        scores = (len(phi) * self.shares)[:, None, None] * phi[:, :, None] * slopes[:, None, :]
        scores = scores.reshape(self.groups, -1, W.size).mean(axis=1)
        moves = np.linalg.lstsq(hessian, scores.T, rcond=None)[0].T
        moves = moves / np.sqrt(self.groups * max(self.groups - len(self.table), 1))
        return PolynomialFit(
            space=self,
            coefficients=W,
            moves=moves.reshape(self.groups, -1, d_y),
            values=phi @ W,
            curvature=hessian[:d_y, :d_y],
            steps=np.linalg.lstsq(hessian[:d_y, :d_y], slopes.T, rcond=None)[0].T,  # the first function is 1: E[d22 g]
        )


def _slopes(level: Expansions, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> Float[np.ndarray, "n dy"]:
    """The gradient of ``g`` in ``y``, sample by sample; without its Hessians where these are large."""
    (pool,), g = level.lower_pools, level.reduced.problem.lower
    rows, y = RowDerivatives.lower(g, pool.rows, level.crossed), pool.y(W)  # pyright: ignore[reportArgumentType]
    if level.dy > _HESSIAN_Y:
        rows, y = RowDerivatives.product(g, pool.rows), np.pad(y, ((0, 0), (0, level.dy)))  # pyright: ignore
    packed = (rows.block(x, y[part], part, xi, eta) for part, xi, eta in pool.rows)
    return np.concatenate([np.array(block[:, 1 : 1 + level.dy], float) for block in packed])


def _covered(domain: Domain, xi: Array) -> Domain:
    """The box that the contexts fill: polynomials mean little where there are none."""
    table = np.asarray(domain.coordinates(xi), dtype=float)
    lo, hi = table.min(axis=0), table.max(axis=0)
    if not np.all(lo < hi):
        return domain
    return Box(lo, hi) if domain.shape else Interval(lo[0], hi[0])


def _supported_polynomials(look: Look, d: int, d_y: int) -> Int[np.ndarray, "N d"]:
    """As many as the contexts support, with or without noise: their errors are to be measured too."""
    contexts = look.samples.rows(slice(None, None, look.together))
    most = max(1, min(contexts.supported(noisy=True), _MOST_FIT_COEFFICIENTS // d_y))
    most = min(most, _MOST_FUNCTIONS) if d == 1 else most
    index = Tensor() if d == 1 else TotalDegree()
    n = next(n for n in range(1, most + 2) if n > most or (index.count(n + 1, d) or 0) > most)
    return index.table(n, d)


# -- the reduced lower level on samples


def orthonormal(reduced: Bilevel) -> tuple[Expansions, Float[np.ndarray, "r N"]]:
    """The problem in features made orthonormal over its rows, function after function; and ``R``, the way there."""
    batch, dtype = reduced.lower_pool, reduced.dtype
    root = np.sqrt(np.asarray(batch.weight, dtype=float) / len(batch))[:, None]
    q, r = np.linalg.qr(np.asarray(batch.features, dtype=float) * root)
    features = np.divide(q, root, out=np.zeros_like(q), where=root > 0)
    turned = replace(batch, features=put(features.astype(dtype)))
    W0 = combine(r.astype(dtype), reduced.W0)
    return Expansions(replace(reduced, W0=W0).with_pools(turned, turned)), r


def minimised(level: Expansions, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, "N dy"]:
    """The coefficients that minimise the reduced lower level at ``x``, from ``W0``."""
    start = level.table(level.reduced.W0)
    share = level.eps ** (_FITTED if level.formed else 1 / 2)
    return solve_lower(level, x, start, share * lower_size(level, x, start)).point.reshape(start.shape)
