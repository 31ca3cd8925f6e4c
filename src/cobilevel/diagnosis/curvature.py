"""The curvature of the reduced lower level at one ``x``, down to eigenvalues far below the rounding of the largest."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import combine
from ..derivatives import Ledger, oracles
from ..iteration import lanczos
from ..lower import DENSE_LIMIT
from ..programs import program
from ..reduction import Batch, Bilevel

_MOST_SECOND_DERIVATIVES = 40_000_000  # of g at all samples together: 320 MB
_LANCZOS_STEPS = 60  # where the Hessian is too large to be formed


@program
def lower_hessian(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, "M M"]:
    """The Hessian of the reduced lower level."""
    (_, _, hessian), _ = oracles.lower_model(reduced, x, W, batch, Ledger.page())
    return hessian


@program
def _ritz_values(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, " m"]:
    flat, unflatten = oracles.flatten(W)

    def product(vector):
        return oracles.flatten(oracles.hessian_vector(reduced, x, W, unflatten(vector), batch, Ledger.page())[0])[0]

    return lanczos(product, jax.random.normal(jax.random.key(0), flat.shape, flat.dtype), _LANCZOS_STEPS)


def orthonormal_batch(batch: Batch) -> tuple[Batch, Float[np.ndarray, "r N"]]:
    """The batch with features made orthonormal over its rows, function after function; and ``R``, the way there."""
    root = np.sqrt(np.asarray(batch.weight, dtype=float) / len(batch))[:, None]
    q, r = np.linalg.qr(np.asarray(batch.features, dtype=float) * root)
    features = np.divide(q, root, out=np.zeros_like(q), where=root > 0)
    return replace(batch, features=jnp.asarray(features, batch.features.dtype)), r


def rotated(r: Float[np.ndarray, "r N"], W: PyTree[Float[Array, "N ..."]]) -> PyTree[Float[Array, "r ..."]]:
    """The coefficients of the same policy in features that ``R`` leads to."""
    return combine(jnp.asarray(r, jax.tree.leaves(W)[0].dtype), W)


def curvature_range(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> tuple[float, float]:
    r"""The extreme eigenvalues of the Hessian of the reduced lower level.

    With features $\Phi = Q R$ it is $R^T H_Q R$, and $H_Q = C^T C$ is as well conditioned as ``g`` itself: the singular
    values of $C R$ give eigenvalues far below the rounding of the largest one.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(W))
    components = size // batch.features.shape[1]
    if size > DENSE_LIMIT or len(batch) * components**2 > _MOST_SECOND_DERIVATIVES:
        ritz = np.asarray(_ritz_values(reduced, x, W, batch), dtype=float)
        return float(ritz[0]), float(ritz[-1])
    turned, r = orthonormal_batch(batch)
    hessian = np.asarray(lower_hessian(reduced, x, rotated(r, W), turned), dtype=float)
    values, vectors = np.linalg.eigh(hessian)
    spread = np.kron(r, np.eye(components))
    if values[0] <= 0:
        ends = np.linalg.eigvalsh(spread.T @ hessian @ spread)
        return float(ends[0]), float(ends[-1])
    singular = np.linalg.svd(np.sqrt(values)[:, None] * (vectors.T @ spread), compute_uv=False)
    return float(singular[-1]) ** 2 if len(singular) == size else 0.0, float(singular[0]) ** 2
