"""What is drawn of a policy, read back from the figure."""

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

import cobilevel as cb

DAYS = ("mon", "tue", "sun")


@pytest.fixture(autouse=True)
def _figures():
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    xi = {
        "weather": rng.uniform(0.2, 1.0, 60),
        "wind": rng.uniform(0, 10, 60),
        "day": rng.choice(DAYS, 60, p=(0.2, 0.6, 0.2)),
    }
    return cb.Samples(xi, {"a": rng.normal(size=60), "b": rng.normal(size=60)})


@pytest.fixture(scope="module")
def solution(samples):
    """``a = weather + wind + 100 day``, ``b = -weather``."""
    domain = cb.Mixed(weather=cb.Interval(0, 1), wind=cb.Interval(0, 10), day=cb.Finite(DAYS))
    basis = cb.Features(lambda xi: jnp.stack([xi["weather"], xi["wind"], xi["day"].astype(xi["wind"].dtype)]), 3)
    problem = cb.Problem(
        lambda x, y, xi, eta: x**2,
        lambda x, y, xi, eta: (y["a"] - eta["a"]) ** 2 + (y["b"] - eta["b"]) ** 2,
        x0=1.0, y0={"a": 0.0, "b": 0.0}, domain=domain,
    )  # fmt: skip
    reduced = cb.reduce(problem, basis, samples)
    return reduced.lift(reduced.x0, {"a": jnp.array([1.0, 1.0, 100.0]), "b": jnp.array([-1.0, 0.0, 0.0])})


def lines(axis):
    """The curves, by label."""
    return {line.get_label(): line.get_xydata() for line in axis.lines}


def test_lines_over_one_context_with_the_others_held(solution, samples):
    figure = solution.plot(samples=samples)
    (axis,) = figure.axes
    median = np.median(samples.xi["wind"])
    found = lines(axis)
    np.testing.assert_allclose(found["a"][:, 1], found["a"][:, 0] + median + 100)
    np.testing.assert_allclose(found["b"][:, 1], -found["b"][:, 0], atol=1e-12)
    np.testing.assert_array_equal(found["samples of b"][:, 1], samples.eta["b"])
    assert f"wind = {median:.4g} (median), day = tue (most frequent)" in figure.get_suptitle().replace("\n", " ")
    bare = solution.plot(over="wind", at={"day": "sun"})
    assert bare.get_suptitle() == "Policy over wind, at weather = 0.5 (middle), day = sun"
    np.testing.assert_allclose(lines(bare.axes[0])["a"][:, 1], 200.5 + lines(bare.axes[0])["a"][:, 0])


def test_categories_are_points(solution):
    (axis,) = solution.plot(over="day", at={"weather": 0.25, "wind": 0}).axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == list(DAYS)
    points = [bar.lines[0].get_ydata() for bar in axis.containers]
    np.testing.assert_allclose(points, [[0.25, 100.25, 200.25], [-0.25] * 3])


def test_two_contexts(solution, samples):
    maps = solution.plot(over=["weather", "wind"], at={"day": "mon"}, samples=samples)
    assert [axis.get_ylabel() for axis in maps.axes] == ["wind", "wind", "a", "b"]
    edges = maps.axes[0].collections[0].get_array() if maps.axes[0].collections else None
    assert edges is None or np.ptp(edges) > 9
    mixed = solution.plot(over=["day", "weather"], at={"wind": 0})
    found = lines(mixed.axes[0])
    assert list(found) == list(DAYS)
    np.testing.assert_allclose(found["sun"][:, 1], 200 + found["sun"][:, 0])


