"""Rows dealt out to shards, and found again."""

import jax.numpy as jnp
import numpy as np
import pytest

from cobilevel.cluster import RowLayout, even_counts


@pytest.mark.parametrize(("rows", "shards"), [(12, 4), (13, 4), (5, 4), (1, 4), (7, 1)])
def test_rows_are_dealt_out_evenly(rows, shards):
    counts = even_counts(rows, shards)
    assert sum(counts) == rows
    assert len(counts) == shards
    assert max(counts) == -(-rows // shards)


@pytest.mark.parametrize("counts", [(3, 3, 3), (3, 1, 2), (2, 2, 0), (1,)])
def test_every_row_is_found_in_its_shard(counts):
    layout = RowLayout(counts)
    table = np.full((len(counts), layout.length), -1)
    for k, count in enumerate(counts):
        table[k, :count] = sum(counts[:k]) + np.arange(count)
    rows = jnp.arange(layout.rows, dtype=np.int32)
    assert layout.filled == table.size
    np.testing.assert_array_equal(table.ravel()[np.asarray(layout.place(rows))], rows)
