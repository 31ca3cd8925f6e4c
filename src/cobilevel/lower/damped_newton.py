"""A damped Newton method: for the coefficients of the reduced lower level, and for the ``y`` of one context."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .. import trees
from ..derivatives import conjugate_gradient, positive_solve

DENSE_LIMIT = 2000  # the largest Hessian that is formed; beyond, only its products with vectors are

_FIRST_DAMPING, _LAST_DAMPING, _NO_DAMPING = 1e-3, 1e12, 1e-7  # relative to the curvature of each coordinate
_LENGTHS = 40  # evaluations along one direction: enough for any scale, since shortening and stretching accelerate
_LEVEL = 0.5  # of the slope along a direction, left where a step ends: a Newton step leaves none of a quadratic
_ARMIJO = 1e-4  # of the decrease that the slope promised (Armijo), the customary constant
_NOISE_OF_SUMS = 32  # the noise of values and gradients, in units of their own precision: they are long sums
_CLOSE = 0.75  # exponent of the precision: the next step, relative to the point; Newton's steps square it
_SLACK = 1e3  # times its noise, where the gradient falls no further


class Curvature(eqx.Module):
    """An objective with second derivatives, either formed or as products. `hessian` below is whichever it keeps."""

    @abstractmethod
    def local(self, z: Float[Array, " n"]) -> tuple[Array, Array, Any]:
        """Value, gradient and hessian at ``z``."""

    @abstractmethod
    def value_and_gradient(self, z: Float[Array, " n"]) -> tuple[Array, Array]:
        """Value and gradient at ``z`` alone."""

    @abstractmethod
    def solve(
        self, hessian: Any, right: Float[Array, " n"], damping: Array, effort: Array
    ) -> tuple[Array, Array, Array]:
        """``(H + diag(damping)) p = right``: ``(p, usable, Hessian-vector products spent)``."""

    @abstractmethod
    def metric(self, hessian: Any, gradient: Float[Array, " n"]) -> tuple[Float[Array, " n"], int]:
        """The curvature of each coordinate, in which lengths and damping are measured, and the products spent on it."""


class Dense(Curvature):
    """`model(z)` returns value, gradient and the Hessian matrix; `slope(z)`, where given, the first two for less."""

    model: Callable = eqx.field(converter=jax.jit)  # used in several places of a program, and traced once
    slope: Callable | None = None

    def local(self, z):
        return self.model(z)

    def value_and_gradient(self, z):
        return self.model(z)[:2] if self.slope is None else self.slope(z)

    def solve(self, hessian, right, damping, effort):
        p, usable = positive_solve(hessian + jnp.diag(damping), right)
        return jnp.where(usable, p, 0), usable, jnp.int32(0)

    def metric(self, hessian, gradient):
        return jnp.abs(jnp.diagonal(hessian)), 0


class Blocks(Dense):
    """As ``Dense``, with a Hessian that has blocks on its diagonal, ``(N, d, d)``, and nothing else."""

    def solve(self, hessian, right, damping, effort):
        more = damping.reshape(hessian.shape[:2])[:, :, None] * jnp.eye(hessian.shape[1], dtype=damping.dtype)
        p, usable = positive_solve(hessian + more, right)
        return jnp.where(usable, p, 0), usable, jnp.int32(0)

    def metric(self, hessian, gradient):
        return jnp.abs(jnp.diagonal(hessian, axis1=1, axis2=2)).reshape(-1), 0


class MatrixFree(Curvature):
    """`slope(z)` returns value and gradient, `product(z, v)` the Hessian at ``z`` times ``v``."""

    slope: Callable
    product: Callable
    steps: int = eqx.field(static=True, default=250)

    def local(self, z):
        return *self.slope(z), z

    def value_and_gradient(self, z):
        return self.slope(z)

    def solve(self, hessian, right, damping, effort):
        image = lambda v: self.product(hessian, v) + damping * v
        p, spent, curvature = conjugate_gradient(image, right, effort, self.steps)
        return p, curvature > 0, spent

    def metric(self, hessian, gradient):
        norm = gradient @ gradient
        tiny = jnp.finfo(gradient.dtype).tiny
        return jnp.full_like(gradient, jnp.abs(gradient @ self.product(hessian, gradient)) / jnp.maximum(norm, tiny)), 1


class Minimum(eqx.Module):
    """Where ``minimise`` ended.

    `evaluations` counts calls of value, gradient and hessian together, `slopes` those of value and gradient alone,
    `products` Hessian-vector products.
    """

    point: Float[Array, " n"]
    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    hessian: Any
    converged: Bool[Array, ""]
    evaluations: Int[Array, ""]
    products: Int[Array, ""]
    slopes: Int[Array, ""]


class _Place(eqx.Module):
    """A point with what is known there; `metric` is the curvature of each coordinate, positive."""

    z: Float[Array, " n"]
    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    hessian: Any
    metric: Float[Array, " n"]

    @staticmethod
    def at(z: Float[Array, " n"], local: tuple[Array, Array, Any], objective: Curvature) -> tuple["_Place", int]:
        value, gradient, hessian = local
        metric, products = objective.metric(hessian, gradient)
        length, tiny = jnp.linalg.norm(z), jnp.finfo(z.dtype).tiny
        most = jnp.max(metric)
        fallback = jnp.maximum(jnp.linalg.norm(gradient) / jnp.where(length > 0, length, 1), tiny)
        metric = jnp.where(metric > 0, metric, jnp.where(most > 0, most, fallback))
        return _Place(z, value, gradient, hessian, metric), products

    @property
    def rounding(self) -> Float[Array, ""]:
        """The noise of the value."""
        return _NOISE_OF_SUMS * jnp.finfo(self.z.dtype).eps * jnp.abs(self.value)

    def size(self) -> Float[Array, ""]:
        """The gradient, measured so that the units of the coordinates do not matter."""
        return jnp.sqrt(jnp.sum(self.gradient**2 / self.metric))

    def small(self, target: Any, slack: float = 1.0) -> Bool[Array, ""]:
        """Below the target and close by (the target says little where the start was far away); or mere rounding."""
        eps, size = jnp.finfo(self.z.dtype).eps, self.size()
        length = jnp.sqrt(jnp.sum(self.metric * self.z**2))
        floor = _NOISE_OF_SUMS * eps * jnp.maximum(length, jnp.sqrt(jnp.abs(self.value)))
        below = jnp.linalg.norm(self.gradient) <= slack * target
        close = below & (size <= slack * eps**_CLOSE * length) | (size <= slack * floor)
        return close & jnp.isfinite(size)


class _Search(eqx.Module):
    """A search along a direction: the `length` tried last with the `value` and the `slope` there; the ends of the
    bracket, the upper one infinite until it is known, with the slopes there; and the number of trials."""

    length: Float[Array, ""]
    value: Float[Array, ""]
    slope: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    low_slope: Float[Array, ""]
    high_slope: Float[Array, ""]
    count: Int[Array, ""]

    def narrowed(self, too_far: Bool[Array, ""]) -> "_Search":
        """With the last trial as an end of the bracket."""
        pick = lambda new, old, yes: jnp.where(yes, new, old)
        return _Search(
            self.length,
            self.value,
            self.slope,
            low=pick(self.length, self.low, ~too_far),
            high=pick(self.length, self.high, too_far),
            low_slope=pick(self.slope, self.low_slope, ~too_far),
            high_slope=pick(self.slope, self.high_slope, too_far),
            count=self.count,
        )

    def following(self) -> Float[Array, ""]:
        """The next length: where the slope vanishes on the line through those at the ends, every other time the
        middle; while one end is missing, lengths that grow or shrink faster and faster."""
        width, turn = self.high - self.low, self.count.astype(self.low.dtype)
        rises = jnp.isfinite(self.high_slope) & (self.high_slope > 0)
        share = -self.low_slope / jnp.where(rises, self.high_slope - self.low_slope, 1)
        inner = self.low + width * jnp.where(rises & (self.count % 2 == 1), jnp.clip(share, 0.1, 0.9), 0.5)
        wide = self.high > 100 * self.low
        middle = jnp.where(self.low > 0, jnp.sqrt(self.low) * jnp.sqrt(self.high), self.length * 10.0**-turn)
        blind = wide & ((self.low > 0) | ~rises)
        longer = self.length * 4.0**turn
        return jnp.where(jnp.isinf(self.high), longer, jnp.where(blind, middle, inner))


def _search(
    objective: Curvature, here: _Place, p: Float[Array, " n"], first: tuple[Array, Array], usable: Bool[Array, ""]
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """The length to go along ``p``, from the value and gradient at ``z + p``, and the evaluations spent; 0 for none.

    Ends where the objective has fallen by a fair share and its slope by half. Slopes decide, as far as they can: they
    keep their meaning where the decrease drowns in rounding.
    """
    steep = here.gradient @ p

    def falls(s):
        """Whether the value is as low as it must be; where rounding hides the decrease, not higher."""
        seen = s.value <= here.value + _ARMIJO * s.length * steep
        hidden = (-s.length * steep <= 2 * here.rounding) & (s.value <= here.value + here.rounding)
        return jnp.isfinite(s.slope) & (seen | hidden)

    def level(s):
        return falls(s) & (jnp.abs(s.slope) <= _LEVEL * jnp.abs(steep))

    def unfinished(s):
        return usable & ~level(s) & (s.count < _LENGTHS)

    def try_next(s):
        s = s.narrowed(~falls(s) | (s.slope > 0))
        length = s.following()
        value, gradient = objective.value_and_gradient(here.z + length * p)
        return _Search(length, value, gradient @ p, s.low, s.high, s.low_slope, s.high_slope, s.count + 1)

    zero, one = jnp.zeros_like(steep), jnp.ones_like(steep)
    start = _Search(one, first[0], first[1] @ p, zero, jnp.inf * one, steep, jnp.inf * one, jnp.int32(1))
    end = jax.lax.while_loop(unfinished, try_next, start)
    return jnp.where(usable, jnp.where(level(end), end.length, end.low), 0), end.count - 1


def _along(
    objective: Curvature, here: _Place, p: Float[Array, " n"], usable: Bool[Array, ""]
) -> tuple[tuple[Array, Array, Any], Float[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """What is known at the end of a search along ``p``, the length gone, and the evaluations spent, of both kinds.

    The whole step comes first and is often taken, so its hessian is computed at once. A loop that is passed twice where
    it is not: the hessian is compiled once, and mapped over problems, computed again only where one of them needs it.
    """

    def look(carry):
        _, length, passes, slopes, _ = carry
        local = objective.local(here.z + length * p)
        first = passes == 0
        found, more = _search(objective, here, p, local[:2], usable & first)
        length = jnp.where(first, found, length)
        return local, length, passes + 1, slopes + more, first & (length > 0) & (length != 1)

    known = (here.value, here.gradient, here.hessian)
    start = (known, jnp.ones_like(here.value), jnp.int32(0), jnp.int32(0), jnp.asarray(True))
    return jax.lax.while_loop(lambda carry: carry[-1], look, start)[:-1]


class _Progress(eqx.Module):
    """What evolves in ``minimise``: the place, the damping, whether rounding leaves no more to do, and the counts."""

    here: _Place
    damping: Float[Array, ""]
    exhausted: Bool[Array, ""]
    steps: Int[Array, ""]
    evaluations: Int[Array, ""]
    products: Int[Array, ""]
    slopes: Int[Array, ""]


def _advance(objective: Curvature, target: Any, now: _Progress) -> _Progress:
    """One Newton step: a direction, a length along it, and the damping that follows from how it went."""
    here, eps = now.here, jnp.finfo(now.here.z.dtype).eps
    effort = jnp.clip(target / jnp.linalg.norm(here.gradient), 1e-2 * eps**0.5, 1e-1)
    p, usable, products = objective.solve(here.hessian, -here.gradient, now.damping * here.metric, effort)
    steep = here.gradient @ p
    usable = usable & (steep < 0) & jnp.all(jnp.isfinite(p))
    local, length, evaluations, slopes = _along(objective, here, p, usable)
    moved = length > 0
    there, looked = _Place.at(here.z + length * p, local, objective)
    promised = (now.damping * jnp.sum(here.metric * p**2) - steep) / 2
    gained = here.value - there.value
    hidden = promised <= here.rounding  # the decrease drowns in rounding: only the gradient can tell
    shrinks = there.size() < here.size()
    better = moved & (~hidden | shrinks)
    good = (gained > 0.75 * promised) | hidden & shrinks | (length > 1)
    relaxed = jnp.where(good, now.damping / 10, now.damping)
    relaxed = jnp.where(relaxed > _NO_DAMPING, relaxed, 0)
    damping = jnp.where(better, relaxed, jnp.maximum(10 * now.damping, _FIRST_DAMPING))
    return _Progress(
        trees.where(better, there, here),
        damping,
        usable & hidden & ~better,
        now.steps + 1,
        now.evaluations + evaluations,
        now.products + products + looked,
        now.slopes + slopes,
    )


def minimise(objective: Curvature, start: Float[Array, " n"], target: Any, steps: int = 200) -> Minimum:
    """Newton's method with a search along its direction, until the gradient norm is at most `target` or as small as
    rounding lets.

    Undamped directions are tried first, and damping grows only where there is none: where the Hessian is not positive
    definite (or where it vanishes, as it does at zero flow in a traffic network). The search is for kinks of the
    second derivative, as penalties have them, across which full steps go back and forth; damping would slow that
    down. Once the decrease drowns in rounding, the gradient decides.
    """

    def unfinished(now):
        going = ~now.exhausted & (now.damping <= _LAST_DAMPING) & (now.steps < steps)
        return going & ~now.here.small(target) & jnp.all(jnp.isfinite(now.here.gradient))

    here, spent = _Place.at(start, objective.local(start), objective)
    zero, none = jnp.zeros((), start.dtype), jnp.int32(0)
    first = _Progress(here, zero, jnp.asarray(False), none, jnp.int32(1), jnp.int32(spent), none)
    end = jax.lax.while_loop(unfinished, lambda now: _advance(objective, target, now), first)
    here = end.here
    converged = here.small(target) | end.exhausted & here.small(target, _SLACK)
    return Minimum(
        here.z, here.value, here.gradient, here.hessian, converged, end.evaluations, end.products, end.slopes
    )
