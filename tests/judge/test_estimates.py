"""Numbers with an error and an interval: how they are made, and that the intervals cover."""

import pickle

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

import cobilevel as cb
from cobilevel.judge import mean_estimate, norm_estimate, runs_estimate
from cobilevel.judge.intervals import length_around


def test_lengths_of_noisy_vectors_are_covered():
    rng = np.random.default_rng(0)
    for size, length in ((1, 0.5), (5, 0.0), (5, 1.0), (5, 4.0), (30, 3.0)):
        hits = 0
        for _ in range(300):
            root = rng.normal(size=(size, size)) / size**0.5
            spread = root @ root.T + 0.1 * np.eye(size)
            unit = rng.normal(size=size)
            truth = length * unit / np.linalg.norm(unit)
            found = norm_estimate(truth + np.linalg.cholesky(spread) @ rng.normal(size=size), spread)
            hits += found.interval[0] - 1e-12 <= np.linalg.norm(truth) <= found.interval[1]
        assert hits / 300 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 300), (size, length)


def test_short_vectors_are_not_certain():
    for size in (1, 2, 30):
        for length in (0.0, 1e-12):
            vector = np.zeros(size)
            vector[0] = length
            assert norm_estimate(vector, np.eye(size)).interval[1] > 1
    assert norm_estimate(np.ones(2), np.full((2, 2), np.nan)).interval == (0, np.inf)


def test_noise_across_a_vector_counts():
    """One direction has a hundred times the noise of the other, and the truth lies along it."""
    rng, covariance, covered = np.random.default_rng(0), np.diag([1.0, 1e4]), 0
    for _ in range(400):
        truth = np.array([0.0, 130.0])
        low, high = norm_estimate(truth + rng.multivariate_normal(np.zeros(2), covariance), covariance).interval
        covered += low <= 130.0 <= high
    assert covered >= 370


def test_estimates_are_numbers():
    value = mean_estimate(np.array([1.0, 2.0, 3.0]), np.full(3, 1 / 3))
    assert value + 1 == 3.0
    assert value.interval[0] < 2 < value.interval[1]
    assert (value.low, value.high) == value.interval
    assert "[" in repr(value)
    assert cb.Estimate(2.0).interval == (2.0, 2.0)
    assert repr(cb.Estimate(2.0)) == "2"
    assert sorted([cb.Estimate(2.0), 1.0]) == [1.0, 2.0]
    back = pickle.loads(pickle.dumps(value))
    assert (back, back.error, back.interval) == (value, value.error, value.interval)


def test_a_mean_has_the_interval_of_student():
    values = np.random.default_rng(0).normal(3.0, 2.0, 12)
    found = mean_estimate(values, np.full(12, 1 / 12))
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert found == pytest.approx(values.mean())
    assert found.error == pytest.approx(stats.sem(values))
    assert found.interval == pytest.approx((low, high))
    runs = runs_estimate(values)
    assert (float(runs), runs.interval) == (pytest.approx(values.mean()), pytest.approx((low, high)))


def test_estimates_from_a_value_and_its_error():
    plain = cb.Estimate.of(1.0, 0.5)
    assert plain.interval == pytest.approx((1 - 1.959964 * 0.5, 1 + 1.959964 * 0.5))
    assert cb.Estimate.of(1.0, 0.5, freedom=3.0).high == pytest.approx(1 + 0.5 * stats.t(3).ppf(0.975))
    known = cb.Estimate.of(-0.1, 0.5, least=0.0)  # the truth is known not to be negative
    assert float(known) == 0.0
    assert known.low == 0.0
    lost = cb.Estimate.of(1.0, np.nan, least=0.0)
    assert lost.interval == (0.0, np.inf)
    assert np.isnan(lost.error)
    risen = cb.Estimate(0.0, 0.1, (-0.2, 0.2)).exp()
    assert (float(risen), risen.error) == (1.0, pytest.approx(0.1))
    assert risen.interval == pytest.approx((np.exp(-0.2), np.exp(0.2)))
    assert cb.Estimate(1.23456, 0.1, (1.0, 1.5)).words(2) == "1.2 [1, 1.5]"


def test_squares_near_zero_are_covered():
    """The mean square of five group means, from products within groups: too small an estimate has too small a variance,
    and an interval around it would miss."""
    rng, held = np.random.default_rng(0), []
    for _ in range(400):
        truth = rng.normal(size=5) / 20**0.5
        rows = truth[:, None] + rng.normal(size=(5, 20))
        mean, noise = rows.mean(axis=1), rows.var(axis=1, ddof=1) / 20
        value, growth = np.mean(mean**2 - noise), 4 * np.mean(noise) / 5
        variance = np.mean(4 * mean**2 * noise - 2 * noise**2) / 5
        found = cb.Estimate.of_square(value, variance, growth)
        held.append(found.low <= np.mean(truth**2) <= found.high)
    assert 0.92 <= np.mean(held) <= 0.99


