r"""Softmax regression solved exactly: at many temperatures at once, or over a basis of functions of the temperature.

$$\min_y \; \frac1n \sum_i w_i\, CE(X_i\, y / \xi, Y_i) + \lambda |y|^2 .$$

Newton's method with a line search, its systems solved by conjugate gradients. They are preconditioned in the principal
axes of the images, found once whatever the weights, in which $X^T X / n$ is a scaling.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class ExactClassifiers(eqx.Module):
    """Exact classifiers, one per temperature.

    `gradient` is the norm of the gradient at `y` relative to that at zero: how exact each is. `rounds` counts Newton
    steps.
    """

    y: Float[Array, "m pixels classes"]
    gradient: Float[Array, " m"]
    rounds: Int[Array, ""]


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

    Each temperature's gradient is `tolerance` times that at 0, or as small as rounding allows. With $z = y / \xi$ the
    temperature enters through the ridge $\lambda \xi^2 |z|^2$ alone. The Hessian
    $\frac1n \sum_i w_i (diag(p_i) - p_i p_i^T) \otimes X_i X_i^T + 2 \lambda \xi^2$ is preconditioned by
    $a X^T X / n + 2 \lambda \xi^2$ with $a$ the mean of $w_i p_{ik} (1 - p_{ik})$.
    """
    numbers = (jnp.asarray(v, images.dtype) for v in (weights, temperatures, regulariser, tolerance))
    weights, temperatures, regulariser, tolerance = numbers  # arrays all, so that other values compile nothing anew
    shape = (len(temperatures), images.shape[1], classes)
    start = jnp.zeros(shape, images.dtype) if start is None else jnp.asarray(start, images.dtype)
    return _minimisers(images, labels, weights, temperatures, regulariser, classes, start, tolerance)


@eqx.filter_jit
def _minimisers(images, labels, weights, temperatures, regulariser, classes, start, tolerance) -> ExactClassifiers:
    share, size = weights / len(images), jnp.linalg.norm
    spread, axes = _principal_axes(images)

    def one(temperature, y):
        ridge = regulariser * temperature**2
        loss = lambda logits, z: share @ entropies(logits, labels) + ridge * jnp.sum(z**2)

        def precondition(logits):
            chances = jax.nn.softmax(logits)
            bend = jnp.sum(share @ (chances * (1 - chances))) / classes
            return lambda v: _matmul(axes, _matmul(axes.T, v) / (bend * spread + 2 * ridge)[:, None])

        z = y / temperature
        z = z - jnp.mean(z, axis=-1, keepdims=True)  # what all classes share changes no probability, and costs
        z, last, first, rounds = _newton(partial(_matmul, images), loss, precondition, size, z, tolerance / 2)
        return z * temperature, last / jnp.maximum(first, jnp.finfo(z.dtype).tiny), rounds

    y, gradient, rounds = jax.vmap(one)(temperatures, start)
    return ExactClassifiers(y, gradient, jnp.max(rounds))


