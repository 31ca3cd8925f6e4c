"""The reduced problem at one ``x``, exactly: the lower level solved, the hypergradient by implicit differentiation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..derivatives import Expansions, LowerSums
from .by_products import minimised_by_products, preconditioned, solved_by_products
from .damped_newton import Dense, Iterates, cholesky, minimise, solve_with


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


class _Formed(Dense):
    """What is kept of a Hessian is the expansion it is part of: its cross derivative is needed at the end."""

    def matrices(self, hessian: LowerSums) -> Float[np.ndarray, "b m m"]:
        return hessian.hessian if hessian.hessian.ndim == 3 else hessian.hessian[None]

    def metric(self, hessian: LowerSums, gradient: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k n"]:
        return np.abs(hessian.diagonal).reshape(gradient.shape)


def solve_lower(
    expansions: Expansions,
    x: Float[np.ndarray, " dx"],
    W: Float[np.ndarray, "N dy"],
    target: float,
    close: float = 0.0,
    steps: int = 200,
) -> Iterates:
    """The lower level at ``x`` minimised over the coefficients, from ``W``.

    Until its gradient is no longer than `target`, and the next step shorter than a share `close` of the coefficients;
    by so many Newton `steps` at most.
    """
    table = lambda z: z.reshape(expansions.functions, -1)
    one = lambda value, gradient: (np.full(1, value), gradient.reshape(1, -1))

    def model(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, LowerSums]:
        lower = expansions.lower(x, table(z))
        return *one(lower.value, lower.slope), lower

    slope = lambda z: one(*expansions.lower_slope(x, table(z)))
    objective = _Formed(model, expansions.eps, slope if expansions.long_rows else None)
    return minimise(objective, W.reshape(1, -1), target, steps, close)


def lower_minimum(
    expansions: Expansions, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"], target: float, close: float = 0.0
) -> Float[np.ndarray, "N dy"]:
    """The coefficients there, also where the Hessian is not formed, whatever the upper level; `target` and `close` as
    above."""
    if not expansions.formed:
        accuracy = np.asarray(close or expansions.eps**0.5, expansions.dtype)
        W, _, _, spent = expansions.asked(minimised_by_products, x, W, more=(preconditioned(expansions), accuracy))
        _charge(expansions, spent)
        return expansions.table(W)
    return solve_lower(expansions, x, W, target, close).point.reshape(W.shape)


def lower_size(expansions: Expansions, x: Float[np.ndarray, " dx"], W: Float[np.ndarray, "N dy"]) -> float:
    """The size of the lower gradient, to which targets are relative."""
    slope = expansions.lower(x, W).slope if expansions.formed else expansions.lower_slope(x, W)[1]
    return float(np.linalg.norm(slope))


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is not sound
def solve_at(
    expansions: Expansions,
    x: Float[np.ndarray, " dx"],
    W: Float[np.ndarray, "N dy"],
    target: float,
    close: float = 0.0,
    steps: int = 200,
    adjoint: Float[np.ndarray, "N dy"] | None = None,
    trial: bool = False,
) -> Point:
    r"""Solves the reduced lower level at ``x`` from ``W`` and takes the hypergradient there,
    $\partial_1 f - \partial_{12} g\, v$ with $\partial_{22} g\, v = \partial_2 f$.

    `adjoint`: a guess of ``v``, for where it comes by products; `close` is then how exact all of it is to be, and a
    `trial` is given up where that takes many products: the point is not sound.
    """
    if not expansions.formed:
        return _by_products(expansions, x, W, close, adjoint, steps, trial)
    end = solve_lower(expansions, x, W, target, close, steps)
    W, upper, v, definite, sensitivity = _adjoint(expansions, x, end)
    crossed = expansions.crossed
    moved = np.tensordot(v, end.hessian.cross, axes=2) if crossed else expansions.cross_product(x, W, v)
    return Point(
        x=x,
        W=W,
        value=upper.value,
        gradient=upper.d1 - moved,
        lower_gradient=float(np.linalg.norm(end.gradient)),
        solved=bool(end.converged[0]),
        definite=definite,
        adjoint=v,
        sensitivity=sensitivity,
        hessian=end.hessian.hessian,
    )


def _adjoint(expansions: Expansions, x: Float[np.ndarray, " dx"], end: Iterates) -> tuple[Any, ...]:
    """``(W, upper, v, definite, sensitivity)`` at the end of a minimisation.

    A last Newton correction with the Hessian at hand comes first: it brings the residual to rounding, and with it the
    noise of the objective.
    """
    W, last = end.point.reshape(expansions.functions, -1), end.hessian
    factor, usable = cholesky(last.hessian if last.hessian.ndim == 3 else last.hessian[None])
    if not usable.all():
        return W, expansions.upper(x, W), np.full(W.shape, np.nan), False, None
    solve = lambda right: solve_with(factor, right.reshape(*factor.shape[:2], -1)).reshape(right.shape)
    W = W - solve(end.gradient.reshape(W.shape))
    upper = expansions.upper(x, W)
    return W, upper, solve(upper.d2), True, -solve(last.cross) if expansions.crossed else None


def lower_inverse(point: Point, right: Float[np.ndarray, "N dy k"]) -> Float[np.ndarray, "N dy k"]:
    """The inverse of the Hessian of the lower level at a point, where it is formed, times tables of coefficients."""
    factor, _ = cholesky(point.hessian if point.hessian.ndim == 3 else point.hessian[None])
    return solve_with(factor, right.reshape(*factor.shape[:2], -1)).reshape(right.shape)


def _charge(expansions: Expansions, spent: Any) -> None:
    """Slopes of the lower level and products with its Hessian."""
    for kind, times in zip(("lower_gradient", "hessian_vector"), spent, strict=True):
        expansions.charge(*[kind] * int(times))


def _by_products(
    expansions: Expansions,
    x: Float[np.ndarray, " dx"],
    W: Float[np.ndarray, "N dy"],
    close: float,
    adjoint: Any,
    steps: int,
    trial: bool,
) -> Point:
    """The same in one compiled loop; conjugate gradients meet nonpositive curvature where the lower level is not
    convex."""
    v = np.zeros_like(W) if adjoint is None else adjoint
    accuracy = np.asarray(close or expansions.eps**0.5, expansions.dtype)
    limits = np.int32(steps), np.int32(2000 if trial else 20_000)
    end = expansions.asked(solved_by_products, x, W, v, more=(preconditioned(expansions), accuracy, *limits))
    _charge(expansions, end.spent)
    expansions.charge("cross_product", "upper_gradient")
    return Point(
        x=x,
        W=expansions.table(end.W),
        value=float(end.value),
        gradient=expansions.gradient(end.gradient),
        lower_gradient=float(np.linalg.norm(end.lower_gradient)),
        solved=bool(np.all(end.solved)),
        definite=bool(end.met > 0) or not np.isfinite(end.value),
        adjoint=expansions.table(end.adjoint),
    )
