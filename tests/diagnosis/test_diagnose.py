"""What diagnose says is held against closed forms, and its advice is followed to see whether it helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.diagnosis.decay import from_coefficients, from_values, transform
from cobilevel.diagnosis.diagnose import diagnose
from cobilevel.diagnosis.kinks import find_kinks, find_noisy_kinks, points

EPS = np.finfo(float).eps


def bernstein(z):
    """The parameter of the ellipse through a singularity."""
    root = np.sqrt(complex(z) ** 2 - 1)
    return max(abs(z + root), abs(z - root))


def decay_of(function):
    return from_values(lambda u: function(u)[:, None], EPS)


ANALYTIC = {
    "Runge": (lambda u: 1 / (1 + 25 * u**2), 0.2j),
    "pair of poles": (lambda u: 1 / (1 + 4 * (u - 0.3) ** 2), 0.3 + 0.5j),
    "tanh": (lambda u: np.tanh(5 * u), np.pi / 10 * 1j),
    "logarithm": (lambda u: np.log(1.2 - u), 1.2),
    "double pole": (lambda u: 1 / (1.3 - u) ** 2, 1.3),
    "small pole beside an exponential": (lambda u: np.exp(u) + 0.01 / (1.1 - u), 1.1),
    "smoothed kink": (lambda u: np.log1p(np.exp(30 * (u - 0.2))) / 30, 0.2 + np.pi / 30 * 1j),
    **{f"pole {a}": (lambda u, a=a: 1 / (a - u), a) for a in (1.05, 1.2, 1.5, 2, 3)},
    **{f"root {a}": (lambda u, a=a: np.sqrt(a - u), a) for a in (1.05, 1.2, 1.5, 2, 3)},
}


@pytest.mark.parametrize("name", ANALYTIC)
def test_rates_of_analytic_functions(name):
    function, singularity = ANALYTIC[name]
    decay, _, _ = decay_of(function)
    assert decay.kind == "geometric"
    assert decay.resolved
    assert abs(decay.rho / bernstein(singularity) - 1) < 0.05
    assert decay.plateau < 1e-14 * decay.coefficients.max()


def test_entire_functions_polynomials_and_constants():
    for function in (np.exp, lambda u: np.cos(20 * u), lambda u: np.exp(-25 * u**2)):
        decay, _, _ = decay_of(function)
        assert decay.kind == "geometric"
        assert decay.entire
    for function, degree in (
        (lambda u: u**3 - u, 3),
        (lambda u: u**20, 20),
        (lambda u: 0 * u + 2, 0),
        (lambda u: 0 * u, 0),
    ):
        decay, _, _ = decay_of(function)
        assert (decay.kind, decay.length) == ("finite", degree + 1)
    spike, _, _ = decay_of(lambda u: 1 / (1 + 1e6 * (u - 0.1) ** 2))
    assert spike.kind == "unresolved"


@pytest.mark.parametrize("name", ["Runge", "root 1.05", "small pole beside an exponential", "exponential", "kink"])
@pytest.mark.parametrize("accuracy", [1e-2, 1e-4, 1e-8])
def test_predicted_sizes_reach_their_accuracy(name, accuracy):
    """With that many terms of the series; and with two thirds of them it is missed."""
    more = {"exponential": (np.exp, None), "kink": (lambda u: np.maximum(u + 0.4, 0) ** 2, None)}
    function = (ANALYTIC | more)[name][0]
    decay, _, _ = decay_of(function)
    series = transform(function(points(4097))[:, None])[:, 0]
    u = np.linspace(-1, 1, 4001)
    error = lambda n: np.sqrt(np.mean((np.polynomial.chebyshev.chebval(u, series[:n]) - function(u)) ** 2)) / decay.size
    n = decay.predict(accuracy)
    assert error(n) < 1.5 * accuracy
    assert error(max(1, 2 * n // 3)) > accuracy


KINKS = {
    "modulus": (lambda u, t: np.abs(u - t), 1, 2),
    "hinge beside a pole": (lambda u, t: np.maximum(u - t, 0) + 1 / (1.3 - u), 1, 2),
    "squared hinge": (lambda u, t: 3 * np.maximum(u - t, 0) ** 2 + np.exp(u), 2, 3),
    "jump": (lambda u, t: np.sign(u - t) + np.sin(5 * u), 0, 1),
}


@pytest.mark.parametrize("place", [-0.61, 0.13, 0.82])
@pytest.mark.parametrize("name", KINKS)
def test_kinks_are_located(name, place):
    function, power, order = KINKS[name]
    decay, u, values = decay_of(lambda u: function(u, place))
    assert decay.kind == "algebraic"
    assert abs(decay.order - order) < 0.2
    kink = find_kinks(u, values)[0]
    assert abs(kink.location - place) < 0.004
    assert kink.power == power


def test_the_stronger_of_two_kinks_comes_first():
    _, u, values = decay_of(lambda u: np.abs(u + 0.6) + 0.5 * np.abs(u - 0.37) + np.sin(8 * u))
    np.testing.assert_allclose([kink.location for kink in find_kinks(u, values)], [-0.6, 0.37], atol=1e-3)


def noisy_decay(function, count, noise, seed):
    """The decay seen through noisy samples, by plain regression on orthonormal polynomials."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1, 1, count)
    z = function(u) + noise * rng.normal(size=count)
    n = min(64, count // 8)
    phi = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, n - 1))[0] * np.sqrt(count)
    a = phi.T @ z / count
    spread = np.sqrt(np.sum((z - phi @ a) ** 2) / (count - n))
    kinks = find_noisy_kinks(u, z[:, None] / spread, np.ones(count), n)
    scale = np.where(np.arange(n) > 0, np.sqrt(2), 1)
    return from_coefficients(np.abs(a) * scale, np.full(n, spread / np.sqrt(count)) * scale, 1.0, kinks)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "noise"), [("modulus", 0.1), ("modulus", 0.3), ("jump", 0.3)])
