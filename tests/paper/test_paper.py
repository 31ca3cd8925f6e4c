"""The paper's experiments: the search for steps, statistics, and verdicts computed from data."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import cobilevel as cb
from cobilevel.judge import runs_estimate
from cobilevel.paper import theory
from cobilevel.paper.claims import CLAIMS, auc, complete, difference, ratio, verdict
from cobilevel.paper.experiment import TUNING
from cobilevel.paper.methods import BARE, PER_CELL, Grid, Method, SearchRung, race
from cobilevel.study import Study


def test_the_grid_is_the_papers():
    settings = Grid().settings()
    assert len(settings) == 5 * 11 * 3 == len(set(settings))
    assert {s.inner for s in settings} == {1e-3, 1e-2, 1e-1, 1.0, 10.0}
    assert min(s.outer for s in settings) == 1e-5
    assert max(s.outer for s in settings) == 1e5
    assert TUNING > 50, "tuning instances must not be among those reported"


def test_a_race_keeps_the_best_and_drops_what_diverges():
    settings = Grid((1.0, 2.0), (1.0, 2.0, 3.0), (1,)).settings()
    seen = []

    def score(chosen, rung):
        seen.append((len(chosen), rung.instances))
        return np.array([np.nan if s.outer == 3.0 else (s.inner - 2) ** 2 + (s.outer - 2) ** 2 for s in chosen])

    (best,), table = race(settings, (SearchRung(3, 1, 10), SearchRung(1, 4, 20)), score)
    assert (best.inner, best.outer) == (2.0, 2.0)
    assert seen == [(6, 1), (3, 4)]
    assert table.shape == (6, 2)
    assert np.isinf(table[2, 0])
    assert np.isnan(table[2, 1])


def test_intervals_cover_and_pairing_helps():
    rng = np.random.default_rng(0)
    covered = [found.low <= 1 <= found.high for found in (runs_estimate(rng.normal(1, 2, 10)) for _ in range(2000))]
    assert 0.935 < np.mean(covered) < 0.965
    level = rng.normal(0, 10, 20)
    gain = difference(level + 1 + 0.1 * rng.normal(size=20), level)
    assert 0.9 < gain.low < gain.high < 1.1
    times = ratio(np.exp(level) * 3, np.exp(level))
    np.testing.assert_allclose([float(times), times.low, times.high], 3.0)
    assert runs_estimate(np.array([1.0])).high == np.inf


def test_auc():
    assert auc(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False])) == 1.0
    assert auc(np.array([1.0, 1.0, 1.0]), np.array([True, False, False])) == 0.5
    rng = np.random.default_rng(0)
    score, positive = rng.normal(size=300), rng.uniform(size=300) < 0.3
    pairs = np.mean(score[positive][:, None] > score[~positive][None])
    np.testing.assert_allclose(auc(score, positive), pairs)


def test_every_claim_is_listed_once():
    found = complete([verdict("I2", False, "1.1", "1.03", "so", "because")])
    assert [entry["id"] for entry in found] == list(CLAIMS)
    assert {entry["verdict"] for entry in found} == {"fails", "not tested"}
    assert found[1]["why"] == "because"
    assert all({"id", "claim", "verdict", "measured", "threshold", "how"} <= set(entry) for entry in found)


@pytest.mark.thorough
def test_theory_is_measured():
    """The counterexample's gap is known, and the conditioning of the uniform Chebyshev basis."""
    found = {entry["id"]: entry for entry in theory.theory()}
    assert {name: entry["verdict"] for name, entry in found.items()} == {
        "P2": "holds",
        "T1": "holds as corrected",
        "T3": "holds",
    }
    assert "0.0477" in found["T1"]["how"]
    assert "0.67 to 0.93" in found["T3"]["measured"]


def test_the_page_on_the_paper_says_what_was_computed():
    """Verdicts and readings in docs/paper.md are those of docs/results, whose page carries the same."""
    docs = Path(__file__).parents[2] / "docs"
    computed = json.loads((docs / "results" / "claims.json").read_text())
    assert [entry["id"] for entry in computed] == list(CLAIMS)
    rows = re.findall(r"^\| ([A-Z]\d) \| ([^|]*) \| ([^|]*) \|", (docs / "paper.md").read_text(), re.MULTILINE)
    assert rows == [(entry["id"], entry["verdict"], entry.get("reading", "")) for entry in computed]
    data = re.search(r'id="data">(.*?)</script>', (docs / "results" / "report.html").read_text(), re.DOTALL)
    assert json.loads(data.group(1))["claims"] == computed


def test_each_cell_takes_steps_on_its_own_mean():
    """stocBiO[N]: a step moves a cell's answer as in a problem of its own; bare functions, 1/N of it."""
    N, beta = 4, 0.1
    xi = (np.arange(40) + 0.5) / 40  # ten samples a cell
    eta = np.random.default_rng(0).normal(size=40)
    square = lambda x, y, xi, eta: 0.5 * (y - x - eta) ** 2
    problem = cb.Problem(square, square, 0.3, 0.0, cb.Interval(0.0, 1.0))
    study = Study.of(problem, cb.Samples(xi, eta))
    own = beta * (0.3 + eta.reshape(N, 10).mean(axis=1))
    for family, share in ((PER_CELL, 1.0), (BARE, 1 / N)):
        reduced = Method("StocBiO", family, N).reduced(study)
        phi = np.asarray(reduced.basis(xi))
        np.testing.assert_allclose(phi @ np.asarray(reduced.W0), 0.0)
        slope = phi.T @ (phi @ np.asarray(reduced.W0) - 0.3 - eta) / len(xi)
        moved = phi[::10] @ (np.asarray(reduced.W0) - beta * slope)
        np.testing.assert_allclose(moved, share * own, rtol=1e-12)
