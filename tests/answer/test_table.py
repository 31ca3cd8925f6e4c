"""The policy as a table: a frame comes back as one of its library, anything else as columns."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

XI = np.linspace(0.0, 1.0, 20)
DAYS = ["mon", "tue", "sun"]
MIXED = cb.Mixed(weather=cb.Interval(0.0, 1.0), day=cb.Finite(DAYS))


def lifted(domain, xi, y0, W, basis):
    """A solution with coefficients of our own, so that its policy is known."""
    problem = cb.Problem(lambda x, y, xi, eta: x**2, lambda x, y, xi, eta: x**2, x0=1.0, y0=y0, domain=domain)
    reduced = cb.reduce(problem, basis, cb.Samples(xi))
    return reduced.lift(reduced.x0, W)


@pytest.fixture(scope="module")
def line():
    """``y = 1 + 2 xi`` and ``y = 3 - xi`` in two components."""
    basis = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), xi]), 2)
    W = jnp.array([[1.0, 3.0], [2.0, -1.0]])
    return lifted(cb.Interval(0.0, 1.0), XI, jnp.zeros(2), W, basis)


@pytest.fixture(scope="module")
def by_day():
    """``stock = weather + 10 day`` with days counted from 0."""
    basis = cb.Features(lambda xi: jnp.stack([xi["weather"], xi["day"].astype(xi["weather"].dtype)]), 2)
    xi = {"weather": XI, "day": np.resize(DAYS, 20)}
    return lifted(MIXED, xi, {"stock": jnp.zeros(())}, {"stock": jnp.array([1.0, 10.0])}, basis)


def test_arrays_give_columns(line):
    found = line.table([0.0, 0.5, 1.5])
    assert list(found) == ["xi", "y[0]", "y[1]", "in_domain"]
    np.testing.assert_allclose(found["y[0]"], [1.0, 2.0, np.nan])
    np.testing.assert_allclose(found["y[1]"], [3.0, 2.5, np.nan])
    np.testing.assert_array_equal(found["in_domain"], [True, True, False])
    assert len(line.table(0.5)["xi"]) == 1
    with pytest.raises(ValueError, match=r"has the columns .*have 1"):
        line.table({"a": [0.1], "b": [0.2]})


def test_dicts_and_names(by_day, line):
    found = by_day.table({"weather": [0.5, 0.25, 2.0], "day": ["tue", "holiday", "mon"]})
    assert list(found) == ["weather", "day", "stock", "in_domain"]
    np.testing.assert_allclose(found["stock"], [10.5, np.nan, np.nan])
    np.testing.assert_array_equal(found["in_domain"], [True, False, False])
    np.testing.assert_array_equal(found["day"], ["tue", "holiday", "mon"])
    same = by_day.table(np.array([[0.5, 1.0], [0.25, 7.0]]))
    np.testing.assert_array_equal(same["day"], ["tue", ""])
    np.testing.assert_allclose(same["stock"], [10.5, np.nan])
    clash = line.table({"y[0]": [0.5]})
    assert list(clash) == ["y[0]", "policy y[0]", "y[1]", "in_domain"]


@pytest.mark.parametrize("name", ["pandas", "polars", "narwhals"])
def test_frames_come_back_in_their_library(name, by_day, line):
    library = pytest.importorskip("polars" if name == "narwhals" else name)
    columns = {"more": [1, 2, 3], "day": ["sun", "holiday", None], "weather": [0.5, 0.5, 0.5]}
    frame = library.DataFrame(columns)
    given = pytest.importorskip("narwhals").from_native(frame) if name == "narwhals" else frame
    found = by_day.table(given)
    assert type(found) is library.DataFrame
    assert list(found.columns) == ["weather", "day", "stock", "in_domain"]
    np.testing.assert_allclose(np.asarray(found["stock"], float), [20.5, np.nan, np.nan])
    np.testing.assert_array_equal(np.asarray(found["in_domain"]), [True, False, False])
    assert list(found["day"])[:2] == ["sun", "holiday"]
    with pytest.raises(ValueError, match=r"the domain names 'weather', .*Did you mean 'wether'"):
        by_day.table(library.DataFrame({"wether": [0.5], "day": ["sun"]}))
    with pytest.raises(ValueError, match=r"has the columns 'more'.*have 1"):
        line.table(frame)


def test_pandas_keeps_its_index_and_categories(by_day):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"weather": [0.5, 0.5], "day": pandas.Categorical(["sun", "mon"])}, index=[7, 3])
    found = by_day.table(frame)
    assert list(found.index) == [7, 3]
    assert found["day"].dtype == frame["day"].dtype
    np.testing.assert_allclose(found["stock"], [20.5, 0.5])


def test_boxes_and_vectors_of_a_finite_domain():
    basis = cb.Features(lambda xi: xi, 2)
    xi = np.stack([XI, 1 - XI], axis=1)
    for domain in (cb.Box([0.0, 0.0], [1.0, 1.0]), cb.Finite(xi)):
        found = lifted(domain, xi, jnp.zeros(()), jnp.array([1.0, 10.0]), basis)
        by_name = {"b": xi[:2, 0], "a": xi[:2, 1]}
        for use in (found.table, found.policy):  # there are no names to tell columns apart by
            with pytest.raises(TypeError, match="have no names"):
                use(by_name)
        table = found.table(xi[:2])
        assert list(table)[2:] == ["y", "in_domain"]
        np.testing.assert_allclose(table["y"], xi[:2] @ [1.0, 10.0])
        assert table["in_domain"].all()
        np.testing.assert_array_equal(found.table([[5.0, 0.0]])["in_domain"], [False])


def test_all_of_y_is_in_the_table_under_equalities():
    """What the basis holds has a component less than ``y``."""
    stated = cb.Problem(
        lambda x, y, xi, eta: jnp.sum(y**2) + x**2, lambda x, y, xi, eta: jnp.sum((y - x) ** 2),
        0.1, jnp.zeros(3), cb.Interval(0.0, 1.0), constraints=[cb.Simplex()],
    )  # fmt: skip
    reduced = cb.reduce(stated, cb.Chebyshev(2), cb.Samples(XI))
    found = reduced.lift(reduced.x0, reduced.W0)
    table = found.table(XI[:4])
    assert list(table) == ["xi", "y[0]", "y[1]", "y[2]", "in_domain"]
    np.testing.assert_allclose(np.stack([table[f"y[{k}]"] for k in range(3)], axis=1), found.policy(XI[:4]))
    assert len(found.plot().axes[0].lines) >= 3
    assert {name: len(column) for name, column in found.table(XI[:0]).items()} == dict.fromkeys(table, 0)


def test_single_values_are_repeated_and_categories_without_samples_have_no_error():
    rng = np.random.default_rng(0)
    columns = {"weather": rng.uniform(0, 1, 200), "kind": rng.choice(["a", "b"], 200)}
    domain = cb.Mixed(weather=cb.Interval(0, 1), kind=cb.Finite(["a", "b", "never"]))
    problem = cb.Problem(
        lambda x, y, xi, eta: (x - y) ** 2, lambda x, y, xi, eta: (y - eta) ** 2, x0=0.0, y0=0.0, domain=domain
    )
    solution = cb.solve(problem, cb.Samples(columns, columns["weather"] + 0.1 * rng.normal(size=200)))
    table = solution.table({"weather": [0.2, 0.5, 0.9], "kind": "a"})
    assert table["kind"].tolist() == ["a"] * 3
    assert {len(column) for column in table.values()} == {3}
    errors = solution.policy_standard_error({"weather": 0.5, "kind": np.array(["a", "b", "never"])})
    assert np.isfinite(errors).tolist() == [True, True, False]
    alone = cb.Problem(problem.upper, problem.lower, x0=0.0, y0=0.0, domain=domain.parts["kind"])
    found = cb.solve(alone, cb.Samples(columns["kind"], columns["weather"]))
    assert np.isfinite(found.policy_standard_error(np.array(["a", "never"]))).tolist() == [True, False]
