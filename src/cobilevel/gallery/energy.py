r"""Batteries behind the meter: the grid sets one charge on load, and owners dispatch by hour, temperature and weekday.

A battery plans the next three blocks of four hours: $y_k$ is what it delivers in block $k$ (kW, negative where it
charges). With prices $p_k$ and the load of its feeder $l_k$, both noisy given the context $\xi$, its owner solves
$$y^\star(x, \xi) = \arg\min_y E\Big[ \sum_k \tfrac{w}{2} y_k^2 - (p_k + x\, l_k)\, y_k \Big| \xi \Big], \qquad
\sum_k y_k = 0, \quad |y_k| \le c,$$
with wear $w$, a capacity $c$, and the charge $x$ per kW of load. The grid counts wear, and how
batteries change its losses, which grow with the square of the net load:
$f = \sum_k \tfrac{\ell}{2} \big((l_k - y_k)^2 - l_k^2\big) + \tfrac{w}{2} y_k^2$, in cents.
Prices follow the whole market, not this feeder, so the best charge is not the marginal loss.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..answer import COLOURS, DOTS, shown_figure, tidy
from ..problem import Bounds, Equalities, Finite, Interval, Mixed, Periodic, Problem, Samples
from .quadratic import Instance

BLOCKS, HOURS = 3, 4
DAYS = ("weekday", "weekend")
CONTEXT = ("hour", "temperature", "day")
PRICES, LOADS = (tuple(f"{what}_{k}" for k in range(BLOCKS)) for what in ("price", "load"))


@dataclass(frozen=True)
class Battery:
    """The lower level: wear against earnings, in cents."""

    wear: float

    def __call__(self, charge, power, xi, eta):
        earned = jnp.stack([eta[price] + charge * eta[load] for price, load in zip(PRICES, LOADS, strict=True)])
        return jnp.sum(self.wear / 2 * power**2 - earned * power)


@dataclass(frozen=True)
class Feeder:
    """The upper level: losses and wear, in cents."""

    loss: float
    wear: float

    def __call__(self, charge, power, xi, eta):
        load = jnp.stack([eta[name] for name in LOADS])
        return jnp.sum(self.loss / 2 * ((load - power) ** 2 - load**2) + self.wear / 2 * power**2)


@dataclass(frozen=True)
class EnergyTruth:
    """Dispatch by bisection for the price of the balance; the grid's mean cost by a rule over hours, temperatures and
    days; the best charge by brute force."""

    wear: float = 4.0
    loss: float = 6.0
    capacity: float = 1.1
    noise: tuple[float, float] = (1.0, 0.4)  # of prices (cents) and loads (kW)
    coldest: float = -5.0
    hottest: float = 35.0
    x: float = 0.0

    def means(self, xi: dict[str, Any]) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, "n 3"]]:
        """Mean prices (cents per kWh) and loads (kW) of the next three blocks."""
        weekend = (np.asarray(xi["day"]) == "weekend")[:, None]
        temperature = np.asarray(xi["temperature"], float)[:, None]
        angle = 2 * np.pi * (np.asarray(xi["hour"], float)[:, None] + HOURS * (np.arange(BLOCKS) + 0.5)) / 24
        evening, noon = np.cos(angle - 2 * np.pi * 19 / 24), np.cos(angle - 2 * np.pi * 13 / 24)
        price = 24 + np.where(weekend, 1, 2) * evening - 2 * noon
        cold, hot = (15 - temperature) / 20, (temperature - 15) / 20
        load = 4 + np.where(weekend, 0.9, 1.4) * evening + 1.2 * hot * noon + 0.8 * cold * evening + 0.6 * hot**2
        return price, load

    def policy(self, x: Any, xi: dict[str, Any]) -> Float[np.ndarray, "n 3"]:
        """What the battery delivers under the charge `x`."""
        price, load = self.means(xi)
        value = price + float(x) * load
        low, high = value.min(axis=1) - self.wear * self.capacity, value.max(axis=1) + self.wear * self.capacity
        given = lambda shadow: np.clip((value - shadow[:, None]) / self.wear, -self.capacity, self.capacity)
        for _ in range(60):
            middle = (low + high) / 2
            more = given(middle).sum(axis=1) > 0
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return given((low + high) / 2)

    def cost(self, power: Float[np.ndarray, "n 3"], xi: dict[str, Any]) -> Float[np.ndarray, " n"]:
        """The grid's mean cost at each context, with this dispatch."""
        load = self.means(xi)[1]
        return np.sum(self.loss / 2 * ((load - power) ** 2 - load**2) + self.wear / 2 * power**2, axis=1)

    def objective(self, x: Any, hours: int = 48, nodes: int = 16) -> float:
        """The grid's mean cost under the charge `x`."""
        place, weight = np.polynomial.legendre.leggauss(nodes)
        temperature = self.coldest + (place + 1) / 2 * (self.hottest - self.coldest)
        grid = np.meshgrid(np.arange(hours) * 24 / hours, temperature, [0, 1], indexing="ij")
        share = np.broadcast_to(weight[:, None] / 2 * np.array([5 / 7, 2 / 7]) / hours, grid[0].shape).ravel()
        xi = {"hour": grid[0].ravel(), "temperature": grid[1].ravel(), "day": np.array(DAYS)[grid[2].ravel()]}
        return float(share @ self.cost(self.policy(x, xi), xi))

    def table(self, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Records as they come: when, how warm, and the prices and loads that followed."""
        xi = {
            "hour": rng.uniform(0, 24, count),
            "temperature": rng.uniform(self.coldest, self.hottest, count),
            "day": rng.choice(DAYS, count, p=[5 / 7, 2 / 7]),
        }
        seen = [mean + std * rng.normal(size=mean.shape) for mean, std in zip(self.means(xi), self.noise, strict=True)]
        return xi | dict(zip(PRICES, seen[0].T, strict=True)) | dict(zip(LOADS, seen[1].T, strict=True))


def energy(seed: int = 0, train: int = 2000, test: int = 2000, capacity: float = 1.1) -> Instance:
    """Records of a feeder, read from a pandas data frame, and the owners of batteries along it.

    **Arguments:**

    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.
    - `capacity`: the capacity of a battery, in kW.

    **Example:**

    >>> case = cb.gallery.energy(0, train=200, test=200)
    >>> case.problem.domain.names
    ('hour', 'temperature', 'day')
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("gallery.energy needs pandas: pip install pandas.") from error
    rng, truth, low, high = np.random.default_rng(seed), EnergyTruth(capacity=capacity), 0.0, 8.0
    for _ in range(3):  # a grid, and finer ones around its best point
        grid = np.linspace(low, high, 17)
        at = int(np.argmin([truth.objective(x) for x in grid]))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, 16)]
    problem = Problem(
        upper=Feeder(truth.loss, truth.wear),
        lower=Battery(truth.wear),
        x0=0.0,
        y0=jnp.zeros(BLOCKS),
        domain=Mixed(hour=Periodic(0, 24), temperature=Interval(truth.coldest, truth.hottest), day=Finite(list(DAYS))),
        x_bounds=(0.0, 8.0),
        constraints=[Equalities(np.ones((1, BLOCKS)), 0.0), Bounds(-truth.capacity, truth.capacity)],
    )
    tables = [pandas.DataFrame(truth.table(count, rng)) for count in (train, test)]
    rows = [Samples.from_frame(table, context=list(CONTEXT), eta=[*PRICES, *LOADS]) for table in tables]
    return Instance(problem, rows[0], rows[1], replace(truth, x=float(grid[at])))


