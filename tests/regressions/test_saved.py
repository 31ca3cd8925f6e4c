"""Solutions saved by version 0.1 load, and give the same numbers; only their solver states are of another shape."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

FOLDER = Path(__file__).parent / "saved_by_0.1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.fixture(scope="module")
def problems():
    """What they were solved for: the traffic, and a small quadratic."""
    road = cb.gallery.two_edge_traffic(0).problem
    small = cb.gallery.quadratic(0, dx=2, dy=2).problem
    return {name: road if name in ("newton", "snapshot") else small for name in EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_solution_of_the_first_format_is_the_same_solution(problems, name):
    wanted = EXPECTED[name]
    solution = cb.load(FOLDER / f"{name}.npz", problems[name])
    np.testing.assert_array_equal(solution.x, wanted["x"])
    lo, hi = (float(end[0]) for end in problems[name].domain.bounds)
    xi = lo + (hi - lo) * np.linspace(0, 1, 7)
    np.testing.assert_allclose(solution.policy(jnp.asarray(xi)), wanted["policy"], rtol=1e-12, atol=1e-14)
    assert solution.converged == wanted["converged"]
    assert isinstance(solution.result, cb.Result)
    first = wanted["result"].split(":")[0]
    assert solution.result.startswith(first)
    assert solution.result.name == {"Converged": "CONVERGED", "Diverged": "DIVERGED", "Budget spent": "BUDGET"}[first]
    assert solution.choices == wanted["choices"]
    assert float(solution.history["upper"][-1]) == wanted["upper"]
    if name == "diverged":
        assert solution.detail == "It happened at step 3."


def test_a_run_of_the_first_format_starts_anew(problems):
    problem = problems["soba"]
    solution = cb.load(FOLDER / "soba.npz", problem)
    assert solution.state is None
    samples = cb.gallery.quadratic(0, dx=2, dy=2).train.rows(slice(0, 400))
    with pytest.raises(ValueError, match="no solver state"):
        cb.solve(problem, samples, solver=cb.SOBA(), resume=solution)


@pytest.mark.parametrize("name", ["soba", "snapshot"])
def test_saved_again_it_is_of_the_format_of_today(problems, name, tmp_path):
    old = cb.load(FOLDER / f"{name}.npz", problems[name])
    again = cb.load(old.save(tmp_path / "again.npz"), problems[name])
    assert (again.result, again.detail, again.choices) == (old.result, old.detail, old.choices)
    np.testing.assert_array_equal(again.W, old.W)
    np.testing.assert_array_equal(again.policy(0.3), old.policy(0.3))


def test_the_archives_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000
