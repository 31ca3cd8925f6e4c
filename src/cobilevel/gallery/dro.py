r"""Distributionally robust regression with side information: delivery times that hold up when more roads are blocked.

Times are predicted by $p_x = x_0 + x_1\, distance + x_2\, rain$, with loss $\ell_x = (time - p_x)^2$. Whether a road
was blocked is not recorded. For each rain $\xi$ an adversary gives other weights $q$ to what comes with it, at a price:
$$R(x, \xi) = \max_{q \ge 0,\, E[q | \xi] = 1} E[q\, \ell_x - \gamma\, q \log q \mid \xi]
= \min_y \; E[\, y + \gamma (e^{(\ell_x - y) / \gamma} - 1) \mid \xi].$$
The lower level is this dual, convex in one number: its solution is $R$ itself, and the weights are
$q = e^{(\ell_x - y) / \gamma}$. The upper level minimises $E\, y^\star(x, \xi)$. The adversary cannot change the law of
the rain, only what comes with it; without side information it could.

Y. Hu, J. Wang, Y. Xie, A. Krause and D. Kuhn, Contextual stochastic bilevel optimization, NeurIPS 2023, have such
problems among their applications, with Wasserstein distances in place of the relative entropy.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..answer import COLOURS, shown_figure, tidy
from ..ground import module_of
from ..problem import Interval, Problem, Samples
from .quadratic import Instance


class EntropicDual(eqx.Module):
    """The dual of worst-case reweighting within one context: the lower objective. Changing weights has a `price`."""

    price: float

    def __call__(self, x: Any, y: Any, xi: Any, eta: Any) -> Float[Array, ""]:
        loss = (eta["time"] - x[0] - x[1] * eta["distance"] - x[2] * xi) ** 2
        return y + self.price * jnp.expm1((loss - y) / self.price)


def worst_case_risk(x: Any, y: Any, xi: Any, eta: Any) -> Any:
    """The risk at worst, which the lower level has found: the upper objective."""
    return y


@dataclass(frozen=True)
class DeliveryTruth:
    r"""The law of times, and the risks that follow.

    Times are normal around a mean $\mu$ given rain, distance and whether the road is blocked, and
    $E e^{(\mu + \sigma z)^2 / \gamma} = (1 - 2 \sigma^2 / \gamma)^{-1/2} e^{\mu^2 / (\gamma - 2 \sigma^2)}$.
    """

    price: float
    noise: float
    delay: Float[np.ndarray, "2"]

    def mean(self, xi: Any, distance: Any, blocked: Any) -> Any:
        """The mean time [10 min] at a rain [mm/h] and a distance [10 km]."""
        first, more = map(float, self.delay)
        free = 1 + 2 * distance + 0.4 * module_of(xi).sin(0.8 * xi)
        return free + blocked * (first + more * distance) * (0.5 + 0.2 * xi)

    def share(self, xi: Any) -> Any:
        """The share of blocked roads."""
        return 0.1 + 0.04 * module_of(xi).asarray(xi)

    def draw(self, key: Array, xi: Array, size: int) -> dict[str, Array]:
        """Distances and times at one rain: the sampler that ``Problem(conditional=...)`` takes."""
        for_road, for_time = jax.random.split(key)
        distance, chance = jax.random.uniform(for_road, (2, size), xi.dtype)
        blocked = jnp.asarray(chance < self.share(xi), xi.dtype)
        time = self.mean(xi, distance, blocked) + self.noise * jax.random.normal(for_time, (size,), xi.dtype)
        return {"distance": distance, "time": time}

    def policy(self, x: Any, xi: Any) -> Float[np.ndarray, " n"]:
        """The worst-case risk at each rain."""
        spread = 2 * self.noise**2
        tilted = np.exp(self._gaps(x, xi) ** 2 / (self.price - spread)) / np.sqrt(1 - spread / self.price)
        return self.price * np.log(self._averaged(tilted, xi, self.share(xi)))

    def objective(self, x: Any) -> float:
        """The worst-case risk, averaged over the rain."""
        nodes, shares = _uniform(0, 5)
        return float(shares @ self.policy(x, nodes))

    def error(self, x: Any, times: float = 1.0) -> float:
        """The mean squared error [100 min^2] where `times` as many roads are blocked."""
        nodes, shares = _uniform(0, 5)
        return (
            float(shares @ self._averaged(self._gaps(x, nodes) ** 2, nodes, times * self.share(nodes))) + self.noise**2
        )

    @cached_property
    def x(self) -> Float[np.ndarray, "3"]:
        """The best coefficients."""
        from scipy.optimize import minimize  # takes long to import

        return minimize(self.objective, np.array([1.0, 2.0, 0.0]), method="BFGS", options={"gtol": 1e-6}).x

    def _gaps(self, x, xi):
        """Mean times less predictions, by rain, distance and whether blocked."""
        distance, xi = _uniform(0, 1)[0][:, None], np.asarray(xi)[:, None, None]
        return self.mean(xi, distance, np.arange(2)) - x[0] - x[1] * distance - x[2] * xi

    def _averaged(self, values, xi, blocked):
        over_distances = np.einsum("ndk,d->nk", values, _uniform(0, 1)[1])
        return over_distances[:, 0] * (1 - blocked) + over_distances[:, 1] * blocked


def _uniform(lo: float, hi: float) -> tuple[np.ndarray, np.ndarray]:
    """A quadrature of the uniform law."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    return lo + (hi - lo) * (nodes + 1) / 2, weights / 2


