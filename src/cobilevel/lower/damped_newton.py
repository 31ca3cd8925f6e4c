"""A damped Newton method with a line search, on the host, for several independent problems at once.

They are the coefficients of the reduced lower level (in each step of the solver ``Newton``), and the ``y`` of many
contexts. Also truncated Newton steps inside of a compiled program.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..derivatives import Ledger, conjugate_gradient, oracles
from ..reduction import Batch, Bilevel

_FIRST_DAMPING = 1e-3  # relative to the curvature of each coordinate
LENGTHS = 40  # evaluations along one direction: enough for any scale, since shortening and stretching accelerate
_LEVEL = 0.5  # of the slope along a direction, left where a step ends: a Newton step leaves none of a quadratic
ARMIJO = 1e-4  # of the decrease that the slope promised, the customary constant
ROUNDINGS = 32  # the noise of values, gradients and steps, in units of their own precision: they are long sums
SOLVED = 0.75  # exponent of the precision: a residual or a step this small will do, since Newton's steps square it
_SLACK = 1e3  # times its noise, where the gradient falls no further


@dataclass(frozen=True)
class Dense:
    """``k`` objectives whose Hessians are formed: `local(z)` returns values, gradients and what is kept of Hessians.

    These are matrices ``(k, n, n)``, or the blocks of one ``n x n`` matrix; `eps` is the precision of values and
    gradients. `slope(z)`, for one objective: values and gradients alone, where Hessians take much longer; `rough`:
    whether these are never quite the objective's.
    """

    local: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, Any]]
    eps: float = float(np.finfo(float).eps)
    slope: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    rough: bool = False

    def matrices(self, hessian: Any) -> Float[np.ndarray, "b m m"]:
        """The Hessians that were kept."""
        return hessian

    def solve(
        self, hessian: Any, right: Float[np.ndarray, "k n"], damping: Float[np.ndarray, "k n"], effort: float
    ) -> tuple[Float[np.ndarray, "k n"], Bool[np.ndarray, " k"]]:
        """``(H + diag(damping)) p = right``, and for which problems it could be solved."""
        matrices = self.matrices(hessian)
        shape = matrices.shape[:2]
        if np.any(damping):
            matrices = matrices + damping.reshape(shape)[:, :, None] * np.eye(shape[1])
        p, usable = solve_positive(matrices, right.reshape(shape))
        return p.reshape(right.shape), usable.reshape(len(right), -1).all(axis=1)

    def metric(self, hessian: Any, gradient: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k n"]:
        """The curvature of each coordinate, in which lengths and damping are measured."""
        return np.abs(np.diagonal(self.matrices(hessian), axis1=1, axis2=2)).reshape(gradient.shape)


@dataclass(frozen=True)
class MatrixFree:
    """The same by products: `slope(z)` returns values and gradients, `product(z, v)` each Hessian at ``z`` times ``v``.

    What is kept of a Hessian is the point. `steps`: of conjugate gradients, at most.
    """

    slope: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    product: Callable[[np.ndarray, np.ndarray], np.ndarray]
    eps: float = float(np.finfo(float).eps)
    steps: int = 250

    def local(self, z):
        return *self.slope(z), z

    def solve(self, hessian, right, damping, effort):
        image = lambda v: self.product(hessian, v) + damping * v
        p, curvature = conjugate_gradients(image, right, effort, self.steps)
        return p, curvature > 0

    def metric(self, hessian, gradient):
        bend = np.abs(np.sum(gradient * self.product(hessian, gradient), axis=1))
        bend = bend / np.maximum(np.sum(gradient**2, axis=1), np.finfo(float).tiny)
        return np.broadcast_to(bend[:, None], gradient.shape)


def solve_positive(
    matrices: Float[np.ndarray, "k n n"], right: Float[np.ndarray, "k n"]
) -> tuple[Float[np.ndarray, "k n"], Bool[np.ndarray, " k"]]:
    """Solves with symmetric matrices, and whether each is positive definite; the solution is 0 where it is not."""
    if matrices.shape[1] == 1:  # a quotient each
        usable = matrices[:, 0, 0] > 0
        return np.where(usable[:, None], right / np.where(usable, matrices[:, 0, 0], 1)[:, None], 0.0), usable
    factor, usable = cholesky(matrices)
    return np.where(usable[:, None], solve_with(factor, right[:, :, None])[:, :, 0], 0.0), usable


def cholesky(matrices: Float[np.ndarray, "k n n"]) -> tuple[Float[np.ndarray, "k n n"], Bool[np.ndarray, " k"]]:
    """Cholesky factors, and which matrices have one; the identity for the others."""
    usable: Any = np.isfinite(matrices).all(axis=(1, 2))
    try:
        if usable.all():
            return np.linalg.cholesky(matrices), usable
    except np.linalg.LinAlgError:
        pass
    factor = np.broadcast_to(np.eye(matrices.shape[1]), matrices.shape).copy()
    for k in np.flatnonzero(usable):
        try:
            factor[k] = np.linalg.cholesky(matrices[k])
        except np.linalg.LinAlgError:
            usable[k] = False
    return factor, usable


def solve_with(factor: Float[np.ndarray, "k n n"], right: Float[np.ndarray, "k n m"]) -> Float[np.ndarray, "k n m"]:
    """Solves with matrices given by their Cholesky factors."""
    if len(factor) == 1:
        from scipy.linalg import cho_solve

        return cho_solve((factor[0], True), right[0], check_finite=False)[None]
    half = np.linalg.solve(factor, right)
    return np.linalg.solve(np.swapaxes(factor, 1, 2), half)


def conjugate_gradients(
    product: Callable[[np.ndarray], np.ndarray],
    right: Float[np.ndarray, "k n"],
    tolerance: float = 1e-12,
    steps: int = 500,
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, " k"]]:
    """Solves ``A v = right`` for positive definite ``A``: ``(v, least curvature met)``.

    Where a direction of nonpositive curvature turns up it stops with what it has, so that ``v`` stays a direction
    along which the quadratic decreases; the curvature returned says so.
    """
    dot = lambda a, b: np.sum(a * b, axis=1)
    v, residual, direction = np.zeros_like(right), right, right
    rho, curvature, goal = dot(right, right), np.full(len(right), np.inf), tolerance * np.linalg.norm(right, axis=1)
    for _ in range(steps):
        going = (np.sqrt(rho) > goal) & (curvature > 0)
        if not going.any():
            break
        image = product(direction)
        bend = dot(direction, image)
        along = bend / np.maximum(dot(direction, direction), np.finfo(float).tiny)
        curvature = np.where(going, np.minimum(curvature, along), curvature)
        length = np.where(going & (bend > 0), rho / np.where(bend > 0, bend, 1), 0)[:, None]
        v, residual = v + length * direction, residual - length * image
        fresh = np.where(going, dot(residual, residual), rho)
        ahead = residual + (fresh / np.where(rho > 0, rho, 1))[:, None] * direction
        direction, rho = np.where(going[:, None], ahead, direction), fresh
    return v, curvature


@dataclass(frozen=True)
class Iterates:
    """Points with what is known there; `metric` is the curvature of each coordinate, positive. At the end of a
    minimisation also which of them are minima, and how many evaluations of all objectives together that took. `stale`:
    the Hessian is that of a point before."""

    point: Float[np.ndarray, "k n"]
    value: Float[np.ndarray, " k"]
    gradient: Float[np.ndarray, "k n"]
    hessian: Any
    metric: Float[np.ndarray, "k n"]
    eps: float
    stale: bool = False
    converged: Any = False
    evaluations: int = 1

    @staticmethod
    def at(z: np.ndarray, objective: Dense | MatrixFree) -> "Iterates":
        value, gradient, hessian = objective.local(z)
        metric = objective.metric(hessian, gradient)
        if not np.all(metric > 0):
            length, tiny = np.linalg.norm(z, axis=1), np.finfo(float).tiny
            fallback = np.maximum(np.linalg.norm(gradient, axis=1) / np.where(length > 0, length, 1), tiny)
            most = np.max(metric, axis=1)
            metric = np.where(metric > 0, metric, np.where(most > 0, most, fallback)[:, None])
        return Iterates(z, value, gradient, hessian, metric, objective.eps)

    def moved(self, z: np.ndarray, objective: Dense | MatrixFree) -> "Iterates":
        """At other points; with the Hessians that are known, where these take long."""
        if isinstance(objective, MatrixFree) or objective.slope is None:
            return Iterates.at(z, objective)
        value, gradient = objective.slope(z)
        return Iterates(z, value, gradient, self.hessian, self.metric, self.eps, stale=True)

    @property
    def rounding(self) -> Float[np.ndarray, " k"]:
        """The noise of the values."""
        return ROUNDINGS * self.eps * np.abs(self.value)

    @cached_property
    def size(self) -> Float[np.ndarray, " k"]:
        """The gradients, measured so that the units of the coordinates do not matter."""
        return np.sqrt(np.sum(self.gradient**2 / self.metric, axis=1))

    def small(self, target: Any, close: float, slack: float = 1.0) -> Bool[np.ndarray, " k"]:
        """Below the target and close by (the target says little where the start was far away); or mere rounding."""
        length = np.sqrt(np.sum(self.metric * self.point**2, axis=1))
        floor = ROUNDINGS * self.eps * np.maximum(length, np.sqrt(np.abs(self.value)))
        below = np.linalg.norm(self.gradient, axis=1) <= slack * target
        near = below & (self.size <= slack * max(close, self.eps**SOLVED) * length) | (self.size <= slack * floor)
        return near & np.isfinite(self.size)

    def where(self, yes: Bool[np.ndarray, " k"], other: "Iterates") -> "Iterates":
        """These where `yes`, the others elsewhere."""
        if yes.all() or not yes.any():
            return self if yes.any() else other
        pick = lambda a, b: np.where(yes.reshape(-1, *[1] * (a.ndim - 1)), a, b)
        names = ("point", "value", "gradient", "hessian", "metric")
        return Iterates(*(pick(getattr(self, name), getattr(other, name)) for name in names), self.eps)


def _along(
    objective: Dense | MatrixFree, here: Iterates, p: Float[np.ndarray, "k n"], usable: Bool[np.ndarray, " k"]
) -> tuple[Iterates, Float[np.ndarray, " k"], int]:
    """The end of a search along ``p`` from each point: what is known there, the length gone (0 for none), and the
    evaluations spent.

    The whole step comes first. A search ends where the objective has fallen by a fair share and its slope by half.
    Slopes decide, as far as they can: they keep their meaning where the decrease drowns in rounding. A length between
    two that are known is where the slope vanishes on the line through theirs, every other time the middle; while one
    end is missing, lengths grow or shrink faster and faster.
    """
    k = len(p)
    steep, rounding = np.sum(here.gradient * p, axis=1), here.rounding
    length, low, high = np.ones(k), np.zeros(k), np.full(k, np.inf)
    low_slope, high_slope = steep.copy(), np.full(k, np.inf)
    best, asked, gone, turn = here, usable, np.zeros(k), 0  # best: what is known at `low`
    for turn in range(1, LENGTHS + 1 if usable.any() else 1):
        there = here.moved(here.point + (length * asked)[:, None] * p, objective)
        slope = np.sum(there.gradient * p, axis=1)
        seen = there.value <= here.value + ARMIJO * length * steep
        hidden = (-length * steep <= 2 * rounding) & (there.value <= here.value + rounding)
        falls = np.isfinite(slope) & (seen | hidden)
        level = asked & falls & (np.abs(slope) <= _LEVEL * np.abs(steep))
        best, gone = there.where(level, best), np.where(level, length, gone)
        asked = asked & ~level
        if not asked.any():
            break
        too_far = asked & (~falls | (slope > 0))
        nearer = asked & ~too_far
        best, gone = there.where(nearer, best), np.where(nearer, length, gone)
        low, low_slope = np.where(nearer, length, low), np.where(nearer, slope, low_slope)
        high, high_slope = np.where(too_far, length, high), np.where(too_far, slope, high_slope)
        length = np.where(asked, _following(length, low, high, low_slope, high_slope, turn), length)
    return best, gone, turn


def _following(
    length: np.ndarray, low: np.ndarray, high: np.ndarray, low_slope: np.ndarray, high_slope: np.ndarray, turn: int
) -> np.ndarray:
    """The next length of a search, after `turn` trials."""
    width = high - low
    rises = np.isfinite(high_slope) & (high_slope > 0)
    share = -low_slope / np.where(rises, high_slope - low_slope, 1)
    inner = low + width * np.where(rises & (turn % 2 == 1), np.clip(share, 0.1, 0.9), 0.5)
    middle = np.where(low > 0, np.sqrt(low) * np.sqrt(high), length * 10.0**-turn)
    blind = (high > 100 * low) & ((low > 0) | ~rises)
    return np.where(np.isinf(high), length * 4.0**turn, np.where(blind, middle, inner))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # far away values overflow, and are stepped back from
def minimise(
    objective: Dense | MatrixFree, start: Float[np.ndarray, "k n"], target: Any, steps: int = 200, close: float = 0.0
) -> Iterates:
    """Newton's method with a search along its direction, until gradient norms are at most `target` or as small as
    rounding lets; `close`: the next step, relative to the point, that is short enough (by default what the precision
    allows).

    Undamped directions are tried first, and damping grows only where there is none: where a Hessian is not positive
    definite (or where it vanishes, as it does at zero flow in a traffic network). The search is for kinks of the
    second derivative, as penalties have them, across which full steps go back and forth; damping would slow that
    down. Once the decrease drowns in rounding, the gradient decides. Where Hessians take long, one serves for several
    steps, as long as each leaves a quarter of the gradient or less, or not much more than its first step where it is
    `rough`; the last is that of the end.
    """
    here, evaluations, k = Iterates.at(start, objective), 1, len(start)
    damping, exhausted, enough = np.zeros(k), np.zeros(k, bool), 0.25
    for _ in range(steps):
        finite = np.isfinite(here.gradient).all(axis=1)
        going = ~exhausted & (damping * here.eps <= 1) & finite & ~here.small(target, close)
        if not going.any():
            if not here.stale:
                break
            here, evaluations = Iterates.at(here.point, objective), evaluations + 1
            continue
        size = np.linalg.norm(here.gradient[going], axis=1)
        effort = float(np.clip(np.min(np.broadcast_to(target, k)[going] / size), 1e-2 * here.eps**0.5, 1e-1))
        p, usable = objective.solve(here.hessian, -here.gradient, damping[:, None] * here.metric, effort)
        steep = np.sum(here.gradient * p, axis=1)
        usable = going & usable & (steep < 0) & np.isfinite(p).all(axis=1)
        there, length, more = _along(objective, here, p, usable)
        evaluations, moved = evaluations + more, length > 0
        promised = (damping * np.sum(here.metric * p**2, axis=1) - steep) / 2
        gained = here.value - there.value
        hidden = promised <= here.rounding  # the decrease drowns in rounding: only the gradient can tell
        shrinks = there.size < here.size
        better = moved & (~hidden | shrinks)
        if here.stale and not better.all():  # the Hessian may be to blame
            here, evaluations = Iterates.at(here.point, objective), evaluations + 1
            continue
        good = (gained > 0.75 * promised) | hidden & shrinks | (length > 1)
        relaxed = np.where(good, damping / 10, damping)
        relaxed = np.where(relaxed > here.eps**0.5, relaxed, 0)
        after = np.where(better, relaxed, np.maximum(10 * damping, _FIRST_DAMPING))
        damping = np.where(going, after, damping)
        idle = hidden & ~(better & (there.size <= 0.9 * here.size)) | moved & ~(gained > 0) & ~shrinks
        exhausted = exhausted | usable & idle  # what rounding leaves to do never ends
        if there.stale and not here.stale and objective.rough:  # pyright: ignore[reportAttributeAccessIssue]
            enough = max(0.25, min(0.9, 2 * float(there.size[0] / here.size[0])))
        slow = there.stale and bool(better.all()) and not there.size[0] <= enough * here.size[0]
        here = Iterates.at(there.point, objective) if slow else there.where(better, here)
        evaluations += slow
    here = Iterates.at(here.point, objective) if here.stale else here
    converged = here.small(target, close) | exhausted & here.small(target, close, _SLACK)
    return replace(here, converged=converged, evaluations=evaluations)


def newton_steps(
    reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, target: Any, steps: int, ledger: Ledger
) -> tuple[PyTree, Ledger]:
    """The coefficients after Newton steps from ``W`` on a batch: until the gradient is no longer than `target`, no step
    lowers the objective, or `steps` are taken. Directions by conjugate gradients, lengths by halving."""
    start, unflatten = oracles.flatten(W)
    page = Ledger.page()

    def slope(z: Array) -> tuple[Array, Array]:
        (value, gradient), _ = oracles.lower_slope(reduced, x, unflatten(z), batch, page)
        return value, oracles.flatten(gradient)[0]

    def product(z: Array, v: Array) -> Array:
        return oracles.flatten(oracles.hessian_vector(reduced, x, unflatten(z), unflatten(v), batch, page)[0])[0]

    def unfinished(now):
        _, _, gradient, moved, count, _, _ = now
        return moved & (jnp.linalg.norm(gradient) > target) & (count < steps)

    def one(now):
        z, value, gradient, _, count, products, slopes = now
        size = jnp.linalg.norm(gradient)
        effort = jnp.clip(target / size, 1e-2 * jnp.finfo(z.dtype).eps ** 0.5, 1e-1)
        p, spent, _ = conjugate_gradient(lambda v: product(z, v), -gradient, effort, MatrixFree.steps)
        steep, noise = gradient @ p, ROUNDINGS * jnp.finfo(z.dtype).eps * jnp.abs(value)

        def falls(trial):
            length, there, slope_there, _ = trial
            seen = there <= value + ARMIJO * length * steep
            hidden = (there <= value + noise) & (jnp.linalg.norm(slope_there) < size)
            return (steep < 0) & (seen | hidden)

        def halve(trial):
            length, _, _, tries = trial
            return length / 2, *slope(z + length / 2 * p), tries + 1

        first = (jnp.ones_like(value), *slope(z + p), jnp.int32(1))
        trial = jax.lax.while_loop(lambda t: ~falls(t) & (t[3] < LENGTHS), halve, first)
        moved = falls(trial)
        length, there, after, tries = trial
        keep = lambda new, old: jnp.where(moved, new, old)
        return (
            keep(z + length * p, z), keep(there, value), keep(after, gradient), moved, count + 1, products + spent,
            slopes + tries,
        )  # fmt: skip

    none = jnp.int32(0)
    begin = (start, *slope(start), jnp.asarray(True), none, none, jnp.int32(1))
    z, _, _, _, _, products, slopes = jax.lax.while_loop(unfinished, one, begin)
    ledger = ledger.add("lower_value", batch, slopes).add("lower_gradient", batch, slopes)
    return unflatten(z), ledger.add("hessian_vector", batch, products)