def test_kinks_are_located_through_noise(name, noise, seed):
    decay = noisy_decay(lambda u: KINKS[name][0](u, 0.3), 4000, noise, seed)
    assert decay.kind == "algebraic"
    assert abs(decay.kinks[0].location - 0.3) < 0.04  # 2% of the interval
    assert decay.kinks[0].power == KINKS[name][1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["pair of poles", "pole 1.05", "pole 1.2"])
def test_rates_are_seen_through_noise(name, seed):
    function, singularity = ANALYTIC[name]
    decay = noisy_decay(function, 4000, 0.1, seed)
    assert decay.kind == "geometric"
    assert abs(decay.rho / bernstein(singularity) - 1) < 0.1
    assert abs(decay.plateau / (0.1 * np.sqrt(2 / 4000)) - 1) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_noise_alone_shows_nothing(seed):
    nothing = noisy_decay(lambda u: 0 * u, 2000, 0.3, seed)
    assert (nothing.kind, nothing.length, nothing.kinks) == ("noise", 1, ())
    line = noisy_decay(lambda u: u, 2000, 0.3, seed)
    assert (line.length, line.kinks) == (2, ())


# ------------------------------------------------------------------------------------------------ whole problems


def shape(x, xi):
    """``x`` chooses: a pole, a pair of poles, a root, a kink; on [2, 5]."""
    u = (xi - 3.5) / 1.5
    return x[0] / (x[1] - u) + x[2] / (1 + 25 * u**2) + x[3] * jnp.sqrt(x[1] - u) + x[4] * jnp.abs(u - x[5])


SHAPES = {"pole": [1, 1.3, 0, 0, 0, 0], "Runge": [0, 2, 1, 0, 0, 0], "root": [0, 1.1, 0, 1, 0, 0]}
X0 = jnp.array([0, 2.0, 0, 0, 1, 0.1])
upper = lambda x, y, xi, eta: jnp.sum(y**2)
smooth = cb.Problem(upper, lambda x, y, xi, eta: jnp.cosh(y - shape(x, xi)), X0, 0.0, cb.Interval(2.0, 5.0))
noisy = cb.Problem(upper, lambda x, y, xi, eta: (y - shape(x, xi) - eta) ** 2, X0, 0.0, cb.Interval(2.0, 5.0))


