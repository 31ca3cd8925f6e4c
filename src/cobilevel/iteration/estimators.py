"""Estimators that remember: momentum and variance reduction on pytrees, each a formula."""

from jaxtyping import Array, Float, PyTree

from .. import trees


def storm(estimate: PyTree, here: PyTree, before: PyTree, weight: Float[Array, ""] | float) -> PyTree:
    r"""$d_k = D_k(z_k) + (1 - a)\,(d_{k-1} - D_k(z_{k-1}))$: the same batch at the new point and at the old one.

    `weight` $a = 1$ forgets the past (plain stochastic gradients), $a = 0$ is SARAH and SPIDER.
    """
    return trees.add(here, trees.scale(1 - weight, trees.sub(estimate, before)))


def heavy_ball(estimate: PyTree, here: PyTree, weight: Float[Array, ""] | float) -> PyTree:
    r"""$d_k = (1 - a)\, d_{k-1} + a\, D_k(z_k)$: a moving average."""
    return trees.add(trees.scale(1 - weight, estimate), trees.scale(weight, here))
