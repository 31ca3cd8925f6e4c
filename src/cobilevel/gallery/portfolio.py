r"""A portfolio by mandate: the owner sets one number, the risk aversion, and the manager invests by the market's state.

The state $\xi$ is a volatility index in percent. A month has four weeks, with returns $r_1, \dots, r_4$ of three assets
in percent: normal and independent given $\xi$ and whether the month is calm or a slow crash, which happens with
probability $p(\xi)$. The manager takes risk for the variance of weekly returns, as in Markowitz (Portfolio selection,
Journal of Finance, 1952), and holds weights on the simplex:
$$w^\star(\gamma, \xi) = \arg\min_{w \in \Delta} E[\, \sum_t \tfrac{\gamma}{200} (r_t^T w)^2 - r_t^T w \mid \xi \,].$$
The owner counts months, $f = \tfrac{100}{a} (e^{-a \sum_t r_t^T w / 100} - 1)$, whose mean is minus a utility in
percent a month. Weeks hide a fall that lasts a month, so the best mandate $\gamma$ is above the owner's aversion $a$.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..answer import COLOURS, DOTS, shown_figure, tidy
from ..problem import Interval, Problem, Samples, Simplex
from .quadratic import Instance

ASSETS, WEEKS = ("bonds", "stocks", "gold"), 4


def manager(gamma, weights, volatility, returns):
    """The lower level: squares of weekly returns against their sum, in percent."""
    earned = returns @ weights
    return jnp.sum(gamma * earned**2 / 200 - earned)


@dataclass(frozen=True)
class Utility:
    """The upper level: minus the utility of constant absolute risk aversion `aversion`, in percent."""

    aversion: float

    def __call__(self, gamma, weights, volatility, returns):
        return 100 * jnp.expm1(-self.aversion * jnp.sum(returns @ weights) / 100) / self.aversion


@dataclass(frozen=True)
class Market:
    """The law of the returns given the volatility index, between `low` and `high` percent."""

    low: float = 10.0
    high: float = 50.0

    def crash(self, xi: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The probability of a crash."""
        return 0.03 + 0.07 * (xi - self.low) / (self.high - self.low)

    def moments(self, xi: Float[np.ndarray, " n"]) -> tuple[Any, Any, Any]:
        """Probabilities ``(n, 2)``, means ``(n, 2, 3)`` and covariances ``(n, 2, 3, 3)``, calm and crash."""
        share, one = (xi - self.low) / (self.high - self.low), np.ones_like(xi)
        calm = np.stack([0.35 * one, 2.6 - 0.4 * share, 0.4 + 0.6 * share], axis=1)
        crash = np.stack([0.5 * one, -14 - 2 * share, 1.0 * one], axis=1)
        sigma = np.stack([0.7 * one, 1.8 + 2.2 * share, 2.0 * one], axis=1)
        correlation = np.array([[1.0, 0.1, 0.2], [0.1, 1.0, 0.0], [0.2, 0.0, 1.0]])
        covariance = sigma[:, :, None] * correlation * sigma[:, None, :]
        crashes = self.crash(xi)
        return (
            np.stack([1 - crashes, crashes], axis=1),
            np.stack([calm, crash], axis=1),
            np.stack([covariance, 2 * covariance], axis=1),
        )

    def seen(self, xi: Float[np.ndarray, " n"]) -> tuple[Any, Any]:
        """Conditional means ``(n, 3)`` of a month, and second moments ``(n, 3, 3)`` of its weeks, added up."""
        share, mean, covariance = self.moments(xi)
        square = covariance + mean[..., :, None] * mean[..., None, :] / WEEKS
        return np.einsum("nk,nka->na", share, mean), np.einsum("nk,nkab->nab", share, square)

    def draw(self, count: int, rng: np.random.Generator) -> Samples:
        """Months, each with the returns ``(4, 3)`` of its weeks."""
        xi = rng.uniform(self.low, self.high, count)
        share, mean, covariance = self.moments(xi)
        which, every = (rng.uniform(size=count) < share[:, 1]).astype(int), np.arange(count)
        root = np.linalg.cholesky(covariance[every, which] / WEEKS)
        noise = np.einsum("nab,ntb->nta", root, rng.normal(size=(count, WEEKS, len(ASSETS))))
        return Samples(xi, mean[every, which][:, None] / WEEKS + noise)


