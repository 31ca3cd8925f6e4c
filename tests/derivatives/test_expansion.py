"""Row derivatives and their sums: against differentiation of the whole, in blocks, on devices, with other shares."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.derivatives import Expansions, Sizes, expansion, rows
from cobilevel.derivatives.sums import lower_matrix_sums
from problems import curved_problem


@pytest.fixture(scope="module")
def setting():
    """A problem of pytrees that is far from quadratic, its expansions, and a point."""
    problem, samples = curved_problem()
    reduced = cb.reduce(problem, cb.Chebyshev(4), samples).ordinary()
    rng, made = np.random.default_rng(3), Expansions(reduced)
    return reduced, made, made.start + 0.2, 0.3 * rng.normal(size=(made.functions, made.dy))


def whole(reduced):
    """The reduced objectives as functions of a vector and a table."""
    to_x = jax.flatten_util.ravel_pytree(reduced.x0)[1]
    unravel = jax.flatten_util.ravel_pytree(jax.tree.map(lambda a: a[0], reduced.W0))[1]
    lower = lambda x, W: reduced.lower(to_x(x), jax.vmap(unravel)(W), reduced.lower_pool)
    upper = lambda x, W: reduced.upper(to_x(x), jax.vmap(unravel)(W), reduced.upper_pool)
    return upper, lower


def agree(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.max(np.abs(b)))


def test_sums_of_row_derivatives_are_derivatives_of_the_sum(setting):
    reduced, made, x, W = setting
    upper, lower = whole(reduced)
    found = made.lower(x, W)
    count = W.size
    agree(found.value, lower(x, W))
    agree(found.slope, jax.grad(lower, 1)(x, W))
    agree(found.hessian, jax.hessian(lower, 1)(x, W).reshape(count, count))
    agree(found.cross, jax.jacfwd(jax.grad(lower, 1), 0)(x, W))
    above = made.upper(x, W)
    agree(above.value, upper(x, W))
    agree(above.d1, jax.grad(upper, 0)(x, W))
    agree(above.d2, jax.grad(upper, 1)(x, W))


def test_products_are_those_of_the_matrices(setting):
    _, made, x, W = setting
    V = np.random.default_rng(4).normal(size=W.shape)
    found = made.lower(x, W)
    agree(made.lower_slope(x, W)[1], found.slope)
    agree(made.hessian_product(x, W, V).ravel(), found.hessian @ V.ravel())
    agree(made.cross_product(x, W, V), np.tensordot(V, found.cross, axes=2))


def test_blocks_add_up(setting, monkeypatch):
    """In blocks of seven rows, the last one filled up, on several threads: the same sums."""
    reduced, made, x, W = setting
    monkeypatch.setattr(rows, "BLOCK", 7)
    small = Expansions(reduced)
    assert len(small.lower_pools[0].rows) > 8
    for name in ("value", "slope", "hessian", "cross"):
        agree(getattr(small.lower(x, W), name), getattr(made.lower(x, W), name))
    for name in ("value", "d1", "d2"):
        agree(getattr(small.upper(x, W), name), getattr(made.upper(x, W), name))
    agree(small.lower_rows(x, W).hessian, made.lower_rows(x, W).hessian)


@pytest.mark.parametrize("basis", [cb.Chebyshev(4), cb.Partition(70)], ids=["dense", "cells"])
def test_sums_on_a_device_are_those_on_the_host(quadratic, basis, monkeypatch):
    reduced = cb.reduce(quadratic.problem, basis, quadratic.train.rows(slice(0, 400))).whitened().ordinary()
    host = Expansions(reduced)
    x, W = host.start + 0.1, np.random.default_rng(5).normal(size=(host.functions, host.dy))
    lower, upper = host.lower(x, W), host.upper(x, W)
    monkeypatch.setattr(expansion, "on_accelerator", lambda: True)
    device = Expansions(reduced)
    for name in ("value", "slope", "hessian", "cross"):
        agree(getattr(device.lower(x, W), name), getattr(lower, name))
    for name in ("value", "d1", "d2"):
        agree(getattr(device.upper(x, W), name), getattr(upper, name))


def test_other_shares_are_other_weights(setting):
    reduced, made, x, W = setting
    often = np.random.default_rng(6).integers(0, 3, len(reduced.lower_pool)).astype(float)
    weight = jnp.asarray(often / often.mean())
    pool = eqx.tree_at(lambda b: b.weight, reduced.lower_pool, weight)
    again, shared = Expansions(reduced.with_pools(pool, pool)), made.with_shares(often / often.sum())
    agree(shared.lower(x, W).hessian, again.lower(x, W).hessian)
    agree(shared.upper(x, W).d2, again.upper(x, W).d2)


def test_a_program_knows_neither_basis_nor_rows():
    """Other numbers of functions and of samples, and other numbers in the functions, compile nothing."""
    rng, seen = np.random.default_rng(0), []

    def expand(rows, functions, shift):
        lower = lambda x, y, xi, eta: (y - x * xi - shift * eta) ** 2 + jnp.cosh(y)
        problem = cb.Problem(lambda x, y, xi, eta: (y - 1) ** 2 + x**2, lower, 0.5, 0.0, cb.Interval(0.0, 1.0))
        samples = cb.Samples(rng.uniform(size=rows), rng.normal(size=rows))
        made = Expansions(cb.reduce(problem, cb.Chebyshev(functions), samples).ordinary())
        begun = len(seen)
        W = np.ones((functions, 1))
        made.lower(made.start, W), made.upper(made.start, W)
        return len(seen) - begun

    listen = lambda name, seconds, **_: seen.append(name) if name.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    assert expand(100, 3, 1.0) == 2
    assert [expand(700, 8, 2.0), expand(3000, 5, 0.0), expand(1, 1, -1.0)] == [0, 0, 0]


def test_rows_are_the_derivatives_of_one_sample(setting):
    reduced, made, x, W = setting
    found, above, pool = made.lower_rows(x, W), made.upper_rows(x, W), made.lower_pools[0]
    y, k = pool.y(W), 11
    to_x, to_y = (
        jax.flatten_util.ravel_pytree(tree)[1] for tree in (reduced.x0, jax.tree.map(lambda a: a[0], reduced.W0))
    )
    xi, eta = jax.tree.map(lambda a: a[k], (reduced.lower_pool.xi, reduced.lower_pool.eta))
    g = lambda x, y: reduced.problem.lower(to_x(x), to_y(y), xi, eta)
    f = lambda x, y: reduced.problem.upper(to_x(x), to_y(y), xi, eta)
    agree(found.slope[k], jax.grad(g, 1)(x, y[k]))
    agree(found.hessian[k], jax.hessian(g, 1)(x, y[k]))
    agree(found.cross[k], jax.jacfwd(jax.grad(g, 1), 0)(x, y[k]))
    agree(above.d1[k], jax.grad(f, 0)(x, y[k]))
    V = np.random.default_rng(7).normal(size=W.shape)
    v = pool.y(V)[k]
    bend = lambda y: jax.hessian(g, 1)(x, y) @ v - jax.grad(f, 1)(x, y)
    agree(made.bend_rows(x, W, V)[k], -jax.jacfwd(bend)(y[k]))


def test_rows_of_one_context_are_added_up_first():
    """In stretches of several lengths: the sums are those of the same rows in another order."""
    rng, sizes = np.random.default_rng(5), Sizes(2, 3)
    phi = np.repeat(rng.normal(size=(6, 4)), [5, 1, 7, 7, 2, 8], axis=0)
    packed, shares = rng.normal(size=(30, sizes.lower)), rng.uniform(size=30)
    hessian = sizes.split_lower(packed).hessian
    hessian += np.swapaxes(hessian, 1, 2).copy()
    order = rng.permutation(30)
    together, apart = (lower_matrix_sums(phi[k], shares[k], packed[k], sizes) for k in (slice(None), order))
    for a, b in zip(together, apart, strict=True):
        agree(a, b)
