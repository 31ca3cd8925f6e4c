"""In many dimensions: which family is chosen, how close the policy then is to a known one, and how it is kept."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

D, N = 4, 800
RNG = np.random.default_rng(0)
AXIS = np.ones(D) / np.sqrt(D)
U = RNG.uniform(-1, 1, (N, D))
FRESH = RNG.uniform(-1, 1, (500, D))
NOISE = 0.2 * RNG.normal(size=N)


def along(u):
    return jnp.sin(3 * u @ AXIS)


def additive(u):
    return u[..., 0] + 2 * u[..., 1] ** 2


def lower(x, y, xi, eta):
    return (y - x - eta) ** 2 / 2


problem = cb.Problem(
    lambda x, y, xi, eta: (y - 1) ** 2 / 2 + 0.05 * x**2, lower, 0.5, 0.0, cb.Box(-np.ones(D), np.ones(D))
)


def error(solution, h):
    """Of the policy, relative to its variance."""
    truth = np.asarray(h(FRESH)) + float(solution.x)
    return np.mean((np.asarray(solution.policy(FRESH)) - truth) ** 2) / np.var(truth)


@pytest.fixture(scope="module")
def ridge():
    return cb.solve(problem, cb.Samples(U, np.asarray(along(U)) + NOISE))


def test_a_ridge_is_seen_along_its_direction(ridge):
    """One direction of the four, the true one, and a policy as good as a fit along it: ``N sigma^2 / n``."""
    chosen = ridge.basis.basis.basis
    assert isinstance(chosen, cb.Rotated)
    assert chosen.k == 1
    found = np.asarray(chosen.axes)[:, 0]
    assert abs(found @ AXIS) / np.linalg.norm(found) > 0.9999
    assert error(ridge, along) < 3 * (len(chosen.basis.index.table(chosen.basis.n, 1)) + D) * 0.04 / N + 1e-3
    for words in ("products over the coordinates", "polynomials along 1 direction", "functions of a kernel"):
        assert words in ridge.choices["basis"]


def test_it_is_saved_with_what_it_learned(ridge, tmp_path):
    ridge.save(tmp_path / "run.npz")
    again = cb.load(tmp_path / "run.npz", problem)
    assert np.array_equal(np.asarray(again.policy(FRESH)), np.asarray(ridge.policy(FRESH)))


def test_an_additive_policy_stays_with_products():
    found = cb.solve(problem, cb.Samples(U, np.asarray(additive(U)) + NOISE))
    assert isinstance(found.basis.basis.basis, cb.Chebyshev)
    assert "held-out" in found.choices["basis"]
    assert error(found, additive) < 0.01


def test_families_asked_for_by_name():
    """Both learn the ridge, the same way twice, and differ by their seed."""
    samples = cb.Samples(U, np.asarray(along(U)) + NOISE)
    for basis in (cb.Rotated(1), cb.KernelFeatures(24)):
        found = cb.solve(problem, samples, basis=cb.Orthonormal(basis))
        assert error(found, along) < 0.02
    landmarks = [np.asarray(cb.reduce(problem, basis, samples).basis.basis.landmarks) for basis in (
        cb.KernelFeatures(8, metric="isotropic"), cb.KernelFeatures(8, metric="isotropic"),
        cb.KernelFeatures(8, metric="isotropic", seed=1),
    )]  # fmt: skip
    assert np.array_equal(landmarks[0], landmarks[1])
    assert not np.array_equal(landmarks[0], landmarks[2])


def test_the_scale_given_is_the_one_taken():
    basis = cb.KernelFeatures(8, scale=3.0, metric="isotropic")
    learned = cb.reduce(problem, basis, cb.Samples(U, NOISE)).basis.basis
    assert np.allclose(learned.axes, np.eye(D) / 3)


def test_more_directions_than_coordinates():
    with pytest.raises(ValueError, match="use at most 4"):
        cb.reduce(problem, cb.Rotated(5, cb.Chebyshev(2)), cb.Samples(U, NOISE))


def test_splines_stand_in_for_polynomials_too_many_for_the_contexts():
    """Twenty polynomials over a hundred contexts swing near the ends; half as many splines more follow as well."""
    xi, policy = np.random.default_rng(0).uniform(-1, 1, 100), lambda xi: jnp.sin(14 * xi)
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - policy(xi)) ** 2 + 0.01 * (x - 1) ** 2,
        lambda x, y, xi, eta: (y - x * policy(xi)) ** 2,
        0.5,
        0.0,
        cb.Interval(-1.0, 1.0),
    )
    solution = cb.solve(problem, cb.Samples(xi))
    polynomials = int(re.search(r"since (\d+) polynomials", solution.choices["basis"])[1])
    assert solution.basis.basis.basis == cb.BSpline(round(1.5 * polynomials))
    grid = np.linspace(xi.min(), xi.max(), 300)
    assert np.max(np.abs(np.asarray(solution.policy(grid)) - float(solution.x) * policy(grid))) < 0.02
