"""The policy under transformations, and solutions that are saved, loaded and refused."""

import copy
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import basis_from_json
from problems import as_pytrees


@pytest.fixture(scope="module")
def few(quadratic):
    return quadratic.train.rows(slice(0, 1000))


@pytest.fixture(scope="module")
def solved(quadratic, few):
    problem, *_ = as_pytrees(quadratic.problem)
    return problem, cb.solve(problem, few, basis=cb.Orthonormal(cb.Chebyshev(5)))


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


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_a_solution_crosses_to_another_process(solved, few, copied):
    """As a file would, with its standard errors and without the functions; it is judged and gone on with there."""
    problem, solution = solved
    there = copied(solution)
    assert str(there) == str(solution)
    jax.tree.map(np.testing.assert_array_equal, there.policy(few.xi), solution.policy(few.xi))
    here, gone = (cb.certify(problem, one, few).objective for one in (solution, there))
    assert here == gone
    assert cb.solve(problem, few, resume=there).converged
    more = lambda x, y, xi, eta: problem.upper(x, y, xi, eta) + 1
    other = cb.Problem(more, problem.lower, problem.x0, problem.y0, problem.domain)
    with pytest.raises(ValueError, match="resume"):
        cb.solve(other, few, resume=there)


def test_the_policy_is_plain_and_traced_in_any_order_in_single_precision(quadratic, few):
    xi = np.linspace(-1.0, 1.0, 9)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        solution = cb.solve(quadratic.problem, few, cb.Chebyshev(3))
        plain = solution.policy(xi)
        assert plain.dtype == np.float32
        ways = [
            jax.jit(solution.policy),
            solution.policy,
            jax.vmap(solution.policy),
            jax.jit(jax.vmap(solution.policy)),
            lambda a: jax.jit(lambda factor: factor * solution.policy(a))(1.0),
            lambda a: jax.vmap(jax.jacfwd(solution.policy))(a) * 0 + plain,
        ]
        for way in (*ways, *ways[::-1]):
            for given in (xi, jnp.asarray(xi)):
                np.testing.assert_allclose(way(given), plain, rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(solution.policy(given), solution.policy(given))


# of one size, so that they share a compiled program
BASES = [
    cb.Chebyshev(5, index=cb.HyperbolicCross()), cb.Orthonormal(cb.Fourier(5, period=1.5)), cb.BSpline(5, degree=2),
    cb.Partition(5), cb.Orthonormal(cb.Orthonormal(cb.Legendre(5)), tolerance=1e-6),
]  # fmt: skip


@pytest.mark.parametrize("basis", BASES, ids=repr)
def test_saved_and_loaded_gives_the_same_numbers(basis, quadratic, few, tmp_path):
    solution = cb.solve(quadratic.problem, few, basis=basis)
    path = solution.save(tmp_path / "deep" / "run.npz")
    back = cb.load(path, quadratic.problem)
    xi = jnp.linspace(-1.0, 1.0, 50)
    np.testing.assert_array_equal(back.policy(xi), solution.policy(xi))
    np.testing.assert_array_equal(back.x, solution.x)
    assert (back.converged, back.result, back.choices) == (solution.converged, solution.result, solution.choices)
    assert isinstance(back.result, cb.Result)
    assert back.detail == solution.detail
    assert back.stats == solution.stats
    for name, curve in solution.history.items():
        np.testing.assert_array_equal(back.history[name], curve)
    assert repr(back) == repr(solution)
    assert not list(path.parent.glob("*.part"))


def test_pytrees_and_features_survive(solved, quadratic, few, tmp_path):
    problem, solution = solved
    back = cb.load(solution.save(tmp_path / "a.npz"), problem)
    assert jax.tree.structure((back.x, back.W)) == jax.tree.structure((solution.x, solution.W))
    basis = cb.Features(lambda xi: jnp.stack([xi**k for k in range(5)]), 5)
    own = cb.solve(quadratic.problem, few, basis=basis)
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
    with pytest.raises(ValueError, match="not part of this library"):
        basis_from_json({"name": "os.system", "n": 3})
