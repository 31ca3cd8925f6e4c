"""Products of neighbouring samples: what a basis misses, against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference import pairs
from cobilevel.inference.pairs import neighbours_of

AROUND = cb.Interval(-1.0, 1.0)


class Wave:
    """A lower level whose policy oscillates, and an upper one that pulls along: Chebyshev(5) sees neither."""

    def __init__(self, frequency, rows, seed=0):
        rng = np.random.default_rng(seed)
        self.frequency = frequency
        self.samples = cb.Samples(rng.uniform(-1, 1, rows), 0.3 * rng.normal(size=rows))
        self.problem = cb.Problem(self.upper, self.lower, 0.3, 0.0, AROUND)

    def upper(self, x, y, xi, eta):
        return -jnp.cos(self.frequency * xi) * y + x**2

    def lower(self, x, y, xi, eta):
        return (y - x * jnp.cos(self.frequency * xi) - 1 - xi - eta) ** 2 / 2

    def gradient(self, x):
        return 2 * x - 0.5 - np.sin(2 * self.frequency) / (4 * self.frequency)


@pytest.mark.parametrize(("frequency", "rows"), [(40.0, 2000), (100.0, 2000)])
def test_structure_a_basis_cannot_see_is_not_certified(frequency, rows):
    wave = Wave(frequency, rows)
    solution = cb.solve(wave.problem, wave.samples, basis=cb.Chebyshev(5))
    found = cb.certify(wave.problem, solution, Wave(frequency, rows, 1).samples)
    assert found.mode == "neighbours"
    low, high = found.gradient_norm.interval
    assert low < abs(wave.gradient(float(solution.x))) < high
    assert low > 0.4
    assert found.stationary(0.1) is False
    assert found.regret.basis.low > 0.03
    assert found.policy_error.low == 0  # x is near zero, where the policy does not oscillate


def test_nothing_is_promised_where_neighbours_cannot_tell():
    rng = np.random.default_rng(0)
    xi = rng.uniform(-1, 1, (300, 6))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - x) ** 2, lambda x, y, xi, eta: (y - jnp.sum(jnp.sin(3 * xi)) - eta) ** 2, 0.0, 0.0,
        cb.Box([-1.0] * 6, [1.0] * 6),
    )  # fmt: skip
    samples = cb.Samples(xi, rng.normal(size=300))
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(2, index=cb.TotalDegree()))
    found = cb.certify(problem, solution, samples)
    assert found.unresolved
    assert found.stationary(1e9) is None
    assert "nothing is promised" in repr(found)


def rings(u, own, dimension, width):
    """Weights of all pairs over the near ring and the wide one, by a double loop."""
    n, order = len(u), np.argsort(np.argsort(u[:, 0]))
    far = np.abs(order[:, None] - order[None]) if dimension == 1 else np.linalg.norm(u[:, None] - u[None], axis=2)
    found = []
    for k in (width, (2 if dimension == 1 else 4) * width):
        near = far <= (k if dimension == 1 else np.sort(far, axis=1)[:, k, None])
        near = (near & ~np.eye(n, dtype=bool)) / (near @ own - own)[:, None]
        found.append((near + near.T) / 2 * np.outer(own, own) / own.sum())
    return found


def shares(near, left, right):
    """What each sample adds to a mean over pairs."""
    return near.shares(*(near.summand(near.arranged(table)) for table in (left, right)))


@pytest.mark.parametrize(("dimension", "weighted"), [(1, True), (1, False), (2, True)])
def test_means_over_pairs_are_those_of_a_double_loop(dimension, weighted):
    rng = np.random.default_rng(0)
    u, own = rng.uniform(-1, 1, (200, dimension)), rng.uniform(0.5, 1.5, 200)
    own = own if weighted else np.full(200, 1.0)
    left, right = u[:, :1] + rng.normal(size=(200, 2)), u[:, :1] + rng.normal(size=(200, 2))
    domain = AROUND if dimension == 1 else cb.Box([-1.0] * 2, [1.0] * 2)
    near = neighbours_of(domain, u, own, 1)[-1]
    both = rings(u, own, dimension, near.width)
    square = [np.sum(w * np.sum((u[:, None] - u[None]) ** 2, axis=2)) for w in both]
    weight = (square[1] * both[0] - square[0] * both[1]) / (square[1] - square[0])
    mean = np.sum(weight * (left @ right.T))
    found = shares(near, left, right).sum()
    assert found == pytest.approx(mean, rel=0.01)  # shares of the rings are measured on some of the pairs
    assert shares(near, np.ones((200, 1)), np.ones((200, 1))).sum() == pytest.approx(1)


def test_sums_over_windows_are_those_of_a_double_loop():
    """At several widths, one after the other: means over each ring, combined by its share."""
    rng = np.random.default_rng(0)
    u, own, table = np.sort(rng.uniform(-1, 1, 500))[:, None], rng.uniform(0.5, 1.5, 500), rng.normal(size=(500, 2))
    apart = np.abs(np.subtract.outer(np.arange(500), np.arange(500)))
    widths = neighbours_of(AROUND, u, own, 1)
    assert [near.width for near in widths] == [1, 2, 4]
    summand = widths[0].summand(table)
    for near in widths:
        means = []
        for k in (near.width, 2 * near.width):
            weights = ((apart <= k) & (apart > 0)) * own
            means.append((weights / weights.sum(axis=1, keepdims=True) @ table).ravel())
        found = near.sums(summand).ravel()
        share = (found - means[1]) @ (means[0] - means[1]) / np.sum((means[0] - means[1]) ** 2)
        np.testing.assert_allclose(found, share * means[0] + (1 - share) * means[1], atol=1e-12)


@pytest.mark.parametrize(("dimension", "worst"), [(1, 1e-4), (2, 2e-3), (3, 2e-2)])
def test_the_distance_of_neighbours_does_not_bias_a_mean_square(dimension, worst):
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (2000, dimension))
    table = np.sin(3 * u[:, :1] + 1)
    square = np.mean(table**2)
    domain = AROUND if dimension == 1 else cb.Box([-1.0] * dimension, [1.0] * dimension)
    near = neighbours_of(domain, u, np.ones(2000), 10)[-1]
    plain = np.sum(rings(u, np.ones(2000), dimension, near.width)[0] * (table @ table.T))
    found = shares(near, table, table).sum()
    assert abs(found - square) < worst * square
    assert abs(found - square) < abs(plain - square) / 4


def test_windows_of_many_samples_grow_by_four(monkeypatch):
    u = np.linspace(0, 1, 2000)[:, None]
    widths = lambda: [near.width for near in neighbours_of(AROUND, u, np.ones(2000), 1)]
    few = widths()
    monkeypatch.setattr(pairs, "LOOK_ROWS", 1000)
    assert widths() == [few[0], *few[1::2]]


def test_groups_are_weighted_by_their_rows():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 5, 60).astype(float)
    left, right = rng.normal(size=(60, 1)), rng.normal(size=(60, 1))
    near = neighbours_of(cb.Finite(np.arange(5.0)), group[:, None], np.ones(60), 5)[0]
    total = 0.0
    for value in range(5):
        i = group == value
        both = np.outer(left[i, 0], right[i, 0])
        total += i.sum() / 60 * (both.sum() - np.trace(both)) / (i.sum() * (i.sum() - 1))
    assert shares(near, left, right).sum() == pytest.approx(total)


def test_the_policy_error_stops_where_the_slope_does():
    """Beyond a cap the slope is 21 times as steep: Newton steps from before it would lead far across."""
    steep, cap = 20.0, 0.5
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 1) ** 2 / 2 + x**2 / 2,
        lambda x, y, xi, eta: (y - 2 * xi - x - eta) ** 2 / 2 + steep * jnp.maximum(y - cap, 0.0) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=AROUND,
    )
    rng = np.random.default_rng(0)
    draw = lambda rows: cb.Samples(rng.uniform(-1, 1, rows), 0.3 * rng.normal(size=rows))
    solution = cb.solve(problem, draw(2000), cb.Chebyshev(8))
    xi = np.linspace(-1, 1, 2001)
    mean = 2 * xi + solution.x
    best = np.where(mean < cap, mean, (mean + steep * cap) / (1 + steep))
    low, high = cb.certify(problem, solution, draw(4000)).policy_error.interval
    assert low <= np.mean((solution.policy(xi) - best) ** 2) <= high
