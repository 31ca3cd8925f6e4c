r"""Softmax regression solved exactly, at many temperatures at once.

$$\min_y \; \frac1n \sum_i w_i\, CE(X_i\, y / \xi, Y_i) + \lambda |y|^2 .$$

With $z = y / \xi$ the temperature enters through the ridge $\lambda \xi^2 |z|^2$ alone, so one product of the images
with the coefficients of all temperatures, side by side, serves them all.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_MOST_ROUNDS, _MOST_PRODUCTS, _MOST_HALVINGS = 60, 500, 30  # far beyond what convex problems of this kind take
_EFFORT = 0.1  # how exactly, at least, each Newton step is solved for
_FINEST = 1e-3  # and at most: the next round makes up for the rest

_matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

Coefficients = Float[Array, "d m c"]  # pixels, temperatures, classes
Scores = Float[Array, "n m c"]  # images, temperatures, classes
Each = Float[Array, " m"]  # one number a temperature


class ExactClassifiers(eqx.Module):
    """Exact classifiers, one a temperature.

    `gradient` is the norm of the gradient at `y` as a share of the one at zero: how exact each is. `rounds` counts
    Newton steps, `products` products of the Hessians with vectors, each for all temperatures together.
    """

    y: Float[Array, "m pixels classes"]
    gradient: Float[Array, " m"]
    rounds: Int[Array, ""]
    products: Int[Array, ""]


def fit(
    images: Float[Array, "n pixels"],
    labels: Int[Array, " n"],
    weights: Any,
    temperatures: Any,
    regulariser: Any,
    classes: int,
    start: Any = None,
    tolerance: Any = 1e-6,
) -> ExactClassifiers:
    r"""The minimisers of the objective above, in the precision of the images, from `start` (zero by default).

    Newton's method with a line search, its systems solved by conjugate gradients until each temperature's gradient is
    `tolerance` of the one at zero, or as small as rounding lets. The Hessian
    $\frac1n \sum_i w_i (diag(p_i) - p_i p_i^T) \otimes X_i X_i^T + 2 \lambda \xi^2$ is preconditioned by
    $a X^T X / n + 2 \lambda \xi^2$ with $a$ the mean of $w_i p_{ik} (1 - p_{ik})$: in the principal axes of the images,
    found once whatever the weights, that is a scaling.
    """
    numbers = (jnp.asarray(v, images.dtype) for v in (weights, temperatures, regulariser, tolerance))
    weights, temperatures, regulariser, tolerance = numbers  # arrays all, so that other values compile nothing anew
    shape = (len(temperatures), images.shape[1], classes)
    start = jnp.zeros(shape, images.dtype) if start is None else jnp.asarray(start, images.dtype)
    return _minimisers(images, labels, weights, temperatures, regulariser, classes, start, tolerance)


def _inner(a: Float[Array, "..."], b: Float[Array, "..."]) -> Each:
    """Inner products over pixels or images and classes, temperature by temperature."""
    return jnp.sum(a * b, axis=(0, 2))


def _size(a: Coefficients) -> Each:
    return jnp.sqrt(_inner(a, a))


class _Regression(eqx.Module):
    """The objective in ``z``: images, their weights and labels, the ridges, the principal axes of the images."""

    images: Float[Array, "n d"]
    share: Float[Array, "n 1 1"]
    target: Float[Array, "n 1 c"]
    ridge: Each
    spread: Float[Array, "d 1 1"]
    axes: Float[Array, "d d"]

    @staticmethod
    def of(images: Array, labels: Array, weights: Array, ridge: Each, classes: int) -> "_Regression":
        spread, axes = jnp.linalg.eigh(_matmul(images.T, images) / len(images))
        return _Regression(
            images,
            (weights / len(images))[:, None, None],
            jax.nn.one_hot(labels, classes, dtype=images.dtype)[:, None, :],
            ridge,
            jnp.maximum(spread, 0)[:, None, None],
            axes,
        )

    def scores(self, v: Coefficients) -> Scores:
        """``X v``."""
        return _matmul(self.images, v.reshape(len(v), -1)).reshape(-1, *v.shape[1:])

    def collect(self, r: Scores) -> Coefficients:
        """``X^T r``."""
        return _matmul(self.images.T, r.reshape(len(r), -1)).reshape(-1, *r.shape[1:])

    def slope(self, z: Coefficients, chances: Float[Array, "..."]) -> Coefficients:
        """The gradient in ``z``, given the probabilities there."""
        return self.collect(self.share * (chances - self.target)) + 2 * self.ridge[:, None] * z

    def newton_step(self, chances: Scores, right: Coefficients, effort: Each) -> tuple[Coefficients, Int[Array, ""]]:
        """``H p = right`` for each temperature, until the residual is `effort` of the right-hand side; and products."""
        bend = _inner(self.share * chances, 1 - chances) / self.target.shape[-1]
        scale = bend[:, None] * self.spread + 2 * self.ridge[:, None]
        rotate = lambda matrix, r: _matmul(matrix, r.reshape(len(r), -1)).reshape(r.shape)
        precondition = lambda r: rotate(self.axes, rotate(self.axes.T, r) / scale)

        def image(v):
            change = self.scores(v)
            centred = change - jnp.sum(chances * change, axis=-1, keepdims=True)
            return self.collect(self.share * chances * centred) + 2 * self.ridge[:, None] * v

        enough = effort**2 * _inner(right, right)

        def unfinished(carry):
            _, residual, _, _, count = carry
            return jnp.any(_inner(residual, residual) > enough) & (count < _MOST_PRODUCTS)

        def advance(carry):
            p, residual, direction, fall, count = carry
            going = _inner(residual, residual) > enough
            bent = image(direction)
            length = jnp.where(going, fall / jnp.where(going, _inner(direction, bent), 1), 0)[:, None]
            residual = residual - length * bent
            ready = precondition(residual)
            new_fall = _inner(residual, ready)
            turn = jnp.where(going, new_fall / jnp.where(going, fall, 1), 0)[:, None]
            return p + length * direction, residual, ready + turn * direction, new_fall, count + 1

        ready = precondition(right)
        carry = (jnp.zeros_like(right), right, ready, _inner(right, ready), jnp.int32(0))
        p, _, _, _, count = jax.lax.while_loop(unfinished, advance, carry)
        return p, count

    def line_search(self, z: Coefficients, logits: Scores, p: Coefficients) -> tuple[Each, Bool[Array, " m"]]:
        """The first of 1, 1/2, 1/4, ... that goes downhill and not far beyond the minimum: no product is needed.

        And where the fall is hidden by rounding.
        """
        change, m, dtype = self.scores(p), len(self.ridge), z.dtype

        def along(t):
            moved, there = logits + t[:, None] * change, z + t[:, None] * p
            value = -_inner(self.share * self.target, jax.nn.log_softmax(moved))
            rise = _inner(self.share * (jax.nn.softmax(moved) - self.target), change)
            return value + self.ridge * _inner(there, there), rise + 2 * self.ridge * _inner(there, p)

        value, fall = along(jnp.zeros(m, dtype))
        rounding = 32 * jnp.finfo(dtype).eps * jnp.abs(value)

        def good(t):
            new_value, rise = along(t)
            return (new_value <= value + rounding) & (rise <= jnp.abs(fall) / 2)

        def halve(carry):
            t, fine, count = carry
            t = jnp.where(fine, t, t / 2)
            return t, good(t), count + 1

        t, _, _ = jax.lax.while_loop(
            lambda carry: ~jnp.all(carry[1]) & (carry[2] < _MOST_HALVINGS),
            halve,
            (jnp.ones(m, dtype), good(jnp.ones(m, dtype)), jnp.int32(0)),
        )
        return t, jnp.abs(fall) / 2 <= rounding


class _Iterate(eqx.Module):
    """Where Newton's method stands, and which temperatures still move."""

    z: Coefficients
    logits: Scores
    chances: Scores
    gradient: Coefficients
    active: Bool[Array, " m"]
    rounds: Int[Array, ""]
    products: Int[Array, ""]


