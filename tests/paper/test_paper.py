"""The paper's experiments: the search for steps, statistics, and verdicts computed from data."""

import json
import re
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.gallery import Images, cleaning
from cobilevel.judge import runs_estimate
from cobilevel.paper import theory
from cobilevel.paper.claims import CLAIMS, auc, complete, concluded, difference, ratio, verdict
from cobilevel.paper.cleaning import CLEANING_BUDGETS, Cleaning
from cobilevel.paper.experiment import TUNING
from cobilevel.paper.methods import BARE, OWN, PER_CELL, Grid, Method, SearchRung, Setting, race
from cobilevel.paper.reproduce import write_report
from cobilevel.study import Study
from cobilevel.sweep import Runs, taken


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
    assert [concluded(entry) for entry in computed] == computed
    primary = [[one["primary"] for one in entry["readings"]] for entry in computed if entry.get("readings")]
    assert {sum(one) for one in primary} == {1}
    near = {entry["id"]: entry["misses"] for entry in computed if entry.get("misses")}
    assert near["I3"][0].startswith("Delta_y of Chebyshev[100] over cells[100]")
    assert all("misses 0.98 by 0.00" in miss for miss in near["H5"])


def test_a_page_is_written_again_from_the_one_before(tmp_path, monkeypatch):
    """Where neither runs nor summary are left; curves that were put into the folder become a reading of H1."""
    monkeypatch.setattr("cobilevel.paper.reproduce.panel_figures", lambda *_: None)
    kept = Path(__file__).parents[2] / "docs" / "results"
    for name in ("claims.json", "report.html"):
        (tmp_path / name).write_text((kept / name).read_text())
    curves = lambda end: [[2.0, end + 1e-3 * k, end + 1e-3 * k] for k in range(4)]
    rows = [
        {"N": N, "batch": 512, "validation": curves(end), "samples": [N, 2 * N, 3 * N]}
        for N, end in ((5, 0.9), (25, 0.8))
    ]
    (tmp_path / "own-batches.json").write_text(
        json.dumps({"data": "mnist", "seeds": [0, 1, 2, 3], "steps": 3, "methods": rows})
    )
    write_report(tmp_path)
    before, after = (
        {entry["id"]: entry for entry in json.loads((folder / "claims.json").read_text())}
        for folder in (kept, tmp_path)
    )
    assert {name for name in CLAIMS if before[name] != after[name]} == {"H1"}
    own = after["H1"]["readings"][-1]
    assert "own-batch[25] less own-batch[5] -0.1" in own["measured"]
    assert own["verdict"] == "holds"
    assert own["reading"] in (tmp_path / "report.html").read_text()


def test_each_cell_may_draw_a_batch_of_its_own(tmp_path):
    """A batch holds as many rows of every cell, and N times the samples are counted."""
    rng = np.random.default_rng(0)
    made = Images(
        rng.uniform(size=(60, 4)).astype(np.float32), np.arange(60) % 3, np.zeros((2, 4)), np.zeros(2, int), "made"
    )
    lab = Cleaning(CLEANING_BUDGETS["quick"], Runs(tmp_path), made)
    lab._instances = {seed: cleaning(seed, made, train=40, validation=20, dtype=np.float64) for seed in (0, 1)}
    N, batch = 3, 4
    own, split = (Method("StocBiO", family, N, batch=batch) for family in (OWN, PER_CELL))
    assert (own.drawn, split.drawn, own.scale) == (N * batch, batch, split.scale)
    lab.budget = replace(lab.budget, chunk=2, together=2)
    states, numbers, *_ = lab.stocbio(own, (0, 1), [Setting(0.1, 1.0, 2)], 2, False, None)
    assert np.isfinite(numbers["validation"]).all()
    one = _first(states)
    spent = sum(kind["samples"] for kind in one.ledger.totals().values())
    each = 2 + own.terms + 1 + 1  # batches of a step: inner steps, series, upper gradient and cross product
    assert spent == N * int(one.step) * each * split.drawn > 0
    draw = eqx.filter_jit(lambda source: source.draw(jax.random.key(3), own.drawn))
    for method in (own, split):
        reduced = taken(lab.problems(method, (0, 1)), 0)
        for source in (reduced.upper_source, reduced.lower_source):
            level = draw(source)
            assert np.isfinite(level.features).all()
            cells = np.floor((np.asarray(level.xi) - 0.1) / 9.9 * N)
            assert (np.bincount(cells.astype(int), minlength=N).tolist() == [batch] * N) == (method is own)


def _first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


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
