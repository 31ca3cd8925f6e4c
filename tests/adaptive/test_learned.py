"""Bases that learn: the same laws as for any basis, the spans they promise, and learning anew as ``x`` moves."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel import Neural, Snapshot
from cobilevel.adaptive import choose_background, learn
from cobilevel.basis import whiten
from cobilevel.study import Study
from problems import AROUND, as_pytrees, curved_problem, single

SMALL = Neural(3, width=8, depth=1, steps=20, decisions=2)
BOTH = cb.Orthonormal(cb.Union([Snapshot(2, cb.BSpline(12)), cb.Chebyshev(1)]))
EVERY = [Snapshot(3), *(pytest.param(basis, marks=pytest.mark.thorough) for basis in (BOTH, SMALL))]


def learned(basis, problem, samples):
    return learn(basis, Study.of(problem, samples))


def misfit(phi, y):
    """The mean squared distance of a policy to the span of features."""
    return float(np.mean((phi @ np.linalg.lstsq(phi, y, rcond=None)[0] - y) ** 2))


@pytest.mark.parametrize("basis", EVERY, ids=repr)
def test_every_law_of_a_basis(basis, traffic, tmp_path):
    assert not basis.learned
    few = traffic.train.rows(slice(0, 200))
    solution = cb.solve(traffic.problem, few, basis=basis)
    recipe = solution.basis.basis
    assert recipe.learned
    assert learned(recipe, traffic.problem, few) is recipe
    assert repr(recipe) == repr(basis)
    assert "learned at x0" in solution.choices["basis"]
    xi = jnp.linspace(0.0, 1.0, 12)
    y = solution.policy(xi)
    assert y.shape == (12, 2)
    np.testing.assert_allclose(jax.jit(solution.policy)(xi), y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(solution.policy(xi.reshape(3, 4)).reshape(12, 2), y, rtol=1e-12, atol=1e-12)
    assert np.isnan(solution.policy(jnp.array([-0.5, 1.5]))).all()
    back = cb.load(solution.save(tmp_path / "run.npz"), traffic.problem)
    np.testing.assert_array_equal(back.policy(xi), y)
    assert repr(back) == repr(solution)
    for given in (None, basis):
        again = cb.solve(traffic.problem, few, basis=given, resume=back)
        np.testing.assert_array_equal(again.policy(xi), y)


@pytest.mark.parametrize("basis", [Snapshot(4), SMALL], ids=repr)
@pytest.mark.thorough
def test_a_run_cut_in_two_is_the_same_run(basis, quadratic):
    problem, few = quadratic.problem, quadratic.train.rows(slice(0, 300))
    known = learned(basis, problem, few)
    whole = cb.solve(problem, few, basis=known, steps=6)
    part = cb.solve(problem, few, basis=known, steps=3)
    on = cb.solve(problem, few, resume=part, steps=6)
    np.testing.assert_array_equal(on.x, whole.x)
    np.testing.assert_array_equal(on.W, whole.W)
    with pytest.raises(ValueError, match="another basis"):
        cb.solve(problem, few, basis=Snapshot(5), resume=part, steps=6)


def test_the_policy_at_x0_is_in_the_span_and_functions_are_orthonormal(traffic):
    problem, xi = traffic.problem, traffic.train.xi
    y = np.asarray(traffic.truth.y(problem.x0, xi))
    rich = cb.BSpline(100, degree=1)
    hats = misfit(np.asarray(rich.evaluate(problem.domain, xi)), y)
    for n in (2, 5):
        phi = np.asarray(learned(Snapshot(n, rich), problem, traffic.train).evaluate(problem.domain, xi))
        assert phi.shape[1] == n
        np.testing.assert_allclose(phi.T @ phi / len(phi), np.eye(n), atol=1e-9)
        assert misfit(phi, y) < 1.0001 * hats + 1e-16 < 1e-8
    assert misfit(np.asarray(cb.Chebyshev(30).evaluate(problem.domain, xi)), y) > 10 * hats


def test_snapshots_span_what_is_known_in_closed_form():
    """``y = C(xi) x + c(xi)``: all of it lies in four exponentials, whatever ``x``; no noise hides it here."""
    instance = cb.gallery.quadratic(3, dx=2, dy=2, noise=(0.1, 0.0), train=600)
    recipe = learned(Snapshot(12, cb.Chebyshev(16)), instance.problem, instance.train)
    phi = recipe.fit(instance.problem.domain, instance.train.xi)
    assert phi.size <= 12
    for x in (jnp.zeros(2), jnp.array([3.0, -20.0])):
        y = np.asarray(instance.truth.y(x, instance.test.xi))
        assert misfit(np.asarray(phi(instance.test.xi)), y) < 1e-14 * np.mean(y**2)
    np.testing.assert_allclose(phi(instance.train.xi) @ phi.constant, 1, atol=1e-6)


def test_learning_anew_matters(traffic):
    errors = []
    for refreshed in (True, False):
        basis = Snapshot(4) if refreshed else learned(Snapshot(4), traffic.problem, traffic.train)
        solution = cb.solve(traffic.problem, traffic.train, basis=basis)
        assert ("and again in" in solution.choices.get("basis", "")) == refreshed
        errors.append(cb.evaluate(traffic.problem, solution, traffic.test).policy_error)
    assert errors[0] < 1e-8
    assert errors[0] < 1e-2 * errors[1]


def test_a_background_that_the_samples_support(traffic, quadratic):
    assert isinstance(choose_background(traffic.problem, traffic.train, False), cb.BSpline)
    holes = cb.Samples(jnp.concatenate([jnp.linspace(0, 0.1, 200), jnp.linspace(0.9, 1, 200)]), jnp.zeros((400, 2)))
    assert isinstance(choose_background(traffic.problem, holes, False), cb.Chebyshev)
    assert choose_background(quadratic.problem, quadratic.train.rows(slice(0, 160)), True).n == 10
    assert choose_background(quadratic.problem, quadratic.train.rows(slice(0, 3)), True).n == 1
    plane = cb.gallery.quadratic(0, dimension=2, train=400)
    chosen = choose_background(plane.problem, plane.train, True)
    assert len(chosen.index.table(chosen.n, 2)) <= 25 < len(chosen.index.table(chosen.n + 1, 2))


@pytest.mark.thorough
def test_pytrees_other_units_and_float32(quadratic):
    problem, *_ = as_pytrees(quadratic.problem)
    few = quadratic.train.rows(slice(0, 500))
    plain = cb.reduce(quadratic.problem, Snapshot(6), few)
    dressed = cb.reduce(problem, Snapshot(6), few)
    xi = jnp.linspace(-1.0, 1.0, 9)
    np.testing.assert_allclose(np.abs(dressed.basis(xi)), np.abs(plain.basis(xi)), atol=1e-6)
    units = jnp.array([1.0, 1e3, 1e-3])
    scaled = eqx.tree_at(
        lambda p: p.lower, quadratic.problem, lambda x, y, *e: quadratic.problem.lower(x, y / units, *e)
    )
    other = cb.reduce(scaled, Snapshot(6), few)
    np.testing.assert_allclose(np.abs(other.basis(xi)), np.abs(plain.basis(xi)), atol=1e-4)
    bare = eqx.tree_at(lambda p: p.conditional, quadratic.problem, None)
    for basis in (Snapshot(4), SMALL):
        assert cb.reduce(single(bare), basis, single(few)).basis(xi).dtype == jnp.float32


KINDS = [
    (Snapshot(3), "plane"),
    *(pytest.param(basis, kind, marks=pytest.mark.thorough) for basis, kind in [
        (Snapshot(3), "finite"), (SMALL, "plane"),
        (Snapshot(3), "product"), (Snapshot(3), "distribution"), (Snapshot(3), "stream"), (SMALL, "finite"),
        (SMALL, "product"), (SMALL, "distribution"), (SMALL, "stream"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("basis", "kind"), KINDS)
def test_every_kind_of_data(basis, kind):
    problem, samples = curved_problem()
    eta = samples.eta[:20]
    law = cb.Uniform(problem.domain)
    if kind == "product":
        data = cb.Product(jnp.linspace(-1, 1, 30), eta)
    elif kind == "distribution":
        data = cb.Product(law, eta, nodes=16)
    elif kind == "stream":
        data = cb.Stream(lambda key, size: cb.Samples(law.sample(key, size), jax.random.normal(key, (size,))))
    elif kind == "finite":
        values = np.linspace(-1.0, 1.0, 6)
        problem, data = replace_domain(problem, cb.Finite(values)), cb.Samples(values[np.arange(60) % 6], samples.eta)
    else:
        instance = cb.gallery.quadratic(0, dimension=2, train=300)
        problem, data = instance.problem, instance.train
    reduced = cb.reduce(problem, basis, data)
    assert reduced.basis.size == 3
    assert np.isfinite(reduced.lower(reduced.x0, reduced.W0, reduced.draw(0, 8)[1]))


def replace_domain(problem, domain):
    return cb.Problem(problem.upper, problem.lower, problem.x0, problem.y0, domain)


@pytest.mark.thorough
def test_a_network_learns_the_policy_and_is_orthonormal(traffic):
    problem, xi = traffic.problem, traffic.train.xi
    y = np.asarray(traffic.truth.y(problem.x0, xi))
    trained = learned(Neural(4, width=16, steps=300), problem, traffic.train)
    phi = np.asarray(trained.evaluate(problem.domain, xi))
    untrained = learned(Neural(4, width=16, steps=1, rate=1e-9), problem, traffic.train).evaluate(problem.domain, xi)
    assert misfit(phi, y) < 0.25 * misfit(np.asarray(untrained), y)
    np.testing.assert_allclose(whiten(jnp.asarray(phi)).singular_values, 1, atol=1e-9)
    np.testing.assert_array_equal(phi[:, 0], 1)
    same = learned(Neural(4, width=16, steps=300), problem, traffic.train)
    np.testing.assert_array_equal(same.evaluate(problem.domain, xi), phi)


def test_bad_arguments(traffic):
    for arguments, words in [
        ({"n": 0}, "n must be a whole number"),
        ({"n": 3, "decisions": 1}, "decisions must be a whole number of at least 2"),
        ({"n": 3, "spread": -1.0}, "spread must be positive"),
    ]:
        with pytest.raises(ValueError, match=words):
            Snapshot(**arguments)
    with pytest.raises(TypeError, match="background must be a basis"):
        Snapshot(3, background=5)
    for arguments, words in [
        ({"n": 1}, "the constant"),
        ({"n": 3, "width": 0}, "width"),
        ({"n": 3, "rate": 0}, "rate"),
    ]:
        with pytest.raises(ValueError, match=words):
            Neural(**arguments)
    for basis in (Snapshot(3), Neural(3)):
        with pytest.raises(RuntimeError, match=r"Pass it to cb\.solve"):
            basis.fit(traffic.problem.domain, traffic.train.xi)
    with pytest.raises(ValueError, match="NaN or infinity in training"):
        learned(replace(SMALL, rate=1e200), traffic.problem, traffic.train)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_a_solution_at_zero_settles(seed):
    """``x`` comes to rest at 0, where no move is small against its size."""
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: (y - jnp.exp(xi)) ** 2 + x**2,
        lower=lambda x, y, xi, eta: (y - x * xi - jnp.exp(xi)) ** 2 / 2,
        x0=0.3,
        y0=0.0,
        domain=AROUND,
    )
    samples = cb.Samples(np.random.default_rng(seed).uniform(-1, 1, 300))
    found = cb.solve(problem, samples, basis=Snapshot(3))
    assert found.converged
    assert abs(float(found.x)) < 1e-8
    assert "not settled" not in found.choices["basis"]
