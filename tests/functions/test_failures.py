"""What fails inside a user's function is named, with what to write instead, before anything is compiled."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.study import Study

XI = np.linspace(0, 1, 40)
SAMPLES = cb.Samples(XI, 0.1 * XI)
BASIS = cb.Chebyshev(3)


def aim(x, y, xi, eta):
    return (y - 1) ** 2 + x**2


def fit(x, y, xi, eta):
    return (y - x * xi - eta) ** 2


def problem(upper=aim, lower=fit, **options):
    return cb.Problem(upper, lower, 0.5, 0.0, cb.Interval(0.0, 1.0), **options)


def looped(y):
    return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * 1.1, c[1] + 1), (y, 0))[0]


def called(y, **options):
    return jax.pure_callback(lambda a: np.asarray(a) ** 2, jax.ShapeDtypeStruct((), y.dtype), y, **options)


@jax.custom_vjp
def squared(y):
    return y**2


squared.defvjp(lambda y: (y**2, y), lambda y, t: (2 * y * t,))


@jax.custom_jvp
def by_rule(y):
    return called(y)


by_rule.defjvp(lambda y, t: (by_rule(*y), 2 * y[0] * t[0]))

CASES = {
    "while_loop above": ({"upper": lambda x, y, xi, eta: looped(y)}, ["upper(", "once", "fori_loop", "fixed", "scan"]),
    "while_loop below": ({"lower": lambda x, y, xi, eta: looped(y) ** 2}, ["lower(", "twice", "fori_loop", "scan"]),
    "a callback": ({"lower": lambda x, y, xi, eta: called(y - x)}, ["lower(", "callback", "jax.custom_jvp"]),
    "a callback one by one": ({"upper": lambda x, y, xi, eta: by_rule(y)}, ["upper(", 'vmap_method="sequential"']),
    "custom_vjp below": ({"lower": lambda x, y, xi, eta: squared(y - x)}, ["lower(", "custom_vjp", "custom_jvp"]),
    "a Python if": ({"upper": lambda x, y, xi, eta: y if y > 0 else x}, ["upper(", "if", "jnp.where", "lax.cond"]),
    "a Python if below": ({"lower": lambda x, y, xi, eta: y**2 if xi > 0 else x}, ["lower(", "jnp.where"]),
    "NumPy": ({"lower": lambda x, y, xi, eta: np.sin(y)}, ["lower(", "jax.numpy instead of numpy"]),
    "float()": ({"lower": lambda x, y, xi, eta: float(y) * x}, ["lower(", ".astype(float)"]),
    "an index": ({"lower": lambda x, y, xi, eta: [y, x][xi.astype(int)]}, ["lower(", "index or a size"]),
    "a mask": ({"lower": lambda x, y, xi, eta: jnp.sum(jnp.ones(3)[jnp.ones(3) > y])}, ["lower(", "jnp.where(mask"]),
    "an error of its own": ({"lower": lambda x, y, xi, eta: 1 / 0}, ["lower(", "ZeroDivisionError: division by zero."]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_function_and_the_remedy_are_named(name):
    change, words = CASES[name]
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        cb.solve(problem(**change), SAMPLES, BASIS)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_what_can_be_differentiated_passes():
    """Loops of fixed length, those in the noise alone, hand-made rules above; and below where they are taken once."""
    fixed = lambda x, y, xi, eta: jax.lax.fori_loop(0, 3, lambda _, z: 1.1 * z, y - x) ** 2
    aside = lambda x, y, xi, eta: (y - x * jax.lax.stop_gradient(looped(xi))) ** 2
    rule = lambda x, y, xi, eta: squared(y - x)
    for change in ({"lower": fixed}, {"lower": aside}, {"upper": rule}):
        Study.of(problem(**change), SAMPLES)
    reduced = cb.reduce(problem(lower=rule), BASIS, SAMPLES)
    assert float(jax.grad(reduced.lower)(reduced.x0, reduced.W0, reduced.lower_pool)) == pytest.approx(1.0)


def broken(*arguments):
    raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cb.Stream(broken), ["Stream: draw(key, size)", "RuntimeError: mine."]),
        (lambda: cb.Stream(lambda key: None), ["Stream: draw(key, size)", "takes 1 positional argument"]),
        (lambda: cb.Stream(lambda k, n: None if jax.random.uniform(k) > 0 else 1), ["Stream: draw", "jnp.where"]),
        (lambda: cb.reduce(problem(), cb.Features(broken, 3), SAMPLES), ["Features: function(xi)", "Error: mine."]),
        (lambda: cb.reduce(problem(), cb.Features(lambda xi: xi if xi > 0 else 1, 3), SAMPLES), ["Feat", "jnp.where"]),
        (lambda: cb.reduce(problem(), cb.Features(lambda xi: [xi] * 3, 3), SAMPLES), ["Feat", "a list", "jnp.stack"]),
    ],
)  # fmt: skip
def test_functions_that_raise_are_named(call, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_bounds_that_are_nan_are_not_blamed_on_the_lower_objective():
    bounded = problem(constraints=[cb.Bounds(lambda xi: jnp.log(xi - 0.5), None)])
    with pytest.raises(ValueError, match=r"constraints\[0\] \(Bounds\): a bound is NaN at 20 of 40 contexts.*lo\(xi\)"):
        Study.of(bounded, SAMPLES)
    Study.of(problem(constraints=[cb.Bounds(lambda xi: jnp.where(xi > 0.5, -1.0, -jnp.inf), None)]), SAMPLES)


def test_names_of_two_kinds_are_refused():
    with pytest.raises(TypeError, match=r"Samples: eta has a dict whose keys cannot be sorted.*astype\(str\)"):
        cb.Samples(XI, {0: XI, "a": XI})
    with pytest.raises(TypeError, match="x0 has a dict whose keys"):
        cb.Problem(aim, fit, {0: 1.0, "a": 2.0}, 0.0, cb.Interval(0.0, 1.0))
    assert set(cb.Samples({0: XI, "a": XI}).xi) == {"0", "a"}


def test_arguments_in_another_order_are_asked_about():
    swapped = lambda x, y, eta, xi: (y - eta["demand"]) ** 2
    samples = cb.Samples(XI, {"demand": XI})
    with pytest.raises(ValueError, match="in the order x, y, xi, eta"):
        Study.of(cb.Problem(swapped, swapped, 0.0, 0.0, cb.Interval(0.0, 1.0)), samples)
