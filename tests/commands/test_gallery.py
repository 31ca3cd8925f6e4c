"""``cobilevel gallery`` lists what there is, and solves, judges and draws any of it."""

import jax
import matplotlib.pyplot as plt
import pytest
from typer.testing import CliRunner

from cobilevel.cli import app
from cobilevel.gallery import ENTRIES


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch, tmp_path):
    """The command switches JAX to double precision, keeps programs on disk and writes next to where it is called."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    plt.close("all")
    for name, value in before.items():
        jax.config.update(name, value)


def gallery(*arguments):
    done = CliRunner().invoke(app, ["gallery", *map(str, arguments)])
    return done.exit_code, done.output


def test_every_entry_has_its_line():
    code, output = gallery()
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == list(ENTRIES)
    for line in output.splitlines():
        assert line.endswith(".")
        assert len(line.split()) > 5


def test_what_is_made_and_drawn_is_named_after_the_entry():
    for name, entry in ENTRIES.items():
        assert entry.make.__name__ == name
        assert entry.draw.__name__ == f"draw_{name}"


def checked(output, picture):
    for words in ("Solution(converged=", "Truth", "Certificate("):
        assert words in output, output
    assert f"Drawn: {picture}" in output
    assert picture.stat().st_size > 10_000


def test_one_is_solved_judged_and_drawn(tmp_path):
    picture = tmp_path / "folder" / "robust.png"
    code, output = gallery("dro", "--out", picture)
    assert code == 0, output
    checked(output, picture)
    assert "objective: best 0.332122, at the x found 0.33" in output
    assert "neighbours mode" in output
    assert "x: [ 1.36" in output


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize("name", ENTRIES)
def test_every_one_is(name, tmp_path):
    code, output = gallery(name)
    assert code == 0, output
    checked(output.replace("Drawn: ", f"Drawn: {tmp_path}/"), tmp_path / f"{name}.png")
    assert "Solution(converged=True" in output


def test_what_is_wrong_is_said_in_a_sentence(tmp_path):
    code, output = gallery("newsvendors")
    assert code == 2
    assert "there is no 'newsvendors' in the gallery; there are quadratic, two_edge_traffic" in output
    code, output = gallery("dro", "--out", "dro.txt")
    assert code == 2
    assert ".png, .pdf or .svg" in output
    assert not list(tmp_path.glob("dro*"))
