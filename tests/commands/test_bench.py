"""``cobilevel bench``: scripts are found, run, judged against their goals, and what fails is said."""

import json
import os

import pytest
from typer.testing import CliRunner

from cobilevel.cli import app
from cobilevel.commands import bench
from cobilevel.commands.bench import Measurement, speed_benchmarks

WRITES = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--json")
arguments = parser.parse_args()
print("working")
with open(arguments.json, "w") as file:
    json.dump({rows}, file)
"""
ROWS = [
    {"what": "a quick thing", "value": 0.5, "unit": "s", "goal": 1},
    {"what": "a slow | thing", "value": 2.0, "unit": "s", "goal": 1.0},
    {"what": "many things", "value": 20000, "unit": "steps/s", "goal": 15000, "better": "more"},
    {"what": "a thing never reached", "value": None, "unit": "s", "goal": 3.0},
    {"what": "a thing without goal", "value": 7, "unit": "GB", "goal": None},
]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "benchmarks"
    place.mkdir()
    (place / "good.py").write_text(WRITES.replace("{rows}", repr(ROWS)))
    (place / "breaks.py").write_text('print("--json")\nraise RuntimeError("out of steam")\n')
    (place / "silent.py").write_text('given = "--json"\n')
    (place / "wrong.py").write_text(WRITES.replace("{rows}", "[{'what': 'x', 'value': 'fast', 'unit': 's'}]"))
    (place / "quality.py").write_text("raise SystemExit(1)\n")  # measures something else
    return place


def invoke(*arguments):
    done = CliRunner().invoke(app, ["bench", *(str(a) for a in arguments)])
    return done.exit_code, " ".join(done.output.split())


def test_scripts_are_listed(folder):
    assert invoke("--list", "--folder", folder) == (0, "breaks good silent wrong")
    assert invoke("silent", "--list", "--folder", folder) == (0, "silent")


def test_values_are_judged(folder, tmp_path):
    out = tmp_path / "out"
    code, said = invoke("good", "--folder", folder, "--out", out)
    assert code == 0, said
    assert "2 of 4 goals met" in said
    kept = json.loads((out / "bench.json").read_text())
    assert [line["met"] for line in kept["measurements"]] == [True, False, True, False, None]
    assert {"date", "machine", "versions", "load", "quiet", "seconds"} <= set(kept)
    assert kept["failed"] == {}
    page = (out / "bench.md").read_text()
    assert "| good | a quick thing | 0.5 | s | ≤ 1 | met |" in page
    assert r"| good | a slow \| thing | 2 | s | ≤ 1 | missed |" in page
    assert "| good | many things | 20,000 | steps/s | ≥ 15,000 | met |" in page
    assert "| good | a thing never reached | not reached | s | ≤ 3 | missed |" in page
    assert (out / "bench.png").stat().st_size > 10_000
    assert (out / "good.log").read_text() == "working\n"


def test_what_fails_is_said_and_the_others_go_on(folder, tmp_path):
    out = tmp_path / "out"
    code, said = invoke("--folder", folder, "--out", out)
    assert code == 1
    assert "out of steam" in said
    assert "silent failed: it wrote no measurements" in said
    assert "which is not a measurement" in said
    kept = json.loads((out / "bench.json").read_text())
    assert set(kept["failed"]) == {"breaks", "silent", "wrong"}
    assert len(kept["measurements"]) == len(ROWS)


def test_a_busy_machine_is_warned_of(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 1.0, 1.0))
    code, said = invoke("good", "--folder", folder, "--out", tmp_path / "busy")
    assert code == 0
    assert "not quiet (load 1.50)" in said
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 1.0, 1.0))
    assert "not quiet" not in invoke("good", "--folder", folder, "--out", tmp_path / "quiet")[1]


def test_the_quick_form_is_for_scripts_that_have_one(folder, tmp_path):
    (folder / "short.py").write_text(
        'import sys\nfile = sys.argv[sys.argv.index("--json") + 1]\nquick = "--quick" in sys.argv\n'
        'open(file, "w").write(f\'[{{"what": "it", "value": {int(quick)}, "unit": "s", "goal": null}}]\')\n'
    )
    assert invoke("short", "good", "--quick", "--folder", folder, "--out", tmp_path / "out")[0] == 0
    kept = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [line["script"] for line in kept["measurements"]] == ["short"] + ["good"] * len(ROWS)
    assert kept["measurements"][0]["value"] == 1


def test_commands_say_what_to_do(folder, tmp_path, monkeypatch):
    code, said = invoke("better", "--folder", folder)
    assert code == 2
    assert "no benchmark better. There are breaks, good" in said
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "e.py"))
    monkeypatch.chdir(tmp_path / "benchmarks")
    code, said = invoke("--list")
    assert code == 2
    assert "checkout" in said


def test_the_scripts_of_the_project_are_found():
    assert {"first_answer", "steps", "large"} <= set(speed_benchmarks())


@pytest.mark.parametrize(
    ("value", "goal", "better", "share"),
    [(2.0, 4.0, "less", 0.5), (2.0, 4.0, "more", 2.0), (0.0, 4.0, "more", float("inf")), (0.0, 0.0, "less", 1.0)],
)
def test_shares(value, goal, better, share):
    line = Measurement("a", "b", value, "s", goal, better)
    assert line.share == share
    assert line.met == (share <= 1)
