r"""A wholesale price for a kiosk that orders ice cream by the weather forecast and the weekday.

The kiosk sells at the price $p$ and buys at $w$; what is left over is lost. Given temperature and weekday it orders
$$q^\star(w, \xi) = \arg\min_q E[w q - p q + p h \, \mathrm{softplus}((q - d) / h) \mid \xi],$$
the newsvendor's cost $w q - p \min(q, d)$ with its kink rounded over $h$ portions. The dairy sets the wholesale price
that maximises its profit $E (w - c) q^\star(w, \xi)$ (Lariviere and Porteus, "Selling to the newsvendor", 2001). Demand
is uniform on $[a(\xi), a(\xi) + r(\xi)]$, so with the critical ratio $s = 1 - w / p$ the order has the closed form
$$q^\star = a + h \log \frac{e^{s r / h} - 1}{1 - e^{-(1 - s) r / h}},$$
which tends to the quantile $a + s r$ as $h \to 0$.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ..answer import COLOURS, DOTS, shown_figure, tidy
from ..ground import module_of
from ..problem import Finite, Interval, Mixed, Problem, Samples
from .quadratic import Instance

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Contract(eqx.Module):
    """What both parties know: the retail price, the dairy's unit cost, and how far the kink is rounded."""

    retail: float = 4.0  # euros a portion
    cost: float = 1.0
    rounding: float = 8.0  # portions

    def dairy(self, wholesale: Any, order: Any, xi: Any, eta: Any) -> Float[Array, ""]:
        """The upper level: the dairy's loss on one order."""
        return -(wholesale - self.cost) * order

    def kiosk(self, wholesale: Any, order: Any, xi: Any, eta: Any) -> Float[Array, ""]:
        """The lower level: the kiosk's loss on one day, smoothed."""
        unsold = self.rounding * jax.nn.softplus((order - eta["demand"]) / self.rounding)
        return wholesale * order - self.retail * (order - unsold)


@dataclass(frozen=True)
class NewsvendorTruth:
    """The law of demand, the exact order for every context, and the best wholesale price."""

    contract: Contract
    coldest: float = 8.0  # degrees
    hottest: float = 36.0

    def demand(self, temperature: Any, weekday: Any) -> tuple[Any, Any]:
        """The least demand and its range, in portions; `weekday` counts from Monday."""
        np_or_jax = module_of(temperature)
        temperature = np_or_jax.asarray(temperature, float)
        warm = 1 / (1 + np_or_jax.exp(-(temperature - 23) / 4))
        usual = np_or_jax.asarray([0.85, 0.8, 0.85, 0.9, 1.1, 1.5, 1.4], temperature.dtype)
        crowd = usual[np_or_jax.asarray(weekday, int)]
        return crowd * (8 + 14 * warm), crowd * (35 + 45 * warm)

    def draw(self, key: Array, xi: Any, size: int) -> dict[str, Array]:
        """Demand on days of one context: the sampler that ``Problem(conditional=...)`` takes."""
        low, reach = self.demand(xi["temperature"], xi["weekday"])
        return {"demand": low + reach * jax.random.uniform(key, (size,), low.dtype)}

    def policy(self, x: Any, xi: Any) -> np.ndarray:
        """The exact order at the wholesale price `x`; `xi` has temperatures, and weekdays as strings or numbers."""
        weekday = np.asarray(xi["weekday"])
        if weekday.dtype.kind not in "iuf":
            weekday = np.vectorize(WEEKDAYS.index)(weekday)
        low, reach = self.demand(xi["temperature"], weekday)
        h, ratio = self.contract.rounding, 1 - np.asarray(x, float) / self.contract.retail
        sold, unsold = ratio * reach / h, (1 - ratio) * reach / h
        return low + h * (sold + np.log(-np.expm1(-sold)) - np.log(-np.expm1(-unsold)))

    def objective(self, x: Any) -> float:
        """The dairy's mean loss: temperatures are uniform (Gauss and Legendre), weekdays equally frequent."""
        nodes, weights = np.polynomial.legendre.leggauss(60)
        temperature = self.coldest + (self.hottest - self.coldest) * (nodes + 1) / 2
        order = self.policy(x, {"temperature": temperature[:, None], "weekday": np.arange(7)[None, :]})
        return float(-(np.asarray(x, float) - self.contract.cost) * np.mean(weights @ order / 2))

    @property
    def x(self) -> float:
        """The best wholesale price, by a search over all of them."""
        from scipy.optimize import minimize_scalar  # takes long to import

        ends = self.contract.cost, self.contract.retail * (1 - 1e-6)
        search: Any = minimize_scalar(self.objective, bounds=ends, method="bounded", options={"xatol": 1e-10})
        return float(search.x)


