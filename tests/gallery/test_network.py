"""Road networks: the potential's derivatives are flows, its minimum the equilibrium, and capacities are found again."""

import csv
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.gallery import tntp
from cobilevel.gallery.network import Equilibrium, NetworkTruth, places_of
from cobilevel.gallery.walks import cost


@pytest.fixture(scope="module")
def small():
    """6 nodes, 14 links, all nodes zones."""
    return cb.gallery.network(0, roads=cb.gallery.grid(2, 3, seed=2), train=300, test=50)


def loaded(roads, t, theta, trips):
    """Flows of the Markov chain at times `t`, destination by destination: plain NumPy, no inverse of all nodes."""
    (tail, head), n, flows, closed = roads.ends, roads.nodes, np.zeros(len(t)), roads.first_through - 1
    for d in range(len(trips)):
        on = (tail != d) & ((head >= closed) | (head == d))  # who has arrived stays, and zones are not passed
        M = np.zeros((n, n))
        np.add.at(M, (tail[on], head[on]), np.exp(-theta * t[on]))
        z = np.linalg.solve(np.eye(n) - M, np.eye(n)[d])
        chance = np.where(on, np.exp(-theta * t) * z[head] / np.where(z[tail] > 0, z[tail], 1), 0)
        T = np.zeros((n, n))
        np.add.at(T, (tail, head), chance)
        through = np.linalg.solve(np.eye(n) - T.T, np.concatenate([trips[:, d], np.zeros(n - len(trips))]))
        flows += chance * through[tail]
    return flows


def successive_averages(roads, theta, trips, capacity, rounds=10_000):
    """The method of successive averages, self-regulated (Liu, He and He, 2009): steps shrink fast where flows swing."""
    links = roads.links
    times = lambda v: links["free_flow_time"] * (1 + links["b"] * (v / capacity) ** links["power"])
    v, weight, last = loaded(roads, links["free_flow_time"], theta, trips), 1.0, np.inf
    for _ in range(rounds):
        change = loaded(roads, times(v), theta, trips) - v
        size = np.linalg.norm(change)
        weight, last = weight + (1.9 if size >= last else 0.001), size
        v = v + change / weight
        if size < 1e-9 * np.linalg.norm(v):
            return v
    raise AssertionError(f"not converged: {size:.1e}")


def test_attracted_flows_are_those_of_the_chain(small):
    truth, lower = small.truth, small.truth.lower
    y = np.asarray(lower.times(truth.x, 0.7 * lower.capacity))
    expected = loaded(truth.roads, y, 1.0, 0.9 * truth.roads.trips)
    np.testing.assert_allclose(truth.flows(y[None], np.array([0.9]))[0], expected, rtol=1e-10)


def test_equilibrium_by_successive_averages(small):
    """An independent method, to 1e-6 of the flows."""
    truth, roads = small.truth, small.truth.roads
    y = truth.y(truth.x, np.array([1.0]))
    flows = truth.flows(y, np.array([1.0]))[0]
    averaged = successive_averages(roads, 1.0, roads.trips, truth.x * roads.links["capacity"])
    np.testing.assert_allclose(flows, averaged, rtol=1e-6)
    np.testing.assert_allclose(truth.lower.times(truth.x, flows), y[0], rtol=1e-12)  # and times are those of the flows


def differentiated(walks, t, q):
    """What trips cost, for JAX to differentiate operation by operation."""
    M = jnp.zeros((walks.nodes, walks.nodes)).at[walks.tail, walks.head].add(jnp.exp(-walks.theta * t))
    Z = jnp.linalg.inv(jnp.eye(walks.nodes) - M)
    return jnp.sum(q * jnp.log(Z[walks.ends, walks.ends] / Z[: len(walks.ends), walks.ends])) / walks.theta


@pytest.mark.parametrize("first_through", [1, 3])
def test_derivatives_in_closed_form(first_through):
    """Of all orders that are taken, in the times and in the trips; also with zones that are not passed through."""
    roads = cb.gallery.grid(2, 3, seed=2)
    lower = Equilibrium.of(tntp.Roads(roads.links, roads.trips, roads.nodes, first_through))
    t, q, walks = jnp.asarray(lower.times(1.0, 0.7 * lower.capacity)), lower.demand(0.9), lower.walks
    u, v = jnp.cos(jnp.arange(14.0)), jnp.sin(jnp.arange(14.0))

    @jax.jit
    def all_of(t, q):
        def derivatives(of):
            along = lambda t: jax.jvp(lambda s: of(walks, s, q), (t,), (v,))[1]
            slope = jax.grad(of, (1, 2))
            return *slope(walks, t, q), *jax.jacfwd(slope, 1)(walks, t, q), jax.jvp(jax.grad(along), (t,), (u,))[1]

        return derivatives(cost), derivatives(differentiated)

    for ours, known in zip(*all_of(t, q), strict=True):
        np.testing.assert_allclose(ours, known, rtol=1e-9, atol=1e-9 * float(jnp.max(jnp.abs(known))))


