"""Batches: nothing repeated, nothing mis-weighted, and any of them drawn again at will."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.reduction import batch_rows
from cobilevel.reduction.batches import permute
from problems import LINE, Aim, Line, row, scalar

# Rows are a power of two where it does not matter how they are shuffled: that takes a fifth of the operations.
PERMUTED = jax.jit(lambda key, rows: permute(key, jnp.arange(rows), rows), static_argnums=1)
DRAWN = jax.jit(batch_rows, static_argnums=(2, 3, 4, 5))
BATCH = jax.jit(lambda source, number, size, shuffle: source.batch(KEY, number, size, shuffle), static_argnums=(2, 3))
KEY = jax.random.key(3)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 65, 1000])
def test_permutations_are_permutations(rows):
    seen = set()
    for seed in range(6):
        order = np.asarray(PERMUTED(jax.random.key(seed), rows))
        np.testing.assert_array_equal(np.sort(order), np.arange(rows))
        seen.add(tuple(order))
    assert rows < 4 or len(seen) == 6


def test_permutations_look_random():
    """Where a row lands is uniform: a chi-square test over many keys, at odds of one in a thousand."""
    rows, keys = 12, 6000
    one = lambda key: permute(key, jnp.arange(rows), rows)
    places = jax.jit(lambda key: jax.vmap(one)(jax.random.split(key, keys)))(jax.random.key(0))
    counts = np.stack([np.bincount(np.asarray(places)[:, j], minlength=rows) for j in range(rows)])
    expected = keys / rows
    statistic = np.sum((counts - expected) ** 2 / expected)
    freedom = (rows - 1) ** 2
    assert abs(statistic - freedom) < 3.3 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("rows", "size"), [(20, 5), (20, 7), (3, 8)])
def test_an_epoch_holds_every_row_once(rows, size):
    batches, orders = -(-rows // size), set()
    for epoch in range(2):
        drawn, shares = [], []
        for slot in range(batches):
            batch = DRAWN(jax.random.key(0), np.uint32(epoch * batches + slot), size, rows, True, float)
            real = np.asarray(batch.share) > 0
            assert int(batch.count) == real.sum()
            drawn += list(np.asarray(batch.index)[real])
            shares.append(np.mean(np.asarray(batch.share)))
        assert sorted(drawn) == list(range(rows))
        np.testing.assert_allclose(shares, 1)  # so that the mean over a batch is the mean over its real rows
        orders.add(tuple(drawn))
    assert rows < 20 or len(orders) == 2  # and every epoch in an order of its own


def test_the_ragged_batch_is_the_mean_of_its_rows():
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(0, 1, 8), rng.normal(size=8), rng.uniform(0.5, 2, 8))
    problem = scalar(Line(row(1.0)), Aim(row(), ridge=0.0, noise=1.0))
    reduced = cb.reduce(problem, cb.Chebyshev(2), samples)
    total = 0.0
    mean = jax.jit(lambda batch: reduced.upper(0.0, reduced.W0, batch))
    for number in range(3):
        batch = BATCH(reduced.upper_source, np.uint32(number), 3, True)
        real = np.asarray(batch.weight) > 0
        values = np.asarray(batch.eta)[real] ** 2 * np.asarray(batch.weight)[real] * real.sum() / 3
        np.testing.assert_allclose(mean(batch), values.mean(), rtol=1e-12)
        total += values.sum()
    np.testing.assert_allclose(total / 8, mean(reduced.upper_pool), rtol=1e-12)


@pytest.mark.parametrize("shuffle", [False, True])
def test_any_batch_can_be_drawn_again_and_batches_differ(shuffle):
    draw = lambda number: np.asarray(DRAWN(jax.random.key(1), np.uint32(number), 8, 100, shuffle, float).index)
    np.testing.assert_array_equal(draw(5), draw(5))
    assert np.any(draw(5) != draw(6))


def test_products_meet_fresh_contexts_and_pooled_data():
    reduced = cb.reduce(scalar(), cb.Chebyshev(2), cb.Product(cb.Uniform(LINE), np.arange(8.0)))
    batches = [BATCH(reduced.lower_source, np.uint32(number), 4, True) for number in range(2)]
    assert sorted(np.concatenate([b.eta for b in batches])) == list(range(8))
    assert len(np.unique(np.concatenate([b.xi for b in batches]))) == 8


@pytest.mark.parametrize("nodes", [None, 12])
@pytest.mark.parametrize(("shuffle", "size"), [(True, 4), (True, 3), (False, 3)])
def test_batches_drawn_at_once_are_those_drawn_one_by_one(nodes, shuffle, size):
    """Contexts that meet data: with a law to draw from, or a list of them; also where the last of an epoch is short."""
    contexts = cb.Uniform(LINE) if nodes is None else np.linspace(0.0, 1.0, nodes)
    reduced = cb.reduce(scalar(), cb.Chebyshev(2), cb.Product(contexts, np.arange(8.0)))
    source = reduced.lower_source

    @jax.jit
    def together():
        made = source.batches(KEY, jnp.uint32(4), 4, size, shuffle)
        return [made(number) for number in range(4)], made.counts

    others, counts = together()
    for number in range(4):
        one, other = BATCH(source, np.uint32(4 + number), size, shuffle), others[number]
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14)
        if counts is not None:
            assert counts[number] == one.count
