"""Sizes are counted before anything is listed or computed; what does not fit is refused, with what would."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import check_sizes
from cobilevel.ground import checks

SETS = (cb.Tensor(), cb.TotalDegree(), cb.Additive(), cb.Interactions(2), cb.Interactions(3), cb.HyperbolicCross())
RNG = np.random.default_rng(0)


def cube(dimension):
    return cb.Box([0.0] * dimension, [1.0] * dimension)


def reduced(dimension, basis, rows=50):
    problem = cb.Problem(
        lambda x, y, xi, eta: y**2 + x**2, lambda x, y, xi, eta: (y - x) ** 2, 0.5, 0.0, cube(dimension)
    )
    return cb.reduce(problem, basis, cb.Samples(RNG.uniform(size=(rows, dimension))))


@pytest.mark.parametrize("index", SETS, ids=repr)
def test_counts_agree_with_the_lists(index):
    for n in (1, 2, 5, 8):
        for dimension in (1, 2, 4):
            assert index.count(n, dimension) == len(index.table(n, dimension))
    of_degree, of_category, of_wave = np.arange(5), np.minimum(np.arange(4), 1), (np.arange(6) + 1) // 2
    for degrees in ([of_category], [of_degree, of_wave], [of_wave, of_category, of_degree], [of_category] * 3):
        assert index.size(degrees) == len(index.coupled(degrees))


def test_huge_sets_are_counted_at_once():
    began = time.process_time()
    assert cb.Tensor().count(3, 20) == 3**20
    assert cb.TotalDegree().count(12, 20) == 84_672_315
    assert cb.Interactions(4).count(40, 20) == 11_276_535_076
    assert cb.HyperbolicCross().count(200, 20) == 5_697_160
    assert cb.HyperbolicCross().count(10**6, 20) > checks.MOST_LISTED
    assert time.process_time() - began < 2  # listing any of them takes minutes, or memory that is not there


@pytest.mark.parametrize(
    ("dimension", "basis", "words"),
    [
        (4, cb.Chebyshev(60), ["12,960,000 functions", "Chebyshev(2) has 16", "TotalDegree()) has 35"]),
        (20, cb.Chebyshev(3), ["3,486,784,401", "Chebyshev(2, index=TotalDegree()) has 21", "Additive()) has 41"]),
        (20, cb.Partition(4), ["1,099,511,627,776", "Partition(1) has 1."]),
        (20, cb.Orthonormal(cb.Legendre(12, index=cb.TotalDegree())), ["84,672,315", "Legendre(2, index=", "has 21"]),
        (20, cb.Union([cb.Chebyshev(3), cb.Chebyshev(2)]), ["3,487,832,977 functions"]),
    ],
)  # fmt: skip
def test_more_functions_than_contexts_are_refused_before_they_are_listed(dimension, basis, words):
    with pytest.raises(ValueError, match="50 distinct contexts") as caught:
        reduced(dimension, basis)
    for word in words:
        assert word in str(caught.value)


def test_more_than_can_be_listed_is_refused_on_a_stream_too():
    stream = cb.Stream(lambda key, size: cb.Samples(jax.random.uniform(key, (size, 20))))
    problem = cb.Problem(lambda x, y, xi, eta: y**2 + x**2, lambda x, y, xi, eta: (y - x) ** 2, 0.5, 0.0, cube(20))
    with pytest.raises(ValueError, match=r"at most 4,194,304 can be listed\. What fits: Chebyshev\(2\) has 1,048,576"):
        cb.reduce(problem, cb.Chebyshev(3), stream)
    with pytest.raises(ValueError, match=r"Partition\(2\) has 1,048,576"):
        cb.reduce(problem, cb.Partition(4), stream)


def test_sets_of_a_users_own_are_listed_up_to_a_limit():
    class Odd(cb.Tensor):
        def size(self, degrees):
            return 0  # it does not know

        def admits(self, k, n):
            return np.ones(len(k), bool)

    with pytest.raises(ValueError, match="can be listed"):
        Odd().table(2100, 2)


def test_tables_are_held_against_the_memory_at_hand(monkeypatch):
    monkeypatch.setattr(checks, "memory_at_hand", lambda: 24 * 2.0**30)
    line = cb.Interval(0.0, 1.0)
    with pytest.raises(
        ValueError, match=r"44\.7 GiB, more than 18\.0 GiB, which is 75% of the available memory"
    ) as caught:
        check_sizes(cb.Chebyshev(20_000), line, 50_000)
    largest = int(max(np.roots([5, 4 * 50_000 + 4, -18 * 2**30 / 8])))  # four tables, five squares, coefficients
    assert f"Chebyshev({largest}) has {largest:,}" in str(caught.value)
    check_sizes(cb.Chebyshev(largest), line, 50_000)
    with pytest.raises(ValueError, match="GiB"):
        check_sizes(cb.Features(jnp.atleast_1d, 20_000), line, 50_000)
    with pytest.raises(ValueError, match="coefficients for the 1,000,000 numbers of y"):
        check_sizes(cb.Chebyshev(1000), line, 50, outputs=1_000_000)


def test_what_is_large_and_fits_is_not_refused(monkeypatch):
    """The sizes that the benchmarks run: cells and categories by the thousand, 20,000 coefficients without a matrix."""
    monkeypatch.setattr(checks, "memory_at_hand", lambda: 8 * 2.0**30)
    line = cb.Interval(0.0, 1.0)
    check_sizes(cb.Categorical(), cb.Finite(np.arange(2500.0)), 10_000)
    check_sizes(cb.Fourier(1000), line, 16_000, outputs=20, distinct=16_000)
    check_sizes(cb.Partition(1000), cube(2), 1_000_000, distinct=1_000_000)
    check_sizes(cb.Chebyshev(10), line, 1_000_000, distinct=1_000_000)
    check_sizes(cb.Chebyshev(14), cube(4), 64)  # of a stream


def test_quadrature_with_too_many_nodes_is_refused(monkeypatch):
    monkeypatch.setattr(checks, "memory_at_hand", lambda: 24 * 2.0**30)
    with pytest.raises(
        ValueError, match=r"Product: nodes = 64 in 5 dimensions makes 1,073,741,824 contexts, 192"
    ) as one:
        cb.Product(cb.Uniform(cube(5)), np.zeros(3))
    assert "Use 39 or fewer" in str(one.value)
    cb.Product(cb.Uniform(cube(5)), np.zeros(3), nodes=39)
    with pytest.raises(ValueError, match=r"20,000 contexts, more than 2048 along one dimension\. Use 2048 or fewer"):
        cb.Product(cb.Uniform(cb.Interval(0.0, 1.0)), np.zeros(3), nodes=20_000)
    with pytest.raises(ValueError, match="quadrature: n = 64"):
        cb.Uniform(cube(5)).quadrature(64)
    cb.Product(cb.Uniform(cube(3)), np.zeros(3))


def test_the_memory_at_hand_is_that_of_the_container(monkeypatch, tmp_path):
    machine = checks.memory_at_hand()
    assert 2**28 < machine < 2**50
    monkeypatch.setattr(checks, "_container_limits", lambda: [1e6])
    assert checks.memory_at_hand() == 1e6
    assert checks.memory_limit() == 0.75e6
