"""Contexts as they come: mixed, periodic, unbounded, strings; closed forms, and what errors say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.problem import enter
from cobilevel.study import Study

DAYS = ["mon", "tue", "wed"]
WEEK = cb.Mixed(weather=cb.Interval(0.0, 2.0), hour=cb.Periodic(0.0, 24.0), day=cb.Finite(DAYS))
ROWS = 120
RNG = np.random.default_rng(0)
COLUMNS = {"weather": RNG.uniform(0, 2, ROWS), "hour": RNG.uniform(0, 24, ROWS), "day": RNG.choice(DAYS, ROWS)}
CODE = np.array([DAYS.index(day) for day in COLUMNS["day"]])
EFFECT = np.array([0.0, 1.0, -2.0])


def truth(columns, code):
    return columns["weather"] + np.cos(2 * np.pi * columns["hour"] / 24) + EFFECT[code]


def lower(x, y, xi, eta):
    wave = jnp.cos(2 * jnp.pi * xi["hour"] / 24)
    return (y - x - xi["weather"] - wave - jnp.asarray(EFFECT, y.dtype)[xi["day"]] + eta) ** 2


def upper(x, y, xi, eta):
    return (y - 1) ** 2 + 0.0 * xi["weather"]


def functions(xi):
    """Those in which the policy is exact: 1, the weather, the hour's wave, and the days but the first."""
    wave = jnp.cos(2 * jnp.pi * xi["hour"] / 24)
    days = jax.nn.one_hot(xi["day"], 3, dtype=wave.dtype)[1:]
    return jnp.concatenate([jnp.stack([jnp.ones_like(wave), xi["weather"], wave]), days])


PROBLEM = cb.Problem(upper, lower, x0=0.5, y0=0.0, domain=WEEK, conditional=lambda key, xi, size: jnp.zeros(size))
BASIS = cb.Features(functions, 5)
SAMPLES = cb.Samples(COLUMNS, np.zeros(ROWS))


@pytest.fixture(scope="module")
def solution():
    return cb.solve(PROBLEM, SAMPLES, basis=BASIS)


def test_functions_see_a_dict_and_the_policy_takes_one(solution):
    """``y* = x + weather + wave + effect``, and ``x = 1 - E(the rest)`` minimises the mean of ``(y - 1)^2``."""
    rest = truth(COLUMNS, CODE)
    np.testing.assert_allclose(solution.x, 1 - rest.mean(), atol=1e-9)
    wanted = float(solution.x) + rest
    for contexts in (COLUMNS, COLUMNS | {"day": CODE}, COLUMNS | {"hour": COLUMNS["hour"] + 48.0}):
        np.testing.assert_allclose(solution.policy(contexts), wanted, atol=1e-8)
    jitted = jax.jit(solution.policy)({name: jnp.asarray(v) for name, v in (COLUMNS | {"day": CODE}).items()})
    np.testing.assert_allclose(jitted, wanted, atol=1e-8)
    one = solution.policy({"weather": 0.5, "hour": np.array([0.0, 12.0, 24.0]), "day": "wed"})
    np.testing.assert_allclose(one, float(solution.x) + 0.5 + np.array([1, -1, 1]) - 2, atol=1e-8)
    assert np.isnan(solution.policy({"weather": 2.5, "hour": 1.0, "day": "mon"}))
    assert np.isnan(solution.policy({"weather": 0.5, "hour": 1.0, "day": 3}))


def test_saving_keeps_names_and_values(solution, tmp_path):
    path = solution.save(tmp_path / "run.npz")
    again = cb.load(path, PROBLEM, basis=BASIS)
    np.testing.assert_array_equal(again.policy(COLUMNS), solution.policy(COLUMNS))
    other = cb.Mixed(weather=cb.Interval(0.0, 2.0), hour=cb.Periodic(0.0, 24.0), day=cb.Finite(["mon", "tue", "fri"]))
    with pytest.raises(ValueError, match="another domain"):
        cb.load(path, cb.Problem(upper, lower, x0=0.5, y0=0.0, domain=other), basis=BASIS)


def test_every_kind_of_data_takes_columns(solution):
    packed = enter(WEEK, COLUMNS, data=True).values
    np.testing.assert_allclose(packed, np.stack([COLUMNS["weather"], COLUMNS["hour"], CODE], axis=1))
    crossed = Study.of(PROBLEM, cb.Product(COLUMNS, np.zeros(2)))
    np.testing.assert_array_equal(crossed.lower.contexts().xi, packed)
    levels = Study.of(PROBLEM, cb.Levels(upper=SAMPLES, lower=cb.Samples(packed, np.zeros(ROWS))))
    np.testing.assert_array_equal(levels.upper.contexts().xi, packed)

    def draw(key, size):
        weather, hour = 2 * jax.random.uniform(key, (2, size))
        return cb.Samples({"day": jnp.arange(size) % 3, "hour": 24 + hour, "weather": weather}, jnp.zeros(size))

    drawn = Study.of(PROBLEM, cb.Stream(draw)).lower.example(5).xi
    assert drawn.shape == (5, 3)
    np.testing.assert_array_equal(drawn[:, 2], [0, 1, 2, 0, 1])
    assert np.all(np.asarray(drawn[:, 1]) < 2)
    exact = cb.evaluate(PROBLEM, solution, SAMPLES)
    assert exact.policy_error < 1e-14


def test_a_box_takes_columns_in_their_order():
    box = cb.Box([0.0, 0.0], [1.0, 2.0])
    packed = enter(box, {"a": np.array([0.1, 0.2]), "b": np.array([1.0, 2.0])}, data=True).values
    np.testing.assert_array_equal(packed, [[0.1, 1.0], [0.2, 2.0]])
    with pytest.raises(ValueError, match=r"columns 'a'.*have 2"):
        enter(box, {"a": np.array([0.1])}, data=True).values


