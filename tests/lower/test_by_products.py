"""A ``y`` whose second derivatives are not formed: against closed forms, differences, and what matrices give.

They are not from 334 numbers on, and a hundred directions are known of them; here, with both lowered as far, from 21
on, and thirty, so that each test takes a tenth of the time.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.derivatives import Expansions
from cobilevel.lower import by_products, curved_along, exact_lower, preconditioned, preconditioner, solve_at
from cobilevel.reduction import DENSE_LIMIT, is_formed, reduce_study
from cobilevel.study import Study

SIZE, LIMIT, RANK = 24, 120, 30
STIFF = jnp.asarray(np.geomspace(0.01, 100.0, SIZE))
SHAPE = jnp.asarray(np.random.default_rng(0).normal(size=SIZE))


@contextmanager
def formed_up_to(limit):
    """As if no more coefficients were taken to have a Hessian that is formed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith("cobilevel.")]:
            if hasattr(sys.modules[name], "DENSE_LIMIT"):
                patch.setattr(sys.modules[name], "DENSE_LIMIT", limit)
        yield


@pytest.fixture(scope="module", autouse=True)
def lowered():
    with formed_up_to(LIMIT), pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_products, "_RANK", RANK)
        yield


def test_the_limit_is_a_sixth_of_the_coefficients():
    for limit, largest in ((DENSE_LIMIT, 333), (LIMIT, 20)):
        with formed_up_to(limit):
            assert [is_formed(1, (2, dy)) for dy in (largest, largest + 1)] == [True, False]


def aim(x, context):
    return SHAPE * x[0] * jnp.exp(context) + x[1]


class Lower(eqx.Module):
    stiff: jax.Array

    def __call__(self, x, y, xi, eta):
        return jnp.sum(self.stiff * (y - aim(x, xi)) ** 2) / 2 + jnp.sum(y) * eta


lower = Lower(STIFF)


def upper(x, y, xi, eta):
    return jnp.mean((y - SHAPE * (1 + xi) - 0.5) ** 2) + 0.01 * jnp.sum(x**2) + eta**2


def problem(levels=(upper, lower)):
    return cb.Problem(*levels, jnp.zeros(2), jnp.zeros(SIZE), cb.Interval(0.0, 1.0))


def crossed(count=12):
    noise = np.random.default_rng(1).normal(size=count)
    return cb.Product(cb.Uniform(cb.Interval(0.0, 1.0)), noise - noise.mean())


def best():
    """The closed form: with noise of mean zero the policy is the aim, and the objective quadratic in ``x``."""
    u, w = np.polynomial.legendre.leggauss(40)
    xi, w = (u + 1) / 2, w / 2
    rows = np.stack([np.asarray(SHAPE)[None] * np.exp(xi)[:, None], np.ones((len(xi), SIZE))], axis=2)
    goal = np.asarray(SHAPE)[None] * (1 + xi)[:, None] + 0.5
    normal = np.einsum("n,naj,nak->jk", w, rows, rows) / SIZE + 0.01 * np.eye(2)
    return np.linalg.solve(normal, np.einsum("n,naj,na->j", w, rows, goal) / SIZE)


@pytest.fixture(scope="module")
def solved():
    return cb.solve(problem(), crossed())


def test_nothing_set_gives_the_closed_form(solved):
    assert solved.converged
    np.testing.assert_allclose(solved.x, best(), rtol=1e-3)  # what further functions may change
    xi = np.linspace(0.0, 1.0, 7)
    exact = np.stack([aim(solved.x, c) for c in xi])
    np.testing.assert_allclose(solved.policy(xi), exact, atol=2e-2)
    assert "would change the objective by" in solved.choices["basis"]
    assert solved.stats["rows"]["lower"] < 64 * 12  # as many nodes as the basis needs


def test_the_certificate_is_exact_and_covers(solved):
    judged = cb.certify(problem(), solved, crossed())
    assert judged.mode == "exact"
    assert judged.objective.low <= float(judged.objective) <= judged.objective.high
    exact = cb.evaluate(problem(), solved, crossed())
    assert exact.loss == pytest.approx(float(judged.objective), rel=1e-6)
    assert exact.policy_error == pytest.approx(float(judged.policy_error), rel=0.1)
    assert float(judged.gradient_norm) < 1e-3
    assert "too many coefficients" in judged.left_out


def test_without_noise_each_context_has_a_lower_level_of_its_own():
    levels = (lambda x, y, xi, eta: jnp.sum(y), lambda x, y, xi, eta: lower(x, y, xi, 0.0) + jnp.sum(jnp.cosh(y / 50)))
    xi = np.linspace(0.0, 1.0, 6)
    study = Study.of(problem(levels), cb.Samples(xi))
    found = exact_lower(study, jnp.array([1.0, -0.3]), xi)
    assert bool(np.all(found.converged))
    slope = jax.jit(jax.vmap(lambda y, c: jax.grad(levels[1], 1)(jnp.array([1.0, -0.3]), y, c, None)))
    assert np.max(np.abs(slope(jnp.asarray(found.y), xi))) < 1e-8


@cache
def at_point(count=3):
    small = cb.Product(cb.Uniform(cb.Interval(0.0, 1.0)), np.array([-1.0, 0.2, 0.8]), nodes=8)
    bent = lambda x, y, xi, eta: lower(x, y, xi, eta) + jnp.sum(jnp.cosh(y * x[1])) / 10
    study = Study.of(problem((upper, bent)), small)
    at = Expansions(reduce_study(study, cb.Chebyshev(count)).whitened().ordinary())
    assert not at.formed
    x = np.array([0.8, 0.4])
    return at, lambda x: solve_at(at, x, at.table(at.reduced.W0), 0.0, 1e-11), x


