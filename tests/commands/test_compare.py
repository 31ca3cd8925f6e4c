"""The comparison: when a gap counts as reached, who is named the winner, and one method run for real."""

import json

import pytest
from rich.console import Console

from cobilevel.commands import compare_methods
from cobilevel.commands.compare import GAPS, Case, MethodRuns, methods, reached

OTHERS = {"first_call": 1.0, "settings": "nothing tuned", "tuning": 0.0, "memory": 2**27, "words": "F: known."}


def row(points, least=1.0):
    return {"points": points, "least": least, **OTHERS}


def test_a_gap_is_reached_where_it_stays():
    """A run that passes the optimum by chance and leaves it again has not reached it."""
    steady = [[1.0, 10, 1.5], [2.0, 20, 1.05], [4.0, 40, 1.005]]
    assert reached(row(steady), 1.0) == [[2.0, 20], [4.0, 40], None]
    assert reached(row([[1.0, 10, 1.0001], [2.0, 20, 1.2]]), 1.0) == [None] * len(GAPS)
    assert reached(row([[1.0, 10, -1.999]]), -2.0) == [[1.0, 10]] * 3  # a negative optimum


def test_tables_name_every_winner(tmp_path, monkeypatch):
    answers = {
        "SOBA": row([[2.0, 5e4, 1.05], [8.0, 2e5, 1.0005]]),
        "PerContext": row([[1.0, 1e4, 1.0]]),
        "DLSGD": {"failed": "no sampler"},
    }
    monkeypatch.setattr("cobilevel.commands.compare._in_own_process", lambda _, name, *rest: answers[name])
    compare_methods(["dro"], tmp_path, 1.0, 0, Console(quiet=True), list(answers))
    page = (tmp_path / "compare.md").read_text()
    assert "10.0%: fastest is PerContext (without a reduction) in 1.00 s, then SOBA in 2.00 s." in page
    assert "DLSGD failed: no sampler" in page
    assert (tmp_path / "compare.png").stat().st_size > 1000
    assert json.loads((tmp_path / "compare.json").read_text())["problems"]["dro"]["SOBA"]["points"][1][0] == 8.0
    with pytest.raises(ValueError, match="there is no roads to compare on"):
        compare_methods(["roads"], tmp_path, 1.0, 0, Console(quiet=True))


def test_one_method_is_measured():
    case = Case("two_edge_traffic", 0)
    found = MethodRuns(case, methods(case)["Collocation"], 5.0).points()
    assert reached(found, case.least)[1] is not None
    assert found["start"] > 1.5 * case.least
    assert found["memory"] >= found["held"] > 0
