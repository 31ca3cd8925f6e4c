"""The policy at one ``x`` expanded in polynomials of the context: from exact values, or from a fit to samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..basis import Tensor, TotalDegree
from ..covariates import FEWEST_DIMENSIONS, MOST_FUNCTIONS, Fits, Responses
from ..keys import as_key
from ..lower import exact_lower, law_is_known, solve_lower
from ..problem import Box, Domain, Finite, Interval, Look
from ..study import Study
from .decay import GRIDS, Decay, Kink, find_kinks, find_noisy_kinks, from_coefficients, from_values

_MULTIPLICATIONS = 2e8  # that one evaluation at all points of a grid may take, of about a hundred: some seconds
_HESSIAN_Y = 64  # the largest y whose Hessian exact solves form
_FEWEST_RESPONSES = 200  # from which on the structure of a policy of many coordinates is looked at
_DRAWS = 1024  # of noise at each context, where there is a sampler
_MOST_FIT_COEFFICIENTS = 600  # functions times components of y


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


def _exact_policy(study: Study, x: Float[np.ndarray, " dx"]) -> Expansion | None:
    """``None`` where exact solutions could not be found."""
    study, rows, source = _conditional_law(study)
    domain, dy, eps = study.problem.domain, study.problem.sizes[1], study.eps
    work = rows * dy * min(dy, _HESSIAN_Y)
    failed = []

    def evaluate(u: np.ndarray) -> np.ndarray:
        found = exact_lower(study, x, domain.place(u[:, None].astype(study.dtype)), draws=rows, tolerance=4 * eps)
        failed.append(not np.all(found.gradient <= eps**0.25))
        leaves = [np.asarray(leaf, dtype=float) for leaf in jax.tree.leaves(found.y)]
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    decay, u, values = from_values(evaluate, eps, [n for n in GRIDS[1:] if n * work <= _MULTIPLICATIONS] or GRIDS[:1])
    if any(failed) or not np.isfinite(values).all():
        return None
    kinks = find_kinks(u, values) if decay.kind == "algebraic" else ()
    return Expansion(replace(decay, kinks=_placed(kinks, domain)), source, u=u, values=values)


def _placed(kinks: tuple[Kink, ...], domain: Domain) -> tuple[Kink, ...]:
    """Kinks found on the reference interval, in the units of the context."""
    if domain.shape:  # a box of one dimension
        return kinks
    return tuple(replace(kink, location=float(domain.place(np.array([kink.location])))) for kink in kinks)


# -- a policy after the other


class Policies:
    """Policies at one ``x`` after the other.

    From exact lower-level solutions at Chebyshev points where they can be had: on an ``Interval``, without noise in
    ``g``, with ``Product`` data or with a conditional sampler. Elsewhere from a fit of as many polynomials as the
    samples support, orthonormal over them, so that each coefficient has its own noise; on the box that these fill.
    """

    def __init__(self, study: Study, look: Look):
        self.study, self.look = study, look
        self.fits: Any = None

    def at(self, x: Float[np.ndarray, " dx"]) -> Expansion:
        domain = self.study.problem.domain
        if isinstance(domain, Finite):
            return Expansion(None, "contexts are finite: there is no degree to go by")
        if not isinstance(domain, Interval | Box):
            return Expansion(None, "how a policy falls off by degree is known on an interval or a box alone")
        known = isinstance(domain, Interval) and law_is_known(self.study)
        exact = _exact_policy(self.study.on(self.look.level), x) if known else None
        if exact is not None:
            return exact
        if self.fits is None:
            self._lay_polynomials()
        return self._fitted(x)

    def _lay_polynomials(self) -> None:
        study, look = self.study, self.look
        self.domain = _covered(study.problem.domain, look.samples.xi)
        table = _supported_polynomials(look, self.domain.dimension, study.problem.sizes[1])
        self.fits = Fits(study, look.samples, together=look.together, domain=self.domain)
        self.fits.lay(table)
        self.table, self.groups = table[: self.fits.usable], len(self.fits.u)  # groups of samples are independent
        self.degree = self.table.sum(axis=1)

    def _fitted(self, x: Float[np.ndarray, " dx"]) -> Expansion:
        """The lower level at ``x`` minimised over the polynomials: coefficients by degree, kinks, and what varies with
        which coordinate."""
        fits, (N, d), count = self.fits, self.table.shape, len(self.fits.shares)
        level = fits.expansions(N)
        W = solve_lower(level, x, fits.constant(N), fits.target(x, N), level.eps**0.5).point.reshape(N, -1)
        values, hessian = fits.table @ W, level.lower(x, W).hessian
        slopes, curvature = fits.rows.lower_slopes(x, values)[1], hessian[: fits.size, : fits.size]  # the mean of d22 g
        steps = np.linalg.lstsq(curvature, slopes.T, rcond=None)[0].T
        response, rms = values - steps, float(np.sqrt(fits.shares @ np.sum(values**2, axis=1)))
        moves, alone = self._moves(hessian, slopes), self.groups == count
        source = f"a fit of {N} functions to {self.groups} {'samples' if alone else 'contexts'}"
        if d == 1:
            kinks = self._kinks(response, steps) if alone else ()
            decay = self._decay(W, moves, rms, kinks)
            return Expansion(replace(decay, kinks=_placed(kinks, self.domain)), source)
        decay = self._decay(W, moves, rms)
        low = self.degree < decay.length  # the rest is noise; Chebyshev coefficients of these distinguish coordinates
        back = fits.forth[:N][np.ix_(low, low)]
        raw, moves = back @ W[low], np.tensordot(back, moves[:, low], axes=(1, 1)).swapaxes(0, 1)
        spread = tuple(_share(raw, moves, self.table[low, j] > 0, rms) for j in range(d))
        many = d >= FEWEST_DIMENSIONS and alone and count >= _FEWEST_RESPONSES
        responses = Responses.of(fits.u, response, curvature, fits.shares) if many else None
        return Expansion(decay, source, spread, responses=responses)

    def _moves(self, hessian: np.ndarray, slopes: Float[np.ndarray, "n dy"]) -> Float[np.ndarray, "groups N dy"]:
        r"""How each group of samples moves the coefficients, scaled so that squares add up to their variance: by the
        sandwich formula $H^{-1} \mathrm{cov}(\partial_2 g\, \Phi) H^{-1} / n$."""
        fits, (n, dy), N = self.fits, slopes.shape, len(self.table)
        scores = (n * fits.shares)[:, None, None] * fits.table[:, :, None] * slopes[:, None, :]
        scores = scores.reshape(self.groups, -1, N * dy).mean(axis=1)
        moves = np.linalg.lstsq(hessian, scores.T, rcond=None)[0].T / np.sqrt(self.groups * max(self.groups - N, 1))
        return moves.reshape(self.groups, N, dy)

    def _decay(self, W: np.ndarray, moves: np.ndarray, rms: float, kinks: tuple[Kink, ...] = ()) -> Decay:
        """From the sizes of coefficients, their errors, and how many numbers each stands for; degree by degree."""
        errors = np.sqrt(np.sum(moves**2, axis=0))
        sizes, noise = (
            np.sqrt(
                np.bincount(self.degree, np.sum(part**2, axis=1)) * np.where(np.arange(self.degree.max() + 1), 2, 1)
            )
            for part in (W, errors)
        )
        counts = (W.shape[1] * np.bincount(self.degree)).astype(float)
        return from_coefficients(sizes, noise, rms, kinks, self.table.shape[1], counts)

    def _kinks(self, response: Float[np.ndarray, "n dy"], steps: Float[np.ndarray, "n dy"]) -> tuple[Kink, ...]:
        """The kinks that the samples show, on the reference interval: of what each alone asks for."""
        weight = self.fits.shares * len(response)
        noise = np.sqrt(weight @ steps**2 / max(self.groups - len(self.table), 1))
        return (
            find_noisy_kinks(self.fits.u[:, 0], response / noise, weight, len(self.table)) if np.all(noise > 0) else ()
        )


def _share(
    raw: Float[np.ndarray, "K d"], moves: Float[np.ndarray, "g K d"], along: np.ndarray, rms: float
) -> tuple[float, float]:
    """How much the functions picked contribute, and an error such that the ratio is that of signal to noise."""
    part, sway = raw[along].ravel(), moves[:, along].reshape(len(moves), -1)
    if not len(part) or not rms > 0:
        return 0.0, 0.0
    ratio = np.sqrt(part @ np.linalg.lstsq(sway.T @ sway, part, rcond=None)[0] / len(part))
    size = float(np.sqrt(part @ part / 2)) / rms
    return size, size / max(float(ratio), np.finfo(float).tiny)


def _covered(domain: Domain, xi: Array) -> Domain:
    """The box that the contexts fill: polynomials mean little where there are none."""
    table = np.asarray(domain.coordinates(xi), dtype=float)
    lo, hi = table.min(axis=0), table.max(axis=0)
    if not np.all(lo < hi):
        return domain
    return Box(lo, hi) if domain.shape else Interval(lo[0], hi[0])


def _supported_polynomials(look: Look, d: int, dy: int) -> Int[np.ndarray, "N d"]:
    """As many as the contexts support, with or without noise: their errors are to be measured too."""
    contexts = look.samples.rows(slice(None, None, look.together))
    most = max(1, min(contexts.supported(noisy=True), _MOST_FIT_COEFFICIENTS // dy))
    most = min(most, MOST_FUNCTIONS) if d == 1 else most
    index = Tensor() if d == 1 else TotalDegree()
    n = next(n for n in range(1, most + 2) if n > most or (index.count(n + 1, d) or 0) > most)
    return index.table(n, d)
