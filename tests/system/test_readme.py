"""What the README and the pages show runs as it stands."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cobilevel as cb

ROOT = Path(__file__).parents[2]


def blocks(page):
    """The code of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


CUT = "-- another page"
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]\d+)?")


def is_shown(printed, page, first):
    """Whether a page shows what was printed: the block that begins with these words, numbers to a few digits."""
    (shown,) = re.findall(rf"```\n({re.escape(first)}.*?)\n```", (ROOT / page).read_text(), re.S)
    begin = printed.index(first.split("\n")[0])
    got = "\n".join(printed[begin:].splitlines()[: len(shown.splitlines())])
    assert NUMBER.sub("#", got).split() == NUMBER.sub("#", shown).split()
    wanted, found = ([float(number) for number in NUMBER.findall(text)] for text in (shown, got))
    np.testing.assert_allclose(found, wanted, rtol=0.03, atol=1e-4)
    return True


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory):
    """What the example of the README prints, and after it those of two pages that begin with it: in one process."""
    pytest.importorskip("pandas")
    (code,), (same, frame, further), (judging,) = map(blocks, ("README.md", "docs/start.md", "docs/how_good.md"))
    assert same == code
    check = "print(float(solution.x), *map(float, solution.policy(jnp.array([0.1, 0.5, 0.9]))))\n"
    parts = [code + further + check, "first = solution\n" + frame + "print(solution.x == first.x)\n", judging]
    script = tmp_path_factory.mktemp("start") / "page.py"
    printed = "\n".join(run_script(script, f"\nprint({CUT!r})\n".join(parts)))
    return printed.split(f"{CUT}\n")


def run_script(path, code):
    """What a script prints, line by line."""
    path.write_text(code)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, cwd=path.parent)
    return done.stdout.splitlines()


def test_quick_start_runs_and_is_right(quick_start):
    printed, _, _ = quick_start
    assert len([line for line in blocks("README.md")[0].splitlines() if line.strip()]) <= 15
    assert is_shown(printed, "README.md", "Solution(")
    assert is_shown(printed, "docs/start.md", "Solution(")
    assert is_shown(printed, "docs/reading.md", "Solution(")
    price, *stock = map(float, printed.splitlines()[-1].split())
    mean_demand = 5 + 3 * np.sin(4 * np.array([0.1, 0.5, 0.9]))
    np.testing.assert_allclose(stock, mean_demand - 0.8 * price, atol=0.3)


def test_the_example_from_a_data_frame_runs(quick_start):
    printed = quick_start[1].splitlines()
    assert printed[-5].split() == ["weather", "y", "in_domain"]
    assert [line.split()[-1] for line in printed[-4:]] == ["True"] * 4


