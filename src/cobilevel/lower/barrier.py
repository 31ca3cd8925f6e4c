"""The barrier's weight, in units of the policy itself: solved for at a few samples, not taken from where it starts."""

import numpy as np
from jaxtyping import Float

from ..derivatives import flattened
from ..keys import as_key
from ..problem import UNIT_ROWS, Samples, Study, length_of, scales_at, smoothing_from
from .damped_newton import minimise
from .per_context import Means

_MEASURINGS = 8  # of solving and measuring anew, at most
_SAME_LENGTH = 1.5  # ratio of two lengths that counts as none
_AT_ONCE = 100.0  # by how much the length changes in a round, at most
_CLOSE_ENOUGH, _NEWTON_STEPS_EACH = 1e-6, 60  # of the first slope, and the most steps to get there


def _minima(study: Study, rows: Samples, start: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """Where the lower objective of each sample alone is least, its barrier included."""
    means = Means(study.problem, np.asarray(rows.xi), rows.eta, np.ones((len(rows), 1)))
    objective = means.objective(flattened(study.problem.x0))
    first = np.linalg.norm(objective.local(start)[1], axis=1)
    return minimise(objective, start, _CLOSE_ENOUGH * first, _NEWTON_STEPS_EACH).point


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
    y = np.tile(flattened(study.problem.y0), (len(rows), 1))
    for _ in range(_MEASURINGS):
        study = study.smoothed(smoothing)
        found = _minima(study, rows, y)
        y = np.where(np.all(np.isfinite(found), axis=1, keepdims=True), found, y)
        scales = scales_at(constrained.lower, constrained.slacks, study.problem, rows, y.astype(study.dtype))
        new = float(np.clip(length_of(scales), length / _AT_ONCE, length * _AT_ONCE))
        smoothing = smoothing_from(scales, constrained.names, share, new)
        near = 1 / _SAME_LENGTH < new / length < _SAME_LENGTH
        length = new
        if near:
            break
    return study.smoothed(smoothing)
