"""Each call solves what the functions say now; problems that differ in numbers alone share compiled programs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.study import Study

RNG = np.random.default_rng(0)
SAMPLES = cb.Samples(RNG.uniform(size=200), RNG.normal(size=200))
BASIS = cb.Chebyshev(3)
COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)

cost = 1.0
table = {"cost": 1.0}


def helper(x):
    return x**2


def aim(x, y, xi, eta):
    return (y - 1) ** 2 + x**2


def lower(x, y, xi, eta):
    return (y - x * (1 + xi) - eta) ** 2


def solved(upper, below=lower, **options):
    """The answer, by a solve of its own."""
    return float(cb.solve(cb.Problem(upper, below, 1.0, 0.0, cb.Interval(0.0, 1.0)), SAMPLES, BASIS, **options).x)


def answer(cost):
    """What the answer is for ``(y - 1)^2 + cost x^2``, with the cost in an array of a module."""
    basis = np.polynomial.chebyshev.chebvander(2 * np.asarray(SAMPLES.xi) - 1, 2)
    fit = lambda target: basis @ np.linalg.lstsq(basis, target, rcond=None)[0]
    slope, level = fit(1 + np.asarray(SAMPLES.xi)), fit(np.asarray(SAMPLES.eta))
    return np.mean(slope * (1 - level)) / (np.mean(slope**2) + cost)


def by_global(value):
    global cost
    cost = value
    return _by_global


def _by_global(x, y, xi, eta):
    return (y - 1) ** 2 + cost * x**2


class Market:
    cost = 1.0

    def upper(self, x, y, xi, eta):
        return (y - 1) ** 2 + self.cost * x**2


MARKET = Market()


def by_attribute(value):
    MARKET.cost = value
    return MARKET.upper


def by_dictionary(value):
    table["cost"] = value
    return _by_dictionary


def _by_dictionary(x, y, xi, eta):
    return (y - 1) ** 2 + table["cost"] * x**2


ARRAY = np.ones(3)


def by_array(value):
    ARRAY[:] = value / 3
    return _by_array


def _by_array(x, y, xi, eta):
    return (y - 1) ** 2 + jnp.sum(ARRAY * x**2)


def by_helper(value):
    global helper
    helper = lambda x: value * x**2
    return _by_helper


def _by_helper(x, y, xi, eta):
    return (y - 1) ** 2 + helper(x)


def by_closure(value):
    array = jnp.full(3, value / 3)
    return lambda x, y, xi, eta: (y - 1) ** 2 + jnp.sum(array * x**2)


def by_fresh_lambda(value):
    return lambda x, y, xi, eta: (y - 1) ** 2 + value * x**2


def by_loop(value):
    global cost
    cost = value
    return _by_loop


def _body(total, x):
    return total + cost * x**2 / 2, None


def _by_loop(x, y, xi, eta):
    return (y - 1) ** 2 + jax.lax.scan(_body, jnp.zeros_like(x), jnp.stack([x, x]))[0]


WAYS = [by_global, by_attribute, by_dictionary, by_array, by_helper, by_closure, by_fresh_lambda]


@pytest.mark.parametrize("way", [*WAYS, by_loop])
def test_every_call_sees_the_functions_as_they_are_and_other_numbers_compile_nothing(way):
    """But for numbers in the body of a loop, which are part of the program."""
    found = [solved(way(1.0))]
    before = len(COMPILED)
    assert before
    found += [solved(way(value)) for value in (2.0, 4.0)]
    assert found == pytest.approx([answer(value) for value in (1.0, 2.0, 4.0)])
    assert len(COMPILED) == before or way is by_loop


def test_functions_made_anew_compile_nothing_under_bounds_either():
    """What a barrier is measured by was compiled again for functions that say the same."""

    def solve(value):
        low = lambda x, y, xi, eta: (y - x * (1 + xi) - eta) ** 2
        problem = cb.Problem(
            by_fresh_lambda(value), low, 1.0, 0.5, cb.Interval(0.0, 1.0), constraints=[cb.Bounds(-9, 9)]
        )
        return cb.solve(problem, SAMPLES, BASIS)

    solve(1.0)
    before = len(COMPILED)
    assert solve(2.0).converged
    assert len(COMPILED) == before


def test_instances_of_a_family_with_a_sampler_compile_nothing():
    def judged(seed):
        one, few = cb.gallery.quadratic(seed, dx=2, dy=2), slice(0, 300)
        solution = cb.solve(one.problem, one.train.rows(few), basis=BASIS)
        return cb.evaluate(one.problem, solution, one.test.rows(few))

    judged(0)
    before = len(COMPILED)
    judged(1)
    assert len(COMPILED) == before


def test_judges_see_the_functions_as_they_are():
    problem = cb.Problem(by_global(1.0), lower, 1.0, 0.0, cb.Interval(0.0, 1.0))
    solution = cb.solve(problem, SAMPLES, BASIS)
    gradient = float(cb.certify(problem, solution, SAMPLES).gradient)
    by_global(2.0)
    assert float(cb.certify(problem, solution, SAMPLES).gradient) == pytest.approx(gradient + 2 * float(solution.x))
    reduced = cb.reduce(problem, BASIS, SAMPLES)
    value = float(reduced.upper(solution.x, solution.W, reduced.upper_pool))
    by_global(3.0)  # a reduced problem is the one it was made from
    assert float(reduced.upper(solution.x, solution.W, reduced.upper_pool)) == value
    reduced = cb.reduce(problem, BASIS, SAMPLES)
    later = float(reduced.upper(solution.x, solution.W, reduced.upper_pool))
    assert later == pytest.approx(value + float(solution.x) ** 2)


def test_the_lower_level_too():
    def answer_at(value):
        ARRAY[:] = value
        return solved(aim, lambda x, y, xi, eta: (y - ARRAY[0] * x * (1 + xi) - eta) ** 2)

    assert answer_at(1.0) == pytest.approx(answer(1.0))
    assert answer_at(2.0) * 2 == pytest.approx(answer(0.25))


@jax.custom_jvp
def power(x):
    return x**2


@power.defjvp
def _slope(primals, tangents):
    return power(*primals), cost * 2 * primals[0] * tangents[0]


def test_a_changed_rule_is_seen():
    upper = lambda x, y, xi, eta: (y - 1) ** 2 + power(x)
    problem = cb.Problem(upper, lower, 1.0, 0.0, cb.Interval(0.0, 1.0))
    reduced, slopes = cb.reduce(problem, BASIS, SAMPLES), []
    for value in (1.0, 3.0, 3.0):
        by_global(value)
        before = len(COMPILED)
        slopes.append(float(cb.certify(problem, reduced.lift(reduced.x0, reduced.W0), SAMPLES).gradient))
    assert len(COMPILED) == before
    assert slopes[1] - slopes[0] == pytest.approx(4.0)
    assert slopes[2] == slopes[1]


def test_samplers_as_they_are():
    def draw(key, size):
        xi = jax.random.uniform(key, (size,), float)
        return cb.Samples(xi, table["cost"] * jnp.ones_like(xi))

    def answer_at(value):
        table["cost"] = value
        problem = cb.Problem(aim, lower, 1.0, 0.0, cb.Interval(0.0, 1.0))
        reduced = cb.reduce(problem, BASIS, cb.Stream(draw) if stream is None else stream)
        return float(jnp.mean(reduced.draw(0, 5)[0].eta))

    stream = None
    assert [answer_at(v) for v in (1.0, 2.0)] == [1.0, 2.0]
    stream = cb.Stream(draw)
    solver = cb.SOBA(batch=4)
    table["cost"] = 0.0
    problem = cb.Problem(aim, lower, 1.0, 0.0, cb.Interval(0.0, 1.0))
    first = cb.solve(problem, stream, BASIS, solver, steps=20)
    table["cost"] = 5.0
    assert float(jnp.abs(cb.solve(problem, stream, BASIS, solver, steps=20).W - first.W).max()) > 0.01


@jax.jit
def _inner(x):
    return jnp.sum(jnp.where(x > 0, x, 0.1 * x) ** 3) + jax.nn.softplus(x[0])


@pytest.mark.usefixtures("promotion")
def test_derivatives_are_those_of_the_function():
    matrix = np.arange(9.0).reshape(3, 3)

    def function(x, y, xi, eta):
        inner = _inner(x["a"]) + jax.lax.cond(xi > 0, jnp.sin, jnp.cos, y[0]) + jnp.maximum(y[1], 0.3)
        fixed = jnp.float32(0.5) * jnp.sum(x["a"]) ** 1.7 + 2 * jax.nn.relu(y[0])
        return inner + fixed + y[0] * x["a"] @ matrix @ x["a"] * eta["z"] + jnp.linalg.norm(y[1] - xi)

    problem = cb.Problem(
        function, function, {"a": np.array([0.3, 0.4, 0.5])}, (0.2, 1.0), cb.Interval(0.0, 1.0), lower_noise=True
    )
    samples = cb.Samples(np.linspace(0, 1, 5), {"z": np.linspace(1, 2, 5)})
    now = Study.of(problem, samples).problem.upper
    args = (problem.x0, problem.y0, jnp.asarray(0.4), {"z": jnp.asarray(1.5)})
    for change in (lambda f, **_: f, jax.grad, jax.hessian, jax.jacfwd):  # each as one program
        found, asked = (jax.tree.leaves(jax.jit(partial(change(f, argnums=(0, 1))))(*args)) for f in (now, function))
        for one, other in zip(found, asked, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-12)
    rows = (samples.xi, samples.eta)
    each = lambda f: jax.jit(jax.vmap(f, in_axes=(None, None, 0, 0)))(*args[:2], *rows)
    np.testing.assert_allclose(each(now), each(function), rtol=1e-12)
