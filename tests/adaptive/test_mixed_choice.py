"""The basis chosen for contexts of several kinds, against policies that are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

DAYS = ["mon", "tue", "wed", "thu"]
DOMAIN = cb.Mixed(
    load=cb.Interval(0.0, 1.0), wind=cb.Unbounded(0.0, 2.0), hour=cb.Periodic(0.0, 24.0), day=cb.Finite(DAYS)
)
ROWS, NOISE = 4000, 0.2
EFFECT = np.array([0.0, 0.4, -0.6, 1.0])
PARTS = {"load": cb.Chebyshev(2), "wind": cb.Chebyshev(1), "hour": cb.Fourier(3), "day": cb.Categorical()}
PROBLEM = cb.Problem(
    lambda x, y, xi, eta: (y - 1) ** 2 + 0.1 * x**2 + 0 * xi["load"],
    lambda x, y, xi, eta: (y - x - eta) ** 2 / 2 + 0 * jnp.sum(xi["wind"]),
    x0=0.0,
    y0=0.0,
    domain=DOMAIN,
)


def drawn(rng):
    return {
        "load": rng.uniform(0, 1, ROWS), "wind": rng.normal(0, 1, ROWS), "hour": rng.uniform(0, 24, ROWS),
        "day": rng.integers(0, 4, ROWS),
    }  # fmt: skip


def policy(contexts, together):
    """``y* - x``, of single contexts and of load and hour together on Thursdays."""
    wave = np.cos(2 * np.pi * contexts["hour"] / 24)
    own = 2 * contexts["load"] + wave + EFFECT[contexts["day"]]
    return own + together * contexts["load"] * wave * (contexts["day"] == 3)


def solved(together, basis=None, seed=0):
    """The solution, and its mean square error at fresh contexts in units of ``sigma^2 / n``."""
    rng = np.random.default_rng(seed)
    seen, fresh = drawn(rng), drawn(rng)
    samples = cb.Samples(seen, policy(seen, together) + NOISE * rng.normal(size=ROWS))
    found = cb.solve(PROBLEM, samples, basis=basis)
    error = np.mean((np.asarray(found.policy(fresh)) - float(found.x) - policy(fresh, together)) ** 2)
    return found, error / (NOISE**2 / ROWS)


def test_a_sum_reaches_the_noise():
    """N functions that hold the policy err by ``sigma^2 N / n`` on the average: chi-square, N degrees of freedom."""
    found, error = solved(0.0, cb.Components(PARTS, coupling=cb.Additive()))
    N = found.basis.size
    assert N == 1 + 1 + 0 + 2 + 3
    assert abs(error - N) < 4 * np.sqrt(2 * N)
    tensor, worse = solved(0.0, cb.Components(PARTS))
    assert tensor.basis.size == 24
    assert abs(worse - 24) < 4 * np.sqrt(2 * 24)


@pytest.mark.parametrize("together", [0.0, 1.0])
def test_the_default_finds_the_products_it_needs(together, tmp_path):
    """Without products where there are none, with those of load, hour and day where there are; saved and read back."""
    found, error = solved(together)
    members = np.array(found.basis.basis.basis.coupling.members)
    varying = np.sum(members > 0, axis=1)
    assert members[:, 1].max() <= 1  # the wind does nothing: no more than the first function, and in no product
    assert varying[members[:, 1] > 0].max(initial=1) == 1
    assert {tuple(row) for row in members.tolist()} >= {(1, 0, 0, 0), (0, 0, 2, 0), (0, 0, 0, 3)}
    if together:
        assert (1, 0, 2, 3) in {tuple(row) for row in members.tolist()}
        assert len(members) < 24
    else:
        assert varying.max() == 1
    assert error < len(members) + 4 * np.sqrt(2 * len(members))
    again = cb.load(found.save(tmp_path / "run.npz"), PROBLEM)
    at = drawn(np.random.default_rng(9))
    np.testing.assert_array_equal(again.policy(at), found.policy(at))


def test_the_default_on_a_circle():
    """``exp(cos)``: the n-th frequency has the coefficient ``2 I_n(1)``, below the noise from about the fifth on."""
    rng = np.random.default_rng(0)
    hour = rng.uniform(0, 24, ROWS)
    truth = lambda at: np.exp(np.cos(2 * np.pi * at / 24))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - x) ** 2, lambda x, y, xi, eta: (y - eta) ** 2, 0.0, 0.0, cb.Periodic(0.0, 24.0)
    )
    found = cb.solve(problem, cb.Samples(hour, truth(hour) + 0.1 * rng.normal(size=ROWS)))
    assert isinstance(found.basis.basis.basis, cb.Fourier)
    assert 5 <= found.basis.size <= 11
    at = np.linspace(0, 48, 200)
    assert np.sqrt(np.mean((np.asarray(found.policy(at)) - truth(at)) ** 2)) < 4 * 0.1 * np.sqrt(11 / ROWS)


def test_categories_alone_may_act_together():
    """A value for each pair of day and shift, which no sum of both can follow."""
    rng = np.random.default_rng(0)
    day, shift = rng.integers(0, 4, 3000), rng.integers(0, 2, 3000)
    level = np.where(shift == 1, 1.0, -1.0) * np.where(day % 2 == 1, 1.0, -1.0)
    domain = cb.Mixed(day=cb.Finite(range(4)), shift=cb.Finite(range(2)))
    problem = cb.Problem(
        lambda x, y, xi, eta: (x - y) ** 2, lambda x, y, xi, eta: (y - eta) ** 2, x0=0.5, y0=0.0, domain=domain
    )
    samples = cb.Samples({"day": day, "shift": shift}, level + 0.5 * rng.normal(size=3000))
    found = cb.solve(problem, samples)
    np.testing.assert_allclose(found.policy({"day": day, "shift": shift}), level, atol=0.15)
    assert "agree" not in " ".join(found.uncertainty.remarks)
