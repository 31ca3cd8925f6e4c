"""What single precision would lose of what a user hands over: found by comparing before and after, and refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .array_checks import concrete, path_name
from .domain import Domain, Finite
from .mixed import columns_of
from .precision import REMEDY

_LOST_SHARE = 1e-4  # of the width of the domain: contexts rounded by more are no longer the ones observed
_LOST_BETWEEN = 1e-6  # the same where contexts that were distinct become one
_STILL_DISTINCT = 0.99  # of the distinct contexts, that must stay so


def _sides(domain: Domain, xi: np.ndarray, where: str) -> list[tuple[Domain, np.ndarray, float, str]]:
    """The coordinates of contexts: where each lives, its values, over what length functions vary, and its name."""
    found = []
    for part, column, name in columns_of(domain, xi, where):
        if isinstance(part, Finite):
            continue  # values that cannot be distinguished are refused there
        lo, hi = part.bounds
        for k, side in enumerate(column.reshape(len(column), -1).T):
            width = float(hi[k] - lo[k])
            found.append((part, side, width if np.isfinite(width) else float(part.scale), name))  # pyright: ignore
    return found


def check_contexts_kept(domain: Domain, before: Any, where: str) -> None:
    """Raises where single precision rounds contexts by a considerable share of the domain, or makes one of many."""
    if not concrete(before) or before.dtype != np.float64 or before.shape[1:] != domain.shape:
        return
    for part, side, width, name in _sides(domain, np.asarray(before), where):
        rounded = side.astype(np.float32).astype(float)
        gap = np.abs(side - rounded)
        if gap.max() <= _LOST_BETWEEN * width:
            continue
        merged = len(np.unique(rounded)) < _STILL_DISTINCT * len(np.unique(side))
        if merged or gap.max() > _LOST_SHARE * width:
            row = int(np.argmax(gap))
            raise ValueError(
                f"{name}: in single precision contexts lose digits that matter on {part!r}: {float(side[row])!r} in "
                f"row {row} becomes {float(rounded[row])!r}. {REMEDY}"
            )


def check_domain_kept(domain: Domain, where: str) -> None:
    """The same for contexts that are yet to be drawn, by how far numbers of single precision lie apart there."""
    ends = np.stack(np.broadcast_arrays(*domain.bounds)) if domain.shape else np.concatenate(domain.bounds)
    for part, side, width, name in _sides(domain, ends, where):
        apart = float(np.spacing(np.float32(np.max(np.abs(side))))) if np.all(np.isfinite(side)) else 0.0
        if apart / 2 > _LOST_SHARE * width:
            raise ValueError(f"{name}: numbers of single precision lie {apart:g} apart on {part!r}. {REMEDY}")


def check_point_kept(tree: PyTree, dtype: Any, argument: str) -> None:
    """Raises where numbers of a starting point are too large for a precision."""
    most = float(jnp.finfo(dtype).max)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if concrete(leaf) and (largest := float(np.max(np.abs(np.asarray(leaf, float))))) > most:
            raise ValueError(
                f"{path_name(argument, path)} holds {largest:.6g}, and the largest number of "
                f"{np.dtype(dtype).name} is {most:.3g}. {REMEDY}"
            )


def check_bounds_kept(bounds: tuple[PyTree, PyTree], dtype: Any) -> None:
    """Raises where bounds that differ would become one number."""
    for (path, lo), hi in zip(jax.tree_util.tree_leaves_with_path(bounds[0]), jax.tree.leaves(bounds[1]), strict=True):
        if not (concrete(lo) and concrete(hi)):
            continue
        low, high = np.asarray(lo), np.asarray(hi)
        with np.errstate(over="ignore"):
            lost = (low < high) & (low.astype(dtype) >= high.astype(dtype))
        if lost.any():
            pair = f"{low[lost].flat[0]} and {high[lost].flat[0]}"
            raise ValueError(
                f"{path_name('x_bounds', path)}: in {np.dtype(dtype).name} {pair} become one number. {REMEDY}"
            )
