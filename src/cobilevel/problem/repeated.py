"""Rows of samples that repeat others: copies, which say nothing new, and are counted once with a weight."""

from typing import Any

import jax
import numpy as np
from jaxtyping import UInt64

from .data import Samples
from .domain import Domain
from .finite import Finite


def counted_once(samples: Any, domain: Domain, chance: float = 1e-3) -> tuple[Any, int]:
    """Samples with each row once, weighted by how often it came, and how many rows went; other data as they are.

    Independent draws may be equal too, where noise takes few values. But then it does so at different contexts as well:
    copies are rows whose noise was never met at another context. If that is chance, each pair of equal rows is as
    likely to be any pair as one at the same context; rows that this makes equal more rarely than `chance` are copies.
    """
    if not isinstance(samples, Samples) or not jax.tree.leaves(samples.eta):
        return samples, 0
    xi, count = np.asarray(samples.xi), len(samples)
    if all(isinstance(part, Finite) for part, _, _ in domain.columns(xi)):
        return samples, 0
    contexts = _digests([xi])
    often = np.unique(contexts, return_counts=True)[1]
    if len(often) == count:
        return samples, 0
    noise = _digests(jax.tree.leaves(samples.eta))
    _, first, group, copies = np.unique(
        contexts * np.uint64(3) + noise, return_index=True, return_inverse=True, return_counts=True
    )
    met = np.unique(noise[first], return_counts=True)[1]
    share = float(np.sum(often * (often - 1.0))) / (count * (count - 1.0))  # of pairs, at the same context
    if len(first) == count or np.any(met > 1) or share ** np.sum(copies > 1) > chance:
        return samples, 0
    order = np.argsort(first)
    given, kept = np.asarray(samples.mean_one_weights()), samples.rows(first[order])
    weights = np.bincount(group.ravel(), given.astype(float))[order]
    return Samples(kept.given, kept.eta, (weights / weights.mean()).astype(given.dtype)), count - len(first)


def _digests(columns: list[Any]) -> UInt64[np.ndarray, " n"]:
    """A number for each row of some tables: the same for equal rows, and practically never for others."""
    rng, total = np.random.default_rng(0), np.uint64(0)
    for column in columns:
        table = np.ascontiguousarray(np.asarray(column)).reshape(len(column), -1)
        table = table + 0 if table.dtype.kind == "f" else table  # which makes -0 a 0
        size = table.dtype.itemsize * table.shape[1]
        words = np.zeros((len(table), -(-size // 8) * 8), np.uint8)
        words[:, :size] = table.view(np.uint8).reshape(len(table), size)
        odd = rng.integers(2**63, size=words.shape[1] // 8, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        total = total + (words.view(np.uint64) * odd).sum(axis=1, dtype=np.uint64)
    return np.asarray(total)
