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
from jaxtyping import Array, Float, Int

_ROUNDS, _PRODUCTS, _HALVINGS = 60, 500, 30


_EFFORT = 0.1  # how exactly, at least, each Newton step is solved for


class Fit(eqx.Module):
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
    weights: Float[Array, " n"],
    temperatures: Float[Array, " m"],
    regulariser: Any,
    classes: int,
    start: Float[Array, "m pixels classes"] | None = None,
    tolerance: Any = 1e-6,
) -> Fit:
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
    return _fit(images, labels, weights, temperatures, regulariser, classes, start, tolerance)


@eqx.filter_jit
def _fit(images, labels, weights, temperatures, regulariser, classes, start, tolerance) -> Fit:
    (n, d), m, dtype = images.shape, len(temperatures), images.dtype
    exactly = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    scores = lambda v: exactly(images, v.reshape(d, -1)).reshape(n, m, classes)
    collect = lambda r: exactly(images.T, r.reshape(n, -1)).reshape(d, m, classes)
    inner = lambda a, b: jnp.sum(a * b, axis=(0, 2))
    per_temperature = lambda a: a[:, None]

    ridge = regulariser * temperatures**2
    share = (weights / n)[:, None, None]
    target = jax.nn.one_hot(labels, classes, dtype=dtype)[:, None, :]
    spread, axes = jnp.linalg.eigh(exactly(images.T, images) / n)
    spread = jnp.maximum(spread, 0)[:, None, None]

    def slope(z, chances):
        return collect(share * (chances - target)) + 2 * per_temperature(ridge) * z

    def newton_step(chances, right, effort):
        """``H p = right`` for each temperature, until the residual is `effort` of the right-hand side."""
        bend = inner(share * chances, 1 - chances) / classes
        scale = per_temperature(bend) * spread + 2 * per_temperature(ridge)
        rotate = lambda matrix, r: exactly(matrix, r.reshape(d, -1)).reshape(d, m, classes)
        precondition = lambda r: rotate(axes, rotate(axes.T, r) / scale)

        def image(v):
            change = scores(v)
            centred = change - jnp.sum(chances * change, axis=-1, keepdims=True)
            return collect(share * chances * centred) + 2 * per_temperature(ridge) * v

        enough = effort**2 * inner(right, right)

        def unfinished(carry):
            _, residual, _, _, count = carry
            return jnp.any(inner(residual, residual) > enough) & (count < _PRODUCTS)

        def advance(carry):
            p, residual, direction, fall, count = carry
            going = inner(residual, residual) > enough
            bent = image(direction)
            length = per_temperature(jnp.where(going, fall / jnp.where(going, inner(direction, bent), 1), 0))
            residual = residual - length * bent
            ready = precondition(residual)
            new_fall = inner(residual, ready)
            turn = per_temperature(jnp.where(going, new_fall / jnp.where(going, fall, 1), 0))
            return p + length * direction, residual, ready + turn * direction, new_fall, count + 1

        ready = precondition(right)
        carry = (jnp.zeros_like(right), right, ready, inner(right, ready), jnp.int32(0))
        p, _, _, _, count = jax.lax.while_loop(unfinished, advance, carry)
        return p, count

    def line_search(z, logits, p):
        """The first of 1, 1/2, 1/4, ... that goes downhill and not far beyond the minimum: no product is needed."""
        change = scores(p)

        def along(t):
            moved, there = logits + per_temperature(t) * change, z + per_temperature(t) * p
            value = -inner(share * target, jax.nn.log_softmax(moved))
            rise = inner(share * (jax.nn.softmax(moved) - target), change)
            return value + ridge * inner(there, there), rise + 2 * ridge * inner(there, p)

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
            lambda carry: ~jnp.all(carry[1]) & (carry[2] < _HALVINGS),
            halve,
            (jnp.ones(m, dtype), good(jnp.ones(m, dtype)), jnp.int32(0)),
        )
        return t, jnp.abs(fall) / 2 <= rounding

    size = lambda gradient: jnp.sqrt(inner(gradient, gradient))
    at_zero = size(slope(jnp.zeros((d, m, classes), dtype), jnp.full((1, m, classes), 1 / classes, dtype)))
    goal = tolerance * at_zero / 2  # half, so that a rounded check still passes

    def unfinished(carry):
        _, _, _, _, active, count, _ = carry
        return jnp.any(active) & (count < _ROUNDS)

    def advance(carry):
        z, logits, chances, gradient, active, count, spent = carry
        before = size(gradient)
        effort = jnp.clip(goal / jnp.where(before > 0, before, 1), 1e-3, _EFFORT)
        p, products = newton_step(chances, -gradient * per_temperature(active), effort)
        t, hidden = line_search(z, logits, p)
        z = z + per_temperature(t) * p
        logits = scores(z)
        chances = jax.nn.softmax(logits)
        gradient = slope(z, chances)
        after = size(gradient)
        active = active & (after > goal) & ~(hidden & (after > before / 2))
        return z, logits, chances, gradient, active, count + 1, spent + products

    z = jnp.moveaxis(start, 0, 1) / per_temperature(temperatures)
    z = z - jnp.mean(z, axis=-1, keepdims=True)  # what all classes share changes no probability, and costs
    logits = scores(z)
    chances = jax.nn.softmax(logits)
    gradient = slope(z, chances)
    carry = (z, logits, chances, gradient, size(gradient) > goal, jnp.int32(0), jnp.int32(0))
    z, _, _, gradient, _, count, spent = jax.lax.while_loop(unfinished, advance, carry)
    relative = size(gradient) / jnp.maximum(at_zero, jnp.finfo(dtype).tiny)
    return Fit(jnp.moveaxis(z * per_temperature(temperatures), 1, 0), relative, count, spent)
