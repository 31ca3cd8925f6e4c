"""Newton against closed forms: the optimum of the sample, to eight digits, in every guise of the data."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb
from cobilevel.answer import Job
from cobilevel.derivatives import Expansions
from cobilevel.iteration import steps_on_host
from cobilevel.lower import Dense, minimise, solve_at
from problems import LINE, Aim, as_pytrees, curved_problem, numbers, single

ROWS, BASIS = 400, cb.Chebyshev(5)  # the same for all, so that they share one compiled program


@pytest.fixture(scope="module")
def few(quadratic):
    """A tenth of the samples."""
    return quadratic.train.rows(slice(0, ROWS))


def relative(a, b):
    return np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b))


def agree_with_closed_form(instance, solution, upper, lower, x=None, W=None):
    exact_x, exact_W = instance.truth.sample_optimum(solution.basis, upper, lower)
    assert solution.converged, solution.result
    assert relative(solution.x if x is None else x, exact_x) < 1e-8
    assert relative(solution.W if W is None else W, exact_W) < 1e-8


def test_joint_samples(quadratic, few):
    solution = cb.solve(quadratic.problem, few, basis=BASIS, solver=cb.Newton())
    agree_with_closed_form(quadratic, solution, few, few)


def test_pytrees(quadratic, few):
    problem, pack_x, pack_W = as_pytrees(quadratic.problem)
    solution = cb.solve(problem, few, basis=BASIS)
    assert jax.tree.map(jnp.shape, solution.W) == ((5,), (5, 2))
    agree_with_closed_form(quadratic, solution, few, few, pack_x(solution.x), pack_W(solution.W))


def test_levels_and_weights(quadratic, few):
    weighted = cb.Samples(few.xi, few.eta, np.linspace(0.5, 2.0, ROWS))
    upper = quadratic.test.rows(slice(0, ROWS))
    solution = cb.solve(quadratic.problem, cb.Levels(upper=upper, lower=weighted), basis=BASIS)
    agree_with_closed_form(quadratic, solution, upper, weighted)


def pairs(product):
    context = product.contexts()
    m, n = len(context), product.count
    i, j = np.repeat(np.arange(m), n), np.tile(np.arange(n), m)
    return product.pairs(context, i, j)


@pytest.mark.parametrize("kind", ["array", "distribution"])
def test_product(quadratic, kind):
    """Twenty contexts with twenty rows of data."""
    contexts = np.linspace(-1.0, 1.0, 20) if kind == "array" else cb.Uniform(quadratic.problem.domain)
    product = cb.Product(contexts, quadratic.train.rows(slice(0, 20)).eta, nodes=20)
    solution = cb.solve(quadratic.problem, product, basis=BASIS)
    agree_with_closed_form(quadratic, solution, pairs(product), pairs(product))


def test_levels_of_products(quadratic):
    contexts = cb.Uniform(quadratic.problem.domain)
    upper, lower = (
        cb.Product(contexts, quadratic.train.rows(rows).eta, nodes=20) for rows in (slice(0, 20), slice(20, 40))
    )
    solution = cb.solve(quadratic.problem, cb.Levels(upper, lower), basis=BASIS)
    agree_with_closed_form(quadratic, solution, pairs(upper), pairs(lower))


@pytest.mark.parametrize("contexts", [pytest.param("normal", marks=pytest.mark.thorough), "mixture"])
def test_several_dimensions_and_other_laws(contexts):
    instance = cb.gallery.quadratic(3, dx=4, dy=2, dimension=2, contexts=contexts, train=2000)
    basis = cb.Chebyshev(4, index=cb.TotalDegree())
    solution = cb.solve(instance.problem, instance.train, basis=basis)
    agree_with_closed_form(instance, solution, instance.train, instance.train)


def test_the_answer_depends_on_the_span_alone(traffic):
    """Monomials, and a half-period Fourier basis far beyond its numerical rank, do not spoil the answer."""
    solve = lambda basis: cb.solve(traffic.problem, traffic.train, basis=basis)
    reference = solve(cb.Chebyshev(10))
    for basis in (cb.Monomial(10), cb.Orthonormal(cb.Monomial(10))):
        other = solve(basis)
        np.testing.assert_allclose(other.x, reference.x, rtol=1e-8)
        np.testing.assert_allclose(other.policy(traffic.test.xi), reference.policy(traffic.test.xi), atol=1e-7)
    frame = solve(cb.Fourier(40))
    assert frame.converged
    assert 15 < frame.stats["rank"] < 40
    assert "rank" in frame.choices
    judged = cb.evaluate(traffic.problem, frame, traffic.test, traffic.truth)
    assert judged.policy_error < 1e-5
    other = solve(cb.Chebyshev(frame.stats["rank"]))  # a different span, one policy
    np.testing.assert_allclose(frame.x, other.x, rtol=5e-3)


def test_partition_is_separate_cells(traffic):
    """At a fixed x, Partition(N) is N independent minimisations; an empty cell keeps y0."""
    problem = eqx.tree_at(lambda p: p.y0, traffic.problem, jnp.array([0.1, 0.2]))
    keep = (traffic.train.xi < 0.5) | (traffic.train.xi > 0.6)  # cell 5 of 10 is empty
    samples = traffic.train.rows(np.flatnonzero(keep))
    reduced = cb.reduce(problem, cb.Partition(10), samples)
    whitened = reduced.whitened()
    expansions = Expansions(whitened.ordinary())
    point = solve_at(expansions, expansions.start, expansions.table(whitened.W0), 0.0)
    W = whitened.lift(problem.x0, expansions.coefficients(point.W)).W

    @jax.jit
    def local(mask, y):  # the mean over one cell's samples
        mean = lambda y: mask @ jax.vmap(lambda c: problem.lower(problem.x0, y, c, c))(samples.xi) / jnp.sum(mask)
        return mean(y)[None], jax.grad(mean)(y)[None], jax.hessian(mean)(y)[None]

    def alone(mask):  # minimised on its own
        model = Dense(lambda y: tuple(np.asarray(part) for part in local(mask, y[0])))
        return minimise(model, np.full((1, 2), 0.1), 1e-13).point[0]

    for cell in range(10):
        inside = (samples.xi >= cell / 10) & (samples.xi < (cell + 1) / 10)
        if cell == 5:
            assert not np.any(inside)
            np.testing.assert_array_equal(W[cell], problem.y0)
        else:
            np.testing.assert_allclose(W[cell], alone(inside.astype(float)), atol=1e-10)
    solution = cb.solve(problem, samples, basis=cb.Partition(10))
    np.testing.assert_array_equal(solution.policy(0.55), problem.y0)
    assert "9 of the 10" in solution.choices["rank"]


def test_bounds_are_honoured_and_the_bounded_optimum_is_found(quadratic, few):
    free = cb.solve(quadratic.problem, few, basis=BASIS)
    best = np.asarray(free.x)
    lo, hi = best - 0.3, best + 0.4
    lo[0], hi[0] = best[0] + 0.1, best[0] + 1.0  # three active bounds
    lo[3], hi[3] = best[3] - 2.0, best[3] - 0.2
    lo[4] = best[4] + 0.05
    x0 = (lo + hi) / 2
    bounded = cb.Problem(
        quadratic.problem.upper, quadratic.problem.lower, x0, np.zeros(3), quadratic.problem.domain, (lo, hi)
    )
    solution = cb.solve(bounded, few, basis=BASIS)
    assert solution.converged, solution.result
    assert np.all((np.asarray(solution.x) >= lo) & (np.asarray(solution.x) <= hi))
    reduced = cb.reduce(bounded, BASIS, few).whitened()
    expansions = Expansions(reduced.ordinary())
    start = expansions.table(reduced.W0)

    def value(x):
        point = solve_at(expansions, np.asarray(x), start, 1e-12)
        return point.value, point.gradient

    peer = scipy.optimize.minimize(
        value,
        x0,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(lo, hi, strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    np.testing.assert_allclose(solution.x, peer.x, atol=1e-6)
    assert solution.history["upper"][-1] <= peer.fun + 1e-12
    active = np.isclose(solution.x, lo) | np.isclose(solution.x, hi)
    assert active.sum() >= 2


@pytest.mark.thorough
def test_matrix_free_agrees_with_dense(monkeypatch, quadratic):
    dense = cb.solve(quadratic.problem, quadratic.train, basis=cb.Chebyshev(5))
    monkeypatch.setattr("cobilevel.reduction.reduced.DENSE_LIMIT", 0)
    samples = quadratic.train.rows(slice(0, 3999))
    free = cb.solve(quadratic.problem, samples, basis=cb.Chebyshev(5))
    assert free.converged, free.result
    assert "hessian" not in free.stats["oracles"]
    exact_x, exact_W = quadratic.truth.sample_optimum(free.basis, samples, samples)
    assert relative(free.x, exact_x) < 1e-8
    assert relative(free.W, exact_W) < 1e-8
    assert dense.stats["oracles"]["hessian"]["calls"] > 0


def test_float32_is_solved_in_double_and_comes_back_as_it_was(quadratic, few):
    solution = cb.solve(single(quadratic.problem), single(few), basis=BASIS)
    assert {a.dtype for a in (solution.x, solution.W, solution.policy(jnp.float32(0.3)))} == {jnp.dtype("float32")}
    assert "precision" not in solution.choices
    x, _ = quadratic.truth.sample_optimum(solution.basis, few, few)
    assert relative(solution.x, x) < 1e-5
    np.testing.assert_array_equal(solution.x, solution.precise.x.astype(np.float32))


def test_single_precision_on_demand(quadratic, few):
    solution = cb.solve(single(quadratic.problem), single(few), basis=BASIS, precision="single")
    assert solution.converged, solution.result
    assert {a.dtype for a in (solution.x, solution.W, solution.policy(jnp.float32(0.3)))} == {jnp.dtype("float32")}
    assert "float32" in solution.choices["precision"]
    x, _ = quadratic.truth.sample_optimum(solution.basis, few, few)
    assert relative(solution.x, x) < 1e-3


def test_resumed_is_uninterrupted_bit_for_bit(tmp_path):
    problem, samples = curved_problem()
    solver = cb.Newton()
    whole = cb.solve(problem, samples, basis=cb.Chebyshev(4), solver=solver, steps=12)
    reduced = cb.reduce(problem, cb.Chebyshev(4), samples)
    prepared = solver.prepare(reduced)
    key = jax.random.split(jax.random.key(0), 3)[2]
    state = solver.init(prepared.ordinary(), key, 12)
    for count in (5, 3, 5):
        state, _ = steps_on_host(solver, prepared.ordinary(), state, count)
    x, W, _ = solver.finish(state)
    lifted = prepared.lift(x, W)
    for a, b in zip(jax.tree.leaves((whole.x, whole.W)), jax.tree.leaves((lifted.x, lifted.W)), strict=True):
        np.testing.assert_array_equal(a, b)
    # through the front door: stopped, saved, loaded, gone on
    part = cb.solve(problem, samples, basis=cb.Chebyshev(4), solver=cb.Newton(), steps=4)
    part.save(tmp_path / "part.npz")
    loaded = cb.load(tmp_path / "part.npz", problem)
    on = cb.solve(problem, samples, solver=cb.Newton(), steps=12, resume=loaded)
    for a, b in zip(jax.tree.leaves((whole.x, whole.W)), jax.tree.leaves((on.x, on.W)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert on.stats["oracles"] == whole.stats["oracles"]


def test_compiles_once_for_many_instances():
    traced = []

    class Lower(eqx.Module):
        shift: jax.Array

        def __call__(self, x, y, xi, eta):
            traced.append(1)
            return (y - x * xi - self.shift - eta) ** 2

    def solve(shift):
        problem = cb.Problem(Aim(), Lower(jnp.array(shift)), 0.5, 0.0, LINE)
        Job(None, cb.Newton(), jax.random.key(0), 20).on(cb.reduce(problem, cb.Chebyshev(3), samples))

    samples = cb.Samples(np.linspace(0, 1, 30), np.zeros(30))
    solve(0.0)
    first = len(traced)
    solve(1.0)
    checks = len(traced) - first
    solve(2.0)
    assert len(traced) - first == 2 * checks  # checks trace each problem; the solver is traced no more
    assert checks < 5


class Even(eqx.Module):
    """``pull (y - 1)^2 + ridge |x|^2 + (fall eta - rise) x_0^2 + cross x_0 x_1 + fourth sum x^4``, even in ``x``."""

    pull: jax.Array = eqx.field(converter=numbers, default=0.0)
    ridge: jax.Array = eqx.field(converter=numbers, default=0.0)
    fall: jax.Array = eqx.field(converter=numbers, default=0.0)
    rise: jax.Array = eqx.field(converter=numbers, default=0.0)
    cross: jax.Array = eqx.field(converter=numbers, default=0.0)
    fourth: jax.Array = eqx.field(converter=numbers, default=0.0)
    scale: jax.Array = eqx.field(converter=numbers, default=1.0)

    def __call__(self, x, y, xi, eta):
        value = self.pull * (y - 1) ** 2 + self.ridge * jnp.sum(x**2) + (self.fall * eta - self.rise) * x[0] ** 2
        return self.scale * (value + self.cross * x[0] * x[-1] + self.fourth * jnp.sum(x**4))


class Product(eqx.Module):
    """``(y - square x_0^2 - product x_0 x_1 - noise eta)^2``; of a single coordinate ``x_0``."""

    square: jax.Array = eqx.field(converter=numbers, default=0.0)
    product: jax.Array = eqx.field(converter=numbers, default=1.0)
    noise: jax.Array = eqx.field(converter=numbers, default=0.1)

    def __call__(self, x, y, xi, eta):
        return (y - self.square * x[0] ** 2 - self.product * jnp.prod(x) - self.noise * eta) ** 2


_AT_A_MAXIMUM = {
    "a policy that bends": (Even(pull=1.0), Product(1.0, 0.0, 1.0), 1, [1.0]),
    "a saddle of the policy": (Even(pull=1.0, ridge=0.1), Product(), 2, [0.9487, 0.9487]),
    "where f vanishes": (Even(fall=0.1, rise=1.0), Product(), 1, [3.0]),
    "a saddle where f vanishes": (Even(cross=1.0, fourth=0.1), Product(), 2, [1.58, 1.58]),
}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", _AT_A_MAXIMUM)
def test_a_maximum_or_saddle_as_start_is_left(name, scale):
    """The gradient is zero there; the curvature is not, though a policy straight in ``x`` shows none below zero."""
    upper, lower, dx, sizes = _AT_A_MAXIMUM[name]
    rng = np.random.default_rng(0)
    samples = cb.Samples(rng.uniform(-1, 1, 300), rng.normal(size=300))
    upper = replace(upper, scale=scale)
    problem = cb.Problem(upper, lower, jnp.zeros(dx), 0.0, cb.Interval(-1, 1), x_bounds=(-3.0, 3.0))
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(2))
    assert solution.result is cb.Result.CONVERGED
    np.testing.assert_allclose(np.abs(solution.x), sizes, atol=0.05)
    start = cb.solve(problem, samples, basis=cb.Chebyshev(2), solver=cb.SOBA(), steps=5, precision="double")
    if not np.any(np.asarray(start.x)):
        assert any("falls along it, so x is not a minimum" in words for words in start.uncertainty.undetermined)
