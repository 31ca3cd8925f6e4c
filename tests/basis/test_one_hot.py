"""Features of which each context has one alone: the same matrices, and the same answers, as with all zeros kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import Coordinates, OneHot, base, dense, whiten
from cobilevel.lower.damped_newton import solve_positive
from cobilevel.reduction import reduced

RNG = np.random.default_rng(0)
PLACE, VALUE = RNG.integers(0, 5, 40), RNG.normal(size=40)
PHI = OneHot(jnp.asarray(PLACE), jnp.asarray(VALUE), 6)


@pytest.mark.parametrize("phi", [PHI, PHI.on_host()], ids=["jax", "numpy"])
def test_products_are_those_of_the_matrix(phi):
    table, W, rows = np.asarray(phi), RNG.normal(size=(6, 2)), RNG.normal(size=(40, 2))
    assert table.shape == phi.shape == (40, 6)
    np.testing.assert_allclose(phi @ W, table @ W)
    np.testing.assert_allclose(phi.sums(rows), table.T @ rows)
    long = RNG.normal(size=(40, 9, 9))
    np.testing.assert_allclose(phi.sums(long), np.tensordot(table.T, long, axes=1))
    matrices = RNG.normal(size=(40, 2, 2))
    whole = np.einsum("nk,nab,nl->kalb", table, matrices, table)
    np.testing.assert_allclose(phi.blocks(matrices), np.einsum("kakb->kab", whole))


def test_products_inside_of_programs_and_with_each_other():
    other = OneHot(jnp.array([2, 0, 1, 1, 3, 0]), jnp.arange(6.0), 4)
    np.testing.assert_allclose(dense(PHI @ other), dense(PHI) @ dense(other))
    np.testing.assert_allclose(dense(jax.jit(lambda a, b: a @ b)(PHI, other)), dense(PHI) @ dense(other))
    np.testing.assert_allclose(jax.jit(lambda a: a @ jnp.arange(6.0))(PHI), dense(PHI) @ jnp.arange(6.0))


def test_whitening_divides_by_the_size_of_each_function():
    weights = jnp.asarray(RNG.uniform(0.5, 2, 40))
    phi = OneHot(PHI.place, jnp.ones(40), 6)
    cells, table = whiten(phi, weights), whiten(dense(phi), weights)
    assert cells.rank == table.rank == 5  # one function has no context
    white = np.asarray(phi @ cells.transform)
    np.testing.assert_allclose((white * np.asarray(weights / weights.sum())[:, None]).T @ white, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(cells.singular_values, table.singular_values, atol=1e-12)
    W = jnp.arange(6.0)
    parts = Coordinates.of(cells, W)
    np.testing.assert_allclose(parts.restore(parts.enter(W)), W, atol=1e-12)
    assert float(parts.rest[5]) == 5.0
    np.testing.assert_allclose(cells.unseen(OneHot(jnp.array([0, 5]), jnp.ones(2), 6)), [0, 1])
    np.testing.assert_allclose(table.unseen(jnp.eye(6)[jnp.array([0, 5])]), [0, 1], atol=1e-12)


@pytest.mark.parametrize("size", [1, 3])
def test_blocks_are_solved_as_the_matrix_is(size):
    root = RNG.normal(size=(4, size, size))
    blocks, right = root @ np.swapaxes(root, 1, 2) + np.eye(size), RNG.normal(size=4 * size)
    matrix = np.zeros((4, size, 4, size))
    matrix[np.arange(4), :, np.arange(4), :] = blocks
    found, fine = solve_positive(blocks, right.reshape(4, size))
    assert fine.all()
    np.testing.assert_allclose(found.ravel(), np.linalg.solve(matrix.reshape(4 * size, -1), right), rtol=1e-10)
    blocks[2] *= -1
    assert solve_positive(blocks, right.reshape(4, size))[1].tolist() == [True, True, False, True]


def _problem(domain):
    """A lower level with curvature of its own in each context, and two components that hang together."""

    def lower(x, y, xi, eta):
        u = jnp.sum(jnp.sin(jnp.atleast_1d(xi)))
        return jnp.cosh(y["a"] - x[0] - u - eta) + jnp.sum((y["b"] - x * u - y["a"]) ** 2)

    def upper(x, y, xi, eta):
        return (y["a"] - 1) ** 2 + jnp.sum((y["b"] - 0.5) ** 2) + 0.1 * jnp.sum(x**2)

    return cb.Problem(upper, lower, jnp.zeros(2), {"a": jnp.zeros(()), "b": jnp.zeros(2)}, domain)


CASES = {
    "categories": (cb.Finite(np.arange(80.0)), cb.Categorical(), RNG.integers(0, 70, 600).astype(float)),
    "categories of vectors": (
        cb.Finite(np.stack(np.divmod(np.arange(81), 9), axis=1).astype(float)),
        cb.Categorical(),
        RNG.integers(0, 9, (900, 2)).astype(float),
    ),
    "a partition": (cb.Interval(0.0, 1.0), cb.Partition(70), RNG.uniform(size=700)),
    "a partition of a square": (cb.Box([0.0, 0.0], [1.0, 1.0]), cb.Partition(9), RNG.uniform(size=(900, 2))),
}


JUDGED = ("categories", "a partition of a square")  # of each kind of basis one, of each kind of context one


@pytest.mark.filterwarnings("ignore:basis")
@pytest.mark.parametrize("case", CASES)
def test_solutions_and_their_costs_are_those_of_the_dense_way(case, monkeypatch):
    domain, basis, xi = CASES[case]
    samples, problem = cb.Samples(xi, 0.3 * RNG.normal(size=len(xi))), _problem(domain)
    found = []
    for fewest in (64, 10**9):
        monkeypatch.setattr(base, "_FEWEST_PLACES", fewest)
        solution = cb.solve(problem, samples, basis=basis)
        assert solution.basis.one_hot == (fewest == 64)
        assert solution.converged
        judged = (solution.uncertainty, cb.certify(problem, solution, samples)) if case in JUDGED else None
        found.append((solution, judged))
    (few, judged), (full, judged_full) = found
    np.testing.assert_allclose(few.x, full.x, rtol=1e-7)
    np.testing.assert_allclose(few.policy(xi)["b"], full.policy(xi)["b"], atol=1e-7)
    np.testing.assert_allclose(few.policy(xi)["a"], full.policy(xi)["a"], atol=1e-7)
    assert few.stats["oracles"] == full.stats["oracles"]
    if judged is not None:
        (error, verdict), (error_full, verdict_full) = judged, judged_full
        np.testing.assert_allclose(error.error, error_full.error, rtol=1e-4)
        assert verdict.mode == verdict_full.mode == "neighbours"
        assert float(verdict.policy_error) == pytest.approx(float(verdict_full.policy_error), rel=1e-4)


def test_contexts_that_were_never_seen_keep_the_start():
    samples = cb.Samples(np.repeat(np.arange(60.0), 4), RNG.normal(size=240))
    solution = cb.solve(_problem(cb.Finite(np.arange(80.0))), samples, basis=cb.Categorical())
    assert solution.basis.one_hot
    np.testing.assert_array_equal(solution.policy(np.arange(60.0, 80.0))["a"], 0)
    upper = cb.Samples(np.array([1.0, 70.0]), np.zeros(2))
    with pytest.warns(UserWarning, match="1 of 2 upper-level contexts"):
        cb.solve(_problem(cb.Finite(np.arange(80.0))), cb.Levels(upper, samples), basis=cb.Categorical())


def test_too_large_blocks_are_left_to_products(monkeypatch):
    samples = cb.Samples(CASES["categories"][2], RNG.normal(size=600))
    problem = _problem(cb.Finite(np.arange(80.0)))
    formed = cb.solve(problem, samples, basis=cb.Categorical())
    monkeypatch.setattr(reduced, "DENSE_LIMIT", 4)
    products = cb.solve(problem, samples, basis=cb.Categorical(), solver=cb.Newton(memory=19))
    assert "hessian_vector" in products.stats["oracles"]
    np.testing.assert_allclose(products.x, formed.x, rtol=1e-5)


@pytest.mark.parametrize("values", [RNG.permutation(50).astype(float), RNG.normal(size=(50, 3))], ids=["line", "space"])
def test_the_nearest_value_is_that_of_the_table_of_distances(values):
    domain = cb.Finite(values)
    xi = jnp.asarray(values[RNG.integers(0, 50, 200)] + 1e-3)
    u, table = (np.asarray(domain.reference(a)) for a in (xi, values))
    distances = np.abs(u[:, None] - table).max(axis=-1)
    for place, far in (domain.nearest(xi), jax.jit(lambda a: domain.nearest(a))(xi)):
        np.testing.assert_array_equal(place, np.argmin(distances, axis=1))
        np.testing.assert_allclose(far, np.min(distances, axis=1), atol=1e-12)
    assert not bool(domain.contains(jnp.full(values.shape[1:], jnp.nan)))
