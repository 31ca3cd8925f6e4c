"""Expansions on an accelerator: rows and features stay there, and one array of sums comes back."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..basis import OneHot
from .rows import RowBlocks, RowDerivatives, Sizes, lower_row, upper_row


def in_use() -> bool:
    """Whether rows are to stay on an accelerator."""
    return jax.default_backend() != "cpu"


class DeviceRows:
    """The features and shares of a pool on the device, block by block; rows that fill up have no share."""

    def __init__(self, features: Any, shares: np.ndarray, rows: RowBlocks):
        self.rows, kind = rows, rows.dtype
        parts = (features.place, features.value) if isinstance(features, OneHot) else (features,)
        self.cells = features.size if isinstance(features, OneHot) else None
        share = lambda begin: np.pad(shares[begin : begin + rows.size], (0, max(0, begin + rows.size - rows.count)))
        cast = lambda a: a if np.issubdtype(a.dtype, np.integer) else a.astype(kind)
        self.blocks = [
            jax.device_put((tuple(cast(rows.filled(part, b)) for part in parts), share(b).astype(kind)))
            for b in rows.begins
        ]

    def summed(self, derivatives: RowDerivatives, level: str, x: np.ndarray, W: np.ndarray, sizes: Sizes) -> np.ndarray:
        """The expansion of all blocks, as one vector: value, ``d1`` or none, then by function."""
        program = _program(derivatives.objective, level, sizes, self.cells)
        at, total = (x.astype(self.rows.dtype), W.astype(self.rows.dtype)), None
        for (features, shares), (_, xi, eta) in zip(self.blocks, self.rows, strict=True):
            total = program(derivatives.constants, *at, features, shares, xi, eta, total)
        return np.asarray(total, float)


@lru_cache(64)
def _program(objective: Any, level: str, sizes: Sizes, cells: int | None) -> Callable:
    one = lower_row(objective, sizes.crossed) if level == "lower" else upper_row(objective)

    def block(constants: Any, x: Any, W: Any, features: Any, shares: Any, xi: Any, eta: Any, total: Any) -> Any:
        phi = features[0] if cells is None else OneHot(*features, cells)
        packed = jax.vmap(one, in_axes=(None, None, 0, 0, 0))(constants, x, phi @ W, xi, eta)
        weighted = packed * shares[:, None]
        added = _lower(phi, weighted, sizes) if level == "lower" else _upper(phi, weighted, sizes)
        vector = jnp.concatenate([jnp.ravel(part) for part in added])
        return vector if total is None else total + vector

    return jax.jit(block)


def _sums(phi: Any, rows: Any) -> Any:
    return phi.sums(rows) if isinstance(phi, OneHot) else phi.T @ rows


def _lower(phi: Any, weighted: Any, sizes: Sizes) -> list[Any]:
    """Value, slope, Hessian and cross derivative of a block."""
    dy, count = sizes.dy, phi.shape[1]
    curved = 1 + dy + dy * dy
    matrices = weighted[:, 1 + dy : curved]
    if isinstance(phi, OneHot):
        blocks = phi.blocks(matrices).reshape(count, dy, dy)
        hessian = (blocks + jnp.swapaxes(blocks, 1, 2)) / 2
    else:
        first, second = np.triu_indices(dy)
        blocks = jax.lax.map(lambda w: phi.T @ (phi * w[:, None]), matrices[:, first * dy + second].T)
        pair = np.empty((dy, dy), int)
        pair[first, second] = pair[second, first] = np.arange(len(first))
        blocks = (blocks + jnp.swapaxes(blocks, 1, 2)) / 2
        hessian = blocks[pair].transpose(2, 0, 3, 1)
    slope, cross = _sums(phi, weighted[:, 1 : 1 + dy]), _sums(phi, weighted[:, curved:])
    return [jnp.sum(weighted[:, 0]), slope, hessian, cross]


def _upper(phi: Any, weighted: Any, sizes: Sizes) -> list[Any]:
    """Value and gradients of a block."""
    return [jnp.sum(weighted[:, : 1 + sizes.dx], axis=0), _sums(phi, weighted[:, 1 + sizes.dx :])]
