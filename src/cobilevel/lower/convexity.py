"""What a barrier hides: constraints that are not convex in ``y``.

With the barrier added, the lower level has curvature wherever a constraint is near, and a run converges. The answer
then is a matter of where it began.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..basis import combine
from ..keys import as_key, generator
from ..problem import Inequalities
from ..study import UNIT_ROWS, Constrained, Study
from ..trees import as_rows
from .constraints import Slacks


def hidden_by_barrier(study: Study, solution: Any) -> str:
    """Why the minimiser under inequalities is not defined along a policy, in words; empty where nothing shows it."""
    constrained = study.constrained
    if constrained is None or constrained.smoothing is None or study.stated is None:
        return ""
    rows = study.lower.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
    u = as_rows(combine(solution.basis(rows.xi), solution.W))
    if not np.isfinite(u).all():
        return ""
    return _hole(study, constrained, solution.x, np.asarray(rows.xi), u)


def _hole(study: Study, constrained: Constrained, x: Any, xi: np.ndarray, u: Float[np.ndarray, "n k"]) -> str:
    """A constraint that two values of ``y`` meet and one between them does not, at one context.

    Along rays from where the policy is at a constraint: of a convex one, who leaves does not come back.
    """
    smoothing: Any = constrained.smoothing
    if not any(isinstance(one, Inequalities) for one in study.stated.constraints):  # pyright: ignore
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
    met = (there >= 0).all(axis=-1)
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
        f"and y = {between} between them does not. State a constraint that is convex, or bounds that keep y on one "
        "side.)"
    )