@eqx.filter_jit
def _minimisers(images, labels, weights, temperatures, regulariser, classes, start, tolerance) -> ExactClassifiers:
    (_, d), m, dtype = images.shape, len(temperatures), images.dtype
    problem = _Regression.of(images, labels, weights, regulariser * temperatures**2, classes)
    at_zero = _size(problem.slope(jnp.zeros((d, m, classes), dtype), jnp.full((1, m, classes), 1 / classes, dtype)))
    goal = tolerance * at_zero / 2  # half, so that a rounded check still passes

    def at(z):
        logits = problem.scores(z)
        chances = jax.nn.softmax(logits)
        return z, logits, chances, problem.slope(z, chances)

    def unfinished(now):
        return jnp.any(now.active) & (now.rounds < _MOST_ROUNDS)

    def advance(now):
        before = _size(now.gradient)
        effort = jnp.clip(goal / jnp.where(before > 0, before, 1), _FINEST, _EFFORT)
        p, products = problem.newton_step(now.chances, -now.gradient * now.active[:, None].astype(dtype), effort)
        t, hidden = problem.line_search(now.z, now.logits, p)
        there = at(now.z + t[:, None] * p)
        after = _size(there[-1])
        active = now.active & (after > goal) & ~(hidden & (after > before / 2))
        return _Iterate(*there, active, now.rounds + 1, now.products + products)

    z = jnp.moveaxis(start, 0, 1) / temperatures[:, None]
    first = at(z - jnp.mean(z, axis=-1, keepdims=True))  # what all classes share changes no probability, and costs
    begin = _Iterate(*first, _size(first[-1]) > goal, jnp.int32(0), jnp.int32(0))
    last = jax.lax.while_loop(unfinished, advance, begin)
    relative = _size(last.gradient) / jnp.maximum(at_zero, jnp.finfo(dtype).tiny)
    y = jnp.moveaxis(last.z * temperatures[:, None], 1, 0)
    return ExactClassifiers(y, relative, last.rounds, last.products)
