"""The policy at one ``x`` expanded in polynomials of the context: from exact values, or from a fit to samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import combine
from ..covariates import FEWEST_DIMENSIONS, Responses
from ..lower import exact_lower, law_is_known
from ..problem import Box, Finite, Interval, Look, Study
from ..programs import put
from ..reduction import Reduced
from .decay import FEW, GRIDS, Decay, from_coefficients, from_values
from .kinks import Kink, find_kinks, find_noisy_kinks
from .polynomial_fit import PolynomialFit, fit_polynomials

_MULTIPLICATIONS = 2e10  # that exact solves at all points of a grid may take, about: some seconds
_SOLVE_STEPS, _HESSIAN_Y = 100, 64  # evaluations of an exact solve, about, and the largest y whose Hessian it forms
_FEWEST_RESPONSES = 200  # from which on the structure of a policy of many coordinates is looked at
_DRAWS = 1024  # of noise at each context, where there is a sampler


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

    def misfit(self, reduced: Reduced, W: PyTree, ends: tuple[float, float]) -> float | None:
        """The relative root mean square error of the policy ``W Phi`` between two (reference) ends."""
        if self.u is None or self.values is None or not self.decay:
            return None
        inside = (self.u >= ends[0]) & (self.u <= ends[1])
        u, values = self.u[inside], self.values[inside]
        place = reduced.problem.domain.place(jnp.asarray(u[:, None], reduced.dtype))
        gap = values - policy_rows(combine(reduced.basis(place), W))
        weight = np.sqrt(np.maximum(1 - u**2, 0))  # Chebyshev points crowd at the ends
        size = weight @ np.sum(values**2, axis=1)
        return float(np.sqrt(weight @ np.sum(gap**2, axis=1) / size)) if size > 0 else None


def policy_rows(y: PyTree) -> Float[np.ndarray, "n d"]:
    """Policies at many contexts as rows, in double precision."""
    leaves = [np.asarray(leaf, dtype=float) for leaf in jax.tree.leaves(y)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def expand(study: Study, x: PyTree, look: Look) -> Expansion:
    """The policy at ``x`` by degree.

    From exact lower-level solutions at Chebyshev points where they can be had: on an ``Interval``, without noise in
    ``g``, with ``Product`` data or with a conditional sampler. From a fit to the samples elsewhere.
    """
    domain = study.problem.domain
    if isinstance(domain, Finite):
        return Expansion(None, "contexts are finite: there is no degree to go by")
    if not isinstance(domain, Interval | Box):
        return Expansion(None, "how a policy falls off by degree is known on an interval or a box alone")
    exact = None
    if isinstance(domain, Interval) and law_is_known(study):
        exact = _from_exact(study.on(look.level), x)
    return _from_fit(study, x, look) if exact is None else exact


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
    shared = _SharedDraws(draw, jax.random.key(2))  # pyright: ignore[reportArgumentType]
    problem = eqx.tree_at(lambda p: p.conditional, problem, shared, is_leaf=lambda v: v is draw)
    words = f"lower-level solutions over {_DRAWS} draws of noise, the same at each context"
    return replace(study, problem=problem), _DRAWS, words


def _from_exact(study: Study, x: PyTree) -> Expansion | None:
    """By exact solutions at Chebyshev points; ``None`` where these could not be found."""
    study, rows, source = _conditional_law(study)
    domain, size, eps = study.problem.domain, study.problem.sizes[1], study.eps
    work = _SOLVE_STEPS * rows * size * min(size, _HESSIAN_Y)
    grids = tuple(n for n in GRIDS if n * work <= _MULTIPLICATIONS) or FEW
    many, failed = grids[0], []

    def evaluate(u: np.ndarray) -> np.ndarray:
        """In pieces of one size, so that one compiled program serves all."""
        parts = []
        for begin in range(0, len(u), many):
            piece = np.resize(u[begin : begin + many], many)
            xi = domain.place(put(piece[:, None].astype(study.dtype)))
            found = exact_lower(study, x, xi, draws=rows, tolerance=4 * eps)
            failed.append(not np.all(np.asarray(found.gradient) <= eps**0.25))
            parts.append(policy_rows(found.y)[: len(u) - begin])
        return np.concatenate(parts)

    decay, u, values = from_values(evaluate, eps, grids)
    if any(failed) or not np.isfinite(values).all():
        return None
    if decay.kind == "algebraic":
        decay = replace(decay, kinks=_placed(find_kinks(u, values), study))
    return Expansion(decay, source, u=u, values=values)


def _placed(kinks: tuple[Kink, ...], study: Study) -> tuple[Kink, ...]:
    """Kinks found on the reference interval, in the units of the context."""
    domain = study.problem.domain
    if domain.shape:  # a box of one dimension
        return kinks
    place = lambda u: float(domain.place(jnp.array([u], study.dtype)))
    return tuple(replace(kink, location=place(kink.location)) for kink in kinks)


def _from_fit(study: Study, x: PyTree, look: Look) -> Expansion:
    """By a fit of polynomials to the samples: coefficients by degree, kinks, and what varies with which coordinate."""
    fit = fit_polynomials(study, x, look)
    d, size = fit.table.shape[1], fit.coefficients.shape[1]
    contexts = "contexts" if look.together > 1 else "samples"
    source = f"a fit of {len(fit.table)} functions to {fit.groups} {contexts}"
    degree = fit.table.sum(axis=1)
    count = int(degree.max()) + 1
    by_degree = lambda part: np.sqrt([np.sum(part[degree == k] ** 2) * (2 if k else 1) for k in range(count)])
    kinks = _kinks_in(fit, count) if d == 1 and look.together == 1 else ()
    numbers = (size * np.bincount(degree)).astype(float)
    decay = from_coefficients(by_degree(fit.coefficients), by_degree(fit.errors()), fit.rms, kinks, d, numbers)
    if d == 1:
        return Expansion(replace(decay, kinks=_placed(kinks, fit.study)), source)
    low = degree < decay.length  # the rest is noise; Chebyshev coefficients of these distinguish coordinates
    raw, moves = fit.in_chebyshev(low)
    spread = tuple(_share(raw, moves, fit.table[low, j] > 0, fit.rms) for j in range(d))
    many = isinstance(study.problem.domain, Box) and d >= FEWEST_DIMENSIONS and look.together == 1
    responses = fit.responses() if many and len(fit.u) >= _FEWEST_RESPONSES else None
    return Expansion(decay, source, spread, responses=responses)


def _kinks_in(fit: PolynomialFit, degrees: int) -> tuple[Kink, ...]:
    """The kinks that the samples show, on the reference interval: of the response a Newton step asks for at each."""
    response, weight = fit.response(), fit.weight
    noise = np.sqrt(weight @ (response - fit.values) ** 2 / max(fit.groups - degrees, 1))
    return find_noisy_kinks(fit.u[:, 0], response / noise, weight, degrees) if np.all(noise > 0) else ()


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
