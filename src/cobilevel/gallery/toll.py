r"""Tolls on two of three roads into a city, for drivers who choose by logit.

Of a demand $\xi$ (thousand cars an hour) the flow $y_i$ takes road $i$ and needs $t_i(y_i) + \eta_i$ minutes, with
$t_i(y) = t^0_i (1 + (y / c_i)^2)$ and random delays $\eta$. With tolls $x_i$ (euros; the ring is free), the value $v$
of a minute and the dispersion $\theta$ of tastes, flows are the stochastic user equilibrium: they minimise
$$E[\, g \mid \xi \,], \quad g = \sum_i \int_0^{y_i} t_i + (x_i / v + \eta_i)\, y_i + \theta^{-1} y_i \log y_i \quad
\text{where} \quad \sum_i y_i = \xi$$
(Fisk, "Some developments in equilibrium traffic assignment", 1980), so that with $\bar\eta = E[\eta \mid \xi]$
$$y_i = \xi \, \mathrm{softmax}_i(-\theta\, (t_i(y_i) + \bar\eta_i + x_i / v)).$$
The city wants tolls that minimise the total time $E \sum_i y_i (t_i(y_i) + \eta_i)$. They are the same at every hour.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..answer import COLOURS, shown_figure, tidy
from ..problem import Equalities, Interval, Problem, Samples
from .quadratic import Instance

ROADS = ("tunnel", "bridge", "ring")


class Routes(eqx.Module):
    """Free times (minutes), capacities (thousand cars an hour), and drivers' tastes."""

    free_time: tuple[float, ...] = (12.0, 16.0, 22.0)
    capacity: tuple[float, ...] = (3.0, 4.0, 8.0)
    dispersion: float = 0.3  # of tastes, for each minute
    minute: float = 0.25  # euros
    least: float = 0.01  # thousand cars: below, the entropy goes on as a parabola, so that every flow has a value

    def times(self, flow: Any) -> Any:
        """Minutes on each road, without delays."""
        return np.array(self.free_time) * (1 + (flow / np.array(self.capacity)) ** 2)

    def city(self, tolls: ArrayLike, flow: Any, demand: ArrayLike, eta: Any) -> Float[Array, ""]:
        """The upper level: the time that all spend, in thousand minutes an hour."""
        return jnp.sum(flow * (self.times(flow) + jnp.stack([eta[road] for road in ROADS])))

    def drivers(self, tolls: Any, flow: Any, demand: ArrayLike, eta: Any) -> Float[Array, ""]:
        """The lower level: Fisk's potential."""
        delays = jnp.stack([eta[road] for road in ROADS])
        paid = jnp.concatenate([tolls, jnp.zeros(1, tolls.dtype)]) / self.minute
        within = flow * np.array(self.free_time) * (1 + (flow / np.array(self.capacity)) ** 2 / 3)
        some, e = jnp.maximum(flow, self.least), self.least
        beyond = jnp.minimum(flow - e, 0)
        entropy = some * jnp.log(some) + beyond * (np.log(e) + 1) + beyond**2 / (2 * e)
        return jnp.sum(within + flow * (paid + delays) + entropy / self.dispersion)


@dataclass(frozen=True)
class TollTruth:
    """The mean delays, the exact flows, and the best tolls."""

    roads: Routes
    low: float = 2.0  # thousand cars an hour
    high: float = 8.0

    def delays(self, demand: Any) -> np.ndarray:
        """Mean delays in minutes: the tunnel's queue grows with demand, the bridge has traffic lights."""
        demand = np.asarray(demand, float)
        return np.stack([4 * (demand / 8) ** 3, 1 + 0 * demand, 0 * demand], axis=-1)

    def logit(self, x: Any, demand: Any, flow: Any) -> np.ndarray:
        """How drivers would choose if times were those at `flow`."""
        paid = np.append(np.asarray(x, float), 0.0) / self.roads.minute
        utility = -self.roads.dispersion * (self.roads.times(flow) + self.delays(demand) + paid)
        shares = np.exp(utility - utility.max(axis=-1, keepdims=True))
        return np.asarray(demand, float)[..., None] * shares / shares.sum(axis=-1, keepdims=True)

    def policy(self, x: Any, xi: Any) -> np.ndarray:
        """Exact flows, the fixed point of ``logit``: Newton's method on its logarithm, flows kept positive."""
        demand, roads = np.asarray(xi, float)[..., None], self.roads
        flow, paid = demand * np.full(len(ROADS), 1 / len(ROADS)), np.append(np.asarray(x, float), 0.0) / roads.minute
        for _ in range(15):
            cost = roads.times(flow) + self.delays(xi) + paid + np.log(flow) / roads.dispersion
            give = 1 / (
                2 * np.array(roads.free_time) * flow / np.array(roads.capacity) ** 2 + 1 / (roads.dispersion * flow)
            )
            level = (np.sum(give * cost - flow, axis=-1) + demand[..., 0]) / np.sum(give, axis=-1)
            flow = np.maximum(flow + give * (level[..., None] - cost), flow / 5)
        return flow

    def objective(self, x: Any) -> float:
        """The mean total time; demand is uniform (Gauss and Legendre)."""
        nodes, weights = np.polynomial.legendre.leggauss(24)
        demand = self.low + (self.high - self.low) * (nodes + 1) / 2
        flow = self.policy(x, demand)
        return float(weights @ np.sum(flow * (self.roads.times(flow) + self.delays(demand)), axis=-1) / 2)

    @property
    def x(self) -> np.ndarray:
        """The best tolls, by a search without derivatives."""
        from scipy.optimize import minimize  # takes long to import

        options = {"xatol": 1e-7, "fatol": 1e-12}
        return minimize(self.objective, np.ones(2), method="Nelder-Mead", options=options).x