def test_the_misfit_is_convex_along_the_times_as_gauss_and_newton_have_it(small):
    f, xi, eta = small.problem.upper, small.train.xi[0], jnp.asarray(small.train.eta[0])
    x, y = jnp.ones(14), jnp.asarray(small.problem.y0)
    plain = lambda t: jnp.mean(((small.truth.lower.attracted(t, xi) - eta) / f.deviation) ** 2) / 2
    attracted = jax.jacfwd(lambda t: small.truth.lower.attracted(t, xi))

    @jax.jit  # operation by operation, each would be compiled
    def looks(y):
        return jax.grad(f, 1)(x, y, xi, eta), jax.grad(plain)(y), jax.hessian(f, 1)(x, y, xi, eta), attracted(y)

    slope, plain_slope, bend, flows = map(np.asarray, looks(y))
    np.testing.assert_allclose(slope, plain_slope, rtol=1e-9)
    flows = flows / np.asarray(f.deviation)[:, None]
    np.testing.assert_allclose(bend, flows.T @ flows / 14, rtol=1e-8, atol=1e-12)


def test_the_potential_is_smooth_and_strongly_convex(small):
    """Also where times are below those of free roads: gradient and curvature have no jump at the line's end."""
    lower, x = small.truth.lower, jnp.asarray(small.truth.x)
    times, bend = jax.jit(lambda x, flow: lower.times(x, flow)), jax.jit(jax.hessian(lower, 1))
    corner = times(x, np.asarray(lower.low * lower.capacity * x))
    for off in (-0.05, 0.0, 0.3):
        assert np.linalg.eigvalsh(bend(x, corner + off * lower.free_time, 1.0, 0.0))[0] > 0
    integral = jax.jit(jax.vmap(jax.grad(lambda t: jnp.sum(lower.stored(x, t)))))
    for load in (0.02, 0.1, 0.8):
        flow = load * np.asarray(x) * np.asarray(lower.capacity)
        np.testing.assert_allclose(integral(times(x, flow)[None])[0], flow, rtol=1e-9)


def test_zones_that_are_not_passed_through():
    """A zone in the middle: with first_through=2 nobody passes node 1."""
    roads = cb.gallery.grid(3, 3, seed=2)
    closed = tntp.Roads(roads.links, roads.trips, roads.nodes, 2, roads.places)
    lower = Equilibrium.of(closed, theta=1.0)
    flows = NetworkTruth(np.ones(24), lower, closed).flows(lower.free_time[None], np.ones(1))[0]
    tail, head = roads.ends
    np.testing.assert_allclose(flows[tail == 0].sum(), roads.trips[0].sum())
    np.testing.assert_allclose(flows[head == 0].sum(), roads.trips[:, 0].sum())


def with_connectors(unit=1.0):
    """Two zones beside the six nodes of a grid, joined to it by links that take no time."""
    base = cb.gallery.grid(2, 3, seed=2)
    more = {"init_node": [1, 3, 2, 8], "term_node": [3, 1, 8, 2], "capacity": [1e6] * 4, "power": [4.0] * 4}
    links = {name: np.concatenate([column, more.get(name, [0.0] * 4)]) for name, column in base.links.items()}
    for end in ("init_node", "term_node"):
        links[end][:14] += 2
    links["free_flow_time"] = links["free_flow_time"] * unit
    return tntp.Roads(links, np.array([[0.0, 9000.0], [5000.0, 0.0]]), 8, 3)


def test_connectors_take_no_time_and_are_no_unknowns():
    roads = with_connectors()
    lower = Equilibrium.of(roads)
    truth = NetworkTruth(np.linspace(0.8, 1.2, 14), lower, roads)
    y = truth.y(truth.x, np.ones(1))
    assert y.shape == (1, 14)
    flows, capacity = truth.flows(y, np.ones(1))[0], roads.links["capacity"].copy()
    capacity[:14] *= truth.x
    times = np.concatenate([y[0], np.zeros(4)])
    np.testing.assert_allclose(flows, loaded(roads, times, 1.0, roads.trips), rtol=1e-9)
    np.testing.assert_allclose(lower.times(truth.x, flows[:14]), y[0], rtol=1e-12)  # and times are those of the flows
    np.testing.assert_allclose(flows[14:], [9000, 5000, 5000, 9000])
    table = truth.table(truth.x, y[0], 1.0)
    np.testing.assert_allclose(table["time"][14:], 0)
    np.testing.assert_allclose(table["capacity"], capacity)


