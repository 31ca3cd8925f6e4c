r"""A road network: capacities of all links inferred from noisy counts, under demand that varies from day to day.

Link $a$ from node $i$ to $j$ takes the time $t_a(v) = t^0_a (1 + b_a (v / c_a)^{p_a})$ at flow $v$ (BPR). Travellers
walk at random: at each node the next link is drawn by a logit, with parameter $\theta$, of what lies ahead. With
$M_{ij} = \sum e^{-\theta t_a}$ and $Z = (I - M)^{-1}$ the expected least cost from $o$ to $d$ is
$\tau_{od}(t) = -\log(Z_{od} / Z_{dd}) / \theta$: one inverse gives all pairs. Link times in equilibrium minimise
$$g(x, t, \xi) = \sum_a \int^{t_a} v_a(s)\, ds - \sum_{od} q_{od}(\xi)\, \tau_{od}(t),$$
with $v_a$ the inverse of $t_a(\cdot)$ (Baillon and Cominetti, Mathematical Programming 111, 2008). The gradient is the
flow for which times are as they are, less the flow that they attract, $\partial_t \sum q \tau$. The potential is
smooth and strongly convex in as many variables as there are links, and tends to the dual of Beckmann's as $\theta$
grows. Path flows (docs/gallery/network.md has figures) are several times as many, not unique, and leave and enter the
solution with kinks as demand varies.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..answer import COLOURS, DPI, shown_figure, tidy
from ..ground import Held, double, in_threads
from ..lower import LENGTHS, Dense, minimise
from ..problem import Box, Interval, Problem, Samples
from .quadratic import Instance
from .tntp import COLUMNS, Roads, read_folder
from .walks import Walks, cost, distance, flows_of

_SMALL = 2**18  # numbers in the Hessians of 32 contexts: 90 links
_SEEN = 0.01  # of the mean flow: counts of smaller flows are as inexact as of this


class Equilibrium(eqx.Module):
    r"""The lower objective, a mean per traveller. ``x`` are capacities as shares of those stated, ``y`` times, both of
    the links that are `open` to congestion; ``xi`` multiplies the trips from each group of zones.

    Links without congestion ($b = 0$, or no time at all, such as connectors of zones) take the time `still`. Below the
    share `low` of its capacity a link's time goes on as a straight line: so $v_a$ is defined at all times, with a
    bounded slope.
    """

    walks: Walks
    open: Int[Held, " links"]
    still: Float[Held, " all"]
    capacity: Float[Held, " links"]
    free_time: Float[Held, " links"]
    b: Float[Held, " links"]
    power: Float[Held, " links"]
    trips: Float[Held, "groups zones zones"]
    low: float = 0.1

    @staticmethod
    def of(roads: Roads, groups: int = 1, theta: float | None = None) -> "Equilibrium":
        """Zones are put into groups of about equal numbers of trips, in their order."""
        links, zones, (tail, head) = roads.links, len(roads.trips), roads.ends
        numbers = [links[name] for name in ("capacity", "free_flow_time", "b", "power")]
        if not all(np.all(part >= 0) for part in numbers):
            raise ValueError("capacity, free_flow_time, b and power of every link must be numbers, none below 0.")
        still, congested = links["free_flow_time"], (links["b"] > 0) & (links["free_flow_time"] > 0)
        if not congested.any() or not all(np.all(part[congested] > 0) for part in numbers):
            raise ValueError(
                "there must be links with b > 0 and a free-flow time, each with a positive capacity and power."
            )
        closed, nodes = roads.first_through - 1, roads.nodes  # zones that are entered at a copy, which nothing leaves
        head = np.where(head < closed, nodes + head, head)
        ends = np.where(np.arange(zones) < closed, nodes + np.arange(zones), np.arange(zones))
        q = np.array(roads.trips, float)
        np.fill_diagonal(q, 0)
        before = np.cumsum(q.sum(axis=1)) - q.sum(axis=1) / 2
        group = np.minimum((before / q.sum() * groups).astype(int), groups - 1)
        trips = np.where(np.arange(groups)[:, None, None] == group[:, None], q, 0)

        def chain(theta: float) -> np.ndarray:
            weights = np.zeros((nodes + closed, nodes + closed))
            np.add.at(weights, (tail, head), np.exp(-theta * still))
            return weights

        growth = lambda theta: float(np.abs(np.linalg.eigvals(chain(theta))).max())
        if theta is None:
            theta = 1.0 if growth(0.5) < 1 else 2 * _least_ending(growth)
        elif not growth(theta) < 1:
            raise ValueError(
                f"theta={theta:g} is too small: at free-flow times a step multiplies walks by {growth(theta):.3g}, so "
                "they never end. Use a larger one, or leave it out."
            )
        reached = np.linalg.inv(np.eye(nodes + closed) - chain(theta))[:zones, ends]
        if not np.all(reached[q > 0] > np.finfo(reached.dtype).tiny):
            raise ValueError(f"some trips have no path to their destination, or theta={theta:g} is too large.")
        walks = Walks(tail, head, ends, np.asarray(theta, float), nodes + closed)
        return Equilibrium(walks, np.flatnonzero(congested), still, *(part[congested] for part in numbers), trips)

    def everywhere(self, values: Float[Array, " links"], others: Any = 0.0) -> Float[Array, " all"]:
        """Values of the links with congestion among those of all."""
        count = len(self.still)
        if len(self.open) == count:
            return values
        return jnp.broadcast_to(jnp.asarray(others, values.dtype), count).at[self.open].set(values)

    def all_times(self, y: Float[Array, " links"]) -> Float[Array, " all"]:
        return self.everywhere(y, self.still)

    def demand(self, xi: Float[Array, "..."]) -> Float[Array, "zones zones"]:
        return jnp.tensordot(jnp.atleast_1d(xi), self.trips, axes=1)

    def attracted(self, y: Float[Array, " links"], xi: Float[Array, "..."]) -> Float[Array, " all"]:
        """The flows that times attract, on all links."""
        return flows_of(self.walks, self.all_times(y), self.demand(xi))

    def times(self, x: Float[Array, " links"], flows: Float[Array, " links"]) -> Float[Array, " links"]:
        """The time that each link takes at a flow."""
        load, low, p = flows / (x * self.capacity), self.low, self.power
        line = low**p + p * low ** (p - 1) * (load - low)
        return self.free_time * (1 + self.b * jnp.where(load > low, jnp.maximum(load, low) ** p, line))

    def stored(self, x: Float[Array, " links"], y: Float[Array, " links"]) -> Float[Array, " links"]:
        """The integral of the flow that a time stands for, up to it; for each link."""
        p, low = self.power, self.low
        rise = (y / self.free_time - 1) / self.b
        over = rise - low**p
        curve = p / (p + 1) * jnp.maximum(rise, low**p) ** (1 + 1 / p)
        line = p / (p + 1) * low ** (p + 1) + low * over + over**2 / (2 * p * low ** (p - 1))
        return x * self.capacity * self.free_time * self.b * jnp.where(over > 0, curve, line)

    def __call__(self, x: Any, y: Any, xi: Any, eta: Any) -> Float[Array, ""]:
        potential = jnp.sum(self.stored(x, y)) - cost(self.walks, self.all_times(y), self.demand(xi))
        return potential / jnp.sum(self.trips)


def _least_ending(growth: Callable[[float], float], theta: float = 1.0) -> float:
    """The smallest parameter with which walks end, to a percent: the larger it is, the fewer they are."""
    low, high = 0.0, theta
    while not growth(high) < 1:
        low, high = high, 2 * high
        if high > 1e9:
            raise ValueError("walks never end, whatever theta is: some links that take no time form a circle.")
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if growth(middle) < 1 else (middle, high)
    return high


class Misfit(eqx.Module):
    """The upper objective: the mean squared distance of flows to counts, in standard deviations of the counts; and that
    of capacities to those stated, in `spread`, which counts as much as one sample of `samples`.

    Links with little traffic hardly show their capacity in any flow: there the one stated is kept.
    """

    lower: Equilibrium
    deviation: Float[Held, " links"]
    samples: float
    spread: float = 0.25

    def __call__(self, x: Any, y: Any, xi: Any, eta: Any) -> Float[Array, ""]:
        lower, weight = self.lower, self.deviation**-2.0 / len(self.deviation)
        counts, weight = (lower.everywhere(jnp.asarray(part, y.dtype)) for part in (eta, weight))
        prior = jnp.mean(((x - 1) / self.spread) ** 2) / (2 * self.samples)
        return distance(lower.walks, lower.all_times(y), lower.demand(xi), counts, weight) + prior


class NetworkTruth(eqx.Module):
    """The capacities behind the counts, as shares of those stated; exact times and flows at any capacities.

    Computed in double precision, whatever JAX's setting.
    """

    x: Float[np.ndarray, " links"]
    lower: Equilibrium
    roads: Any = eqx.field(static=True)
    upper: Any = None
    span: tuple[float, float] = (1.0, 1.0)

    def objective(self, x: Any, nodes: int = 9) -> float:
        """The expected misfit, by Gauss-Legendre quadrature along the demand of each group."""
        at, shares = np.polynomial.legendre.leggauss(nodes)
        at, groups = self.span[0] + (self.span[1] - self.span[0]) * (at + 1) / 2, len(self.lower.trips)
        grid = lambda values: np.stack(np.meshgrid(*[values] * groups, indexing="ij"), axis=-1).reshape(-1, groups)
        xi, shares = grid(at) if groups > 1 else at, np.prod(grid(shares / 2), axis=1)
        found, exact = (self.flows(self.y(each, xi), xi)[:, self.lower.open] for each in (x, self.x))
        apart = np.mean(((found - exact) / self.upper.deviation) ** 2, axis=1)
        far = np.mean(((np.asarray(x, float) - 1) / self.upper.spread) ** 2) / self.upper.samples
        return float(1 + shares @ apart + far) / 2  # counts have variance 1, in their own units

    def y(self, x: Any, xi: Any) -> Float[np.ndarray, "n links"]:
        """Times in equilibrium of the links with congestion, for each context: from those in the middle of the demand,
        or where these lead nowhere, from those at the nearest demand that is solved, or at one between."""
        x, xi = np.asarray(x, float), np.asarray(xi, float)
        solved = lambda at, start: _equilibria(self.lower, x, at.reshape(-1, *xi.shape[1:]), start)
        with double():
            free = np.asarray(self.lower.times(x, x * self.lower.capacity))
        at = xi.reshape(len(xi), -1)
        where = at.mean(axis=0, keepdims=True)
        known, done = solved(where, free[None])
        y, left, share = np.tile(known, (len(at), 1)), np.flatnonzero(np.any(at != where, axis=1)), 1.0
        while len(left) and done.all() and share > 1e-3:
            distances = np.sum((at[left, None] - where) ** 2, axis=2)
            nearest = np.argmin(distances, axis=1)
            if share < 1:  # where none is reached: a share of the way to that nearest to what is known
                aim = np.argmin(np.min(distances, axis=1))
                tried, nearest = where[nearest[aim]] + share * (at[left[[aim]]] - where[nearest[aim]]), nearest[[aim]]
            else:
                tried = at[left]
            points, found = solved(tried, known[nearest])
            known, where = np.concatenate([known, points[found]]), np.concatenate([where, tried[found]])
            if share == 1:
                y[left[found]], left = points[found], left[~found]
            share = 1.0 if found.any() else share / 2
        if len(left):
            raise ValueError("no equilibrium was found at some contexts: theta may be too large for them.")
        return y

    def flows(self, y: Any, xi: Any) -> Float[np.ndarray, "n all"]:
        """Flows that times attract, for each context, on all links: of exact times, or of a policy's."""
        with double():
            return np.asarray(_attracted(self.lower, np.asarray(y, float), np.asarray(xi, float)))

    def words(self, x: Any) -> str:
        """How well capacities are found, in words."""
        best, reached = (self.objective(each) for each in (self.x, x))
        off, stated = (float(np.sqrt(np.mean((np.asarray(each) - self.x) ** 2))) for each in (x, np.ones_like(self.x)))
        return (
            f"objective {reached:.6g}, {best:.6g} at the true capacities; found to {off:.2g} of those stated, "
            f"which are off by {stated:.2g} (root mean squares). theta is {float(self.lower.walks.theta):.3g}."
        )

    def table(self, x: Any, y: Any, xi: Any) -> dict[str, np.ndarray]:
        """At one context, a row for each link: for ``pandas.DataFrame``, or for ``write_table``."""
        links, flow = self.roads.links, self.flows(np.asarray(y)[None], np.asarray(xi)[None])[0]
        (tail, head), share, time = self.roads.ends, np.ones(len(flow)), np.array(self.lower.still)
        share[self.lower.open], time[self.lower.open] = x, y
        return {
            "link": np.arange(1, len(flow) + 1),
            "from": tail + 1,
            "to": head + 1,
            "capacity_stated": links["capacity"],
            "capacity": links["capacity"] * share,
            "flow": flow,
            "time": time,
        }


