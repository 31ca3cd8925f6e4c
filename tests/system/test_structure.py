"""The house: a module imports only from those before it, and only the oracle layer differentiates for solvers."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import cobilevel
from cobilevel.solvers import STOCHASTIC, Newton

ROOT = Path(cobilevel.__file__).parent
ORDER = (
    "checks", "trees", "schedules", "samplers", "domain", "data", "problem", "indices", "basis", "families", "store",
    "solution", "reduction", "oracles", "hypergradient", "estimators", "lower", "implicit", "scales", "progress",
    "solver", "stochastic", "solvers", "learned", "intervals", "evaluate", "decay", "expansion", "diagnose", "enrich",
    "gap", "enriched", "certify", "bootstrap", "climb", "adapt", "solve", "gallery", "runs", "sweep", "report", "paper",
    "demo", "cli", "__init__",
)  # fmt: skip


def module_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """Names of the top-level modules of the package that a file imports."""
    depth = len(path.relative_to(ROOT).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            yield from [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]


def test_imports_go_one_way():
    files = sorted(ROOT.rglob("*.py"))
    assert {module_of(path) for path in files} == set(ORDER)
    for path in files:
        here = module_of(path)
        for name in imports(path):
            if name in ORDER and name != here:
                assert ORDER.index(name) < ORDER.index(here), f"{here} imports {name}"


def test_only_the_oracle_layer_differentiates():
    """Besides it: exact solves of single contexts (``lower``), and the check that ``g`` is free of noise."""
    for path in ROOT.rglob("*.py"):
        if path.stem not in ("oracles", "lower", "problem") and path.parent.name != "gallery":
            assert not re.search(r"jax\.(grad|value_and_grad|jvp|vjp|hessian|jac\w+)\b", path.read_text()), path.name


def test_a_step_is_about_a_screen():
    for kind in STOCHASTIC:
        assert len(inspect.getsource(kind.update).splitlines()) <= 60, kind.__name__
        assert "Reference:" in kind.__doc__
    for part in (Newton.search, Newton.step):
        assert len(inspect.getsource(part).splitlines()) <= 70


def test_files_are_of_a_size_to_be_read():
    for path in ROOT.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name


def test_import_changes_no_switch_and_loads_no_plotting():
    code = (
        "import sys, jax; before = dict(jax.config.values); import cobilevel; assert dict(jax.config.values) == before;"
        "assert 'matplotlib' not in sys.modules and 'typer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