def test_times_too_long_for_the_range_of_numbers_are_no_minimum(small):
    lower, y = small.truth.lower, jnp.asarray(small.problem.y0)
    assert np.isfinite(lower(jnp.ones(14), y, 1.0, 1.0))
    assert np.isnan(lower(jnp.ones(14), 1e3 * y, 1.0, 1.0))  # their weights are 0, and costs would be infinite


@pytest.mark.parametrize("unit", [1e-3, 1e-2])
def test_theta_is_chosen_where_walks_would_not_end(unit):
    """In minutes it is 1; in smaller numbers, twice the smallest with which walks end."""
    roads = with_connectors(unit)
    theta = float(Equilibrium.of(roads).walks.theta)
    assert theta > 1
    Equilibrium.of(roads, theta=0.51 * theta)
    with pytest.raises(ValueError, match="too small"):
        Equilibrium.of(roads, theta=0.49 * theta)
    still = dict(roads.links, free_flow_time=0 * roads.links["free_flow_time"], b=roads.links["b"])
    with pytest.raises(ValueError, match="there must be links"):
        Equilibrium.of(tntp.Roads(still, roads.trips, 8, 3))
    with pytest.raises(ValueError, match="form a circle"):  # to a zone and back, where trips pass through zones
        Equilibrium.of(tntp.Roads(roads.links, roads.trips, 8, 1))


def test_demands_out_of_reach_from_the_middle_start_at_the_nearest(small, monkeypatch):
    """Where the way to an equilibrium may be little longer than that to the next one."""
    truth, xi = small.truth, np.linspace(0.7, 1.2, 9)
    exact, begun = truth.y(truth.x, xi), []
    reach = 1.2 * np.max(np.linalg.norm(np.diff(exact, axis=0), axis=1))
    assert reach < np.linalg.norm(exact[-1] - exact[4])
    module = sys.modules["cobilevel.gallery.network"]
    minimise = module.minimise

    def near(of, start, target, steps):
        end = minimise(of, start, target, steps)
        begun.append(len(start))
        far = np.linalg.norm(end.point - start, axis=1) > (reach if len(begun) > 1 else np.inf)
        return replace(end, converged=end.converged & ~far)

    monkeypatch.setattr(module, "minimise", near)
    np.testing.assert_allclose(truth.y(truth.x, xi), exact, rtol=1e-9)
    assert len(begun) > 2
    reach *= 0.6  # less than to the next demand: on to some between
    begun.clear()
    np.testing.assert_allclose(truth.y(truth.x, xi), exact, rtol=1e-9)
    reach = 0.0
    with pytest.raises(ValueError, match="no equilibrium was found"):
        truth.y(truth.x, xi)


def test_a_network_without_positions_has_counts_and_a_picture():
    city = cb.gallery.network(0, roads=with_connectors(), train=60, test=20)
    assert city.problem.x0.shape == city.problem.y0.shape == city.train.eta.shape[1:] == (14,)
    exact = SimpleNamespace(x=city.truth.x, policy=lambda xi: city.truth.y(city.truth.x, np.asarray(xi)))
    assert len(cb.gallery.draw_network(city, exact).axes) == 3
    places, (tail, head) = places_of(city.truth.roads), city.truth.roads.ends
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    assert apart[tail, head].mean() < apart.mean()


def test_theta_out_of_range_is_refused():
    roads = cb.gallery.grid(2, 2, seed=0)
    with pytest.raises(ValueError, match="too small"):
        cb.gallery.network(roads=roads, theta=0.01)
    with pytest.raises(ValueError, match="too large"):
        cb.gallery.network(roads=roads, theta=1000.0)
    with pytest.raises(ValueError, match="groups must be 1 to 5"):
        cb.gallery.network(roads=roads, groups=6)


