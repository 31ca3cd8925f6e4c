r"""Where inequalities bind: the slacks, and a policy with the corners that a smooth basis rounds off.

The minimum that $g$ would have without inequalities is as smooth in the context as $g$ is. A Newton step from the
policy leads there, sample by sample, and the basis fits where these steps end. A quadratic model of $g$ around that
fit is then minimised under the inequalities, context by context. This says where they bind, and how far the policy in
the basis is from one with corners.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree, Shaped

from ..basis import combine
from ..derivatives import RowBlocks, RowDerivatives
from ..ground import as_key, as_rows, flattened
from ..study import Smoothing, Study
from .damped_newton import Dense, minimise
from .per_context import DENSE_Y, Means


class Slacks:
    """The slacks at some contexts, as functions of the unknown there, with their slopes in it."""

    def __init__(self, study: Study, x: PyTree, xi: Shaped[np.ndarray, "n ..."]):
        constrained: Any = study.constrained
        unused = jax.tree.map(lambda a: np.repeat(np.asarray(a)[:1], len(xi), axis=0), study.lower.example().eta)
        self.count, self.x, self.eps = len(constrained.names), flattened(x), study.eps
        rows = RowBlocks(xi, unused, study.dtype, self.count * (1 + study.problem.sizes[1]))
        self._derivatives = RowDerivatives.slack(constrained.slacks, rows)

    def at(self, u: Float[np.ndarray, "n k"]) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, "n m k"]]:
        table = self._derivatives.table(self.x, u)
        return table[:, : self.count], table[:, self.count :].reshape(len(table), self.count, -1)

    def least_violation(self, u: Float[np.ndarray, "n k"], units: Float[np.ndarray, " m"]) -> Float[np.ndarray, "n m"]:
        """The slacks, in units of ``y``, that minimise the sum of squared violations, by Gauss-Newton."""

        def model(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            slack, slope = self.at(z)
            short, slope = np.minimum(slack / units, 0), slope / units[:, None]
            bent = np.einsum("nma,nm,nmb->nab", slope, (short < 0).astype(float), slope)
            return np.sum(short**2, axis=1), 2 * np.einsum("nm,nma->na", short, slope), 2 * bent

        return self.at(minimise(Dense(model, self.eps), u, 0.0, steps=50).point)[0] / units


def _barrier(smoothing: Smoothing, slack: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The barrier at each context with its slope and its Hessian, for slacks that are linear in the unknown."""
    weight, lengths = float(smoothing.weight), np.asarray(smoothing.units, float) * np.asarray(smoothing.floor, float)
    s = np.minimum(slack / lengths, np.finfo(float).max ** 0.5)
    above, inside = np.maximum(s, 1.0), s > 1
    value = np.where(inside, -np.log(above), (s - 1) * ((s - 1) / 2 - 1))
    first, second = np.where(inside, -1 / above, s - 2), np.where(inside, above**-2.0, 1.0)
    turned = slope / lengths[:, None]
    bent = np.einsum("nma,nm,nmb->nab", turned, second, turned)
    return weight * value.sum(axis=1), weight * np.einsum("nm,nma->na", first, turned), weight * bent


def policy_with_corners(study: Study, solution: Any) -> Callable[[Shaped[np.ndarray, "n ..."]], np.ndarray] | None:
    """The unknown at contexts, from a solution with its ``x``, ``W`` and ``basis``; ``None`` without inequalities,
    where ``y`` is large, or where ``g`` has no minimum without them."""
    size = study.problem.sizes[1]
    if study.constrained is None or study.constrained.smoothing is None or size > DENSE_Y:
        return None
    smoothing, x = study.constrained.smoothing, flattened(solution.x)
    features = lambda xi: np.asarray(solution.basis.at(xi), float)
    rows = study.lower.look(as_key(0)).samples
    xi, phi = np.asarray(rows.xi), features(rows.xi)
    u = np.asarray(as_rows(combine(solution.basis.at(rows.xi), solution.W)), float)
    found = Means(study.problem, xi, rows.eta, np.ones((len(xi), 1))).at(x, u)
    _, push, held = _barrier(smoothing, *Slacks(study, solution.x, xi).at(u))
    root = np.sqrt(rows.shares())[:, None]
    fitted = lambda table: np.linalg.lstsq(root * phi, root * table.reshape(len(xi), -1), rcond=None)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        own = found.hessian - held
        if not np.isfinite(own).all():
            return None
    least, most = np.linalg.eigvalsh(np.tensordot(rows.shares(), own, axes=1))[[0, -1]]
    if least <= study.eps**0.5 * most:  # it is the barrier that makes a minimum
        return None
    bends = fitted(own)

    def curvature(phi: np.ndarray) -> Float[np.ndarray, "n k k"]:
        """As the basis fits it, and nowhere less than the least of its mean: noise may take it through zero."""
        table = (phi @ bends).reshape(-1, size, size)
        values, vectors = np.linalg.eigh((table + np.swapaxes(table, 1, 2)) / 2)
        values = np.maximum(values, least)
        return (vectors * values[:, None]) @ np.swapaxes(vectors, 1, 2)

    free = fitted(u - np.linalg.solve(curvature(phi), (found.slope - push)[..., None])[..., 0])

    def at(xi: Shaped[np.ndarray, "n ..."]) -> Float[np.ndarray, "n k"]:
        phi, slacks = features(xi), Slacks(study, solution.x, xi)
        bent, centre = curvature(phi), phi @ free

        def model(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            value, slope, held = _barrier(smoothing, *slacks.at(z))
            pull = np.einsum("nab,nb->na", bent, z - centre)
            return value + np.sum(pull * (z - centre), axis=1) / 2, slope + pull, bent + held

        start = np.asarray(as_rows(combine(solution.basis.at(xi), solution.W)), float)
        size = np.linalg.norm(model(start)[1], axis=1)
        return minimise(Dense(model, study.eps), start, study.eps**0.5 * size).point

    return at
