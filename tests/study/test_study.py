"""A study: problem and data checked against each other once, in one precision, and changed without losing what they
share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.study import Study
from problems import LINE, NOISE, ROWS, XI, Aim, Line, joint, scalar

KEY = jax.random.key(0)
STREAM = cb.Stream(lambda key, size: cb.Samples(jax.random.uniform(key, (size,)), jax.random.normal(key, (size,))))


def test_one_precision_for_all():
    single = cb.Samples(XI.astype(np.float32), NOISE.astype(np.float32))
    quiet = cb.Problem(Aim(), Line(), np.float32(0), np.float32(0), LINE)
    for problem, samples, dtype in (
        (scalar(), joint(), np.float64),
        (quiet, single, np.float32),
        (scalar(), single, np.float64),
        (quiet, joint(), np.float64),
    ):
        study = Study.of(problem, samples)
        assert study.dtype == dtype
        assert study.eps == np.finfo(dtype).eps
        parts = jax.tree.leaves((study.problem.x0, study.problem.y0, study.problem.x_bounds))
        assert {leaf.dtype for leaf in parts} == {np.dtype(dtype)}


def test_levels_shared_or_not():
    samples = joint()
    shared = Study.of(scalar(), samples)
    assert shared.shared
    assert shared.upper is shared.lower
    apart = Study.of(scalar(), cb.Levels(upper=joint(), lower=samples))
    assert not apart.shared
    assert (shared.endless, apart.endless) == (False, False)
    assert Study.of(scalar(), cb.Levels(upper=STREAM, lower=samples)).endless
    idle = cb.Samples(XI, NOISE, np.where(XI < 0.5, 1.0, 0.0))
    pruned = Study.of(scalar(), idle)
    assert pruned.shared
    assert pruned.lower.count == np.sum(XI < 0.5)


def test_thinned_finite_and_moved():
    study = Study.of(scalar(), joint())
    part = study.thinned(KEY, 30)
    assert part.shared
    assert part.lower.count == ROWS // 4
    assert Study.of(scalar(), joint(rows=60)).thinned(KEY, 30).lower.count == 30
    assert study.finite(KEY) is study
    drawn = Study.of(scalar(), STREAM).finite(KEY)
    assert drawn.shared
    assert (drawn.endless, drawn.lower.count) == (False, 10_000)
    both = Study.of(scalar(), cb.Levels(upper=STREAM, lower=joint())).finite(KEY)
    assert (both.shared, both.upper.count, both.lower.count) == (False, 10_000, ROWS)
    assert float(study.at(3.0).problem.x0) == 3.0
    other = study.on(joint(rows=5))
    assert other.upper is other.lower
    assert other.problem is study.problem


def test_noise_that_must_be_averaged_out():
    study = Study.of(scalar(), joint())
    assert (study.lower_noise, study.noisy, study.upper_noise) == (True, True, True)
    quiet = Study.of(scalar(), cb.Samples(XI))
    assert (quiet.lower_noise, quiet.noisy, quiet.upper_noise) == (False, False, False)
    crossed = Study.of(scalar(), cb.Product(XI[:5], NOISE[:7]))
    assert (crossed.lower_noise, crossed.noisy) == (True, False)


def test_lower_noise_is_found_by_tracing():
    eta = cb.Samples(XI[:40], np.zeros(40))
    depends = lambda problem, samples: Study.of(problem, samples).lower_noise
    assert depends(scalar(), eta)
    assert not depends(scalar(lambda x, y, xi, eta: (y - x) ** 2), eta)
    # used, but not for the result
    used = lambda x, y, xi, eta: (y - x) ** 2 + jnp.where(eta > 0, 1.0, 2.0) * 0
    assert depends(scalar(used), eta)  # conservative
    stated = scalar(used, lower_noise=False)
    assert not depends(stated, cb.Samples(XI[:40], XI[:40] - 0.5))


def test_finite_values_too_close_for_the_precision():
    domain = cb.Finite([1.0, 1.0 + 1e-15, 1e6])
    with pytest.raises(ValueError, match="precision"):
        cb.solve(scalar(domain=domain), cb.Samples(np.array([1.0, 1e6] * 5), np.zeros(10)))
