"""The wholesale price of a newsvendor against prices tried one by one, with orders from numerical integration."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import cobilevel as cb
from cobilevel.gallery.newsvendor import WEEKDAYS, draw_newsvendor, newsvendor


@pytest.fixture(scope="module")
def case():
    instance = newsvendor(0)
    return instance, cb.solve(instance.problem, instance.train)


def quantile(contract, ratio, low, reach):
    """The order by bisection on the mean slope of the kiosk's loss, integrated numerically."""

    def slope(order):
        sold_out = lambda demand: 1 / (1 + np.exp(-(order - demand) / contract.rounding))
        return scipy.integrate.quad(sold_out, low, low + reach)[0] / reach - ratio

    return scipy.optimize.brentq(slope, low - 200, low + reach + 200, xtol=1e-12)


def test_the_order_has_a_closed_form(case):
    truth = case[0].truth
    for price, degrees, day in ((1.5, 10.0, "Mon"), (2.8, 25.0, "Sat"), (3.7, 35.0, "Sun")):
        low, reach = truth.demand(degrees, WEEKDAYS.index(day))
        exact = quantile(truth.contract, 1 - price / truth.contract.retail, low, reach)
        assert truth.policy(price, {"temperature": degrees, "weekday": day}) == pytest.approx(exact, abs=1e-8)


def test_nothing_set_the_price_is_the_best_of_all(case):
    """Prices a cent apart, orders from a table of demand: no closed form, no derivative."""
    instance, solution = case
    truth, contract = instance.truth, instance.truth.contract
    share, degrees = (np.arange(100) + 0.5) / 100, np.linspace(truth.coldest, truth.hottest, 29)
    low, reach = truth.demand((degrees[1:, None] + degrees[:-1, None]) / 2, np.arange(7))
    demand = (low[..., None] + reach[..., None] * share).reshape(-1, 100)
    prices, profits = np.arange(1.5, 3.8, 0.01), []
    order = np.mean(demand, axis=1)
    for price in prices:
        for _ in range(4):  # Newton's method from the order at the price before
            sold_out = 1 / (1 + np.exp(-(order[:, None] - demand) / contract.rounding))
            bend = np.mean(sold_out * (1 - sold_out), axis=1) / contract.rounding
            order = order - (np.mean(sold_out, axis=1) - 1 + price / contract.retail) / bend
        profits.append((price - contract.cost) * np.mean(order))
    best = int(np.argmax(profits))
    assert truth.x == pytest.approx(prices[best], abs=0.011)
    assert -truth.objective(truth.x) == pytest.approx(profits[best], rel=1e-4)
    assert solution.converged
    assert truth.objective(solution.x) == pytest.approx(truth.objective(truth.x), rel=1e-2)
    low, high = np.ravel(solution.uncertainty.interval)
    assert low <= truth.x <= high


def test_the_certificate_covers_the_objective(case):
    instance, solution = case
    found = cb.certify(instance.problem, solution, instance.test)
    low, high = found.objective.interval
    assert low <= instance.truth.objective(solution.x) <= high
    exact = instance.truth.policy(solution.x, instance.test.xi)
    error = float(np.mean((np.asarray(solution.policy(instance.test.xi)) - exact) ** 2))
    assert found.policy_error.low <= error <= found.policy_error.high


def test_the_page_runs(case, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "gallery" / "newsvendor.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(code, names)
    assert float(names["solution"].x) == pytest.approx(2.83, abs=0.06)
    figure = draw_newsvendor(*case)
    figure.savefig(tmp_path / "newsvendor.png")
    assert len(figure.axes) == 2
