"""Objectives followed in factors give what they give at a policy that is formed, and no policy is formed."""

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import OneHot
from cobilevel.derivatives import Ledger, oracles
from cobilevel.gallery import Images
from cobilevel.ground.programs import quick
from cobilevel.reduction import factored

ROWS, PIXELS, CLASSES, FUNCTIONS = 40, 60, 7, 3
FIXED = np.cos(np.arange(PIXELS * 5.0)).reshape(5, PIXELS)
entropy = lambda logits, label: -jax.nn.log_softmax(logits)[label]


@jax.custom_jvp
def gentle(v):
    return jnp.tanh(v)


gentle.defjvp(lambda primals, tangents: (gentle(*primals), tangents[0] * (1 - gentle(*primals) ** 2)))

# lower objectives of a matrix y for which it need not be formed ...
STRAIGHT = {
    "cleaning": lambda x, y, xi, eta: x[0] * entropy(eta["a"] @ y / xi, eta["label"]) + 0.1 * jnp.sum(y**2),
    "scaled first": lambda x, y, xi, eta: entropy(eta["a"] @ (-y / xi + 2 * y), eta["label"]),
    "transposed": lambda x, y, xi, eta: jnp.sum(jnp.tanh((y.T * x[0]) @ eta["a"]) ** 2) + jnp.sum(y * y) * xi,
    "vector": lambda x, y, xi, eta: jnp.sin(eta["long"] @ y.reshape(-1)) + jnp.vdot(y, y),
    "summed": lambda x, y, xi, eta: jnp.sum(gentle(jnp.sum(y, axis=0))) + x[0] * jnp.mean(jnp.square(y)),
    "picked": lambda x, y, xi, eta: jnp.sum((y[eta["label"]] - x[0]) ** 2) + jnp.exp(y[3:5].sum() / 9),
    "shifted": lambda x, y, xi, eta: jnp.sum(jnp.cos(eta["a"] @ (y - FIXED[0][:, None] + 1.0))) + jnp.sum((y - 1) ** 2),
    "fixed matrix": lambda x, y, xi, eta: jnp.sum(jnp.exp(jnp.dot(FIXED, y)[0] * eta["a"][0] / 50)),
    "rows": lambda x, y, xi, eta: jnp.sum(jnp.tanh(jnp.stack([eta["a"], 2 * eta["a"]]) @ y)),
    "by hand": lambda x, y, xi, eta: jnp.cos(jnp.sum(y * eta["long"].reshape(y.shape))) * x[0],
    "called": lambda x, y, xi, eta: jax.jit(lambda z: entropy(eta["a"] @ z, 0) + xi * jnp.sum(z**2))(y),
    "weighted squares": lambda x, y, xi, eta: jnp.sum(-jnp.exp(x[0] * FIXED[0])[:, None] * y**2) + (y * y / 3).sum(),
    "two products": lambda x, y, xi, eta: jnp.sum((eta["a"] @ y) * (jnp.roll(eta["a"], 1) @ y)),
}
# ... and for which it is
BENT = {
    "entrywise": lambda x, y, xi, eta: jnp.sum(jnp.tanh(y) ** 2) + jnp.sum(eta["a"] @ y) * x[0],
    "root": lambda x, y, xi, eta: jnp.sqrt(jnp.sum(y**2) + 1e-3) + jnp.sum(eta["a"] @ y),
    "own shift": lambda x, y, xi, eta: jnp.sum((y - eta["a"][:, None] * x[0]) ** 2),
    "custom rule": lambda x, y, xi, eta: jnp.sum(gentle(y)) + x[0] * jnp.sum(eta["a"] @ y),
    "loop": lambda x, y, xi, eta: jax.lax.fori_loop(0, 2, lambda _, z: jnp.sin(z), y).sum() * x[0],
    "divided": lambda x, y, xi, eta: jnp.sum(eta["a"][:, None] / (3 + y**2)),
    "many rows": lambda x, y, xi, eta: jnp.sum(jnp.tanh(jnp.outer(jnp.arange(9.0), eta["a"]) @ y)),
    "cast": lambda x, y, xi, eta: jnp.sum(jnp.real(jnp.exp(eta["a"].astype(complex) @ y.astype(complex) * 1j))),
}


