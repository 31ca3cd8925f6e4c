"""What every kind of data must hold: the same problem has the same answer, however its data are handed over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.ground.keys import as_key, split_key
from cobilevel.study import Study
from problems import LINE, NOISE, ROWS, XI, joint, scalar

BASIS = cb.Chebyshev(3)
FEW, LITTLE = XI[:16], 0.1 * NOISE[:32]  # as many pairs as there are joint samples


def draw(key, size):
    for_xi, for_eta = jax.random.split(key)
    return cb.Samples(jax.random.uniform(for_xi, (size,)), 0.1 * jax.random.normal(for_eta, (size,)))


def paired(weights=None):
    return cb.Samples(np.repeat(FEW, 32), np.tile(LITTLE, 16), weights)


KINDS = {
    "samples": joint(),
    "weighted": cb.Samples(XI, 0.1 * NOISE, np.linspace(0.5, 2.0, ROWS)),
    "levels": cb.Levels(upper=joint(), lower=joint(0.2)),
    "product": cb.Product(FEW, LITTLE),
    "distribution": cb.Product(cb.Uniform(LINE), LITTLE, nodes=16),
    "both": cb.Levels(upper=joint(), lower=cb.Product(FEW, LITTLE)),
}
EVERY = KINDS | {"stream": cb.Stream(draw)}


def pairs(level):
    """A level as joint samples: contexts, noise and weights, in plain NumPy."""
    seen = level.contexts()
    weights = np.ones(len(seen)) if seen.weights is None else np.asarray(seen.weights)
    if not level.crossed:
        return np.asarray(seen.xi), np.asarray(level.eta), weights
    each = lambda a: np.repeat(np.asarray(a), level.count)
    return each(seen.xi), np.tile(np.asarray(level.eta), len(seen)), each(weights)


def reference(data):
    """The optimum of ``(y - 1)^2 + x^2 / 10`` over ``y`` fitted to ``x xi + eta`` by polynomials of degree 2."""
    (xi, eta, w), (upper_xi, _, v) = pairs(data.lower), pairs(data.upper)
    phi, there = np.vander(xi, 3), np.vander(upper_xi, 3)
    root = np.sqrt(w)[:, None]
    fit = lambda target: there @ np.linalg.lstsq(root * phi, root[:, 0] * target, rcond=None)[0]
    slope, offset = fit(xi), fit(eta)
    v = v / v.sum()
    return (v @ (slope * (1 - offset))) / (v @ slope**2 + 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_has_its_own_optimum(kind):
    data = KINDS[kind]
    solution = cb.solve(scalar(x0=1.0), data, basis=BASIS)
    assert solution.converged, solution.result
    np.testing.assert_allclose(solution.x, reference(data), rtol=1e-8)


def test_the_same_data_in_other_clothes():
    """All pairs written out are a product; two levels with the same samples are those samples; a constant weight is
    none."""
    solve = lambda data: cb.solve(scalar(x0=1.0), data, basis=BASIS)
    crossed, usual = solve(KINDS["product"]), solve(KINDS["samples"])
    for same, other in (
        (crossed, paired()),
        (crossed, paired(np.full(ROWS, 3.0))),
        (usual, cb.Levels(upper=joint(), lower=joint())),
        (usual, cb.Samples(XI, 0.1 * NOISE, np.full(ROWS, 0.25))),
    ):
        found = solve(other)
        np.testing.assert_allclose(found.x, same.x, rtol=1e-9)
        np.testing.assert_allclose(found.policy(FEW), same.policy(FEW), rtol=1e-7)


def test_a_stream_is_its_draws():
    key = split_key(as_key(0), 3)[0]
    drawn = Study.of(scalar(x0=1.0), EVERY["stream"]).finite(key).lower
    streamed, fixed = (cb.solve(scalar(x0=1.0), data, basis=BASIS) for data in (EVERY["stream"], drawn))
    np.testing.assert_array_equal(streamed.x, fixed.x)


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_data_can_be_drawn_from(kind):
    """Batches of the size asked for, each level's own, and with a mean that is that of the data."""
    reduced = cb.reduce(scalar(x0=1.0), BASIS, EVERY[kind])
    upper, lower = reduced.draw(0, 4000)
    assert (len(upper), len(lower)) == (4000, 4000)
    assert reduced.upper_source.rows == (None if kind == "stream" else ROWS)
    finite = EVERY[kind].lower.finite(jax.random.key(1))
    xi, eta, weights = pairs(finite)
    for values, seen in ((xi, lower.xi), (eta, lower.eta)):
        weight = np.asarray(lower.weight)
        spread = 5 * np.std(values) * np.sqrt(np.mean(weight**2) / 4000)
        mean = weights @ values / weights.sum()
        assert abs(weight @ np.asarray(seen) / 4000 - mean) < spread + (0.05 if kind == "stream" else 0)


@pytest.mark.parametrize("kind", EVERY)
def test_a_stochastic_solver_takes_every_kind_of_data(kind):
    solution = cb.solve(scalar(x0=3.0), EVERY[kind], basis=BASIS, solver=cb.SOBA(0.1, 0.1, 0.1), steps=400)
    assert solution.result in (cb.Result.BUDGET, cb.Result.NOISE)
    best = reference(Study.of(scalar(), EVERY[kind]).finite(jax.random.key(0)))
    assert abs(float(solution.x) - best) < 0.1 * abs(3.0 - best)
    assert jnp.all(jnp.isfinite(solution.W))


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_data_is_certified(kind):
    """In one of the modes; what is impossible is refused in a sentence."""
    problem, data = scalar(x0=1.0), EVERY[kind]
    reduced = cb.reduce(problem, BASIS, data)
    solution = reduced.lift(reduced.x0, reduced.W0)
    found = cb.certify(problem, solution, data)
    assert found.mode == (
        "exact" if kind in ("product", "distribution", "both") else "enriched" if kind == "levels" else "neighbours"
    )
    assert np.isfinite(found.gradient_norm.error)
    assert found.gradient_norm.interval[0] <= found.gradient_norm <= found.gradient_norm.interval[1]
    if kind == "stream":
        with pytest.raises(TypeError, match="no samples to resample"):
            cb.bootstrap(problem, solution, data)
