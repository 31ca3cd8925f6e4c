"""``Newton``: full batch, second order in the coefficients, exact implicit hypergradient, quasi-Newton in ``x``."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..checks import positive, whole
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..iteration.loop import Solver, State, fresh
from ..lower.reduced_at_x import Point, projected, solve_at
from ..reduction.reduced import Reduced
from ..reduction.result import Result

_TRIALS = 30


def trouble(point: Point) -> Int[Array, ""]:
    """The result to report where a point is not sound."""
    upper = jnp.where(point.definite, Result.UPPER_FAILED, Result.NOT_CONVEX)
    return jnp.where(point.solved, upper, Result.LOWER_FAILED).astype(jnp.int32)


def kink_size(reduced: Reduced, x: Array, gradient: Array, other: Point) -> Float[Array, ""]:
    """The shortest projected combination of the gradients at ``x`` and at a refused point.

    Where ``g`` has kinks in its second derivative (penalties such as ``max(y, 0)^2`` do), the gradient of the reduced
    objective jumps as a sample crosses one, and a minimum can lie right there: the gradients on its two sides do not
    vanish, but a combination of them does, which is what stationary means for such functions.
    """
    jump = other.gradient - gradient
    share = jnp.clip(-(gradient @ jump) / jnp.maximum(jump @ jump, jnp.finfo(x.dtype).tiny), 0, 1)
    size = jnp.linalg.norm(projected(reduced, x, gradient + share * jump))
    return jnp.where(other.sound & jnp.any(other.x != x), size, jnp.inf)


class NewtonState(State):
    begun: Bool[Array, ""]
    gradient: Float[Array, " dx"]
    value: Float[Array, ""]
    lower_gradient: Float[Array, ""]
    lower_target: Float[Array, ""]
    scale: Float[Array, ""]
    span: Float[Array, ""]
    hits: Int[Array, ""]
    done: Bool[Array, ""]
    kink: Bool[Array, ""]
    steps: Float[Array, "m dx"]
    changes: Float[Array, "m dx"]
    pairs: Int[Array, ""]
    failures: Int[Array, ""]
    size: Float[Array, ""]


class Trial(eqx.Module):
    """Where a line search ended: the last point tried, the last one refused, and whether the former is taken."""

    point: Point
    refused: Point
    moved: Bool[Array, ""]
    free: Bool[Array, " dx"]
    use_memory: Bool[Array, ""]
    ledger: Ledger


def quasi_newton(
    gradient: Float[Array, " dx"],
    free: Bool[Array, " dx"],
    steps: Float[Array, "m dx"],
    changes: Float[Array, "m dx"],
) -> Float[Array, " dx"]:
    """Minus the L-BFGS inverse Hessian, restricted to the free coordinates, times the gradient.

    Pairs are stored newest first; those without positive curvature on the free coordinates are passed over (unfilled
    ones are zero, so they are too).
    """
    steps, changes = steps * free, changes * free
    bend = jnp.sum(steps * changes, axis=1)
    length = jnp.sum(changes * changes, axis=1)
    use = bend > 1e-12 * jnp.sqrt(length * jnp.sum(steps * steps, axis=1))
    rho = jnp.where(use, 1 / jnp.where(use, bend, 1), 0)

    def backward(q, pair):
        s, c, r = pair
        a = r * (s @ q)
        return q - a * c, a

    q, a = jax.lax.scan(backward, gradient * free, (steps, changes, rho))
    newest = jnp.argmax(use)
    scale = jnp.where(jnp.any(use), bend[newest] / jnp.where(use[newest], length[newest], 1), 1)

    def forward(r, pair):
        s, c, weight, b = pair
        return r + s * (b - weight * (c @ r)), None

    r, _ = jax.lax.scan(forward, scale * q, (steps, changes, rho, a), reverse=True)
    return -r


def least_bend(steps: Float[Array, "m dx"], changes: Float[Array, "m dx"]) -> Float[Array, ""]:
    """The least curvature among the pairs in memory; infinite where there are none."""
    lengths = jnp.linalg.norm(steps, axis=1)
    bends = jnp.linalg.norm(changes, axis=1) / jnp.where(lengths > 0, lengths, 1)
    return jnp.min(jnp.where(lengths > 0, bends, jnp.inf))


class Newton(Solver):
    r"""Solves the reduced problem over all samples at once.

    At each ``x`` the coefficients minimise $g_\Phi$ by a damped Newton method on the structured Hessian
    $\mathrm{mean}(\partial_{22} g \otimes \Phi\Phi^T)$ (formed up to 2000 coefficients, in products beyond), from the
    coefficients before. The hypergradient is exact, by implicit differentiation; ``x`` moves by projected L-BFGS with
    backtracking.
    Features are whitened first, so the answer depends on the span of the basis and not on its conditioning;
    directions the observed contexts cannot see keep their start.

    **Arguments:**

    - `tolerance`: stop when the projected gradient is at most this share of its first value, by default the precision
      to the power 2/3, *and* the next quasi-Newton step would move ``x`` by less than the square root of the precision
      (so that a start far away, with a huge gradient, does not pass for convergence).
    - `memory`: pairs of steps the quasi-Newton method keeps.
    """

    default_steps = 200
    chunk = 5

    tolerance: float | None = None
    memory: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        whole("Newton: memory", self.memory)
        if isinstance(self.tolerance, str | int | float):
            positive("Newton: tolerance", self.tolerance)

    def prepare(self, reduced):
        return reduced.whitened()

    def _tolerance(self, eps: Any) -> Any:
        return eps ** (2 / 3) if self.tolerance is None else self.tolerance

    def init(self, reduced, key, steps, measured=None):
        start = fresh(reduced, steps)
        x = ravel_pytree(start["x"])[0]
        slope, ledger = oracles.lower_gradient(reduced, start["x"], start["W"], reduced.lower_pool, start["ledger"])
        zero, empty = jnp.zeros((), x.dtype), jnp.zeros((self.memory, len(x)), x.dtype)
        return NewtonState(
            **(start | {"ledger": ledger}),
            begun=jnp.asarray(False),
            gradient=jnp.zeros_like(x),
            value=zero,
            lower_gradient=zero,
            lower_target=jnp.finfo(x.dtype).eps ** 0.9 * jnp.linalg.norm(oracles.flatten(slope)[0]),
            scale=zero,
            span=jnp.linalg.norm(x),
            hits=jnp.int32(0),
            done=jnp.asarray(False),
            kink=jnp.asarray(False),
            steps=empty,
            changes=empty,
            pairs=jnp.int32(0),
            failures=jnp.int32(0),
            size=zero,
        )

    def search(self, reduced: Reduced, state: NewtonState) -> Trial:
        """Along the quasi-Newton direction, the full step first, then shorter ones until the objective falls."""
        x, _ = ravel_pytree(state.x)
        lo, hi = (ravel_pytree(side)[0] for side in reduced.problem.x_bounds)
        g, eps = state.gradient, jnp.finfo(x.dtype).eps
        near = jnp.minimum(state.size, eps**0.5 * (1 + jnp.abs(x)))
        free = ~(((x <= lo + near) & (g > 0)) | ((x >= hi - near) & (g < 0)))
        direction = quasi_newton(g, free, state.steps, state.changes)
        use_memory = (state.pairs > 0) & (direction @ g < 0)
        length = jnp.linalg.norm(g)
        steepest = -g * jnp.where(length > 0, 0.1 * (1 + jnp.linalg.norm(x)) / jnp.where(length > 0, length, 1), 0)
        direction = jnp.where(use_memory, jnp.where(free, direction, -g), steepest)

        def enough(point):
            slope = g @ (point.x - x)
            rounding = 32 * eps * jnp.abs(state.value)
            size = jnp.linalg.norm(projected(reduced, point.x, point.gradient))
            drowned = (-slope <= 1e2 * rounding) & (point.value <= state.value + rounding) & (size < state.size)
            lower = (point.value <= state.value + 1e-4 * slope) & (slope < 0) | drowned
            return point.sound & (lower | ~state.begun)

        def unfinished(carry):
            _, _, point, _, count = carry
            return ~enough(point) & (count < jnp.where(state.begun, _TRIALS, 1))

        def try_next(carry):  # the full step first, then shorter ones by interpolation
            length, _, point, ledger, count = carry
            slope = g @ (point.x - x)
            excess = point.value - state.value - slope
            best = jnp.where(point.sound & (excess > 0), -slope / (2 * excess), 0.25)
            length = jnp.where(count == 0, 1, length * jnp.clip(best, 0.1, 0.5))
            trial = jnp.clip(x + length * direction, lo, hi)
            return length, point, *solve_at(reduced, trial, state.W, state.lower_target, ledger), count + 1

        no, one = jnp.asarray(False), jnp.ones((), x.dtype)
        here = Point(x, state.W, state.value, g, state.lower_gradient, no, no, state.W)
        start = (one, here, here, state.ledger, jnp.int32(0))
        _, before, point, ledger, _ = jax.lax.while_loop(unfinished, try_next, start)
        moved = enough(point)
        refused = jax.tree.map(lambda a, b: jnp.where(moved, a, b), before, point)
        return Trial(point, refused, moved, free, use_memory, ledger)

    def step(self, reduced, state):
        """The first step stays at ``x0`` and solves the lower level there; each later one is a line search."""
        x, unravel = ravel_pytree(state.x)
        g, eps = state.gradient, jnp.finfo(x.dtype).eps
        trial = self.search(reduced, state)
        point, refused, moved = trial.point, trial.refused, trial.moved
        across = kink_size(reduced, x, g, refused)

        roll = lambda table, row: jnp.concatenate([row[None], table[:-1]])
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(moved, a, b), new, old)
        learned = moved & state.begun
        remember = lambda table, row: jnp.where(learned, roll(table, row), jnp.zeros_like(table))
        size = jnp.linalg.norm(projected(reduced, point.x, point.gradient))
        scale = jnp.where(state.begun, state.scale, size)
        span = jnp.maximum(state.span, jnp.linalg.norm(point.x))
        extent = jnp.maximum(jnp.linalg.norm(point.x), eps**0.35 * span)
        near_enough = eps**0.5 * jnp.where(extent > 0, extent, 1)
        # a refused step hard by shows the curvature: a jump of the gradient, or a bracket around where it vanishes
        ahead_of, rise = refused.x - x, jnp.linalg.norm(refused.gradient - g)
        run = jnp.linalg.norm(ahead_of)
        jumps = (run <= eps**0.55 * extent) & (rise > 30 * run * least_bend(state.steps, state.changes))
        kink = state.begun & jumps & (across <= eps**0.5 * scale) & (across < state.size / 2)
        pairs = jnp.where(learned, jnp.minimum(state.pairs + 1, self.memory), 0)
        steps, changes = remember(state.steps, point.x - x), remember(state.changes, point.gradient - g)
        ahead = jnp.linalg.norm(quasi_newton(point.gradient, trial.free, steps, changes))
        bracketed = (g @ ahead_of < 0) & (refused.gradient @ ahead_of > 0) & (run <= near_enough)
        settled = state.begun & ~moved & refused.sound & bracketed
        small = moved & (size <= self._tolerance(eps) * scale) & (ahead <= near_enough) & (pairs > 0)
        hits = jnp.where(small, state.hits + 1, 0)  # twice in a row, so that curvature from before does not mislead
        rounded = moved & ((ahead <= 64 * eps * extent) & (pairs > 0) | (size == 0))
        return NewtonState(
            x=pick(unravel(point.x), state.x),
            W=pick(point.W, state.W),
            step=state.step,
            limit=state.limit,
            result=jnp.where(state.begun | moved, state.result, trouble(point)),
            ledger=trial.ledger,
            begun=jnp.asarray(True),
            gradient=pick(point.gradient, g),
            value=pick(point.value, state.value),
            lower_gradient=pick(point.lower_gradient, state.lower_gradient),
            lower_target=state.lower_target,
            scale=scale,
            span=span,
            hits=hits,
            done=(hits >= 2) | ~moved & (state.hits >= 1) | settled | rounded,
            kink=kink,
            steps=steps,
            changes=changes,
            pairs=pairs,
            # a failure with an empty memory is a failure of the steepest descent: nothing is left to try
            failures=jnp.where(moved | ~state.begun, 0, jnp.where(trial.use_memory, 1, 2)).astype(jnp.int32),
            size=jnp.where(kink, across, pick(size, state.size)),
        )

    def terminate(self, reduced, state):
        done = jnp.where(state.done, Result.CONVERGED, state.result)
        done = jnp.where(state.kink & (done == Result.RUNNING), Result.KINK, done)
        done = jnp.where((state.failures >= 2) & (done == Result.RUNNING), Result.STALLED, done)
        return jnp.where(state.result == Result.RUNNING, done, state.result)

    def record(self, state):
        return {"upper": state.value, "gradient": state.size, "lower_gradient": state.lower_gradient}