def test_a_square_far_below_zero_is_not_certainly_zero():
    found = cb.Estimate.of_square(-1.0, 0.01, 0.001)
    assert float(found) == 0 == found.low
    assert found.high >= found.error > 0
    assert cb.Estimate.of_square(np.nan, 1.0, 0.0).high == np.inf


def test_an_interval_of_a_square_holds_its_estimate():
    """Also where the variance was estimated to be negative, as for a mean that a fit has made exactly zero."""
    for value in (0.0, 0.01):
        found = cb.Estimate.of_square(value, -1e-4, 0.004)
        assert found.low <= value <= found.high


@pytest.mark.parametrize("freedom", [np.inf, 7.0])
def test_the_ends_of_a_length_are_those_of_its_law(freedom):
    """Along a line the law of a length is known: the share of it that is shorter than seen, at both ends.

    At the upper end it is a share of what noise alone makes shorter, so that short lengths have an interval too.
    """
    law = stats.norm() if np.isinf(freedom) else stats.t(freedom)
    shorter = lambda r, seen: law.cdf(seen - r) - law.cdf(-seen - r)
    for seen in (0.1, 0.5, 1.0, 3.0, 6.0):
        found = norm_estimate(np.array([0.3 * seen]), np.array([[0.09]]), freedom)
        low, high = (end / 0.3 for end in found.interval)
        assert shorter(high, seen) == pytest.approx(0.025 * shorter(0.0, seen), rel=1e-6)
        assert low == 0 if shorter(0.0, seen) < 0.975 else shorter(low, seen) == pytest.approx(0.975)
        assert (float(found), found.error) == pytest.approx((0.3 * seen, 0.3))


@pytest.mark.parametrize("size", [2, 5])
def test_a_length_has_its_noise_taken_off_and_the_ends_of_the_noncentral_law(size):
    """Noise alike in all directions: the square of a length then has a noncentral chi^2 law.

    The interval also holds what vectors drawn around the estimate show, which is little more.
    """
    length = 12.0
    found = norm_estimate(np.eye(size)[0] * length, np.eye(size))
    assert float(found) == pytest.approx(np.sqrt(length**2 - (size - 1)))
    assert found.error == pytest.approx(1.0)
    low, high = (brentq(lambda r, q=q: stats.ncx2.cdf(length**2, size, r**2) - q, 0.1, 30.0) for q in (0.975, 0.025))
    assert low - 0.25 < found.low < low + 0.05
    assert high - 0.05 < found.high < high + 0.25


def test_the_square_of_a_length_has_its_error_to_first_order():
    for value, error in ((3.0, 0.2), (0.0, 0.2)):
        half = cb.Estimate(value, error, (max(value - 0.4, 0.0), value + 0.4)).half_square()
        drawn = value + error * np.random.default_rng(0).normal(size=20_000)
        assert float(half) == pytest.approx(value**2 / 2)
        assert half.error == pytest.approx(np.std(drawn**2 / 2), rel=0.35 if not value else 0.03)
        assert half.interval == pytest.approx((max(value - 0.4, 0.0) ** 2 / 2, (value + 0.4) ** 2 / 2))


def test_a_length_around_its_estimate():
    """Drawn around it: the root mean square, the spread and the quantiles of the lengths."""
    vector, root = np.array([3.0, 1.0]), np.array([[0.5, 0.0], [0.3, 0.4]])
    found = length_around(vector, root @ root.T, np.inf)
    lengths = np.linalg.norm(vector + np.random.default_rng(1).normal(size=(100_000, 2)) @ root.T, axis=1)
    assert float(found) == pytest.approx(np.sqrt(np.mean(lengths**2)), rel=0.01)
    assert found.error == pytest.approx(lengths.std(), rel=0.05)
    assert found.interval == pytest.approx(np.quantile(lengths, (0.025, 0.975)), rel=0.02)
    nothing = length_around(np.zeros(1), np.eye(1), np.inf)
    assert nothing.interval == pytest.approx((0.0, stats.norm.ppf(0.975)), rel=0.05)


def test_a_square_has_the_interval_of_its_variance():
    """Ends differ from the estimate by 1.96 of the standard errors that they would have themselves."""
    value, variance, growth = 2.0, 0.09, 0.02
    found = cb.Estimate.of_square(value, variance, growth)
    assert (float(found), found.error) == pytest.approx((2.0, 0.3))
    for end in found.interval:
        assert abs(end - value) == pytest.approx(1.959964 * np.sqrt(variance + growth * (end - value)), rel=1e-6)
    assert cb.Estimate.of_square(value, variance, 0.0, freedom=5.0).high == pytest.approx(
        value + 0.3 * stats.t(5).ppf(0.975)
    )