def _equilibria(
    lower: Equilibrium, x: np.ndarray, xi: np.ndarray, start: np.ndarray
) -> tuple[Float[np.ndarray, "n links"], Bool[np.ndarray, " n"]]:
    """Times in equilibrium for each context, from times given for each; and where they were found."""
    each = 32 if 32 * len(lower.still) ** 2 <= _SMALL else 1  # at once: small Hessians, in one program

    def solved(part: slice) -> tuple[np.ndarray, np.ndarray]:
        at, count = xi[part], len(xi[part])
        filled = lambda rows: np.concatenate([rows, np.repeat(rows[-1:], each - count, axis=0)])
        of = lambda program, y: tuple(np.asarray(out)[:count] for out in program(lower, x, filled(y), filled(at)))
        with double():
            end = minimise(Dense(lambda y: of(_derivatives, y)), start[part], 0.0, steps=LENGTHS)
        return end.point, end.converged

    points, converged = zip(*in_threads(solved, [slice(k, k + each) for k in range(0, len(xi), each)]), strict=True)
    return np.concatenate(points), np.concatenate(converged)


@eqx.filter_jit
def _derivatives(lower: Equilibrium, x: Array, y: Array, xi: Array) -> tuple[Array, Array, Array]:
    """The potential, its gradient and its Hessian in the times, for each context."""
    slope = jax.value_and_grad(lambda t, xi: lower(x, t, xi, xi))
    one = lambda t, xi: (*slope(t, xi), jax.jacfwd(lambda t: slope(t, xi)[1])(t))
    return jax.vmap(one)(y, xi)


