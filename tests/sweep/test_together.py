"""Many solves as one program: the answers of one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.answer import Job
from cobilevel.iteration import Result, advance
from cobilevel.sweep import solve_all, stacked


@pytest.fixture(scope="module")
def bundle():
    """Three small instances, five trials with steps of their own."""
    table = [cb.gallery.quadratic(seed, dx=2, dy=1, train=64, test=10, condition=2.0) for seed in range(3)]
    bare = [cb.Problem(i.problem.upper, i.problem.lower, i.problem.x0, i.problem.y0, i.problem.domain) for i in table]
    reduced = [cb.reduce(problem, cb.Chebyshev(3), i.train) for problem, i in zip(bare, table, strict=True)]
    settings = {"inner": jnp.full(5, 0.2), "outer": jnp.array([0.1, 0.1, 0.1, 0.05, 1e9])}
    trials = (jnp.array([0, 1, 2, 0, 1]), jax.random.split(jax.random.key(0), 5), settings)
    solver = cb.StocBiO(1.0, 1.0, neumann=0.2, terms=3, inner_steps=2, batch=16)
    return reduced, stacked(reduced), trials, solver


@pytest.fixture(scope="module")
def alone(bundle):
    """The last states of the runs one by one."""
    reduced, _, (instances, keys, settings), _ = bundle

    def run(k):
        own = {name: float(values[k]) for name, values in settings.items()}
        one = cb.StocBiO(**own, neumann=0.2, terms=3, inner_steps=2, batch=16)
        bare = reduced[int(instances[k])].ordinary()
        return advance(one, bare, one.init(bare, keys[k], jnp.int32(40)), 40)[0]

    return [run(k) for k in range(len(instances))]


@pytest.mark.parametrize("how", [(2, 1, 2), (2, 2, 1)], ids=lambda how: f"{how[1]}-of-{how[0]}")
def test_a_bundle_is_its_runs_one_by_one(bundle, alone, how):
    """One after another or side by side (the last block is filled up), the trial that diverges too."""
    _, pool, trials, solver = bundle
    found, _, _ = solve_all(solver, pool, *trials, 40, 20, *how)
    for k, state in enumerate(alone):
        assert int(state.result) == int(found.result[k])
        np.testing.assert_allclose(found.x[k], state.x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.average.W[k], state.average.W, rtol=1e-10, atol=1e-12)
    assert list(np.asarray(found.result) == Result.DIVERGED.code) == [False] * 4 + [True]
    assert Result.of(int(found.result[0])) is Result.BUDGET


@pytest.mark.thorough
def test_a_solve_is_what_the_sweep_does(bundle):
    """``Job`` on one problem, and the same trial in a bundle."""
    reduced, pool, _, solver = bundle
    one = cb.StocBiO(0.2, 0.1, neumann=0.2, terms=3, inner_steps=2, batch=16)
    key = jax.random.key(7)
    alone = Job(None, one, key, 40).on(reduced[1])
    settings = {"inner": jnp.full(1, 0.2), "outer": jnp.full(1, 0.1)}
    found, _, _ = solve_all(solver, pool, jnp.array([1]), key[None], settings, 40, 20, 1, 1, 1)
    np.testing.assert_allclose(found.average.x[0], alone.x, rtol=1e-10)
