"""``diagnose``: whether a basis and the data can give a good policy, and what to change.

Everything is measured before anything is solved: how well the observed contexts distinguish the functions, the
curvature of the reduced lower level, and how fast the coefficients of the policy decay, at one ``x``.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import Basis, FeatureMap, OneHot, Tensor, TotalDegree, check_basis
from ..covariates import (
    FEWEST_DIMENSIONS,
    MOST_COEFFICIENTS,
    MOST_FUNCTIONS,
    Fits,
    Responses,
    decisions_near,
    structure_of,
)
from ..derivatives import Expansions, flattened
from ..ground import as_key, as_rows, entered, put
from ..inference import MOST_COORDINATES, MOST_NUMBERS, natural_step, scores
from ..iteration import lanczos
from ..lower import cholesky, exact_lower, law_is_known, lower_minimum, lower_size, with_barrier
from ..problem import CONTEXTS_EACH, LOOK_ROWS, Box, Data, Domain, Finite, Interval, Look, Problem, decision_like
from ..reduction import Bilevel, Reduced, batch_of, reduce_study
from ..study import Study, precision_for
from .decay import GRIDS, Decay, Kink, find_kinks, find_noisy_kinks, from_coefficients, from_values
from .diagnosis import Diagnosis, Seen, advise, conditions_of

_DRAWS = 1024  # rows of noise at each context where there is a sampler; samples looked at however large y is
_FEWEST_CONTEXTS = 200  # looked at, however many functions there are; responses that show the structure of a policy
_NUMBERS = MOST_NUMBERS / 100  # of y at all samples looked at together; of features in search of their supremum


def diagnose(
    problem: Problem, basis: Basis, samples: Data, x: PyTree | None = None, precision: str | None = None
) -> Diagnosis:
    """Checks whether a basis and the data can give a good policy: numbers, and advice in words and as objects.

    **Arguments:**

    - `problem`, `samples`: as for ``cb.solve``; `basis`: the basis to check. A basis that learns its functions from the
      problem must have learned them: pass ``solution.basis.basis`` of a solve.
    - `x`: the decision to look at. By default ``problem.x0`` and a few points nearby; the one whose policy takes the
      most functions is reported, since at ``x0`` itself the policy may happen not to vary.
    - `precision`: ``"single"`` or ``"double"``; by default double, whatever JAX's setting.

    **Returns:** a ``Diagnosis``.

    **Raises:** ``ValueError`` if arguments do not fit each other; the message says what to change.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> diagnosis = cb.diagnose(case.problem, cb.Chebyshev(4), case.train)
    >>> print(str(diagnosis).splitlines()[0])
    Diagnosis of Chebyshev(4)
    """
    entered("diagnose", problem, samples, basis, x)
    wanted = precision_for(problem, samples, precision)
    with wanted.context():
        return _diagnosis(with_barrier(Study.of(problem, samples, wanted)), basis, x)


def _diagnosis(study: Study, basis: Basis, x: PyTree | None) -> Diagnosis:
    """What is measured, in the precision of the study."""
    endless = study.lower.endless
    study = study.finite(as_key(0))
    study.check_conditional()
    point = None if x is None else decision_like(x, study.problem.x0, "x", study.dtype)
    reduced = _reduce(study, basis)
    # few enough samples to look at closely, fewer where y is large
    rows = min(LOOK_ROWS, max(_DRAWS, int(_NUMBERS // study.problem.sizes[1])))
    look = study.lower.look(as_key(1), rows, max(_FEWEST_CONTEXTS, 2 * CONTEXTS_EACH * reduced.basis.size))
    policies = Policies(study, look)
    points = [flattened(study.problem.x0 if point is None else point)]
    found = [policies.at(points[0])]
    decay = found[0].decay
    unbounded = decay is not None and found[0].u is not None and decay.kind == "algebraic" and not decay.resolved
    if point is None and decay is not None and not unbounded and len(points[0]) <= MOST_COORDINATES:
        bounds, unit = study.problem.bounds, natural_step(reduced.whitened(), points[0])
        ends = flattened(bounds.lo), flattened(bounds.hi)
        nearby = decisions_near(points[0], unit, ends, np.random.default_rng(0))
        points += [np.clip(near.astype(study.dtype).astype(float), *ends) for near in nearby]
        found += map(policies.at, points[1:])
    most = int(np.argmax([0 if one.decay is None else one.decay.length for one in found]))
    answer = _diagnose_at(study, reduced, basis, look, found[most], points[most], endless)
    return replace(answer, source=f"{answer.source}, near x0") if most else answer


def _diagnose_at(
    study: Study, reduced: Reduced, basis: Basis, look: Look, policy: "Expansion", x: np.ndarray, endless: bool
) -> Diagnosis:
    """What is found at ``x``, where the policy is known by degree, and advice."""
    domain, functions = study.problem.domain, reduced.basis.size
    contexts, xi = study.lower.contexts(), study.lower.draw_contexts(as_key(0), LOOK_ROWS)
    distinct, u = contexts.distinct(), np.asarray(domain.reference(xi), dtype=float)
    per_function = ((study.lower.count or 0) if study.noisy else distinct) / functions
    spectrum = np.asarray(reduced.whitening.singular_values, dtype=float)  # pyright: ignore[reportOptionalMemberAccess]
    spectrum = np.pad(spectrum, (0, functions - len(spectrum)))
    seen = Seen(domain, u, spectrum, study.noisy, contexts.supported(study.noisy))

    batch = batch_of(reduced.basis, look.samples)
    close = reduced.with_pools(batch, batch)
    W = _fitted(close, x)
    mu, L = _curvature_range(close.ordinary(), x, W)
    found = Diagnosis(
        basis=basis,
        M_Phi=max(1.0, _supremum(reduced.basis, xi)),
        m_Phi=min(1.0, float(spectrum[-1]) ** 2),
        rank=reduced.rank or 0,
        functions=functions,
        distinct=distinct,
        per_function=float("inf") if endless else per_function,
        mu=mu,
        L=L,
        decay=policy.decay,
        source=policy.source,
        spread=policy.spread,
        misfit=_misfit(policy, reduced.basis, W, float(u.min()), float(u.max())),
        conditions=conditions_of(domain, u, policy.decay),
        structure=None if policy.responses is None else structure_of(policy.responses, seen.supported),
    )
    return replace(found, advice=advise(found, seen))


def _reduce(study: Study, basis: Any) -> Reduced:
    """The reduced problem; raises where the basis has yet to learn its functions."""
    check_basis(basis)
    if not basis.learned:
        raise ValueError(
            f"diagnose: {basis!r} has not learned its functions yet. Solve with it first, and pass what it learned: "
            "diagnose(problem, solution.basis.basis, samples)."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few contexts: the advice says so
        return reduce_study(study, basis)


def _fitted(reduced: Reduced, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, "N dy"]:
    """The coefficients that minimise the reduced lower level at ``x``."""
    white = reduced.whitened()
    level = Expansions(white.ordinary())
    start, accuracy = level.table(white.W0), level.eps**0.5
    W = lower_minimum(level, x, start, accuracy * lower_size(level, x, start), accuracy)
    W = W if np.isfinite(W).all() else start  # no minimum: it ran away
    return level.table(white.restore(put(level.coefficients(W))))


def _curvature_range(reduced: Bilevel, x: np.ndarray, W: np.ndarray) -> tuple[float, float]:
    r"""The extreme eigenvalues of the Hessian of the reduced lower level: with features $\Phi = Q R$ it is $R^T H_Q R$,
    $H_Q = C^T C$ is as well conditioned as ``g``, and singular values of $C R$ are seen far below rounding."""
    level = Expansions(reduced)
    if not level.formed:
        product = lambda v: level.hessian_product(x, W, v.reshape(W.shape)).ravel()
        values = lanczos(product, np.random.default_rng(0).standard_normal(W.size), MOST_FUNCTIONS)
        return float(values[0]), float(values[-1])
    if isinstance(reduced.lower_pool.features, OneHot):  # a block for each function
        values = np.linalg.eigvalsh(level.lower(x, W).hessian[~level.idle])
        return float(min(values.min(), 0.0 if level.idle.any() else np.inf)), float(values.max())
    batch = reduced.lower_pool
    root = np.sqrt(np.asarray(batch.weight, float) / len(batch))[:, None]
    q, r = np.linalg.qr(np.asarray(batch.features, float) * root)
    turned = level.with_features(np.divide(q, root, out=np.zeros_like(q), where=root > 0))
    hessian, spread = turned.lower(x, r @ W).hessian, np.kron(r, np.eye(W.shape[1]))
    values, vectors = np.linalg.eigh(hessian)
    if values[0] <= 0:
        values = np.linalg.eigvalsh(spread.T @ hessian @ spread)
        return float(values[0]), float(values[-1])
    singular = np.linalg.svd(np.sqrt(values)[:, None] * (vectors.T @ spread), compute_uv=False)
    return float(singular[-1]) ** 2 if len(singular) == W.size else 0.0, float(singular[0]) ** 2


def _supremum(basis: FeatureMap, xi: Any) -> float:
    """The largest norm of the features seen: on a grid with its corners, and at observed contexts."""
    domain, dtype = basis.domain, basis.constant.dtype
    if basis.one_hot:
        return 1.0
    places = [domain.values] if isinstance(domain, Finite) else []
    if not places:
        d, most = domain.dimension, max(64, int(_NUMBERS // basis.size))
        each = max(2, int(min(most, 2 * LOOK_ROWS) ** (1 / d)))
        if each**d <= most:
            u = np.stack(np.meshgrid(*[np.linspace(-1, 1, each)] * d, indexing="ij"), axis=-1)
        else:  # many dimensions: corners and points in between, at random
            u = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (most, d), p=[0.45, 0.1, 0.45])
        places = [domain.place(u.reshape(-1, d).astype(dtype)), domain.snap(np.asarray(xi)[:most], dtype)]
    return max(float(np.linalg.norm(np.asarray(basis.at(place)), axis=-1).max()) for place in places)


def _misfit(policy: "Expansion", basis: FeatureMap, W: np.ndarray, low: float, high: float) -> float | None:
    """The relative root mean square error of ``W Phi`` between two (reference) ends, where exact policies are known."""
    if policy.u is None or policy.values is None:
        return None
    u, place = policy.u, basis.domain.place(policy.u[:, None].astype(basis.constant.dtype))
    gap = policy.values - np.asarray(basis.at(place), dtype=float) @ W
    weight = np.where((u >= low) & (u <= high), np.sqrt(np.maximum(1 - u**2, 0)), 0.0)  # points crowd at the ends
    size = weight @ np.sum(policy.values**2, axis=1)
    return float(np.sqrt(weight @ np.sum(gap**2, axis=1) / size)) if size > 0 else None


# -- the policy by degree, from exact values or from a fit to samples


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
        draw, rows = problem.conditional, _DRAWS
        shared = _SharedDraws(draw, as_key(2))
        problem = eqx.tree_at(lambda p: p.conditional, problem, shared, is_leaf=lambda v: v is draw)
        study = replace(study, problem=problem)
        source = f"lower-level solutions over {rows} draws of noise, the same at each context"

    @np.errstate(over="ignore", invalid="ignore")  # where there is no minimum, the search runs away
    def evaluate(u: np.ndarray) -> np.ndarray:
        found = exact_lower(study, x, domain.place(u[:, None].astype(study.dtype)), draws=rows, tolerance=4 * eps)
        y = as_rows(found.y)
        failed.append(not np.all(found.gradient <= eps**0.25) or not np.isfinite(y).all())
        return np.zeros_like(y) if failed[-1] else y

    dy = problem.sizes[1]
    work = rows * dy * min(dy, MOST_FUNCTIONS)  # multiplications at a point, about, of which a solve takes a hundred
    decay, u, values = from_values(evaluate, eps, [n for n in GRIDS[1:] if n * work <= MOST_NUMBERS] or GRIDS[:1])
    if any(failed):
        return None
    kinks = find_kinks(u, values) if decay.kind == "algebraic" else ()
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
            return Expansion(None, "contexts are finite: there are no degrees")
        if not isinstance(domain, Interval | Box):
            return Expansion(None, "the decay of a policy by degree is known only on an interval or a box")
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
        n = next(n for n in range(1, most + 2) if n > most or index.count(n + 1, d) > most)
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
        W = lower_minimum(level, x, fits.constant(N), fits.target(x, N), level.eps**0.5)
        values, hessian = fits.table @ W, level.lower(x, W).hessian
        if not np.isfinite(W).all() or not cholesky(hessian[None])[1].all():
            return Expansion(None, "the lower level is not convex in y here, so there is no policy to examine")
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
        many = d >= FEWEST_DIMENSIONS and alone and count >= _FEWEST_CONTEXTS
        responses = Responses.of(fits.u, response, curvature, fits.shares) if many else None
        return Expansion(decay, source, spread, responses=responses)

    def _moves(self, hessian: np.ndarray, slopes: Float[np.ndarray, "n dy"]) -> Float[np.ndarray, "groups N dy"]:
        r"""How each group of samples moves the coefficients, scaled so that squares add up to their variance: by the
        sandwich formula $H^{-1} \mathrm{cov}(\partial_2 g\, \Phi) H^{-1} / n$."""
        fits, (n, dy), N = self.fits, slopes.shape, len(self.table)
        by_row = scores(fits.table, (n * fits.shares)[:, None] * slopes)
        by_group = by_row.reshape(self.groups, -1, N * dy).mean(axis=1)
        moves = np.linalg.lstsq(hessian, by_group.T, rcond=None)[0].T / np.sqrt(self.groups * max(self.groups - N, 1))
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


def _share(raw: np.ndarray, moves: np.ndarray, along: np.ndarray, rms: float) -> tuple[float, float]:
    """How much the functions picked contribute, and an error such that the ratio is that of signal to noise."""
    part, sway = raw[along].ravel(), moves[:, along].reshape(len(moves), -1)
    if not len(part) or not rms > 0:
        return 0.0, 0.0
    ratio = np.sqrt(part @ np.linalg.lstsq(sway.T @ sway, part, rcond=None)[0] / len(part))
    size = float(np.sqrt(part @ part / 2)) / rms
    return size, size / max(float(ratio), np.finfo(float).tiny)
