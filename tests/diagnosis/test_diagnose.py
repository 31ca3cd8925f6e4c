"""What diagnose says is held against closed forms, and its advice is followed to see whether it helps."""

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel import diagnose
from problems import bernstein

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)


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
        """From the optimum of the sample, with steps of a given size: measured ones are for orthonormal features."""
        solver = cb.SOBA(inner=0.15, linear=0.15)
        solution = cb.solve(problem, samples, basis=basis, solver=solver, steps=2000, batch=256, key=0)
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
        return float(jnp.sqrt(jnp.mean((fitted(xi) @ W - quadratic.truth.y(jnp.asarray(x), xi)) ** 2)))

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
    narrow = diagnose(problem, cb.Chebyshev(6), half)
    np.testing.assert_allclose(narrow.advice[0].domain.hi, [1, 0.505], atol=0.01)


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
    finite = cb.Problem(upper, lambda x, y, xi, eta: (y - x * xi.astype(float) - eta) ** 2, 1.0, 0.0, values)
    samples = cb.Samples(np.tile([0, 1, 2, 5], 5), np.tile(eta[:10], 2))
    found = diagnose(finite, cb.Categorical(), samples)
    assert found.decay is None
    assert found.M_Phi == 1
    assert found.m_Phi == pytest.approx(0.25)
    assert found.advice[0].samples == 32
    for refused in (lambda: found.predict(0.1), lambda: found.plot(tmp_path / "none.png")):
        with pytest.raises(ValueError, match="contexts are finite"):
            refused()


@pytest.mark.thorough
def test_single_precision():
    lower = lambda x, y, xi, eta: jnp.cosh(y - x / (1.4 - xi))
    problem = cb.Problem(upper, lower, np.float32(1), np.float32(0), cb.Interval(-1.0, 1.0))
    xi = np.random.default_rng(0).uniform(-1, 1, 300).astype(np.float32)
    found = diagnose(problem, cb.Chebyshev(8), cb.Samples(xi, np.zeros(300, np.float32)), precision="single")
    assert abs(found.decay.rho / bernstein(1.4) - 1) < 0.1
    assert 1e-9 < found.decay.plateau < 1e-5
    assert found.advice == ()


@pytest.mark.thorough
def test_streams_have_no_end_of_samples():
    draw = lambda key, size: cb.Samples(jax.random.uniform(key, (size,), minval=2, maxval=5), jnp.zeros(size))
    found = diagnose(smooth, cb.Chebyshev(12), cb.Stream(draw))
    assert found.per_function == np.inf
    assert found.decay.kind == "algebraic"


def test_only_row_derivatives_are_compiled():
    """Those of the lower level, and of the upper one where points near ``x0`` are looked at; bases share them."""
    lower = lambda x, y, xi, eta: (y - x / (2.5 - xi)) ** 2 + 0.7 * y**4
    problem = cb.Problem(upper, lower, np.ones(()), np.zeros(()), cb.Interval(-1.0, 1.0))
    samples = cb.Samples(np.random.default_rng(0).uniform(-1, 1, 700))
    COMPILED.clear()
    diagnose(problem, cb.Chebyshev(4), samples)
    assert len(COMPILED) <= 2
    for basis in (cb.Chebyshev(6), cb.BSpline(7), cb.Partition(80)):
        diagnose(problem, basis, samples)
    assert len(COMPILED) <= 2


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


@pytest.mark.parametrize("family", [cb.Chebyshev(7), cb.Orthonormal(cb.Chebyshev(7))])
def test_the_curvatures_are_the_extreme_eigenvalues(family):
    """``g`` has curvature 2, so the Hessian in the coefficients is twice the Gram matrix of the features."""
    samples = uniform(300)
    found = diagnose(noisy, family, samples)
    phi = np.asarray(cb.reduce(noisy, family, samples).basis(samples.xi))
    values = 2 * np.linalg.eigvalsh(phi.T @ phi / len(phi))
    np.testing.assert_allclose((found.mu, found.L), (values[0], values[-1]), rtol=1e-9)
