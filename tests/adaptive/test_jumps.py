"""Policies that jump in the context: stated, found, or missed by a basis; and what only looks like a jump."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference import jumps_of
from cobilevel.inference.pairs import neighbours_of

DAY = cb.Interval(0, 24)
PEAK = lambda t: (t >= 7) & (t < 10)


def upper(x, y, t, eta):
    return (y - 1.5) ** 2 / 2 + 0.1 * x**2


def lower(x, y, t, eta):
    return (y - x * jnp.where(PEAK(t), 2.0, 0.5) - 0.1 * jnp.sin(t / 4) - eta) ** 2 / 2


def samples(n, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    return cb.Samples(rng.uniform(0, 24, n), noise * rng.normal(size=n))


def truth():
    t = (np.arange(240_000) + 0.5) / 1e4
    gain = np.where(PEAK(t), 2.0, 0.5)
    return np.mean(gain * (1.5 - 0.1 * np.sin(t / 4))) / (np.mean(gain**2) + 0.2)


def test_jumps_are_found_and_saved(tmp_path):
    problem = cb.Problem(upper, lower, 0.0, 0.0, DAY)
    found = cb.solve(problem, samples(1500))
    breaks = found.basis.basis.basis.breaks
    assert np.abs(np.array(breaks) - [7, 10]).max() < 0.1
    assert "The policy jumps at" in found.choices["basis"]
    low, high = found.uncertainty.interval[:, 0]
    assert low < truth() < high
    found.save(tmp_path / "found.npz")
    again = cb.load(tmp_path / "found.npz", problem)
    np.testing.assert_array_equal(again.policy(np.array([6.5, 8.0])), found.policy(np.array([6.5, 8.0])))
    with pytest.raises(ValueError, match="another domain"):
        cb.load(tmp_path / "found.npz", cb.Problem(upper, lower, 0.0, 0.0, cb.Interval(0, 24, breaks=(7, 10))))


def test_stated_breaks_are_kept():
    problem = cb.Problem(upper, lower, 0.0, 0.0, cb.Interval(0, 24, breaks=(7, 10)))
    found = cb.solve(problem, samples(500))
    assert found.basis.basis.basis.breaks == (7, 10)
    assert "jumps" not in found.choices["basis"]
    assert not found.uncertainty.remarks


def test_a_continuous_basis_is_told_what_it_misses():
    said = cb.solve(cb.Problem(upper, lower, 0.0, 0.0, DAY), samples(1500), basis=cb.Chebyshev(5)).uncertainty
    assert "The policy jumps at 7.0" in said.remarks[0]
    low, high = said.interval[:, 0]
    assert low < truth() < high


def test_nothing_is_promised_where_samples_are_too_few_for_the_pieces():
    said = cb.solve(cb.Problem(upper, lower, 1.0, 0.0, DAY), samples(460, 0.02), basis=cb.Chebyshev(20)).uncertainty
    assert np.isinf(said.error[0])
    assert said.notes[0] == "the basis misses a jump of the policy: not determined"


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("name", ["steep", "kink", "clipped", "corner", "line"])
def test_what_is_steep_or_kinked_does_not_jump(name, noise):
    shapes = {
        "steep": lambda t: np.tanh(20 * t),
        "kink": lambda t: 3 * np.abs(t - 0.4),
        "clipped": lambda t: np.clip(4 * t, -1, 1),
        "corner": lambda t: np.maximum(0, np.sin(3 * t)),
        "line": lambda t: t,
    }
    for seed in range(3):
        rng = np.random.default_rng(seed)
        t = rng.uniform(-1, 1, 1000)
        assert jumps_of(t, (shapes[name](t) + noise * rng.normal(size=1000))[:, None], np.ones(1)) == ()


def test_jumps_do_not_depend_on_units():
    rng = np.random.default_rng(0)
    t = rng.uniform(0, 24, 1000)
    r = np.stack([rng.normal(size=1000), PEAK(t) + np.sin(t / 4) + 0.1 * rng.normal(size=1000)], axis=1)
    found = jumps_of(t, r, np.ones(2))
    assert len(found) == 2
    assert np.abs(np.array(found) - [7, 10]).max() < 0.1
    scaled = jumps_of(1e-3 * t, r * [1e6, 1e-6], [1e6, 1e-6])
    np.testing.assert_allclose(scaled, 1e-3 * np.array(found), atol=1e-4)
    assert jumps_of(t, r, np.ones(2), breaks=(7.0, 10.0)) == ()


def test_neighbours_share_their_piece():
    rng = np.random.default_rng(0)
    u, own = np.sort(rng.uniform(-1, 1, 300))[:, None], np.ones(300)
    piece = np.searchsorted([-0.5, 0.2], u[:, 0])
    for near in neighbours_of(cb.Interval(-1, 1), u, own, 1, piece):
        i, j = near.pairs.T
        assert np.array_equal(piece[near.order][i], piece[near.order][j])
        for k in range(3):  # what is constant on each piece is the mean of the neighbours there
            table = near.arranged((piece == k) * 1.0)[:, None]
            np.testing.assert_allclose(near.sums(near.summand(table)), table, atol=1e-9)
