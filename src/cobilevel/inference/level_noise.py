"""The noise of means over the pool of a level, whose rows are samples, or contexts crossed with data."""

import numpy as np
from jaxtyping import Float

from ..problem import Level


def level_covariance(level: Level, rows: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k k"]:
    """The covariance of the mean of rows over a level's pool; of contexts and data apart where they are crossed."""
    contexts = level.contexts()
    shares = contexts.shares()
    if not level.crossed:
        apart = (rows - shares @ rows) * shares[:, None]
        return apart.T @ apart
    table = rows.reshape(len(shares), -1, rows.shape[1])
    by_data = np.tensordot(shares, table, axes=1)
    apart = (by_data - by_data.mean(axis=0)) / len(by_data)
    spread = apart.T @ apart
    if level.law is None:
        by_context = table.mean(axis=1)
        apart = (by_context - shares @ by_context) * shares[:, None]
        spread = spread + apart.T @ apart
    return spread


def pool_shares(level: Level) -> Float[np.ndarray, " n"]:
    """The weights, summing to 1, of the rows of a level's pool."""
    shares = level.contexts().shares()
    return np.repeat(shares, level.count) / level.count if level.crossed else shares  # pyright: ignore
