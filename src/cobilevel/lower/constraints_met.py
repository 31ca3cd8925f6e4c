"""How far a policy meets the inequalities on ``y``, at the samples and between them, and whether it could."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Shaped

from ..answer import Feasibility, Met, Solution
from ..basis import combine
from ..derivatives import local_model
from ..keys import generator
from ..problem import Constrained, Domain, Finite, Interval, Study
from ..programs import Held, program
from .damped_newton import Dense, minimise

_FRESH = 1000  # contexts between the observed ones
_MEASURED_ROWS = 20_000  # samples at which violations are measured, at most
_CONTRADICTION = 1e-6  # of the size of b: what no y can meet
_FULL_CHECK = 200  # contexts at which it is asked whether the constraints can be met at all


@program
def _slacks_along(constrained: Constrained, x: PyTree, u: PyTree, xi: Array, eta: PyTree) -> Float[Held, "n m"]:
    return jax.vmap(lambda one, context: constrained.slacks(x, one, context, eta))(u, xi)


@program
def _least_violation(
    constrained: Constrained, x: PyTree, u: PyTree, xi: Array, eta: PyTree, units: Array
) -> Float[Held, "n m"]:
    """The slacks, in units of ``y``, that are left at each context where the squares of the violations are least."""

    def one(start, context):
        flat, unravel = ravel_pytree(start)
        scaled = lambda z: constrained.slacks(x, unravel(z), context, eta) / units
        squares = lambda z: jnp.sum(jnp.minimum(scaled(z), 0) ** 2)
        return scaled(minimise(Dense(local_model(squares)), flat, 0.0, steps=50).point)

    return jax.vmap(one)(u, xi)


def _between(domain: Domain, xi: Shaped[Held, "n ..."]) -> Shaped[Held, "k ..."]:
    """Contexts between pairs of observed ones; of a finite domain, those observed."""
    rng = generator(jax.random.key(1))
    if isinstance(domain, Finite):
        return xi[rng.integers(len(xi), size=_FRESH)]
    u = np.asarray(domain.reference(xi))
    one, other = (u[rng.integers(len(u), size=_FRESH)] for _ in range(2))
    share = rng.uniform(size=one.shape)
    return domain.place(jnp.asarray(share * one + (1 - share) * other, u.dtype))


def feasibility_of(study: Study, solution: Solution) -> tuple[Feasibility | None, str]:
    """How far the constraints are met; and, in words, where they cannot be, empty where they can."""
    constrained = study.constrained
    if constrained is None:
        return None, ""
    eliminated = 0 if constrained.form.inverse is None else constrained.form.inverse.shape[1]
    smoothing = constrained.smoothing
    missed = _equalities_missed(study, constrained, solution)
    if smoothing is None or missed:
        return Feasibility(eliminated, 0.0, 0.0, 0.0, 0.0, 0.0), missed
    rows = study.lower.example(_MEASURED_ROWS) if study.endless else study.lower.contexts()
    seen = jnp.asarray(rows.xi[:_MEASURED_ROWS])
    eta = jax.tree.map(lambda a: jnp.asarray(a)[0], study.lower.example().eta)
    domain, units = study.problem.domain, np.asarray(smoothing.units)
    tables = []
    for xi in (seen, jnp.asarray(_between(domain, seen))):
        u = combine(solution.basis(xi), solution.W)
        tables.append(np.asarray(_slacks_along(constrained, solution.x, u, xi, eta), float))
    here = tables[0]
    short, short_fresh = (np.maximum(-table, 0) for table in tables)
    found = []
    for k, name in enumerate(constrained.names):
        active = here[:, k] / units[k] < float(smoothing.width)
        where = None
        if active.any() and isinstance(domain, Interval):
            some = np.asarray(seen, float)[active]
            where = (float(some.min()), float(some.max()))
        worst = np.asarray(seen)[int(np.argmax(short[:, k]))].tolist() if short[:, k].max() > 0 else None
        sizes = {
            f"{what}{when}": float(measure(part[:, k]))
            for when, part in (("", short), ("_fresh", short_fresh))
            for what, measure in (("largest", np.max), ("mean", np.mean))
        }
        found.append(Met(name=name, active=float(active.mean()), where=where, worst=worst, **sizes))
    scaled, scaled_fresh = short / units, short_fresh / units
    record = Feasibility(
        equalities=eliminated,
        largest=float(scaled.max()),
        mean=float(scaled.mean()),
        largest_fresh=float(scaled_fresh.max()),
        mean_fresh=float(scaled_fresh.mean()),
        price=smoothing.price,
        rows=tuple(found),
    )
    suspect = record.largest > float(smoothing.width) or not np.isfinite(record.largest)
    return record, _impossible_at(study, constrained, solution, seen, scaled, eta) if suspect else ""


def _equalities_missed(study: Study, constrained: Constrained, solution: Solution) -> str:
    """Where equalities contradict each other at the decision found, in words; at ``x0`` they do not."""
    form = constrained.form
    if form.right is None or form.matrix is None or not study.lower.count:
        return ""
    xi = jnp.asarray(study.lower.contexts().xi[:_FULL_CHECK])
    b = np.asarray(jax.vmap(lambda one: form.right(solution.x, one))(xi), float)  # pyright: ignore[reportOptionalCall]
    gap = np.abs(b - b @ (form.matrix @ np.asarray(form.inverse, float)).T).max(axis=1)
    bad = gap > _CONTRADICTION * (1e-300 + np.abs(b).max(axis=1))
    if not bad.any():
        return ""
    return f"(At xi = {np.asarray(xi)[int(np.argmax(bad))]} the equalities contradict each other, for this x.)"


def _impossible_at(
    study: Study, constrained: Constrained, solution: Solution, xi: Array, short: np.ndarray, eta: PyTree
) -> str:
    """Where no ``y`` meets the constraints, in words: of the contexts at which they are violated most."""
    smoothing: Any = constrained.smoothing
    worst = np.argsort(-short.max(axis=1))[:_FULL_CHECK]
    start = jax.tree.map(lambda y: jnp.broadcast_to(y, (len(worst), *y.shape)), study.problem.y0)
    units = jnp.asarray(smoothing.units, study.dtype)
    left = np.asarray(_least_violation(constrained, solution.x, start, xi[worst], eta, units), float)
    lacking = -left.min(axis=1)
    if not lacking.max() > float(smoothing.width) / 2:
        return ""
    first = int(np.argmax(lacking))
    name = constrained.names[int(np.argmin(left[first]))]
    often = int(np.sum(lacking > float(smoothing.width) / 2))
    return (
        f"(At xi = {np.asarray(xi[worst[first]])} no y meets {name} together with the others: it is violated by at "
        f"least {lacking[first]:.2g}, shared with others. So it is at {often} of the {len(worst)} samples at which the "
        "policy violates constraints most.)"
    )
