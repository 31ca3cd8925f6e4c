"""Files that 1.0 wrote are read by every 1.x: a solution with its standard errors, and a store of runs.

`python tests/regressions/test_saved_by_1_0.py FOLDER` writes such files; those here are never written again.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import cobilevel as cb

FOLDER = Path(__file__).parent / "saved_by_1.0"
CASE = {"seed": 0, "dx": 2, "dy": 1, "train": 300, "test": 10}
AT = np.array([-0.5, 0.0, 0.8])
SPEC = {"seed": 0, "step": 0.1, "basis": "Chebyshev(3)"}


def write(folder):
    case = cb.gallery.quadratic(**CASE)
    solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3))
    solution.save(folder / "solution.npz")
    runs = cb.sweep.Runs(folder / "runs")
    runs.add([cb.sweep.Run(SPEC, {"loss": 1.5}, {"loss": np.array([3.0, 1.5])}, {"seconds": 0.25})])
    told = {
        "x": np.asarray(solution.x).tolist(),
        "standard_error": np.asarray(solution.standard_error).tolist(),
        "policy": np.asarray(solution.policy(AT)).tolist(),
        "printed": str(solution),
    }
    (folder / "expected.json").write_text(json.dumps(told, indent=1))


def test_a_solution():
    wanted, case = json.loads((FOLDER / "expected.json").read_text()), cb.gallery.quadratic(**CASE)
    solution = cb.load(FOLDER / "solution.npz", case.problem)
    np.testing.assert_array_equal(solution.x, wanted["x"])
    np.testing.assert_allclose(solution.standard_error, wanted["standard_error"], rtol=1e-9)
    np.testing.assert_allclose(solution.policy(AT), wanted["policy"], rtol=1e-9)
    assert solution.result is cb.Result.CONVERGED


def test_a_store_of_runs(tmp_path):
    """Also one that is written to now."""
    there = tmp_path / "runs"
    shutil.copytree(FOLDER / "runs", there)
    runs = cb.sweep.Runs(there)
    ((run),) = runs.find(seed=0)
    assert (run.spec, run.result, run.cost) == (SPEC, {"loss": 1.5}, {"seconds": 0.25})
    np.testing.assert_array_equal(runs.curves(SPEC)["loss"], [3.0, 1.5])
    runs.add([cb.sweep.Run(SPEC | {"seed": 1}, {"loss": 2.0})])
    assert len(list(cb.sweep.Runs(there).find())) == 2


if __name__ == "__main__":
    write(Path(sys.argv[1]))
