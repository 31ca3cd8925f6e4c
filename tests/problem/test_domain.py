import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import domain_to_json

BOX = cb.Box([0.0, -2.0, 5.0], [1.0, 2.0, 6.0])


@pytest.mark.parametrize("domain", [cb.Interval(0.1, 10.0), cb.Interval(-3.0, -1.0), BOX], ids=repr)
def test_reference_maps_ends_exactly_and_place_inverts_it(domain):
    lo, hi = (np.asarray(end) for end in domain.bounds)
    ends = jnp.asarray(np.stack([lo, hi]) if domain.shape else np.stack([lo, hi])[:, 0])
    assert np.array_equal(domain.reference(ends), np.outer([-1.0, 1.0], np.ones(domain.dimension)))
    u = jax.random.uniform(jax.random.key(0), (50, domain.dimension), minval=-1, maxval=1)
    np.testing.assert_allclose(domain.reference(domain.place(u)), u, atol=1e-14)


def test_contains():
    assert cb.Interval(0.0, 1.0).contains(jnp.array([-0.1, 0.0, 0.5, 1.0, 1.1])).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert BOX.contains(jnp.array([[0.5, 0.0, 5.5], [0.5, 3.0, 5.5]])).tolist() == [True, False]
    finite = cb.Finite([0.1, 0.25, 7.0])
    assert finite.contains(jnp.array([0.25, 0.3, 7.0])).tolist() == [True, False, True]
    assert finite.index(jnp.array([0.25, 7.0, 0.1])).tolist() == [1, 2, 0]
    pairs = cb.Finite([[0, 0], [0, 1], [2, 1]])
    assert pairs.contains(jnp.array([[0, 1], [2, 0]])).tolist() == [True, False]


LAWS = [
    cb.Uniform(cb.Interval(0.1, 10.0)),
    cb.TruncatedNormal(cb.Interval(-1.0, 1.0), 0.3, 0.4),
    cb.Mixture((cb.TruncatedNormal(BOX, [0.2, 0.0, 5.5], [0.3, 1.0, 0.2]), cb.Uniform(BOX)), [0.7, 0.3]),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_quadrature_agrees_with_sampling(law):
    draws = np.asarray(law.sample(jax.random.key(1), 200_000))
    assert np.all(law.domain.contains(draws))
    nodes, weights = map(np.asarray, law.quadrature(24))
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    for power in (1, 2, 3):
        seen, exact = (np.asarray(law.domain.coordinates(xi)) ** power for xi in (draws, nodes))
        error = 5 * seen.std(axis=0) / np.sqrt(len(draws))
        assert np.all(np.abs(seen.mean(axis=0) - weights @ exact) < error)


def test_strings_and_numbers_are_not_one_list_of_values():
    with pytest.raises(TypeError, match="got both"):
        cb.Finite(["a", 1])


def test_contexts_that_crowd_in_a_part_of_their_interval_are_said(promotion):
    size = np.random.default_rng(0).lognormal(sigma=1.5, size=400)
    spread = lambda domain, xi: (
        cb.solve(
            cb.Problem(lambda x, y, xi, eta: (x - y) ** 2, lambda x, y, xi, eta: (y - 1.0) ** 2, 0.0, 0.0, domain),
            cb.Samples(xi),
            basis=cb.Chebyshev(2),
        ).choices
    )
    assert "half of the contexts lie within" in spread(cb.Interval(0.0, size.max()), size)["contexts"]
    assert "contexts" not in spread(cb.Unbounded.fitted(size), size)
    assert "contexts" not in spread(cb.Interval(np.log(size.min()), np.log(size.max())), np.log(size))
    mixed = cb.Mixed(size=cb.Interval(0.0, size.max()), hour=cb.Periodic(0, 24))
    said = spread(mixed, {"size": size, "hour": np.linspace(0, 24, 400)})["contexts"]
    assert said.startswith("half of the values of size lie within")


def test_breaks_are_between_the_ends_and_ascending():
    assert repr(cb.Interval(0, 24, breaks=(7, 10))) == "Interval(0.0, 24.0, breaks=(7.0, 10.0))"
    assert domain_to_json(cb.Interval(0, 24)) == {"name": "Interval", "lo": 0.0, "hi": 24.0}
    assert domain_to_json(cb.Interval(0, 24, breaks=[7]))["breaks"] == [7.0]
    with pytest.raises(ValueError, match="between lo"):
        cb.Interval(0, 24, breaks=(0, 10))
    with pytest.raises(ValueError, match="ascending"):
        cb.Interval(0, 24, breaks=(10, 7))
    with pytest.raises(TypeError, match="tuple of numbers"):
        cb.Interval(0, 24, breaks=7)
    with pytest.raises(TypeError, match="real numbers"):
        cb.Interval(0, 24, breaks=("7",))
