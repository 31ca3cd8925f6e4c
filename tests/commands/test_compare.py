"""The comparison: when a gap counts as reached, who is named the winner, and one method run for real."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from cobilevel.commands import compare_methods
from cobilevel.commands.compare import GAPS, Case, MethodRuns, methods, nested_verdict, reached
from cobilevel.study import Study, precision_for

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
    with pytest.raises(ValueError, match="there is no problem roads to compare"):
        compare_methods(["roads"], tmp_path, 1.0, 0, Console(quiet=True))
    with pytest.raises(ValueError, match="there is no method Newton to compare"):
        compare_methods(["dro"], tmp_path, 1.0, 0, Console(quiet=True), ["Newton"])


def test_a_second_start_goes_on(tmp_path, monkeypatch):
    """What is there is kept; another limit measures anew."""
    asked = []
    monkeypatch.setattr(
        "cobilevel.commands.compare._in_own_process",
        lambda problem, name, *rest: asked.append(name) or row([[1.0, 1e4, 1.0]]),
    )
    for names, seconds in ((["SOBA"], 1.0), (["SOBA", "PerContext"], 1.0), (["SOBA"], 2.0)):
        compare_methods(["dro"], tmp_path, seconds, 0, Console(quiet=True), names)
    assert asked == ["SOBA", "PerContext", "SOBA"]


def test_the_claim_gets_its_verdict():
    """The budget is the reduction's; runs that end later do not count, and a run within ten times the gap denies it."""
    rows = {
        "Newton, Chebyshev": row([[2.0, 1e5, 1.0005]]),
        "DLSGD": row([[1.0, 1e6, 1.3], [4.0, 4e6, 1.0]]),
        "RTMLMC": row([[3.0, 1e6, 1.02]]),
    }
    said = nested_verdict(rows, 1.0)
    assert said.startswith("C1 holds: the reduction (Newton, Chebyshev) is within 0.1% after 2.00 s and 1e+05 samples.")
    assert "In the same time DLSGD is 30.00% from the optimum and RTMLMC has not ended its shortest run" in said
    rows["RTMLMC"] = row([[1.0, 1e4, 1.005]])
    assert nested_verdict(rows, 1.0).startswith("C1 fails")
    assert "no verdict" in nested_verdict({"DLSGD": rows["DLSGD"]}, 1.0)


@pytest.mark.parametrize("name", ["newsvendor", "instruments", "dro"])
def test_samplers_draw_what_the_data_are(name):
    """Given contexts of the data, means and spreads of what is drawn are those of the data."""
    case = Case(name, 0)
    assert case.problem.conditional is None
    with jax.enable_x64(True):
        study = Study.of(case.informed, case.samples, precision_for(case.informed, case.samples))
        study.check_conditional()
        xi = jnp.asarray(study.lower.xi)
        drawn = jax.vmap(lambda key, c: study.problem.conditional(key, c, 1))(
            jax.random.split(jax.random.key(0), len(xi)), xi
        )
    for part, values in case.samples.eta.items():
        seen, new = np.asarray(values), np.asarray(drawn[part])[:, 0]
        error = seen.std() * (2 / len(seen)) ** 0.5
        assert abs(new.mean() - seen.mean()) < 4 * error
        assert new.std() == pytest.approx(seen.std(), rel=0.05)
        assert np.corrcoef(new, study.lower.xi.reshape(len(xi), -1)[:, 0])[0, 1] == pytest.approx(
            np.corrcoef(seen, study.lower.xi.reshape(len(xi), -1)[:, 0])[0, 1], abs=0.08
        )


def test_one_method_is_measured():
    case = Case("two_edge_traffic", 0)
    found = MethodRuns(case, methods(case)["Collocation"], 5.0).points()
    assert reached(found, case.least)[1] is not None
    assert found["start"] > 1.5 * case.least
    assert found["memory"] >= found["held"] > 0
