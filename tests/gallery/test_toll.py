"""Tolls for drivers who choose by logit, against tolls tried one by one with exact flows."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb
from cobilevel.gallery.toll import draw_toll, toll


@pytest.fixture(scope="module")
def case():
    instance = toll(0)
    return instance, cb.solve(instance.problem, instance.train)


def test_the_exact_flows_are_a_fixed_point_of_logit(case):
    truth = case[0].truth
    demand = np.linspace(truth.low, truth.high, 9)
    for tolls in ((0.0, 0.0), (1.3, 0.8), (6.0, 0.1)):
        flow = truth.policy(tolls, demand)
        np.testing.assert_allclose(flow, truth.logit(tolls, demand, flow), rtol=1e-10)
        np.testing.assert_allclose(flow.sum(axis=1), demand, rtol=1e-12)


def test_drivers_minimise_what_the_problem_states(case):
    """At one demand, by SciPy on the lower level as it stands, delays at their means."""
    instance, _ = case
    truth, demand, tolls = instance.truth, 6.0, np.array([1.0, 0.5])
    delays = dict(zip(("tunnel", "bridge", "ring"), truth.delays(demand), strict=True))
    value = lambda free: float(truth.roads.drivers(tolls, np.array([*free, demand - sum(free)]), demand, delays))
    free = scipy.optimize.minimize(value, [2.0, 2.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}).x
    np.testing.assert_allclose(free, truth.policy(tolls, demand)[:2], atol=1e-5)


def test_nothing_set_the_tolls_are_the_best_of_all(case):
    instance, solution = case
    truth = instance.truth
    best = truth.x
    sides = [np.linspace(0, 3, 16)] * 2
    table = np.array([[truth.objective((a, b)) for b in sides[1]] for a in sides[0]])
    place = np.unravel_index(np.argmin(table), table.shape)
    np.testing.assert_allclose(best, [side[k] for side, k in zip(sides, place, strict=True)], atol=0.2)
    assert truth.objective(best) <= table.min()
    assert solution.converged
    assert truth.objective(solution.x) == pytest.approx(truth.objective(best), rel=1e-4)
    low, high = solution.uncertainty.interval
    assert np.all((low <= best) & (best <= high))


def test_the_certificate_covers_the_objective(case):
    instance, solution = case
    low, high = cb.certify(instance.problem, solution, instance.test).objective.interval
    assert low <= instance.truth.objective(solution.x) <= high


def test_the_page_runs(case, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "gallery" / "toll.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(code, names)
    np.testing.assert_allclose(names["solution"].x, case[0].truth.x, atol=0.1)
    figure = draw_toll(*case)
    figure.savefig(tmp_path / "toll.png")
    assert len(figure.axes) == 3
