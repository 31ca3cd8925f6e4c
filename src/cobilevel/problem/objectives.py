"""The functions of a problem as they are now, to be recognised in another process: digests of what they do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .mixed import Unpacked
from .precision import double
from .problem import Problem
from .stable_digest import PARTIAL, traced_digest, value_digest
from .standard_form import some_context
from .study import Study
from .traced import Sampler, Traced, first_derivatives, second_derivatives, trace_objective

_DERIVATIVES: dict[str, Callable] = {
    "upper": first_derivatives,
    "lower": second_derivatives,
    "constraints": second_derivatives,
}


def traced_parts(problem: Problem) -> dict[str, Traced]:
    """The functions of a problem whose objectives are traced, by name; all constraints as one."""
    parts: dict[str, Any] = {"upper": problem.upper, "lower": problem.lower}
    if problem.constraints:
        context = problem.domain.snap(some_context(problem), jax.tree.leaves(problem.y0)[0].dtype)
        whole = Unpacked(lambda x, y, xi, eta: _constraints_as_one(problem, x, y, xi), problem.domain)
        parts["constraints"] = trace_objective(whole, (problem.x0, problem.y0, context, None), second_derivatives)
    return parts


def _constraints_as_one(problem: Problem, x: Any, y: Any, xi: Any) -> Any:
    """A number that no constraint can change without changing it: a sum over slacks and residuals of equalities, with
    weights that all differ."""
    flat, found = ravel_pytree(y)[0], []
    for one in problem.constraints:
        slack, stated = one.slack(x, y, xi), one.equalities(problem.y0)
        found += [] if slack is None else [slack]
        if stated is not None:
            found.append(jnp.asarray(stated[0], flat.dtype) @ flat - jnp.asarray(stated[1](x, xi), flat.dtype))
    together = jnp.concatenate([jnp.ravel(part) for part in found])
    return jnp.dot(jnp.asarray(uneven(len(together)), together.dtype), together)


def uneven(count: int) -> np.ndarray:
    """Numbers between 1/2 and 3/2, no two alike: weights in sums that are to show what is summed."""
    return 1 + np.cos(1.0 + np.arange(count)) / 2


@contextmanager
def precision_of(dtype: Any) -> Iterator[None]:
    """Where functions in a dtype are traced and evaluated, as a study does: they may hold numbers in another."""
    with double() if dtype == np.float64 else nullcontext(), jax.numpy_dtype_promotion("standard"):
        yield


def digests_of(parts: dict[str, Traced]) -> dict[str, str]:
    """What each of some traced functions does."""
    return {name: traced_digest(part, _DERIVATIVES[name]) for name, part in parts.items()}


def objective_digest(study: Study) -> dict[str, str]:
    """What the functions of a study do, with all their numbers: 64 hexadecimal digits each, the same in every process
    with the same versions of JAX and of this library.

    The names are ``upper`` and ``lower``; ``constraints`` where there are some, and ``samples`` for what streams draw.
    A digest that ends in ``?`` does not see all that a function does: it calls back into Python. Nothing is compiled.
    """
    if study.stated is None:
        raise ValueError("this study was not made by Study.of, and does not know the functions as they were stated.")
    with precision_of(study.dtype):
        found = digests_of(traced_parts(study.stated))
        drawn = [level.draw for level in (study.upper, study.lower) if level.endless]  # pyright: ignore
        return {**found, "samples": _draws_digest(drawn)} if drawn else found


def _draws_digest(draws: list[Sampler]) -> str:
    """What samplers do; one that could not be traced is not known."""
    known = [(draw.drawing.program, draw.arrays) for draw in draws]
    leaves = [(program, jax.tree.leaves(arrays)) for program, arrays in known]
    return value_digest(leaves) + (PARTIAL if any(program is None for program, _ in known) else "")
