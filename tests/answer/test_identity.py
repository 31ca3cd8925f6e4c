"""Digests of what a problem's functions do: the same in every process, other for another function or number."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.answer import Objectives, different_functions, function_digests
from cobilevel.study import Study
from problems import LINE, NOISE, XI


def upper(x, y, xi, eta):
    return jnp.sum(jax.nn.softplus(y - xi)) + x**2


def lower(x, y, xi, eta, pull=0.1):
    last, _ = jax.lax.scan(lambda held, a: (held + pull * a, None), y, jnp.arange(3.0))
    return (last - x * xi - eta) ** 2


def draw(key, size):
    for_context, for_noise = jax.random.split(key)
    return cb.Samples(jax.random.uniform(for_context, (size,)), jax.random.normal(for_noise, (size,)))


def digest(f=upper, g=lower, samples=None, y0=0.0, **more):
    problem = cb.Problem(f, g, 1.0, y0, LINE, **more)
    return function_digests(Study.of(problem, cb.Samples(XI, NOISE) if samples is None else samples))


def test_the_same_functions_have_the_same_digests():
    found = digest()
    assert set(found) == {"upper", "lower"}
    assert all(len(part) == 64 and int(part, 16) for part in found.values())
    renamed = jax.jit(lambda a, b, c, d: upper(a, b, c, d) * 1)  # a call and a name of its own
    assert digest(lambda p, q, r, s: upper(p, q, r, s)) == found
    assert digest(renamed)["upper"] != found["upper"]


@pytest.mark.parametrize("pull", [0.1 + 1e-15, 0.2])
def test_a_number_inside_a_loop_counts(pull):
    other = digest(g=lambda x, y, xi, eta: lower(x, y, xi, eta, pull))
    assert other["lower"] != digest()["lower"]
    assert other["upper"] == digest()["upper"]


def test_a_captured_array_counts():
    targets = [np.arange(3.0), np.arange(3.0), np.array([0.0, 1.0, 2.5])]
    one, same, other = (digest(lambda x, y, xi, eta, t=t: jnp.sum((y - t) ** 2))["upper"] for t in targets)
    assert one == same != other


def test_a_rule_stated_by_hand_counts():
    """Two functions of the same values, with other derivatives."""

    def with_slope(slope):
        @jax.custom_jvp
        def squared(y):
            return y**2

        squared.defjvp(lambda at, along: (at[0] ** 2, slope * at[0] * along[0]))
        return lambda x, y, xi, eta: squared(y) + x**2

    one, same, other = (digest(with_slope(slope))["upper"] for slope in (2.0, 2.0, 3.0))
    assert one == same != other


def test_constraints_and_streams_have_digests_of_their_own():
    total = lambda value: [cb.Equalities([[1.0, 2.0]], lambda x, xi: jnp.atleast_1d(value + x * xi))]
    sums = (lambda x, y, xi, eta: jnp.sum(y**2), lambda x, y, xi, eta: jnp.sum((y - x - eta) ** 2))
    one, same, other, free = (
        digest(*sums, y0=np.zeros(2), constraints=stated) for stated in (total(1.0), total(1.0), total(2.0), None)
    )
    assert one == same
    assert {name for name in one if one[name] != other[name]} == {"constraints"}
    assert {name: one[name] for name in ("upper", "lower")} == free
    shifted = lambda key, size: jax.tree.map(lambda a: a * 0.5, draw(key, size))
    drawn, again, moved = (digest(samples=cb.Stream(each)) for each in (draw, lambda k, s: draw(k, s), shifted))
    assert drawn == again
    assert {name for name in drawn if drawn[name] != moved[name]} == {"samples"}


def test_what_python_does_inside_is_not_vouched_for():
    shape = lambda xi: jax.ShapeDtypeStruct((), xi.dtype)
    aside = lambda xi: jax.pure_callback(lambda v: np.asarray(v), shape(xi), xi, vmap_method="sequential")
    assert digest(lambda x, y, xi, eta: y**2 + jax.lax.stop_gradient(aside(xi)))["upper"].endswith("?")


def test_values_decide_where_digests_differ():
    """Streams that draw the same samples are the same; a constraint that says another thing is another."""
    stream = lambda how: Study.of(cb.Problem(upper, lower, 1.0, 0.0, LINE), cb.Stream(how))
    policy = lambda xi: np.zeros(len(xi))
    begun = Objectives.of(stream(draw))
    aside = lambda key, size: jax.tree.map(lambda a: a + 0 * a, draw(key, size))
    assert function_digests(stream(aside)) != begun.digests
    assert not different_functions(begun, np.float64(1.0), policy, stream(aside))
    half = lambda key, size: jax.tree.map(lambda a: a * 0.5, draw(key, size))
    assert different_functions(begun, np.float64(1.0), policy, stream(half)) == {
        "samples": "they are drawn differently"
    }

    sums = (lambda x, y, xi, eta: jnp.sum(y**2), lambda x, y, xi, eta: jnp.sum((y - x - eta) ** 2))
    with_sum = lambda b: cb.Problem(*sums, 1.0, np.zeros(2), LINE, constraints=[cb.Equalities([[1.0, 2.0]], b)])
    study = lambda b: Study.of(with_sum(b), cb.Samples(XI, NOISE))
    begun, policy = Objectives.of(study(lambda x, xi: jnp.atleast_1d(x * xi))), lambda xi: np.zeros((len(xi), 2))
    found = lambda b: different_functions(begun, np.float64(1.0), policy, study(b))
    assert not found(lambda x, xi: jnp.atleast_1d(2 * x * xi / 2))
    assert found(lambda x, xi: jnp.atleast_1d(x * xi**2)).keys() == {"constraints"}


def test_another_process_finds_the_same():
    here = Path(__file__).parent
    code = (
        f"import sys, jax; sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}];"
        "jax.config.update('jax_enable_x64', True); import test_identity as t; import cobilevel as cb;"
        "print(t.digest(samples=cb.Stream(t.draw)))"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == str(digest(samples=cb.Stream(draw)))
