"""RT-MLMC against its theory: bias, variance and cost by level."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def mlmc():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        import mlmc as script

        yield script


def test_levels_fall_as_the_theory_says(mlmc):
    """Errors halve, the bias falls by sqrt(2) at least, draws double; one estimate then takes O(K) draws."""
    found = mlmc.measured(6, 600, first=20, dx=3, dy=2, train=600, test=10, condition=3.0)
    ratios = found["error"][3:] / found["error"][2:-1]
    assert 0.4 < ratios.mean() < 0.6
    increments = found["increment"][:-1]
    assert 0.35 < (increments[-1] / increments[1]) ** (1 / 3) < 0.6
    bound = found["bias"][0] * 2 ** (-np.arange(6) / 2)
    assert np.all(found["bias"] <= bound + 3 * found["bias_error"])
    costs, moments, plain = np.array([mlmc.truncated(found, last) for last in range(1, 6)]).T
    per_level = 2 * 20  # of all levels: chances 2^-k, draws first * 2^(k + 2)
    assert np.all(costs <= 2 * per_level * (np.arange(1, 6) + 1))
    assert np.diff(costs).max() < 2 * per_level
    assert np.diff(moments)[1:].max() < 2 * moments[0]
    assert plain[-1] > 4 * costs[-1] / 2