@eqx.filter_jit
def _attracted(lower: Equilibrium, y: Array, xi: Array) -> Array:
    return jax.vmap(lower.attracted)(y, xi)


def grid(rows: int, columns: int, seed: int = 0, zones: int | None = None) -> Roads:
    """A generated network: nodes near a lattice, links both ways between neighbours, trips that decay with distance.

    Zones are all nodes, or `zones` of them at random. Trips fill links to capacity, on average, at free-flow times.
    """
    rng, count = np.random.default_rng(seed), rows * columns
    zones = count if zones is None else zones
    cells = rng.permutation(count).reshape(rows, columns)  # the node of each place of the lattice
    places = np.empty((count, 2))
    places[cells.ravel()] = np.argwhere(cells >= 0)[:, ::-1] + rng.uniform(-0.3, 0.3, (count, 2))
    pairs = [(cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:])]
    one, other = (np.concatenate([pair[k].ravel() for pair in pairs]) for k in (0, 1))
    tail, head = np.concatenate([one, other]), np.concatenate([other, one])
    length = np.linalg.norm(places[tail] - places[head], axis=1)
    time, capacity = 5 * length * rng.uniform(0.8, 1.2, len(tail)), rng.choice([4e3, 6e3, 1e4, 1.6e4], len(tail))
    fixed = np.ones_like(length)
    values = (tail + 1.0, head + 1.0, capacity, length, time, 0.15 * fixed, 4 * fixed, 0 * fixed, 0 * fixed, fixed)
    weight = rng.uniform(0.5, 1.5, (2, zones))
    apart = np.linalg.norm(places[:zones, None] - places[None, :zones], axis=-1)
    trips = np.where(apart > 0, weight[0][:, None] * weight[1] * np.exp(-apart / 3), 0)
    links = dict(zip(COLUMNS, values, strict=True))
    lower = Equilibrium.of(Roads(links, trips, count))
    load = NetworkTruth(fixed, lower, None).flows(time[None], np.ones((1, 1)))[0] / capacity
    return Roads(links, np.round(trips / load.mean(), 1), count, 1, places)