def uniform(count, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return cb.Samples(rng.uniform(2, 5, count), noise * rng.normal(size=count))


@pytest.mark.thorough
def test_exact_policies_on_another_interval():
    samples = uniform(500)
    for name, rho in (("pole", bernstein(1.3)), ("Runge", bernstein(0.2j)), ("root", bernstein(1.1))):
        found = diagnose(smooth, cb.Chebyshev(12), samples, x=jnp.array(SHAPES[name], float))
        assert found.decay.kind == "geometric"
        assert abs(found.decay.rho / rho - 1) < 0.05
        assert found.conditions["analytic"].holds
        if name == "Runge":  # 12 functions leave a tenth of it
            more = next(advice.basis for advice in found.advice if advice.basis)
            assert abs(found.misfit - 0.09) < 0.03
            assert diagnose(smooth, more, samples, x=jnp.array(SHAPES[name], float)).misfit < 2e-3
    for place in (-0.4, 0.35):
        found = diagnose(smooth, cb.Chebyshev(12), samples, x=X0.at[5].set(place))
        assert found.decay.kind == "algebraic"
        assert abs(found.decay.kinks[0].location - (3.5 + 1.5 * place)) < 0.01
        assert not found.conditions["analytic"].holds
        assert isinstance(found.advice[0].basis, cb.BSpline)
        assert f"kink near xi = {found.decay.kinks[0].location:.3g}" in repr(found).splitlines()[-1]


@pytest.mark.thorough
def test_joint_samples_show_rate_kink_and_noise(tmp_path):
    samples = uniform(4000, 0.1)
    found = diagnose(noisy, cb.Chebyshev(40), samples, x=jnp.array(SHAPES["pole"], float))
    assert found.decay.kind == "geometric"
    assert abs(found.decay.rho / bernstein(1.3) - 1) < 0.1
    assert abs(found.decay.plateau / (0.1 * np.sqrt(2 / 4000)) - 1) < 0.1
    assert 6 <= found.advice[0].basis.n <= 14
    assert found.plot(tmp_path / "decay.png").stat().st_size > 10_000
    kinked = diagnose(noisy, cb.Chebyshev(40), samples, x=X0.at[5].set(0.2))
    assert kinked.decay.kind == "algebraic"
    assert abs(kinked.decay.kinks[0].location - 3.8) < 0.06


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_traffic_has_a_kink_where_the_second_road_starts(seed):
    traffic = cb.gallery.two_edge_traffic(seed)
    near, far = sorted(np.asarray(traffic.problem.lower.free_time))
    truth = far / 200 + 0.5 * (far / near - 1) ** 0.25  # the price is far, all demand but far / 200 is met by one road
    found = diagnose(traffic.problem, cb.Chebyshev(8), traffic.train)
    assert found.decay.kind == "algebraic"
    assert abs(found.decay.kinks[0].location - truth) < 0.02


@pytest.fixture(scope="module")
def easy():
    """A well-conditioned instance with little noise, for solvers on small batches."""
    return cb.gallery.quadratic(0, dx=2, dy=2, condition=2.0, noise=(0.05, 0.05))


def on_half(instance):
    return instance.train.rows(np.flatnonzero(np.asarray(instance.train.xi) > 0))


def lower_hessian(instance, basis, samples, domain=None):
    problem = instance.problem
    phi = np.asarray(basis.fit(domain or problem.domain, samples.xi)(samples.xi))
    metric = np.asarray(jax.vmap(instance.truth.lower.metric)(samples.xi))
    size = phi.shape[1] * metric.shape[1]
    return np.einsum("nk,nab,nl->kalb", phi, metric, phi).reshape(size, size) / len(samples), phi


def test_metrics_against_numpy(easy):
    found = diagnose(easy.problem, cb.Chebyshev(6), easy.train)
    hessian, phi = lower_hessian(easy, cb.Chebyshev(6), easy.train)
    values = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose([found.mu, found.L], values[[0, -1]], rtol=1e-9)
    np.testing.assert_allclose(found.m_Phi, np.linalg.eigvalsh(phi.T @ phi / len(phi))[0], rtol=1e-9)
    np.testing.assert_allclose(found.M_Phi, np.sqrt(6), rtol=1e-9)
    np.testing.assert_allclose([found.condition, found.inner_step], [values[-1] / values[0], 1 / values[-1]], rtol=1e-9)
    assert (found.rank, found.functions, found.distinct) == (6, 6, 4000)
    assert found.decay.entire
    assert found.advice == ()
    assert repr(found).endswith("nothing stands out.")


@pytest.mark.thorough
def test_curvature_far_below_rounding(easy):
    """m = 3e-21 on half the box: the Gram matrix cannot show it, the features can."""
    found = diagnose(easy.problem, cb.Monomial(15), on_half(easy))
    _, phi = lower_hessian(easy, cb.Monomial(15), on_half(easy))
    least = np.linalg.svd(phi / np.sqrt(len(phi)), compute_uv=False)[-1] ** 2
    np.testing.assert_allclose(found.m_Phi, least, rtol=1e-3)
    assert found.m_Phi < 1e-20
    assert 0.5 < found.mu / least < 4  # the curvature of g itself, between 0.6 and 3.3
    assert found.rank == 12


@pytest.mark.thorough
def test_advice_on_dependent_features_is_worth_following(easy):
    samples, problem = on_half(easy), easy.problem
    found = diagnose(problem, cb.Monomial(15), samples)
    advice = next(advice for advice in found.advice if "nearly dependent" in str(advice))
    better = diagnose(problem, advice.basis, samples)
    assert found.condition > 1e20
    assert better.condition < 12  # that of g itself, by context and direction: up to 5.4
    x, _ = easy.truth.sample_optimum(cb.reduce(problem, advice.basis, samples).basis, samples, samples)

    def distance(basis):
        """From the optimum of the sample, with step sizes as the solver measures them."""
        solution = cb.solve(problem, samples, basis=basis, solver=cb.SOBA(), steps=2000, batch=256, key=0)
        return np.linalg.norm(solution.x - x)

    assert distance(advice.basis) < 1e-3 * distance(cb.Monomial(15))


@pytest.mark.thorough
def test_advice_on_too_few_samples_is_worth_following(quadratic):
    samples = quadratic.train.rows(slice(0, 40))
    found = diagnose(quadratic.problem, cb.Chebyshev(15), samples)
    advice = next(advice for advice in found.advice if advice.samples)
    assert str(advice).startswith("2.7 samples for each function: expect overfitting; use at most N = 5")
    xi = jnp.linspace(-1, 1, 201)

    def error(basis, rows):
        """Of the policy optimal for that many samples, against the true policy at the same ``x``."""
        seen, fitted = quadratic.train.rows(slice(0, rows)), basis.fit(quadratic.problem.domain, samples.xi)
        x, W = quadratic.truth.sample_optimum(fitted, seen, seen)
        return float(jnp.sqrt(jnp.mean((fitted(xi) @ W - quadratic.truth.y(x, xi)) ** 2)))

    before = error(cb.Chebyshev(15), 40)
    assert error(advice.basis, 40) < before / 5
    assert error(cb.Chebyshev(15), advice.samples) < before / 5
    assert advice.samples == 8 * 15


def test_advice_on_half_a_domain_is_worth_following(easy):
    """Gradient descent on the lower level, with the step and for the number of steps that diagnose names."""
    samples, problem = on_half(easy), easy.problem
    found = diagnose(problem, cb.Chebyshev(10), samples)
    advice = found.advice[0]
    assert "contexts fill only 50%" in str(advice)
    assert not found.conditions["coverage"].holds
    assert abs(float(advice.domain.lo)) < 0.02
    assert float(advice.domain.hi) == 1
    moved = cb.Problem(
        problem.upper, problem.lower, problem.x0, problem.y0, advice.domain, conditional=problem.conditional
    )
    better = diagnose(moved, cb.Chebyshev(10), samples)
    assert found.condition > 1e12
    assert better.condition < 1e3
    assert better.advice == ()

    def relaxed(diagnosis, domain):
        """How much of an error in the coefficients is left after ``4 condition`` steps, 4000 at most."""
        hessian, _ = lower_hessian(easy, diagnosis.basis, samples, domain)
        error = np.random.default_rng(0).normal(size=len(hessian))
        for _ in range(int(min(4 * diagnosis.condition, 4000))):
            error = error - diagnosis.inner_step * hessian @ error
        return np.linalg.norm(error) / np.sqrt(len(hessian))

    assert relaxed(found, problem.domain) > 0.3
    assert relaxed(better, advice.domain) < 0.05


@pytest.mark.thorough
def test_two_dimensions_and_an_idle_coordinate():
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(-1, 1, (3000, 2)), 0.1 * rng.normal(size=(3000, 1)))
    lower = lambda x, y, xi, eta: jnp.sum((y - x / (1.5 - xi[:1]) - eta) ** 2)
    problem = cb.Problem(upper, lower, 1.0, jnp.zeros(1), cb.Box([-1.0, -1.0], [1.0, 1.0]))
    found = diagnose(problem, cb.Chebyshev(6), samples)
    assert found.M_Phi == pytest.approx(6.0)
    assert found.decay.dimension == 2
    assert found.decay.kind == "geometric"
    assert abs(found.decay.rho / bernstein(1.5) - 1) < 0.25
    idle = next(advice for advice in found.advice if "coordinate 1" in str(advice))
    assert cb.reduce(problem, idle.basis, samples).basis.size == 6
    half = cb.Samples(samples.xi.at[:, 1].set(samples.xi[:, 1] / 2), samples.eta)
    told = diagnose(problem, cb.Chebyshev(6), half)
    np.testing.assert_allclose(told.advice[0].domain.hi, [1, 0.505], atol=0.01)


