"""What a bare install does without, and what it says where something is missing."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEFT_OUT = ("matplotlib", "typer", "rich", "optax", "pandas", "sklearn")
SMALL = """
problem = cb.Problem(lambda x, y, xi, eta: (y - xi) ** 2 + x**2, lambda x, y, xi, eta: (y - x * xi - eta) ** 2,
                     1.0, 0.0, cb.Interval(-1.0, 1.0))
rng = np.random.default_rng(0)
samples = cb.Samples(rng.uniform(-1, 1, 50), rng.normal(size=50))
solution = cb.solve(problem, samples, cb.Chebyshev(2), progress=True)
"""


def without(code, *packages):
    """What a process prints in which these packages cannot be imported."""
    hidden = f"import sys; sys.modules |= dict.fromkeys({packages or LEFT_OUT})\nimport cobilevel as cb, numpy as np\n"
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, env=dict(os.environ))


def test_a_bare_install_has_few_dependencies():
    names = {line.partition(">")[0] for line in PROJECT["dependencies"]}
    assert names == {"jax", "equinox", "jaxtyping", "numpy", "scipy", "threadpoolctl"}
    assert {"plots", "cli"} <= PROJECT["optional-dependencies"].keys()


def test_it_solves_prints_certifies_and_says_what_a_figure_needs():
    judged = "print(solution)\nprint(cb.certify(problem, solution, samples))\nsolution.plot()"
    done = without(SMALL + judged)
    assert done.stdout.startswith("Solution(converged=True")
    assert "Certificate(" in done.stdout
    assert done.stderr.endswith(
        'ModuleNotFoundError: figures need matplotlib, which is not installed: pip install "cobilevel[plots]".\n'
    )


@pytest.mark.parametrize("lacking", ["typer", "rich"])
def test_the_command_line_says_what_it_needs(lacking):
    done = without("from cobilevel.cli import app", lacking)
    assert done.returncode == 1
    assert done.stderr == 'The command line needs typer and rich: pip install "cobilevel[cli]"\n'