def network(
    seed: int = 0,
    groups: int = 1,
    folder: str | Path | None = None,
    roads: Roads | None = None,
    theta: float | None = None,
    noise: float = 0.05,
    train: int = 1000,
    test: int = 200,
    span: tuple[float, float] = (0.7, 1.2),
) -> Instance:
    """Capacities of all links inferred from noisy counts, while the trips from each of 1 to 5 groups of zones vary.

    **Arguments:**

    - `groups`: the number of groups of zones; the context is a factor for each, uniform on `span`.
    - `folder`: a folder of TNTP files, or of an AequilibraE project; or `roads`, such as ``tntp.sioux_falls()``.
      Without either, a generated grid of 9 nodes and 24 links.
    - `theta`: the logit parameter, per unit of time. As it grows, the equilibrium tends to Wardrop's. By default 1, or
      where walks would hardly end with it, twice the smallest with which they do: ``truth.lower.walks.theta``.
    - `noise`: the standard deviation of counts, as a share of each link's flow at stated capacities, or of a hundredth
      of the mean flow where that is more.

    True capacities are 0.6 to 1.4 times those stated, at random; ``x`` holds these ratios, and ``y`` the times, of all
    links with congestion. Others, such as connectors of zones, take the time that is stated, and are not counted.
    """
    if roads is None:
        roads = grid(3, 3, seed) if folder is None else read_folder(folder)
    if not 1 <= groups <= min(5, len(roads.trips)):
        raise ValueError(f"groups must be 1 to 5, and at most the number of zones, got {groups}.")
    rng, lower = np.random.default_rng(seed), Equilibrium.of(roads, groups, theta)
    count, middle = len(lower.capacity), np.full((1, groups), sum(span) / 2)
    shape = lambda xi: xi[:, 0] if groups == 1 else xi
    stated = np.ones(count)
    truth = NetworkTruth(rng.uniform(0.6, 1.4, count), lower, roads)
    y0 = truth.y(stated, shape(middle))
    flows = truth.flows(y0, shape(middle))[0, lower.open]
    deviation = noise * np.maximum(flows, _SEEN * flows.mean())

    upper = Misfit(lower, deviation, float(train))
    truth = NetworkTruth(truth.x, lower, roads, upper, span)

    def observe(number: int) -> Samples:
        xi = shape(rng.uniform(*span, (number, groups)))
        flows = truth.flows(truth.y(truth.x, xi), xi)[:, lower.open]
        return Samples(xi, flows + deviation * rng.normal(size=flows.shape))

    problem = Problem(
        upper=upper,
        lower=lower,
        x0=stated,
        y0=y0[0],
        domain=Interval(*span) if groups == 1 else Box([span[0]] * groups, [span[1]] * groups),
        x_bounds=(0.5, 2.0),
    )
    return Instance(problem, observe(train), observe(test), truth)


