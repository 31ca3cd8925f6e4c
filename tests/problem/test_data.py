"""Each kind of data answers for itself: checked against plain NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
CONTEXTS, WEIGHTS = RNG.uniform(size=30), RNG.uniform(size=30)
DATA = {"a": RNG.normal(size=30), "b": RNG.normal(size=(30, 2))}
JOINT = cb.Samples(CONTEXTS, DATA, WEIGHTS)
LAW = cb.Uniform(LINE)


def draw(key, size):
    for_xi, for_eta = jax.random.split(key)
    return cb.Samples(jax.random.uniform(for_xi, (size,)), jax.random.normal(for_eta, (size,)))


CROSSED, DRAWN, STREAM = cb.Product(CONTEXTS, DATA), cb.Product(LAW, DATA, nodes=7), cb.Stream(draw)
EVERY = {"samples": JOINT, "product": CROSSED, "distribution": DRAWN, "stream": STREAM}


def test_what_each_kind_says_of_itself():
    says = {name: (level.count, level.endless, level.crossed, level.law) for name, level in EVERY.items()}
    assert says == {
        "samples": (30, False, False, None),
        "product": (30, False, True, None),
        "distribution": (30, False, True, LAW),
        "stream": (None, True, False, None),
    }
    for level in EVERY.values():
        assert level.upper is level.lower is level
    assert len(JOINT) == 30


def test_contexts_are_a_weighted_finite_set():
    np.testing.assert_array_equal(JOINT.contexts().xi, CONTEXTS)
    np.testing.assert_array_equal(JOINT.contexts().weights, WEIGHTS)
    np.testing.assert_array_equal(CROSSED.contexts().xi, CONTEXTS)
    assert CROSSED.contexts().weights is None
    nodes, weights = np.polynomial.legendre.leggauss(7)
    np.testing.assert_allclose(DRAWN.contexts().xi, (nodes + 1) / 2, rtol=1e-14)
    np.testing.assert_allclose(DRAWN.contexts().weights, weights / 2, rtol=1e-14)
    seen = STREAM.contexts()
    assert seen.eta is None
    assert seen.distinct() == len(seen) > 1000
    for level in EVERY.values():
        assert level.contexts().eta is None


def test_weights_and_shares():
    np.testing.assert_allclose(JOINT.mean_one_weights(), WEIGHTS / WEIGHTS.mean(), rtol=1e-14)
    np.testing.assert_allclose(JOINT.shares(), WEIGHTS / WEIGHTS.sum(), rtol=1e-14)
    plain = cb.Samples(CONTEXTS.astype(np.float32))
    assert plain.mean_one_weights().dtype == np.float32
    assert plain.shares().dtype == np.float64
    np.testing.assert_allclose(plain.shares(), 1 / 30, rtol=1e-7)


def test_how_many_functions_samples_support():
    """Two contexts a function, one where it is linear, and where there is noise eight samples; weights count for what
    they are worth."""
    repeated = cb.Samples(np.repeat(np.linspace(0, 1, 10), 8))
    assert repeated.distinct() == 10
    assert (repeated.supported(False), repeated.supported(True)) == (5, 5)
    single = cb.Samples(np.linspace(0, 1, 80))
    assert (single.supported(False), single.supported(True)) == (40, 10)
    weights = np.where(np.arange(80) < 16, 1.0, 1e-9)
    few = cb.Samples(np.linspace(0, 1, 80), None, weights)
    assert round(weights.sum() ** 2 / np.sum(weights**2)) == 16
    assert (few.supported(False), few.supported(True)) == (40, 2)
    assert cb.Samples(np.zeros(1)).supported(True) == 1
    two = cb.Samples(np.repeat([0.0, 1.0], 50))
    assert (two.supported(False), two.supported(True)) == (2, 2)
    square = cb.Samples(np.tile([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], (25, 1)))
    assert square.supported(True) == 3
    plane = cb.Samples(np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]]))
    assert plane.distinct() == 2


def test_rows_of_no_weight_are_not_samples():
    idle = cb.Samples(CONTEXTS, DATA, np.where(np.arange(30) < 12, WEIGHTS, 0.0)).parsed()
    np.testing.assert_array_equal(idle.xi, CONTEXTS[:12])
    np.testing.assert_array_equal(idle.eta["b"], DATA["b"][:12])
    assert JOINT.parsed() is not JOINT
    assert eqx.tree_equal(JOINT.parsed().contexts().xi, JOINT.xi)
    assert eqx.tree_equal(CROSSED.parsed(), CROSSED)


def rows_of(samples, whole):
    """Where each sample stands in the whole, by its context."""
    where = {float(c): k for k, c in enumerate(np.asarray(whole.xi))}
    return np.array([where[float(c)] for c in samples.xi])


def test_thinned_data_are_some_of_the_data():
    part = JOINT.thinned(KEY, 11)
    rows = rows_of(part, JOINT)
    assert len(set(rows.tolist())) == 11
    for name in DATA:
        np.testing.assert_array_equal(part.eta[name], DATA[name][rows])
    np.testing.assert_array_equal(part.weights, WEIGHTS[rows])
    assert sorted(rows_of(JOINT.thinned(KEY, 99), JOINT)) == list(range(30))
    few = CROSSED.thinned(KEY, 11)
    assert (few.count, few.given) == (11, CROSSED.given)
    assert {float(a) for a in few.eta["a"]} < {float(a) for a in DATA["a"]}
    assert DRAWN.thinned(KEY, 11).law is LAW
    assert len(STREAM.thinned(KEY, 11)) == 11


def test_a_look_is_small_and_keeps_pairs_together():
    seen = JOINT.look(KEY, 12)
    assert seen.level is seen.samples
    assert (len(seen.samples), seen.together) == (12, 1)
    pairs = CROSSED.look(KEY, rows=40, contexts=8)
    assert (pairs.together, pairs.level.count, len(pairs.samples)) == (5, 5, 40)
    table = np.asarray(pairs.samples.xi).reshape(8, 5)
    assert np.all(table == table[:, :1])
    assert set(table[:, 0].tolist()) < set(CONTEXTS.tolist())
    noise = np.asarray(pairs.samples.eta["a"]).reshape(8, 5)
    assert np.all(noise == noise[0])
    np.testing.assert_array_equal(noise[0], pairs.level.eta["a"])
    fresh = DRAWN.look(KEY, rows=40, contexts=8)
    assert len(np.unique(fresh.samples.xi)) == 8
    assert len(STREAM.look(KEY, 12).samples) == 12


def test_finite_data_stay_and_streams_are_drawn():
    for level in (JOINT, CROSSED, DRAWN):
        assert level.finite(KEY) is level
    drawn = STREAM.finite(KEY, 50)
    assert drawn.count == 50
    np.testing.assert_array_equal(drawn.xi, draw(KEY, 50).xi)
    np.testing.assert_array_equal(JOINT.draw_contexts(KEY, 5), CONTEXTS)
    np.testing.assert_array_equal(DRAWN.draw_contexts(KEY, 5), LAW.sample(KEY, 5))


def test_data_drawn_again():
    often = JOINT.resample(np.random.default_rng(3))
    assert often.shape == (30,)
    assert often.sum() == 30
    assert often.dtype == float
    many = np.mean([JOINT.resample(np.random.default_rng(seed)) for seed in range(400)], axis=0)
    np.testing.assert_allclose(many, 1, atol=5 / np.sqrt(400))
    pairs = CROSSED.resample(np.random.default_rng(3)).reshape(30, 30)
    assert np.linalg.matrix_rank(pairs) == 1
    assert pairs.sum() == 900
    over_law = DRAWN.resample(np.random.default_rng(3)).reshape(7, 30)
    assert np.all(over_law == over_law[0])  # a law is not drawn again
    with pytest.raises(TypeError, match="no samples to resample"):
        STREAM.resample(np.random.default_rng(3))


def test_examples_and_rows():
    np.testing.assert_array_equal(JOINT.example(32).xi, np.concatenate([CONTEXTS, CONTEXTS[:2]]))
    assert CROSSED.example(3).weights is None
    assert len(STREAM.example(4)) == 4
    some = JOINT.rows(np.array([3, 5]))
    np.testing.assert_array_equal(some.eta["b"], DATA["b"][[3, 5]])
    paired = CROSSED.pairs(CROSSED.contexts(), jnp.array([0, 1]), jnp.array([2, 3]))
    np.testing.assert_array_equal(paired.xi, CONTEXTS[:2])
    np.testing.assert_array_equal(paired.eta["a"], DATA["a"][2:4])


def test_a_stream_must_use_its_key():
    with pytest.raises(ValueError, match="key"):
        cb.Stream(lambda key, size: cb.Samples(np.random.uniform(size=size), np.zeros(size)))
    cb.Stream(lambda key, size: cb.Samples(jax.random.uniform(key, (size,)), jnp.zeros(size)))
