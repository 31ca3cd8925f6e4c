"""How far ``x`` would move had other samples been drawn: against samples that were."""

import jax
import numpy as np
import pytest

import cobilevel as cb


def test_bootstrap_against_fresh_samples():
    one = cb.gallery.quadratic(0, dx=2, dy=2, train=500)
    basis = cb.Chebyshev(4)
    solution = cb.solve(one.problem, one.train, basis=basis)
    spread = cb.bootstrap(one.problem, solution, one.train, 60)

    @jax.jit
    def draw(key):
        for_context, for_noise = jax.random.split(key)
        xi = one.truth.contexts.sample(for_context, 500)
        single = lambda k, c: jax.tree.map(lambda v: v[0], one.problem.conditional(k, c, 1))
        return xi, jax.vmap(single)(jax.random.split(for_noise, 500), xi)

    fresh = []
    for seed in range(60):
        data = cb.Samples(*draw(jax.random.key(1000 + seed)))
        fresh.append(one.truth.sample_optimum(basis.fit(one.problem.domain, data.xi), data, data)[0])
    assert spread.failed == 0
    assert spread.error == pytest.approx(np.std(fresh, axis=0), rel=0.5)
    low, high = spread.interval
    assert np.all(low < np.asarray(solution.x))
    assert np.all(np.asarray(solution.x) < high)