def reduced(lower, y0=None):
    rng = np.random.default_rng(0)
    eta = {
        "a": rng.normal(size=(ROWS, PIXELS)),
        "long": rng.normal(size=(ROWS, PIXELS * CLASSES)) / 9,
        "label": rng.integers(CLASSES, size=ROWS),
    }
    y0 = jnp.zeros((PIXELS, CLASSES)) if y0 is None else y0
    upper = lambda x, y, xi, eta: jnp.sum(x**2)
    problem = cb.Problem(upper, lower, jnp.ones(2), y0, cb.Interval(1.0, 2.0))
    return cb.reduce(problem, cb.Chebyshev(FUNCTIONS), cb.Samples(rng.uniform(1, 2, ROWS), eta)).ordinary()


def nudged(tree, by=1.0):
    wave = lambda a: np.asarray(a) + np.cos(by * np.arange(a.size)).reshape(a.shape) / 5
    return jax.tree.map(wave, tree)


def looks(problem):
    """Value, gradients, the Hessian and the cross product along a direction, forwards over backwards; the latter the
    other way round too."""
    x, W, V, batch = nudged(problem.x0), nudged(problem.W0), nudged(problem.W0, 2.0), problem.lower_pool

    def all_of_them(x, W, V):
        slopes = lambda weights: jax.value_and_grad(problem.lower, argnums=(0, 1))(x, weights, batch)
        return jax.jvp(slopes, (W,), (V,)), oracles.cross_product(problem, x, W, V, batch, Ledger.page())[0]

    return quick(all_of_them)(x, W, V)


def formed(problem):
    """Whether a policy is formed for each sample, of which no ``None`` tells."""
    batch = problem.lower_pool
    given = (problem.x0, problem.W0, batch.features, batch.xi, batch.eta)
    found = []
    jax.eval_shape(lambda *args: found.append(factored.values_in_factors(problem.problem.lower, *args)), *given)
    return found[0] is None


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11 * (1 + np.max(np.abs(b))))


def at_formed_policies(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factored, "_FEWER", 10**9)
        assert formed(problem)
        return looks(problem)


@pytest.mark.parametrize("name", STRAIGHT)
def test_values_and_derivatives_are_those_at_the_policy(name):
    problem = reduced(STRAIGHT[name])
    assert not formed(problem)
    same(looks(problem), at_formed_policies(problem))


@pytest.mark.parametrize("name", BENT)
def test_a_policy_may_be_formed_on_the_way(name, monkeypatch):
    """It is formed at once where an operation asks for it; where factors are kept all the same, nothing changes."""
    problem = reduced(BENT[name])
    assert formed(problem)
    expected = at_formed_policies(problem)
    monkeypatch.setattr(factored, "_FEWER", 0)
    assert not formed(problem)
    same(looks(problem), expected)


def test_what_is_left_of_an_objective_is_followed_too():
    """After all that depends on samples alone has been computed."""
    lower = lambda x, y, xi, eta: entropy(jnp.sin(eta["a"]) @ y / jnp.exp(xi), eta["label"]) + x[0] * jnp.sum(y**2)
    problem = reduced(lower)
    ahead = problem.looked_through()
    assert ahead.problem.lower is not problem.problem.lower
    assert not formed(ahead)
    same(looks(ahead), at_formed_policies(problem))


