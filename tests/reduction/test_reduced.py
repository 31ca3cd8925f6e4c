"""The reduced problem: pools and draws of every kind of data, and what an outside solver can do with them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE

ROWS = 60


class Upper(eqx.Module):
    def __call__(self, x, y, xi, eta):
        return (y - jnp.sum(xi) - eta["u"]) ** 2 + x**2


class Lower(eqx.Module):
    def __call__(self, x, y, xi, eta):
        return jnp.cosh(y - x * jnp.sum(xi) - eta["v"])


def problem(domain=LINE):
    return cb.Problem(Upper(), Lower(), 0.5, 0.0, domain)


def noise(count=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return {"u": rng.normal(size=count), "v": rng.normal(size=count)}


def test_weights_are_repetitions():
    """Rows with weights, each as if it had been given as often as its weight says."""
    xi, eta = np.linspace(0, 1, 30), noise(30)
    times = np.array([1, 2, 3] * 10)
    often = lambda count: lambda a: np.repeat(a, count, axis=0)
    as_samples = lambda count, weights: cb.Samples(often(count)(xi), jax.tree.map(often(count), eta), weights)
    # as many rows in both, so that one compiled program serves them
    weighted, repeated = as_samples(2, np.repeat(times, 2).astype(float)), as_samples(times, None)
    assert len(weighted) == len(repeated) == ROWS
    one, other = (cb.solve(problem(), samples, basis=cb.Chebyshev(3)) for samples in (weighted, repeated))
    np.testing.assert_allclose(one.x, other.x, rtol=1e-8)
    np.testing.assert_allclose(one.W, other.W, rtol=1e-7)
    assert len(cb.reduce(problem(), cb.Chebyshev(3), repeated).lower_pool) == 30  # a copy is no row of its own
    idle = cb.Samples(xi, eta, np.where(np.arange(30) < 20, 1.0, 0.0))
    assert len(cb.reduce(problem(), cb.Chebyshev(3), idle).lower_pool) == 20


def test_pools_are_plain_pytrees_an_outside_solver_can_index():
    samples = cb.Samples(np.linspace(0, 1, ROWS), noise())
    reduced = cb.reduce(problem(), cb.Chebyshev(4), samples)
    rows = jnp.array([3, 5, 8])
    batch = jax.tree.map(lambda a: a[rows], reduced.lower_pool)
    W = jnp.arange(4.0)
    each = [samples.rows(k) for k in (3, 5, 8)]
    by_hand = np.mean([problem().lower(0.5, reduced.basis(row.xi) @ W, row.xi, row.eta) for row in each])
    np.testing.assert_allclose(
        jax.jit(lambda W, rows: reduced.lower(0.5, W, rows))(jnp.arange(4.0), batch), by_hand, rtol=1e-13
    )
    slope = jax.jit(jax.grad(reduced.upper, argnums=(0, 1)))(0.5, reduced.W0, batch)
    assert slope[1].shape == reduced.W0.shape
    lifted = reduced.lift(jnp.array(0.5), jnp.arange(4.0))
    assert lifted.result is cb.Result.LIFTED
    assert not lifted.converged
    np.testing.assert_allclose(lifted.policy(0.3), reduced.basis(0.3) @ jnp.arange(4.0))
    with pytest.raises(ValueError, match="lift: W must be a pytree of the shapes"):
        reduced.lift(jnp.array(0.5), jnp.arange(5.0))
    bare = reduced.ordinary()
    assert (bare.dtype, bare.upper_pool, bare.W0) == (reduced.dtype, reduced.upper_pool, reduced.W0)


def test_whitened_is_the_same_problem_in_other_coordinates():
    reduced = cb.reduce(problem(), cb.Monomial(4), cb.Samples(np.linspace(0, 1, ROWS), noise()))
    white = reduced.whitened()
    assert white.whitened() is white
    assert (white.rank, white.deficient) == (4, False)
    Z = jnp.array([0.1, -0.4, 0.2, 1.0])
    W = white.restore(Z)
    for function in ("upper", "lower"):
        one = getattr(white, function)(0.7, Z, white.lower_pool)
        np.testing.assert_allclose(one, getattr(reduced, function)(0.7, W, reduced.lower_pool), rtol=1e-12)
    phi = np.asarray(white.features(jnp.asarray(np.linspace(0, 1, ROWS))))
    np.testing.assert_allclose(phi.T @ phi / ROWS, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(white.lift(jnp.array(0.7), Z).W, W)
    np.testing.assert_allclose(white.restore(white.W0), reduced.W0, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_draws_estimate_the_pool(weighted):
    weights = np.linspace(0.1, 3, ROWS) if weighted else None
    reduced = cb.reduce(problem(), cb.Chebyshev(3), cb.Samples(np.linspace(0, 1, ROWS), noise(), weights))
    whole = reduced.lower(0.7, jnp.ones(3), reduced.lower_pool)
    upper, lower = reduced.draw(0, 40_000)
    np.testing.assert_allclose(reduced.lower(0.7, jnp.ones(3), lower), whole, rtol=0.03)
    assert not np.array_equal(upper.xi, lower.xi)


def test_product_is_all_pairs_and_draws_them():
    contexts, eta = np.linspace(0, 1, 6), noise(10)
    reduced = cb.reduce(problem(), cb.Chebyshev(3), cb.Product(contexts, eta))
    pool = reduced.lower_pool
    assert len(pool) == ROWS
    assert {(float(a), float(b)) for a, b in zip(pool.xi, pool.eta["v"], strict=True)} == {
        (a, b) for a in contexts for b in eta["v"]
    }
    np.testing.assert_array_equal(pool.features, reduced.basis(pool.xi))
    whole = reduced.lower(0.7, jnp.ones(3), pool)
    np.testing.assert_allclose(reduced.lower(0.7, jnp.ones(3), reduced.draw(1, 40_000)[1]), whole, rtol=0.03)


def test_product_with_a_distribution_draws_fresh_contexts_and_integrates_over_nodes():
    data = cb.Product(cb.Uniform(LINE), noise(5), nodes=12)
    reduced = cb.reduce(problem(), cb.Chebyshev(3), data)
    assert len(reduced.lower_pool) == ROWS
    _, batch = reduced.draw(0, 40_000)
    assert len(np.unique(batch.xi)) > 38_000
    np.testing.assert_allclose(
        reduced.lower(0.7, jnp.ones(3), batch), reduced.lower(0.7, jnp.ones(3), reduced.lower_pool), rtol=0.03
    )


def test_a_pool_that_would_not_fit_is_refused():
    data = cb.Product(np.linspace(0, 1, 2000), {"u": np.zeros(400_000), "v": np.zeros(400_000)})
    with pytest.raises(ValueError, match="GiB"):
        cb.reduce(problem(), cb.Chebyshev(3), data).lower_pool


def test_a_stream_without_solver_is_drawn_once_and_says_so():
    def draw(key, size):
        a, b, c = jax.random.split(key, 3)
        eta = {"u": jax.random.normal(a, (size,)), "v": jax.random.normal(b, (size,))}
        return cb.Samples(jax.random.uniform(c, (size,)), eta)

    solution, again = (cb.solve(problem(), cb.Stream(draw), basis=cb.Chebyshev(3)) for _ in range(2))
    assert solution.converged
    assert "drawn once" in solution.choices["samples"]
    np.testing.assert_array_equal(solution.x, again.x)


def test_finite_contexts_with_categories_are_separate_problems():
    domain = cb.Finite([0.0, 1.0, 4.0])
    xi = np.random.default_rng(0).choice([0.0, 1.0, 4.0], ROWS)
    samples = cb.Samples(xi, noise())
    solution = cb.solve(problem(domain), samples)
    assert "Categorical" in solution.choices["basis"]
    judged = cb.evaluate(problem(domain), solution, samples)
    assert judged.policy_error < 1e-16
    assert np.isnan(solution.policy(2.0))
    seen = cb.Samples(np.array([0.0, 1.0] * 30), noise())  # a value never observed keeps y0
    part = cb.solve(problem(domain), seen, basis=cb.Categorical())
    assert float(part.policy(4.0)) == 0.0
    assert "2 of the 3" in part.choices["rank"]


def test_user_features():
    basis = cb.Features(lambda xi: jnp.stack([jnp.exp(xi), jnp.sin(3 * xi), jnp.cos(xi)]), 3)
    solution = cb.solve(problem(), cb.Samples(np.linspace(0, 1, ROWS), noise()), basis=basis)
    assert solution.converged
    assert solution.W.shape == (3,)
