"""Products of neighbouring samples: what a basis misses, against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference.neighbours import neighbours_of

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


@pytest.mark.parametrize("dimension", [1, 2])
def test_means_over_pairs_are_those_of_a_double_loop(dimension):
    rng = np.random.default_rng(0)
    u, own = rng.uniform(-1, 1, (60, dimension)), rng.uniform(0.5, 1.5, 60)
    left, right = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    domain = AROUND if dimension == 1 else cb.Box([-1.0] * 2, [1.0] * 2)
    near = neighbours_of(domain, u, u, own, 1)[0]
    distance = np.linalg.norm(u[:, None] - u[None], axis=2) + 9.0 * np.eye(60)
    if dimension == 1:
        rank = np.argsort(np.argsort(u[:, 0]))
        pairs = np.abs(rank[:, None] - rank[None]) == 1
    else:
        pairs = distance == distance.min(axis=1, keepdims=True)
        pairs = pairs | pairs.T
    weight = pairs * np.outer(own, own)
    mean = np.sum(weight * (left @ right.T)) / weight.sum()
    assert near.shares(near.arranged(left), near.arranged(right)).sum() == pytest.approx(mean)


def test_groups_are_weighted_by_their_rows():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 5, 60).astype(float)
    left, right = rng.normal(size=(60, 1)), rng.normal(size=(60, 1))
    near = neighbours_of(cb.Finite(np.arange(5.0)), group, group[:, None], np.ones(60), 5)[0]
    total = 0.0
    for value in range(5):
        i = group == value
        both = np.outer(left[i, 0], right[i, 0])
        total += i.sum() / 60 * (both.sum() - np.trace(both)) / (i.sum() * (i.sum() - 1))
    assert near.shares(left, right).sum() == pytest.approx(total)
