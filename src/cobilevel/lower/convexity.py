"""What a barrier hides: constraints that are not convex in ``y``, and a lower objective without curvature of its own.

With the barrier added, the lower level has curvature wherever a constraint is near, and a run converges. The answer
then is a matter of where it began, or of the barrier alone.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..basis import combine
from ..ground import as_key, as_rows, generator
from ..problem import Inequalities
from ..study import UNIT_ROWS, Constrained, Study, scales_at
from .corners import Slacks
from .damped_newton import ROUNDINGS


def hidden_by_barrier(study: Study, solution: Any) -> str:
    """Why the minimiser under inequalities is not defined along a policy, in words; empty where nothing shows it."""
    constrained = study.constrained
    if constrained is None or constrained.smoothing is None or study.stated is None:
        return ""
    rows = study.lower.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
    u = as_rows(combine(solution.basis.at(rows.xi), solution.W))
    if not np.isfinite(u).all():
        return ""
    return _hole(study, constrained, solution.x, np.asarray(rows.xi), u) or _flat(study, constrained, solution, rows, u)


def _hole(study: Study, constrained: Constrained, x: Any, xi: np.ndarray, u: Float[np.ndarray, "n k"]) -> str:
    """A constraint that two values of ``y`` meet and one between them does not, at one context.

    Along rays from where the policy is at a constraint: of a convex one, who leaves does not come back.
    """
    smoothing: Any = constrained.smoothing
    if not any(isinstance(one, Inequalities) for one in (study.stated or study.problem).constraints):
        return ""
    units, width = np.asarray(smoothing.units, float), float(smoothing.width)
    slack, slope = Slacks(study, x, xi).at(u)
    room = slack / units
    many, count = 6, 40  # rays from each context (a normal, to other contexts and back, at random), places on each
    numbers = many * count * units.size * (1 + u.shape[1])
    some = np.flatnonzero(np.abs(room.min(axis=1)) < width)[: max(1, 10_000_000 // numbers)]
    if not len(some):
        return ""
    rng, active = generator(as_key(1)), np.argmin(room[some], axis=1)
    others = u[rng.integers(len(u), size=(2, len(some)))] - u[some]
    normal = -slope[some, active]
    rays = np.stack([normal, *others, -others[0], *rng.standard_normal((many - 4, *normal.shape))], axis=1)
    sizes = np.linalg.norm(rays, axis=2, keepdims=True)
    rays = rays / np.where(sizes > 0, sizes, 1)
    far = width / float(smoothing.share) ** 0.5 * np.geomspace(1 / 32, 64, count)
    places = u[some][:, None, None] + far[:, None] * rays[:, :, None]  # context, ray, place, coordinate
    each = np.repeat(xi[some], many * count, axis=0)
    there = (Slacks(study, x, each).at(places.reshape(len(each), -1))[0] / units).reshape(*places.shape[:3], -1)
    met: Any = (there >= 0).all(axis=-1)
    later = np.flip(np.logical_or.accumulate(np.flip(met, axis=2), axis=2), axis=2)
    missed = (there < -2 * width) & later[..., None]
    if not missed.any():
        return ""
    c, ray, place, k = (int(part) for part in np.unravel_index(int(np.argmax(missed)), missed.shape))
    back = place + int(np.argmax(met[c, ray, place:]))
    path = np.stack([u[some][c], places[c, ray, place], places[c, ray, back]])
    form, here = constrained.form, np.repeat(xi[some][c : c + 1], 3, axis=0)
    if form.null is not None:
        path = as_rows(form.along(x, jnp.asarray(path), jnp.asarray(here), len(study.problem.domain.shape)))
    start, between, end = (np.array2string(np.squeeze(y), precision=3) for y in path)
    return (
        f"({constrained.names[k]} is not convex in y: at xi = {here[0]}, y = {start} and y = {end} meet it, "
        f"but y = {between} between them does not. Use a convex constraint, or bounds that keep y on one side.)"
    )


def _flat(study: Study, constrained: Constrained, solution: Any, rows: Any, u: Float[np.ndarray, "n k"]) -> str:
    """A direction in which neither the lower objective nor a constraint has curvature, and in which constraints press
    from both sides, or none does: there the minimiser jumps, or is any. Or one in which curvature is negative: there
    are several, and which one is a matter of the start.

    Where all press from one side they determine it. Without noise single samples show it, else their mean.
    """
    smoothing: Any = constrained.smoothing
    scales = scales_at(constrained.lower, constrained.slacks, study.at(solution.x).problem, rows, u.astype(study.dtype))
    if scales.hessian is None or scales.bent is None:
        return ""
    parts = [np.asarray(part, float) for part in (scales.hessian, scales.bent)]
    rounding, several = ROUNDINGS * u.shape[1] * study.eps, study.lower_noise or study.lower.crossed
    if not all(np.isfinite(part).all() for part in parts):
        return ""
    flat = np.ones(len(u), bool)
    each = parts if not several else [part.mean(axis=0, keepdims=True) for part in parts]
    least = np.linalg.eigvalsh(_together(*each))[:, 0]
    if np.mean(least < -(study.eps ** (1 / 3))) > 0.5:
        return (
            "(The curvature of the lower objective in y is negative in some direction, and only constraints hold y: "
            "there may be a lower value elsewhere. Use a convex lower objective.)"
        )
    if not several:
        flat = np.abs(least) <= rounding
        if flat.mean() < 0.5:
            return ""
    values, vectors = np.linalg.eigh(_together(*(part[flat].mean(axis=0) for part in parts)))
    slack, slope = Slacks(study, solution.x, np.asarray(rows.xi)[flat]).at(u[flat])
    near = slack / smoothing.units < float(smoothing.width)
    for along in vectors.T[np.abs(values) <= rounding]:
        pressed = np.where(near, slope @ along / smoothing.units, 0)
        up, down = (np.any(sign * pressed > study.eps**0.5, axis=1) for sign in (1, -1))
        jumps = (up & ~down).any() and (down & ~up).any()
        if jumps or np.mean(up | down) < 0.5:
            which = f" along {np.array2string(along + 0.0, precision=3, suppress_small=True)}" * (len(along) > 1)
            return (
                f"(The lower objective has no curvature in y{which}, at {int(flat.sum())} of {len(flat)} samples. "
                "Bounds alone do not give a smooth policy: it jumps between them. Add a small quadratic term to lower, "
                "such as 0.01 * y**2.)"
            )
    return ""


def _together(
    objective: Float[np.ndarray, "... k k"], constraints: Float[np.ndarray, "... k k"]
) -> Float[np.ndarray, "... k k"]:
    """The curvature of both, whatever the units. That of a constraint which is not convex takes nothing away: where it
    is inactive it does not matter, and where it is active that is said of it."""
    values, vectors = np.linalg.eigh(correlated(constraints))
    return correlated(objective) + (vectors * np.maximum(values, 0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def correlated(matrices: Float[np.ndarray, "... k k"]) -> Float[np.ndarray, "... k k"]:
    """With a diagonal of ones, or 0 where there was none: the units of ``y`` do not matter."""
    root = np.sqrt(np.abs(np.diagonal(matrices, axis1=-2, axis2=-1)))
    root = np.where(root > 0, root, 1)
    return (matrices + np.swapaxes(matrices, -1, -2)) / (2 * root[..., :, None] * root[..., None, :])
