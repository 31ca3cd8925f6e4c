"""What ``diagnose`` says of contexts of several kinds."""

import numpy as np
import pytest

import cobilevel as cb

DOMAIN = cb.Mixed(weather=cb.Interval(0.0, 1.0), income=cb.Unbounded(0.0, 2.0), day=cb.Finite(["mon", "tue", "wed"]))
RNG = np.random.default_rng(0)
COLUMNS = {"weather": RNG.uniform(0, 1, 100), "income": RNG.normal(size=100), "day": RNG.choice(["mon", "tue"], 100)}
PROBLEM = cb.Problem(
    lambda x, y, xi, eta: (y - x) ** 2, lambda x, y, xi, eta: (y - x - eta) ** 2, x0=0.0, y0=0.0, domain=DOMAIN
)


def test_too_many_functions_are_named_with_fewer_that_fit():
    """48 functions (36 of categories seen) on 100 samples; what is advised has no more than these support."""
    samples = cb.Samples(COLUMNS, RNG.normal(size=100))
    found = cb.diagnose(PROBLEM, cb.Chebyshev(4), samples)
    assert found.functions == 4 * 4 * 3
    assert np.isfinite(found.M_Phi)
    assert found.rank == 4 * 4 * 2
    advice = next(one for one in found.advice if one.samples)
    fewer = cb.reduce(PROBLEM, advice.basis, samples)
    assert fewer.basis.size <= 100 // 8
    for asked in (found.plot, lambda: found.predict(0.1)):  # said to have finite contexts
        with pytest.raises(ValueError, match="by degree is known only on an interval or a box"):
            asked()
