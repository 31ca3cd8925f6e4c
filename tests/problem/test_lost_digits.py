"""With JAX in single precision nothing a user hands over changes unseen: kept where it can be, refused where not."""

import jax
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.study import Study
from problems import LINE, scalar

RNG = np.random.default_rng(0)
ROWS = 50
XI = np.sort(RNG.uniform(size=ROWS))
BIG = np.full(ROWS, 3_000_000_000)
DAY = cb.Interval(1.7e9, 1.7e9 + 86_400)
TIMES = 1.7e9 + 86_400 * XI


@pytest.fixture(autouse=True)
def single():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def study(samples, **options):
    return Study.of(scalar(**options), samples)  # as solvers on batches, and cb.reduce, have it


def test_the_data_themselves_keep_every_digit():
    data = cb.Samples(TIMES, BIG, BIG)
    for part in (data, data.rows(slice(3, None)), data.rows(np.arange(5)), data.example(4)):
        assert np.all(part.eta == 3_000_000_000)
        assert np.all(np.isin(part.xi, TIMES))


@pytest.mark.parametrize("eta", [BIG, BIG.astype(np.uint64), -BIG, {"a": BIG}, np.full(ROWS, 2**62)])
def test_whole_numbers_that_would_wrap(eta):
    for data in (cb.Samples(XI, eta), cb.Product(XI, eta), cb.Levels(upper=cb.Samples(XI, eta), lower=cb.Samples(XI))):
        with pytest.raises(ValueError, match=r"eta.*would become.*precision=\"double\".*jax_enable_x64"):
            study(data)
    with pytest.raises(ValueError, match="3000000000 would become -1294967296"):
        study(cb.Samples(XI, BIG))
    study(cb.Samples(XI, BIG // 2))


def test_categories_that_would_wrap():
    days = cb.Finite([5, 3_000_000_000])
    with pytest.raises(ValueError, match=r"samples.xi.*would become"):
        study(cb.Samples(np.array([5, 3_000_000_000] * 5)), domain=days)
    with pytest.raises(ValueError, match="would become"):
        study(cb.Samples(np.array([5.0, 3e9] * 5)), domain=days)


@pytest.mark.parametrize("kind", [cb.Samples, lambda xi: cb.Product(xi, XI)])
def test_times_that_would_be_rounded(kind):
    with pytest.raises(ValueError, match=r"lose digits.*becomes.*Subtract an offset"):
        study(kind(TIMES), domain=DAY)
    study(kind(TIMES - 1.7e9), domain=cb.Interval(0.0, 86_400.0))


def test_minutes_of_a_year_become_one():
    year = cb.Interval(1.7e9, 1.7e9 + 365 * 86_400)
    with pytest.raises(ValueError, match="lose digits"):
        study(cb.Samples(1.7e9 + 60.0 * np.arange(2000)), domain=year)
    study(cb.Samples(1.7e9 + 86_400.0 * np.arange(365)), domain=year)  # days stay apart, and where they were


def test_times_among_other_contexts_and_those_yet_to_be_drawn():
    with pytest.raises(ValueError, match=r"time.*lose digits"):
        study(cb.Samples({"u": XI, "time": TIMES}), domain=cb.Mixed(u=LINE, time=DAY))
    with pytest.raises(ValueError, match="lose digits"):
        study(cb.Samples(np.stack([XI, TIMES], axis=1)), domain=cb.Box([0.0, 1.7e9], [1.0, 1.7e9 + 86_400]))
    with pytest.raises(ValueError, match="lose digits"):
        study(cb.Samples(TIMES), domain=cb.Unbounded(1.7e9, 3600.0))
    with pytest.raises(ValueError, match="128 apart"):
        study(cb.Product(cb.Uniform(DAY), XI), domain=DAY)
    hours = cb.Periodic(0.0, 86_400.0)  # which are taken before digits are lost
    found = study(cb.Samples(TIMES), domain=hours).lower.contexts().xi
    np.testing.assert_allclose(found, TIMES % 86_400, rtol=1e-6)


def test_well_scaled_contexts_are_rounded_as_ever():
    for lo, hi in ((0.0, 1.0), (270.0, 310.0), (1990.0, 2020.0), (-1e-9, 1e-9), (0.0, 1e12)):
        study(cb.Samples(lo + (hi - lo) * XI), domain=cb.Interval(lo, hi))


def test_numbers_too_large_for_single_precision():
    with pytest.raises(ValueError, match=r"eta holds numbers up to 1e\+300.*float32"):
        study(cb.Samples(XI, np.full(ROWS, 1e300)))
    for name in ("x0", "y0"):
        with pytest.raises(ValueError, match=rf"{name} holds 1e\+39.*float32"):
            study(cb.Samples(XI), **{name: 1e39})
    with pytest.raises(ValueError, match=r"x_bounds.*100000000\.0 and 100000001\.0 become one"):
        study(cb.Samples(XI), x0=1e8, x_bounds=(1e8, 1e8 + 1))
    study(cb.Samples(XI), x_bounds=(-1e39, 1e39))  # as good as none


def test_ends_of_a_domain_that_no_float_equals():
    with pytest.raises(ValueError, match=r"Interval: lo.*no float represents"):
        cb.Interval(2**53 + 1, 2**54)
    assert float(cb.Interval(2**53, 2**54).lo) == 2**53


@pytest.mark.parametrize("size", [1e308, 1e-320, 3_000_000_000, 1.0])
def test_weights_of_any_size_are_ratios(size):
    often = np.where(XI < 0.5, 1, 0.5) if size != 3_000_000_000 else np.where(XI < 0.5, 2, 1)
    weights = (often * size).astype(int if size == 3_000_000_000 else float)
    found = study(cb.Samples(XI, XI, weights)).lower
    share = 1e-3 if size == 1e-320 else 1e-6  # a number this small has few digits itself
    np.testing.assert_allclose(found.weights, often / often.mean(), rtol=share)


def test_weights_that_vanish_next_to_others_are_left_out():
    weights = np.where(XI < 0.5, 1e300, 1e-300)
    found = study(cb.Samples(XI, XI, weights)).lower
    assert len(found) == np.sum(XI < 0.5)
    np.testing.assert_allclose(found.weights, 1.0, rtol=1e-6)
