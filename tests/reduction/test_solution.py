"""The policy under transformations, and solutions that are saved, loaded and refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import as_pytrees


@pytest.fixture(scope="module")
def solved(quadratic):
    problem, *_ = as_pytrees(quadratic.problem)
    return problem, cb.solve(problem, quadratic.train, basis=cb.Orthonormal(cb.Chebyshev(5)))


def test_policy_is_batched_and_transforms(solved):
    _, solution = solved
    xi = jnp.linspace(-1.0, 1.0, 24)
    y = solution.policy(xi)
    assert jax.tree.map(jnp.shape, y) == ((24,), (24, 2))
    close = lambda a, b: jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-12), a, b)
    close(jax.jit(solution.policy)(xi), y)
    close(jax.vmap(solution.policy)(xi), y)
    close(jax.tree.map(lambda a: a.reshape(24, *a.shape[3:]), solution.policy(xi.reshape(2, 3, 4))), y)
    slope = jax.grad(lambda c: solution.policy(c)[0])(0.3)
    step = 1e-6
    numeric = (solution.policy(0.3 + step)[0] - solution.policy(0.3 - step)[0]) / (2 * step)
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)
    assert np.isfinite(jax.grad(lambda c: solution.policy(c)[0])(1.0))
    assert np.all(np.isnan(solution.policy(jnp.array([-1.5, 1.5]))[0]))
    by_hand = jnp.tensordot(solution.basis(xi), solution.W[1], 1)
    np.testing.assert_allclose(y[1], by_hand, rtol=1e-13)


BASES = [
    cb.Chebyshev(4, index=cb.HyperbolicCross()), cb.Orthonormal(cb.Fourier(5, period=1.5)), cb.BSpline(6, degree=2),
    cb.Partition(3), cb.Orthonormal(cb.Orthonormal(cb.Legendre(3)), tolerance=1e-6),
]  # fmt: skip


@pytest.mark.parametrize("basis", BASES, ids=repr)
def test_saved_and_loaded_gives_the_same_numbers(basis, quadratic, tmp_path):
    solution = cb.solve(quadratic.problem, quadratic.train, basis=basis)
    path = solution.save(tmp_path / "deep" / "run.npz")
    back = cb.load(path, quadratic.problem)
    xi = jnp.linspace(-1.0, 1.0, 50)
    np.testing.assert_array_equal(back.policy(xi), solution.policy(xi))
    np.testing.assert_array_equal(back.x, solution.x)
    assert (back.converged, back.result, back.choices) == (solution.converged, solution.result, solution.choices)
    assert back.stats == solution.stats
    for name, curve in solution.history.items():
        np.testing.assert_array_equal(back.history[name], curve)
    assert repr(back) == repr(solution)
    assert not list(path.parent.glob("*.part"))


def test_pytrees_and_features_survive(solved, quadratic, tmp_path):
    problem, solution = solved
    back = cb.load(solution.save(tmp_path / "a.npz"), problem)
    assert jax.tree.structure((back.x, back.W)) == jax.tree.structure((solution.x, solution.W))
    basis = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), xi]), 2)
    own = cb.solve(quadratic.problem, quadratic.train, basis=basis)
    path = own.save(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="basis="):
        cb.load(path, quadratic.problem)
    np.testing.assert_array_equal(cb.load(path, quadratic.problem, basis=basis).policy(0.2), own.policy(0.2))


def test_loading_refuses_what_does_not_belong(solved, quadratic, traffic, tmp_path):
    problem, solution = solved
    path = solution.save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="domain"):
        cb.load(path, traffic.problem)
    with pytest.raises(ValueError, match="does not fit"):
        cb.load(path, quadratic.problem)
    with pytest.raises(FileNotFoundError, match="no saved solution"):
        cb.load(tmp_path / "none.npz", problem)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        cb.load(path, problem)


def test_loading_runs_no_code(quadratic, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    document = {"format": 1}
    np.savez(
        tmp_path / "trap.npz", __document__=np.asarray(json.dumps(document)), evil=np.array([Trap()], dtype=object)
    )
    with pytest.raises(ValueError, match="not a saved solution"):
        cb.load(tmp_path / "trap.npz", quadratic.problem)
    assert not (tmp_path / "sprung").exists()
    forged = {"name": "os.system", "n": 3}
    from cobilevel.basis.recipes import basis_from_json

    with pytest.raises(ValueError, match="not one of this library"):
        basis_from_json(forged)


def test_resume_refuses_another_run(quadratic):
    part = cb.solve(quadratic.problem, quadratic.train, basis=cb.Chebyshev(4), steps=3)
    assert part.result.startswith("Budget spent")
    with pytest.raises(ValueError, match="another solver"):
        cb.solve(quadratic.problem, quadratic.train, basis=cb.Chebyshev(4), solver=cb.StocBiO(0.1, 0.1), resume=part)


def test_evaluate_agrees_with_closed_forms(quadratic):
    solution = cb.solve(quadratic.problem, quadratic.train, basis=cb.Chebyshev(6))
    judged = cb.evaluate(quadratic.problem, solution, quadratic.test.rows(slice(0, 1000)), quadratic.truth, draws=512)
    assert abs(judged.loss - float(quadratic.truth.F(solution.x))) < 4 * judged.loss_error + 1e-3
    np.testing.assert_allclose(judged.x_error, np.sum((solution.x - quadratic.truth.x) ** 2), rtol=1e-12)
    xi = quadratic.test.xi[:1000]
    exact = np.mean(np.sum((solution.policy(xi) - quadratic.truth.y(solution.x, xi)) ** 2, axis=1))
    sampled = 3 * 0.3**2 / 512  # the exact solve averages 512 draws of three components
    assert abs(judged.policy_error - exact - sampled) < 0.3 * sampled
    assert judged.trouble == ""


@pytest.mark.thorough
def test_evaluate_over_product_data(quadratic):
    eta = jax.tree.map(lambda a: a[:50], quadratic.train.eta)
    product = cb.Product(jnp.linspace(-1.0, 1.0, 30), eta)
    solution = cb.solve(quadratic.problem, product, basis=cb.Chebyshev(10))
    judged = cb.evaluate(quadratic.problem, solution, product)
    mean = eta["lower"].mean(axis=0)
    y = jax.vmap(lambda c: quadratic.truth.lower.slope(c) @ solution.x + mean)(product.contexts)
    gap = y[:, None] - eta["upper"][None]
    Q = quadratic.truth.upper.Q
    loss = jnp.mean(jnp.einsum("mna,ab,mnb->mn", gap, Q, gap)) / 2
    loss += quadratic.truth.upper.rho * jnp.sum((solution.x - quadratic.truth.upper.centre) ** 2) / 2
    np.testing.assert_allclose(judged.loss, loss, rtol=1e-9)
    assert judged.policy_error < 1e-8
