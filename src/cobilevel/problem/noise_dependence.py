"""Whether an objective depends on the noise: by tracing it, or by swapping noise between samples."""

import jax
import jax.numpy as jnp
import numpy as np

from ..programs import put
from .data import Level
from .problem import Problem

_SWAPPED_ROWS = 64  # samples between which noise is swapped


def lower_depends_on_noise(problem: Problem, level: Level) -> bool:
    """Whether ``g``, traced, depends on ``eta``: by the user's word (checked when ``False``), else by its program."""
    if problem.lower_noise is True:
        return True
    found = problem.lower.uses_last_argument()  # pyright: ignore[reportFunctionMemberAccess]
    if found and problem.lower_noise is False:
        _check_noise_free(problem, level)
        return False
    return found


def _check_noise_free(problem: Problem, level: Level) -> None:
    """Compares how ``g`` changes between two values of ``y`` under one noise and under another's; raises if it differs.

    A term of ``eta`` alone drops out of the change, as it does out of the minimiser.
    """
    rows = level.example(_SWAPPED_ROWS)
    swapped = put(jax.tree.map(lambda a: np.roll(np.asarray(a), 1, axis=0), rows.eta))

    @jax.vmap
    def changes(key, xi, eta, other):
        # not y0 itself, where a term such as eta * y^2 would hide
        nudge = lambda a, k: a + (1 + jnp.abs(a)) * jax.random.normal(k, a.shape, a.dtype)
        ys = [jax.tree.map(lambda a, k=k: nudge(a, k), problem.y0) for k in jax.random.split(key)]
        values = jnp.stack([jnp.stack([problem.lower(problem.x0, y, xi, e) for y in ys]) for e in (eta, other)])
        return values[:, 1] - values[:, 0], jnp.max(jnp.abs(values))

    @jax.jit
    def found(*columns):
        change, size = changes(jax.random.split(jax.random.key(0), len(rows)), *columns)
        return jnp.max(jnp.abs(change[:, 0] - change[:, 1])), jnp.max(size)

    largest, size = found(rows.xi, rows.eta, swapped)
    gap, scale, eps = float(largest), float(size), jnp.finfo(size.dtype).eps
    if gap > 1e3 * eps * (scale + eps):
        raise ValueError(
            f"lower_noise=False, but the change of lower between two values of y differs by {gap:.3g} when eta is "
            "swapped between samples. Leave lower_noise at None, or remove eta from lower."
        )
