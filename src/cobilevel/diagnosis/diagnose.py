"""``diagnose``: what stands between a basis, the data and a good policy, and what to do about it.

Everything is measured before anything is solved: how well the observed contexts distinguish the functions, how the
reduced lower level is curved, and how fast the coefficients of the policy fall, at one ``x``.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..basis import Basis, check_basis
from ..checks import entered
from ..covariates import Responses, structure_of
from ..inference import natural_step
from ..lower import lower_minimiser, with_barrier
from ..problem import LOOK_ROWS, Data, Finite, Look, Problem, Study, decision_like, precision_for
from ..programs import put
from ..reduction import Reduced, batch_of, reduce_study
from .advice import Seen, advise
from .conditions import conditions_of
from .curvature import curvature_range
from .diagnosis import Diagnosis
from .expansion import expand

_Y_NUMBERS, _LEAST_ROWS = 1_500_000, 1024  # in y at all samples looked at together, and samples all the same
_CONTEXTS_EACH = 4  # for each function, looked at where each context meets all the data
_LEAST_CONTEXTS = 200  # that are looked at then in any case
_FEATURE_NUMBERS = 4_000_000  # features evaluated in search of their supremum
_GRID_POINTS = 20_000  # the most of a grid among them
_NEARBY = 0.5  # of the distance over which f changes by its spread: how far points near x0 lie
_MOST_COORDINATES = 200  # of x, beyond which only x0 is looked at


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


@dataclass(frozen=True)
class _Looked:
    """What was found at one ``x``, and what advice on it rests on."""

    found: Diagnosis
    seen: Seen
    responses: Responses | None

    def advised(self) -> Diagnosis:
        """With its structure in many dimensions, which takes a second or two, and advice."""
        structure = None if self.responses is None else structure_of(self.responses, self.seen.supported)
        found = replace(self.found, structure=structure)
        return replace(found, advice=advise(found, self.seen))


def _diagnosis(study: Study, basis: Basis, x: PyTree | None) -> Diagnosis:
    """What is measured, in the precision of the study."""
    endless = study.lower.endless
    study = study.finite(jax.random.key(0))
    study.check_conditional()
    point = None if x is None else decision_like(x, study.problem.x0, "x", study.dtype)
    reduced = _reduce(study, basis)
    if point is not None:
        return _diagnose_at(study, reduced, basis, point, endless).advised()
    looked = [_diagnose_at(study, reduced, basis, point, endless) for point in _points(study, reduced)]
    asked = [0 if one.found.decay is None else one.found.decay.length for one in looked]
    most = int(np.argmax(asked))
    if asked[most] <= asked[0]:
        return looked[0].advised()
    found = looked[most].advised()
    return replace(found, source=f"{found.source}, near x0")


def _points(study: Study, reduced: Reduced) -> list[PyTree]:
    """``x0``, and points from which ``f`` differs by a part of its spread."""
    flat, unravel = ravel_pytree(study.problem.x0)
    if isinstance(study.problem.domain, Finite) or study.problem.sizes[0] > _MOST_COORDINATES:
        return [study.problem.x0]
    step, rng = _NEARBY * natural_step(reduced.whitened(), flat), np.random.default_rng(0)
    moves = [step * rng.choice([-1.0, 1.0], len(flat)) * rng.uniform(0.5, 1.5, len(flat)) for _ in range(2)]
    nearby = [unravel(put((np.asarray(flat) + move).astype(flat.dtype))) for move in moves]
    return [study.problem.x0, *(study.problem.bounds.project(point) for point in nearby)]


def _diagnose_at(study: Study, reduced: Reduced, basis: Basis, x: PyTree, endless: bool) -> _Looked:
    functions, rank = reduced.basis.size, reduced.rank or 0
    contexts, xi = study.lower.contexts(), study.lower.draw_contexts(jax.random.key(0), LOOK_ROWS)
    distinct, u = contexts.distinct(), np.asarray(study.problem.domain.reference(xi), dtype=float)
    per_function = ((study.lower.count or 0) if study.noisy else distinct) / functions
    spectrum = np.asarray(reduced.whitening.singular_values, dtype=float)  # pyright: ignore[reportOptionalMemberAccess]
    spectrum = np.pad(spectrum, (0, functions - len(spectrum)))

    look = _close_look(study, functions)
    batch = batch_of(reduced.basis, look.samples)
    W = _fitted(reduced.with_pools(batch, batch), x, study.eps)
    mu, L = curvature_range(reduced.ordinary(), x, W, batch)
    policy = expand(study, x, look)
    found = Diagnosis(
        basis=basis,
        M_Phi=max(1.0, _supremum(reduced, xi)),
        m_Phi=min(1.0, float(spectrum[-1]) ** 2),
        rank=rank,
        functions=functions,
        distinct=distinct,
        per_function=float("inf") if endless else per_function,
        mu=mu,
        L=L,
        decay=policy.decay,
        source=policy.source,
        spread=policy.spread,
        misfit=policy.misfit(reduced, W, (float(u.min()), float(u.max()))),
        conditions=conditions_of(study.problem.domain, u, policy.decay),
    )
    seen = Seen(study.problem.domain, u, spectrum, study.noisy, contexts.supported(study.noisy))
    return _Looked(found, seen, policy.responses)


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


def _close_look(study: Study, functions: int) -> Look:
    """Samples of the lower level few enough to look at closely, fewer where ``y`` is large."""
    rows = min(LOOK_ROWS, max(_LEAST_ROWS, _Y_NUMBERS // study.problem.sizes[1]))
    return study.lower.look(jax.random.key(1), rows, max(_LEAST_CONTEXTS, _CONTEXTS_EACH * functions))


def _fitted(reduced: Reduced, x: PyTree, eps: float) -> PyTree[Array]:
    """The coefficients that minimise the reduced lower level at ``x``."""
    white = reduced.whitened()
    return white.restore(lower_minimiser(white.ordinary(), x, white.W0, eps**0.75))


def _supremum(reduced: Reduced, xi: Array) -> float:
    """The largest norm of the features seen: on a grid with its corners, and at observed contexts."""
    domain, most = reduced.problem.domain, max(64, _FEATURE_NUMBERS // reduced.basis.size)
    if isinstance(domain, Finite):
        places = [jnp.asarray(domain.values)]
    else:
        d = domain.dimension
        each = max(2, int(min(most, _GRID_POINTS) ** (1 / d)))
        if each**d <= most:
            u = np.stack(np.meshgrid(*[np.linspace(-1, 1, each)] * d, indexing="ij"), axis=-1)
        else:  # many dimensions: corners and points in between, at random
            u = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (most, d), p=[0.45, 0.1, 0.45])
        grid = domain.place(put(u.reshape(-1, d).astype(reduced.dtype)))
        places = [grid, domain.snap(xi[:most], reduced.dtype)]
    return max(float(np.linalg.norm(np.asarray(reduced.basis(place)), axis=-1).max()) for place in places)
