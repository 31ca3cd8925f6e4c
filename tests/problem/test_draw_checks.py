"""What streams and conditional samplers draw comes from their key: what does not is refused, constants pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.problem import check_conditional

RNG = np.random.default_rng(0)
XI = np.linspace(0.1, 0.8, 8)
ETA = RNG.normal(size=8)
KEPT = jnp.asarray(RNG.normal(size=500))


def normal(key, size):
    return jax.random.normal(key, (size,))


def stream(eta=normal, xi=lambda key, size: jax.random.uniform(key, (size,))):
    return cb.Stream(lambda key, size: cb.Samples(xi(key, size), eta(key, size)))


NOT_FROM_THE_KEY = {
    "a generator outside": lambda key, size: RNG.normal(size=size),
    "the global one": lambda key, size: np.random.normal(size=size),
    "a number outside": lambda key, size: normal(key, size) * np.random.normal(),
    "in a compiled part": lambda key, size: jax.jit(lambda k: normal(k, size) + RNG.normal())(key),
    "a seed inside": lambda key, size: np.random.default_rng(3).normal(size=size),
    "a key inside": lambda key, size: normal(jax.random.key(5), size),
    "always the first rows": lambda key, size: KEPT[:size],
}


@pytest.mark.parametrize("case", NOT_FROM_THE_KEY)
def test_a_stream_whose_numbers_repeat(case):
    with pytest.raises(ValueError, match=r"Stream: draw\(key, size\).*jax\.random and the key"):
        stream(NOT_FROM_THE_KEY[case])
    with pytest.raises(ValueError, match=r"Stream: draw\(key, size\).*jax\.random and the key"):
        stream(xi=NOT_FROM_THE_KEY[case])


@pytest.mark.parametrize(
    "eta",
    [
        lambda key, size: jnp.zeros(size),
        lambda key, size: np.full((size, 2), 3.0),
        lambda key, size: None,
        lambda key, size: {"kept": KEPT[jax.random.randint(key, (size,), 0, len(KEPT))], "one": jnp.ones(size)},
        lambda key, size: jnp.linspace(0.0, 1.0, size),  # the same grid in each batch is a design
        lambda key, size: jnp.arange(size) % 52,  # and so is each week in its turn
        lambda key, size: jax.random.permutation(key, np.random.default_rng(3).normal(size=size)),
    ],
)
def test_a_stream_with_constants_and_kept_data_passes(eta):
    stream(eta)


def conditional(draw, eta=ETA):
    check_conditional(draw, XI, eta)


REFUSED = {
    "fails": (lambda key, xi, size: 1 / 0, ValueError, "fails.*ZeroDivisionError.*leave it out"),
    "python branches": (lambda key, xi, size: normal(key, size) if xi > 0 else 0.0, ValueError, r"use jnp\.where"),
    "no rows": (lambda key, xi, size: normal(key, 1)[0], ValueError, r"eta of shape \(64,\), .*got \(\)"),
    "too wide": (lambda key, xi, size: jax.random.normal(key, (size, 2)), ValueError, r"got \(64, 2\)"),
    "a dict": (lambda key, xi, size: {"a": normal(key, size)}, TypeError, "like the eta of the samples"),
    "nothing": (lambda key, xi, size: None, TypeError, "like the eta of the samples"),
    "whole numbers": (lambda key, xi, size: jax.random.randint(key, (size,), 0, 9), TypeError, r"int.*float.*astype"),
    "NaN": (lambda key, xi, size: normal(key, size) * jnp.log(xi - 0.4), ValueError, "NaN or infinity in eta at xi"),
    "from NumPy": (lambda key, xi, size: RNG.normal(size=size), ValueError, "it uses randomness from elsewhere"),
    "a key inside": (lambda key, xi, size: normal(jax.random.key(5), size), ValueError, "does not use its key"),
    "zeros": (lambda key, xi, size: jnp.zeros(size), ValueError, "does not use its key for eta: all draws at xi"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_conditional_sampler_that_is_none(case):
    draw, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        conditional(draw)


def test_a_conditional_sampler_of_known_noise_passes():
    conditional(lambda key, xi, size: xi + normal(key, size))
    conditional(lambda key, xi, size: jnp.full((size,), xi**2), XI**2)  # the noise is known, given the context
    both = {"known": XI**2, "drawn": ETA}
    conditional(lambda key, xi, size: {"known": jnp.full((size,), xi**2), "drawn": normal(key, size)}, both)
