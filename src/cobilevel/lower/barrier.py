"""The barrier's weight, in units of the policy itself: solved for at a few samples, not taken from where it starts."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..derivatives import hessian_product, local_model, value_and_slope
from ..keys import as_key
from ..problem import UNIT_ROWS, Problem, Samples, Study, length_of, scales_at, smoothing_from
from ..programs import Held, program
from .damped_newton import Dense, MatrixFree, minimise

_MEASURINGS = 8  # of solving and measuring anew, at most
_SAME_LENGTH = 1.5  # ratio of two lengths that counts as none
_AT_ONCE = 100.0  # by how much the length changes in a round, at most
_FORMED = 64  # the largest y whose Hessian is formed
_CLOSE_ENOUGH, _NEWTON_STEPS_EACH = 1e-6, 60  # of the first slope, and the most steps to get there


@program
def _minima(problem: Problem, rows: Samples, start: Float[Held, "n k"]) -> Float[Held, "n k"]:
    """Where the lower objective of each sample alone is least, its barrier included."""
    _, unravel = ravel_pytree(problem.y0)

    def one(z, xi, eta):
        objective = lambda w: problem.lower(problem.x0, unravel(w), xi, eta)
        slope = value_and_slope(objective)
        formed = Dense(local_model(objective))
        curvature = formed if len(z) <= _FORMED else MatrixFree(slope, hessian_product(objective))
        return minimise(curvature, z, _CLOSE_ENOUGH * jnp.linalg.norm(slope(z)[1]), _NEWTON_STEPS_EACH).point

    return jax.vmap(one)(start, rows.xi, rows.eta)


def with_barrier(study: Study) -> Study:
    """The study with a barrier that fits it, where it has inequalities and the barrier is not that of a run already.

    Its length is how far the policy varies under the constraints; that takes a policy, and so a barrier, to begin with:
    both are found in turn.
    """
    constrained = study.constrained
    if constrained is None or constrained.smoothing is None or constrained.settled:
        return study
    rows = study.lower.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
    smoothing, share = constrained.smoothing, float(constrained.smoothing.share)
    length = float(smoothing.width) / share**0.5
    flat = ravel_pytree(study.problem.y0)[0]
    y: Array = jnp.broadcast_to(flat, (len(rows), len(flat)))
    for _ in range(_MEASURINGS):
        study = study.smoothed(smoothing)
        found = _minima(study.problem, rows, y)
        y = jnp.where(jnp.all(jnp.isfinite(found), axis=1, keepdims=True), found, y)
        scales = scales_at(constrained.lower, constrained.slacks, study.problem, rows, y)
        new = float(np.clip(length_of(scales), length / _AT_ONCE, length * _AT_ONCE))
        smoothing = smoothing_from(scales, constrained.names, share, new)
        near = 1 / _SAME_LENGTH < new / length < _SAME_LENGTH
        length = new
        if near:
            break
    return study.smoothed(smoothing)