def test_the_hypergradient_is_that_of_differences():
    _, solve, x = at_point()
    here = solve(x)
    assert here.sound
    for k, step in enumerate(1e-5 * np.eye(2)):
        slope = (solve(x + step).value - solve(x - step).value) / 2e-5
        assert here.gradient[k] == pytest.approx(slope, rel=1e-6)


def test_curvature_and_sensitivity_are_those_of_differences():
    at, solve, x = at_point()
    here = solve(x)
    hessian, moved = curved_along(at, here, np.eye(2), 1e-11)
    for k, step in enumerate(1e-5 * np.eye(2)):
        ahead, back = solve(x + step), solve(x - step)
        np.testing.assert_allclose(hessian[k], (ahead.gradient - back.gradient) / 2e-5, rtol=1e-5)
        np.testing.assert_allclose(moved[:, :, k], (ahead.W - back.W) / 2e-5, atol=1e-6 * np.abs(moved).max())


def test_the_preconditioner_saves_products(monkeypatch):
    """Thirty stiff directions, each of its own size, in each of three functions: it knows a hundred."""
    monkeypatch.setattr(by_products, "_RANK", 100)
    stiff = jnp.asarray(np.concatenate([np.geomspace(10.0, 1e4, 30), np.ones(30)]))
    shape = jnp.asarray(np.random.default_rng(0).normal(size=60))
    pulled = lambda x, y, xi, eta: jnp.sum(stiff * (y - shape * x[0] * jnp.exp(xi) - x[1]) ** 2) / 2
    above = lambda x, y, xi, eta: jnp.mean((y - shape) ** 2) + 0.01 * jnp.sum(x**2)
    study = Study.of(cb.Problem(above, pulled, jnp.zeros(2), jnp.zeros(60), cb.Interval(0.0, 1.0)), crossed())
    at = Expansions(reduce_study(study, cb.Chebyshev(3)).whitened().ordinary())
    x, W = np.array([0.8, 0.4]), at.table(at.reduced.W0)
    known, spent = preconditioned(at), []
    for vectors in (known.vectors, 0 * known.vectors):
        at._prepared[preconditioner] = (x, W), replace(known, vectors=vectors)
        before = at.spent["hessian_vector", "calls"]
        solve_at(at, x, W, 0.0, 1e-8)
        spent.append(at.spent["hessian_vector", "calls"] - before)
    assert spent[0] < spent[1] / 2


def test_noisy_samples_choose_by_those_held_out():
    """Stiff by a factor of ten only: what is soft follows the noise, and takes many functions and products."""
    rng, rows = np.random.default_rng(3), 150
    draw = lambda: cb.Samples(rng.uniform(size=rows), rng.normal(size=rows))
    stated = problem((upper, Lower(jnp.asarray(np.geomspace(1.0, 10.0, SIZE)))))
    solution = cb.solve(stated, draw())
    assert solution.converged
    np.testing.assert_allclose(solution.x, best(), atol=0.2)
    assert "held-out samples" in solution.choices["basis"]
    judged = cb.certify(stated, solution, draw())
    assert judged.mode in ("enriched", "held-out")
    assert np.isfinite(float(judged.gradient_norm))


def test_a_stated_basis_works_too_and_a_resumed_run_is_the_uninterrupted_one():
    whole = cb.solve(problem(), crossed(), basis=cb.Chebyshev(4))
    assert whole.converged
    np.testing.assert_allclose(whole.x, best(), rtol=1e-3)
    part = cb.solve(problem(), crossed(), basis=cb.Chebyshev(4), steps=2)
    rest = cb.solve(problem(), crossed(), resume=part)
    np.testing.assert_array_equal(rest.x, whole.x)
    np.testing.assert_array_equal(rest.W, whole.W)


def test_contexts_that_meet_all_data_form_no_pairs_for_many_coordinates_of_x():
    """Weights of forty images: as good as with the lower level solved at ten nodes, and no plateau of the sigmoids."""
    images = cb.gallery.images.digits()
    kept = images.labels < 2
    pictures = images.images[kept].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    small = cb.gallery.images.Images(pictures, images.labels[kept], pictures[:5], images.labels[kept][:5], "small")
    case = cb.gallery.cleaning(0, small, train=40, validation=40)
    solution = cb.solve(case.problem, case.train)
    nodes = cb.solve(case.problem, case.train, solver=cb.direct.Collocation(10))
    assert solution.converged
    assert solution.stats["rows"]["lower"] < 64 * 40
    loss = lambda answer: float(cb.evaluate(case.problem, answer, case.train).loss)
    assert loss(solution) < 1.001 * loss(nodes)
    assert "coordinates of x" in str(solution)


def test_a_diagnosis_looks_at_the_lower_level_alone():
    """The upper one has data of another kind."""
    levels = (lambda x, y, xi, eta: upper(x, y, xi, eta["own"]), lower)
    xi, noise = np.linspace(0.0, 1.0, 60), np.cos(np.arange(60.0))
    data = cb.Levels(cb.Samples(xi, {"own": noise}), cb.Samples(xi, noise))
    found = cb.diagnose(problem(levels), cb.Chebyshev(3), data)
    white = np.linalg.svd(np.polynomial.chebyshev.chebvander(2 * xi - 1, 2) / np.sqrt(60), compute_uv=False)
    np.testing.assert_allclose(found.L, 100 * white[0] ** 2, rtol=0.01)