def draw_energy(instance: Instance, solution: Any) -> Any:
    """What the battery delivers in the block ahead, by hour, on cold and hot days; and the grid's savings by charge.

    **Arguments:**

    - `instance`: what ``cb.gallery.energy`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.energy(0, train=400, test=200)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(2), steps=2)
    >>> figure = cb.gallery.draw_energy(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, hour = instance.truth, np.linspace(0, 24, 193)
    figure = shown_figure(10, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    shown = [(0.0, "weekday", COLOURS[0]), (32.0, "weekday", COLOURS[1]), (32.0, "weekend", COLOURS[3])]
    for temperature, day, colour in shown:
        xi = {"hour": hour, "temperature": np.full(len(hour), temperature), "day": np.full(len(hour), day)}
        left.plot(hour, np.asarray(solution.policy(xi))[:, 0], color=colour, lw=2, label=f"{temperature:.0f} °C, {day}")
        left.plot(hour, truth.policy(solution.x, xi)[:, 0], color=colour, lw=1.2, ls="--")
    left.plot([], [], color="black", ls="--", lw=1.2, label="exact, law known")
    for side in (-1, 1):
        left.axhline(side * truth.capacity, color=COLOURS[4], lw=1)
    seen = np.asarray(instance.train.xi["hour"])[:DOTS]
    left.plot(seen, np.full(len(seen), -1.12 * truth.capacity), "|", color="black", alpha=0.15)
    left.set(xlabel="hour of the day", ylabel=f"delivered in the next {HOURS} hours (kW)", xlim=(0, 24))
    left.set(xticks=range(0, 25, 6), ylim=(-1.2 * truth.capacity, 1.75 * truth.capacity))
    left.legend(frameon=False, ncols=2, loc="upper center", fontsize="small")
    grid = np.linspace(0, 6, 49)
    right.plot(grid, [-truth.objective(x) for x in grid], color=COLOURS[5], ls="--", label="exact")
    right.plot(float(solution.x), -truth.objective(solution.x), "o", color=COLOURS[1], label="found from samples")
    low, high = np.clip(np.asarray(solution.interval, float), grid[0], grid[-1])
    right.axvspan(low, high, color=COLOURS[1], alpha=0.12, lw=0, label="95% interval")
    right.set(xlabel="charge (cents per kWh and kW of load)", ylabel="savings of a plan (cents)")
    right.legend(frameon=False)
    tidy(left, right)
    return figure