def write_table(path: str | Path, table: dict[str, np.ndarray]) -> None:
    """Columns as a file of comma-separated values."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))


def draw_roads(
    roads: Roads, flow: np.ndarray, error: np.ndarray, path: str | Path | None = None, label: str = "error"
) -> Any:
    """A picture of a network: flows as widths, errors as colours (one value per link), each link drawn on its right."""
    figure = shown_figure(8, 7)
    _map(figure.add_subplot(), roads, flow, error, label)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def places_of(roads: Roads) -> Float[np.ndarray, "nodes 2"]:
    """Where nodes are; if that is not known, so that distances in a picture are like times between them (classical
    scaling)."""
    if roads.places is not None and np.all(np.isfinite(roads.places)):
        return roads.places
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    time = roads.links["free_flow_time"]
    time, size = np.maximum(time, 0.1 * np.median(time[time > 0])), (roads.nodes, roads.nodes)
    lengths = coo_array((1 / time, roads.ends), shape=size).tocsr()  # of links side by side, about the shortest
    lengths.data = 1 / lengths.data
    apart = shortest_path(lengths, directed=False)
    apart = np.where(np.isfinite(apart), apart, np.max(apart, where=np.isfinite(apart), initial=0)) ** 2
    inner = -(apart - apart.mean(axis=0) - apart.mean(axis=1, keepdims=True) + apart.mean()) / 2
    values, vectors = np.linalg.eigh(inner)
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))


def _map(axis: Any, roads: Roads, flow: np.ndarray, error: np.ndarray, label: str) -> None:
    from matplotlib.collections import LineCollection

    places, room = places_of(roads), min(1.0, (30 / roads.nodes) ** 0.5)  # for each node's mark
    one, other = (places[end] for end in roads.ends)
    along = other - one
    length = np.linalg.norm(along, axis=1, keepdims=True)
    length = np.where(length > 0, length, 1.0)
    aside = np.stack([along[:, 1], -along[:, 0]], axis=1) / length * 0.06 * np.median(length)
    most = np.max(np.abs(error)) or 1.0
    widths = 0.5 + 7 * room * flow / np.max(flow)
    lines = LineCollection(np.stack([one + aside, other + aside], axis=1), linewidths=widths)
    lines.set(array=error, cmap="coolwarm", clim=(-most, most), capstyle="butt")
    axis.add_collection(lines)
    axis.plot(*places.T, "o", color="white", markeredgecolor="#5c5c5c", markersize=13 * room)
    for node, place in enumerate(places if room > 0.5 else (), 1):  # smaller, nobody could read it
        axis.annotate(str(node), place, ha="center", va="center", fontsize=7 * room)
    axis.set(aspect="equal", xticks=[], yticks=[], title=f"width: flow, up to {np.max(flow):,.0f}")
    tidy(axis)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.figure.colorbar(lines, ax=axis, label=label, shrink=0.7)


def draw_network(instance: Instance, solution: Any) -> Any:
    """Left: the network in the middle of the demand, with errors of capacities; right: flows over the demand of the
    first group on the links that differ most from what stated capacities say.

    **Arguments:**

    - `instance`: what ``cb.gallery.network`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.
    """
    truth, figure = instance.truth, shown_figure(12, 5)
    left, right = figure.subplots(1, 2)
    xi, counts = (np.asarray(part) for part in (instance.train.xi, instance.train.eta))
    low, high = (np.atleast_1d(part) for part in (xi.min(axis=0), xi.max(axis=0)))
    demand = np.linspace(low[0], high[0], 25)
    context = np.tile((low + high) / 2, (len(demand), 1))
    context[:, 0] = demand
    context = context if xi.ndim == 2 else context[:, 0]
    found = truth.flows(np.asarray(solution.policy(jnp.asarray(context))), context)
    exact, stated = (truth.flows(truth.y(x, context), context) for x in (truth.x, np.ones_like(truth.x)))
    middle, (open_, error) = len(demand) // 2, (truth.lower.open, np.zeros(exact.shape[1]))
    error[open_] = np.asarray(solution.x, float) - truth.x
    _map(left, truth.roads, found[middle], error, "error of the capacity, as a share of the stated one")
    tail, head = truth.roads.ends
    shown = np.argsort(-np.abs(exact - stated)[middle, open_])[: len(COLOURS) // 2]
    for count, link, colour in zip(counts.T[shown], open_[shown], COLOURS, strict=False):
        if xi.ndim == 1:
            right.plot(xi, count, ".", color=colour, ms=2, alpha=0.2)
        right.plot(demand, found[:, link], color=colour, lw=1.8, label=f"{tail[link] + 1} to {head[link] + 1}")
        right.plot(demand, stated[:, link], ":", color=colour, lw=1.2)
        right.plot(demand, exact[:, link], "--", color="black", lw=0.9)
    right.plot([], [], "--", color="black", lw=0.9, label="exact")
    right.plot([], [], ":", color="grey", lw=1.2, label="at stated capacities")
    of = "demand" if xi.ndim == 1 else "demand of the first group"
    right.set(xlabel=f"{of} (share of the nominal one)", ylabel="flow (vehicles)", title="Flows of some links")
    right.legend(frameon=False, fontsize="small")
    tidy(right)
    return figure
