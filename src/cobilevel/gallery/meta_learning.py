r"""Meta-learning: cheap sensors calibrated at every site, around a prior and with a regulariser that all sites share.

A site is a task, with temperature and humidity $\xi$ as its context. At each, a reading $z = (1, voltage, ozone)$ is
calibrated by ridge regression on labels $a$ of a cheap neighbour, whose error depends on the site:
$$y^\star(x, \xi) = \arg\min_y \; E[(z \cdot y - a)^2 \mid \xi] + e^{\rho} |y - m|^2, \qquad
\min_{x = (m, \rho)} \; E\, (z \cdot y^\star(x, \xi) - b)^2 ,$$
and validated on labels $b$ of a reference instrument. The error of the cheap labels does not average out: the prior $m$
and the regulariser $e^\rho$ correct it. With few sites, ``finite=True``, the task is a category.

With $E[a | z, \xi] = z \cdot c(\xi)$, $E[b | z, \xi] = z \cdot w(\xi)$, $\Sigma = E z z^T$ and
$A = (\Sigma + e^\rho I)^{-1} \Sigma$, the weights are $A c(\xi) + (I - A) m$, so that given $\rho$ the best prior is
$(I - A)^{-1} E[w - A c]$, and only a line search over $\rho$ is left. (Franceschi et al., Bilevel programming for
hyperparameter optimization and meta-learning, ICML 2018, learn such a representation from finitely many tasks.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..answer import COLOURS, shown_figure, tidy
from ..problem import Box, Finite, Problem, Samples, Uniform, enter
from .quadratic import Instance


def _reading(eta: Any) -> Float[Array, "3"]:
    return jnp.stack([jnp.ones_like(eta["voltage"]), eta["voltage"], eta["ozone"]])


def validation_loss(x: Any, y: Float[Array | np.ndarray, "3"], xi: Any, eta: Any) -> Float[Array, ""]:
    """The squared error of a site's calibration on a label of the reference instrument: the upper objective."""
    return (_reading(eta) @ y - eta["reference"]) ** 2


def ridge_loss(x: Any, y: Float[Array | np.ndarray, "3"], xi: Any, eta: Any) -> Float[Array, ""]:
    """The squared error on a cheap label, and the distance to the prior: the lower objective."""
    return (_reading(eta) @ y - eta["label"]) ** 2 + jnp.exp(x["log_ridge"]) * jnp.sum((y - x["prior"]) ** 2)


@dataclass(frozen=True)
class CalibrationTruth:
    """The weights behind both kinds of label at every site, and what follows from them in closed form.

    `nodes` and `shares` are a quadrature of sites, or all of them; `places` maps sites to ``[-1, 1]^2``.
    """

    nodes: Any
    shares: Float[np.ndarray, " m"]
    places: Callable
    moments: Float[np.ndarray, "3 3"]
    waves: Float[np.ndarray, "2 6 3"]
    noise: float

    def weights(self, xi: Any) -> tuple[np.ndarray, np.ndarray]:
        """``w`` of the reference and ``c`` of the cheap labels, at each site."""
        u, v = np.moveaxis(self.places(np.asarray(xi)), -1, 0)
        functions = np.stack([np.ones_like(u), u, v, u * v, np.sin(2 * u), np.cos(2 * v)], axis=-1)
        return functions @ self.waves[0], functions @ self.waves.sum(axis=0)

    def policy(self, x: Any, xi: Any) -> Float[np.ndarray, "*n 3"]:
        """The exact ridge weights of each site."""
        shrink, prior = self._shrinkage(x["log_ridge"]), np.asarray(x["prior"], float)
        return self.weights(xi)[1] @ shrink.T + prior - shrink @ prior

    def objective(self, x: Any) -> float:
        """The expected validation loss."""
        gap = self.policy(x, self.nodes) - self.weights(self.nodes)[0]
        return float(self.shares @ np.einsum("ma,ab,mb->m", gap, self.moments, gap)) + self.noise**2

    def with_best_prior(self, log_ridge: Any) -> dict[str, Any]:
        """The decision with this regulariser and the prior that is best with it."""
        shrink = self._shrinkage(log_ridge)
        w, c = (self.shares @ each for each in self.weights(self.nodes))
        return {"prior": np.linalg.solve(np.eye(3) - shrink, w - shrink @ c), "log_ridge": np.asarray(log_ridge)}

    @cached_property
    def x(self) -> dict[str, Any]:
        """The best prior and regulariser: over a grid of regularisers, then between its points."""
        from scipy.optimize import minimize_scalar  # takes long to import

        loss = lambda log_ridge: self.objective(self.with_best_prior(log_ridge))
        grid = np.linspace(-6, 6, 61)
        near = int(np.argmin([loss(each) for each in grid[1:-1]]))
        ends = (grid[near], grid[near + 2])
        return self.with_best_prior(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-9}).x)

    def _shrinkage(self, log_ridge):
        return np.linalg.solve(self.moments + np.exp(float(log_ridge)) * np.eye(3), self.moments)