def test_the_page_on_frames_runs_as_it_stands(tmp_path):
    """In no more lines than the first example of the README, with a category more; and it prints what it says."""
    pytest.importorskip("pandas")
    page = (ROOT / "docs" / "frames.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.S)
    (readme, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    count = lambda code: len([line for line in code.splitlines() if line.strip()])
    assert count(first) <= count(readme)
    printed = run_script(tmp_path / "page.py", "import matplotlib\nmatplotlib.use('agg')\n" + first + second)
    assert printed[0] == "Solution, converged"
    assert is_shown("\n".join(printed), "docs/frames.md", "   weather")
    price = float(re.search(r"^  x +([\d.]+)", "\n".join(printed), re.M)[1])
    truth = [7 + 3 * np.sin(0.8) - 0.8 * price, 5 + 3 * np.sin(3.6) - 0.8 * price, np.nan]
    np.testing.assert_allclose([float(line.split()[3]) for line in printed[-3:]], truth, atol=0.3)
    assert (tmp_path / "policy.png").exists()


def test_judging_prints_what_the_pages_show(quick_start):
    printed = quick_start[2]
    assert "Diagnosis of Chebyshev(8)" in printed
    assert is_shown(printed, "docs/how_good.md", "Certificate(")
    assert is_shown(printed, "docs/reading.md", "Certificate(")


def test_the_page_on_levels_runs_and_is_right(tmp_path):
    """The penalties that shrink 1.5 and 3 times the effect to the effect are known."""
    (code,) = blocks("docs/levels.md")
    check = "for end in solution.interval:\n    print(*map(float, end))\n"
    printed = run_script(tmp_path / "levels.py", code + check)
    assert is_shown("\n".join(printed), "docs/levels.md", "Solution(")
    low, high = ([float(number) for number in line.split()] for line in printed[-2:])
    for lo, best, hi in zip(low, np.log([0.5, 2.0]), high, strict=True):
        assert lo < best < hi


def test_the_page_on_solvers_runs_as_it_stands(promotion):
    settings, tutorial = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "solvers.md").read_text(), re.S)
    names: dict = {}
    exec(settings + tutorial, names)
    instance = cb.gallery.quadratic(2, dx=2, dy=2, train=500, condition=3.0)
    basis = cb.Orthonormal(cb.Chebyshev(3))
    found = cb.solve(instance.problem, instance.train, basis=basis, solver=names["MASOBA"](0.2, 0.05, 0.2), steps=3000)
    best = cb.solve(instance.problem, instance.train, basis=basis)
    np.testing.assert_allclose(found.x, best.x, atol=0.02 * np.linalg.norm(best.x))


def test_a_solver_from_outside_solves_the_reduced_problem():
    spec = importlib.util.spec_from_file_location("outside_solver", ROOT / "docs" / "outside_solver.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    solution, best = module.main()
    np.testing.assert_allclose(solution.x, best.x, atol=0.02 * np.linalg.norm(best.x))
    xi = np.linspace(-1, 1, 9)
    np.testing.assert_allclose(solution.policy(xi), best.policy(xi), atol=0.1)


def test_the_page_on_contexts_runs_and_is_right(promotion):
    """The stock is the mean demand at the price: known but for noise."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "contexts.md").read_text(), re.S)
    names: dict = {}
    exec(code, names)
    for found in (names["solution"], names["additive"]):
        at = {
            "weather": np.array([0.1, 0.9, 0.4]),
            "hour": np.array([6.0, 24.0, -12.0]),
            "day": np.array(["sat", "mon", "sun"]),
        }
        wanted = 5 + at["weather"] - np.cos(2 * np.pi * at["hour"] / 24) + np.array([2, 0, 2]) - 0.8 * float(found.x)
        np.testing.assert_allclose(found.policy(at), wanted, atol=0.15)
    assert names["additive"].basis.size == 11


def test_the_page_on_constraints_runs_and_is_right(promotion):
    """Flows are in proportion to capacities, until a road is full."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "constraints.md").read_text(), re.S)
    names: dict = {}
    exec(code, names)
    found, demand = names["solution"], np.linspace(0.2, 1, 50)
    capacity, flow = np.asarray(found.x), np.asarray(found.policy(demand))
    np.testing.assert_allclose(flow.sum(axis=1), demand, atol=1e-12)
    first = np.clip(demand * capacity[0] / capacity.sum(), demand - 0.55, 0.55)
    np.testing.assert_allclose(flow[:, 0], first, atol=0.01)
    assert found.converged
    assert found.feasibility.active[0].name == "y[0] <= 0.55"


@pytest.mark.thorough
def test_the_page_on_sweeps_runs_as_it_stands(tmp_path):
    """As a script, whose processes cannot import it; started again it computes nothing."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.S)
    first = run_script(tmp_path / "page.py", code)
    assert [line.split()[:3] for line in first[:2]] == [["0", "0.02", "BUDGET"], ["0", "0.1", "BUDGET"]]
    assert len(first) == 7
    again = run_script(tmp_path / "page.py", code.replace("    one =", "    raise ValueError\n    one ="))
    assert again == first