@eqx.filter_jit
def best_coefficients(
    images: Float[Array, "n d"],
    labels: Int[Array, " n"],
    weights: Float[Array, " n"],
    regulariser: Float[Array, ""],
    phi: Float[Array, "m k"],
    temperatures: Float[Array, " m"],
    shares: Float[Array, " m"],
    start: Float[Array, "k d c"],
) -> Float[Array, "k d c"]:
    r"""The best policy that a basis can express: the reduced lower level of the cleaning experiment, from `start`,

    $$\min_W \sum_m q_m \Big[ \frac1n \sum_i w_i\, CE\Big(\frac{X_i}{\xi_m} \sum_k \phi_k(\xi_m) W_k, Y_i\Big)
    + \lambda \Big|\sum_k \phi_k(\xi_m) W_k\Big|^2 \Big]$$

    over a quadrature of temperatures. The Hessian is preconditioned by $B \otimes X^T X / n + 2 \lambda C$, with
    $C = \sum_m q_m \phi \phi^T$ and $B$ the same over $\xi_m^2$, times the mean weight and the curvature of even
    chances: a scaling, in coordinates that make both diagonal.

    **Arguments:**

    - `images`, `labels`, `weights`: the training images, and the weight of each.
    - `regulariser`: $\lambda$.
    - `phi`, `temperatures`, `shares`: the features, nodes and weights of the quadrature.
    - `start`: coefficients to begin with.

    **Returns:** the coefficients, shaped like `start`.

    **Example:**

    >>> images, labels = jnp.eye(4), jnp.array([0, 1, 0, 1])
    >>> one, start = jnp.ones(1), jnp.zeros((1, 4, 2))  # one temperature, a constant policy
    >>> weights, ridge = jnp.ones(4), jnp.asarray(0.1)
    >>> cb.gallery.best_coefficients(images, labels, weights, ridge, one[:, None], one, one, start).shape
    (1, 4, 2)
    """
    classes = start.shape[-1]
    policy = partial(_einsum, "mk,kdc->mdc", phi)
    scores = lambda W: _einsum("nd,mdc->mnc", images, policy(W)) / temperatures[:, None, None]

    def loss(logits, W):
        entropy = entropies(logits, jnp.broadcast_to(labels, logits.shape[:2]))
        return shares @ (entropy @ weights / len(images) + regulariser * jnp.sum(policy(W) ** 2, axis=(1, 2)))

    even = jnp.mean(weights) / classes * (1 - 1 / classes)
    inner = lambda each: (phi * each[:, None]).T @ phi
    length, turn = jnp.linalg.eigh(inner(shares))
    root = turn / jnp.sqrt(jnp.maximum(length, 1e-6 * length[-1]))  # root^T C root = 1
    bend, turn = jnp.linalg.eigh(root.T @ inner(even * shares / temperatures**2) @ root)
    spread, axes = _principal_axes(images)
    scale = jnp.maximum(bend, 0)[:, None] * spread + 2 * regulariser

    def precondition(v):
        turned = jnp.einsum("kl,kdc,de->lec", root @ turn, v, axes) / scale[:, :, None]
        return jnp.einsum("kl,lec,de->kdc", root @ turn, turned, axes)

    size = lambda v: jnp.sqrt(jnp.sum(v * precondition(v)))
    return _newton(scores, loss, lambda _: precondition, size, start, jnp.asarray(1e-4, start.dtype))[0]


def entropies(logits: Float[Array, "*m n c"], labels: Int[Array, "*m n"]) -> Float[Array, "*m n"]:
    """The cross-entropy of each row of logits with its label.

    **Arguments:**

    - `logits`: one row per case, one column per class.
    - `labels`: the class of each row.

    **Returns:** one number per row.

    **Example:**

    >>> [round(float(each), 3) for each in cb.gallery.entropies(jnp.zeros((2, 2)), jnp.array([0, 1]))]
    [0.693, 0.693]
    """
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _principal_axes(images: Float[Array, "n d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """The eigenvalues and eigenvectors of ``X^T X / n``."""
    spread, axes = jnp.linalg.eigh(_matmul(images.T, images) / len(images))
    return jnp.maximum(spread, 0), axes


def _newton(
    scores: Callable, loss: Callable, precondition: Callable, size: Callable, start: Array, tolerance: Array
) -> tuple[Array, Array, Array, Array]:
    """The minimiser of ``loss(scores(z), z)``, with linear scores, where the gradient is `tolerance` of that at zero.

    And the sizes of the gradient there and at zero, and how many steps it took: far fewer than the bounds on loops, for
    convex problems of this kind. Next to it stops where rounding hides the fall.
    """
    dtype = start.dtype
    slope = jax.grad(lambda z: loss(scores(z), z))
    first = size(slope(jnp.zeros_like(start)))
    goal = tolerance * first

    def advance(carry):
        z, gradient, _, count = carry
        here, before = scores(z), size(gradient)
        effort = jnp.clip(goal / jnp.maximum(before, jnp.finfo(dtype).tiny), 1e-3, 0.1)  # the next step does the rest
        bend = jax.linearize(slope, z)[1]
        p, _ = jax.scipy.sparse.linalg.cg(bend, -gradient, tol=effort, maxiter=500, M=precondition(here))
        change = scores(p)  # no other product is needed along the line
        along = jax.value_and_grad(lambda t: loss(here + t * change, z + t * p))
        value, fall = along(jnp.zeros((), dtype))
        rounding = 32 * jnp.finfo(dtype).eps * jnp.abs(value)

        def too_long(t):  # uphill, or far beyond the minimum
            ahead, rise = along(t)
            return ((ahead > value + rounding) | (rise > jnp.abs(fall) / 2)) & (t > 2.0**-30)

        z = z + jax.lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), dtype)) * p
        gradient = slope(z)
        hidden = (jnp.abs(fall) / 2 <= rounding) & (size(gradient) > before / 2)
        return z, gradient, hidden, count + 1

    unfinished = lambda carry: (size(carry[1]) > goal) & ~carry[2] & (carry[3] < 60)
    begin = (start, slope(start), jnp.array(False), jnp.int32(0))
    z, gradient, _, count = jax.lax.while_loop(unfinished, advance, begin)
    return z, size(gradient), first, count
