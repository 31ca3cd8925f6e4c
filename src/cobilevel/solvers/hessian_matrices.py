"""Estimates of the lower Hessian kept as matrices: whether they fit, and kept positive definite."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..checks import fits
from ..reduction import Bilevel


def check_matrices(reduced: Bilevel, name: str, count: int) -> None:
    """Raises where so many matrices in the coefficients would not fit."""
    size = sum(leaf.size for leaf in jax.tree.leaves(reduced.W0))
    fits(name, f"matrices of {size} x {size} coefficients", count * size**2 * reduced.dtype.itemsize, "SOBA or SPABA")


def floor_spectrum(
    matrix: Float[Array, "n n"], least: Float[Array, ""]
) -> tuple[Float[Array, "n n"], Callable[[Array], Array]]:
    """The nearest symmetric matrix with no eigenvalue below `least`, and the solve with it."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.maximum(values, least)
    return (vectors * values) @ vectors.T, lambda right: vectors @ ((vectors.T @ right) / values)
