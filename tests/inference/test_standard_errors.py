"""Standard errors of ``x``, and the directions in which samples do not determine it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference.around import look_by_differences
from cobilevel.inference.galerkin import Galerkin
from cobilevel.inference.standard_errors import clear_of
from cobilevel.reduction import reduce_study
from cobilevel.study import Study

LINE = cb.Interval(-1.0, 1.0)
N = 1000


def upper_iv(x, y, xi, eta):
    return (eta["outcome"] - x[0] - x[1] * y) ** 2 / 2


def lower_iv(x, y, xi, eta):
    return (y - eta["treatment"]) ** 2 / 2


def instruments(seed, slope=0.5, rows=N):
    """A linear first stage, a true slope of 1, and noise common to treatment and outcome."""
    rng = np.random.default_rng(seed)
    z, v = rng.uniform(-1, 1, rows), rng.normal(size=rows)
    t = slope * z + v
    return cb.Samples(z, {"treatment": t, "outcome": t + 0.8 * v + 0.6 * rng.normal(size=rows)})


IV = cb.Problem(upper_iv, lower_iv, x0=jnp.zeros(2), y0=0.0, domain=LINE)


@pytest.fixture(scope="module")
def solved():
    return cb.solve(IV, instruments(0), basis=cb.Chebyshev(2))


def two_stage(samples):
    """Two-stage least squares with its robust standard errors, in NumPy."""
    z, t, o = (np.asarray(a) for a in (samples.xi, samples.eta["treatment"], samples.eta["outcome"]))
    Z, X = np.stack([np.ones_like(z), z], axis=1), np.stack([np.ones_like(t), t], axis=1)
    fitted = Z @ np.linalg.lstsq(Z, X, rcond=None)[0]
    x = np.linalg.lstsq(fitted, o, rcond=None)[0]
    bread = np.linalg.inv(fitted.T @ fitted)
    meat = (fitted * (o - X @ x)[:, None] ** 2).T @ fitted
    return x, np.sqrt(np.diag(bread @ meat @ bread))


def test_errors_are_those_of_two_stage_least_squares(solved):
    x, errors = two_stage(instruments(0))
    assert np.asarray(solved.x) == pytest.approx(x, rel=1e-9)
    assert solved.standard_error == pytest.approx(errors, rel=1e-6)
    (_, lo), (_, hi) = solved.interval
    assert 1.95996 * errors[1] < (hi - lo) / 2 < 1.25 * 1.95996 * errors[1]  # with the noise of the first stage
    assert "std. error" in repr(solved)


def test_a_direction_that_is_not_determined_is_named():
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(-1, 1, N), rng.normal(size=N))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 2 - 2 * xi - eta) ** 2 / 2 + (x["b"] - 1) ** 2,
        lambda x, y, xi, eta: (y - (x["a"][0] + x["a"][1]) * (1 + xi) - 0.3 * eta) ** 2 / 2,
        x0={"a": jnp.zeros(2), "b": jnp.array(0.0)},
        y0=0.0,
        domain=LINE,
    )
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(3))
    assert np.all(np.isinf(solution.standard_error["a"]))
    assert np.isfinite(solution.standard_error["b"])
    assert solution.uncertainty.undetermined[0].startswith("x['a'][0] - x['a'][1] is not determined")
    assert repr(solution).count("not determined") == 3


def test_weak_instruments_determine_nothing():
    solution = cb.solve(IV, instruments(1, slope=0.0), basis=cb.Chebyshev(2))
    assert np.isinf(solution.standard_error[1])


def test_a_plateau_is_no_answer():
    samples = cb.Samples(np.linspace(-1, 1, N), np.ones(N))
    problem = cb.Problem(
        lambda x, y, xi, eta: (jnp.floor(x) - 3) ** 2 + 0 * y, lambda x, y, xi, eta: (y - x - eta) ** 2, 0.5, 0.0, LINE
    )
    words = repr(cb.solve(problem, samples, basis=cb.Chebyshev(2)))
    assert "x is not determined" in words
    assert "did not move from x0" in words


def test_many_groups_bias_a_two_stage_estimate_and_that_is_corrected():
    """Fifty groups of twenty rows: the fit takes part of the noise with it, and the interval knows."""
    problem = cb.Problem(
        lambda x, y, xi, eta: (eta["outcome"] - x * y) ** 2 / 2, lower_iv, 0.0, 0.0, cb.Finite(np.arange(50))
    )
    group, covered, biases, found = np.repeat(np.arange(50), 20), 0, [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        v, effect = rng.normal(size=N), 0.4 * rng.normal(size=50)
        t = effect[group] + v
        samples = cb.Samples(group, {"treatment": t, "outcome": t + 0.8 * v + 0.6 * rng.normal(size=N)})
        solution = cb.solve(problem, samples, basis=cb.Categorical())
        lo, hi = solution.interval
        covered += bool(lo < 1 < hi)
        biases.append(solution.uncertainty.bias[0])
        found.append(float(solution.x))
    assert covered >= 5
    assert np.mean(found) > 1.15
    assert 0.1 < np.mean(biases) < 0.4


@pytest.mark.parametrize(("bound", "held"), [(-1.0, True), (0.8, False)])
def test_a_bound_holds_where_the_gradient_is_clear_of_its_noise(bound, held):
    problem = cb.Problem(upper_iv, lower_iv, -jnp.ones(2), 0.0, LINE, x_bounds=(None, jnp.array([jnp.inf, bound])))
    solution = cb.solve(problem, instruments(0), basis=cb.Chebyshev(2))
    assert float(solution.x[1]) == bound
    assert (solution.standard_error[1] == 0) == held
    assert solution.uncertainty.notes[1] == "at its bound" + ", where the slope is within its noise" * (not held)
    assert float(solution.interval[1][1]) == pytest.approx(bound)  # which the interval does not cross


@pytest.mark.parametrize(("beyond", "error"), [(1.0, 0.0), (0.01, np.inf)])
def test_a_kink_holds_where_both_sides_are_clear(beyond, error):
    rng = np.random.default_rng(1)
    samples = cb.Samples(rng.uniform(-1, 1, N), 0.65 + rng.normal(size=N))
    weight = beyond + float(np.mean(np.asarray(samples.xi) + np.asarray(samples.eta)))  # the slope at 0 without a kink
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - eta) ** 2 / 2 + weight * jnp.abs(x),
        lambda x, y, xi, eta: (y - x + xi) ** 2 / 2,
        0.5,
        0.0,
        LINE,
    )
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(2))
    assert abs(float(solution.x)) < 1e-6
    assert solution.standard_error == error


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_units_change_nothing(solved, scale):
    samples = instruments(0)
    scaled = cb.Problem(
        lambda x, y, xi, eta: upper_iv(x * jnp.array([1.0, scale]), y / scale, xi, eta) * scale,
        lambda x, y, xi, eta: lower_iv(x, y / scale, xi, eta) / scale,
        x0=jnp.zeros(2),
        y0=0.0,
        domain=cb.Interval(-scale, scale),
    )
    other = cb.solve(scaled, cb.Samples(scale * samples.xi, samples.eta), basis=cb.Chebyshev(2))
    back = np.array([1.0, scale])
    assert np.asarray(other.x) * back == pytest.approx(np.asarray(solved.x), rel=1e-6)
    assert other.standard_error * back == pytest.approx(solved.standard_error, rel=1e-6)


def test_saved_solutions_keep_their_errors(solved, tmp_path):
    again = cb.load(solved.save(tmp_path / "run.npz"), IV)
    assert repr(again) == repr(solved)
    assert np.array_equal(again.standard_error, solved.standard_error)


def test_restarts_say_whether_the_answer_depends_on_the_start():
    samples = cb.Samples(np.linspace(-1, 1, N), np.random.default_rng(0).normal(size=N))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y**2 - 1) ** 2 + 0.2 * y, lambda x, y, xi, eta: (y - x - 0.1 * eta) ** 2, 0.9, 0.0, LINE
    )
    near = cb.solve(problem, samples, basis=cb.Chebyshev(2))
    best = cb.solve(problem, samples, basis=cb.Chebyshev(2), restarts=5)
    assert float(near.x) > 0 > float(best.x)
    assert "depends on x0" in best.choices["restarts"]


@pytest.mark.parametrize("wave", [0.0, 40.0])
def test_structure_that_the_basis_misses_widens_the_error(wave):
    """``x`` = E cos^2, of which five polynomials see nothing where the wave is short."""
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: -jnp.cos(wave * xi) * y + x**2 / 2,
        lower=lambda x, y, xi, eta: (y - x * jnp.cos(wave * xi) - 1 - xi - eta) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=cb.Interval(0.0, 1.0),
    )
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(0, 1, 1000), 0.1 * rng.normal(size=1000))
    said = cb.solve(problem, samples, basis=cb.Chebyshev(5)).uncertainty
    truth = float(np.mean(np.cos(wave * np.linspace(0, 1, 100_001)) ** 2))
    missed = "misses structure" in said.notes[0]
    assert missed == (wave > 0)
    assert said.interval[0][0] <= truth <= said.interval[1][0]
    if missed:
        assert said.x[0] < 0.1 * truth
        assert float(said.notes[0].split()[-1]) == pytest.approx(truth, abs=0.08)


@pytest.fixture(scope="module")
def twenty():
    """How a problem of twenty coordinates is solved, and where its minimum is."""
    rng = np.random.default_rng(0)
    draw = lambda *size: rng.normal(size=size).astype(np.float32)
    mix, aim, tilt = draw(3, 20) / np.float32(4.5), draw(20), draw(3)
    samples = cb.Samples(rng.uniform(-1, 1, 300), 0.3 * rng.normal(size=(300, 3)))
    upper = lambda x, y, xi, eta: jnp.sum((y - 1) ** 2) / 2 + jnp.sum(jnp.log(jnp.cosh(x - aim)))
    lower = lambda x, y, xi, eta: jnp.sum((y - mix @ x - tilt * xi - eta) ** 2) / 2
    problem = cb.Problem(upper, lower, jnp.zeros(20), jnp.zeros(3), cb.Interval(-1, 1))
    at = lambda **more: cb.solve(problem, samples, basis=cb.Chebyshev(2), **more)
    return at, np.asarray(at(solver=cb.Newton()).x)


def test_a_run_that_ended_early_has_intervals_that_reach_the_minimum(twenty):
    at, minimum = twenty
    early = at(solver=cb.SOBA(), steps=40, precision="single").uncertainty
    apart, (low, high) = np.abs(early.x - minimum), early.interval
    noise = np.sqrt(np.diag(early.covariance))
    assert np.any(apart > 3 * noise)  # with its noise alone it would be confident and wrong
    assert np.all((low <= minimum) & (minimum <= high))
    assert any("ended early" in note for note in early.notes)


@pytest.mark.parametrize(
    ("solver", "steps"),
    [(cb.SOBA, (300,)), (cb.SABA, (40, 100)), (cb.StocBiO, (40, 1000)), (cb.Newton, (2, 3))],
)
def test_how_far_a_run_is_from_its_minimum_is_measured_alike_for_all_solvers(twenty, solver, steps):
    """What rounding hides of some of many coordinates is no reason to doubt the others."""
    at, minimum = twenty
    for count in steps:
        run = at(solver=solver(), steps=count, precision="single")
        said, apart = run.uncertainty, np.abs(np.asarray(run.x) - minimum)
        early = [note.startswith("the run ended too early") for note in said.notes]
        if np.linalg.norm(apart) < 1:
            assert not any(early)
            assert np.all(np.isfinite(said.error))
        assert all(early) or np.all(apart < 2 * said.error)


@pytest.mark.parametrize(("lean", "told"), [(1e-5, True), (1.0, False)])
def test_a_plateau_within_bounds_leaves_alone_what_it_hardly_moves(lean, told):
    """Far out nothing depends on ``x[1]``, if ``x[0]`` follows it by as much as they lean on each other."""

    def upper(x, y, xi, eta):
        both = x[0] + lean * x[1]
        return (y - both - eta) ** 2 + both**2 - 2 * jnp.tanh(x[1] - 2)

    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(0, 1, 800), rng.normal(size=800))
    lower = lambda x, y, xi, eta: (y - xi - eta) ** 2
    problem = cb.Problem(upper, lower, jnp.zeros(2), 0.0, cb.Interval(0, 1), x_bounds=(-30.0, 30.0))
    said = cb.solve(problem, samples, basis=cb.Chebyshev(3)).uncertainty
    assert np.isinf(said.error[1])
    assert np.isfinite(said.error[0]) == told


def test_a_run_that_ended_far_from_a_parabola_promises_nothing():
    """Where a Newton step does not lead to the minimum, no interval is given."""
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(0, 1, 400), rng.normal(size=400))
    well = lambda x, y, xi, eta: jnp.exp(x) - 20 * x + (y - eta) ** 2
    problem = cb.Problem(well, lambda x, y, xi, eta: (y - xi - eta) ** 2, -4.0, 0.0, cb.Interval(0, 1))
    early = cb.solve(problem, samples, basis=cb.Chebyshev(2), steps=2).uncertainty
    assert np.isinf(early.error[0])
    assert early.notes[0] == "the run ended too early to tell where the minimum is"
    assert cb.solve(problem, samples, basis=cb.Chebyshev(2)).uncertainty.notes == ("",)


def test_what_has_no_noise_is_determined():
    """The best price is 5 whatever the demand: all samples agree on it."""
    rng = np.random.default_rng(0)
    weather = rng.uniform(0, 1, 400)
    demand = np.exp(np.sin(3 * weather) + 0.3 * rng.normal(size=400))
    lower = lambda p, y, xi, eta: (y - eta * jnp.exp(-p / 5)) ** 2
    problem = cb.Problem(lambda p, y, xi, eta: -p * y, lower, 1.0, 0.0, cb.Interval(0, 1), x_bounds=(0.0, 50.0))
    said = cb.solve(problem, cb.Samples(weather, demand), basis=cb.Chebyshev(4)).uncertainty
    assert said.error[0] < 1e-4
    assert said.notes == ("",)
    assert not said.undetermined


@pytest.mark.parametrize("width", [0.0, 1e-5, 1e-3])
def test_a_smooth_well_narrower_than_a_step_is_no_kink(width):
    rng = np.random.default_rng(3)
    for _ in range(2):  # samples on which two growths of curvature look like a kink
        xi, up, low = rng.uniform(size=1000), rng.normal(size=1000), rng.normal(size=1000)
    root = jnp.abs if width == 0 else lambda x: jnp.sqrt(x**2 + width**2)
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - eta["up"]) ** 2 / 2 + 0.6 * root(x),
        lambda x, y, xi, eta: (y - x * (1 + xi) - eta["low"]) ** 2 / 2,
        x0=0.5,
        y0=0.0,
        domain=cb.Interval(0.0, 1.0),
    )
    samples = cb.Samples(xi, {"up": up, "low": low})
    said = cb.solve(problem, samples, basis=cb.Chebyshev(2), precision="double").uncertainty
    assert (said.notes == ("at a kink",)) == (width == 0)
    (below,), (above,) = said.interval
    assert below - 1e-7 <= 0 <= above + 1e-7
    assert (said.error[0] > 0) == (width > 0)
    study = Study.of(problem, samples)
    at = Galerkin.at(reduce_study(study, cb.Chebyshev(2)).whitened(), said.x)
    assert look_by_differences(study, at).at_kink == [width == 0]


def test_noise_that_lowers_a_curvature_does_not_widen_its_error():
    bend, error = clear_of(np.array([1.0]), np.array([-0.5]), np.array([0.1]))
    assert bend == [1.0]
    assert error == pytest.approx([0.1])


def test_a_price_against_a_smoothed_newsvendor_is_known():
    """Samples curve rarely and much: over a standard error the curvature is noise, over several it is known."""
    errors, off = [], []
    for seed in range(2):
        rng = np.random.default_rng([seed, 7])
        t = rng.uniform(size=5000)
        demand = 4 + 2 * np.sin(2 * np.pi * t) + (8 + 2 * np.cos(2 * np.pi * t)) * rng.uniform(-0.5, 0.5, 5000) + 4
        problem = cb.Problem(
            lambda x, y, xi, eta: -(x - 1) * y,
            lambda x, y, xi, eta: (x - 10) * y + jax.nn.softplus((y - eta) / 0.1),
            x0=5.0,
            y0=4.0,
            domain=cb.Interval(0.0, 1.0),
        )
        found = cb.solve(problem, cb.Samples(t, demand), basis=cb.Chebyshev(6), precision="double")
        errors.append(found.uncertainty.error[0])
        off.append((float(found.x) - 8) / errors[-1])
    assert np.all(np.isfinite(errors))
    assert max(errors) < 0.6
    assert np.abs(off).max() < 4
