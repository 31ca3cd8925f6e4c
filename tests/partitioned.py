"""Tables in partitions that several tests take, and the problems that are solved from them."""

import itertools

import jax.numpy as jnp
import numpy as np
import pandas as pd

import cobilevel as cb

ROWS = 900


def table(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, rows)
    return pd.DataFrame(
        {
            "t": t,
            "day": np.where(rng.uniform(size=rows) < 0.3, "holiday", "workday"),
            "d": np.sin(2 * t) + 0.3 * rng.normal(size=rows),
            "w": rng.uniform(0, 2, rows),
        }
    )


def cut(frame, count=7):
    """Parts of unequal length, one of them empty."""
    ends = np.linspace(0, len(frame) ** 0.5, count) ** 2
    ends = np.concatenate([[0], ends]).astype(int)
    return [frame.iloc[a:b] for a, b in itertools.pairwise(ends)]


upper = lambda x, y, xi, eta: (y - 1 - xi) ** 2 / 2 + (x - 1) ** 2 / 20
lower = lambda x, y, xi, eta: (y - (x * xi + eta)) ** 2 / 2
LINE = cb.Problem(upper, lower, jnp.array(0.3), jnp.array(0.0), cb.Interval(-1, 1))
BOUNDED = cb.Problem(upper, lower, jnp.array(0.3), jnp.array(0.2), cb.Interval(-1, 1), constraints=cb.Bounds(0.0, 0.6))
MIXED = cb.Problem(
    lambda x, y, xi, eta: (y - 1 - xi["t"]) ** 2 / 2 + (x - 1) ** 2 / 20,
    lambda x, y, xi, eta: (y - (x * xi["t"] + eta["d"])) ** 2 / 2,
    jnp.array(0.3),
    jnp.array(0.0),
    cb.Mixed({"t": cb.Interval(-1, 1), "day": cb.Finite(["holiday", "workday"])}),
)


def same(one, other, frame, contexts="t", tolerance=1e-10):
    """The same decision and the same policy at all contexts of a frame."""
    tables = [s.table(frame[contexts if isinstance(contexts, list) else [contexts]]) for s in (one, other)]
    y, z = (np.asarray(found[[name for name in found if name[0] == "y"]], float) for found in tables)
    assert np.max(np.abs(y - z)) <= tolerance * np.max(np.abs(y))
    np.testing.assert_allclose(np.asarray(one.x), np.asarray(other.x), rtol=tolerance)
