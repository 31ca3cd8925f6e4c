r"""Two parallel roads, their capacities inferred from noisy flows under varying demand.

Edge $e$ takes the time $t_e(y) = t^0_e (1 + a (y_e^+ / x_e)^b)$. The lower level is Beckmann's potential, penalised:
$$g = \sum_e \int_0^{y_e} t_e + \lambda_{dem} ((\xi - \sum_e y_e)^+)^2 + \lambda_{pos} \sum_e (y_e^-)^2,$$
and the upper level the distance $|y - \eta|$ to observed flows. The positive part inside the power keeps the
potential bounded below: with odd powers of negative flows it is not.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..answer import COLOURS, DOTS, shown_figure, tidy
from ..problem import Interval, Problem, Samples
from .quadratic import Instance

BOUNDS = (0.05, 3.0)  # of the capacities


class Beckmann(eqx.Module):
    """The penalised potential of parallel edges: the lower objective."""

    free_time: Float[Array, " e"]
    a: float = 1.0
    b: float = 4.0
    demand_penalty: float = 100.0
    negative_penalty: float = 50.0

    def __call__(self, x: ArrayLike, y: ArrayLike, xi: ArrayLike, eta: ArrayLike) -> Float[Array, ""]:
        flow, missing = jnp.maximum(y, 0), jnp.maximum(xi - jnp.sum(y), 0)
        congestion = self.a * flow * (flow / x) ** self.b / (self.b + 1)
        potential = jnp.sum(self.free_time * (y + congestion))
        return potential + self.demand_penalty * missing**2 + self.negative_penalty * jnp.sum(jnp.minimum(y, 0) ** 2)

    def flows(self, x: Float[Array | np.ndarray, " e"], xi: Float[Array | np.ndarray, "*n"]) -> Float[Array, "*n e"]:
        r"""The exact minimiser for each demand, found from its optimality conditions.

        All edges share one price $p = 2 \lambda_{dem} (\xi - \sum_e y_e)$; at price $p$ edge $e$ carries
        $x_e ((p / t^0_e - 1) / a)^{1/b}$ where $p \ge t^0_e$, and the slightly negative
        $(p - t^0_e) / (2 \lambda_{pos})$ below. Missing demand falls in $p$, so bisection finds it. A flow just above
        zero moves like the fourth root of the price's rounding, so a few Newton steps on the conditions themselves
        follow; they also make the result differentiable in ``x``.
        """
        x, xi = jnp.asarray(x), jnp.asarray(xi)

        def edge_flows(price):
            ratio = (price[..., None] / self.free_time - 1) / self.a
            used = ratio > 0
            carried = x * jnp.where(used, ratio, 1) ** (1 / self.b)
            return jnp.where(used, carried, self.free_time * self.a * ratio / (2 * self.negative_penalty))

        def halve(ends, _):
            low, high = ends
            middle = (low + high) / 2
            wanted = 2 * self.demand_penalty * (xi - jnp.sum(edge_flows(middle), axis=-1))
            return (jnp.where(wanted > middle, middle, low), jnp.where(wanted > middle, high, middle)), None

        least = -2 * self.negative_penalty * (1 + jnp.abs(xi)) - jnp.max(self.free_time)
        most = 2 * self.demand_penalty * (1 + jnp.abs(xi)) + jnp.max(self.free_time)
        (low, high), _ = jax.lax.scan(halve, (least, most), None, length=80)

        slope = jnp.vectorize(jax.grad(self, argnums=1), signature="(e),(e),(),()->(e)")
        bend = jnp.vectorize(jax.hessian(self, argnums=1), signature="(e),(e),(),()->(e,e)")

        def correct(y, _):
            y = jax.lax.stop_gradient(y)  # of the last step alone the derivative is kept: it is the implicit one
            matrix = jax.lax.stop_gradient(bend(x, y, xi, xi))
            return y - jnp.linalg.solve(matrix, slope(x, y, xi, xi)[..., None])[..., 0], None

        return jax.lax.scan(correct, edge_flows((low + high) / 2), None, length=6)[0]


def flow_distance(
    x: ArrayLike, y: Float[Array | np.ndarray, " e"], xi: ArrayLike, eta: Float[Array | np.ndarray, " e"]
) -> Float[Array, ""]:
    """``|y - eta|``, with gradient 0 where they agree."""
    squares = jnp.sum((y - eta) ** 2)
    differ = squares > 0
    return jnp.where(differ, jnp.sqrt(jnp.where(differ, squares, 1)), 0)


class TrafficTruth(eqx.Module):
    """The capacities behind the data, and the exact flows at any capacities."""

    x: Float[Array, " e"]
    lower: Beckmann

    def y(self, x: Float[Array | np.ndarray, " e"], xi: Float[Array | np.ndarray, "*n"]) -> Float[Array, "*n e"]:
        """Exact equilibrium flows."""
        return _flows(self.lower, jnp.asarray(x), jnp.asarray(xi))

    def loss(self, x: Float[Array | np.ndarray, " e"], samples: Samples) -> Float[Array, ""]:
        """The mean distance of the exact flows to the observed ones; ``loss(truth.x, test)`` is the paper's F_ref."""
        flows = self.y(x, samples.xi)
        return jnp.mean(jax.vmap(lambda y, eta: flow_distance(x, y, eta, eta))(flows, samples.eta))

    def sample_optimum(self, samples: Samples) -> Float[np.ndarray, " e"]:
        """The best capacities for a finite sample with exact flows at every demand, no reduction involved.

        By L-BFGS-B on the closed-form flows, from the usual start and from the truth: a sample's loss has kinks, at
        which one start alone may get stuck.
        """
        from scipy.optimize import minimize  # takes long to import, and few need it

        value = lambda x: tuple(np.asarray(v, dtype=float) for v in _loss_and_slope(self, jnp.asarray(x), samples))
        starts = (np.full(len(self.x), 0.5), np.asarray(self.x))
        bounds = [BOUNDS] * len(self.x)
        found = [minimize(value, x, jac=True, bounds=bounds, options={"gtol": 1e-9}) for x in starts]
        return min(found, key=lambda run: run.fun).x


