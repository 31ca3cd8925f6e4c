"""The command line does what it says, and says what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from rich.console import Console
from typer.testing import CliRunner

import cobilevel
from cobilevel.cli import app
from cobilevel.commands import solve_file
from cobilevel.paper.claims import CLAIMS


def test_version():
    done = CliRunner().invoke(app, ["version"])
    assert (done.exit_code, done.output.strip()) == (0, cobilevel.__version__)


@pytest.mark.thorough
def test_demo(tmp_path):
    command = [str(Path(sys.executable).parent / "cobilevel"), "demo", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for words in ("F_ref", "Chebyshev(10)", "Partition(50)", "the library chose"):
        assert words in done.stdout
    assert (tmp_path / "out" / "policy.png").stat().st_size > 20_000
    assert (tmp_path / "out" / "solution.npz").exists()
    assert done.stderr == ""


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["inverse"], ["cleaning", "--data", "digits"]], ids=lambda a: a[0])
def test_reproduced_quickly(arguments, tmp_path):
    """The command as a user types it; then the page again, from what is there."""
    out = tmp_path / "out"
    command = ["reproduce", *arguments, "--quick", "--out", str(out)]
    before = jax.config.jax_enable_x64
    try:
        first = CliRunner().invoke(app, command)
        assert first.exit_code == 0, first.output
        claims = json.loads((out / "claims.json").read_text())
        assert [entry["id"] for entry in claims] == list(CLAIMS)
        mine = "I" if arguments[0] == "inverse" else "H"
        judged = [entry for entry in claims if entry["verdict"] != "not tested"]
        assert sum(entry["id"].startswith(mine) for entry in judged) >= 3
        assert all(entry["measured"] and entry["threshold"] and entry["how"] for entry in judged)
        assert (out / "report.html").stat().st_size > 20_000
        assert len(list((out / "figures").glob("*.png"))) == len(list((out / "figures").glob("*.pdf"))) >= 2
        folders = sorted(path.name for path in (out / "runs").iterdir())
        (out / "report.html").unlink()
        again = CliRunner().invoke(app, ["report", str(out)])
        assert again.exit_code == 0, again.output
        assert json.loads((out / "claims.json").read_text()) == claims
        assert sorted(path.name for path in (out / "runs").iterdir()) == folders
        assert (out / "report.html").exists()
    finally:
        jax.config.update("jax_enable_x64", before)


def test_commands_say_what_is_wrong(tmp_path):
    def invoke(*arguments):
        done = CliRunner().invoke(app, [str(a) for a in arguments])
        return done.exit_code, " ".join(done.output.split())

    nothing = invoke("report", tmp_path)
    assert nothing[0] == 2
    assert "holds no experiment" in nothing[1]
    both = invoke("reproduce", "inverse", "--quick", "--full", "--out", tmp_path)
    assert both[0] == 2
    unknown = invoke("reproduce", "traffic", "--quick", "--out", tmp_path / "a")
    assert unknown[0] == 2
    assert "inverse, cleaning" in unknown[1]
    (tmp_path / "experiment.json").write_text(json.dumps({"experiment": "inverse", "budget": "full"}))
    other = invoke("reproduce", "inverse", "--quick", "--out", tmp_path)
    assert other[0] == 2
    assert "another experiment" in other[1]
    unfinished = invoke("report", tmp_path)
    assert unfinished[0] == 2
    assert "not finished" in unfinished[1]


FILE = """
import jax.numpy as jnp
import numpy as np
import cobilevel as cb

xi = np.linspace(0.0, 1.0, 50)
problem = cb.Problem(
    lambda x, y, xi, eta: (y - xi) ** 2, lambda x, y, xi, eta: (y - x * xi) ** 2, 0.5, 0.0, cb.Interval(0.0, 1.0)
)
samples = cb.Samples(xi, np.zeros(50))
basis = cb.Chebyshev(3)
options = {"precision": "double"}
"""


def test_solve_runs_a_file_into_a_folder(tmp_path):
    """And the same command again goes on from what is there; what is no statement of a problem is refused in words."""
    file, out = tmp_path / "stated.py", tmp_path / "out"
    file.write_text(FILE)
    before = jax.config.jax_enable_x64
    try:
        done = CliRunner().invoke(app, ["solve", str(file), "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert "Converged" in done.output
        assert {path.name for path in out.iterdir()} >= {"solution.npz", "checkpoint.npz", "summary.txt", "policy.png"}
        kept = (out / "checkpoint.npz").stat().st_mtime_ns
        again = CliRunner().invoke(app, ["solve", str(file), "--out", str(out)])
        assert again.exit_code == 0, again.output
        assert (out / "checkpoint.npz").stat().st_mtime_ns == kept
        other = CliRunner().invoke(app, ["solve", str(file), "--out", str(out), "--seed", "3"])
        assert other.exit_code == 2
        assert "differs in: key" in other.output
        file.write_text("problem = 3")
        wrong = CliRunner().invoke(app, ["solve", str(file), "--out", str(out)])
        assert wrong.exit_code == 2
        assert "does not define samples" in wrong.output
    finally:
        jax.config.update("jax_enable_x64", before)


GIVEN_UP = {
    "x0 must be an array of numbers, got str": FILE.replace("0.5, 0.0", "'a', 0.0"),
    "line 13: KeyError: 'a'": FILE + "{}['a']",
    "line 13: RuntimeError: no data": FILE + "raise RuntimeError('no data')",
    "line 14: the file calls sys.exit(0)": FILE + "import sys\nsys.exit(0)",
    "solve() got an unexpected keyword argument 'stepz'": FILE + "options = {'stepz': 3}",
    "samples must be Samples": FILE + "samples = xi",
    "line 13: upper(x, y, xi, eta) fails": FILE
    + "f = lambda x, y, xi, eta: y if y > 0 else x\nproblem = cb.Problem(f, problem.lower, 0.5, 0.0, problem.domain)",
    "stated.py, line 1: SyntaxError: invalid syntax": "def f(:",
    "stated.py: SyntaxError: source code string cannot contain null bytes": FILE + "\0",
    "line 8: the file calls sys.exit(0)": FILE.replace("(y - xi) ** 2,", "__import__('sys').exit(0),"),
    "ZeroDivisionError: division by zero": "import fails_next_to_it",
}


@pytest.mark.parametrize("words", GIVEN_UP)
def test_solve_says_what_is_wrong_with_a_file_and_where(tmp_path, words):
    """Without a traceback of what is inside, and never as a success."""
    file = tmp_path / "stated.py"
    file.write_text(GIVEN_UP[words])
    (tmp_path / "fails_next_to_it.py").write_text("1 / 0")
    before = jax.config.jax_enable_x64
    try:
        done = CliRunner().invoke(app, ["solve", str(file), "--out", str(tmp_path / "out")])
    finally:
        jax.config.update("jax_enable_x64", before)
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)  # and no other: it would be shown with a traceback
    assert words in done.output.replace("\n", ""), done.output


def test_solve_finds_modules_next_to_the_file(tmp_path, monkeypatch):
    file, path = tmp_path / "stated.py", list(sys.path)
    file.write_text("import next_to_it")
    (tmp_path / "next_to_it.py").write_text("")
    with pytest.raises(ValueError, match="does not define problem and samples"):
        solve_file(file, tmp_path / "out", Console())
    assert sys.path == path