@pytest.mark.long
@pytest.mark.thorough
def test_flows_at_other_demands_are_predicted(small):
    """With the curvature of a straight policy, which pairs of steps correct, a run ends after 31 steps; with the exact
    one alone after 57."""
    solution = cb.solve(small.problem, small.train, basis=cb.Chebyshev(4), solver=cb.Newton(memory=5), steps=45)
    assert solution.converged
    xi = np.asarray(small.test.xi)
    exact = small.truth.flows(small.truth.y(small.truth.x, xi), xi)
    policy = small.truth.flows(solution.policy(small.test.xi), xi)
    stated = small.truth.flows(small.truth.y(np.ones(14), xi), xi)
    assert np.linalg.norm(policy - exact) < 0.01 * np.linalg.norm(exact) < 0.2 * np.linalg.norm(stated - exact)


def test_the_objective_is_the_misfit_of_endless_samples(small):
    """At nodes along the demand: the upper objective on flows without noise, and the variance of the noise."""
    truth, x = small.truth, np.linspace(0.8, 1.2, 14)
    at, shares = np.polynomial.legendre.leggauss(9)
    xi = 0.95 + 0.25 * at
    counts, y = truth.flows(truth.y(truth.x, xi), xi), truth.y(x, xi)
    each = jax.jit(jax.vmap(small.problem.upper, (None, 0, 0, 0)))(x, y, xi, counts)
    assert truth.objective(x) == pytest.approx(0.5 + shares @ np.array(each) / 2, rel=1e-9)
    assert 0.5 < truth.objective(truth.x) < 0.505


def test_a_solution_is_drawn(small):
    """With exact times at the true capacities in place of those of a solve."""
    truth = small.truth
    exact = SimpleNamespace(x=truth.x, policy=lambda xi: truth.y(truth.x, np.asarray(xi)))
    roads, flows, colours = cb.gallery.draw_network(small, exact).axes
    assert "flow" in roads.get_title()
    assert "demand" in flows.get_xlabel()
    assert "error" in colours.get_ylabel()


def test_the_table_and_the_picture(small, tmp_path):
    x = small.truth.x
    table = small.truth.table(x, small.truth.y(x, np.ones(1))[0], 1.0)
    cb.gallery.write_table(tmp_path / "links.csv", table)
    with (tmp_path / "links.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["link", "from", "to", "capacity_stated", "capacity", "flow", "time"]
    assert float(rows[3]["flow"]) == table["flow"][3]
    figure = cb.gallery.draw_roads(small.truth.roads, table["flow"], x - 1, tmp_path / "roads.png")
    (lines,) = (part for part in figure.axes[0].collections if len(part.get_array()) == len(x))
    widths = np.asarray(lines.get_linewidths())
    assert np.all(np.diff(widths[np.argsort(table["flow"])]) >= 0)
    assert (tmp_path / "roads.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_sioux_falls_by_successive_averages():
    """At nominal demand, to 1e-6 of the flows."""
    roads = sioux_falls()
    truth = NetworkTruth(np.ones(76), Equilibrium.of(roads), roads)
    flows = truth.flows(truth.y(truth.x, np.ones(1)), np.ones(1))[0]
    averaged = successive_averages(roads, 1.0, roads.trips, roads.links["capacity"])
    np.testing.assert_allclose(flows, averaged, rtol=1e-6)


def sioux_falls():
    """From a folder of TNTP files, or from AequilibraE."""
    folder = os.environ.get("SIOUX_FALLS")
    if folder is None:
        pytest.importorskip("aequilibrae")
    return tntp.sioux_falls() if folder is None else tntp.read_folder(folder)


@pytest.mark.thorough
def test_sioux_falls_tends_to_the_user_equilibrium():
    """Published: Beckmann's objective 4231335.287, total travel time 7480225.34."""
    roads = sioux_falls()
    links, flows = roads.links, []
    for theta in (7.0, 14.0):
        lower = Equilibrium.of(roads, theta=theta)
        truth = NetworkTruth(np.ones(76), lower, roads)
        flows.append(truth.flows(truth.y(truth.x, np.ones(1)), np.ones(1))[0])
    truth = NetworkTruth(np.ones(76), Equilibrium.of(roads, theta=20.0), roads)
    with pytest.raises(ValueError, match="theta may be too large"):
        truth.y(truth.x, np.ones(1))
    v = 2 * flows[1] - flows[0]  # the error falls as 1 / theta
    rise = links["b"] * (v / links["capacity"]) ** links["power"]
    beckmann = np.sum(links["free_flow_time"] * v * (1 + rise / (links["power"] + 1)))
    travel = np.sum(links["free_flow_time"] * v * (1 + rise))
    assert abs(beckmann / 4231335.287 - 1) < 1e-4
    assert abs(travel / 7480225.34 - 1) < 1e-3
