"""The reduced problem at one ``x``, exactly: the lower level solved, the hypergradient by implicit differentiation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..derivatives import Expansions, LowerExpansion
from .damped_newton import (
    Curvature,
    MatrixFree,
    Minimum,
    cholesky,
    conjugate_gradients,
    minimise,
    solve_positive,
    solve_with,
)

_ADJOINT, _ADJOINT_STEPS = 1e-12, 500  # to which residual products solve for the adjoint, and in how many steps at most


@dataclass(frozen=True)
class Point:
    """The reduced problem at one ``x``, with its lower level solved.

    `sensitivity` says how the coefficients move with ``x``; ``None`` where matrices are not formed.
    """

    x: Float[np.ndarray, " dx"]
    W: Float[np.ndarray, "N dy"]
    value: float
    gradient: Float[np.ndarray, " dx"]
    lower_gradient: float
    solved: bool
    definite: bool
    adjoint: Float[np.ndarray, "N dy"]
    sensitivity: Float[np.ndarray, "N dy dx"] | None = None
    hessian: Any = None

    @property
    def sound(self) -> bool:
        """Whether the value and the gradient mean anything."""
        return self.solved and self.definite and self.finite

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.value) and np.all(np.isfinite(self.gradient)))

    def coefficients_at(self, x: Float[np.ndarray, " dx"]) -> Float[np.ndarray, "N dy"]:
        """The coefficients at another ``x``, to first order."""
        if self.sensitivity is None:
            return self.W
        ahead = self.W + self.sensitivity @ (x - self.x)
        return ahead if np.all(np.isfinite(ahead)) else self.W


class Formed(Curvature):
    """The lower level at ``x`` as a function of the coefficients; what is kept of a point is its expansion."""

    def __init__(self, expansions: Expansions, x: Float[np.ndarray, " dx"]):
        self.expansions, self.x, self.eps = expansions, x, expansions.eps

    def local(self, z):
        found = self.expansions.lower(self.x, z.reshape(self.expansions.functions, -1))
        return np.full(1, found.value), found.slope.reshape(1, -1), found

    def solve(self, hessian, right, damping, effort):
        matrices = _matrices(hessian)
        shape = matrices.shape[:2]
        if np.any(damping):
            matrices = matrices + damping.reshape(shape)[:, :, None] * np.eye(shape[1])
        p, usable = solve_positive(matrices, right.reshape(shape))
        return p.reshape(1, -1), np.array([usable.all()]), 0

    def metric(self, hessian, gradient):
        return np.abs(np.diagonal(_matrices(hessian), axis1=1, axis2=2)).reshape(1, -1), 0

    def kept(self, yes, new, old):
        return new if yes[0] else old


def _matrices(found: LowerExpansion) -> Float[np.ndarray, "k n n"]:
    """The Hessian as a list of blocks, be it one."""
    return found.hessian if found.hessian.ndim == 3 else found.hessian[None]


def _by_products(expansions: Expansions, x: Float[np.ndarray, " dx"]) -> MatrixFree:
    """The same where the Hessian is not formed."""
    table = lambda z: z.reshape(expansions.functions, -1)

    def slope(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = expansions.lower_slope(x, table(z))
        return np.full(1, value), gradient.reshape(1, -1)

    product = lambda z, v: expansions.hessian_product(x, table(z), table(v)).reshape(1, -1)
    return MatrixFree(slope, product, expansions.eps)


def solve_lower(
    expansions: Expansions, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"], target: float, close: float = 0.0
) -> Minimum:
    """The lower level at ``x`` minimised over the coefficients, from ``W``.

    Until its gradient is no longer than `target`, and the next step shorter than a share `close` of the coefficients.
    """
    objective = Formed(expansions, x) if expansions.formed else _by_products(expansions, x)
    return minimise(objective, W.reshape(1, -1), target, close=close)


def lower_size(expansions: Expansions, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> float:
    """The size of the lower gradient, to which targets are relative."""
    found = expansions.lower(x, W).slope if expansions.formed else expansions.lower_slope(x, W)[1]
    return float(np.linalg.norm(found))


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is not sound
def solve_at(
    expansions: Expansions, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"], target: float, close: float = 0.0
) -> Point:
    """Solves the reduced lower level at ``x`` from ``W`` and takes the implicit hypergradient there."""
    found = solve_lower(expansions, x, W, target, close)
    at = _hypergradient if expansions.formed else _hypergradient_by_products
    return at(expansions, x, found)


def _hypergradient(expansions: Expansions, x: Float[np.ndarray, " dx"], found: Minimum) -> Point:
    r"""$\partial_1 f - \partial_{12} g\, v$ with $\partial_{22} g\, v = \partial_2 f$, at the end of a minimisation.

    A last Newton correction with the Hessian at hand comes first: it brings the residual to rounding, and with it the
    noise of the objective.
    """
    shape, last = (expansions.functions, expansions.dy), found.hessian
    factor, usable = cholesky(_matrices(last))
    solve = lambda right: solve_with(factor, right.reshape(*factor.shape[:2], -1)).reshape(right.shape)
    W, definite = found.point.reshape(shape), bool(usable.all())
    if definite:
        W = W - solve(found.gradient.reshape(shape))
    upper = expansions.upper(x, W)
    adjoint = solve(upper.d2) if definite else np.full(shape, np.nan)
    sensitivity = None
    if expansions.crossed:
        moved = np.tensordot(adjoint, last.cross, axes=2)
        sensitivity = -solve(last.cross) if definite else None
    else:
        moved = expansions.cross_product(x, W, adjoint)
    return Point(
        x=x,
        W=W,
        value=upper.value,
        gradient=upper.d1 - moved,
        lower_gradient=float(np.linalg.norm(found.gradient)),
        solved=bool(found.converged[0]),
        definite=definite,
        adjoint=adjoint,
        sensitivity=sensitivity,
        hessian=last.hessian,
    )


def _hypergradient_by_products(expansions: Expansions, x: Float[np.ndarray, " dx"], found: Minimum) -> Point:
    """The same by conjugate gradients; they meet nonpositive curvature where the lower level is not convex."""
    W = found.point.reshape(expansions.functions, -1)
    upper = expansions.upper(x, W)
    product = lambda v: expansions.hessian_product(x, W, v.reshape(W.shape)).reshape(1, -1)
    v, _, curvature = conjugate_gradients(product, upper.d2.reshape(1, -1), _ADJOINT, _ADJOINT_STEPS)
    adjoint = v.reshape(W.shape)
    return Point(
        x=x,
        W=W,
        value=upper.value,
        gradient=upper.d1 - expansions.cross_product(x, W, adjoint),
        lower_gradient=float(np.linalg.norm(found.gradient)),
        solved=bool(found.converged[0]),
        definite=bool(curvature[0] > 0) or not np.isfinite(upper.value),
        adjoint=adjoint,
    )
