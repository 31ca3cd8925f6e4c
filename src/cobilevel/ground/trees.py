"""Linear algebra on pytrees: what solvers do with ``x``, ``W`` and directions of their shapes; and as vectors."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .programs import arithmetic, module_of, put


def add(a: PyTree, b: PyTree) -> PyTree:
    return put(jax.tree.map(arithmetic(a, b).add, a, b))


def sub(a: PyTree, b: PyTree) -> PyTree:
    return put(jax.tree.map(arithmetic(a, b).subtract, a, b))


def scale(factor: Any, a: PyTree) -> PyTree:
    """``factor * a``, in the dtype of ``a``."""
    xp = arithmetic(factor, a)
    return put(jax.tree.map(lambda leaf: xp.asarray(factor, leaf.dtype) * xp.asarray(leaf), a))


def step(point: PyTree, length: Any, direction: PyTree) -> PyTree:
    """``point - length * direction``: one descent step."""
    return sub(point, scale(length, direction))


def zeros(a: PyTree) -> PyTree:
    return put(jax.tree.map(arithmetic(a).zeros_like, a))


def norm(a: PyTree) -> Float[Array, ""]:
    """The Euclidean norm of all leaves together."""
    xp = arithmetic(a)
    return put(xp.sqrt(sum(xp.sum(xp.asarray(leaf) ** 2) for leaf in jax.tree.leaves(a))))


def dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    xp, pairs = arithmetic(a, b), zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return put(xp.sum(xp.stack([xp.sum(xp.asarray(x) * xp.asarray(y)) for x, y in pairs])))


def finite(a: PyTree) -> Array:
    """Whether no leaf holds NaN or infinity."""
    xp = arithmetic(a)
    return put(xp.all(xp.stack([xp.all(xp.isfinite(leaf)) for leaf in jax.tree.leaves(a)])))


def clip_norm(a: PyTree, radius: Any) -> PyTree:
    """The nearest point in the ball of that radius."""
    size = norm(a)
    xp = arithmetic(a, radius)
    return scale(xp.minimum(1, radius / xp.maximum(size, jnp.finfo(size.dtype).tiny)), a)


def flattened(tree: PyTree) -> Float[np.ndarray, " n"]:
    """A pytree as one vector, in double precision."""
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


def as_rows(tree: PyTree) -> Float[np.ndarray, "n k"]:
    """Leaves with a common leading axis side by side, one row for each index of it, in double precision."""
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]
    flat = [leaf.reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in leaves]
    return np.ascontiguousarray(np.concatenate(flat, axis=1))


def shaped_like(tree: PyTree, numbers: Any, dtype: Any = None, lead: int = 0) -> PyTree:
    """The inverse: what lies along the last axis of an array as the leaves of a pytree.

    The first `lead` axes of the leaves are those of the array.
    """
    leaves, structure = jax.tree.flatten(tree)
    numbers = numbers if dtype is None else module_of(numbers).asarray(numbers, dtype)
    shapes = [np.shape(leaf)[lead:] for leaf in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = module_of(numbers).split(numbers, ends, axis=-1)
    return structure.unflatten(
        [part.reshape((*numbers.shape[:lead], *shape)) for part, shape in zip(parts, shapes, strict=True)]
    )
