import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

LINE = cb.Interval(0.0, 1.0)


def problem(domain=LINE):
    return cb.Problem(
        lambda x, y, xi, eta: (y - jnp.sum(xi) - eta["u"]) ** 2 + x**2,
        lambda x, y, xi, eta: jnp.cosh(y - x * jnp.sum(xi) - eta["v"]),
        0.5,
        0.0,
        domain,
    )


def noise(count, seed=0):
    rng = np.random.default_rng(seed)
    return {"u": rng.normal(size=count), "v": rng.normal(size=count)}


def test_weights_are_repetitions():
    xi, eta = np.linspace(0, 1, 12), noise(12)
    times = np.array([1, 2, 3] * 4)
    repeat = lambda a: np.repeat(a, times)
    weighted = cb.solve(problem(), cb.Samples(xi, eta, times.astype(float)), basis=cb.Chebyshev(3))
    repeated = cb.solve(problem(), cb.Samples(repeat(xi), jax.tree.map(repeat, eta)), basis=cb.Chebyshev(3))
    np.testing.assert_allclose(weighted.x, repeated.x, rtol=1e-8)
    np.testing.assert_allclose(weighted.W, repeated.W, rtol=1e-7)


def test_pools_are_plain_pytrees_an_outside_solver_can_index():
    samples = cb.Samples(np.linspace(0, 1, 30), noise(30))
    reduced = cb.reduce(problem(), cb.Chebyshev(4), samples)
    rows = jnp.array([3, 5, 8])
    batch = jax.tree.map(lambda a: a[rows], reduced.lower_pool)
    W = jnp.arange(4.0)
    each = [samples.rows(k) for k in (3, 5, 8)]
    by_hand = np.mean([problem().lower(0.5, reduced.basis(row.xi) @ W, row.xi, row.eta) for row in each])
    np.testing.assert_allclose(jax.jit(reduced.lower)(0.5, jnp.arange(4.0), batch), by_hand, rtol=1e-13)
    slope = jax.jit(jax.grad(reduced.upper, argnums=(0, 1)))(0.5, reduced.W0, batch)
    assert slope[1].shape == reduced.W0.shape
    lifted = reduced.lift(jnp.array(0.5), jnp.arange(4.0))
    assert not lifted.converged
    np.testing.assert_allclose(lifted.policy(0.3), reduced.basis(0.3) @ jnp.arange(4.0))


@pytest.mark.parametrize("weighted", [False, True])
def test_draws_estimate_the_pool(weighted):
    weights = np.linspace(0.1, 3, 25) if weighted else None
    reduced = cb.reduce(problem(), cb.Chebyshev(3), cb.Samples(np.linspace(0, 1, 25), noise(25), weights))
    whole = reduced.lower(0.7, jnp.ones(3), reduced.lower_pool)
    upper, lower = reduced.draw(0, 40_000)
    np.testing.assert_allclose(reduced.lower(0.7, jnp.ones(3), lower), whole, rtol=0.03)
    assert not np.array_equal(upper.xi, lower.xi)


def test_product_is_all_pairs_and_draws_them():
    contexts, eta = np.linspace(0, 1, 6), noise(5)
    reduced = cb.reduce(problem(), cb.Chebyshev(3), cb.Product(contexts, eta))
    pool = reduced.lower_pool
    assert len(pool) == 30
    assert {(float(a), float(b)) for a, b in zip(pool.xi, pool.eta["v"], strict=True)} == {
        (a, b) for a in contexts for b in eta["v"]
    }
    np.testing.assert_array_equal(pool.features, reduced.basis(pool.xi))
    whole = reduced.lower(0.7, jnp.ones(3), pool)
    np.testing.assert_allclose(reduced.lower(0.7, jnp.ones(3), reduced.draw(1, 40_000)[1]), whole, rtol=0.03)


def test_product_with_a_distribution_draws_fresh_contexts_and_integrates_over_nodes():
    data = cb.Product(cb.Uniform(LINE), noise(5), nodes=20)
    reduced = cb.reduce(problem(), cb.Chebyshev(3), data)
    assert len(reduced.lower_pool) == 100
    _, batch = reduced.draw(0, 20_000)
    assert len(np.unique(batch.xi)) > 19_000
    np.testing.assert_allclose(
        reduced.lower(0.7, jnp.ones(3), batch), reduced.lower(0.7, jnp.ones(3), reduced.lower_pool), rtol=0.03
    )


def test_a_pool_that_would_not_fit_is_refused():
    data = cb.Product(np.linspace(0, 1, 2000), {"u": np.zeros(400_000), "v": np.zeros(400_000)})
    with pytest.raises(ValueError, match="GiB"):
        cb.reduce(problem(), cb.Chebyshev(3), data).lower_pool


def test_stream_without_solver_is_drawn_once_and_says_so():
    def draw(key, size):
        a, b, c = jax.random.split(key, 3)
        eta = {"u": jax.random.normal(a, (size,)), "v": jax.random.normal(b, (size,))}
        return cb.Samples(jax.random.uniform(c, (size,)), eta)

    solution = cb.solve(problem(), cb.Stream(draw), basis=cb.Chebyshev(3))
    assert solution.converged
    assert "drawn once" in solution.choices["samples"]
    again = cb.solve(problem(), cb.Stream(draw), basis=cb.Chebyshev(3))
    np.testing.assert_array_equal(solution.x, again.x)


def test_finite_contexts_with_categories_are_separate_problems():
    rng = np.random.default_rng(0)
    xi = rng.choice([0.0, 1.0, 4.0], 300)
    samples = cb.Samples(xi, noise(300))
    domain = cb.Finite([0.0, 1.0, 4.0])
    solution = cb.solve(problem(domain), samples)
    assert "Categorical" in solution.choices["basis"]
    judged = cb.evaluate(problem(domain), solution, samples)
    assert judged.policy_error < 1e-16
    assert np.isnan(solution.policy(2.0))


def test_a_value_never_observed_keeps_y0():
    domain = cb.Finite([0.0, 1.0, 4.0])
    samples = cb.Samples(np.array([0.0, 1.0] * 30), noise(60))
    solution = cb.solve(problem(domain), samples, basis=cb.Categorical())
    assert float(solution.policy(4.0)) == 0.0
    assert "2 of the 3" in solution.choices["rank"]


def test_user_features():
    basis = cb.Features(lambda xi: jnp.stack([jnp.exp(xi), jnp.sin(3 * xi)]), 2)
    samples = cb.Samples(np.linspace(0, 1, 50), noise(50))
    solution = cb.solve(problem(), samples, basis=basis)
    assert solution.converged
    assert solution.W.shape == (2,)