def dro(seed: int = 0, train: int = 4000, test: int = 4000, price: float = 0.5, noise: float = 0.2) -> Instance:
    """Predictions of delivery times that are robust when, at any rain, more roads are blocked than in the data.

    **Arguments:**

    - `price`: the price of changing weights, in units of the loss; the smaller, the more robust. It must be above
      ``4 noise^2``, so that sample means have a finite variance.
    - `noise`: the standard deviation of unexplained noise in times [10 min].
    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.

    ``x`` holds the three coefficients and starts at least squares; ``y`` is the worst-case risk at a rain.

    **Example:**

    >>> case = cb.gallery.dro(0, train=200, test=200)
    >>> case.problem.x0.shape
    (3,)
    """
    rng = np.random.default_rng(seed)
    if price <= 4 * noise**2:
        raise ValueError(f"price must be above 4 noise^2 = {4 * noise**2:.3g}, got {price}.")
    truth = DeliveryTruth(price, noise, rng.uniform([0.4, 0.4], [0.8, 0.8]))

    def observe(count):
        rain, distance = rng.uniform(0, 5, count), rng.uniform(0, 1, count)
        blocked = rng.uniform(size=count) < truth.share(rain)
        return Samples(rain, {"distance": distance, "time": rng.normal(truth.mean(rain, distance, blocked), noise)})

    data = observe(train)
    problem = Problem(worst_case_risk, EntropicDual(price), x0=least_squares(data), y0=0.0, domain=Interval(0.0, 5.0))
    return Instance(problem, data, observe(test), truth)


def least_squares(samples: Samples) -> Float[np.ndarray, "3"]:
    """The coefficients of plain regression."""
    table = np.column_stack([np.ones(len(samples)), samples.eta["distance"], samples.xi])
    return np.linalg.lstsq(table, np.asarray(samples.eta["time"]), rcond=None)[0]


def draw_dro(instance: Instance, solution: Any) -> Any:
    """Left: the worst-case risk by rain. Right: the error as more roads are blocked, robust against plain.

    **Arguments:**

    - `instance`: what ``cb.gallery.dro`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.dro(0, train=200, test=200)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), steps=2)
    >>> figure = cb.gallery.draw_dro(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, figure = instance.truth, shown_figure(10.5, 4.2)
    left, right = figure.subplots(1, 2)
    rain, times, plain = np.linspace(0, 5, 121), np.linspace(0.0, 3.3, 61), least_squares(instance.train)
    left.plot(rain, solution.policy(rain), color=COLOURS[1], label="robust, found from samples")
    left.plot(rain, truth.policy(truth.x, rain), "--", color="black", label="robust, exact")
    left.plot(rain, truth.policy(plain, rain), color=COLOURS[4], label="of least squares")
    left.set(xlabel="rain [mm/h]", ylabel="worst-case risk [100 min²]", title="Risk at worst, by rain")
    right.plot(times, [truth.error(solution.x, each) for each in times], color=COLOURS[1], label="robust")
    right.plot(times, [truth.error(plain, each) for each in times], color=COLOURS[4], label="least squares")
    right.axvline(1, color="black", ls=":", lw=1)
    right.annotate(" as in the data", (1, 0.97), xycoords=("data", "axes fraction"), va="top")
    right.set(xlabel="blocked roads, times those in the data", ylabel="mean squared error [100 min²]")
    right.set_title("Error under shift")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, loc="lower right")
    tidy(left, right)
    return figure
