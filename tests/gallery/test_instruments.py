"""Instrumental variables: two-stage least squares to rounding, and a curve that no straight line follows."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.special

import cobilevel as cb
from cobilevel.gallery.instruments import draw_instruments, instrumental, instruments

TABLES = {  # outcome, treatment, controls, instruments, and the digits that the reference has there
    "mroz": ("lwage", "educ", ["exper", "expersq"], ["fatheduc", "motheduc"], 1e-10),
    "wage": ("lwage", "educ", ["exper", "tenure", "married"], ["feduc", "meduc", "sibs"], 1e-10),
    "meps": ("ldrugexp", "hi_empunion", ["totchr", "age", "linc", "blhisp"], ["ssiratio"], 1e-10),
    "card": ("lwage", "educ", ["exper", "expersq", "black", "south", "smsa"], ["nearc4"], 1e-9),
}


@pytest.fixture(scope="module")
def case():
    instance = instruments(0)
    return instance, cb.solve(instance.problem, instance.train)


@pytest.mark.parametrize("name", TABLES)
def test_a_linear_basis_is_two_stage_least_squares(name):
    """On ``card`` the reference itself is off by 1.4e-10, ours by 6e-14 (in rational arithmetic)."""
    iv = pytest.importorskip("linearmodels.iv")
    outcome, treatment, controls, excluded, digits = TABLES[name]
    frame = importlib.import_module(f"linearmodels.datasets.{name}").load()
    frame = frame[[outcome, treatment, *controls, *excluded]].dropna().astype(float)
    problem, samples, linear, _ = instrumental(frame, outcome, treatment, excluded, controls)
    x = np.asarray(cb.solve(problem, samples, basis=linear, solver=cb.Newton(tolerance=1e-14, memory=2)).x)
    fit = iv.IV2SLS(frame[outcome], frame[controls].assign(one=1.0), frame[[treatment]], frame[excluded]).fit()
    np.testing.assert_allclose(x, fit.params[["one", treatment, *controls]].to_numpy(), rtol=digits)


def test_the_curve_is_found_and_a_line_is_not(case):
    instance, solution = case
    truth = instance.truth
    assert solution.converged
    assert truth.objective(solution.x) == pytest.approx(truth.objective(truth.x), rel=1e-2)
    fare = np.asarray(instance.train.eta["treatment"])
    span = np.linspace(*np.quantile(fare, [0.01, 0.99]), 100)
    table = np.asarray(truth.basis(span))
    error = lambda curve: float(np.sqrt(np.mean((curve - truth.curve(span)) ** 2)))
    iv = pytest.importorskip("linearmodels.iv")
    z, sales = np.asarray(instance.train.xi), np.asarray(instance.train.eta["outcome"])
    line = iv.IV2SLS(sales, np.ones(len(z)), fare, z).fit().params.to_numpy()
    plain = np.linalg.lstsq(np.asarray(truth.basis(fare)), sales, rcond=None)[0]
    ours = error(table @ np.asarray(solution.x))
    assert ours < error(line[0] + line[1] * span) / 2
    assert ours < error(table @ plain) / 4


def test_the_best_curve_is_that_of_very_many_rows(case):
    """Brute force: least squares on means over 5000 quantiles of the unseen cause at each of 200 instruments."""
    truth, v = case[0].truth, scipy.special.ndtri((np.arange(5000) + 0.5) / 5000)
    z = (np.arange(200) + 0.5) / 200
    fare = truth.treatment(z[:, None], v)
    design, sales = np.asarray(truth.basis(fare)).mean(axis=1), (truth.curve(fare) + 1.2 * v).mean(axis=1)
    np.testing.assert_allclose(design, truth.design(z), rtol=1e-3, atol=1e-3)
    x = np.linalg.lstsq(design, sales, rcond=None)[0]
    assert truth.objective(x) == pytest.approx(truth.objective(truth.x), rel=1e-5)


def test_the_certificate_covers_the_objective(case):
    instance, solution = case
    low, high = cb.certify(instance.problem, solution, instance.test).objective.interval
    assert low <= instance.truth.objective(solution.x) <= high


def test_a_weak_instrument_determines_nothing():
    instance = instruments(0, train=1000, strength=0.01)
    solution = cb.solve(instance.problem, instance.train)
    assert not np.isfinite(solution.uncertainty.interval).any()
    assert "not determined" in str(solution)


def test_the_page_runs(case, tmp_path):
    pytest.importorskip("linearmodels")
    page = (Path(__file__).parents[2] / "docs" / "gallery" / "instruments.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(code, names)
    assert names["solution"].converged
    figure = draw_instruments(*case)
    figure.savefig(tmp_path / "instruments.png")
    assert len(figure.axes) == 2
