"""The policy at one ``x`` expanded in polynomials of the context: from exact values, or from a fit to samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import Tensor, TotalDegree
from ..covariates import FEWEST_DIMENSIONS, MOST_COEFFICIENTS, MOST_FUNCTIONS, Fits, Responses
from ..inference import MOST_NUMBERS
from ..keys import as_key
from ..lower import exact_lower, law_is_known, solve_lower
from ..problem import Box, Domain, Finite, Interval, Look
from ..study import Study
from ..trees import as_rows
from .decay import GRIDS, MOST_DEGREES, Decay, Kink, find_kinks, find_noisy_kinks, from_coefficients, from_values

DRAWS = 1024  # rows of noise at each context where there is a sampler; samples looked at however large y is
FEWEST_CONTEXTS = 200  # looked at, however many functions there are; responses that show the structure of a policy


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


class _SharedDraws(eqx.Module):
    """A conditional sampler that draws from one key, whichever it is given: noise as smooth in the context as it."""

    draw: Callable
    key: Array

    def __call__(self, _: Any, xi: Array, size: int) -> PyTree[Array]:
        return self.draw(self.key, xi, size)


def _exact_policy(study: Study, x: Float[np.ndarray, " dx"]) -> Expansion | None:
    """With the same noise at each context; ``None`` where exact solutions could not be found."""
    problem, domain, eps = study.problem, study.problem.domain, study.eps
    rows, source, failed = 1, "exact lower-level solutions", []
    if study.lower_noise and study.lower.crossed:
        rows = study.lower.count or 1
        source = f"exact lower-level solutions over {rows} rows of data"
    elif study.lower_noise:
        draw, rows = problem.conditional, DRAWS
        shared = _SharedDraws(draw, as_key(2))  # pyright: ignore[reportArgumentType]
        problem = eqx.tree_at(lambda p: p.conditional, problem, shared, is_leaf=lambda v: v is draw)
        study = replace(study, problem=problem)
        source = f"lower-level solutions over {rows} draws of noise, the same at each context"

    def evaluate(u: np.ndarray) -> np.ndarray:
        found = exact_lower(study, x, domain.place(u[:, None].astype(study.dtype)), draws=rows, tolerance=4 * eps)
        failed.append(not np.all(found.gradient <= eps**0.25))
        return as_rows(found.y)

    dy = problem.sizes[1]
    work = rows * dy * min(dy, MOST_FUNCTIONS)  # multiplications at a point, about, of which a solve takes a hundred
    decay, u, values = from_values(evaluate, eps, [n for n in GRIDS[1:] if n * work <= MOST_NUMBERS] or GRIDS[:1])
    if any(failed) or not np.isfinite(values).all():
        return None
    kinks = find_kinks(u, values, MOST_DEGREES) if decay.kind == "algebraic" else ()
    return Expansion(replace(decay, kinks=_placed(kinks, domain)), source, u=u, values=values)


def _placed(kinks: tuple[Kink, ...], domain: Domain) -> tuple[Kink, ...]:
    """Kinks found on the reference interval, in the units of the context."""
    if domain.shape:  # a box of one dimension
        return kinks
    return tuple(replace(kink, location=float(domain.place(np.array([kink.location])))) for kink in kinks)


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
        """As many as the contexts support, with or without noise: their errors are to be measured too. On the box that
        the contexts fill: polynomials mean little where there are none."""
        study, look, domain = self.study, self.look, self.study.problem.domain
        places = np.asarray(domain.coordinates(look.samples.xi), dtype=float)
        (lo, hi), d = (places.min(axis=0), places.max(axis=0)), domain.dimension
        if np.all(lo < hi):
            domain = Box(lo, hi) if domain.shape else Interval(lo[0], hi[0])
        contexts = look.samples.rows(slice(None, None, look.together))
        most = max(1, min(contexts.supported(noisy=True), MOST_COEFFICIENTS // study.problem.sizes[1]))
        most, index = (min(most, MOST_FUNCTIONS), Tensor()) if d == 1 else (most, TotalDegree())
        n = next(n for n in range(1, most + 2) if n > most or (index.count(n + 1, d) or 0) > most)
        self.domain, table = domain, index.table(n, d)
        self.fits = Fits(study, look.samples, together=look.together, domain=domain)
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
        many = d >= FEWEST_DIMENSIONS and alone and count >= FEWEST_CONTEXTS
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
        counts = np.bincount(self.degree)
        scale = np.where(np.arange(len(counts)), 2, 1)
        sizes, noise = (
            np.sqrt(np.bincount(self.degree, squares) * scale)
            for squares in (np.sum(W**2, axis=1), np.sum(moves**2, axis=(0, 2)))
        )
        return from_coefficients(sizes, noise, rms, kinks, self.table.shape[1], (W.shape[1] * counts).astype(float))

    def _kinks(self, response: Float[np.ndarray, "n dy"], steps: Float[np.ndarray, "n dy"]) -> tuple[Kink, ...]:
        """The kinks that the samples show, on the reference interval: of what each alone asks for."""
        weight, N = self.fits.shares * len(response), len(self.table)
        noise = np.sqrt(weight @ steps**2 / max(self.groups - N, 1))
        return find_noisy_kinks(self.fits.u[:, 0], response / noise, weight, N) if np.all(noise > 0) else ()


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
