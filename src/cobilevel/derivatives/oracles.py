r"""The oracles of the reduced problem: what solvers may ask for, each call entered in the ledger.

All oracles are batch means over the reduced problem; by the chain rule $\partial_2 g_\Phi = \partial_2 g\, \Phi^T$ and
$\partial_{22} g_\Phi = \partial_{22} g \otimes \Phi\Phi^T$. Each takes the ledger and returns it with its own cost
added: one call, and as many samples as the batch holds.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..basis import combine, dense
from ..ground import trees
from ..reduction import Batch, Bilevel
from .ledger import Ledger
from .sums import galerkin, summed_with


def upper_gradients(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    """``f_Phi`` with its two partial gradients: ``(value, d1 f, d2 f)``."""
    value, (d1, d2) = jax.value_and_grad(reduced.upper, argnums=(0, 1))(x, W, batch)
    return (value, d1, d2), ledger.add("upper_gradient", batch)


def lower_slope(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    """``(g_Phi, d2 g_Phi)``, the latter shaped like ``W``."""
    ledger = ledger.add("lower_value", batch).add("lower_gradient", batch)
    return jax.value_and_grad(reduced.lower, argnums=1)(x, W, batch), ledger


def lower_gradient(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    """``d2 g_Phi``, shaped like ``W``."""
    return jax.grad(reduced.lower, argnums=1)(x, W, batch), ledger.add("lower_gradient", batch)


def hessian_vector(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, batch: Batch, ledger: Ledger):
    """``d22 g_Phi V``, shaped like ``W``, without forming the Hessian."""
    slope = lambda weights: jax.grad(reduced.lower, argnums=1)(x, weights, batch)
    return jax.jvp(slope, (W,), (V,))[1], ledger.add("hessian_vector", batch)


def hessian(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> Callable[[PyTree], PyTree]:
    """``d22 g_Phi`` as a function of a table of coefficients; what does not depend on that is computed once."""
    return jax.linearize(lambda weights: jax.grad(reduced.lower, argnums=1)(x, weights, batch), W)[1]


def lower_gradients(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    """Both partial gradients of ``g_Phi``: ``(d1 g, d2 g)``, for methods that use first derivatives alone."""
    return jax.grad(reduced.lower, argnums=(0, 1))(x, W, batch), ledger.add("lower_gradient", batch)


def lower_products(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, batch: Batch, ledger: Ledger):
    """``(d2 g_Phi, d22 g_Phi V, d12 g_Phi V)`` in one sweep: the gradient, and its derivative along ``V``."""
    slopes = lambda weights: jax.grad(reduced.lower, argnums=(0, 1))(x, weights, batch)
    (_, d2), (cross, product) = jax.jvp(slopes, (W,), (V,))
    for kind in ("lower_gradient", "hessian_vector", "cross_product"):
        ledger = ledger.add(kind, batch)
    return (d2, product, cross), ledger


def cross_product(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, batch: Batch, ledger: Ledger):
    """``d12 g_Phi V``, shaped like ``x``: the gradient in ``x`` of ``<d2 g_Phi, V>``."""
    tangent = lambda point: jax.jvp(lambda weights: reduced.lower(point, weights, batch), (W,), (V,))[1]
    return jax.grad(tangent)(x), ledger.add("cross_product", batch)


def lower_model(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    r"""``g_Phi``, its gradient and its Hessian $\mathrm{mean}(\partial_{22} g \otimes \Phi\Phi^T)$, flattened.

    The Hessian of ``g`` in ``y`` is taken sample by sample and contracted with the features, never through the
    ``N d_y`` coefficients; rows and columns follow ``flatten(W)``. The coefficients of a function that is zero at every
    sample get the largest curvature there is, so that a Newton step leaves them where they are.
    """
    y = combine(batch.features, reduced.weights(W))
    _, unravel = ravel_pytree(jax.tree.map(lambda a: a[0], y))
    flat = jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(y)

    def local(point, xi, eta):
        value = lambda v: reduced.problem.lower(x, unravel(v), xi, eta)
        return value(point), jax.grad(value)(point), jax.hessian(value)(point)

    value, slope, curvature = jax.vmap(local)(flat, batch.xi, batch.eta)
    phi, share, dtype = dense(batch.features), batch.weight / len(batch), batch.weight.dtype
    gradient = summed_with(batch.features, share[:, None] * slope).reshape(-1)
    hessian = galerkin(phi, share[:, None, None] * curvature)
    idle = jnp.repeat(jnp.all(phi == 0, axis=0), curvature.shape[1])
    hessian = hessian + jnp.diag(jnp.where(idle, jnp.max(jnp.diagonal(hessian)), 0))
    if reduced.turn is not None:
        turn = reduced.turn.matrix.astype(hessian.dtype)
        gradient, hessian = turn.T @ gradient, turn.T @ hessian @ turn
    model = (share @ value).astype(dtype), gradient.astype(dtype), hessian.astype(dtype)
    return model, ledger.add("hessian", batch)


def cross_matrix(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    """``d12 g_Phi`` as a matrix, rows after the flattened ``x``, columns after ``flatten(W)``."""
    flat, unravel = ravel_pytree(x)

    def slope(point):
        return flatten(jax.grad(reduced.lower, argnums=1)(unravel(point), W, batch))[0]

    return jax.jacfwd(slope)(flat).T, ledger.add("cross_matrix", batch)


def cross_along(reduced: Bilevel, x: PyTree, W: PyTree, along: PyTree, batch: Batch, ledger: Ledger):
    """``d21 g_Phi p`` along a direction of ``x``, shaped like ``W``."""
    slope = lambda point: jax.grad(reduced.lower, argnums=1)(point, W, batch)
    return jax.jvp(slope, (x,), (along,))[1], ledger.add("cross_product", batch)


def curved(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, along: PyTree, moved: PyTree, upper: Batch, lower: Batch):
    r"""How both gradients of $f_\Phi - v^T \partial_2 g_\Phi$ change along a direction of ``x`` while the coefficients
    move and ``v`` is held."""

    def gradients(x: PyTree, W: PyTree) -> tuple[PyTree, PyTree]:
        pull = lambda x, W: jax.jvp(lambda weights: reduced.lower(x, weights, lower), (W,), (V,))[1]
        return jax.grad(lambda x, W: reduced.upper(x, W, upper) - pull(x, W), argnums=(0, 1))(x, W)

    return jax.jvp(gradients, (x, W), (along, moved))[1]


def losses(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, batch: Batch):
    r"""Row by row, ``g`` and what the adjoint minimises, $\tfrac12 v^T \partial_{22} g\, v - v^T \partial_2 f$."""
    rows = lambda level: lambda W: reduced.values(level, x, W, batch)[0]
    along = lambda level: lambda W: jax.jvp(rows(level), (W,), (V,))[1]
    bend = jax.jvp(along(reduced.problem.lower), (W,), (V,))[1]
    return rows(reduced.problem.lower)(W), bend / 2 - along(reduced.problem.upper)(W)


def upper_rows(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, ledger: Ledger):
    """Sample by sample: ``(f, d1 f, d2 f)``, the last in ``y``; ``mean_with_features`` leads to coefficients."""
    rows = jax.vmap(jax.value_and_grad(reduced.problem.upper, argnums=(0, 1)), in_axes=(None, 0, 0, 0))
    values, (d1, d2) = rows(x, combine(batch.features, reduced.weights(W)), batch.xi, batch.eta)
    return (values, d1, d2), ledger.add("upper_gradient", batch)


def lower_rows(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree, batch: Batch, ledger: Ledger):
    """Sample by sample: ``(d2 g, d22 g (V Phi), d12 g (V Phi))``, the first two in ``y``."""
    y, along = (combine(batch.features, reduced.weights(part)) for part in (W, V))

    def local(point, tangent, xi, eta):
        slopes = lambda z: jax.grad(reduced.problem.lower, argnums=(0, 1))(x, z, xi, eta)
        (_, d2), (cross, product) = jax.jvp(slopes, (point,), (tangent,))
        return d2, product, cross

    for kind in ("lower_gradient", "hessian_vector", "cross_product"):
        ledger = ledger.add(kind, batch)
    return jax.vmap(local)(y, along, batch.xi, batch.eta), ledger


def cross_rows(reduced: Bilevel, x: PyTree, W: PyTree, rows: PyTree, batch: Batch) -> PyTree:
    """Sample by sample ``d12 g`` times a vector in ``y``, one for each."""

    def local(point, tangent, xi, eta):
        along = lambda at: jax.jvp(lambda z: reduced.problem.lower(at, z, xi, eta), (point,), (tangent,))[1]
        return jax.grad(along)(x)

    return jax.vmap(local)(combine(batch.features, reduced.weights(W)), rows, batch.xi, batch.eta)


def mean_with_features(batch: Batch, rows: PyTree) -> PyTree:
    """The batch mean of ``row Phi^T``, shaped like ``W``: from gradients in ``y`` to gradients in the coefficients."""
    share = batch.weight[:, None] / len(batch)
    one = lambda leaf: summed_with(batch.features, share * leaf.reshape(len(leaf), -1)).reshape(-1, *leaf.shape[1:])
    return jax.tree.map(one, rows)


def mean(batch: Batch, rows: PyTree) -> PyTree:
    """The batch mean of rows that are shaped like ``x``."""
    share = batch.weight / len(batch)
    return jax.tree.map(lambda leaf: jnp.tensordot(share, leaf.astype(share.dtype), axes=(0, 0)), rows)


def flatten(W: PyTree) -> tuple[Float[Array, " M"], Callable[[Array], PyTree]]:
    """Coefficients as one vector, ordered by function and then by component of ``y``; and the way back."""
    rows = jax.vmap(lambda leaf: ravel_pytree(leaf)[0])(W)
    return rows.reshape(-1), lambda vector: trees.shaped_like(W, vector.reshape(rows.shape), lead=1)


def feature_gradient(
    reduced: Bilevel, features: Callable, parameters: PyTree, inputs: Array, x: PyTree, W: PyTree, batch: Batch
) -> PyTree:
    """The gradient of ``g_Phi`` in the parameters of its features, ``features(parameters, inputs)``."""
    value = lambda theta: reduced.lower(x, W, replace(batch, features=features(theta, inputs)))
    return jax.grad(value)(parameters)
