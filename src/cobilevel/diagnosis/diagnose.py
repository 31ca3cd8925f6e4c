"""``diagnose``: what stands between a basis, the data and a good policy, and what to do about it.

Everything is measured before anything is solved: how well the observed contexts tell the functions apart, how the
reduced lower level is curved, and how fast the coefficients of the policy fall, at one ``x``.
"""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis.base import Basis
from ..problem.data import Data, Levels, Product, Samples, Stream, levels
from ..problem.distributions import Distribution
from ..problem.domain import Domain, Finite
from ..problem.problem import Problem
from ..problem.study import check, lower_depends_on_noise, working_dtype
from ..reduction.batches import Table
from ..reduction.reduced import Reduced, build
from .advice import _advise, _covered_share
from .decay import Decay
from .diagnosis import Condition, Diagnosis
from .policy_expansion import ROWS, batch_of, curvatures, expand, fitted, look_at, restore

_SUP_NUMBERS = 4_000_000  # features evaluated in search of their supremum


_CELLS, _CELL = 20, 25  # cells that the density of contexts is looked at in, and how many contexts each should hold


def diagnose(problem: Problem, basis: Basis, samples: Data, x: PyTree | None = None) -> Diagnosis:
    """What stands between a basis, the data and a good policy: numbers, and advice in words and as objects.

    **Arguments:**

    - `problem`, `samples`: as for ``cb.solve``; `basis`: the one in question.
    - `x`: where to look, ``problem.x0`` by default. Policies at other ``x`` may be smoother or rougher.
    """
    check(problem, samples)
    dtype = working_dtype(problem, samples)
    problem = problem.astype(dtype)
    x = _point(problem, x)
    upper, lower = levels(samples)
    endless = isinstance(lower, Stream)
    if endless:
        lower = lower.draw(jax.random.key(0), ROWS)
        samples = Levels(lower if upper is levels(samples)[1] else upper, lower)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few contexts: the advice says so
        reduced = build(problem, basis, samples)
    xi = _contexts(lower)
    u = np.asarray(problem.domain.reference(xi), dtype=float)
    noisy = lower_depends_on_noise(problem, lower) and not isinstance(lower, Product)
    functions = reduced.basis.size
    observed = np.asarray(lower.context_rule().xi if isinstance(lower, Product) else lower.xi)
    distinct = len(np.unique(observed, axis=0))
    per_function = (len(lower) if noisy and isinstance(lower, Samples) else distinct) / functions

    spectrum = np.asarray(reduced.whitening.singular_values, dtype=float)  # pyright: ignore[reportOptionalMemberAccess]
    spectrum = np.pad(spectrum, (0, functions - len(spectrum)))
    look = look_at(lower, functions, sum(leaf.size for leaf in jax.tree.leaves(problem.y0)))
    white = replace(reduced, lower_source=Table(batch_of(reduced, look.samples))).whitened()
    W = restore(white, fitted(white, x))
    mu, L = curvatures(reduced, x, W, look.samples)
    policy = expand(problem, x, look)
    diagnosis = Diagnosis(
        basis=basis,
        M_Phi=max(1.0, _supremum(reduced, xi)),
        m_Phi=min(1.0, float(spectrum[-1]) ** 2),
        rank=reduced.whitening.rank,  # pyright: ignore[reportOptionalMemberAccess]
        functions=functions,
        distinct=distinct,
        per_function=float("inf") if endless else per_function,
        mu=mu,
        L=L,
        decay=policy.decay,
        source=policy.source,
        spread=policy.spread,
        misfit=policy.misfit(reduced, W, (float(u.min()), float(u.max()))),
        conditions=_conditions(problem.domain, u, policy.decay),
    )
    return replace(diagnosis, advice=_advise(diagnosis, problem.domain, u, spectrum, noisy))


def _point(problem: Problem, x: PyTree | None) -> PyTree:
    if x is None:
        return problem.x0
    if jax.tree.map(jnp.shape, x) != jax.tree.map(jnp.shape, problem.x0):
        raise ValueError(
            f"x must have the shapes of x0, {jax.tree.map(jnp.shape, problem.x0)}, got {jax.tree.map(jnp.shape, x)}."
        )
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), x, problem.x0)


def _contexts(lower: Samples | Product) -> Array:
    """Contexts as they are drawn, for the shape of their law."""
    if isinstance(lower, Product) and isinstance(lower.contexts, Distribution):
        return lower.contexts.sample(jax.random.key(0), ROWS)
    return lower.context_rule().xi if isinstance(lower, Product) else lower.xi


def _supremum(reduced: Reduced, xi: Array) -> float:
    """The largest norm of the features seen: on a grid with its corners, and at observed contexts."""
    domain, most = reduced.problem.domain, max(64, _SUP_NUMBERS // reduced.basis.size)
    if isinstance(domain, Finite):
        places = [jnp.asarray(domain.values)]
    else:
        each = max(2, int(min(most, 20_000) ** (1 / domain.dimension)))
        if each**domain.dimension <= most:
            u = np.stack(np.meshgrid(*[np.linspace(-1, 1, each)] * domain.dimension, indexing="ij"), axis=-1)
        else:  # many dimensions: corners and points in between, at random
            u = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (most, domain.dimension), p=[0.45, 0.1, 0.45])
        dtype = reduced.basis.constant.dtype
        places = [domain.place(jnp.asarray(u.reshape(-1, domain.dimension), dtype)), domain.snap(xi[:most], dtype)]
    return max(float(jnp.max(jnp.linalg.norm(reduced.basis(place), axis=-1))) for place in places)


def _conditions(domain: Domain, u: Float[np.ndarray, "n d"], decay: Decay | None) -> dict[str, Condition]:
    """The conditions of the convergence theorem for Chebyshev bases, as far as contexts and coefficients show them."""
    if isinstance(domain, Finite):
        return {"density": Condition(True, "contexts are finite.")}
    count = len(u)
    cells = int(np.clip(count // _CELL, 1, _CELLS))
    held = np.stack([np.histogram(column, cells, (-1, 1))[0] for column in u.T])
    thin, even = int(held.min()), count / cells
    dense = None if cells < 4 else bool(thin + 3 * np.sqrt(thin + 1) >= even / 2)
    words = (
        "too few contexts." if cells < 4 else f"the emptiest of {cells} cells holds {thin / even:.0%} of an even share."
    )
    covered = _covered_share(u)
    full = None if count < 20 else bool(np.all(1 - covered <= max(0.1, 10 / count)))
    kinds = {"geometric": True, "finite": True, "algebraic": False}
    analytic = {True: "nothing speaks against it.", False: "the policy has a kink.", None: "too little to go by."}
    smooth = None if decay is None else kinds.get(decay.kind)
    if decay is not None and decay.kinks:
        analytic[False] = (
            f"the policy has a kink near {', '.join(f'xi = {kink.location:.3g}' for kink in decay.kinks)}."
        )
    return {
        "density": Condition(dense, words),
        "coverage": Condition(full, f"contexts fill {', '.join(f'{share:.0%}' for share in covered)} of the domain."),
        "analytic": Condition(smooth, analytic[smooth]),
    }