def test_strings_alone():
    """A Finite domain of strings: the mean of each category, and a value never seen is named."""
    eta = np.array([1.0, 3.0, 5.0, 7.0])
    problem = cb.Problem(
        lambda x, y, xi, eta: (x - y) ** 2, lambda x, y, xi, eta: (y - eta) ** 2, 0.0, 0.0, cb.Finite(["a", "b", "c"])
    )
    found = cb.solve(problem, cb.Samples(np.array(["b", "a", "b", "a"]), eta))
    np.testing.assert_allclose(found.policy(["a", "b"]), [5.0, 3.0])
    np.testing.assert_allclose(found.policy("b"), 3.0)
    assert "never seen: 'c'" in found.choices["contexts"]
    with pytest.raises(ValueError, match="distinct"):
        cb.Finite(["a", "a"])


def test_a_circle():
    hours = cb.Periodic(0.0, 24.0)
    xi = jnp.array([0.5, 24.5, -23.5, 48.5])
    np.testing.assert_allclose(hours.reference(xi), np.full((4, 1), 0.5 / 12 - 1), atol=1e-13)
    np.testing.assert_allclose(enter(hours, xi, data=True).values, 0.5, atol=1e-12)
    np.testing.assert_allclose(hours.reference(jnp.array([0.0, 24.0]))[:, 0], -1)
    assert hours.contains(jnp.array([1e6, jnp.nan, jnp.inf])).tolist() == [True, False, False]
    u = jnp.linspace(-1, 0.99, 9)[:, None]
    np.testing.assert_allclose(hours.reference(hours.place(u)), u, atol=1e-14)
    near, far = (
        np.linalg.norm(np.diff(hours.embedded(jnp.array(pair)), axis=0)) for pair in ((23.9, 0.1), (12.0, 0.0))
    )
    np.testing.assert_allclose(near, 0.2 / 12, rtol=1e-3)  # as long as on the reference interval, where 24 hours are 2
    np.testing.assert_allclose(far, 2 / np.pi)


def test_all_numbers():
    everything = cb.Unbounded(3.0, 2.0)
    np.testing.assert_allclose(everything.reference(jnp.array([3.0, 5.0, 1e300]))[:, 0], [0, 0.5**0.5, 1])
    u = jnp.linspace(-0.99, 0.99, 9)[:, None]
    np.testing.assert_allclose(everything.reference(everything.place(u)), u, atol=1e-13)
    assert everything.contains(jnp.array([-1e300, jnp.nan, jnp.inf])).tolist() == [True, False, False]
    values = np.append(np.random.default_rng(0).normal(10.0, 3.0, 20_000), [1e9] * 20)
    fitted = cb.Unbounded.fitted(values)
    np.testing.assert_allclose([fitted.center, fitted.scale], [10, 6], rtol=0.03)
    with pytest.raises(ValueError, match="all 3 values"):
        cb.Unbounded.fitted([2.0, 2.0, 2.0])


def test_categories_are_far_apart():
    """The nearest of each context has its category, also where one of another category is at the same place."""
    rows = jnp.array([[0.0, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 13.0, 0.0]])
    at = np.asarray(WEEK.embedded(rows))
    gaps = np.linalg.norm(at[:, None] - at[None], axis=-1)
    assert gaps[0, 2] < gaps[0, 1]


WRONG = {
    "no column": (lambda c: {k: c[k] for k in ("hour", "day")}, "samples.xi has no column 'weather'"),
    "another column": (lambda c: c | {"wind": c["hour"]}, "column 'wind' that is not in the domain"),
    "outside": (
        lambda c: c | {"weather": c["weather"] + 10},
        r"samples.xi\['weather'\]: 120 of 120 contexts lie outside Interval",
    ),
    "unknown": (lambda c: c | {"day": np.append(c["day"][:-1], "sun")}, r"xi\['day'\] holds 'sun' in 1 of 120 rows"),
    "no number": (lambda c: c | {"weather": c["day"]}, r"xi\['weather'\] holds strings"),
    "no code": (lambda c: c | {"day": CODE + 0.5}, r"xi\['day'\]: 120 of 120 contexts lie outside Finite"),
    "NaN": (lambda c: c | {"hour": np.append(c["hour"][:-1], np.nan)}, r"xi\['hour'\] holds NaN .* in 1 of 120 rows"),
    "missing": (lambda c: c | {"day": [None, *c["day"][1:]]}, r"xi\['day'\] has no value in 1 of 120 rows"),
    "lengths": (lambda c: c | {"hour": c["hour"][:7]}, r"xi\['hour'\] has 7 rows where 120"),
    "two axes": (lambda c: c | {"hour": np.ones((ROWS, 2))}, r"xi\['hour'\] must be one column"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors_name_the_column(kind):
    change, message = WRONG[kind]
    with pytest.raises((ValueError, TypeError), match=message):
        Study.of(PROBLEM, cb.Samples(change(COLUMNS), np.zeros(ROWS)))


def test_an_unknown_value_lies_outside_where_it_is_asked_for(solution):
    assert np.all(np.isnan(solution.policy({"weather": 0.1, "hour": 0.0, "day": "sun"})))


def test_a_single_time_keeps_its_digits_until_it_is_wrapped():
    """Seconds since 1970 do not fit in single precision; those of the day do."""
    day = cb.Mixed(t=cb.Periodic(0, 86400), d=cb.Finite(["a", "b"]))
    with jax.enable_x64(False):
        packed = np.asarray(enter(day, {"t": 1.7e9 + 1410, "d": "a"}, data=True).values)
    np.testing.assert_allclose(packed, [(1.7e9 + 1410) % 86400, 0], atol=0.01)