@eqx.filter_jit
def _flows(lower: Beckmann, x: Array, xi: Array) -> Array:
    return lower.flows(x, xi)


@jax.jit
def _loss_and_slope(truth: TrafficTruth, x: Array, samples: Samples) -> tuple[Array, Array]:
    return jax.value_and_grad(truth.loss)(x, samples)


@jax.jit
def _true_flows(truth: TrafficTruth, xi: Array) -> Array:
    return truth.y(truth.x, xi)


def _nonnegative(mean: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
    """Normal draws conditioned on being nonnegative: the law of redrawing until they are, without the waiting.

    With ``S`` the survival function, ``S(z) = u S(-mean / std)`` for uniform ``u``, solved on a log scale.
    """
    log_share = np.log1p(-rng.uniform(size=mean.shape)) + scipy.special.log_ndtr(mean / std)
    return np.maximum(mean - std * scipy.special.ndtri_exp(log_share), 0)


def two_edge_traffic(seed: int, noise: float = 0.05, train: int = 1000, test: int = 1000) -> Instance:
    """The inverse problem of the paper: two nodes, two edges, demand uniform on [0, 1].

    ``t0`` is uniform on ``[1, 2]^2``, the true capacities on ``[0.2, 0.8]^2``; observed flows are exact ones plus
    normal noise of standard deviation `noise`, redrawn until nonnegative (with `noise=0` the exact flows, some of them
    slightly negative). Capacities start at 0.5 and are kept in ``[0.05, 3]``.

    **Arguments:**

    - `seed`: which instance.
    - `noise`: the standard deviation of flows.
    - `train`, `test`: how many samples.

    **Example:**

    >>> case = cb.gallery.two_edge_traffic(0, train=100, test=100)
    >>> case.truth.x.shape
    (2,)
    """
    rng = np.random.default_rng(seed)
    free_time, capacity = rng.uniform(1, 2, 2), rng.uniform(0.2, 0.8, 2)
    lower = Beckmann(jnp.asarray(free_time))
    truth = TrafficTruth(jnp.asarray(capacity), lower)

    def observe(count):
        xi = rng.uniform(0, 1, count)
        exact = np.asarray(_true_flows(truth, jnp.asarray(xi)), dtype=float)
        return Samples(xi, exact if noise == 0 else _nonnegative(exact, noise, rng))

    problem = Problem(
        upper=flow_distance,
        lower=lower,
        x0=jnp.full(2, 0.5),
        y0=jnp.zeros(2),
        domain=Interval(0.0, 1.0),
        x_bounds=BOUNDS,
    )
    return Instance(problem, observe(train), observe(test), truth)


def draw_two_edge_traffic(instance: Instance, solution: Any) -> Any:
    """The flow on each road as demand grows: counted, found, and exact.

    **Arguments:**

    - `instance`: what ``cb.gallery.two_edge_traffic`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.two_edge_traffic(0, train=100, test=100)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), steps=2)
    >>> figure = cb.gallery.draw_two_edge_traffic(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    figure, grid = shown_figure(7, 4.4), np.linspace(0, 1, 201)
    axis, found, exact = figure.add_subplot(), solution.policy(grid), _true_flows(instance.truth, jnp.asarray(grid))
    for road, colour in enumerate(COLOURS[:2]):
        counted = np.asarray(instance.train.eta)[:DOTS, road]
        axis.plot(np.asarray(instance.train.xi)[:DOTS], counted, ".", ms=4, mew=0, alpha=0.3, color=colour)
        capacity = f"capacity {float(solution.x[road]):.3f}, true {float(instance.truth.x[road]):.3f}"
        axis.plot(grid, found[:, road], color=colour, label=f"road {road + 1}, {capacity}")
        axis.plot(grid, exact[:, road], "--", color="black", lw=1, label="exact" if road else None)
    axis.set(xlabel="demand [vehicles/unit of time]", ylabel="flow [vehicles/unit of time]")
    axis.set(title="Two roads: flows found, over those counted")
    axis.legend(frameon=False)
    tidy(axis)
    return figure
