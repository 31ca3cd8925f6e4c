"""Step sizes over a run: records, functions, and Optax's."""

import jax.numpy as jnp
import numpy as np
import optax

import cobilevel as cb
from cobilevel.iteration import at


def test_schedules(promotion):
    step = jnp.int32(30)
    assert at(0.5, step, float) == 0.5
    np.testing.assert_allclose(at(cb.PolynomialDecay(2.0, 0.5, 10.0), step, float), 2.0 / 2)
    np.testing.assert_allclose(at(cb.Cosine(1.0, 60.0), step, float), 0.5)
    np.testing.assert_allclose(at(cb.Cosine(1.0, 20.0, 0.1), step, float), 0.1)
    np.testing.assert_allclose(at(optax.exponential_decay(1.0, 10, 0.5), step, float), 0.125)