@pytest.mark.thorough
def test_product_and_finite_contexts(tmp_path):
    rng = np.random.default_rng(0)
    eta = rng.normal(size=50)
    lower = lambda x, y, xi, eta: (y - x / (1.4 - xi)) ** 2 + 0.1 * (y - eta) ** 2
    problem = cb.Problem(upper, lower, 1.0, 0.0, cb.Interval(-1.0, 1.0))
    crossed = diagnose(problem, cb.Chebyshev(10), cb.Product(cb.Uniform(problem.domain), eta))
    assert abs(crossed.decay.rho / bernstein(1.4) - 1) < 0.05
    assert crossed.advice == ()

    values = cb.Finite([0, 1, 2, 5])
    finite = cb.Problem(upper, lambda x, y, xi, eta: (y - x * xi - eta) ** 2, 1.0, 0.0, values)
    samples = cb.Samples(np.tile([0, 1, 2, 5], 5), np.tile(eta[:10], 2))
    told = diagnose(finite, cb.Categorical(), samples)
    assert told.decay is None
    assert told.M_Phi == 1
    assert told.m_Phi == pytest.approx(0.25)
    assert told.advice[0].samples == 32
    for refused in (lambda: told.predict(0.1), lambda: told.plot(tmp_path / "none.png")):
        with pytest.raises(ValueError, match="finite contexts"):
            refused()