def newsvendor(seed: int = 0, train: int = 3000, test: int = 3000) -> Instance:
    """Days of a kiosk as a data frame with temperature, weekday and demand; the dairy looks for a wholesale price.

    Demand is known only through joint samples with the weather: no two days have the same temperature.

    **Arguments:**

    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.

    **Example:**

    >>> case = cb.gallery.newsvendor(0, train=200, test=200)
    >>> case.problem.domain.names
    ('temperature', 'weekday')
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("newsvendor needs pandas: pip install pandas.") from error

    rng, contract = np.random.default_rng(seed), Contract()
    truth = NewsvendorTruth(contract)

    def observe(days):
        temperature, weekday = rng.uniform(truth.coldest, truth.hottest, days), rng.integers(7, size=days)
        low, reach = truth.demand(temperature, weekday)
        table = pd.DataFrame({"temperature": temperature, "weekday": np.array(WEEKDAYS)[weekday]})
        table["demand"] = low + reach * rng.uniform(size=days)
        return Samples.from_frame(table, context=["temperature", "weekday"], eta=["demand"])

    domain = Mixed(temperature=Interval(truth.coldest, truth.hottest), weekday=Finite(WEEKDAYS))
    prices = contract.cost, contract.retail
    problem = Problem(contract.dairy, contract.kiosk, x0=2.0, y0=30.0, domain=domain, x_bounds=prices)
    return Instance(problem, observe(train), observe(test), truth)


def draw_newsvendor(instance: Instance, solution: Any) -> Any:
    """Left: what the kiosk orders at the price found, over the weather; right: the dairy's profit over its price.

    **Arguments:**

    - `instance`: what ``cb.gallery.newsvendor`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.newsvendor(0, train=300, test=200)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(2), steps=2)
    >>> figure = cb.gallery.draw_newsvendor(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, figure = instance.truth, shown_figure(10, 4.2)
    orders, profits = figure.subplots(1, 2)
    observed, demand = instance.train.xi, np.asarray(instance.train.eta["demand"])
    degrees = np.linspace(truth.coldest, truth.hottest, 200)
    for day, colour in zip(("Tue", "Fri", "Sat"), COLOURS, strict=False):
        xi = {"temperature": degrees, "weekday": day}
        those = np.flatnonzero(np.asarray(observed["weekday"]) == day)[:DOTS]
        spots = np.asarray(observed["temperature"])[those]
        orders.plot(spots, demand[those], ".", ms=4, mew=0, color=colour, alpha=0.25)
        orders.plot(degrees, np.asarray(solution.policy(xi)), color=colour, lw=1.8, label=day)
        orders.plot(degrees, truth.policy(solution.x, xi), "--", color="black", lw=0.9)
    orders.plot([], [], "--", color="black", lw=0.9, label="exact")
    orders.plot([], [], ".", ms=4, mew=0, color="grey", alpha=0.5, label="demand, one day")
    orders.set(xlabel="temperature (°C)", ylabel="portions ordered", title="The kiosk's order", ylim=(0, None))
    orders.legend(frameon=False, fontsize="small")

    prices = np.linspace(truth.contract.cost, truth.contract.retail - 0.01, 200)
    profits.plot(prices, [-truth.objective(w) for w in prices], "--", color="black", lw=1.2, label="exact")
    low, high = np.ravel(solution.uncertainty.interval)
    profits.axvspan(low, high, color=COLOURS[0], alpha=0.2, lw=0, label="95% interval of the price")
    profits.plot(float(solution.x), -truth.objective(solution.x), "o", color=COLOURS[0], label="price found")
    profits.set(xlabel="wholesale price (€)", ylabel="profit a day (€)", title="The dairy's profit", ylim=(0, None))
    profits.legend(frameon=False, fontsize="small")
    tidy(orders, profits)
    return figure