def test_two_categories_are_a_grid_and_many_are_thinned(samples):
    rng = np.random.default_rng(0)
    names = [f"store number {k}" for k in range(30)]
    xi = {"day": rng.choice(DAYS, 60), "store": np.resize(names, 60)}
    domain = cb.Mixed(day=cb.Finite(DAYS), store=cb.Finite(names))
    basis = cb.Features(lambda xi: jnp.stack([xi["day"], xi["store"]]).astype(float), 2)
    problem = cb.Problem(lambda x, y, xi, eta: x**2, lambda x, y, xi, eta: y**2, x0=1.0, y0=0.0, domain=domain)
    reduced = cb.reduce(problem, basis, cb.Samples(xi))
    solution = reduced.lift(reduced.x0, jnp.array([100.0, 1.0]))
    axis = solution.plot().axes[0]
    drawn = axis.collections[0].get_array().reshape(30, 3)
    np.testing.assert_allclose(drawn, 100 * np.arange(3) + np.arange(30)[:, None])
    assert len(axis.get_yticks()) == 10
    assert axis.get_yticklabels()[1].get_text() == "store number 3"


@pytest.mark.parametrize("over", ["at $_$", "price", None])
def test_names_are_never_formulas(over):
    """Matplotlib takes what is between two dollar signs for one, and fails to draw where it is none."""
    names, row = [r"$\frac$ to $2", "$1 to $2"], np.linspace(0, 1, 20)
    domain = cb.Mixed({"at $_$": cb.Interval(0, 1), "price": cb.Finite(names)})
    problem = cb.Problem(
        lambda x, y, xi, eta: x**2, lambda x, y, xi, eta: y["$^$"] ** 2, x0=1.0, y0={"$^$": 0.0}, domain=domain
    )
    reduced = cb.reduce(problem, cb.Chebyshev(2), cb.Samples({"at $_$": row, "price": np.resize(names, 20)}))
    figure = reduced.lift(reduced.x0, reduced.W0).plot(over=over)
    figure.canvas.draw()
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == (names if over is None else ["$^$"])


def test_boxes_and_intervals_have_names_too(quadratic):
    solution = cb.solve(quadratic.problem, quadratic.train, basis=cb.Orthonormal(cb.Chebyshev(5)))
    axis = solution.plot(samples=quadratic.train).axes[0]
    assert axis.get_xlabel() == "xi"
    found = lines(axis)
    np.testing.assert_allclose(found["y[1]"][:, 1], solution.policy(found["y[1]"][:, 0])[:, 1])
    band = axis.collections[0].get_paths()[0].vertices
    error = np.asarray(solution.policy_standard_error(np.array([-1.0])))[0, 0]
    low, high = (float(solution.policy(-1.0)[0]) + sign * 1.959964 * error for sign in (-1, 1))
    ends = band[np.isclose(band[:, 0], -1.0), 1]
    np.testing.assert_allclose([ends.min(), ends.max()], [low, high], rtol=1e-6)


REFUSED = [
    ({"over": "wether"}, "over names 'wether', but the contexts are 'weather'"),
    ({"at": {"wether": 1}}, "at names 'wether'"),
    ({"over": "day", "at": {"weather": 2}}, "at holds weather at 2, which is not in Interval"),
    ({"over": "day", "at": {"day": "mon"}}, "'day' is also held by at"),
    ({"over": "wind", "at": {"day": "holiday"}}, "at holds day at 'holiday', which is not in Finite"),
    ({"over": ["weather", "wind", "day"]}, "over takes one or two of the contexts"),
    ({"over": []}, "over takes one or two of the contexts"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_is_refused(solution, given, words):
    with pytest.raises(ValueError, match=words):
        solution.plot(**given)


def test_a_context_without_ends_is_shown_where_it_was_observed():
    rng = np.random.default_rng(0)
    kind = rng.lognormal(size=300)
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: (x - y) ** 2,
        lower=lambda x, y, xi, eta: (y - jnp.log(xi)) ** 2,
        x0=0.0,
        y0=0.0,
        domain=cb.Unbounded.fitted(kind),
    )
    samples = cb.Samples(kind)
    (axis,) = cb.solve(problem, samples, basis=cb.Chebyshev(4)).plot(samples=samples).axes
    np.testing.assert_allclose(axis.get_xlim(), np.quantile(kind, [0.005, 0.995]))
