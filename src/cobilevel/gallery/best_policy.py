r"""The best policy that a basis can express: the reduced lower level of the cleaning experiment, solved exactly.

$$\min_W \sum_m q_m \Big[ \frac1n \sum_i w_i\, CE\Big(\frac{X_i}{\xi_m} \sum_k \phi_k(\xi_m) W_k, Y_i\Big)
+ \lambda \Big|\sum_k \phi_k(\xi_m) W_k\Big|^2 \Big]$$

over a quadrature of temperatures. Newton's method, its systems solved by conjugate gradients.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_MOST_NEWTON_STEPS, _MOST_CG_STEPS, _MOST_BACKTRACKS = 30, 200, 12
_CG_EFFORT = 0.05  # how exactly each Newton step is solved for
_SLOPE_LEFT = 1e-4  # as a share of the gradient at zero


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
    """The coefficients, from `start`."""
    classes, count = start.shape[-1], len(images)
    target = jax.nn.one_hot(labels, classes, dtype=images.dtype)
    highest = jax.lax.Precision.HIGHEST

    def objective(W):
        y = jnp.einsum("mk,kdc->mdc", phi, W, precision=highest)
        logits = jnp.einsum("nd,mdc->mnc", images, y, precision=highest) / temperatures[:, None, None]
        entropy = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits * target, axis=-1)
        return shares @ (entropy @ weights / count + regulariser * jnp.sum(y**2, axis=(1, 2)))

    slope = jax.grad(objective)
    precondition = _preconditioner(images, weights, regulariser, phi, temperatures, shares, classes)
    size = lambda v: jnp.sqrt(jnp.sum(v * precondition(v)))
    goal = _SLOPE_LEFT * size(slope(jnp.zeros_like(start)))

    def newton(carry):
        W, gradient, count, _ = carry
        bend = lambda v: jax.jvp(slope, (W,), (v,))[1]
        p, _ = jax.scipy.sparse.linalg.cg(bend, -gradient, tol=_CG_EFFORT, maxiter=_MOST_CG_STEPS, M=precondition)
        value, fall = objective(W), jnp.sum(gradient * p)

        def too_high(search):
            t, tries = search
            return (objective(W + t * p) > value + 1e-4 * t * fall) & (tries < _MOST_BACKTRACKS)

        t, tries = jax.lax.while_loop(
            too_high, lambda search: (search[0] / 2, search[1] + 1), (jnp.ones((), W.dtype), 0)
        )
        ahead = tries < _MOST_BACKTRACKS  # or rounding hides the fall
        W = jnp.where(ahead, W + t * p, W)
        return W, slope(W), count + 1, ahead

    unfinished = lambda carry: (size(carry[1]) > goal) & (carry[2] < _MOST_NEWTON_STEPS) & carry[3]
    return jax.lax.while_loop(unfinished, newton, (start, slope(start), 0, jnp.array(True)))[0]


def _preconditioner(images, weights, regulariser, phi, temperatures, shares, classes):
    r"""The inverse of $B \otimes X^T X / n + 2 \lambda C$, with $C = \sum_m q_m \phi \phi^T$ and $B$ the same over
    $\xi_m^2$, times the mean weight and the curvature of even chances: a scaling, in coordinates that make both
    diagonal."""
    even = jnp.mean(weights) / classes * (1 - 1 / classes)
    inner = lambda each: (phi * each[:, None]).T @ phi
    C = inner(shares)
    spread, axes = jnp.linalg.eigh(C)
    root = axes / jnp.sqrt(jnp.maximum(spread, 1e-6 * spread[-1]))  # root^T C root = 1
    bend, turn = jnp.linalg.eigh(root.T @ inner(even * shares / temperatures**2) @ root)
    T = root @ turn
    sizes, pixels = jnp.linalg.eigh(images.T @ images / len(images))
    scale = jnp.maximum(bend, 0)[:, None] * jnp.maximum(sizes, 0) + 2 * regulariser

    def apply(v):
        turned = jnp.einsum("kl,kdc,de->lec", T, v, pixels) / scale[:, :, None]
        return jnp.einsum("kl,lec,de->kdc", T, turned, pixels)

    return apply