def toll(seed: int = 0, train: int = 2000, test: int = 2000) -> Instance:
    """Hours with their demand and the delays on three roads, as a data frame; a city looks for two tolls.

    **Arguments:**

    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.

    **Example:**

    >>> case = cb.gallery.toll(0, train=200, test=200)
    >>> case.problem.x0.shape
    (2,)
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("toll needs pandas: pip install pandas.") from error

    rng, roads = np.random.default_rng(seed), Routes()
    truth = TollTruth(roads)

    def observe(hours):
        demand = rng.uniform(truth.low, truth.high, hours)
        delays = truth.delays(demand) + rng.normal(size=(hours, 3)) * np.array([3.0, 2.0, 1.0])
        table = pd.DataFrame({"demand": demand} | dict(zip(ROADS, delays.T, strict=True)))
        return Samples.from_frame(table, context="demand", eta=list(ROADS))

    problem = Problem(
        roads.city,
        roads.drivers,
        x0=jnp.ones(2),
        y0=jnp.ones(3),
        domain=Interval(truth.low, truth.high),
        x_bounds=(0.0, 20.0),
        constraints=[Equalities(np.ones((1, 3)), lambda tolls, demand: demand)],
    )
    return Instance(problem, observe(train), observe(test), truth)


def draw_toll(instance: Instance, solution: Any) -> Any:
    """Left: flows over demand with tolls and without; right: total time over the two tolls, with the tolls found.

    **Arguments:**

    - `instance`: what ``cb.gallery.toll`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.toll(0, train=300, test=200)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), steps=2)
    >>> figure = cb.gallery.draw_toll(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, figure = instance.truth, shown_figure(10, 4.2)
    flows, times = figure.subplots(1, 2)
    demand = np.linspace(truth.low, truth.high, 200)
    found, exact = np.asarray(solution.policy(jnp.asarray(demand))), truth.policy(solution.x, demand)
    free = truth.policy(np.zeros(2), demand)
    for j, (road, colour) in enumerate(zip(ROADS, COLOURS, strict=False)):
        flows.plot(demand, found[:, j], color=colour, lw=1.8, label=road)
        flows.plot(demand, exact[:, j], "--", color="black", lw=0.9)
        flows.plot(demand, free[:, j], ":", color=colour, lw=1.2)
    flows.plot([], [], "--", color="black", lw=0.9, label="exact")
    flows.plot([], [], ":", color="grey", lw=1.2, label="without tolls")
    flows.set(xlabel="demand (1000 cars an hour)", ylabel="flow (1000 cars an hour)", title="Flows at the tolls found")
    flows.legend(frameon=False, fontsize="small")

    best = truth.x
    sides = [np.linspace(0, 2 * value, 15) for value in best]
    table = np.array([[truth.objective((a, b)) for a in sides[0]] for b in sides[1]])
    map_ = times.contourf(*sides, table, levels=16, cmap="viridis")
    figure.colorbar(map_, ax=times, label="total time (1000 minutes an hour)")
    error = 1.96 * np.asarray(solution.standard_error)
    times.errorbar(
        *np.asarray(solution.x), error[1], error[0], fmt="o", color=COLOURS[1], capsize=3, label="found, 95%"
    )
    times.plot(*best, "+", color="white", ms=12, mew=1.5, label="exact")
    times.set(xlabel="toll of the tunnel (€)", ylabel="toll of the bridge (€)", title="The city's objective")
    times.legend(fontsize="small", facecolor="grey", framealpha=0.5)
    tidy(flows)
    return figure
