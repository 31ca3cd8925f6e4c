"""What single precision costs at an answer: the gradient there, computed in both."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..answer import Solution, as_solved
from ..derivatives import Expansions, flattened
from ..keys import as_key
from ..problem import Data, Problem, Study, double, precision_for
from ..reduction import Bilevel, Table, batch_of
from .evaluate import in_precision_of

_COMPARED_ROWS = 2048  # samples over which the two gradients are taken


def _slopes_in(precision: str, problem: Problem, solution: Solution, samples: Data) -> Float[np.ndarray, " k"]:
    """Both gradients of ``f_Phi``, as one vector."""
    wanted = precision_for(problem, samples, precision)
    study = Study.of(as_solved(problem, solution), samples, wanted)
    point = in_precision_of(study, solution)
    table = Table(batch_of(point.basis, study.upper.look(as_key(0), _COMPARED_ROWS).samples))
    at = Expansions(Bilevel(study.problem, table, table, point.W))
    found = at.upper(flattened(point.x), at.table(point.W))
    return np.concatenate([found.d1, found.d2.ravel()])


def rounding_error(problem: Problem, solution: Any, samples: Data) -> float:
    """How far the gradients of ``f_Phi`` at an answer are off in single precision, as a share of their size."""
    single = _slopes_in("single", problem, solution, samples)
    with double():
        exact = _slopes_in("double", problem, solution, samples)
    return float(np.linalg.norm(single - exact) / max(np.linalg.norm(exact), np.finfo(float).tiny))