def test_parts_of_a_policy_may_be_small():
    """A classifier with a bias; and one of parts that are multiplied with each other."""
    y0 = {"weight": jnp.zeros((PIXELS, CLASSES)), "bias": jnp.zeros(CLASSES), "scale": jnp.zeros(())}
    parts = (
        lambda x, y, xi, eta: entropy(eta["a"] @ y["weight"] + y["bias"] * xi, eta["label"]) + y["scale"] ** 2,
        lambda x, y, xi, eta: jnp.sum((eta["a"] @ y["weight"] * y["scale"] + x[0] * y["bias"]) ** 2),
        lambda x, y, xi, eta: (y["weight"].sum(0) @ y["bias"] * xi) + y["scale"] * x[0],
        lambda x, y, xi, eta: jnp.sum(jnp.sin(y["weight"].sum(0) * FIXED[0, :CLASSES] + y["bias"])) * y["scale"],
    )
    for lower in parts:
        problem = reduced(lower, y0)
        assert not formed(problem)
        same(looks(problem), at_formed_policies(problem))


def test_operations_that_cannot_be_carried_out_are_left_to_formed_policies(monkeypatch):
    """As where JAX has changed them: the problem is solved all the same."""

    def changed(*_):
        raise TypeError("bind() got an unexpected keyword argument")

    problem = reduced(STRAIGHT["cleaning"])
    expected = at_formed_policies(problem)
    monkeypatch.setattr(factored._Walk, "__call__", changed)
    assert formed(problem)
    same(looks(problem), expected)


def test_small_policies_and_small_batches_are_formed():
    problem = reduced(lambda x, y, xi, eta: (eta["a"][:4] @ y - x[0]) ** 2, jnp.zeros(4))
    assert formed(problem)
    problem = reduced(STRAIGHT["cleaning"])
    few = jax.tree.map(lambda a: a[: 2 * FUNCTIONS - 1], problem.lower_pool)
    assert formed(problem.with_pools(few, few))


def test_features_of_one_function_each_are_left_to_themselves():
    problem = reduced(STRAIGHT["cleaning"])
    batch, places = problem.lower_pool, jnp.arange(ROWS) % FUNCTIONS
    hot = replace(batch, features=OneHot(places, jnp.ones(ROWS), FUNCTIONS))
    assert formed(problem.with_pools(hot, hot))


def shapes(program):
    """The shapes of all values in a program, those inside of its operations too."""
    for equation in program.eqns:
        yield from (var.aval.shape for var in equation.outvars)
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


@cache
def cleaning():
    rng = np.random.default_rng(0)
    images = lambda count: (rng.uniform(size=(count, 64)).astype(np.float32), rng.integers(10, size=count))
    instance = cb.gallery.cleaning(0, Images(*images(600), *images(10), "made"), train=200, validation=200)
    problem = cb.reduce(instance.problem, cb.Chebyshev(5), instance.train).ordinary()
    return problem, eqx.filter_jit(lambda problem: problem.draw(0, 128))(problem)


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_cleaning_forms_no_classifier_for_each_image(level):
    """Neither its gradients nor products with its Hessian hold an array of batch x pixels x classes."""
    problem, batches = cleaning()
    batch, objective = batches[level == "lower"], getattr(problem, level)

    def all_of_it(x, W, V):
        slopes = lambda W: jax.grad(objective, argnums=(0, 1))(x, W, batch)
        return jax.jvp(slopes, (W,), (V,))

    program = jax.make_jaxpr(all_of_it)(problem.x0, problem.W0, problem.W0)
    largest = max(int(np.prod(shape)) for shape in shapes(program.jaxpr))
    assert largest < 128 * problem.W0[0].size / 4
    assert largest >= problem.W0.size


def test_programs_are_shared_between_problems_of_other_numbers():
    """Two problems that differ in a number are traced once, in factors too."""
    traced = []

    @jax.jit
    def value(problem, x, W, batch):
        traced.append(1)
        return problem.lower(x, W, batch)

    for weight in (0.1, 0.2):
        problem = reduced(lambda x, y, xi, eta, w=weight: entropy(eta["a"] @ y, 0) + w * jnp.sum(y**2))
        value(problem, problem.x0, problem.W0, problem.lower_pool)
    assert len(traced) == 1
