"""``diagnose``: what stands between a basis, the data and a good policy, and what to do about it.

Everything is measured before anything is solved: how well the observed contexts distinguish the functions, how the
reduced lower level is curved, and how fast the coefficients of the policy fall, at one ``x``.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from ..basis import Basis, FeatureMap, OneHot, check_basis
from ..checks import entered
from ..covariates import MOST_FUNCTIONS, decisions_near, structure_of
from ..derivatives import Expansions, flattened
from ..inference import MOST_COORDINATES, MOST_NUMBERS, natural_step
from ..iteration import lanczos
from ..keys import as_key
from ..lower import lower_size, solve_lower, with_barrier
from ..problem import CONTEXTS_EACH, LOOK_ROWS, Data, Finite, Look, Problem, decision_like
from ..programs import put
from ..reduction import Bilevel, Reduced, batch_of, reduce_study
from ..study import Study, precision_for
from .advice import Seen, advise, conditions_of
from .diagnosis import Diagnosis
from .policies import DRAWS, FEWEST_CONTEXTS, Expansion, Policies

_NUMBERS = MOST_NUMBERS / 100  # of y at all samples looked at together; of features in search of their supremum


def diagnose(
    problem: Problem, basis: Basis, samples: Data, x: PyTree | None = None, precision: str | None = None
) -> Diagnosis:
    """What stands between a basis, the data and a good policy: numbers, and advice in words and as objects.

    **Arguments:**

    - `problem`, `samples`: as for ``cb.solve``; `basis`: the one in question. One that learns its functions from the
      problem must have learned them: pass ``solution.basis.basis`` of a solve.
    - `x`: where to look. By default ``problem.x0`` and a few points nearby, and the one is reported whose policy takes
      the most functions: at ``x0`` itself it may happen not to vary.
    - `precision`: ``"single"`` or ``"double"``; double when left out, whatever JAX is switched to.
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
    rows = min(LOOK_ROWS, max(DRAWS, int(_NUMBERS // study.problem.sizes[1])))
    look = study.lower.look(as_key(1), rows, max(FEWEST_CONTEXTS, 2 * CONTEXTS_EACH * reduced.basis.size))
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
    study: Study, reduced: Reduced, basis: Basis, look: Look, policy: Expansion, x: np.ndarray, endless: bool
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
    W = solve_lower(level, x, start, accuracy * lower_size(level, x, start), accuracy).point.reshape(start.shape)
    return level.table(white.restore(put(level.coefficients(W))))


def _curvature_range(
    reduced: Bilevel, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]
) -> tuple[float, float]:
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
    return max(float(np.linalg.norm(np.asarray(basis(place)), axis=-1).max()) for place in places)


def _misfit(
    policy: Expansion, basis: FeatureMap, W: Float[np.ndarray, "N dy"], low: float, high: float
) -> float | None:
    """The relative root mean square error of ``W Phi`` between two (reference) ends, where exact policies are known."""
    if policy.u is None or policy.values is None:
        return None
    u, place = policy.u, basis.domain.place(policy.u[:, None].astype(basis.constant.dtype))
    gap = policy.values - np.asarray(basis(place), dtype=float) @ W
    weight = np.where((u >= low) & (u <= high), np.sqrt(np.maximum(1 - u**2, 0)), 0.0)  # points crowd at the ends
    size = weight @ np.sum(policy.values**2, axis=1)
    return float(np.sqrt(weight @ np.sum(gap**2, axis=1) / size)) if size > 0 else None