@dataclass(frozen=True)
class PortfolioTruth:
    """Weights from the optimality conditions on every face of the simplex, the owner's loss in closed form given the
    state, its mean by Gauss-Legendre quadrature, and the best mandate by brute force."""

    market: Market
    aversion: float
    x: float = 0.0

    def policy(self, x: Any, xi: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 3"]:
        """The manager's weights under the mandate `x`."""
        xi, gamma = np.atleast_1d(np.asarray(xi, float)), float(x)
        mean, square = self.market.seen(xi)
        best, weights = np.full(len(xi), np.inf), np.zeros((len(xi), len(ASSETS)))
        for size in range(1, len(ASSETS) + 1):
            for face in map(list, combinations(range(len(ASSETS)), size)):
                matrix = np.zeros((len(xi), size + 1, size + 1))
                matrix[:, :size, :size] = gamma / 100 * square[:, face][:, :, face]
                matrix[:, size, :size] = matrix[:, :size, size] = 1
                right = np.concatenate([mean[:, face], np.ones((len(xi), 1))], axis=1)
                held = np.zeros((len(xi), len(ASSETS)))
                held[:, face] = np.linalg.solve(matrix, right[..., None])[:, :size, 0]
                value = gamma / 200 * np.einsum("na,nab,nb->n", held, square, held) - np.sum(mean * held, axis=1)
                better = (held.min(axis=1) >= 0) & (value < best)
                best, weights = np.where(better, value, best), np.where(better[:, None], held, weights)
        return weights

    def loss(self, weights: Float[np.ndarray, "n 3"], xi: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The owner's mean loss in each state, with these weights."""
        share, mean, covariance = self.market.moments(xi)
        a = self.aversion / 100
        exponent = -a * np.einsum("nka,na->nk", mean, weights)
        exponent += a**2 / 2 * np.einsum("na,nkab,nb->nk", weights, covariance, weights)
        return np.sum(share * np.expm1(exponent), axis=1) / a

    def objective(self, x: Any, nodes: int = 60) -> float:
        """The owner's mean loss under the mandate `x`."""
        place, weight = np.polynomial.legendre.leggauss(nodes)
        xi = self.market.low + (place + 1) / 2 * (self.market.high - self.market.low)
        return float(weight @ self.loss(self.policy(x, xi), xi) / 2)


def portfolio(seed: int = 0, train: int = 4000, test: int = 4000, aversion: float = 10.0) -> Instance:
    """Months of a volatility index and three returns; the owner's risk aversion is `aversion`.

    **Arguments:**

    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.
    - `aversion`: the owner's risk aversion.

    **Example:**

    >>> case = cb.gallery.portfolio(0, train=200, test=200)
    >>> case.problem.y0.shape
    (3,)
    """
    rng, market = np.random.default_rng(seed), Market()
    truth, low, high = PortfolioTruth(market, aversion), 1.0, 80.0
    for _ in range(3):  # a grid, and finer ones around its best point
        grid = np.linspace(low, high, 31)
        at = int(np.argmin([truth.objective(x) for x in grid]))
        low, high = grid[max(at - 1, 0)], grid[min(at + 1, 30)]
    problem = Problem(
        upper=Utility(aversion),
        lower=manager,
        x0=aversion,
        y0=jnp.full(3, 1 / 3),
        domain=Interval(market.low, market.high),
        x_bounds=(1.0, 80.0),
        constraints=[Simplex()],
    )
    truth = PortfolioTruth(market, aversion, float(grid[at]))
    return Instance(problem, market.draw(train, rng), market.draw(test, rng), truth)


def draw_portfolio(instance: Instance, solution: Any) -> Any:
    """Weights over the volatility index, learned and exact; and the owner's utility for every mandate.

    **Arguments:**

    - `instance`: what ``cb.gallery.portfolio`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.portfolio(0, train=300, test=200)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), steps=2)
    >>> figure = cb.gallery.draw_portfolio(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, market = instance.truth, instance.truth.market
    figure = shown_figure(10, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    xi = np.linspace(market.low, market.high, 300)
    learned, exact = 100 * np.asarray(solution.policy(xi)), 100 * truth.policy(solution.x, xi)
    for j, name in enumerate(ASSETS):
        left.plot(xi, learned[:, j], color=COLOURS[j], lw=2, label=name)
        left.plot(xi, exact[:, j], color=COLOURS[j], lw=1.2, ls="--")
    left.plot([], [], color="black", ls="--", lw=1.2, label="exact, law known")
    seen = np.asarray(instance.train.xi)[:DOTS]
    left.plot(seen, np.full(len(seen), -4.0), "|", color="black", alpha=0.15)
    left.set(ylim=(-8, 118))
    left.set(xlabel="volatility index (%)", ylabel="share of the portfolio (%)", xlim=(market.low, market.high))
    left.legend(frameon=False, ncols=4, loc="upper center", fontsize="small")
    grid = np.linspace(3, 80, 80)
    right.plot(grid, [-truth.objective(x) for x in grid], color=COLOURS[5], lw=1.6, ls="--", label="exact")
    right.plot(float(solution.x), -truth.objective(solution.x), "o", color=COLOURS[1], label="found from samples")
    right.axvline(truth.aversion, color=COLOURS[4], lw=1, label="the owner's own aversion")
    right.set(xlabel="risk aversion in the mandate", ylabel="owner's utility (% a month)")
    right.legend(frameon=False)
    tidy(left, right)
    return figure