def meta_learning(
    seed: int = 0, finite: bool = False, train: int = 4000, test: int = 4000, sites: int = 12, noise: float = 0.3
) -> Instance:
    """Sensors calibrated at every site by ridge regression, around a prior and with a regulariser shared by all sites.

    **Arguments:**

    - `finite`: whether contexts are finitely many `sites`, by name, rather than any temperature and humidity.
    - `noise`: the standard deviation of both kinds of label.
    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.
    - `sites`: how many, if `finite`.

    ``x`` is ``{"prior": (3,), "log_ridge": ()}``, ``y`` the three weights of a site.

    **Example:**

    >>> case = cb.gallery.meta_learning(0, train=200, test=200)
    >>> sorted(case.problem.x0)
    ['log_ridge', 'prior']
    """
    rng = np.random.default_rng(seed)
    scale = np.array([0.0, 0.5, 0.5, 0.3, 0.3, 0.3])[:, None]
    waves = scale * rng.normal(size=(2, 6, 3))
    waves[:, 0] = [[1.0, 2.0, -1.0], [0.3, 0.0, 0.3]]
    moments = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.5, 1.0]])
    if finite:
        names, climate = np.array([f"site {k + 1}" for k in range(sites)]), rng.uniform(-1, 1, (sites, 2))
        domain, nodes, shares = Finite(names), names, np.full(sites, 1 / sites)
        places = lambda xi: climate[enter(domain, xi).values]
        draw = lambda count: names[rng.integers(sites, size=count)]
    else:
        domain = Box([0.0, 20.0], [40.0, 80.0])  # degrees Celsius, per cent
        nodes, shares = (np.asarray(part) for part in Uniform(domain).quadrature(24))
        places, draw = domain.reference, lambda count: rng.uniform(*domain.bounds, (count, 2))
    truth = CalibrationTruth(nodes, shares, places, moments, waves, noise)

    def observe(count):
        xi, drawn = draw(count), rng.normal(size=(count, 2)) @ np.linalg.cholesky(moments[1:, 1:]).T
        z = np.column_stack([np.ones(count), drawn])
        right, cheap = (np.sum(z * each, axis=1) + noise * rng.normal(size=count) for each in truth.weights(xi))
        return Samples(xi, {"voltage": z[:, 1], "ozone": z[:, 2], "label": cheap, "reference": right})

    x0 = {"prior": jnp.zeros(3), "log_ridge": jnp.zeros(())}
    problem = Problem(validation_loss, ridge_loss, x0=x0, y0=jnp.zeros(3), domain=domain)
    return Instance(problem, observe(train), observe(test), truth)


def draw_meta_learning(instance: Instance, solution: Any) -> Any:
    """Left: the validation loss by regulariser. Right: what it does to the weight of the voltage, site by site.

    **Arguments:**

    - `instance`: what ``cb.gallery.meta_learning`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.meta_learning(0, train=300, test=200)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), steps=2)
    >>> figure = cb.gallery.draw_meta_learning(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, figure = instance.truth, shown_figure(10.5, 4.2)
    left, right = figure.subplots(1, 2)
    grid = np.linspace(-6, 6, 121)
    left.plot(np.exp(grid), [truth.objective(truth.with_best_prior(each)) for each in grid], "--", color="black")
    left.plot(np.exp(float(solution.x["log_ridge"])), truth.objective(solution.x), "o", color=COLOURS[1], ms=8)
    left.set(xscale="log", xlabel="regulariser", ylabel="expected validation loss [ppb²]", title="Loss by regulariser")
    left.set_ylim(bottom=0)
    left.legend(["exact, with the best prior", "found from samples"], frameon=False, loc="upper left")
    left.annotate("each site by its own labels", (0.02, 0.03), xycoords="axes fraction")
    left.annotate("one for all sites", (0.98, 0.03), xycoords="axes fraction", ha="right")
    if isinstance(instance.problem.domain, Box):
        warm = np.linspace(0, 40, 121)
        sites, across, style = np.column_stack([warm, np.full(121, 50.0)]), warm, "-"
        right.set(xlabel="temperature [°C], at 50% humidity")
    else:
        sites, style = truth.nodes, "o"
        across = np.arange(len(sites))
        right.set(xticks=across, xticklabels=[name.split()[-1] for name in sites], xlabel="site")
    reference, cheap = (each[:, 1] for each in truth.weights(sites))
    right.plot(across, cheap, style, color=COLOURS[4], label="fits cheap labels")
    right.plot(across, reference, style, color=COLOURS[2], label="fits the reference")
    right.plot(across, np.asarray(solution.policy(sites))[:, 1], style, color=COLOURS[1], label="ridge, found")
    exact = truth.policy(truth.x, sites)[:, 1]
    right.plot(across, exact, "--" if style == "-" else "_", ms=14, color="black", label="ridge, exact")
    right.set(ylabel="weight of the voltage [ppb/V]", title="Calibration by site")
    right.legend(frameon=False, fontsize="small")
    tidy(left, right)
    return figure