@pytest.mark.thorough
def test_single_precision():
    lower = lambda x, y, xi, eta: jnp.cosh(y - x / (1.4 - xi))
    problem = cb.Problem(upper, lower, np.float32(1), np.float32(0), cb.Interval(-1.0, 1.0))
    xi = np.random.default_rng(0).uniform(-1, 1, 300).astype(np.float32)
    found = diagnose(problem, cb.Chebyshev(8), cb.Samples(xi, np.zeros(300, np.float32)))
    assert abs(found.decay.rho / bernstein(1.4) - 1) < 0.1
    assert 1e-9 < found.decay.plateau < 1e-5
    assert found.advice == ()


@pytest.mark.thorough
def test_streams_have_no_end_of_samples():
    draw = lambda key, size: cb.Samples(jax.random.uniform(key, (size,), minval=2, maxval=5), jnp.zeros(size))
    found = diagnose(smooth, cb.Chebyshev(12), cb.Stream(draw))
    assert found.per_function == np.inf
    assert found.decay.kind == "algebraic"


def test_bad_arguments(quadratic):
    problem, samples = quadratic.problem, quadratic.train
    with pytest.raises(TypeError, match="basis must be"):
        diagnose(problem, cb.Chebyshev, samples)
    with pytest.raises(ValueError, match="x must have the shapes"):
        diagnose(problem, cb.Chebyshev(3), samples, x=jnp.zeros(2))
    with pytest.raises(TypeError, match="samples must be"):
        diagnose(problem, cb.Chebyshev(3), np.zeros(4))
    with pytest.raises(ValueError, match="distinct contexts"):
        diagnose(problem, cb.Chebyshev(9), samples.rows(slice(0, 4)))
    with pytest.raises(ValueError, match="accuracy must be"):
        decay_of(np.exp)[0].predict(0.0)
