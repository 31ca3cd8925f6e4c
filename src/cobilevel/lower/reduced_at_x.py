"""The reduced problem at one ``x``, exactly: the lower level solved, the hypergradient by implicit differentiation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..derivatives import Expansions, LowerSums
from .by_products import minimised_by_products, preconditioned, solved_by_products
from .damped_newton import LENGTHS, Dense, Iterates, cholesky, minimise, solve_with


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


@dataclass(frozen=True, eq=False)
class _Matrices:
    """What is kept of a Hessian: the expansion it is part of, whose cross derivative is needed at the end."""

    of: LowerSums

    @property
    def blocks(self) -> Float[np.ndarray, "b m m"]:
        return self.of.hessian if self.of.hessian.ndim == 3 else self.of.hessian[None]

    @cached_property
    def factor(self) -> tuple[Float[np.ndarray, "b m m"], Bool[np.ndarray, " b"]]:
        """Cholesky factors, once for all that is solved with them, and which blocks have one."""
        return cholesky(self.blocks)


class _Formed(Dense):
    """The lower level with matrices as above."""

    def matrices(self, hessian: _Matrices) -> Float[np.ndarray, "b m m"]:
        return hessian.blocks

    def solve(self, hessian, right, damping, effort):
        if np.any(damping):
            return super().solve(hessian, right, damping, effort)
        factor, usable = hessian.factor
        p = solve_with(factor, right.reshape(*factor.shape[:2], 1))[:, :, 0]
        return np.where(usable[:, None], p, 0.0).reshape(right.shape), usable.all(keepdims=True)

    def metric(self, hessian: _Matrices, gradient: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k n"]:
        return np.abs(hessian.of.diagonal).reshape(gradient.shape)


def solve_lower(
    expansions: Expansions,
    x: Float[np.ndarray, " dx"],
    W: Float[np.ndarray, "N dy"],
    target: float,
    close: float = 0.0,
    steps: int = 200,
    matrices: Expansions | None = None,
) -> Iterates:
    """The lower level at ``x`` minimised over the coefficients, from ``W``.

    Until its gradient is no longer than `target`, and the next step shorter than a share `close` of the coefficients;
    by so many Newton `steps` at most. `matrices`: few rows, whose Hessian and cross derivative are taken for those of
    all.
    """
    table = lambda z: z.reshape(expansions.functions, -1)
    one = lambda value, gradient: (np.full(1, value), gradient.reshape(1, -1))

    slope = lambda z: one(*expansions.lower_slope(x, table(z)))

    def model(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, _Matrices]:
        lower = (matrices or expansions).lower(x, table(z))
        return *(one(lower.value, lower.slope) if matrices is None else slope(z)), _Matrices(lower)

    slopes = slope if matrices or expansions.long_rows else None
    objective = _Formed(model, expansions.eps, slopes, rough=matrices is not None)
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
    if (few := expansions.close) is not None:
        end = solve_lower(expansions, x, W, target, close, steps, few)
        point = _at_end(expansions, x, end, few, adjoint, (close or expansions.eps**0.6) ** 1.25)
        if point.sound:
            return point
    return _at_end(expansions, x, solve_lower(expansions, x, W, target, close, steps))


def _at_end(
    expansions: Expansions,
    x: Float[np.ndarray, " dx"],
    end: Iterates,
    few: Expansions | None = None,
    guess: np.ndarray | None = None,
    accuracy: float = 0.0,
) -> Point:
    """The reduced problem where the lower level has been minimised.

    A last Newton correction with the Hessian at hand comes first: it brings the residual to rounding, and with it the
    noise of the objective.
    """
    W, last, (factor, usable) = end.point.reshape(expansions.functions, -1), end.hessian.of, end.hessian.factor
    definite, v, sensitivity = bool(usable.all()), np.full(W.shape, np.nan), None
    solve = lambda right: solve_with(factor, right.reshape(*factor.shape[:2], -1)).reshape(right.shape)
    if definite:
        W = W - solve(end.gradient.reshape(W.shape))
    if definite and few is not None:  # whose Hessian does not square what is off
        W = W - solve(expansions.lower_slope(x, W)[1])
    upper = expansions.upper(x, W)
    if definite and few is not None:
        v, moved = _refined(expansions, (x, W), upper.d2, solve, guess, accuracy)
        upper = upper._replace(value=upper.value - np.sum(v * expansions.lower_slope(x, W)[1]))
    else:
        v = solve(upper.d2) if definite else v
        moved = np.tensordot(v, last.cross, axes=2) if expansions.crossed else expansions.cross_product(x, W, v)
    if definite and expansions.crossed:
        sensitivity = -solve(last.cross)
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
        hessian=last.hessian,
    )


def _refined(
    expansions: Expansions,
    place: tuple[np.ndarray, np.ndarray],
    right: np.ndarray,
    solve: Callable[[np.ndarray], np.ndarray],
    guess: np.ndarray | None,
    accuracy: float,
) -> tuple[Float[np.ndarray, "N dy"], Float[np.ndarray, " dx"]]:
    r"""The adjoint $v$ and $\partial_{12} g_\Phi\, v$ by conjugate gradients over all rows, where `solve` inverts about
    their Hessian; not numbers where that is far off, or not positive. Off by a share `accuracy`, in its norm."""
    v = ahead = solve(right) if guess is None or not guess.any() else guess
    products = expansions.turned(*place, v)
    left, moved, size = right - products.lower, products.upper, 0.0
    least = accuracy**2 * float(np.sum(right * solve(right)))
    for _ in range(LENGTHS):
        step, before = solve(left), size
        size = float(np.sum(left * step))
        if not size > least:
            return v, moved
        ahead = step + (size / before * ahead if before else 0)
        products = expansions.turned(*place, ahead)
        bend = float(np.sum(ahead * products.lower))
        if not bend > 0:
            break
        length = size / bend
        v, left, moved = v + length * ahead, left - length * products.lower, moved + length * products.upper
    return np.full_like(v, np.nan), moved


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
