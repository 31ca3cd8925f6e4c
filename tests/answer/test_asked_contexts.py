"""What a policy is asked at: no rows at all, columns of several lengths, data in another form than the library's."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

LINE = cb.Interval(0.0, 1.0)
XI = np.linspace(0, 1, 40)
DAYS = np.array(["mon", "tue"] * 20)


def lifted(domain, basis, xi, lower):
    problem = cb.Problem(lambda x, y, xi, eta: jnp.sum(y) ** 2 + x**2, lower, 0.5, np.zeros(2), domain)
    reduced = cb.reduce(problem, basis, cb.Samples(xi))
    return reduced.lift(reduced.x0, reduced.W0)


@pytest.fixture(scope="module")
def days():
    fit = lambda x, y, xi, eta: jnp.sum((y - x * xi["a"] - xi["day"].astype(float)) ** 2)
    parts = cb.Components(a=cb.Fourier(2), day=cb.Categorical())
    return lifted(cb.Mixed(a=LINE, day=cb.Finite(["mon", "tue"])), parts, {"a": XI, "day": DAYS}, fit)


@pytest.mark.parametrize("basis", [cb.Chebyshev(3), cb.Partition(3), cb.Features(lambda xi: jnp.stack([xi, xi**2]), 2)])
def test_no_rows_give_no_rows(basis):
    found = lifted(LINE, basis, XI, lambda x, y, xi, eta: jnp.sum((y - x * xi) ** 2))
    for none in (np.zeros(0), [], np.zeros((3, 0))):
        assert found.policy(none).shape == (*np.shape(none), 2)
    assert len(found.table(np.zeros(0))["in_domain"]) == 0


def test_no_rows_of_several_columns_give_no_rows(days):
    assert days.policy({"a": np.zeros(0), "day": []}).shape == (0, 2)


def test_columns_of_several_lengths_are_named(days):
    for call in (days.policy, days.table):
        with pytest.raises(ValueError, match=r"columns must have the same length.*'a' \[3\], 'day' \[2\]"):
            call({"a": np.zeros(3), "day": ["mon", "tue"]})
    assert days.policy({"a": np.zeros(3), "day": "mon"}).shape == (3, 2)


def test_data_that_are_none_are_not_drawn(days):
    pandas = pytest.importorskip("pandas")
    for data in (pandas.DataFrame({"a": XI, "day": DAYS}), XI):
        with pytest.raises(TypeError, match=r"plot: samples must be Samples.*cb\.Samples\.from_frame"):
            days.plot(samples=data)


def test_a_domain_of_one_part_is_drawn():
    found = lifted(cb.Mixed(a=LINE), cb.Chebyshev(3), {"a": XI}, lambda x, y, xi, eta: jnp.sum((y - x * xi["a"]) ** 2))
    assert len(found.plot().axes[0].lines) == 2
