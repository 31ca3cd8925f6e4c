"""What diagnose says in many dimensions, before anything is solved: counts, shares and advice that can be used."""

from math import comb

import numpy as np
import pytest

import cobilevel as cb

D, N = 5, 1200
RNG = np.random.default_rng(0)
U = RNG.uniform(-1, 1, (N, D))
AXIS = np.ones(D) / np.sqrt(D)
problem = cb.Problem(
    lambda x, y, xi, eta: y**2,
    lambda x, y, xi, eta: (y - x - eta) ** 2 / 2,
    0.5,
    0.0,
    cb.Box(-np.ones(D), np.ones(D)),
)


def found(values):
    samples = cb.Samples(U, values + 0.2 * RNG.normal(size=N))
    return cb.diagnose(problem, cb.Chebyshev(4, index=cb.TotalDegree()), samples, x=0.5)


def test_an_additive_policy():
    """``u_0 + u_1^2``: all of it additive, in fewer functions than all products."""
    seen = found(U[:, 0] + U[:, 1] ** 2)
    assert seen.structure.supported == N // 8
    assert seen.structure.functions["total degree"] == comb(D + seen.structure.degree, D)
    assert seen.structure.explained["additive"][0] > 0.98
    advised = [one.basis for one in seen.advice if one.basis is not None and "explained" in one.what]
    members = np.array(advised[0].basis.index.members)
    assert len(members) == seen.structure.functions["additive"]
    assert np.sum(members > 0, axis=1).max() == 1
    assert "structure" in repr(seen)


def test_a_policy_along_one_direction():
    """``sin(3 a u)`` is advised to be followed along one direction; as little of it is additive as its variance says.

    The additive part of ``Im exp(3i a u)`` has the variance ``sum_j`` of ``c^(2 D - 2)`` times that of one factor, with
    ``c = sin(s) / s`` and ``s = 3 / sqrt(D)``.
    """
    seen = found(np.sin(3 * U @ AXIS))
    s = 3 / np.sqrt(D)
    c, second = np.sin(s) / s, np.sin(2 * s) / (2 * s)
    whole = (1 - second**D) / 2
    additive = D * c ** (2 * D - 2) * (1 - second) / 2
    share, error = seen.structure.explained["additive"]
    assert abs(share - additive / whole) < max(3 * error, 0.05)
    assert seen.structure.explained["directions"][0] > 0.98
    assert seen.structure.directions.k == 1
    assert any(isinstance(getattr(one.basis, "basis", None), cb.Rotated) for one in seen.advice)


@pytest.mark.parametrize("dimension", [3])
def test_few_dimensions_have_no_such_part(dimension):
    box = cb.Box(-np.ones(dimension), np.ones(dimension))
    few = cb.Problem(problem.upper, problem.lower, 0.5, 0.0, box)
    samples = cb.Samples(U[:, :dimension], U[:, 0])
    assert cb.diagnose(few, cb.Chebyshev(3, index=cb.TotalDegree()), samples, x=0.5).structure is None
